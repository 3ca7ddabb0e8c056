"""Read patterns of the observer: what each must record, or the sentence that makes it unsound."""

from typing import NamedTuple


class Sound(NamedTuple):
    """A call whose facts contain `facts`; `change` (statements) must fail the check with the words `failure`."""

    name: str
    source: str
    facts: tuple = ()
    change: str = ""
    failure: str = ""
    args: str = "(T,)"
    tensors: tuple = ()


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
    Sound(
        "global number",
        "SCALE = 2.0\ndef f(x): return x * SCALE",
        ("global SCALE is 2.0 (model.py:2)",),
        "SCALE = 3.0",
        "global SCALE was 2.0, is 3.0 (model.py:2)",
    ),
    Sound(
        "global bool for int",
        "N = 1\ndef f(x): return x * N",
        ("global N is 1",),
        "N = True",
        "global N was 1, is True",
    ),
    Sound("global zero sign", "Z = 0.0\ndef f(x): return x * Z", ("global Z is 0.0",), "Z = -0.0", "was 0.0, is -0.0"),
    Sound(
        "global string",
        "M = 'a'\ndef f(x): return x if M == 'a' else -x",
        ("global M is 'a'",),
        "M = 'b'",
        "was 'a', is 'b'",
    ),
    Sound(
        "global None",
        "M = None\ndef f(x): return x if M is None else -x",
        ("global M is None",),
        "M = 0",
        "was None, is 0",
    ),
    Sound(
        "global tensor",
        "W = Tensor(seconds=5)\ndef f(x): return x + W",
        ("global W is Tensor",),
        "W = Tensor(seconds=5)",
        "global W is another Tensor (model.py:2)",
        tensors=("W",),
    ),
    Sound("global deleted", "S = 2\ndef f(x): return x * S", (), "del S", "global S was 2, is absent"),
    Sound(
        "tuple of tensors",
        "TS = (T, Tensor(seconds=2))\ndef f(x): return x + TS[1]",
        ("global TS is",),
        "TS = (T, T)",
        "global TS",
        tensors=("TS[0]", "TS[1]"),
    ),
    Sound(
        "tuple constant",
        "P = (1, 2)\ndef f(x): return x * P[1]",
        ("global P is (1, 2)",),
        "P = (1, 3)",
        "was (1, 2), is (1, 3)",
    ),
    Sound(
        "names of a class",
        "class A: a = 1\nclass B(A): b = 2\ndef f(x): return x * len([n for n in dir(B) if n[0] != '_'])",
        ("names in A (model.py:3)", "names in B (model.py:3)", "bases of B (model.py:3)"),
        "A.c = 3",
        "the names in A changed (model.py:3)",
    ),
    Sound(
        "names that a metaclass gives",
        "class M(type): pass\nclass B(metaclass=M): b = 2\n"
        "def f(x): return x * len([n for n in dir(B) if n[0] != '_'])",
        ("names in B", "M.__dir__ is"),
        "M.__dir__ = lambda cls: ['b', 'c']",
        "M.__dir__ was method_descriptor, is function",
    ),
    Sound(
        "builtin",
        "def f(x): return x * abs(-2)",
        ("global abs is absent", "builtin abs is"),
        "abs = lambda v: v",
        "global abs was absent, is function",
    ),
    Sound(
        "cell",
        "def mk(b):\n  def g(x): return x * b\n  def h(v):\n    nonlocal b\n    b = v\n  return g, h\nf, put = mk(2.0)",
        ("cell b is 2.0 (model.py:2)",),
        "put(4.0)",
        "cell b was 2.0, is 4.0 (model.py:2)",
    ),
    Sound(
        "cell tensor",
        "def mk(b):\n  return lambda x: x + b\nf = mk(Tensor(seconds=9))",
        ("cell b is Tensor",),
        "f.__closure__[0].cell_contents = T",
        "cell b is another Tensor",
        tensors=("b",),
    ),
    Sound(
        "cell of outer function",
        "def mk(b):\n  def g(x):\n    def inner(): return x * b\n    return inner()\n  return g\nf = mk(2)",
        ("cell b is 2",),
        "f.__closure__[0].cell_contents = 3",
        "cell b was 2, is 3",
    ),
    Sound("new cell", "def f(x):\n  k = 2\n  def g(): return x * k\n  k = 3\n  return g()"),
    Sound(
        "module attribute",
        "import math\ndef f(x): return x * math.floor(math.pi)",
        ("math.pi is 3.14", "math.floor is builtin"),
        "math = None",
        "global math was module, is None",
    ),
    Sound(
        "module key",
        "import types\nm = types.ModuleType('m')\nm.k = 2\ndef f(x): return x * m.k",
        ("m.k is 2",),
        "m.k = 7",
        "m.k was 2, is 7",
    ),
    Sound(
        "module hook",
        "import types\nm = types.ModuleType('m')\nm.__getattr__ = lambda name: 3\ndef f(x): return x * m.k",
        ("m.k is absent", "m.__getattr__ is function"),
        "m.k = 7",
        "m.k was absent, is 7",
    ),
    Sound(
        "helper function",
        "def h(x): return x + x\ndef f(x): return h(x)",
        ("global h is function", "function h: code and defaults"),
        "h.__code__ = (lambda x: x).__code__",
        "function h has new code",
    ),
    Sound(
        "helper replaced",
        "def h(x): return x + x\ndef f(x): return h(x)",
        (),
        "def h(x): return x",
        "global h is another function",
    ),
    Sound(
        "defaults",
        "def h(x, k=2): return x * k\ndef f(x): return h(x)",
        (),
        "h.__defaults__ = (3,)",
        "function h has new defaults",
    ),
    Sound(
        "keyword defaults",
        "def h(x, *, k=2): return x * k\ndef f(x): return h(x)",
        ("h default k is 2",),
        "h.__kwdefaults__['k'] = 3",
        "h default k was 2, is 3",
    ),
    Sound("default tensor", "def f(x, w=T): return x + w", tensors=("default 0 of f",)),
    Sound(
        "own code",
        "def f(x): return x + x",
        ("function f: code and defaults",),
        "f.__code__ = (lambda x: x).__code__",
        "function f has new code",
    ),
    Sound("class constant", "class C:\n  K = 2\ndef f(x): return x * C.K", ("C.K is 2",), "C.K = 5", "C.K was 2, is 5"),
    Sound(
        "class constant of a base",
        "class A:\n  K = 2\nclass B(A): pass\ndef f(x): return x * B.K",
        ("B.K is 2",),
        "A.K = 5",
        "B.K was 2, is 5",
    ),
    Sound(
        "static method",
        "class C:\n  @staticmethod\n  def g(x): return x + x\ndef f(x): return C.g(x)",
        ("C.g is staticmethod",),
        "C.g = staticmethod(lambda x: x)",
        "C.g is another",
    ),
    Sound("arguments in containers", "def f(xs, d): return xs[0] + d['a'] * len(xs)", args="([T, T], {'a': T})"),
    Sound(
        "loop over argument",
        "def f(xs):\n  r = xs[0]\n  for i, x in enumerate(xs): r = r + x * i\n  return r",
        args="([T, T],)",
    ),
    Sound("keyword arguments", "def g(x, **kw): return x * kw['k'] if 'k' in kw else x\ndef f(x): return g(x, k=2)"),
    Sound("star call", "def g(*a): return a[0] * a[1]\ndef f(x):\n  p = [x, 2]\n  return g(*p)"),
    Sound(
        "new list",
        "def f(x):\n  r = []\n  for i in range(3): r.append(x * i)\n  r[0] = x\n  return r[0] + r[-1] * len(r)",
    ),
    Sound(
        "new dictionary",
        "def f(x):\n  d = {'a': x}\n  d['b'] = d['a'] + x\n  for k, v in d.items(): x = x + v\n  return d.get('b')",
    ),
    Sound(
        "set of objects",
        BOX + "def f(x):\n  seen = {box}\n  return x * 2 if box in seen else x",
        ("Box.__hash__ is", "Box.__eq__ is"),
    ),
    Sound("comprehensions", "def f(x): return [x * i for i in (1, 2)][0] + {i: x for i in (1, 2)}[2]"),
    Sound("generator", "def f(x): return x * sum(i * i for i in range(4))"),
    Sound(
        "generator function",
        "K = 2\ndef g(n):\n  for i in range(n): yield i * K\ndef f(x): return x * max(g(3))",
        ("global K is 2",),
        "K = 3",
        "global K was 2, is 3",
    ),
    Sound("any stops early", "def f(x): return x if any(v > 1 for v in (1, 2, 3)) else -x"),
    Sound(
        "map and zip",
        "def f(x): return x * sum(map(lambda a: a + 1, (1, 2))) + x * [a * b for a, b in zip((1, 2), [3, 4])][1]",
    ),
    Sound("sorted with a key", "def f(x): return x * sorted([3, 1, 2], key=lambda v: -v)[0]"),
    Sound(
        "instance made here",
        BOX + "def f(x): return x * Box(3).get()",
        ("Box.__init__ is function", "Box.get is function"),
        "Box.get = lambda self: 4",
        "Box.get is another function",
    ),
    Sound(
        "formatting",
        "N = 2\ndef f(x):\n  s = f'{N:03d}-{len(\"ab\")}'\n  return x if s == '002-2' else -x",
        ("global N is 2",),
        "N = 3",
        "was 2, is 3",
    ),
    Sound("isinstance", "def f(x): return x if isinstance(x, (int, Tensor)) else -x", ("global Tensor is type",)),
    Sound(
        "hasattr on a module",
        "import types\nm = types.ModuleType('m')\ndef f(x): return x if hasattr(m, 'k') else -x",
        ("m.k is absent",),
        "m.k = 1",
        "m.k was absent, is 1",
    ),
    Sound("import inside", "def f(x):\n  import math\n  return x * math.floor(2.5)", ("module math is module",)),
    Sound(
        "import from inside",
        "def f(x):\n  from collections import abc\n  return x",
        ("module collections is module", "collections.abc is module"),
    ),
    Sound(
        "module parameter",
        NET + "def f(x): return net(x)",
        (
            "net.fc1.weight is Tensor",
            "net.fc1.scale is 2",
            "net.fc1._forward_hooks is empty",
            "Linear.forward is function",
        ),
        "net.fc1.weight = Tensor(seconds=3)",
        "net.fc1.weight is another Tensor",
        tensors=("net.fc1.weight", "net.fc2.weight"),
    ),
    Sound(
        "module attribute of a layer",
        NET + "def f(x): return net(x)",
        (),
        "net.fc2.scale = 3",
        "net.fc2.scale was 2, is 3",
    ),
    Sound(
        "hook added",
        NET + "def f(x): return net(x)",
        (),
        "net.fc2._forward_hooks[0] = f",
        "net.fc2._forward_hooks was empty, is not",
    ),
    Sound("layer replaced", NET + "def f(x): return net(x)", (), "net.fc1 = Linear()", "net.fc1 is another Linear"),
    Sound(
        "forward patched",
        NET + "def f(x): return net(x)",
        (),
        "Linear.forward = lambda self, x: x",
        "Linear.forward is another function",
    ),
    Sound(
        "forward on the instance",
        NET + "def f(x): return net(x)",
        (),
        "net.fc1.__dict__['forward'] = abs",
        "net.fc1.forward was absent",
    ),
    Sound(
        "class changed",
        NET + "class L2(Linear): pass\ndef f(x): return net(x)",
        (),
        "object.__setattr__(net.fc1, '__class__', L2)",
        "net.fc1 is now of type L2",
    ),
    Sound(
        "dictionary replaced",
        NET + "def f(x): return net(x)",
        (),
        "object.__setattr__(net.fc1, '__dict__', dict(net.fc1.__dict__))",
        "net.fc1.__dict__ was replaced",
    ),
    Sound(
        "parameters replaced",
        NET + "def f(x): return net(x)",
        (),
        "net.fc1.__dict__['_parameters'] = dict(net.fc1._parameters)",
        "net.fc1._parameters is another dict",
    ),
    Sound(
        "loop over layers",
        NET + "def f(x):\n  for m in net._modules.values(): x = m(x)\n  return x",
        ("net._modules has these keys in this order",),
        "net.fc3 = Linear()",
        "the keys of net._modules changed",
    ),
    Sound(
        "order of layers",
        NET + "def f(x):\n  for n in net._modules: x = x + x\n  return x",
        (),
        "net._modules['fc1'] = net._modules.pop('fc1')",
        "the keys of net._modules changed",
    ),
    Sound(
        "getattr with default",
        NET + "def f(x): return x * getattr(net, 'nothing', 2)",
        ("net.nothing is absent",),
        "net.nothing = 5",
        "net.nothing was absent",
    ),
]
