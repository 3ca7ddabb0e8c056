"""The read observer without torch: one table of read patterns, each with its facts or the sentence that makes it unsound."""

import gc
import importlib.util
import opcode
import sys
import types
import weakref
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from observer_tools import ROOT, Module, Tensor, build, load, observe, program  # noqa: E402

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the read observer is for CPython 3.11")


@pytest.fixture(scope="session")
def ext(tmp_path_factory):
    return load(build(tmp_path_factory.mktemp("observer")))


class Sound(NamedTuple):
    """A call whose facts contain `facts`; `change` (statements) must fail the check with words that contain `failure`."""

    name: str
    source: str
    facts: tuple = ()
    change: str = ""
    failure: str = ""
    args: str = "(T,)"
    tensors: tuple = ()


class Unsound(NamedTuple):
    name: str
    source: str
    sentence: str
    args: str = "(T,)"


BOX = "class Box:\n  def __init__(self, v): self.v = v\n  def get(self): return self.v\nbox = Box(2)\n"
NET = """class Linear(Module):
  def __init__(self):
    super().__init__()
    self.weight = Tensor(seconds=3)
    self.scale = 2
    self.extra = [1, 2]
  def forward(self, x): return (x + self.weight) * self.scale
class Net(Module):
  def __init__(self):
    super().__init__()
    self.fc1 = Linear()
    self.fc2 = Linear()
  def forward(self, x): return self.fc2(self.fc1(x))
net = Net()
"""

