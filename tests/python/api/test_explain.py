"""What explain() says after one change: a sentence with the path of what changed, its values, and the place."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fastjit import fastjit

X = torch.arange(4.0)


def source(text: str) -> dict[str, Any]:
    linecache.cache["model.py"] = (len(text), None, text.splitlines(True), "model.py")
    scope: dict[str, Any] = {"torch": torch, "__name__": "model"}
    exec(compile(text, "model.py", "exec"), scope)
    return scope


def explained(
    text: str, change: Callable[[dict[str, Any]], object], *args: Any, later: Any = None, **options: Any
) -> str:
    """What explain() says of a call like `args` (or of `later`) after a hit and the change."""
    scope = source(text)
    fast = fastjit(**options)(scope["f"])
    args = args or (X,)
    fast(*args)
    fast(*args)
    assert fast.explain(*args).startswith("a hit: "), fast.explain(*args)
    assert fast.stats().hits == 1
    change(scope)
    calls = fast.stats().calls
    said = fast.explain(*(args if later is None else later))
    assert fast.stats().calls == calls  # nothing ran
    return said


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets scope[path[0]] ... [path[-2]] to path[-1]."""

    def change(scope: dict[str, Any]) -> None:
        target: Any = scope
        for key in path[:-2]:
            target = target[key]
        target[path[-2]] = path[-1]

    return change


