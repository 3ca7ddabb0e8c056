"""Targets whose call begins with no Python frame: C functions, partials, instances, TorchScript."""

from __future__ import annotations

import functools
import operator
import types

import numpy as np
import torch

from script_tools import World, script


@script(1)
def operator_with_a_number_that_changes(w: World) -> None:
    f, x = w.jit(torch.add), torch.arange(4.0)
    w.learn(f, x, 0.5)
    w.change("the number")
    w.call("hit", f, x, 1.5)


@script(1)
def operator_with_another_dim_by_name(w: World) -> None:
    f, x = w.jit(torch.amax), torch.arange(12.0).view(3, 4)
    w.learn(f, x, dim=0)
    w.change("the dim")
    w.call("new", f, x, dim=1)
    w.call("hit", f, x, dim=0)


@script(1)
def bounds_of_clamp(w: World) -> None:
    f, x = w.jit(torch.clamp), torch.arange(-4.0, 4.0)
    w.learn(f, x, -0.5, 0.5)
    w.change("both bounds")
    w.call("hit", f, x, -1.5, 2.5)


@script(1)
def factory_of_another_size(w: World) -> None:
    f = w.jit(torch.full)
    w.learn(f, (3,), 0.5)
    w.change("size and value")
    w.call("new", f, (4,), 1.5)
    w.call("hit", f, (4,), 1.5)


@script(1)
def method_of_tensors_in_place(w: World) -> None:
    f, x = w.jit(torch.Tensor.add_), torch.arange(4.0)
    w.learn(f, x, 0.5)
    w.change("the number")
    w.call("hit", f, x, 2.5)


@script(1)
def random_numbers_of_another_mean(w: World) -> None:
    f, x = w.jit(torch.Tensor.normal_), torch.zeros(4)
    w.learn(f, x, 0.0, 1.0)
    w.change("mean and deviation")
    w.call("new", f, x, 2.0, 3.0)


@script(1)
def function_of_the_operator_module(w: World) -> None:
    f, x = w.jit(operator.mul), torch.arange(4.0)
    w.learn(f, x, 0.5)
    w.change("the number")
    w.call("new", f, x, 1.5)


@script(1)
def index_that_numpy_holds(w: World) -> None:
    f, x, index = w.jit(operator.getitem), torch.arange(4.0), np.array([0, 1])
    w.call("read of numpy.ndarray by getitem", f, x, index)
    index[0] = 3
    w.change("the index")
    w.call("read of numpy.ndarray by getitem", f, x, index)


@script(1)
def item_set_by_the_operator_module(w: World) -> None:
    f, x = w.jit(operator.setitem), torch.arange(4.0)
    w.call("call of setitem", f, x, 0, 0.5)
    w.change("place and value")
    w.call("call of setitem", f, x, 1, 1.5)


@script(1)
def sum_with_a_start(w: World) -> None:
    f, x = w.jit(sum), torch.arange(4.0)
    w.learn(f, [x, x], 0.5)
    w.change("the start")
    w.call("new", f, [x, x], 1.5)
    w.call("hit", f, [x, x], 1.5)


@script(1)
def method_wrapper_of_an_operator(w: World) -> None:
    f, x = w.jit(torch.mul.__call__), torch.arange(4.0)
    w.call("call of builtin_function_or_method.__call__", f, x, 0.5)
    w.change("the number")
    w.call("call of builtin_function_or_method.__call__", f, x, 1.5)


@script(1)
def bound_method_of_a_tensor(w: World) -> None:
    bound, x = torch.full((4,), 2.0), torch.arange(4.0)
    f = w.jit(bound.mul)
    w.learn(f, x)
    bound.fill_(3.0)
    w.change("the tensor that it is bound to")
    w.call("hit", f, x)


@script(1)
def method_made_of_an_operator(w: World) -> None:
    bound = torch.full((4,), 2.0)
    f = w.jit(types.MethodType(torch.mul, bound))
    w.learn(f, 0.5)
    w.change("the number")
    w.call("hit", f, 1.5)


@script(1)
def containers_changed_by_their_own_methods(w: World) -> None:
    x = torch.arange(4.0)
    for method, *args in ((dict.pop, {"a": x}, "a"), (list.pop, [x, x]), (dict.setdefault, {"a": x}, "b", x)):
        f = w.jit(method)
        w.call("change of ", f, *args)
    taken: list[torch.Tensor] = []
    f = w.jit(taken.append)
    w.watch(taken=taken)
    w.change("a list by its bound append")
    w.call("", f, x)
    w.call("", f, x)


