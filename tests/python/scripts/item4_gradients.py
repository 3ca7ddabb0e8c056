"""Items 3 and 4 with grad mode on: what autograd would see of a call, and which of its tensors it would see."""

from __future__ import annotations

import torch

from script_tools import World, script


class Holder:
    """An object that functions find a tensor in."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def _parameter(size: int = 3) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.arange(1.0, size + 1))


@script(4)
def size_of_a_parameter_is_read(w: World) -> None:
    held, x = Holder(_parameter(4)), torch.ones(3)
    f = w.jit(lambda x: x + held.tensor.shape[0])
    with torch.enable_grad():
        w.learn(f, x)
        held.tensor.requires_grad_(False)
        w.change("requires_grad")
        w.learn(f, x)
        held.tensor = _parameter(5)
        w.change("the parameter")
        w.learn(f, x)


@script(4)
def parameter_is_detached(w: World) -> None:
    held, x = Holder(_parameter()), torch.ones(3)
    f = w.jit(lambda x: (x + held.tensor.detach(), torch.mv(held.tensor.detach().diag(), x)))
    with torch.enable_grad():
        w.learn(f, x)
        with torch.no_grad():
            held.tensor.mul_(2)
        w.change("contents of the parameter")
        w.call("hit", f, x)


@script(4)
def function_without_gradients_is_called_with_grad_mode_on(w: World) -> None:
    layer = torch.nn.Linear(3, 3)
    f, x = w.jit(torch.no_grad()(lambda x: torch.relu(layer(x)))), torch.ones(2, 3)
    with torch.enable_grad():
        w.learn(f, x)
        w.call("hit", f, 2 * x)
        with torch.no_grad():
            layer.weight.mul_(2)
        w.change("the weights")
        w.call("hit", f, x)
        w.call("new", f, torch.nn.Parameter(x))
        w.call("hit", f, torch.nn.Parameter(x))


@script(4)
def gradient_is_applied_by_hand(w: World) -> None:
    def step(p: torch.Tensor, grad: torch.Tensor, lr: float) -> None:
        with torch.no_grad():
            p.sub_(grad, alpha=lr)

    f, p = w.jit(step), _parameter()
    w.watch(p=p)
    with torch.enable_grad():
        for i in range(4):
            (p * p).sum().backward()
            w.call("new" if i == 0 else "hit", f, p, p.grad.clone(), 0.5)
            p.grad = None
            w.change("the parameter")


@script(4)
def part_of_a_call_needs_gradients(w: World) -> None:
    def f(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * p
        return y + p

    f, x, p = w.jit(f), torch.ones(3), _parameter()
    with torch.enable_grad():
        w.learn(f, x, x)
        w.change("an argument that requires grad")
        out = w.call("new", f, x, p)
        out.sum().backward()
        w.call("hit", f, x, p)
        w.learn(f, x, 2 * x)


@script(4)
def rest_of_a_call_needs_no_gradients(w: World) -> None:
    held, x = Holder(_parameter()), torch.ones(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * held.tensor
        return y * 2

    f = w.jit(f)
    with torch.enable_grad():
        w.learn(f, x)
        with torch.no_grad():
            held.tensor.add_(1)
        w.change("the parameter")
        w.call("hit", f, x)


@script(4)
def factories_give_leaves(w: World) -> None:
    x = torch.ones(3)
    for mode in (torch.enable_grad, torch.no_grad):
        for make in (
            lambda x: (torch.ones(3, requires_grad=True), x + 1),
            lambda x: (torch.zeros_like(x, requires_grad=True), x + 1),
            lambda x: (torch.tensor(2.0, requires_grad=True), x + 1),
        ):
            with mode():
                f = w.jit(make)
                w.call("the call makes a tensor that requires grad", f, x)
                w.call("the call makes a tensor that requires grad", f, x)


@script(3)
def local_tensor_comes_to_require_grad(w: World) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.mul_(torch.ones(3, requires_grad=True))
        return y

    f, x = w.jit(f), torch.ones(3)
    with torch.enable_grad():
        w.call("requires grad", f, x)
        w.call("requires grad", f, x)


@script(3)
def argument_comes_to_require_grad(w: World) -> None:
    def f(p: torch.Tensor, b: torch.Tensor) -> None:
        with torch.enable_grad():
            b.mul_(p)

    f, p = w.jit(f), _parameter()
    w.call("requires_grad of b changed during the call", f, p, torch.ones(3))
    w.call("requires_grad of b changed during the call", f, p, torch.ones(3))


@script(3)
def gradients_inside_a_call_without(w: World) -> None:
    @torch.enable_grad()
    def f(p: torch.Tensor) -> torch.Tensor:
        b = torch.zeros(3)
        b += p
        return b

    f, p = w.jit(f), _parameter()
    w.call("new", f, p)
    w.call("hit", f, p)


@script(3)
def view_made_without_gradients_is_written(w: World) -> None:
    def whole(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x.view(-1)

    def part(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x + 1
            first = y[0]
        return first

    def mixed(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x + 1
        return y[0]

    def multiply(v: torch.Tensor) -> str:
        try:
            return str(v.mul_(_parameter(1)[0]))
        except RuntimeError as error:
            return str(error)[:60]

    for one in (whole, part, mixed):
        f = w.jit(one)
        with torch.enable_grad():
            w.call("new", f, torch.ones(2, 2))
            for _ in range(2):
                print(multiply(w.call("hit", f, torch.ones(2, 2))))


@script(4)
def sparse_parameter_is_found(w: World) -> None:
    x = torch.ones(3)
    for tensor in (torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse()):
        held = Holder(torch.nn.Parameter(tensor))
        f = w.jit(lambda x, held=held: x + (1 if held.tensor is None else 2))
        with torch.enable_grad():
            for _ in range(3):
                w.call("is not strided", f, x)


@script(3)
def lists_are_written_in_place(w: World) -> None:
    def f(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> torch.Tensor:
        with torch.enable_grad():
            torch._foreach_mul_(xs, ys)
        return ys[0] + 1

    f = w.jit(f)
    w.learn(f, [torch.ones(3)], [torch.full((3,), 3.0)])
    w.change("a tensor that requires grad, in a list")
    p = _parameter()
    for grad in (True, False):
        with torch.enable_grad():
            xs = [p * 1]
        with torch.set_grad_enabled(grad):
            w.call("'xs[0]' requires grad and is written", f, xs, [torch.full((3,), 3.0)])
        with torch.enable_grad():
            print(torch.autograd.grad(xs[0].sum(), p))


@script(4)
def weights_are_cast_by_autocast_before_the_recording(w: World) -> None:
    layer = torch.nn.Linear(4, 4)
    f, x = w.jit(lambda x: torch.relu(layer(x))), torch.ones(2, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)
        w.learn(f, x)
        w.call("hit", f, x)
    with torch.no_grad():
        layer.weight.mul_(2)
    w.change("the weights, after the region")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        w.call("hit", f, x)
