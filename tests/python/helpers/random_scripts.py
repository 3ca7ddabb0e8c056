"""Random scripts: a function that reads a part of a small world, and the changes and calls that are played on it.

A script is text: the world, the function, and steps that are executed in two copies of the world, one of which has
decorated functions. random_script_player.py plays it; test_random_scripts.py draws it.
"""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

# `jit` is fastjit or nothing. Every tensor broadcasts with every other: the last size is 3.
WORLD = """
import contextlib, math
import torch
F = torch.nn.functional

@contextlib.contextmanager
def default_dtype(dtype):
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try: yield
    finally: torch.set_default_dtype(kept)

K0, K1, N0, N1, B0, U0, G0 = 1.5, -0.5, 2, 300, True, 0, 0
L0, L1, D0 = [1.0, 2.0, 0.5], [0, 1], {"a": 2.0, "b": 0.25}
NEST = {"k": [1.0, {"z": 2.0}], "t": (1, 2.5)}
LOG, COUNT, D1, HOOKS = [], [0], {}, []
T0, T1, W = torch.arange(3.0) * 0.25, torch.ones(2, 3), torch.eye(3) * 0.5

class Base:
    scale = 2.0
    def shift(self, x): return x + self.k

class Obj(Base):
    def __init__(self): self.k, self.on, self.items, self.count = 1.5, True, [0.5, 1.0], 0
    @property
    def prop(self): return self.k * 2
    def method(self, x): return self.shift(x) * 0.5

class Other(Base):
    prop = 3.0
    def method(self, x): return x - self.k

class Slots:
    __slots__ = ("a", "b", "__weakref__")
    def __init__(self): self.a = 0.75

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(3.0), requires_grad=False)
        self.register_buffer("buf", torch.zeros(3))
        self.act, self.factor = torch.nn.ReLU(), 0.5
    def forward(self, x): return self.act(x * self.w + self.buf) * self.factor

def make(cell):
    def closure(x, times=1): return x * cell + times
    return closure

closure, other_closure = make(2.0), make(0.5)
def h0(x, a=1.0, *, b=0.5): return x * a + b
@jit
def h1(x, a=2.0): return x + a * K1
o, s, net = Obj(), Slots(), Net()
X, Y, R = torch.arange(6.0).view(2, 3) - 2, torch.ones(2, 3), None
"""
STATE = "K0 K1 N0 N1 B0 G0 L0 L1 D0 NEST LOG COUNT D1 T0 T1 o s net X Y".split()


def _table(text: str) -> list[str]:
    return [entry.strip() for line in text.strip().split("\n") for entry in line.split(" | ")]


def _blocks(text: str) -> list[str]:
    return text.strip().split("\n\n")


NUMBERS = _table("""
K0 | K1 | N0 | N1 | L0[0] | L0[-1] | len(L0) | sum(L0) | max(L0) | D0["a"] | D0.get("b", 1.0)
D0.get("zz", 0.5) | len(D0) | min(D0.values()) | float("a" in D0) | o.k | o.prop | o.scale | Base.scale | s.a
getattr(o, "extra", 0.25) | getattr(s, "b", 0.5) | NEST["k"][0] | NEST["k"][1]["z"] | NEST["t"][1]
net.factor | float(net.training) | k | 0.5 | 2 | x.shape[-1] | x.dim() | math.floor(K0) | abs(K1) | int(B0)
o.items[0] | len(o.items) | o.shift(K0) | h0(1.5) | h1(K0) | closure(0.5) | -1.0 | float(len(args))
y.shape[0]
""")

CONDITIONS = _table("""
B0 | K0 > 1 | N0 % 2 | D0 | L0 | "b" in D0 | len(L0) > 2 | o.on | net.training | isinstance(o, Obj)
type(o) is Obj | hasattr(o, "extra") | x.dtype == torch.float32 | x.is_contiguous() | x.requires_grad
torch.is_grad_enabled() | x is y | x.shape == y.shape | L0 == [1.0, 2.0, 0.5] | K0 in L0 | x is T0 | args
NEST["t"] == (1, 2.5) | net.w.requires_grad | HOOKS | torch.is_inference_mode_enabled() | callable(closure)
N0 is N1 | x.stride(-1) == 1 | x.storage_offset() > 0 | x.is_leaf
""")