SOUND = [
    Sound("global number", "SCALE = 2.0\ndef f(x): return x * SCALE", ("global SCALE is 2.0 (model.py:2)",),
          "SCALE = 3.0", "global SCALE was 2.0, is 3.0 (model.py:2)"),
    Sound("global bool for int", "N = 1\ndef f(x): return x * N", ("global N is 1",), "N = True", "global N was 1, is True"),
    Sound("global zero sign", "Z = 0.0\ndef f(x): return x * Z", ("global Z is 0.0",), "Z = -0.0", "was 0.0, is -0.0"),
    Sound("global string", "M = 'a'\ndef f(x): return x if M == 'a' else -x", ("global M is 'a'",), "M = 'b'", "was 'a', is 'b'"),
    Sound("global None", "M = None\ndef f(x): return x if M is None else -x", ("global M is None",), "M = 0", "was None, is 0"),
    Sound("global tensor", "W = Tensor(seconds=5)\ndef f(x): return x + W", ("global W is Tensor",),
          "W = Tensor(seconds=5)", "global W is another Tensor (model.py:2)", tensors=("W",)),
    Sound("global deleted", "S = 2\ndef f(x): return x * S", (), "del S", "global S was 2, is absent"),
    Sound("tuple of tensors", "TS = (T, Tensor(seconds=2))\ndef f(x): return x + TS[1]", ("global TS is",),
          "TS = (T, T)", "global TS", tensors=("TS[0]", "TS[1]")),
    Sound("tuple constant", "P = (1, 2)\ndef f(x): return x * P[1]", ("global P is (1, 2)",), "P = (1, 3)", "was (1, 2), is (1, 3)"),
    Sound("builtin", "def f(x): return x * abs(-2)", ("global abs is absent", "builtin abs is"),
          "abs = lambda v: v", "global abs was absent, is function"),
    Sound("cell", "def mk(b):\n  def g(x): return x * b\n  def put(v):\n    nonlocal b\n    b = v\n  return g, put\nf, put = mk(2.0)",
          ("cell b is 2.0 (model.py:2)",), "put(4.0)", "cell b was 2.0, is 4.0 (model.py:2)"),
    Sound("cell tensor", "def mk(b):\n  return lambda x: x + b\nf = mk(Tensor(seconds=9))", ("cell b is Tensor",),
          "f.__closure__[0].cell_contents = T", "cell b is another Tensor", tensors=("b",)),
    Sound("cell of outer function", "def mk(b):\n  def g(x):\n    def inner(): return x * b\n    return inner()\n  return g\nf = mk(2)",
          ("cell b is 2",), "f.__closure__[0].cell_contents = 3", "cell b was 2, is 3"),
    Sound("new cell", "def f(x):\n  k = 2\n  def g(): return x * k\n  k = 3\n  return g()"),
    Sound("module attribute", "import math\ndef f(x): return x * math.floor(math.pi)", ("math.pi is 3.14", "math.floor is builtin"),
          "math = None", "global math was module, is None"),
    Sound("module key", "import types\nm = types.ModuleType('m')\nm.k = 2\ndef f(x): return x * m.k", ("m.k is 2",),
          "m.k = 7", "m.k was 2, is 7"),
    Sound("module hook", "import types\nm = types.ModuleType('m')\nm.__getattr__ = lambda name: 3\ndef f(x): return x * m.k",
          ("m.k is absent", "m.__getattr__ is function"), "m.k = 7", "m.k was absent, is 7"),
    Sound("helper function", "def h(x): return x + x\ndef f(x): return h(x)", ("global h is function", "function h: code and defaults"),
          "h.__code__ = (lambda x: x).__code__", "function h has new code"),
    Sound("helper replaced", "def h(x): return x + x\ndef f(x): return h(x)", (), "def h(x): return x", "global h is another function"),
    Sound("defaults", "def h(x, k=2): return x * k\ndef f(x): return h(x)", (), "h.__defaults__ = (3,)", "function h has new defaults"),
    Sound("keyword defaults", "def h(x, *, k=2): return x * k\ndef f(x): return h(x)", ("h default k is 2",),
          "h.__kwdefaults__['k'] = 3", "h default k was 2, is 3"),
    Sound("default tensor", "def f(x, w=T): return x + w", tensors=("default 0 of f",)),
    Sound("own code", "def f(x): return x + x", ("function f: code and defaults",), "f.__code__ = (lambda x: x).__code__", "function f has new code"),
    Sound("class constant", "class C:\n  K = 2\ndef f(x): return x * C.K", ("C.K is 2",), "C.K = 5", "C.K was 2, is 5"),
    Sound("class constant of a base", "class A:\n  K = 2\nclass B(A): pass\ndef f(x): return x * B.K", ("B.K is 2",), "A.K = 5", "B.K was 2, is 5"),
    Sound("static method", "class C:\n  @staticmethod\n  def g(x): return x + x\ndef f(x): return C.g(x)", ("C.g is staticmethod",),
          "C.g = staticmethod(lambda x: x)", "C.g is another"),
    Sound("arguments in containers", "def f(xs, d): return xs[0] + d['a'] * len(xs)", args="([T, T], {'a': T})"),
    Sound("loop over argument", "def f(xs):\n  r = xs[0]\n  for i, x in enumerate(xs): r = r + x * i\n  return r", args="([T, T],)"),
    Sound("keyword arguments", "def g(x, **kw): return x * kw['k'] if 'k' in kw else x\ndef f(x): return g(x, k=2)"),
    Sound("star call", "def g(*a): return a[0] * a[1]\ndef f(x):\n  p = [x, 2]\n  return g(*p)"),
    Sound("new list", "def f(x):\n  r = []\n  for i in range(3): r.append(x * i)\n  r[0] = x\n  return r[0] + r[-1] * len(r)"),
    Sound("new dictionary", "def f(x):\n  d = {'a': x}\n  d['b'] = d['a'] + x\n  for k, v in d.items(): x = x + v\n  return d.get('b')"),
    Sound("comprehensions", "def f(x): return [x * i for i in (1, 2)][0] + {i: x for i in (1, 2)}[2]"),
    Sound("generator", "def f(x): return x * sum(i * i for i in range(4))"),
    Sound("generator function", "K = 2\ndef g(n):\n  for i in range(n): yield i * K\ndef f(x): return x * max(g(3))", ("global K is 2",),
          "K = 3", "global K was 2, is 3"),
    Sound("any stops early", "def f(x): return x if any(v > 1 for v in (1, 2, 3)) else -x"),
    Sound("map and zip", "def f(x): return x * sum(map(lambda a: a + 1, (1, 2))) + x * [a * b for a, b in zip((1, 2), [3, 4])][1]"),
    Sound("sorted with a key", "def f(x): return x * sorted([3, 1, 2], key=lambda v: -v)[0]"),
    Sound("instance made here", BOX + "def f(x): return x * Box(3).get()", ("Box.__init__ is function", "Box.get is function"),
          "Box.get = lambda self: 4", "Box.get is another function"),
    Sound("formatting", "N = 2\ndef f(x):\n  s = f'{N:03d}-{len(\"ab\")}'\n  return x if s == '002-2' else -x", ("global N is 2",), "N = 3", "was 2, is 3"),
    Sound("isinstance", "def f(x): return x if isinstance(x, (int, Tensor)) else -x", ("global Tensor is type",)),
    Sound("hasattr on a module", "import types\nm = types.ModuleType('m')\ndef f(x): return x if hasattr(m, 'k') else -x", ("m.k is absent",),
          "m.k = 1", "m.k was absent, is 1"),
    Sound("import inside", "def f(x):\n  import math\n  return x * math.floor(2.5)", ("module math is module",)),
    Sound("import from inside", "def f(x):\n  from collections import abc\n  return x", ("module collections is module", "collections.abc is module")),
    Sound("module parameter", NET + "def f(x): return net(x)",
          ("net.fc1.weight is Tensor", "net.fc1.scale is 2", "net.fc1._forward_hooks is empty", "Linear.forward is function"),
          "net.fc1.weight = Tensor(seconds=3)", "net.fc1.weight is another Tensor", tensors=("net.fc1.weight", "net.fc2.weight")),
    Sound("module attribute of a layer", NET + "def f(x): return net(x)", (), "net.fc2.scale = 3", "net.fc2.scale was 2, is 3"),
    Sound("hook added", NET + "def f(x): return net(x)", (), "net.fc2._forward_hooks[0] = f", "net.fc2._forward_hooks was empty, is not"),
    Sound("layer replaced", NET + "def f(x): return net(x)", (), "net.fc1 = Linear()", "net.fc1 is another Linear"),
    Sound("forward patched", NET + "def f(x): return net(x)", (), "Linear.forward = lambda self, x: x", "Linear.forward is another function"),
    Sound("forward on the instance", NET + "def f(x): return net(x)", (), "net.fc1.__dict__['forward'] = abs", "net.fc1.forward was absent"),
    Sound("class changed", NET + "class L2(Linear): pass\ndef f(x): return net(x)", (), "object.__setattr__(net.fc1, '__class__', L2)", "net.fc1 is now of type L2"),
    Sound("dictionary replaced", NET + "def f(x): return net(x)", (), "object.__setattr__(net.fc1, '__dict__', dict(net.fc1.__dict__))", "net.fc1.__dict__ was replaced"),
    Sound("parameters replaced", NET + "def f(x): return net(x)", (), "net.fc1.__dict__['_parameters'] = dict(net.fc1._parameters)", "net.fc1._parameters is another dict"),
    Sound("loop over layers", NET + "def f(x):\n  for m in net._modules.values(): x = m(x)\n  return x", ("net._modules has these keys in this order",),
          "net.fc3 = Linear()", "the keys of net._modules changed"),
    Sound("order of layers", NET + "def f(x):\n  for n in net._modules: x = x + x\n  return x", (),
          "net._modules['fc1'] = net._modules.pop('fc1')", "the keys of net._modules changed"),
    Sound("getattr with default", NET + "def f(x): return x * getattr(net, 'nothing', 2)", ("net.nothing is absent",), "net.nothing = 5", "net.nothing was absent"),
]

