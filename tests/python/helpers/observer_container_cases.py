"""Reads of lists, dictionaries and instances: the facts, a change that must fail them, and changes that must not."""

from observer_cases import BOX, NET, Sound

SLOTS = (
    "class Point:\n  __slots__ = ('x', 'y')\n  def __init__(self, x): self.x = x\np = Point(2)\n"
    "class Other(Point): __slots__ = ()\n"
)
BAG = (
    "class Bag:\n  def __init__(self): self.items = [1, 2]\n  def __len__(self): return len(self.items)\n"
    "  def __getitem__(self, i): return self.items[i]\n  def __contains__(self, v): return v in self.items\n"
    "  def __iter__(self): return iter(self.items)\n  def __call__(self, v): return v * self.items[0]\n"
    "  @property\n  def first(self): return self.items[0]\nbag = Bag()\n"
)

CACHED = "import functools\n@functools.lru_cache(maxsize=None)\ndef g(n): return n + 1\ng(2)\n"
BOUNDED = "import functools\n@functools.lru_cache(maxsize=1)\ndef g(a, b=0): return (a, b)\ng(2, b=1)\n"


def lst(name, body, change, failure, facts=()):
    return Sound(name, f"L = [1, 2.5, 'c']\ndef f(x):\n  {body}\n  return x", facts, change, failure)


def dct(name, body, change, failure, facts=()):
    return Sound(
        name, "D = {'k': 2, 7: 3.5, (1, 'a'): 4}\ndef f(x):\n  " + body + "\n  return x", facts, change, failure
    )


def bag(name, body, change, failure, facts=()):
    return Sound(name, f"{BAG}def f(x): return x * {body}", facts, change, failure)


REGISTRY = (
    "class Registry(dict):\n  def get(self, key): return super().get(str(key)) or 1\n"
    "  def __getitem__(self, key): return super().__getitem__(key)\nR = Registry(a=2)\n"
)
MAPPED = (
    "class Config:\n  names = {'width': 'size'}\n  def __init__(self): self.size = 3\n"
    "  def __getattribute__(self, key):\n"
    "    if key != 'names' and key in super().__getattribute__('names'):\n"
    "      key = super().__getattribute__('names')[key]\n    return super().__getattribute__(key)\nconfig = Config()\n"
)
CONTEXT = "import contextvars\nc = contextvars.ContextVar('c', default=1)\n"
OUTPUT = (
    "import collections\nclass Output(collections.OrderedDict):\n"
    "  def __setitem__(self, k, v):\n    super().__setitem__(k, v); super().__setattr__(k, v)\n"
    "  def __getitem__(self, k): return dict(self.items())[k]\nSCALE = 2\n"
    "def f(x):\n  out = Output()\n  out['a'] = SCALE\n  return x * out['a'] * out.a * len(list(out.keys()))"
)

