"""Read patterns of functions as objects, functools.partial, views of dictionaries, enums and inspect.signature."""

from observer_cases import Sound

SIGNATURE = "import inspect\ndef g(a, b=1): return a\ndef f(x): return x * len(inspect.signature(g).parameters)"
PARTIAL = "import functools\ndef g(x, k): return x * k\np = functools.partial(g, k=2)\ndef f(x): return p(x)"
ENUM = "import enum\nclass E(enum.IntEnum):\n  A = 1\n  B = 2\nmode = E.A\n"
BAG = "class Bag: pass\nbag = Bag()\n"

SIGNATURES = [
    Sound(
        "signature of a function",
        SIGNATURE,
        ("function g: code and defaults",),
        "def h(a): return a\ng.__code__, g.__defaults__ = h.__code__, None",
        "function g has new code",
    ),
    Sound("signature of a wrapper", SIGNATURE, (), "g.__wrapped__ = len", "g.__wrapped__ was absent, is builtin_func"),
    Sound(
        "signature of a bound method",
        "import inspect\nclass A:\n  def m(self, a): return a\na = A()\n"
        "def f(x): return x * len(inspect.signature(a.m).parameters)",
        ("m.__signature__ is absent",),
        "A.m.__signature__ = inspect.signature(len)",
        "m.__signature__ was absent, is Signature",
    ),
]

FUNCTIONS = [
    *SIGNATURES,
    Sound(
        "name of a function",
        "def g(): pass\ndef f(x): return x if g.__name__ == 'g' else -x",
        ("g.__name__ is 'g'",),
        "g.__name__ = 'h'",
        "__name__ was 'g', is 'h'",
    ),
    Sound(
        "annotation of a function",
        "def g(a: int): return a\ndef f(x): return x if g.__annotations__['a'] is int else -x",
        ("g.__annotations__['a'] is type",),
        "g.__annotations__['a'] = str",
        "g.__annotations__['a'] is another type",
    ),
    Sound(
        "defaults of a function",
        "def g(a=1): return a\ndef f(x): return x * g.__defaults__[0]",
        (),
        "g.__defaults__ = (2,)",
        "function g has new defaults",
    ),
    Sound(
        "attribute of a function",
        "def g(): pass\ng.factor = 2\ndef f(x): return x * g.factor",
        ("g.factor is 2",),
        "g.factor = 3",
        "g.factor was 2, is 3",
    ),
    Sound(
        "attribute of a bound method",
        "class A:\n  def m(self): pass\n  m.factor = 2\na = A()\ndef f(x): return x * a.m.factor",
        ("m.factor is 2",),
        "A.m.factor = 3",
        "m.factor was 2, is 3",
    ),
    Sound(
        "globals of a function",
        "K = 2\ndef g(): pass\ndef f(x): return x * g.__globals__['K']",
        ("g.__globals__['K'] is 2",),
        "K = 3",
        "g.__globals__['K'] was 2, is 3",
    ),
    Sound("partial", PARTIAL, ("p.func is function",), "p.keywords['k'] = 3", "p.keywords['k'] was 2, is 3"),
    Sound("partial with a new state", PARTIAL, (), "p.__setstate__((g, (), {'k': 2}, None))", "p.keywords is another"),
    Sound(
        "partial of a partial",
        PARTIAL.replace("return p(x)", "return functools.partial(p)(x)"),
        (),
        "p.__setstate__((max, (), {}, None))",
        "p.func",
    ),
    Sound("partial made in the call", PARTIAL.replace("return p(x)", "return functools.partial(g, k=2)(x)")),
    Sound(
        "recursion limit",
        "import sys\ndef f(x): return x * min(sys.getrecursionlimit(), 2)",
        ("the recursion limit is what it was",),
        "sys.setrecursionlimit(sys.getrecursionlimit() + 1)",
        "the recursion limit changed",
    ),
    Sound(
        "member of an enum compared",
        ENUM + "def f(x): return x if mode in (E.B, E.A) and mode < E.B else -x",
        ("mode is E",),
        "mode = E.B",
        "mode is another E",
    ),
    Sound(
        "member of an enum asked for",
        ENUM + "def f(x): return x if E(mode) is E.A else -x",
        ("EnumType.__call__ is function",),
        "mode = E.B",
        "mode is another E",
    ),
    Sound(
        "item of a read-only view",
        "import types\nD = {'a': 2}\nM = types.MappingProxyType(D)\ndef f(x): return x * M['a'] if 'b' not in M else x",
        ("M['a'] is 2",),
        "D['b'] = 3",
        "M['b'] was absent, is 3",
    ),
    Sound(
        "read-only view made in the call",
        "import types\ndef f(x):\n  m = types.MappingProxyType({'a': 2})\n"
        "  return x * m['a'] * len(m) * sum(m.values()) * len(list(m.items())) * m.get('b', 1)",
    ),
    Sound(
        "dictionary of pairs from a generator",
        BAG + "bag.v = 2\ndef f(x): return x * dict((b.v, b) for b in (bag,))[2].v",
        ("bag.v is 2",),
        "bag.v = 3",
        "bag.v was 2, is 3",
    ),
    Sound("dictionary of objects by name", BAG + "bag.v = 2\ndef f(x): return x * dict(b=bag)['b'].v", ("bag.v is 2",)),
    Sound(
        "absent attribute caught",
        BAG + "def f(x):\n  try: return x * bag.k\n  except AttributeError: return x",
        ("bag.k is absent",),
        "bag.k = 2",
        "bag.k was absent, is 2",
    ),
    Sound(
        "absent attribute of a class",
        BAG + "def f(x): return x if hasattr(Bag, 'k') else -x",
        ("Bag.k is absent",),
        "Bag.k = 2",
        "Bag.k was absent, is 2",
    ),
    Sound(
        "address of an object that a fact holds",
        BAG + "def f(x): return x * len({id(bag): 1, id(Bag): 2})",
        ("bag is Bag",),
        "bag = Bag()",
        "bag is another Bag",
    ),
    Sound(
        "absent attribute of a tensor",
        "W = Tensor(seconds=5)\ndef f(x): return x + W if hasattr(W, 'note') else x - W",
        ("W.note is absent",),
        "W.note = 2",
        "W.note was absent, is 2",
    ),
    Sound(
        "attribute of a tensor that a fact holds",
        "W = Tensor(seconds=5)\nW.note = 2\ndef f(x): return x + W * W.note",
        ("W.note is 2",),
        "W.note = 3",
        "W.note was 2, is 3",
    ),
    Sound(
        "generator as __iter__",
        BAG + "bag.v = 2\ndef walk(self):\n  yield self.v\nBag.__iter__ = walk\n"
        "def f(x): return x * sum([v for v in bag])",
        ("bag.v is 2",),
        "bag.v = 3",
        "bag.v was 2, is 3",
    ),
]
