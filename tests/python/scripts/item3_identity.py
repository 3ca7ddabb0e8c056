"""Item 3: one tensor met twice, as an argument and where the function finds it, and questions of identity."""

from __future__ import annotations

import torch

from script_tools import World, script


@script(3)
def argument_is_the_global(w: World) -> None:
    g = w.source("y = torch.ones(4)\ndef f(a): return a * 2 + y\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, g["y"])
    w.change("another tensor of the same form")
    w.learn(f, x)
    w.call("hit", f, g["y"])


@script(3)
def argument_is_the_parameter(w: World) -> None:
    layer = torch.nn.Linear(3, 3).requires_grad_(False)
    layer.weight.copy_(torch.arange(9.0).view(3, 3) / 4)  # sums are exact in any order

    def f(a):
        return torch.nn.functional.linear(a, layer.weight) - a

    f = w.jit(f)
    w.learn(f, layer.weight)
    other = torch.nn.Parameter(torch.arange(9.0).view(3, 3), requires_grad=False)
    w.change("another parameter")
    w.learn(f, other)
    w.call("hit", f, layer.weight)


@script(3)
def argument_in_a_global_list(w: World) -> None:
    g = w.source("L = [torch.ones(4), torch.zeros(4)]\ndef f(a): return a * 2 + L[0] - L[1]\n")
    f = w.jit(g["f"])
    w.learn(f, g["L"][0])
    w.change("the other item")
    w.learn(f, g["L"][1])
    w.change("no item")
    w.learn(f, torch.arange(4.0))
    w.call("hit", f, g["L"][0])


@script(3)
def argument_is_the_global_list(w: World) -> None:
    g = w.source("L = [torch.ones(4)]\ndef f(a): return a[0] * 2 + L[0]\n")
    f = w.jit(g["f"])
    w.call("is an argument as well", f, g["L"])
    w.change("a list of its own")
    w.call("is an argument as well", f, [torch.arange(4.0)])


@script(3)
def are_two_arguments_one(w: World) -> None:
    def f(a, b):
        return a * (2 if a is b else 3)

    f, x, y = w.jit(f), torch.arange(4.0), torch.ones(4)
    w.learn(f, x, y)
    w.change("one tensor twice")
    w.learn(f, x, x)
    w.call("hit", f, y, y)
    w.call("hit", f, y, x)


@script(3)
def is_the_argument_the_global(w: World) -> None:
    g = w.source("y = torch.ones(4)\ndef f(a): return a * (2 if a is y else 3)\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    w.change("the global itself")
    w.learn(f, g["y"])
    w.call("hit", f, x.clone())
    g["y"] = x
    w.change("another global")
    w.learn(f, x)
    w.call("hit", f, x)


@script(3)
def is_the_argument_among_these(w: World) -> None:
    g = w.source("L = [torch.ones(4), torch.zeros(4)]\ndef f(a): return a * (2 if any(a is t for t in L) else 3)\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, g["L"][1])
    w.change("not among them")
    w.learn(f, x)
    w.call("hit", f, g["L"][1])


@script(3)
def attention_asks_for_one_tensor(w: World) -> None:
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)
    attention.in_proj_weight.copy_(torch.randint(-4, 5, (24, 8)) / 4)  # sums are exact in any order
    attention.out_proj.weight.copy_(torch.eye(8))

    def f(q, k, v):
        return attention(q, k, v, need_weights=False)[0]

    f = w.jit(f)
    a, b, c = (torch.randint(-4, 5, (2, 3, 8)) / 4 for _ in range(3))
    w.learn(f, a, b, c)
    w.change("self-attention")
    w.learn(f, a, a, a)
    w.change("keys are values")
    w.learn(f, a, b, b)
    w.call("hit", f, c, c, c)
    w.call("hit", f, c, b, a)


@script(3)
def are_two_lists_one(w: World) -> None:
    def f(a, b):
        return a[0] * (2 if a is b else 3)

    f, x = w.jit(f), torch.arange(4.0)
    one = [x]
    w.call("identity of list", f, one, one)
    w.change("two lists")
    w.call("identity of list", f, [x], [x])


@script(3)
def do_lists_of_tensors_compare_equal(w: World) -> None:
    def f(a, b):
        return a[0] * (2 if a == b else 3)

    f, x = w.jit(f), torch.ones(1)
    w.call("comparison of list", f, [x], [x])
    w.change("equal, but another tensor")
    w.call("comparison of list", f, [x], [torch.zeros(1)])


@script(3)
def is_a_number_the_other(w: World) -> None:
    def f(x, a, b):
        return x * (2 if a is b else 3)

    f, x = w.jit(f), torch.arange(4.0)
    a, b = float("1.5"), float("1.5")
    w.call("identity of float", f, x, a, a)
    w.change("equal numbers")
    w.call("identity of float", f, x, a, b)


@script(3)
def offset_of_an_argument(w: World) -> None:
    def f(x):
        return x * x.storage_offset()

    f, base = w.jit(f), torch.arange(8.0)
    w.call("call of TensorBase.storage_offset", f, base[2:6])
    w.change("another place in the same memory")
    w.call("call of TensorBase.storage_offset", f, base[4:])


@script(3)
def is_the_argument_a_view(w: World) -> None:
    def f(x):
        return x * (2 if x._is_view() else 3)

    f, base = w.jit(f), torch.arange(8.0)
    w.call("call of TensorBase._is_view", f, base[2:6])
    w.change("a tensor of its own")
    w.call("call of TensorBase._is_view", f, torch.arange(4.0))


@script(3)
def is_the_argument_a_leaf(w: World) -> None:
    def f(x):
        return x * (2 if x.is_leaf else 3)

    f, leaf = w.jit(f), torch.ones(4, requires_grad=True)
    with torch.enable_grad():
        made = leaf * 1
    w.call("read of Tensor.is_leaf", f, leaf)
    w.change("not a leaf")
    w.call("read of Tensor.is_leaf", f, made)


@script(3)
def is_the_argument_a_parameter(w: World) -> None:
    def f(x):
        return x * (2 if isinstance(x, torch.nn.Parameter) else 3)

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("a parameter of the same form")
    w.learn(f, torch.nn.Parameter(x.clone(), requires_grad=False))
    w.call("hit", f, x)