UNSOUND = [
    Unsound("attribute of an object", BOX + "def f(x): return x * box.v", "read of Box.v at model.py:5"),
    Unsound("attribute of an argument", BOX + "def f(x, b):\n  return x * b.v", "read of Box.v at model.py:6", "(T, box)"),
    Unsound("method of an object", BOX + "def f(x): return x * box.get()", "read of Box.get at model.py:5"),
    Unsound("item of a list", "L = [1, 2]\ndef f(x): return x * L[0]", "read of item of list at model.py:2"),
    Unsound("item of a dictionary", "D = {'k': 2}\ndef f(x):\n  return x * D['k']", "read of item of dict at model.py:3"),
    Unsound("dict.get", "D = {'k': 2}\ndef f(x): return x * D.get('k')", "read of item of dict at model.py:2"),
    Unsound("list of a module", NET + "def f(x): return x * net.fc1.extra[0]", "read of item of list at model.py:15"),
    Unsound("loop over a list", "L = [1, 2]\ndef f(x):\n  for v in L: x = x * v\n  return x", "iteration over list at model.py:3"),
    Unsound("unpacking a list", "L = [1, 2]\ndef f(x):\n  a, b = L\n  return x * b", "iteration over list at model.py:3"),
    Unsound("comprehension over a list", "L = [1, 2]\ndef f(x): return [x * v for v in L]", "iteration over list at model.py:2"),
    Unsound("length of a list", "L = [1, 2]\ndef f(x): return x * len(L)", "length of list at model.py:2"),
    Unsound("truth of a list", "L = [1, 2]\ndef f(x): return x if L else -x", "truth of list at model.py:2"),
    Unsound("search in a list", "L = [1, 2]\ndef f(x): return x if 1 in L else -x", "search in list at model.py:2"),
    Unsound("sum of a list", "L = [1, 2]\ndef f(x): return x * sum(L)", "read of item of list by sum at model.py:2"),
    Unsound("list default", "def f(x, k=[2]): return x * k[0]", "read of item of list at model.py:1"),
    Unsound("star of a list", "L = [1, 2]\ndef g(a, b): return b\ndef f(x): return x * g(*L)", "iteration over list at model.py:3"),
    Unsound("generator over objects", BOX + "import datetime\nd = datetime.date(2020, 1, 1)\ndef f(x): return x if max(v for v in (d, d)) else -x", "read of datetime.date at model.py:7"),
    Unsound("store to a global", "n = 0\ndef f(x):\n  global n\n  n = 1\n  return x", "store to global n at model.py:4"),
    Unsound("store to a nonlocal", "def mk():\n  n = 0\n  def g(x):\n    nonlocal n\n    n = 1\n    return x\n  return g\nf = mk()", "store to nonlocal n at model.py:5"),
    Unsound("store to an attribute", BOX + "def f(x):\n  box.v = 1\n  return x", "store to Box.v at model.py:6"),
    Unsound("store to a module", NET + "def f(x):\n  net.scale = 1\n  return x", "store to net.scale at model.py:16"),
    Unsound("store to an item", "L = [1]\ndef f(x):\n  L[0] = 2\n  return x", "store to item of list at model.py:3"),
    Unsound("store to an argument", "def f(xs):\n  xs[0] = xs[1]\n  return xs[0]", "store to item of list at model.py:2", "([T, T],)"),
    Unsound("append", "L = []\ndef f(x):\n  L.append(1)\n  return x", "change of list by list.append at model.py:3"),
    Unsound("in-place addition", "L = []\ndef f(x):\n  y = L\n  y += [1]\n  return x", "operator on list at model.py:4"),
    Unsound("print", "def f(x):\n  print('a')\n  return x", "side effect: print at model.py:2"),
    Unsound("unknown C function", "import time\ndef f(x): return x * time.time()", "call of time at model.py:2"),
    Unsound("random", "import random\ndef f(x): return x * random.random()", "call of Random.random at model.py:2"),
    Unsound("id", "def f(x): return x * id(x)", "read of an address by id at model.py:1"),
    Unsound("class definition", "def f(x):\n  class C: pass\n  return x", "instruction LOAD_BUILD_CLASS at model.py:2"),
    Unsound("exception", "def f(x):\n  try: x * 'a'\n  except TypeError: pass\n  return x", "TypeError raised at model.py:2"),
    Unsound("raise", "def f(x): raise ValueError", "raise at model.py:1"),
    Unsound("import of a new module", "def f(x):\n  import this_is_absent\n  return x", "import of this_is_absent at model.py:2"),
    Unsound("attribute of a tensor", "T.note = 2\ndef f(x): return x * x.note", "read of Tensor.note at model.py:2"),
    Unsound("context manager", "import threading\nlock = threading.Lock()\ndef f(x):\n  with lock: return x", "with _thread.lock at model.py:4"),
    Unsound("finaliser", "class D:\n  def __del__(self): pass\ndef f(x):\n  d = D()\n  del d\n  return x", "a finaliser or signal handler ran D.__del__ at model.py:5"),
    Unsound("generator from outside", "g = (i for i in range(9))\ndef f(x): return x * next(g)", "next of generator at model.py:2"),
    Unsound("set of objects", BOX + "def f(x): return x * len({box})", "hash of Box at model.py:5"),
    Unsound("coroutine", "async def g(): pass\ndef f(x):\n  g()\n  return x", "call of coroutine g at model.py:3"),
    Unsound("relative comparison of objects", BOX + "import datetime\nd = datetime.date(2020, 1, 1)\ndef f(x): return x if d < d else -x", "comparison of datetime.date at model.py:7"),
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
    ("def f(x, a): return x * [a][0]", False),
    ("def f(x, a): return x * max((1.0, a))", False),
    ("def f(x, a): return x if (a,) == (2.0,) else -x", False),
    ("def f(x, a): return x * sum(v for v in (a, a))", False),
    ("def f(x, a): return x * sum(map(lambda v: v, (a, a)))", False),
    ("import math\ndef f(x, a): return x * math.sqrt(a)", False),
    ("def f(x, a): return x * {a: 2}[a]", False),
    ("def f(x, a): return x * int(a)", False),
]