@script(1)
def keywords_of_a_partial(w: World) -> None:
    partial = functools.partial(lambda x, c=1.0: x * c, c=2.0)
    f, x = w.jit(partial), torch.arange(4.0)
    w.learn(f, x)
    partial.keywords["c"] = 9.0
    w.change("a keyword of the partial")
    w.call("new", f, x)
    w.call("hit", f, x)
    partial.__setstate__((partial.func, (), {"c": 3.0}, {}))
    w.change("all of the partial")
    w.call("new", f, x)


@script(1)
def partial_of_an_operator(w: World) -> None:
    partial = functools.partial(torch.add, alpha=2)
    f, x = w.jit(partial), torch.arange(4.0)
    w.learn(f, x, x)
    partial.keywords["alpha"] = 3
    w.change("a keyword of the partial")
    w.call("new", f, x, x)


@script(1)
def class_of_a_callable_instance(w: World) -> None:
    class Scale:
        def __init__(self) -> None:
            self.by = 2.0

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    scale = Scale()
    f, x = w.jit(scale), torch.arange(4.0)
    w.learn(f, x)
    scale.by = 3.0
    w.change("its attribute")
    w.call("new", f, x)
    Scale.__call__ = lambda self, x: x * 7  # type: ignore[method-assign]
    w.change("__call__ of its class")
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def instance_called_in_c(w: World) -> None:
    class Product:
        __call__ = torch.mul

    f, x = w.jit(Product()), torch.arange(4.0)
    w.call("call of", f, x, 0.5)
    w.change("the number")
    w.call("call of", f, x, 1.5)


@script(1)
def keyword_that_is_no_identifier(w: World) -> None:
    f, x = w.jit(functools.partial(lambda x, **named: x * named["a b"])), torch.arange(4.0)
    w.call("no plain identifier", f, x, **{"a b": 0.5})
    w.change("the number")
    w.call("no plain identifier", f, x, **{"a b": 1.5})


HERE = "a global"


@script(1)
def functions_that_look_at_the_frame_that_calls_them(w: World) -> None:
    f, g = w.jit(globals), w.jit(functools.partial(eval, "HERE", {"HERE": 1}))
    w.call("call of globals, which was given to fastjit", lambda: f()["HERE"], of=f)
    w.call("call of functools.partial, which was given to fastjit", g)
    w.change("nothing")
    w.call("call of globals, which was given to fastjit", lambda: f()["HERE"], of=f)


@script(1)
def torchscript_makes_a_constant(w: World) -> None:
    @torch.jit.script
    def scaled(x):  # type: ignore[no-untyped-def]
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0])

    f, x = w.jit(scaled), torch.arange(4.0)
    w.call("new", f, x)
    w.change("nothing")
    w.call("hit", f, x + 1)


@script(1)
def torchscript_loops_and_branches(w: World) -> None:
    @torch.jit.script
    def grown(x: torch.Tensor, n: int, more: torch.Tensor | None = None) -> torch.Tensor:
        for _ in range(n):
            x = x * 2
        if more is not None:
            x = x + more
        print(n)
        return x

    f, x, reason = w.jit(grown), torch.arange(4.0), "its TorchScript has prim::Print"
    w.call(reason, f, x, 1)
    w.change("number of turns")
    w.call(reason, f, x, 3)
    w.call(reason, f, x, 1, x)
    w.call(reason, f, x, 1)


@script(1)
def torchscript_modules(w: World) -> None:
    x = torch.arange(4.0).view(1, 4)
    for compiled in (torch.jit.script(torch.nn.ReLU()), torch.jit.trace(torch.nn.ReLU(), (x,))):
        f = w.jit(compiled)
        w.learn(f, x)
        g = w.jit(compiled.forward)
        w.learn(g, x)
    w.change("traced functions")
    h = w.jit(torch.jit.trace(lambda x: x * 2, (x,)))
    w.learn(h, x)


@script(4)
def kernel_registered_after_the_recording(w: World) -> None:
    f, x = w.jit(lambda x: torch.atan(x) + 1), torch.arange(4.0)
    w.learn(f, x)
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("atan", lambda x: x * 100, "CPU")
        w.change("a kernel written in Python")
        w.call("Python code has registered a kernel for aten::atan", f, x)
        g = w.jit(lambda x: torch.exp(x) + 1)
        w.learn(g, x)
    finally:
        library._destroy()
    w.change("it is gone")
    w.call("new", f, x, of=f)
