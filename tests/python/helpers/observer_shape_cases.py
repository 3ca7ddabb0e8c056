"""Read patterns by the shape of their bytecode: with the others they hold every instruction that may be read."""

from observer_cases import Sound

SHAPES = [
    Sound("not a global", "M = 0\ndef f(x): return x * (not M)", ("global M is 0",), "M = 1", "was 0, is 1"),
    Sound("inverted global", "N = 2\ndef f(x): return x * ~N", ("global N is 2",), "N = 3", "was 2, is 3"),
    Sound("positive global", "N = 2\ndef f(x): return x * +N", ("global N is 2",), "N = 3", "was 2, is 3"),
    Sound(
        "slice of a global list",
        "L = [1, 2, 3]\nK = 2\ndef f(x): return x * sum(L[0:K])",
        ("L[1] is 2", "global K is 2"),
        "L[1] = 5",
        "L[1] was 2, is 5",
    ),
    Sound(
        "slice with a step",
        "L = [1, 2, 3]\ndef f(x): return x * sum(L[::2])",
        ("L[2] is 3",),
        "L[2] = 5",
        "L[2] was 3, is 5",
    ),
    Sound(
        "slice with a step that is read",
        "L, K = [1, 2, 3], 2\ndef f(x): return x * sum(L[::K])",
        ("L[2] is 3", "global K is 2"),
        "K = 1",
        "global K was 2, is 1",
    ),
    Sound(
        "store to a slice with an end that is read",
        "S, K = 2, 2\ndef f(x):\n  l = [1, 2, 3]\n  l[0:K] = [S]\n  return x * l[0]",
        ("global S is 2", "global K is 2"),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "store to a slice",
        "S = 2\ndef f(x):\n  l = [1, 2, 3]\n  l[0:2] = [S]\n  return x * l[0]",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "global list stored to a slice",
        "L = [1, 2]\ndef f(x):\n  l = [0]\n  l[0:1] = L\n  return x * l[1]",
        ("L[1] is 2",),
        "L[1] = 5",
        "L[1] was 2, is 5",
    ),
    Sound(
        "generator stored to a slice of a list's subclass",
        "L = [1, 2]\nclass Some(list): pass\ndef f(x):\n  l = Some()\n  l[:] = (i for i in L)\n  return x * l[1]",
        ("L[1] is 2",),
        "L[1] = 5",
        "L[1] was 2, is 5",
    ),
    Sound(
        "items deleted",
        "S = 2\ndef f(x):\n  d = {1: S, 2: 3}\n  del d[2]\n  y = x\n  del y\n  return x * d[1]",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "attribute deleted in the call",
        "class C: pass\nS = 2\ndef f(x):\n  c = C()\n  c.a = S\n  del c.a\n  return x * S",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "match a sequence",
        "P = (2, 3)\ndef f(x):\n  match P:\n    case [a, b]: return x * a * b\n  return x",
        ("global P is (2, 3)",),
        "P = (2, 3, 4)",
        "was (2, 3), is (2, 3, 4)",
    ),
    Sound(
        "match a mapping",
        "P = (2, 3)\ndef f(x):\n  match P:\n    case {}: return x\n  return x * P[0]",
        ("global P is (2, 3)",),
        "P = (2, 4)",
        "was (2, 3), is (2, 4)",
    ),
    Sound(
        "with",
        "S = 2\nclass C:\n  def __enter__(self): return S\n  def __exit__(self, *a): return None\n"
        "def f(x):\n  with C() as s:\n    return x * s",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "yield from",
        "P = (2, 3)\ndef g(): yield from P\ndef f(x): return x * sum(g())",
        ("global P is (2, 3)",),
        "P = (2, 4)",
        "was (2, 3), is (2, 4)",
    ),
    Sound(
        "generator left before its end",
        "S = 2\ndef h():\n  yield S\n  yield 3\ndef g(): yield from h()\ndef f(x): return x * next(g())",
        ("global S is 2",),
        "S = 4",
        "global S was 2, is 4",
    ),
    Sound(
        "yield from a generator",
        "S = 2\ndef h():\n  yield S\n  yield 3\ndef g(): yield from h()\n"
        "def f(x):\n  for y in g(): x = x * y\n  return x",
        ("global S is 2", "function h"),
        "S = 3",
        "was 2, is 3",
    ),
    Sound("assert", "S = 2\ndef f(x):\n  assert S == 2\n  return x", ("global S is 2",), "S = 3", "was 2, is 3"),
    Sound(
        "starred target",
        "P = (2, 3, 4)\ndef f(x):\n  a, *b = P\n  return x * a",
        ("global P is (2, 3, 4)",),
        "P = (2, 3)",
        "was (2, 3, 4), is (2, 3)",
    ),
    Sound(
        "set display and comprehension",
        "P = (2, 3)\ndef f(x): return x * len({*P} | {p + 1 for p in P})",
        ("global P is (2, 3)",),
        "P = (2, 2)",
        "was (2, 3), is (2, 2)",
    ),
    Sound(
        "dictionary display",
        "D = {'a': 2}\ndef f(x): return x * {**D, 'b': 3}['a']",
        ("D['a'] is 2",),
        "D['a'] = 3",
        "D['a'] was 2, is 3",
    ),
    Sound(
        "perhaps unset local",
        "P = (2, 3)\ndef f(x):\n  for p in P: y = p\n  return x * y",
        ("global P is (2, 3)",),
        "P = (2, 4)",
        "was (2, 3), is (2, 4)",
    ),
    Sound(
        "is not None",
        "M = 2\ndef f(x):\n  if M is not None: x = x * M\n  if M is None: x = -x\n  return x",
        ("global M is 2",),
        "M = None",
        "was 2, is None",
    ),
    Sound(
        "while",
        "N = 2\nE = None\ndef f(x):\n  i = 0\n  while i < N: i += 1\n  while not (i == 0): i -= 1\n"
        "  while E is not None: i = 1\n  while (j := 1) is None: i = j\n  return x * (i + 1)",
        ("global N is 2", "global E is None"),
        "N = 3",
        "was 2, is 3",
    ),
    Sound(
        "or, and",
        "A = 0\nB = 2\ndef f(x): return x * ((A or B) and (B and 3))",
        ("global A is 0", "global B is 2"),
        "A = 1",
        "was 0, is 1",
    ),
    Sound(
        "comprehension with a cell",
        "P = (2, 3)\ndef f(x): return x * sum([(lambda: p)() for p in P])",
        ("global P is (2, 3)",),
        "P = (2, 4)",
        "was (2, 3), is (2, 4)",
    ),
    Sound(
        "comprehension that hides a cell",
        "S = 2\ndef f(x):\n  p = S\n  g = lambda: p\n  h = [(lambda: p + q)() for p, q in ((1, 2), (3, 4))]\n"
        "  return x * (g() + h[1])",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "comprehensions in each other",
        "P = (2, 3)\nS = 2\ndef f(x): return x * sum([a * b for a in [p + S for p in P] for b in {p: S for p in P}])",
        ("global P is (2, 3)", "global S is 2"),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "cell that a loop rebinds",
        "S = 2\ndef f(x):\n  n = 0\n  def add(k):\n    nonlocal n\n    n = n + k\n  for i in (1, 2): add(i * S)\n"
        "  return x * n",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "formatted with conversion and width",
        "S = 2\nW = 6\ndef f(x): return x * len(f'{S!r} {S:>{W}} {S}')",
        ("global S is 2", "global W is 6"),
        "W = 7",
        "was 6, is 7",
    ),
    Sound(
        "method by super, with two arguments and by hand",
        "class A:\n  K = 2\n  def m(self, y): return y * self.K\n"
        "class B(A):\n  def m(self, y): return super(B, self).m(y) + super().K\n"
        "class C(B):\n  def m(self, y):\n    s = super()\n    return s.m(y)\n"
        "def f(x): return x * C().m(2)",
        (),
        "A.K = 3",
        "K was 2, is 3",
    ),
    Sound(
        "keyword arguments of a method",
        "class A:\n  def m(self, y, *, k=1, **o): return y * k + o['z']\nS = 2\n"
        "def f(x): return x * A().m(2, k=S, z=3)",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "starred call",
        "P = (2, 3)\nD = {'c': 4}\ndef g(a, b, d, c): return a * b * c * d\ndef f(x): return x * g(*P, 5, **D)",
        ("global P is (2, 3)", "D['c'] is 4"),
        "D['c'] = 5",
        "D['c'] was 4, is 5",
    ),
    Sound(
        "finally",
        "S = 2\ndef f(x):\n  try:\n    try:\n      raise ValueError(S)\n    finally:\n      x = x * S\n"
        "  except ValueError:\n    return x",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "function with defaults and annotations made in the call",
        "S = 2\ndef f(x):\n  def g(a: int, b=S, *, c=3) -> int: return a * b * c\n  return x * g(1)",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "chained comparison",
        "N = 2\ndef f(x): return x if 1 < N < 3 else -x",
        ("global N is 2",),
        "N = 3",
        "was 2, is 3",
    ),
    Sound(
        "itertools",
        "import itertools\nP = (2, 3)\ndef f(x):\n  for a in itertools.chain(P, (4,)): x = x * a\n"
        "  for a in itertools.islice(P, 1): x = x * a\n  for a, b in itertools.product(P, P): x = x * a * b\n"
        "  return x",
        ("global P is (2, 3)",),
        "P = (2, 4)",
        "was (2, 3), is (2, 4)",
    ),
    Sound(
        "handlers in a loop",
        "S = 2\ndef f(x):\n  for i in (1, 2, 3):\n    try:\n      if i == 2: raise KeyError\n      x = x * S\n"
        "    except KeyError:\n      continue\n    finally:\n      x = x * 1\n  return x",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "handler around a yield",
        "S = 2\ndef g():\n  for i in (1, 2):\n    try:\n      yield i * S\n    finally:\n      pass\n"
        "def f(x):\n  for y in g(): x = x * y\n  return x",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "jumps over more than 65,536 instructions",
        "S = 2\ndef f(x):\n  y = 0\n  for i in (1, 2):\n"
        + "".join(f"    y = y + S * {i} - {i}\n    if y > 10 ** 9: y = 0\n" for i in range(5000))
        + "  return x * (y and 1)",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "recursion",
        "S = 2\ndef g(n): return S if n == 0 else 1 + g(n - 1)\ndef f(x): return x * g(300)",
        ("global S is 2",),
        "S = 3",
        "was 2, is 3",
    ),
    Sound(
        "slot by super",
        "class A:\n  __slots__ = ('v',)\n  def __init__(self, v): self.v = v\n"
        "class B(A):\n  __slots__ = ()\n  def get(self): return super().v\nb = B(2)\ndef f(x): return x * b.get()",
        ("b is of type B", "b.v is 2"),
        "b.v = 3",
        "b.v was 2, is 3",
    ),
]