def run(ext, case):
    module = program(case.source)
    return module, observe(ext, module.f, *eval(case.args, module.__dict__))


@pytest.mark.parametrize("case", SOUND, ids=lambda c: c.name)
def test_read_is_a_fact(ext, case):
    module, seen = run(ext, case)
    assert seen.unsound == ""
    assert seen.error is None
    lines = seen.facts.describe()
    for fact in case.facts:
        assert any(fact in line for line in lines), (fact, lines)
    assert {name for name, _ in seen.tensors} >= set(case.tensors)
    assert seen.facts.check() and seen.facts.first_failure() == ""
    if case.change:
        exec(case.change, module.__dict__)
        assert not seen.facts.check()
        assert case.failure in seen.facts.first_failure()


@pytest.mark.parametrize("case", UNSOUND, ids=lambda c: c.name)
def test_read_outside_the_list_is_unsound(ext, case):
    _, seen = run(ext, case)
    assert seen.unsound == case.sentence


@pytest.mark.parametrize(("source", "symbolic"), SCALARS)
def test_scalar_stays_symbolic_while_only_moved(ext, source, symbolic):
    number = float("2.5")
    module = program(source)
    seen = observe(ext, module.f, module.T, number, scalars=(number,))
    assert seen.unsound == ""
    assert seen.symbolic == [symbolic]


