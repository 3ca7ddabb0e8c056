"""Item 2: branches and loops on values of tensors."""

from __future__ import annotations

import sys

import torch

from script_tools import World, script


@script(2)
def branch_on_a_sum(w: World) -> None:
    def f(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("the sign of the sum")
    w.learn(f, -x)
    w.change("back")
    w.call("hit", f, x)
    x.sub_(10)
    w.change("contents, in place")
    w.call("hit", f, x)


@script(2)
def loop_until_large(w: World) -> None:
    def f(x):
        n = 0
        while x.max() < 10:
            x = x * 2
            n += 1
        return x, n

    f, x = w.jit(f), torch.ones(3)
    w.learn(f, x)
    for factor in (3.0, 0.3, 100.0):
        w.change(f"contents times {factor}")
        w.learn(f, x * factor)
    w.change("back")
    for factor in (1.0, 3.0, 0.3, 100.0, 1.1, 11.0, 0.7):
        w.call("hit", f, x * factor)


@script(2)
def trip_count_from_a_tensor(w: World) -> None:
    def f(x, n):
        for i in range(int(n.item())):
            x = x * 2 + i
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.tensor(3))
    w.change("the count")
    w.learn(f, x, torch.tensor(1))
    w.learn(f, x, torch.tensor(0))
    w.change("back")
    w.call("hit", f, x + 1, torch.tensor(3))


@script(2)
def all_of_a_mask(w: World) -> None:
    def f(x, mask):
        everything = bool(mask.all())
        return x.sqrt() if everything else torch.where(mask, x.sqrt(), torch.zeros_like(x))

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, x >= 0)
    w.change("one element of the mask")
    w.learn(f, x, x > 0)
    w.change("back")
    w.call("hit", f, x, x >= 0)
    w.call("hit", f, x, x > 1)


@script(2)
def early_return(w: World) -> None:
    def f(x):
        if not torch.isfinite(x).all():
            return None
        y = x * 2
        if y.abs().max() < 1:
            return y
        return y / y.abs().max()

    f, x = w.jit(f), torch.tensor([0.1, 0.2])
    w.learn(f, x)
    w.change("larger")
    w.learn(f, x * 10)
    w.change("an infinity")
    w.learn(f, x / 0)
    w.change("back")
    w.call("hit", f, x * 20)
    w.call("hit", f, x)


@script(2)
def nested_branches(w: World) -> None:
    def f(x, y):
        if x.any():
            if y.any():
                return x + y
            return x * 3
        if y.max() > 5:
            return y - 1
        return y * 7

    f = w.jit(f)
    zero, one, six = torch.zeros(3), torch.ones(3), torch.full((3,), 6.0)
    for x, y in ((one, one + 1), (one, zero), (zero, zero + 1), (zero, six)):
        w.change("contents")
        w.learn(f, x, y)
    w.change("back")
    for x, y in ((zero, six), (one, zero), (six, one), (zero, six), (zero, zero + 2)):
        w.call("hit", f, x, y)


@script(2)
def branch_that_writes_after(w: World) -> None:
    def f(x):
        if x.sum() > 0:
            x.mul_(2)
        else:
            x.add_(1)
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("sign")
    w.learn(f, -x)
    w.change("back")
    w.call("hit", f, x)


@script(2)
def write_before_the_branch(w: World) -> None:
    def f(x):
        x.add_(1)
        if x.sum() > 0:
            return x * 2
        x.mul_(3)
        return x.clone()

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("sign")
    y = x.neg().sub(9)
    w.learn(f, y)
    w.change("back")
    w.call("hit", f, x)
    w.call("hit", f, y)


@script(2)
def write_by_torch_before_the_branch(w: World) -> None:
    def f(x, y):
        x[0] = y.exp().sum()
        x.view(2, 2)[1] += 1
        if x.sum() > 10:
            return x * y
        return x - y

    f, x, y = w.jit(f), torch.arange(4.0), torch.ones(4)
    w.learn(f, x, y)
    w.change("y")
    w.learn(f, -x, y * 0)
    w.change("back")
    w.call("hit", f, x, y)
    w.call("hit", f, -x, y * 0)


@script(2)
def error_in_a_branch(w: World) -> None:
    def f(x):
        if x.min() < 0:
            raise ValueError(f"negative: {x.min().item()}")
        return x.sqrt()

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("sign")
    w.call("raised", f, -x)
    w.call("raised", f, -x * 2)
    w.change("back")
    w.call("hit", f, x)


@script(2)
def operator_error_in_a_branch(w: World) -> None:
    def f(x, i):
        if x.sum() > 0:
            return torch.gather(x, 0, i)
        return x * 2

    f, x, i = w.jit(f), torch.arange(4.0), torch.tensor([0, 3])
    w.learn(f, x, i)
    w.change("an index")
    w.call("an operator raised", f, x, i + 1)
    w.change("sign")
    w.learn(f, -x, i + 1)
    w.change("back")
    w.call("hit", f, x, i)


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        if self.scale.item() > 1:
            x = x * self.scale
        self.calls.add_(1)
        return x if self.calls < 3 else -x