CLASS = "class C:\n    k = 2.0\n    def m(self, x): return x * 2\n"
STATE = [
    ("S = 2.0\ndef f(x): return x * S\n", put("S", 3.0), "global S was 2.0, is 3.0 (model.py:2)"),
    ("S = 2.0\ndef f(x): return x * S\n", lambda g: g.pop("S"), "global S was 2.0, is absent (model.py:2)"),
    (
        'CONFIG = {"k": [1.0, 2.0]}\ndef f(x): return x * CONFIG["k"][1]\n',
        put("CONFIG", "k", 1, 5.0),
        "CONFIG['k'][1] was 2.0, is 5.0 (model.py:2)",
    ),
    (
        CLASS + "c = C(); c.a = C(); c.a.n = 2.0\ndef f(x): return x * c.a.n\n",
        lambda g: setattr(g["c"].a, "n", 5.0),
        "c.a.n was 2.0, is 5.0 (model.py:5)",
    ),
    (
        CLASS + "c = C()\ndef f(x): return x * c.k\n",
        lambda g: setattr(g["C"], "k", 5.0),
        "C.k was 2.0, is 5.0 (model.py:5)",
    ),
    (
        CLASS + "c = C()\ndef f(x): return x * c.k\n",
        lambda g: setattr(g["c"], "k", 5.0),
        "c.k was absent, is 5.0 (model.py:5)",
    ),
    (
        CLASS + "c = C()\ndef f(x): return c.m(x)\n",
        lambda g: setattr(g["C"], "m", lambda self, x: x),
        "C.m is another function (model.py:5)",
    ),
    (
        "def make():\n    k = 2.0\n    def f(x): return x * k\n    def set(v):\n        nonlocal k\n        k = v\n"
        "    return f, set\nf, set = make()\n",
        lambda g: g["set"](4.0),
        "cell k was 2.0, is 4.0 (model.py:3)",
    ),
    (
        "def h(x, k=2.0): return x * k\ndef f(x): return h(x)\n",
        lambda g: setattr(g["h"], "__defaults__", (3.0,)),
        "function h has new defaults (model.py:2)",
    ),
    (
        "def h(x, *, k=2.0): return x * k\ndef f(x): return h(x)\n",
        lambda g: g["h"].__kwdefaults__.update(k=3.0),
        "h default k was 2.0, is 3.0 (model.py:2)",
    ),
    (
        "def h(x): return x * 2\ndef f(x): return h(x)\n",
        lambda g: setattr(g["h"], "__code__", (lambda x: x).__code__),
        "function h has new code (model.py:2)",
    ),
    (
        "def h(x): return x * 2\ndef f(x): return h(x)\n",
        put("h", lambda x: x),
        "global h is another function (model.py:2)",
    ),
    (
        "L = [1.0, 2.0]\ndef f(x):\n    for v in L: x = x * v\n    return x\n",
        lambda g: g["L"].append(3.0),
        "the length of L was 2, is 3 (model.py:3)",
    ),
    (
        'D = {"a": 1.0, "b": 2.0}\ndef f(x):\n    for k in D: x = x * D[k]\n    return x\n',
        lambda g: g["D"].update(a=g["D"].pop("a")),
        "the keys of D changed (model.py:3)",
    ),
    (
        'D = {"a": 1.0}\ndef f(x): return x * 2 if "b" in D else x + 1\n',
        put("D", "b", 1),
        "D['b'] was absent, is 1 (model.py:2)",
    ),
    ("D = {}\ndef f(x): return x * 2 if D else x + 1\n", put("D", "b", 1), "D was empty, is not (model.py:2)"),
    (
        "class A: pass\nclass B: pass\nc = A()\ndef f(x): return x * 2 if isinstance(c, A) else x + 1\n",
        lambda g: setattr(g["c"], "__class__", g["B"]),
        "c is now of type B (model.py:4)",
    ),
    (
        "import weakref\n" + CLASS + "c = C(); r = weakref.ref(c)\ndef f(x): return x * r().k\n",
        lambda g: g.pop("c"),
        "the referent of r was C, is None (model.py:6)",
    ),
    (
        "m = torch.nn.ReLU()\ndef f(x): return m(x)\n",
        lambda g: g["m"].register_forward_hook(print),
        "m._forward_hooks was empty, is not",
    ),
    (
        "import contextvars\nv = contextvars.ContextVar('v', default=2.0)\ndef f(x): return x * v.get()\n",
        lambda g: g["v"].set(3.0),
        "context variable v was 2.0, is 3.0 (model.py:3)",
    ),
    (
        'S = {"a"}\ndef f(x): return x * 2 if "a" in S else x + 1\n',
        lambda g: g["S"].clear(),
        "'a' in S is gone (model.py:2)",
    ),
    (
        "m = torch.nn.Sequential(torch.nn.Dropout(0.5)).eval()\ndef f(x): return m(x) + 1\n",
        lambda g: g["m"].train(),
        "m.0.training was False, is True",
    ),
    (
        "m = torch.nn.Linear(4, 4).requires_grad_(False)\ndef f(x): return m(x)\n",
        lambda g: setattr(g["m"], "weight", torch.nn.Parameter(torch.ones(4, 4))),
        "m.weight is another Parameter",
    ),
    (
        "m = torch.nn.Linear(4, 4).requires_grad_(False)\ndef f(x): return m(x)\n",
        lambda g: setattr(g["m"].weight, "data", torch.ones(4, 4).t()),
        "tensor m.weight was f32[4,4] in a Parameter, is f32[4,4](1,4) in a Parameter",
    ),
    (
        "m = torch.nn.Linear(4, 4).requires_grad_(False)\ndef f(x): return m(x)\n",
        lambda g: g["m"].weight.requires_grad_(True),
        "tensor m.weight was f32[4,4] in a Parameter, is f32[4,4] requiring grad in a Parameter",
    ),
]


@pytest.mark.parametrize(("text", "change", "said"), STATE)
def test_state(text, change, said):
    place = r" \((?!model\.py)\w+\.py:\d+\)$"  # of torch's own files
    assert re.sub(place, "", explained(text, change)) == f"a new variant: guard failed: {said}"