def test_an_unsound_call_has_no_symbolic_scalar(ext):
    number = float("2.5")
    module = program("L = [1]\ndef f(x, a): return x * a * L[0]")
    assert observe(ext, module.f, module.T, number, scalars=(number,)).symbolic == [False]


def test_every_opcode_has_a_row(ext):
    assert ext.opcode_rows() == opcode.opmap


def test_extended_arguments_are_seen(ext):
    names = [f"g{i}" for i in range(300)]
    lines = [f"{n} = {i}" for i, n in enumerate(names)]
    module = program("\n".join([*lines, "def f(x): return x * (" + " + ".join(names) + ")"]))
    seen = observe(ext, module.f, module.T)
    assert seen.unsound == ""
    assert sum("global g" in line for line in seen.facts.describe()) == 300
    for name in ("g0", "g255", "g256", "g299"):
        setattr(module, name, getattr(module, name) + 1)
        assert f"global {name} was" in seen.facts.first_failure()
        setattr(module, name, getattr(module, name) - 1)
        assert seen.facts.check()


def test_extended_attributes_are_seen(ext):
    names = [f"a{i}" for i in range(300)]
    setup = ["import types", "m = types.ModuleType('m')", *(f"m.{n} = {i}" for i, n in enumerate(names))]
    module = program("\n".join([*setup, "def f(x): return x * (" + " + ".join(f"m.{n}" for n in names) + ")"]))
    seen = observe(ext, module.f, module.T)
    assert sum(line.startswith("m.a") for line in seen.facts.describe()) == 300
    module.m.a299 = 7
    assert seen.facts.first_failure().startswith("m.a299 was 299, is 7 (model.py:")


def test_other_keys_of_a_dictionary_are_no_miss(ext):
    module = program("SCALE = 2\ndef f(x): return abs(2) * x * SCALE")
    seen = observe(ext, module.f, module.T)
    for module.i in range(100):
        assert seen.facts.check()
    for i in range(1000):  # the dictionary grows and is rebuilt
        setattr(module, f"key{i}", i)
        assert seen.facts.check()
    module.SCALE = int("2")
    assert seen.facts.check()
    module.SCALE = 3
    assert not seen.facts.check()
    module.SCALE = 2
    assert seen.facts.check()


def test_class_counter_is_no_miss(ext):
    module = program(NET + "def f(x): return net(x)")
    seen = observe(ext, module.f, module.T)
    for module.Linear.count in range(50):
        assert seen.facts.check()


def test_equal_large_numbers_and_strings_are_no_miss(ext):
    module = program("N = 10 ** 30\nS = 'ab c'\nP = (1.5, ('x', None))\ndef f(x): return x if (N, S, P) != () else -x")
    seen = observe(ext, module.f, module.T)
    module.N, module.S, module.P = int("1" + "0" * 30), "".join(["ab", " c"]), (float("1.5"), ("x", None))
    assert seen.facts.check()
    module.N += 1
    assert "global N was" in seen.facts.first_failure()