CONTAINERS = [
    Sound(
        "dictionary subclass with its own get",
        f"{REGISTRY}def f(x): return x * R.get('a')",
        ("R['a'] is 2",),
        "dict.__setitem__(R, 'a', 3)",
        "R['a'] was 2, is 3",
    ),
    Sound(
        "absent key of a dictionary subclass",
        f"{REGISTRY}def f(x): return x * R.get('b')",
        ("R['b'] is absent",),
        "dict.__setitem__(R, 'b', 3)",
        "R['b'] was absent, is 3",
    ),
    Sound(
        "__getattribute__ in Python",
        f"{MAPPED}def f(x): return x * config.width",
        ("config.size is 3",),
        "config.size = 4",
        "config.size was 3, is 4",
    ),
    Sound(
        "absent attribute behind __getattribute__",
        f"{MAPPED}def f(x): return x * getattr(config, 'depth', 2)",
        ("config.depth is absent",),
        "config.depth = 4",
        "config.depth was absent, is 4",
    ),
    Sound(
        "name map of __getattribute__",
        f"{MAPPED}def f(x): return x * config.width",
        (),
        "Config.names['width'] = 'length'",
        "was 'size', is 'length'",
    ),
    Sound(
        "context variable",
        f"{CONTEXT}def f(x): return x * c.get()",
        ("context variable c is 1",),
        "c.set(2)",
        "was 1, is 2",
    ),
    Sound(
        "context variable set and reset",
        f"{CONTEXT}def f(x):\n  t = c.set(2)\n  u = c.set(3)\n  x = x * c.get()\n  c.reset(u)\n"
        "  c.reset(t)\n  return x * c.get()",
        ("context variable c is 1",),
        "c.set(5)",
        "was 1, is 5",
    ),
    Sound(
        "member of a set",
        "S = {1, 'a'}\ndef f(x): return x if 'a' in S else -x",
        (),
        "S.remove('a')",
        "'a' in S is gone",
    ),
    Sound(
        "class in a set",
        "class C: pass\nS = {C}\ndef f(x): return x if C in S else -x",
        (),
        "S.clear()",
        "in S is gone",
    ),
    Sound("new instance of a dictionary class", OUTPUT, ("global SCALE is 2",), "SCALE = 3", "SCALE was 2, is 3"),
    Sound(
        "isinstance of an abstract class",
        "import abc\nclass A(abc.ABC): pass\nclass C: pass\nc = C()\ndef f(x): return -x if isinstance(c, A) else x",
        (),
        "A.register(C)",
        "the registration of classes with abstract ones changed",
    ),
    Sound(
        "issubclass of an abstract class",
        "import collections.abc as a\nclass C(list): pass\ndef f(x): return x if issubclass(C, a.Sequence) else -x",
        (),
        "a.Sized.register(type('D', (), {}))",
        "the registration of classes with abstract ones changed",
    ),
    Sound(
        "caught exception",
        "LIMIT = 2\ndef g():\n  if LIMIT < 3: raise ValueError(LIMIT)\n"
        "def f(x):\n  try: g()\n  except (KeyError, ValueError): return x\n  return -x",
        ("global LIMIT is 2",),
        "LIMIT = 3",
        "LIMIT was 2, is 3",
    ),
    Sound(
        "exception through finally",
        "LIMIT = 2\ndef g():\n  try:\n    if LIMIT < 3: raise ValueError\n  finally: pass\n"
        "def f(x):\n  try: g()\n  except ValueError: return x\n  return -x",
        (),
        "LIMIT = 3",
        "LIMIT was 2, is 3",
    ),
    Sound(
        "KeyError",
        "D = {}\ndef f(x):\n  try: return x * D['k']\n  except KeyError: return x",
        ("D['k'] is absent",),
        "D['k'] = 2",
        "D['k'] was absent, is 2",
    ),
    Sound("names of a code object", "def f(x): return x if 'x' in f.__code__.co_varnames else -x"),
    Sound("absent attribute of None", "n = None\ndef f(x): return x * getattr(n, 'k', 2)", (), "n = T", "n was None"),
    Sound("attribute of a tensor made here", "def f(x):\n  y = x * 2\n  return y if hasattr(y, 'jax') else -y"),
    lst("item", "L[1]", "L[1] = 3.5", "L[1] was 2.5, is 3.5 (model.py:3)", ("L[1] is 2.5 (model.py:3)",)),
    lst("item of another type", "L[0]", "L[0] = True", "L[0] was 1, is True"),
    lst("negative item", "L[-1]", "L.append(3)", "the length of L was 3, is 4", ("length of L is 3", "L[2] is 'c'")),
    lst("slice", "L[:2]", "L[1] = 0", "L[1] was 2.5, is 0"),
    lst("slice read", "y = L[:2]; y[1]", "L[1] = 0", "L[1] was 2.5, is 0"),
    lst("list deleted", "L[0]", "del L[:]", "L[0] was 1, is absent"),
    lst("list replaced", "L[0]", "L = [2, 2.5, 'c']", "L is another list"),
    lst("list replaced by a tuple", "L[0]", "L = (1, 2.5, 'c')", "L was list, is (1, 2.5, 'c')"),
    lst("loop", "[v for v in L]", "L.append(1)", "the length of L was 3, is 4"),
    lst("loop, items swapped", "[v for v in L]", "L[0], L[1] = L[1], L[0]", "L[0] was 1, is 2.5"),
    lst("unpacking", "a, b, c = L", "L[2] = 'd'", "L[2] was 'c', is 'd'"),
    lst("star", "(lambda *a: a[0])(*L)", "L[2] = 'd'", "L[2] was 'c', is 'd'"),
    lst("length", "len(L)", "L.pop()", "the length of L was 3, is 2"),
    lst("truth", "x if L else -x", "L.clear()", "L was not empty, is", ("L is not empty",)),
    lst("search", "1 in L", "L[0] = 2", "L[0] was 1, is 2"),
    lst("list method", "L.index('c')", "L[0] = 2", "L[0] was 1, is 2"),
    lst("comparison", "L == [1]", "L[0] = 2", "L[0] was 1, is 2"),
    lst("sum of two lists", "y = L + [1]; y[0]", "L[0] = 2", "L[0] was 1, is 2"),
    lst("copy", "list(L)", "L[0] = 2", "L[0] was 1, is 2"),
    Sound("C function of a list", "L = [1, 2]\ndef f(x): return x * sum(L)", (), "L[1] = 3", "L[1] was 2, is 3"),
    Sound(
        "list of lists",
        "L = [[1], [2]]\ndef f(x): return x * L[1][0]",
        ("L[1][0] is 2 (model.py:2)",),
        "L[1][0] = 3",
        "L[1][0] was 2, is 3",
    ),
    Sound(
        "list in a list replaced", "L = [[1]]\ndef f(x): return x * L[0][0]", (), "L[0] = [1]", "L[0] is another list"
    ),
    Sound(
        "dictionary in a list", "L = [{'a': 1}]\ndef f(x): return x * L[0]['a']", (), "L[0]['a'] = 2", "L[0]['a'] was 1"
    ),
    Sound(
        "tensor in a list",
        "L = [Tensor(seconds=2)]\ndef f(x): return x + L[0]",
        (),
        "L[0] = T",
        "L[0] is another Tensor",
        tensors=("L[0]",),
    ),
    Sound("default list", "def f(x, k=[2]): return x * k[0]", (), "f.__defaults__[0][0] = 3", "was 2, is 3"),
    Sound(
        "star of a list", "L = [1, 2]\ndef g(a, b): return b\ndef f(x): return x * g(*L)", (), "L[1] = 3", "L[1] was 2"
    ),
    dct("dictionary item", "D['k']", "D['k'] = 3", "D['k'] was 2, is 3 (model.py:3)", ("D['k'] is 2 (model.py:3)",)),
    dct("number key", "D[7]", "D[7] = 4.5", "D[7] was 3.5, is 4.5"),
    dct("tuple key", "D[1, 'a']", "del D[1, 'a']", "D[(1, 'a')] was 4, is absent"),
    dct("computed key", "D['k' + '']", "D['k'] = 3", "D['k'] was 2, is 3"),
    dct("get", "D.get('k')", "D['k'] = 3", "D['k'] was 2, is 3"),
    dct("get of an absent key", "D.get('z', 1)", "D['z'] = 3", "D['z'] was absent, is 3"),
    dct("search for a key", "'k' in D", "del D['k']", "D['k'] is gone"),
    dct("search for an absent key", "'z' in D", "D['z'] = 1", "D['z'] was absent"),
    dct("loop over items", "[v for k, v in D.items()]", "D[7] = 0", "D[7] was 3.5, is 0"),
    dct("loop over keys", "[k for k in D]", "D['z'] = 0", "the keys of D changed"),
    dct("order", "list(D)", "D['k'] = D.pop('k')", "the keys of D changed"),
    dct("length of a dictionary", "len(D)", "D['z'] = 0", "the length of D was 3, is 4"),
    dct("dictionary replaced", "D['k']", "D = {'k': 2}", "D is another dict"),
    dct("truth of a dictionary", "x if D else -x", "D.clear()", "D was not empty, is"),
    Sound(
        "keywords from a dictionary",
        "D = {'a': 2}\ndef g(a): return a\ndef f(x): return x * g(**D)",
        (),
        "D['a'] = 3",
        "D['a'] was 2, is 3",
    ),
    Sound(
        "ordered dictionary",
        "from collections import OrderedDict\nD = OrderedDict(a=1)\ndef f(x): return x * list(D.values())[0]",
        (),
        "D['a'] = 3",
        "D['a'] was 1",
    ),
    Sound(
        "order of an ordered dictionary",
        "from collections import OrderedDict\nD = OrderedDict(a=1, b=2)\ndef f(x): return x * list(D.values())[0]",
        ("D['a'] is 1", "the order of D is what it was"),
        "D.move_to_end('a')",
        "the order of D changed",
    ),
    Sound(
        "cached function",
        CACHED + "def f(x): return x * g(2)",
        ("g(2) is 3",),
        "g.cache_clear()",
        "g(2) was 3, is absent",
    ),
    Sound(
        "cached function with a bound",
        BOUNDED + "def f(x): return x * g(2, b=1)[0]",
        ("g(2, b=1) is (2, 1)",),
        "g(0)",
        "what the cache keeps of g(2, b=1)",
    ),
    Sound(
        "attribute of an object",
        BOX + "def f(x): return x * box.v",
        ("box.v is 2 (model.py:5)", "box is of type Box"),
        "box.v = 3",
        "box.v was 2, is 3 (model.py:5)",
    ),
    Sound("attribute of an argument", BOX + "def f(x, b): return x * b.v", (), "box.v = 3", "b.v was 2", "(T, box)"),
    Sound("method of an object", BOX + "def f(x): return x * box.get()", (), "box.v = 3", "box.v was 2, is 3"),
    Sound("method replaced", BOX + "def f(x): return x * box.get()", (), "Box.get = lambda s: 3", "Box.get is another"),
    Sound("method shadowed", BOX + "def f(x): return x * box.get()", (), "box.get = lambda: 3", "box.get was absent"),
    Sound(
        "class of an object",
        BOX + "class Big(Box): pass\ndef f(x): return x * box.v",
        (),
        "box.__class__ = Big",
        "box is now of type Big",
    ),
    Sound("object replaced", BOX + "def f(x): return x * box.v", (), "box = Box(2)", "global box is another Box"),
    Sound("object deleted", BOX + "def f(x, b): return x * b.v", (), "del box", "", "(T, box)"),
    Sound(
        "attribute of an attribute",
        BOX + "box.b = Box(5)\ndef f(x): return x * box.b.v",
        (),
        "box.b.v = 3",
        "box.b.v was 5",
    ),
    Sound("attribute deleted", BOX + "def f(x): return x * box.v", (), "del box.v", "box.v was 2, is absent"),
    Sound(
        "attribute dictionary replaced", BOX + "def f(x): return x * box.v", (), "box.__dict__ = {'v': 2}", "__dict__"
    ),
    Sound("absent attribute", BOX + "def f(x): return x * getattr(box, 'w', 2)", (), "box.w = 3", "box.w was absent"),
    Sound(
        "attribute asked for",
        BOX + "def f(x): return x if hasattr(box, 'w') else -x",
        (),
        "box.w = 3",
        "box.w was absent",
    ),
    Sound("attribute by dictionary", BOX + "def f(x): return x * box.__dict__['v']", (), "box.v = 3", "box.v was 2"),
    Sound("slot", SLOTS + "def f(x): return x * p.x", ("p.x is 2",), "p.x = 3", "p.x was 2, is 3"),
    Sound("slot deleted", SLOTS + "def f(x): return x * p.x", (), "del p.x", "p.x was 2, is absent"),
    Sound(
        "class of an object with slots", SLOTS + "def f(x): return x * p.x", (), "p.__class__ = Other", "is now of type"
    ),
    bag("length method", "len(bag)", "bag.items.append(1)", "the length of bag.items was 2, is 3"),
    bag("item method", "bag[1]", "bag.items[1] = 5", "bag.items[1] was 2, is 5"),
    bag("search method", "(2 if 1 in bag else 3)", "bag.items[0] = 5", "bag.items[0] was 1, is 5"),
    bag("iteration method", "[v for v in bag][0]", "bag.items[0] = 5", "bag.items[0] was 1, is 5"),
    bag("truth by length", "(2 if bag else 3)", "bag.items.clear()", "bag.items"),
    bag("call of an object", "bag(2)", "bag.items[0] = 5", "bag.items[0] was 1, is 5"),
    bag("property of an object", "bag.first", "bag.items[0] = 5", "bag.items[0] was 1, is 5"),
    Sound(
        "list of a module", NET + "def f(x): return x * net.fc1.extra[0]", (), "net.fc1.extra[0] = 3", "extra[0] was 1"
    ),
    Sound(
        "object in a module",
        BOX + NET + "net.fc1.box = box\ndef f(x): return x * net.fc1.box.v",
        (),
        "box.v = 3",
        "net.fc1.box.v was 2",
    ),
    Sound(
        "data class",
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n  a: int = 2\n  b: list = None\nc = C(b=[1])\n"
        "def f(x): return x * c.a * c.b[0]",
        (),
        "c.b[0] = 2",
        "c.b[0] was 1, is 2",
    ),
    Sound(
        "enumeration",
        "import enum\nclass E(enum.Enum):\n  A = 2\n  B = 3\nmode = E.A\ndef f(x): return x if mode is E.A else -x",
        (),
        "mode = E.B",
        "global mode is another E",
    ),
    Sound(
        "class level dictionary",
        "class C: table = {'a': 1}\ndef f(x): return x * C.table['a']",
        (),
        "C.table['a'] = 2",
        "C.table['a'] was 1",
    ),
]

