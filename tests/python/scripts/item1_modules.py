"""Item 1: what torch.nn.Module's own walks read: parameters, buffers, modules."""

from __future__ import annotations

import torch

from script_tools import World, script


def _net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    return torch.nn.Sequential(torch.nn.Linear(3, 3), inner).eval().requires_grad_(False)


@script(1)
def dtype_of_the_first_parameter(w: World) -> None:
    net, x = _net(), torch.ones(3)
    f = w.jit(lambda x: x.to(next(net.parameters()).dtype) + 1)
    w.learn(f, x)
    net.double()
    w.change("the parameters' dtype")
    w.learn(f, x)


@script(1)
def sum_of_all_parameters(w: World) -> None:
    net, x = _net(), torch.ones(3)
    f = w.jit(lambda x: x * sum(p.sum() for p in net.parameters()))
    w.learn(f, x)
    net[0].weight.add_(1)
    w.change("contents of a parameter")
    w.call("hit", f, x)
    net[1].append(torch.nn.Linear(3, 1, bias=False).requires_grad_(False))
    w.change("one more layer")
    w.learn(f, x)
    net[0].bias = None
    w.change("a parameter is gone")
    w.learn(f, x)
    net[1][0].weight = net[0].weight
    w.change("a parameter that is shared counts once")
    w.learn(f, x)


@script(1)
def parameters_by_name(w: World) -> None:
    net, x = _net(), torch.ones(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        for name, p in net.named_parameters():
            if "bias" in name:
                x = x + p.sum()
        return x

    f = w.jit(f)
    w.learn(f, x)
    net[0].bias.fill_(5)
    w.change("a bias")
    w.call("hit", f, x)
    net[0].register_parameter("bias_of_mine", torch.nn.Parameter(torch.ones(2), requires_grad=False))
    w.change("one more bias")
    w.learn(f, x)


@script(1)
def average_of_the_weights_is_kept(w: World) -> None:
    net, x = _net(), torch.ones(3)
    average = [p.clone() for p in net.parameters()]
    w.watch(average=average)

    def f(x: torch.Tensor) -> torch.Tensor:
        for kept, p in zip(average, net.parameters(), strict=True):
            kept.lerp_(p, 0.5)
        return x + average[0].sum()

    f = w.jit(f)
    w.learn(f, x)
    net[0].weight.add_(1)
    w.change("a weight")
    w.call("hit", f, x)


@script(1)
def sizes_of_all_buffers(w: World) -> None:
    net, x = _net(), torch.ones(3)
    f = w.jit(lambda x: x + sum(b.numel() for b in net.buffers()))
    w.learn(f, x)
    net.register_buffer("extra", torch.ones(7))
    w.change("one more buffer")
    w.learn(f, x)


@script(1)
def tensors_in_a_set(w: World) -> None:
    a, b = torch.ones(3), torch.full((3,), 2.0)
    pair = [a, a]

    def f(x: torch.Tensor) -> torch.Tensor:
        seen = {x * 2, pair[0]}
        for t in pair:
            if t not in seen:
                seen.add(t)
                x = x + t
        return x * len(seen)

    f, x = w.jit(f), torch.ones(3)
    w.learn(f, x)
    pair[1] = b
    w.change("one more tensor")
    w.learn(f, x)
    w.call("hit", f, a)
    g = w.jit(lambda x: x * len({x, a}))
    w.call("hash of Tensor", g, x)
    w.call("hash of Tensor", g, a)


@script(1)
def generator_is_left_early(w: World) -> None:
    limits, left = [2.0, 3.0], []
    w.watch(left=left)

    def values():
        try:
            yield from limits
        finally:
            left.append(1)

    def outer():
        yield from values()

    f, x = w.jit(lambda x: x * next(outer())), torch.ones(3)
    w.learn(f, x)
    limits[0] = 5.0
    w.change("the first limit")
    w.learn(f, x)