# {n}: a number. {c}: a condition. Exact: what rounds, rounds as eager does. An empty line ends a statement.
EXACT = _blocks("""
a = a * {n}

a = a + {n}

a = {n} - a

a = a + T0

a = a * T1[0]

a = torch.maximum(a, y)

a = o.method(a)

a = net(a)

a = h0(a)

a = h0(a, {n})

a = h0(a, b={n})

a = h1(a)

a = h1(a, a={n})

a = closure(a)

a = closure(a, times={n}) + other_closure(a)

a = a.relu()

a = a.clamp(-2.0, {n})

a = torch.where(a > 0, a, y)

a = a.to(y.dtype)

a = a.abs() + b

b = a[..., :1]

b = y.detach()

a = a + torch.ones(3)

a = torch.cat([a, a])[: len(a)]

for v in L0:
    a = a + v

for i, v in enumerate(L0):
    a = a * v + i

for q, v in D0.items():
    a = a + v * len(q)

for m in net.children():
    a = m(a)

for i in range(len(L1)):
    a = a + y[..., L1[i] : L1[i] + 1]

if {c}:
    a = a + 1
else:
    a = a * 2

a = a - {n} if {c} else a * 3

try:
    q = D0["b"]
except KeyError:
    q = 7.0
a = a * q

a = sum([a * v for v in L0])

a = (lambda t: t * {n})(a)

parts = [a, y]
parts.append(a * 2)
a = parts[N0 % 3] + 0

for t in args:
    a = a + t

a = a * k
""")

WRITES = _blocks("""
x.add_({n})

y.mul_(0.5)

x[..., 0] = {n}

v = x[..., 1:]
v.mul_(0.5)
a = a + v[..., :1]

t = a.clone()
t[..., ::2] = {n}
a = t

a = a.clone()
a += {n}

T0.mul_(0.5)

net.buf.add_(0.25)

a = a.clone()
a[..., :1].add_(y[..., 1:2])

y.copy_(x)

x.clamp_(-4, 4)

x[0], x[-1] = x[-1].clone(), x[0].clone()
""")

# Effects and values of tensors: replayed and guarded, or eager with the reason.
EFFECTS = _blocks("""
for name, p in net.named_parameters():
    a = a + p

LOG.append({n})

LOG.append(a)

COUNT[0] += 1

o.last = {n}

o.count = o.count + 1

D1["last"] = {n}

print({n})

G0 = {n}

a = a * float(y.sum().item())

if y.sum().item() * 2 > K0:
    a = a - 1

level = y.abs().max().item()
a = a * 2 if math.isfinite(level) and 0.25 <= level else a + torch.tensor(level)

a = a + torch.tensor(K1)

o.items = [item for item in o.items]

if bool((x > 0).any()):
    a = a + 1

a = a + len(x[x > 0])
""")

ROUNDED = _blocks("""
a = torch.tanh(a)

a = torch.sigmoid(a)

a = F.softmax(a, -1)

a = a - a.mean(-1, keepdim=True)

a = a @ W.to(a.dtype)

a = F.gelu(a)

a = a + a.sum(-1, keepdim=True) * 0.1
""")
JUMPS = ("where(a > 0", "item()", "any()", "x[x > 0]")  # not behind a value that is rounded otherwise

RETURNS = _table("""
a | a, x | [a, {"k": b}], x[..., 0] | {"a": a, "n": {n}, "v": x.reshape(-1)} | a, a, y[1:] | (a, (b, [y]))
a, b, T0 | None, a | a.t() if a.dim() == 2 else a, {n} | x, y | [a[..., i] for i in L1]
y.expand(2, *y.shape), a
""")

VALUES = "0.5 2.0 3 -1.0 1.5 True 0 -0.0 1.0 float('nan')".split()

# {v}: a value.
CHANGES = _table("""
K0 = {v} | K1 = {v} | N0 = N0 + 1 | N1 = N0 | B0 = not B0 | U0 = {v} | L0[0] = {v} | L0[-1] = {v}
L0.append({v}) | if len(L0) > 1: L0.pop() | L0.reverse() | L0 = list(L0) | L1[0] = 2 - L1[0] | D0["b"] = {v}
D0["c"] = {v} | D0.pop("b", None) | D0["a"] = D0.pop("a", 1.0) | D0 = dict(D0) | o.k = {v} | o.on = not o.on
o.extra = {v} | vars(o).pop("extra", None) | Base.scale = {v} | o.scale = {v} | vars(o).pop("scale", None)
Obj.prop = property(lambda self: self.k + 7) | o.__class__ = Other if type(o) is Obj else Obj
Obj.method = lambda self, x: x - self.k | o.method = lambda x: x * 3 | vars(o).pop("method", None)
Base.shift = lambda self, x: x - 2 | o = Obj() | o.items[0] = {v} | o.items = [{v}] | o.unread = {v}
s.a = {v} | s.b = {v} | NEST["k"][0] = {v} | NEST["k"][1]["z"] = {v} | NEST["t"] = (1, {v})
NEST["k"][1] = dict(NEST["k"][1]) | h0 = lambda x, a=2.0, *, b={v}: x * a - b | h0.__defaults__ = ({v},)
h0.__kwdefaults__ = {"b": {v}}
closure.__closure__[0].cell_contents = {v} | closure = make({v}) | closure.__defaults__ = ({v},)
closure, other_closure = other_closure, closure | h1 = jit(lambda x, a=1.0: x * a)
h1 = lambda x, a=3.0: x - a | T0.add_(0.25) | T0 = torch.arange(3.0)
T0 = T0.double() | T0.data = torch.full((3,), 0.5) | T0 = T1[0] | T1.mul_(0.5) | T0 = T0[[2, 1, 0]]
net.w.data.mul_(0.5) | net.w = torch.nn.Parameter(torch.ones(3), requires_grad=False)
net.w.requires_grad_(not net.w.requires_grad) | net.train(not net.training) | net.buf.fill_(1)
net.buf = torch.full((3,), 0.5) | net.factor = {v} | net.act = torch.nn.Identity()
net.load_state_dict({key: v * 0.5 for key, v in net.state_dict().items()})
net.register_buffer("more", torch.ones(3)) | net = Net()
HOOKS.append(net.register_forward_hook(lambda m, args, out: out + 1))
HOOKS.append(net.register_forward_pre_hook(lambda m, args: (args[0] * 2,))) | if HOOKS: HOOKS.pop().remove()
HOOKS.append(net.act.register_forward_hook(lambda m, args, out: -out)) | net.forward = lambda x: x * K0
vars(net).pop("forward", None) | net.act = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity())
W = W.t() | float = int | globals().pop("float", None)
""")