@script(2)
def branch_on_a_parameter(w: World) -> None:
    module, x = Gate(), torch.arange(4.0)
    f = w.jit(lambda x: module(x))
    w.watch(module=module)
    w.call("new", f, x)
    w.call("hit", f, x)
    w.change("the buffer, by the calls")
    w.call("new", f, x)
    w.call("hit", f, x)
    module.calls.fill_(0)
    w.change("the buffer")
    w.call("hit", f, x)
    module.scale.fill_(0.5)
    w.change("the parameter")
    w.call("new", f, x)
    w.call("new", f, x)
    w.call("hit", f, x)


@script(2)
def random_number_before_the_branch(w: World) -> None:
    def f(x):
        noise = torch.rand(4)
        if x.sum() > 0:
            return x + noise
        return x - noise

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    w.call("hit", f, x)
    w.change("sign")
    w.call("new", f, -x)
    w.call("hit", f, -x)
    w.change("back")
    w.call("hit", f, x)
    w.call("hit", f, -x)
    w.watch(next=torch.rand(3))
    w.call("hit", f, x)


@script(2)
def branch_on_a_random_number(w: World) -> None:
    def f(x):
        return x + 1 if torch.rand(()) < 0.5 else x - 1

    f, x = w.jit(f), torch.arange(4.0)
    torch.manual_seed(1)
    draws = (torch.rand(12) < 0.5).tolist()
    torch.manual_seed(1)
    seen: set[bool] = set()
    for draw in draws:
        w.call("hit" if draw in seen else "new", f, x)
        seen.add(draw)
        w.change("the generator's state")
    assert len(seen) == 2
    w.watch(next=torch.rand(3))
    w.call("hit", f, x)


@script(2)
def dropout_before_the_branch(w: World) -> None:
    def f(x):
        y = torch.nn.functional.dropout(x, 0.5)
        return y * 2 if x.max() > 3 else y

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("contents")
    w.learn(f, x + 1)
    w.change("back")
    w.call("hit", f, x)
    w.watch(next=torch.rand(3))
    w.call("hit", f, x + 1)


@script(2)
def results_that_alias(w: World) -> None:
    def f(x):
        head = x[:2]
        if head.sum() > 0:
            return head, x, x.view(2, 2)
        return x.t() if x.dim() == 2 else x[1:], head

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("sign")
    w.learn(f, -x)
    w.change("back")
    w.call("hit", f, x)
    w.call("hit", f, -x)


@script(2)
def value_of_a_view_of_an_argument(w: World) -> None:
    def f(x):
        first = x[0, 1].item()
        return x * 2 if first > 3 else x + 2

    f, x = w.jit(f), torch.arange(6.0).reshape(2, 3)
    w.learn(f, x)
    x[0, 1] = 5.0
    w.change("the element")
    w.learn(f, x)
    x[1] = 7.0
    w.change("others")
    w.call("hit", f, x)
    x[0, 1] = 1.0
    w.change("back")
    w.call("hit", f, x)


@script(2)
def branch_reads_a_global(w: World) -> None:
    g = w.source("LOW = 2.0\nHIGH = 3.0\ndef f(x):\n    if x.sum() > 0:\n        return x * HIGH\n    return x * LOW\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    w.change("sign")
    w.learn(f, -x)
    g["HIGH"] = 4.0
    w.change("a global of the other branch")
    w.call("hit", f, -x)
    w.learn(f, x)
    w.call("hit", f, -x)
    g["HIGH"] = 3.0
    w.change("back")
    w.call("hit", f, x)


@script(2)
def branch_with_a_side_effect(w: World) -> None:
    def f(x):
        if x.sum() < 0:
            sys.stdout.write("negative")
            return x.abs()
        return x * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("sign")
    for _ in range(2):
        w.call("write", f, -x)
    w.change("back")
    w.call("hit", f, x)


@script(2)
def sizes_and_values(w: World) -> None:
    def f(x):
        return x * 2 if x.sum() > 0 else x - x.shape[0]

    f = w.jit(f)
    for size in (4, 5):
        x = torch.arange(float(size))
        w.learn(f, x)
        w.change("sign")
        w.learn(f, -x)
        w.change("size")
    w.call("hit", f, torch.arange(4.0))
    w.call("hit", f, -torch.arange(4.0))
    w.call("hit", f, -torch.arange(5.0))


@script(2)
def convergence(w: World) -> None:
    def f(a, x):
        for _ in range(20):
            new = torch.tanh(a @ x)
            if (new - x).abs().max() < 1e-2:
                return new
            x = new
        return x

    f = w.jit(f)
    a, x = torch.tensor([[0.2, 0.1], [0.0, 0.3]]), torch.ones(2)
    w.learn(f, a, x)
    w.change("a slower matrix")
    w.learn(f, a * 2.5, x)
    w.change("back")
    w.call("hit", f, a, x)
    w.call("hit", f, a * 2.5, x)
