"""Item 4: what else of torch may be at work around a call, or in its arguments."""

from __future__ import annotations

import cProfile
import io
import pdb
import sys
import warnings
from typing import ClassVar

import torch

from script_tools import World, script


def _affine(x):
    return (x * 2 + 1).relu()


@script(4)
def subclass_with_torch_function(w: World) -> None:
    class Logged(torch.Tensor):
        seen: ClassVar[list[str]] = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(getattr(func, "__name__", "?"))
            return super().__torch_function__(func, types, args, kwargs or {})

    f, x = w.jit(_affine), torch.arange(4.0)
    w.watch(seen=Logged.seen)
    w.learn(f, x)
    w.change("a subclass that logs")
    w.call("a tensor subclass", f, x.as_subclass(Logged))
    w.call("hit", f, x)


@script(4)
def subclass_reached_by_a_global(w: World) -> None:
    class Tagged(torch.Tensor):
        pass

    g = w.source("k = torch.arange(4.0)\ndef f(x): return x + k\n")
    f, x = w.jit(g["f"]), torch.ones(4)
    w.learn(f, x)
    plain = g["k"]
    g["k"] = plain.as_subclass(Tagged)
    w.change("a global of a subclass")
    w.call("Tagged", f, x)
    g["k"] = plain
    w.change("the plain tensor back")
    w.call("hit", f, x)


@script(4)
def subclass_with_torch_dispatch(w: World) -> None:
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            inner = [a.inner if isinstance(a, cls) else a for a in args]
            return cls(func(*inner, **(kwargs or {})))

    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    w.change("a wrapper subclass")
    w.watch(inner=f(Wrapped(x)).inner)
    w.call("hit", f, x)