# source, a change after which the same facts must still hold
KEPT = {
    "another item of a list": ("L = [1, 2]\ndef f(x): return x * L[0]", "L[1] = 3"),
    "a longer list": ("L = [1, 2]\ndef f(x): return x * L[0]", "L.extend(range(100))"),
    "a shorter list": ("L = [1, 2, 3, 4, 5]\ndef f(x): return x * L[0]", "L.pop()"),
    "an equal number in a list": ("L = [1, 2.5]\ndef f(x): return x * L[1]", "L[1] = float('2.5')"),
    "another key": ("D = {'k': 2}\ndef f(x): return x * D['k']", "D['z'] = 3"),
    "another attribute": (BOX + "def f(x): return x * box.v", "box.w = 3"),
    "an equal attribute": (BOX + "def f(x): return x * box.v", "box.v = 1 + 1"),
    "another value under a key that was searched": (
        "D = {'k': 2}\ndef f(x): return x if 'k' in D else -x",
        "D['k'] = 3",
    ),
    "another member of a set": ("S = {1, 'a'}\ndef f(x): return x if 'a' in S else -x", "S |= set(range(50))"),
    "another name in a set without the name": ("S = {'a'}\ndef f(x): return x if 'b' in S else -x", "S.add('c')"),
    "a member put back into a set that is walked": (
        "S = {1, 2}\ndef f(x): return x * sum(S)",
        "S.remove(2); S.add(2)",
    ),
    "another attribute of a simple namespace": (
        "import types\nn = types.SimpleNamespace(v=2)\ndef f(x): return x * n.v",
        "n.w = 3",
    ),
    "another key of a defaultdict": (
        "import collections\nD = collections.defaultdict(list, {1: 2})\ndef f(x): return x * D[1]",
        "D[2] = 3",
    ),
    "a context variable set to an equal value": (f"{CONTEXT}def f(x): return x * c.get()", "c.set(1)"),
    "another length of a list that is not empty": ("L = [1]\ndef f(x): return x if L else -x", "L.append(2)"),
    "another value in a dictionary of which the length was read": (
        "D = {1: 2}\ndef f(x): return x * len(D)",
        "D[1] = 3",
    ),
}