def test_a_value_that_the_call_changes_back_is_seen(ext):
    module = program("import sys\nSCALE = 2\ndef f(x):\n  return x * SCALE")
    watched = observe(ext, module.f, module.T)
    del module.SCALE
    assert "global SCALE was 2, is absent" in watched.facts.first_failure()


def test_tracer_active(ext):
    module = program("def f(x): return x")
    assert not ext.tracer_active()
    sys.setprofile(lambda *a: None)
    try:
        assert ext.tracer_active()
        assert ext.observe(None, (), module.f, (1,), None) is None
    finally:
        sys.setprofile(None)
    events = []
    tracer = lambda frame, event, arg: events.append(event)  # noqa: E731
    sys.settrace(tracer)
    try:
        assert ext.observe(None, (), module.f, (1,), None) is None
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert observe(ext, module.f, module.T).unsound == ""


def test_tracer_and_garbage_collector_are_restored(ext):
    module = program("import gc\ndef f(x): return x\ndef bad(x): raise KeyError(x)\ndef g(x): return x if gc.isenabled() else -x")
    assert gc.isenabled()
    for function in (module.f, module.bad, module.g):
        observe(ext, function, module.T)
        assert gc.isenabled() and sys.gettrace() is None and not ext.tracer_active()
    assert observe(ext, module.g, module.T).result == -module.T  # off while recording
    gc.disable()
    try:
        observe(ext, module.f, module.T)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_is_the_functions_own(ext):
    module = program("def f(x): return x * missing")
    seen = observe(ext, module.f, module.T)
    assert isinstance(seen.error, NameError)
    assert seen.unsound == "NameError raised at model.py:1"


def test_a_trace_function_set_inside_stays(ext):
    module = program("import sys\ndef t(*a): return None\ndef f(x):\n  sys.settrace(t)\n  return x")
    try:
        assert observe(ext, module.f, module.T).unsound == "call of settrace at model.py:4"
        assert sys.gettrace() is module.t
    finally:
        sys.settrace(None)


def test_facts_hold_nothing_alive(ext):
    module = program(NET + "W = Tensor(seconds=7)\ndef f(x): return net(x) + W")
    seen = observe(ext, module.f, module.T)
    refs = [weakref.ref(o) for o in (module.net, module.net.fc1, module.net.fc1.weight, module.W, module.f, module.Linear)]
    facts = seen.facts
    assert facts.check()
    seen = None
    for name in ("net", "W", "f", "Net", "Linear"):
        delattr(module, name)
    gc.collect()
    assert [r() for r in refs] == [None] * len(refs)
    assert not facts.check()
    assert facts.first_failure()


def test_dead_referent_with_reused_address_fails(ext):
    module = program("class C(Module):\n  K = 2\nobj = C()\ndef f(x): return x * obj.K")
    seen = observe(ext, module.f, module.T)
    for _ in range(200):
        module.obj = None
        module.obj = module.C()
        assert not seen.facts.check()


def test_a_thousand_observations_leak_nothing(ext):
    module = program(NET + "SCALE = 2.0\ndef f(x): return net(x) * SCALE + [x for _ in (1, 2)][0]")
    observe(ext, module.f, module.T)
    gc.collect()
    before, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    references = [sys.getrefcount(o) for o in (module.net, module.T, module.f, module.net.fc1, Tensor, Module, None.__class__)]
    for _ in range(1000):
        observe(ext, module.f, module.T)
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert sys.getallocatedblocks() - blocks < 500
    after = [sys.getrefcount(o) for o in (module.net, module.T, module.f, module.net.fc1, Tensor, Module, None.__class__)]
    assert after == references


OTHER_PYTHONS = [Path(f"/root/.pyenv/versions/{v}") for v in ("3.12.1", "3.13.0")]


@pytest.mark.parametrize("home", [h for h in OTHER_PYTHONS if h.exists()], ids=lambda h: h.name)
def test_builds_on_other_versions_and_is_absent_there(home, tmp_path):
    minor = ".".join(home.name.split(".")[:2])
    build(tmp_path, str(home / f"include/python{minor}"))
    import subprocess

    code = "import fj_observe_test as o; assert not o.available(); assert o.observe(None, (), len, ('',), None) is None"
    subprocess.run([str(home / f"bin/python{minor}"), "-c", code], check=True, cwd=tmp_path)
