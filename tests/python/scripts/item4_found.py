"""Items 4 and 5: states of torch and of the interpreter that a hit must notice. Each was a hit once, or a crash."""

from __future__ import annotations

import gc

import torch

from script_tools import World, script


@script(4)
def dtype_for_autocast_while_it_is_off(w: World) -> None:
    f = w.jit(lambda x: x.to(torch.get_autocast_dtype("cpu")))
    x = torch.ones(3)
    w.learn(f, x)
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        w.change("dtype")
        w.call("new", f, x)
        w.call("hit", f, x)
    finally:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    w.call("hit", f, x)


@script(4)
def cache_of_autocast(w: World) -> None:
    f = w.jit(lambda x: x + 1 if torch.is_autocast_cache_enabled() else x - 1)
    x = torch.ones(3)
    w.learn(f, x)
    torch.set_autocast_cache_enabled(False)
    try:
        w.change("cache")
        w.call("new", f, x)
        w.call("hit", f, x)
    finally:
        torch.set_autocast_cache_enabled(True)


@script(4)
def view_comes_to_require_grad(w: World) -> None:
    f = w.jit(lambda x: x * 2)
    with torch.enable_grad():
        p, base = torch.full((3,), 2.0, requires_grad=True), torch.ones(3)
        view = base.view(-1)
        w.learn(f, view)
    with torch.enable_grad():
        base.mul_(p)
        w.change("its base was written with gradients")
        w.call("new", f, view)
    with torch.no_grad():
        w.learn(f, view)


@script(4)
def view_made_under_no_grad_is_written(w: World) -> None:
    f = w.jit(lambda x: x.add_(1))
    with torch.enable_grad():
        w.learn(f, torch.ones(3))
    with torch.no_grad():
        view = torch.ones(3, requires_grad=True).view(-1)
    w.change("a view of a tensor that requires grad")
    with torch.enable_grad():
        w.call("raised", f, view)


@script(5)
def collector_drops_the_program_that_runs(w: World) -> None:
    f = w.jit(lambda x: {"a": x + 1, "b": [x * 2, (x - 1,)]})

    class Clears:
        def __del__(self):
            if w.fast:
                f.clear()

    x, threshold = torch.ones(4), gc.get_threshold()
    w.change("the collector runs inside hits")
    for n in range(60):
        w.call("new", f, x)
        one = Clears()
        one.me = one
        del one
        gc.set_threshold(1 + n % 5)
        try:
            out = f(x)
        finally:
            gc.set_threshold(*threshold)
        assert out["b"][1][0].tolist() == [0.0] * 4
        if w.fast:
            f.clear()


class Holder:
    """An object that functions find a tensor in."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@script(4)
def dimensions_of_unusual_tensors_are_read(w: World) -> None:
    held, x = Holder(torch.ones(5)), torch.ones(3)
    f = w.jit(lambda x: x + held.tensor.dim())
    w.learn(f, x)
    lazy = torch.ones(3, dtype=torch.complex64).conj()
    unusual = {
        "held.tensor is not strided": torch.eye(3).to_sparse(),
        "held.tensor is a lazy conjugate or negation": lazy,
        "held.tensor is on meta": torch.ones(3, device="meta"),
    }
    for why, tensor in unusual.items():
        g = w.jit(lambda x: x + held.tensor.dim())
        held.tensor = tensor
        for _ in range(16):
            w.call(why, g, x)
        held.tensor = lazy.imag.resolve_neg()
        w.change("the tensor")
        w.learn(g, x)


@script(4)
def what_made_a_call_eager_passes(w: World) -> None:
    held = Holder(torch.ones(5))
    held.first = True

    def f(x: torch.Tensor) -> torch.Tensor:
        if held.first:
            gc.collect(0)
            held.first = False
        return torch.relu(x) * 2

    f, x = w.jit(f), torch.ones(3)
    for _ in range(16):
        w.call("call of collect", f, x)
    w.change("the flag")
    w.learn(f, x)


@script(4)
def what_made_a_branch_eager_passes(w: World) -> None:
    held = Holder(torch.ones(5))
    held.slow = True

    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0 and held.slow:
            gc.collect(0)
        return torch.relu(x) * 2

    f, x = w.jit(f), torch.ones(3)
    w.learn(f, -x)
    for _ in range(16):
        w.call("call of collect", f, x)
    held.slow = False
    w.change("the flag")
    w.learn(f, x)
    w.call("hit", f, -x)