ARGUMENTS = _table("""
X = torch.arange(6.0).view(2, 3) - 2 | X = X + 1 | X = torch.arange(12.0).view(4, 3) - 4
X = torch.arange(3.0) | X = torch.zeros(0, 3) | X = X.detach().double() | X = X.detach().half()
X = X.detach().to(torch.bfloat16) | X = torch.arange(6).view(2, 3) | X = X.detach().float()
X = torch.arange(6.0).view(3, 2).t() | X = torch.arange(12.0).view(2, 6)[:, ::2]
X = torch.arange(7.0)[1:].view(2, 3) | X = torch.ones(1, 3).expand(2, 3)
X = X.detach().clone().requires_grad_() if X.is_floating_point() else X | X = X.detach() | Y = X | Y = X[:1]
Y = X[..., :] | X = Y | X = T0 | Y = X.detach() | Y = torch.full((2, 3), 0.25) | Y = torch.ones(3)
Y = torch.ones(2, 3).double() | Y = net.buf | X = torch.nn.Parameter(torch.ones(2, 3), requires_grad=False)
X = R if isinstance(R, torch.Tensor) and R.shape[-1:] == (3,) else X | X = (X > 0)
X.resize_(0) if X.is_leaf and not X.requires_grad and False else X
X = torch.from_numpy(X.detach().clone().float().numpy()) | X, Y = Y, X
""")

CALLS = ["f(X, Y)"] * 6 + [
    "f(X, Y, k=2.0)",
    "f(X, Y, k=K0)",
    "f(x=X, y=Y)",
    "f(X, Y, T0)",
    "f(X, X)",
    "f(X, X[:1])",
    "f(X, Y, T1, T0, k=3)",
]
MODES = ["contextlib.nullcontext()"] * 6 + [
    "torch.enable_grad()",
    "torch.inference_mode()",
    "default_dtype(torch.float64)",
    "torch.autocast('cpu', dtype=torch.bfloat16)",
]


@dataclasses.dataclass(frozen=True)
class Program:
    """The function of a script. `exact`: its results are eager's, bit for bit."""

    source: str
    exact: bool

    @property
    def any_zero(self) -> bool:
        """Which of 0.0 and -0.0 is the larger depends on the length of eager's vectors."""
        return any(name in self.source for name in ("maximum", "clamp", "relu", "net"))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    number, condition = st.sampled_from(NUMBERS), st.sampled_from(CONDITIONS)
    exact = draw(st.booleans())
    # One statement in ten has an effect; programs without any are the rule.
    kinds = [EXACT] * 7 + [WRITES] * 2 + ([EFFECTS] if draw(st.integers(0, 3)) == 3 else [EXACT])
    if not exact:
        kinds += [ROUNDED] * 4
    statements = []
    for _ in range(draw(st.integers(1, 7))):
        text = draw(st.sampled_from(draw(st.sampled_from(kinds))))
        if not exact and any(jump in text for jump in JUMPS):
            continue
        statements.append(text.replace("{n}", draw(number)).replace("{c}", draw(condition)))
    result = draw(st.sampled_from(RETURNS)).replace("{n}", draw(number))
    body = ["a, b = x + 0, y", *statements, f"return {result}"]
    lines = [line for statement in body for line in statement.split("\n")]
    return Program("def f(x, y, *args, k=1.0):\n    global G0\n" + "".join(f"    {line}\n" for line in lines), exact)


def changes() -> st.SearchStrategy[str]:
    return st.builds(lambda text, v: text.replace("{v}", v), st.sampled_from(CHANGES), st.sampled_from(VALUES))


def calls() -> st.SearchStrategy[str]:
    return st.builds(lambda mode, call: f"with {mode}: R = {call}", st.sampled_from(MODES), st.sampled_from(CALLS))