PLAIN = "def f(x): return x + 1\n"
WITH = "def f(x, n): return x.roll(n)\n"
ARGUMENTS = [
    (PLAIN, (X,), (X.double(),), "argument 0 was f32[4], is f64[4]"),
    (PLAIN, (X,), (torch.ones(4, requires_grad=True),), "argument 0 was f32[4], is f32[4] requiring grad"),
    (WITH, (X, 1), (X, 2), "argument 1 was 1, is 2"),
    ("def f(x, n): return x + n\n", (X, 1), (X, True), "argument 1 was 1, is True"),
    ("def f(x, m): return x if m == 'a' else x * 2\n", (X, "b"), (X, "c"), "argument 1 was 'b', is 'c'"),
    ("def f(*x): return x[0] + 1\n", (X,), (X, X), "the number of arguments differs"),
    (
        "def f(x): return x + 1 if x.sum() > 0 else x * 2\n",
        (X,),
        (-X,),
        "value of bool at model.py:1 was True, is False",
    ),
    ("def f(xs): return xs[0] + 1\n", ([X],), ([X, X],), "argument 0 was a list of 1, is a list of 2"),
    ("def f(x, y): return x + y\n", (X, X), (X, X.clone()), "two arguments were the same tensor, and are not now"),
]


@pytest.mark.parametrize(("text", "args", "later", "said"), ARGUMENTS)
def test_arguments(text, args, later, said):
    assert explained(text, lambda g: None, *args, later=later) == f"a new variant: {said}"


SIZES = [
    (torch.ones(5), "a new variant: argument 0 was f32[4], is f32[5]"),
    (torch.ones(8)[::2], "a new variant: argument 0 was f32[4], is f32[4](2)"),
    (torch.ones(2, 2), "a new variant: argument 0 was f32[4], is f32[2,2]"),
]


@pytest.mark.parametrize(("later", "said"), SIZES)
def test_a_new_size(later, said):
    assert explained(PLAIN, lambda g: None, X, later=(later,)) == said


def test_modes():
    with torch.enable_grad():
        pass
    fast = fastjit(lambda x: x + 1)
    fast(X)
    with torch.enable_grad():
        assert fast.explain(X) == "a new variant: grad mode was off, is on"
    with torch.inference_mode():
        assert fast.explain(X) == "a new variant: inference mode was off, is on"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast.explain(X) == "a new variant: autocast on cpu was off, is bfloat16"
    torch.set_default_dtype(torch.float64)
    try:
        assert fast.explain(X) == "a new variant: the default dtype was float32, is float64"
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert fast.explain(X) == "a new variant: deterministic mode was off, is on"
    finally:
        torch.use_deterministic_algorithms(False)
    assert fast.explain(X) == "a hit: f32[4]"


def test_the_variant_that_comes_nearest_is_named():
    scope = source("S = 2.0\ndef f(x): return x * S\n")
    fast = fastjit(scope["f"])
    fast(X)
    other = torch.ones(7)
    fast(other)
    fast(other)
    fast(other)  # the last one used is of another size
    scope["S"] = 3.0
    assert fast.explain(X) == "a new variant: guard failed: global S was 2.0, is 3.0 (model.py:2)"


@pytest.mark.filterwarnings("ignore::fastjit.FastJITWarning")
def test_calls_that_stay_eager():
    fast = fastjit(lambda x: x + 1)
    assert fast.explain(X) == "a new variant: the function has not been recorded yet"
    assert fast.explain(X.to_sparse()).startswith("eager: argument 'x' is not supported: ")
    with torch.enable_grad():
        wants = torch.ones(4, requires_grad=True)
        part = fastjit(lambda x: x[1:])
        part(wants)
        assert part.explain(wants) == (
            "eager: its gradients are not compiled: a result that requires grad shares memory with 'x'"
        )
    fast = fastjit(lambda x, n: x.roll(n), max_variants=1)
    for _ in range(2):
        fast(X, 1)
    assert fast.explain(X, 2) == "eager: variant limit (1) reached: n took 2 values"
    scope = source("import os\ndef f(x):\n    os.getcwd()\n    return x + 1\n")
    fast = fastjit(scope["f"])
    fast(X)
    assert fast.explain(X).startswith("eager: ") and "getcwd" in fast.explain(X) and "model.py:3" in fast.explain(X)
