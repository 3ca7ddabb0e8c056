"""Read patterns that make a call unsound, with the sentence, and uses of a number that end its symbolic life."""

from typing import NamedTuple

from observer_cases import BOX


class Unsound(NamedTuple):
    name: str
    source: str
    sentence: str
    args: str = "(T,)"


CONTEXT = "import contextvars\nc = contextvars.ContextVar('c', default=1)\n"

UNSOUND = [
    Unsound(
        "C function of a module with a string",
        "import time\ndef f(x): return x * float(time.strftime('%S'))",
        "call of strftime at model.py:2",
    ),
    Unsound(
        "generator over objects",
        BOX + "import datetime\nd = datetime.date(2020, 1, 1)\ndef f(x): return x if max(v for v in (d, d)) else -x",
        "read of datetime.date at model.py:7",
    ),
    Unsound(
        "store to a slice of an argument",
        "def f(xs):\n  xs[:1] = [xs[1]]\n  return xs[0]",
        "store to item of list at model.py:2",
        "([T, T],)",
    ),
    Unsound("in-place addition", "L = []\ndef f(x):\n  y = L\n  y += [1]\n  return x", "change of list at model.py:4"),
    Unsound("unknown C function", "import time\ndef f(x): return x * time.time()", "call of time at model.py:2"),
    Unsound("random", "import random\ndef f(x): return x * random.random()", "call of Random.random at model.py:2"),
    *(
        Unsound(
            f"container made in C, {sentence.split()[0]}",
            f"import array\nD = array.array('d', [2])\ndef f(x): return x if {read} else -x",
            f"{sentence} array.array at model.py:3",
        )
        for read, sentence in [
            ("D[0]", "read of item of"),
            ("[*D]", "iteration over"),
            ("len(D)", "length of"),
            ("2 in D", "search in"),
            ("D", "truth of"),
        ]
    ),
    Unsound("id", "def f(x): return x * id(x)", "read of an address by id at model.py:1"),
    Unsound("class definition", "def f(x):\n  class C: pass\n  return x", "instruction LOAD_BUILD_CLASS at model.py:2"),
    Unsound(
        "exception", "def f(x):\n  try: x * 'a'\n  except TypeError: pass\n  return x", "TypeError raised at model.py:2"
    ),
    Unsound(
        "raise of an exception that lives on",
        "E = ValueError()\ndef f(x):\n  try: raise E\n  except ValueError: pass\n  return x",
        "raise of ValueError at model.py:3",
    ),
    Unsound("context variable set", f"{CONTEXT}def f(x): c.set(2); return x", "the call changes a context variable"),
    Unsound(
        "context variables reset in another order",
        f"{CONTEXT}def f(x):\n  a = c.set(2); b = c.set(3); c.reset(a); c.reset(b); return x",
        "change of a context variable at model.py:4",
    ),
    Unsound(
        "member of a set of a class of its own",
        "class Own(set): pass\nS = Own({1})\ndef f(x): return x if 1 in S else -x",
        "__contains__ of Own at model.py:3",
    ),
    Unsound(
        "length of a set of a class of its own",
        "class Own(set): pass\nS = Own({1})\ndef f(x): return x * len(S)",
        "__len__ of Own at model.py:3",
    ),
    Unsound(
        "class attribute that is not put back",
        "class C: on = False\ndef f(x):\n  C.on = True\n  return x",
        "store to class C.on at model.py:3",
    ),
    Unsound(
        "import of a new module",
        "def f(x):\n  import this_is_absent\n  return x",
        "import of this_is_absent at model.py:2",
    ),
    Unsound("attribute of a tensor", "T.note = 2\ndef f(x): return x * x.note", "read of Tensor.note at model.py:2"),
    Unsound(
        "context manager",
        "import io\nfile = io.StringIO()\ndef f(x):\n  with file: return x",
        "with _io.StringIO at model.py:4",
    ),
    Unsound(
        "finaliser",
        "class D:\n  def __del__(self): pass\ndef f(x):\n  d = D()\n  del d\n  return x",
        "unforeseen call of D.__del__ by C code or a finaliser at model.py:5",
    ),
    Unsound(
        "generator from outside",
        "g = (i for i in range(9))\ndef f(x): return x * next(g)",
        "next of generator at model.py:2",
    ),
    Unsound(
        "order of a set of objects", BOX + "def f(x): return [x for b in {box}][0]", "iteration over set at model.py:5"
    ),
    Unsound("coroutine", "async def g(): pass\ndef f(x):\n  g()\n  return x", "call of coroutine g at model.py:3"),
    Unsound(
        "relative comparison of objects",
        BOX + "import datetime\nd = datetime.date(2020, 1, 1)\ndef f(x): return x if d < d else -x",
        "comparison of datetime.date at model.py:7",
    ),
]


SCALARS = [  # source of f(x, a), whether the watched number `a` stays symbolic
    ("def f(x, a): return x * a", True),
    ("def f(x, a):\n  b = a\n  return b * x + x", True),
    ("def g(x, a): return x * a\ndef f(x, a): return g(x, a=a)", True),
    ("def g(*args): return args[0] * args[1]\ndef f(x, a): return g(*(x, a))", True),
    ("def f(x, a): return x.__mul__(a)", True),
    ("def f(x, a): return x, a", True),
    ("def f(x, a):\n  if a is None: return x\n  return x * a if isinstance(a, float) else x", True),
    ("def f(x, a):\n  def g(): return x * a\n  return g()", True),
    ("def f(x, a): return x * (a + 1)", False),
    ("def f(x, a): return x if a > 1 else -x", False),
    ("def f(x, a): return x if a else -x", False),
    ("def f(x, a): return x * -a", False),
    ("def f(x, a):\n  f'{a}'\n  return x", False),
    ("def f(x, a): return x * [a][0]", True),
    ("def f(x, a): return x * sum([a, 1.0])", False),
    ("def f(x, a): return x * {'k': a}['k']", True),
    ("def f(x, a): return x if [a] == [2.5] else -x", False),
    ("def f(x, a): return x if a in [2.5] else -x", False),
    ("def f(x, a): return x if 2.5 in [a] else -x", False),
    ("def f(x, a): return x * max((1.0, a))", False),
    ("def f(x, a): return x if (a,) == (2.0,) else -x", False),
    ("def f(x, a): return x * sum(v for v in (a, a))", False),
    ("def f(x, a): return x * sum(map(lambda v: v, (a, a)))", False),
    ("import math\ndef f(x, a): return x * math.sqrt(a)", False),
    ("def f(x, a): return x * {a: 2}[a]", False),
    ("def f(x, a): return x * int(a)", False),
]
