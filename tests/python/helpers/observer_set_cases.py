"""Reads of sets, of matched objects and of other things that code holds: the facts, a change that must fail them."""

from observer_cases import Sound

MATCHED = "class P:\n  __match_args__ = ('x', 'y')\n  def __init__(self, x, y): self.x, self.y = x, y\np = P(1, 2)\n"

SETS = [
    Sound(
        "set that is walked",
        "S = {1, 2}\ndef f(x):\n  for v in S: x = x * v\n  return x",
        ("S has these members", "2 in S is 2"),
        "S.add(3)",
        "the members of S changed",
    ),
    Sound(
        "sum over a set",
        "S = {1, 2}\ndef f(x): return x * sum(S)",
        ("S has these members",),
        "S.remove(1); S.add(3)",
        "1 in S is gone",
    ),
    Sound(
        "objects in a set",
        "class C:\n  def __init__(self, v): self.v = v\nc = C(2)\nS = {c}\n"
        "def f(x):\n  for o in S: x = x * o.v\n  return x",
        ("S has these members", "an item of S.v is 2"),
        "c.v = 3",
        "an item of S.v was 2, is 3",
    ),
    Sound(
        "frozen set",
        "S = frozenset({1, 2})\ndef f(x): return x * sum(S)",
        ("global S is frozenset",),
        "S = frozenset({1, 3})",
        "global S is another frozenset",
    ),
    Sound(
        "length of a set",
        "S = {1, 2}\ndef f(x): return x * len(S)",
        ("S has these members",),
        "S.add(3)",
        "the members of S changed",
    ),
    Sound("truth of a set", "S = set()\ndef f(x): return x if S else -x", (), "S.add(1)", "the members of S changed"),
    Sound(
        "set without a member",
        "S = {1}\ndef f(x): return x if 2 in S else -x",
        ("S has these members",),
        "S.add(2)",
        "the members of S changed",
    ),
    Sound(
        "set without a name",
        "S = {'a'}\ndef f(x): return x if 'b' in S else -x",
        ("'b' in S is absent",),
        "S.add('b')",
        "'b' in S was absent, is 'b'",
    ),
    Sound(
        "set without None",
        "S = {'a'}\ndef f(x): return x if None not in S else -x",
        ("None in S is absent",),
        "S.add(None)",
        "None in S was absent, is None",
    ),
    Sound(
        "set without a class",
        "class C: pass\nS = {int}\ndef f(x): return x if C in S else -x",
        ("type in S is absent",),
        "S.add(C)",
        "type in S was absent, is type",
    ),
    Sound(
        "attributes of a simple namespace",
        "import types\nn = types.SimpleNamespace(v=2)\ndef f(x): return x * n.v",
        ("n.v is 2",),
        "n.v = 3",
        "n.v was 2, is 3",
    ),
    Sound(
        "key of a defaultdict",
        "import collections\nD = collections.defaultdict(list, {1: 2})\ndef f(x): return x * D[1]",
        ("D[1] is 2",),
        "D[1] = 3",
        "D[1] was 2, is 3",
    ),
    Sound(
        "equality of data classes",
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n  a: int\nc, d = C(1), C(1)\n"
        "def f(x): return x if c == d else -x",
        ("c.a is 1", "d.a is 1"),
        "d.a = 2",
        "d.a was 1, is 2",
    ),
    Sound(
        "number of an enumeration",
        "import enum\nclass E(enum.IntEnum):\n  A = 2\n  B = 3\nM = E.A\ndef f(x): return x * (M + 1)",
        ("M is of type E",),
        "M = E.B",
        "global M is another E",
    ),
    Sound(
        "method resolution order",
        "class A: pass\nclass B(A): pass\nclass Z: pass\ndef f(x): return x * len(B.__mro__)",
        ("bases of B",),
        "B.__bases__ = (A, Z)",
        "the bases of B changed",
    ),
    Sound(
        "class pattern",
        f"{MATCHED}def f(x):\n  match p:\n    case P(1, b): return x * b\n  return x",
        ("P.__match_args__ is ('x', 'y')", "p.x is 1", "p.y is 2"),
        "p.y = 3",
        "p.y was 2, is 3",
    ),
    Sound(
        "class pattern that does not match",
        f"{MATCHED}def f(x):\n  match p:\n    case P(x=2, y=b): return x * b\n    case P(x=1): return x\n  return -x",
        ("p.x is 1",),
        "p.x = 2",
        "p.x was 1, is 2",
    ),
    Sound(
        "names of a class pattern",
        f"{MATCHED}def f(x):\n  match p:\n    case P(1, b): return x * b\n  return x",
        ("P.__match_args__ is ('x', 'y')",),
        "P.__match_args__ = ('y', 'x')",
        "P.__match_args__ was ('x', 'y'), is ('y', 'x')",
    ),
    Sound(
        "pattern of a builtin class",
        "N = 2\ndef f(x):\n  match N:\n    case int(n): return x * n\n  return x",
        ("global N is 2",),
        "N = 2.5",
        "global N was 2, is 2.5",
    ),
    Sound(
        "suppressed exception",
        "import contextlib\nN = 2\ndef g():\n  if N == 2: raise ValueError(N)\n"
        "def f(x):\n  with contextlib.suppress(ValueError): g()\n  return x",
        ("global N is 2",),
        "N = 3",
        "global N was 2, is 3",
    ),
    Sound(
        "class attribute that is what it was",
        "class C: on = False\ndef f(x):\n  C.on = False\n  return x",
        ("C.on is False",),
        "C.on = True",
        "C.on was False, is True",
    ),
    Sound(
        "class attribute that is put back",
        "class C: on = False\ndef f(x):\n  C.on = True\n  C.on = False\n  return x",
        ("C.on is False",),
        "C.on = 5",
        "C.on was False, is 5",
    ),
]