@script(4)
def parameter_and_buffer_are_plain(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    w.change("a buffer, then a parameter, under no_grad")
    w.learn(f, torch.nn.Parameter(x.clone()))
    w.call("hit", f, torch.nn.Parameter(x - 3))
    w.call("hit", f, x)


@script(4)
def function_mode_pushed_inside(w: World) -> None:
    from torch.overrides import TorchFunctionMode

    class Negate(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return -out if func is torch.Tensor.mul else out

    def f(x):
        with Negate():
            return x.mul(2)

    def played(x):
        return f(x)

    f, x = w.jit(f), torch.arange(4.0)
    first, second = played(x), played(x)
    w.watch(first=first, second=second)
    w.change("the mode came and went inside")
    g = w.jit(_affine)
    w.learn(g, x)


@script(4)
def dispatch_mode_that_changes_results(w: World) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Double(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.ops.aten.relu.default else out

    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    with Double():
        w.change("a mode that doubles what relu gives")
        w.call("a dispatch mode", f, x)
    w.change("no mode")
    w.call("hit", f, x)


@script(4)
def vmap_inside(w: World) -> None:
    def f(x):
        return torch.func.vmap(lambda row: row * row.sum())(x)

    f, x = w.jit(f), torch.arange(6.0).view(2, 3)
    first, second = f(x), f(x)
    w.watch(first=first, second=second)
    w.change("vmap inside ran twice")
    g = w.jit(_affine)
    w.learn(g, x)


@script(4)
def grad_inside(w: World) -> None:
    def f(x):
        return torch.func.grad(lambda t: (t * t).sum())(x)

    f, x = w.jit(f), torch.arange(3.0)
    w.watch(first=f(x), second=f(x + 1))
    w.change("torch.func.grad inside ran twice")
    g = w.jit(_affine)
    w.learn(g, x)


@script(4)
def jvp_and_functional_call_around(w: World) -> None:
    m = torch.nn.Linear(3, 3)
    f, x = w.jit(lambda x: torch.tanh(x)), torch.arange(3.0)
    w.learn(f, x)
    out, tangent = torch.func.jvp(f, (x,), (torch.ones(3),))
    w.watch(out=out, tangent=tangent)
    w.change("jvp")
    w.call("hit", f, x)
    g = w.jit(lambda x: m(x))
    w.learn(g, x)
    zeros = {name: torch.zeros_like(p) for name, p in m.named_parameters()}
    w.watch(called=torch.func.functional_call(m, zeros, (x,)))
    w.change("functional_call with other parameters")
    w.call("hit", g, x)


@script(4)
def functional_call_through_the_function(w: World) -> None:
    m = torch.nn.Linear(3, 2)

    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.m = m

        def forward(self, x):
            return f(x)

    f, x = w.jit(lambda x: m(x) * 2), torch.arange(3.0)
    w.learn(f, x)
    with torch.no_grad():
        doubled = {f"m.{name}": p * 2 for name, p in m.named_parameters()}
        w.watch(doubled=torch.func.functional_call(Holder(), doubled, (x,)))
    w.change("parameters swapped for the time of a call, and back")
    w.call("hit", f, x)


@script(4)
def checkpointed_call(w: World) -> None:
    import torch.utils.checkpoint as checkpoint

    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    p = torch.arange(4.0, requires_grad=True)
    with torch.enable_grad():
        out = checkpoint.checkpoint(f, p, use_reentrant=False)
        out.sum().backward()
    w.watch(out=out.detach(), grad=p.grad)
    w.change("a checkpointed call and its backward")
    w.call("hit", f, x)


@script(4)
def custom_autograd_function(w: World) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    f, x = w.jit(lambda x: Twice.apply(x) + 1), torch.arange(4.0)
    p = torch.arange(4.0, requires_grad=True)
    with torch.enable_grad():
        out = f(p)
        out.sum().backward()
    w.watch(first=f(x), second=f(x), grad=p.grad)
    w.change("a function with a backward of its own")
    g = w.jit(_affine)
    w.learn(g, x)


@script(4)
def dropout_in_both_modes(w: World) -> None:
    m = torch.nn.Dropout(0.5)
    f, x = w.jit(lambda x: m(x) + 1), torch.ones(16)
    torch.manual_seed(3)
    w.learn(f, x)
    m.eval()
    w.change("eval")
    w.learn(f, x)
    m.train()
    w.change("train again: the stream goes on where it was")
    w.call("hit", f, x)
    m.p = 0.9
    w.change("p")
    w.learn(f, x)


@script(4)
def generator_argument(w: World) -> None:
    gen = torch.Generator().manual_seed(5)

    def f(x, gen):
        return x + torch.rand(4, generator=gen)

    f, x = w.jit(f), torch.arange(4.0)
    first, second = f(x, gen), f(x, gen)
    w.watch(first=first, second=second, state=gen.get_state())
    w.change("the generator")
    g = w.jit(_affine)
    w.learn(g, x)


@script(4)
def seed_set_inside(w: World) -> None:
    def f(x):
        torch.manual_seed(11)
        return x + torch.rand(4)

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(first=f(x), second=f(x), then=torch.rand(2))
    w.change("the seed, by the call itself")
    g = w.jit(_affine)
    w.learn(g, x)


@script(4)
def generator_forked_around(w: World) -> None:
    f, x = w.jit(lambda x: torch.nn.functional.dropout(x, 0.5)), torch.ones(16)
    torch.manual_seed(1)
    w.learn(f, x)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        w.change("a forked generator")
        w.call("hit", f, x)
    w.change("the generator as it was")
    w.call("hit", f, x)
    w.watch(then=torch.rand(2))
    w.call("hit", f, x)


@script(4)
def profiled_by_cprofile(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    profile = cProfile.Profile()
    out = profile.runcall(f, x)
    w.watch(out=out, seen=any("_affine" in str(row.code) for row in profile.getstats()))
    w.change("cProfile ran")
    w.learn(f, x)


@script(4)
def debugger_at_work(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    debugger = pdb.Pdb(stdin=io.StringIO("next\nnext\ncontinue\n"), stdout=io.StringIO(), nosigint=True)
    kept = sys.gettrace()
    w.watch(out=debugger.runcall(f, x))
    sys.settrace(kept)
    w.change("pdb ran")
    w.learn(f, x)


@script(4)
def tracer_is_back_after_an_error(w: World) -> None:
    g = w.source("bad = True\ndef f(x):\n    if bad: raise ValueError('bad')\n    return x * 2\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)

    def trace(frame, event, arg):
        return None

    def traced(x):
        kept = sys.gettrace()
        sys.settrace(trace)
        try:
            return f(x)
        finally:
            assert sys.gettrace() is trace
            sys.settrace(kept)

    w.call("raised", f, x)
    w.call("tracer active", traced, x)
    g["bad"] = False
    w.change("raises no more")
    w.learn(f, x)
    w.change("traced where a program is known")
    w.call("tracer active", traced, x)
    w.call("hit", f, x)


@script(4)
def tracer_set_by_the_call(w: World) -> None:
    g = w.source("import sys\ndef f(x):\n    sys.settrace(None)\n    return x * 2\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    kept = sys.gettrace()
    try:
        w.watch(first=f(x), second=f(x), now=sys.gettrace() is None)
    finally:
        sys.settrace(kept)
    w.change("the call switched tracing off")
    h = w.jit(_affine)
    w.learn(h, x)


@script(4)
def torch_profiler_around(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        w.change("torch.profiler")
        w.call("hit", f, x)
    w.call("hit", f, x)


@script(4)
def denormals_flushed(w: World) -> None:
    f, x = w.jit(lambda x: x * 0.5 + 0.0), torch.full((16,), 1.5e-38)
    w.learn(f, x)
    if torch.set_flush_denormal(True):
        try:
            w.change("denormal numbers are flushed to zero")
            w.call("hit", f, x)
        finally:
            torch.set_flush_denormal(False)
    w.change("they are not")
    w.call("hit", f, x)


@script(4)
def anomaly_mode_and_saved_tensor_hooks(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    p = torch.arange(4.0, requires_grad=True)
    w.learn(f, x)
    packed = []
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        w.change("saved-tensor hooks")
        w.call("hooks for saved tensors are active", f, p)
    w.watch(packed=packed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.set_detect_anomaly(True), torch.enable_grad():
            w.call("anomaly detection is on", f, p)
    w.change("none of them")
    w.call("hit", f, x)


@script(4, rtol=1e-2)
def autocast_inside(w: World) -> None:
    def f(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ y
        return z.float() + (x @ y)

    f, x, y = w.jit(f), torch.randn(4, 4), torch.randn(4, 4)
    w.watch(first=f(x, y), second=f(x, y))
    w.change("autocast inside")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w.watch(third=f(x, y))
    g = w.jit(_affine)
    w.learn(g, x)


@script(4, rtol=1e-2)
def autocast_types_and_switches(w: World) -> None:
    f, x, y = w.jit(lambda x, y: torch.mm(x, y)), torch.randn(4, 4), torch.randn(4, 4)
    w.learn(f, x, y)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            w.change(f"autocast to {dtype}")
            w.learn(f, x, y)
            with torch.autocast("cpu", enabled=False):
                w.change("switched off inside")
                w.call("hit" if dtype == torch.bfloat16 else "new", f, x, y)  # get_autocast_dtype() tells them apart
    w.call("hit", f, x, y)


@script(4)
def grad_enabled_inside(w: World) -> None:
    def f(x):
        with torch.enable_grad():
            y = x * 2
        return y, torch.is_grad_enabled()

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    with torch.enable_grad():
        w.change("grad mode")
        w.learn(f, x)
    w.call("hit", f, x)


@script(4)
def decorated_with_no_grad(w: World) -> None:
    f, x = w.jit(torch.no_grad()(_affine)), torch.arange(4.0)
    p = torch.arange(4.0, requires_grad=True)
    w.learn(f, x)
    w.change("an argument that requires grad, under the caller's no_grad")
    w.learn(f, p)
    w.call("hit", f, x)


@script(4)
def forward_mode_of_a_captured_tensor(w: World) -> None:
    import torch.autograd.forward_ad as fwd

    g = w.source("k = torch.arange(4.0)\ndef f(x): return x * k\n")
    f, x = w.jit(g["f"]), torch.ones(4)
    w.learn(f, x)
    plain = g["k"]
    with fwd.dual_level():
        g["k"] = fwd.make_dual(plain, torch.full((4,), 3.0))
        w.watch(tangent=fwd.unpack_dual(f(x)).tangent)
    g["k"] = plain
    w.change("a dual was a global")
    w.call("hit", f, x)


@script(4)
def other_sparse_layouts(w: World) -> None:
    f, x = w.jit(lambda x: x * 2), torch.eye(4)
    w.learn(f, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layout in (x.to_sparse_csr(), x.to_sparse_csc(), x.to_sparse_bsr((2, 2))):
            w.change(str(layout.layout))
            w.watch(out=f(layout).to_dense())
    w.call("hit", f, x)


@script(4)
def sparse_made_inside(w: World) -> None:
    f, x = w.jit(lambda x: (x.to_sparse() * 2).to_dense()), torch.eye(3)
    w.watch(first=f(x), second=f(x * 3))
    w.change("sparse tensors inside")
    g = w.jit(_affine)
    w.learn(g, x)


@script(4)
def complex_inside(w: World) -> None:
    def f(x):
        return torch.fft.rfft(x).abs() + torch.complex(x, x).conj().imag[:5]

    f, x = w.jit(f), torch.arange(8.0)
    w.watch(first=f(x), second=f(x + 1))
    w.change("complex tensors inside")
    g = w.jit(_affine)
    w.learn(g, x)


@script(4)
def scripted_function_inside(w: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(lambda_body)
    f, x = w.jit(lambda x: scripted(x) + 1), torch.arange(4.0)
    w.watch(first=f(x), second=f(x))
    w.change("a scripted function inside")
    g = w.jit(_affine)
    w.learn(g, x)


def lambda_body(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if bool(x.sum() > 3) else x - 1


@script(4)
def fake_tensors_around(w: World) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    with FakeTensorMode() as mode:
        out = f(mode.from_tensor(x))
    w.watch(shape=tuple(out.shape), dtype=out.dtype)
    w.change("fake tensors went through")
    w.call("hit", f, x)


@script(4)
def functionalized_around(w: World) -> None:
    def f(x):
        y = x.clone()
        y.add_(1)
        return y * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.watch(out=torch.func.functionalize(f)(x))
    w.change("functionalize")
    w.call("hit", f, x)


@script(4)
def operator_of_a_library_redefined(w: World) -> None:
    library = torch.library.Library(f"fjlib{id(w)}", "DEF")
    library.define("scale(Tensor x) -> Tensor")
    library.impl("scale", lambda x: x * 3, "CPU")
    op = getattr(torch.ops, f"fjlib{id(w)}").scale
    f, x = w.jit(lambda x: op(x + 1) * 2), torch.arange(4.0)
    w.watch(first=f(x), second=f(x))
    w.change("an operator written in Python")
    g = w.jit(_affine)
    w.learn(g, x)
