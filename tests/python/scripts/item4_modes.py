"""Item 4: modes, other tracers around the call, and tensors that are not plain."""

from __future__ import annotations

import sys
import threading
import warnings

import torch

from script_tools import World, script


def _affine(x):
    return (x * 2 + 1).relu()


@script(4)
def grad_mode_changes(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    with torch.enable_grad():
        w.change("grad mode")
        w.learn(f, x)
    w.change("no_grad")
    w.call("hit", f, x)


@script(4)
def argument_that_requires_grad(w: World) -> None:
    f, x, p = w.jit(_affine), torch.arange(4.0), torch.arange(4.0, requires_grad=True)
    w.call("new", f, x)
    with torch.enable_grad():
        w.change("an argument that requires grad, grad mode on")
        out = w.call("new", f, p)
        out.sum().backward()
        w.change("its grad")
        w.call("hit", f, p)
    w.change("no_grad")
    w.call("hit", f, x)


@script(4)
def no_grad_inside(w: World) -> None:
    def f(x):
        with torch.no_grad():
            y = x * 2
        return y + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    w.change("nothing")
    w.call("hit", f, x)


@script(4)
def inference_mode_around(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    with torch.inference_mode():
        w.change("inference mode")
        inferred = w.learn(f, x)
    w.change("an inference tensor outside")
    w.learn(f, inferred)
    w.call("hit", f, x)


@script(4, rtol=1e-2)
def autocast_around(w: World) -> None:
    def f(x, y):
        return (x @ y) + 1

    f, x, y = w.jit(f), torch.randn(4, 4), torch.randn(4, 4)
    w.call("new", f, x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w.change("autocast")
        w.learn(f, x, y)
    w.change("no autocast")
    w.call("hit", f, x, y)


@script(4)
def default_dtype_changes(w: World) -> None:
    def f(x):
        return torch.ones(3) * x

    f, x = w.jit(f), torch.tensor(2)
    w.learn(f, x)
    try:
        torch.set_default_dtype(torch.float64)
        w.change("default dtype")
        w.learn(f, x)
    finally:
        torch.set_default_dtype(torch.float32)
    w.change("default dtype back")
    w.call("hit", f, x)


@script(4)
def deterministic_mode(w: World) -> None:
    def f(x, i, v):
        return x.index_add(0, i, v) * 2

    f = w.jit(f)
    args = torch.zeros(4), torch.tensor([1, 1, 2]), torch.ones(3)
    w.learn(f, *args)
    try:
        torch.use_deterministic_algorithms(True)
        w.change("deterministic algorithms")
        w.learn(f, *args)
    finally:
        torch.use_deterministic_algorithms(False)
    w.change("back")
    w.call("hit", f, *args)


@script(4)
def subclass_argument(w: World) -> None:
    class Tagged(torch.Tensor):
        pass

    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    w.change("a subclass")
    w.call("Tagged", f, x.as_subclass(Tagged))
    w.call("hit", f, x)


@script(4)
def torch_function_mode_around(w: World) -> None:
    from torch.overrides import TorchFunctionMode

    seen = []

    class Log(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    f, x = w.jit(_affine), torch.arange(4.0)
    w.watch(seen=seen)
    w.call("new", f, x)
    with Log():
        out = f(x)
    w.change("a function mode was there")
    w.watch(out=out)
    w.call("hit", f, x)


@script(4)
def dispatch_mode_around(w: World) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    f, x = w.jit(_affine), torch.arange(4.0)
    w.watch(seen=seen)
    w.call("new", f, x)
    with Log():
        out = f(x)
    w.change("a dispatch mode was there")
    w.watch(out=out)
    w.call("hit", f, x)


@script(4)
def conjugate_and_negative_bits(w: World) -> None:
    def f(x):
        return x * 2

    f, x = w.jit(f), torch.tensor([1 + 2j, 3 - 1j])
    w.learn(f, x)
    w.change("conjugate bit")
    w.call("conjugate or negative bit", f, x.conj())


@script(4)
def negative_bit(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    w.change("negative bit")
    w.call("conjugate or negative bit", f, torch.complex(x, x).conj().imag)
    w.call("hit", f, x)


@script(4)
def sparse_argument(w: World) -> None:
    def f(x):
        return x * 2

    f, x = w.jit(f), torch.eye(3)
    w.call("new", f, x)
    w.change("sparse")
    w.call("it is not strided", f, x.to_sparse())
    w.call("hit", f, x)


@script(4)
def forward_mode_duals(w: World) -> None:
    import torch.autograd.forward_ad as fwd

    f, x = w.jit(_affine), torch.arange(4.0)
    tangents = []
    w.watch(tangents=tangents)
    w.call("new", f, x)
    with fwd.dual_level():
        dual = fwd.make_dual(x, torch.ones(4))
        out = f(dual)
        tangents.append(fwd.unpack_dual(out).tangent)
    w.change("a dual went through")
    w.call("hit", f, x)


@script(4)
def vmap_around(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(6.0).view(2, 3)
    w.call("new", f, x)
    out = torch.func.vmap(f)(x)
    w.change("vmap")
    w.watch(out=out)
    w.call("hit", f, x)


@script(4)
def func_grad_and_jacrev_around(w: World) -> None:
    f, x = w.jit(lambda x: (x * x).sum()), torch.arange(3.0)
    w.call("new", f, x)
    w.watch(grad=torch.func.grad(f)(x), jac=torch.func.jacrev(f)(x), hess=torch.func.hessian(f)(x))
    w.change("torch.func")
    w.call("hit", f, x)


@script(4)
def compile_around(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    compiled = torch.compile(lambda x: f(x) + 1, backend="eager")
    w.watch(out=compiled(x))
    w.change("torch.compile")
    w.call("hit", f, x)


@script(4)
def jit_trace_around(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda x: f(x) + 1, (x,))
    w.watch(out=traced(x - 2))
    w.change("torch.jit.trace")
    w.call("hit", f, x)


@script(4)
def make_fx_around(w: World) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    graph = make_fx(lambda x: f(x) + 1)(x)
    w.watch(out=graph(x - 2), nodes=[str(n.target) for n in graph.graph.nodes])
    w.change("make_fx")
    w.call("hit", f, x)


@script(4)
def symbolic_trace_around(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    graph = torch.fx.symbolic_trace(lambda x: f(x) + 1)
    w.watch(out=graph(x - 2), nodes=[str(n.op) for n in graph.graph.nodes])
    w.change("symbolic_trace")
    w.call("hit", f, x)


@script(4)
def export_around(w: World) -> None:
    class M(torch.nn.Module):
        def __init__(self, f):
            super().__init__()
            self.f = f

        def forward(self, x):
            return self.f(x) + 1

    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    program = torch.export.export(M(f), (x,))
    w.watch(out=program.module()(x - 2))
    w.change("torch.export")
    w.call("hit", f, x)


@script(4)
def tracer_sees_every_line(w: World) -> None:
    lines: list[str] = []

    def trace(frame, event, arg):
        if frame.f_code is _affine.__code__:
            lines.append(event)
            return trace
        return None

    f, x = w.jit(_affine), torch.arange(4.0)
    w.watch(lines=lines)

    def traced(x):
        kept = sys.gettrace()
        sys.settrace(trace)
        try:
            return f(x)
        finally:
            assert sys.gettrace() is trace
            sys.settrace(kept)

    w.call("tracer active", traced, x)
    w.change("no tracer")
    w.learn(f, x)


@script(4)
def profiler_stays(w: World) -> None:
    events: list[str] = []

    def profile(frame, event, arg):
        if frame.f_code is _affine.__code__:
            events.append(event)

    f, x = w.jit(_affine), torch.arange(4.0)
    w.watch(events=events)

    def profiled(x):
        sys.setprofile(profile)
        try:
            return f(x)
        finally:
            assert sys.getprofile() is profile
            sys.setprofile(None)

    w.call("tracer active", profiled, x)
    w.change("no profiler")
    w.learn(f, x)


@script(4)
def tracer_of_another_thread(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    out = []

    def run():
        sys.settrace(lambda *a: None)
        out.append(f(x))

    w.watch(out=out)
    w.call("new", f, x)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    w.change("a traced thread")
    w.call("hit", f, x)


@script(4)
def random_stream(w: World) -> None:
    def f(x):
        return x + torch.rand(4), torch.randn(4) * 2

    f, x = w.jit(f), torch.arange(4.0)
    torch.manual_seed(7)
    w.call("new", f, x)
    for _ in range(2):
        w.change("the generator")
        w.call("hit", f, x)
    torch.manual_seed(7)
    w.change("seed")
    w.call("hit", f, x)
    w.watch(next=torch.rand(2))
    w.call("hit", f, x)


@script(4)
def custom_operator(w: World) -> None:
    name = f"fjscript{id(w)}::triple"

    @torch.library.custom_op(name, mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    def f(x):
        return triple(x + 1) * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("nothing")
    w.call("hit", f, x + 1)


@script(4)
def default_device_mode(w: World) -> None:
    def f(x):
        return torch.ones(3) * x

    f, x = w.jit(f), torch.tensor(2.0)
    w.call("new", f, x)
    with torch.device("meta"):
        out = torch.ones(3)
        w.watch(meta=[str(out.device)])
    w.change("a default device was set")
    w.call("hit", f, x)


@script(4)
def meta_argument(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.call("new", f, x)
    out = f(torch.empty(4, device="meta"))
    w.watch(device=str(out.device), shape=tuple(out.shape))
    w.change("a meta tensor")
    w.call("hit", f, x)


@script(4)
def nested_and_quantized(w: World) -> None:
    f, x = w.jit(torch.neg if False else (lambda x: x.clone())), torch.arange(4.0)
    w.call("new", f, x)
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    w.watch(q=f(q).dequantize())
    w.change("a quantized tensor")
    n = f(torch.nested.nested_tensor([x, x[:2]]))
    w.watch(n=list(n.unbind()))
    w.change("a nested tensor")
    w.call("hit", f, x)
