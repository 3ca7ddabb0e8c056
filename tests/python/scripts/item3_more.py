"""Item 3: more writes: strided copies, scatter, views of arguments and results that share."""

from __future__ import annotations

import torch

from script_tools import World, script


@script(3)
def written_then_returned_view(w: World) -> None:
    def f(x):
        v = x[::2]
        v.add_(1)
        return v, x.sum()

    f, x = w.jit(f), torch.arange(6.0)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def value_read_before_and_after_write(w: World) -> None:
    def f(x):
        a = x * 1
        v = x.view(-1)
        v.mul_(2)
        b = x + a
        x.zero_()
        return a, b, v + 1

    f, x = w.jit(f), torch.arange(6.0).view(2, 3)
    w.call("new", f, x)
    x.fill_(3)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def swap_of_two_arguments(w: World) -> None:
    def f(x, y):
        t = x.clone()
        x.copy_(y)
        y.copy_(t)

    f, x, y = w.jit(f), torch.arange(4.0), -torch.arange(4.0)
    w.call("new", f, x, y)
    w.change("x and y")
    w.call("hit", f, x, y)


@script(3)
def read_only_aliases_hit(w: World) -> None:
    f, base = w.jit(lambda x, y: x * y + 1), torch.arange(8.0)
    w.call("new", f, base[:4], base[4:])
    w.change("arguments overlap, both read")
    w.call("hit", f, base[:4], base[2:6])
    w.call("hit", f, base[:4], base[:4])


@script(3)
def misaligned_argument(w: World) -> None:
    f, base = w.jit(lambda x: x * 2), torch.arange(40.0)
    w.call("new", f, base[:32])
    for i in range(1, 5):
        w.change(f"offset {i}")
        w.call("hit", f, base[i : 32 + i])


@script(3)
def scatter_and_index_copy(w: World) -> None:
    def f(x, i, v):
        x.scatter_add_(0, i, v)
        x.index_copy_(0, i[:1] * 0, v[:1])
        return x * 2

    f, x = w.jit(f), torch.zeros(5)
    w.call("new", f, x, torch.tensor([1, 1, 2]), torch.arange(3.0))
    w.change("indices")
    w.call("hit", f, x, torch.tensor([4, 4, 4]), torch.arange(3.0))


@script(3)
def cumulative_in_place_loop(w: World) -> None:
    def f(x):
        for i in range(1, 4):
            x[i] += x[i - 1]
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def diagonal_and_unfold_views(w: World) -> None:
    def f(x):
        x.diagonal().fill_(9)
        return x.unfold(0, 2, 1).sum(-1), x.diagonal()

    f, x = w.jit(f), torch.arange(9.0).view(3, 3)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def as_strided_write(w: World) -> None:
    def f(x):
        x.as_strided((2, 2), (3, 1), 1).mul_(10)
        return x + 0

    f, x = w.jit(f), torch.arange(9.0).view(3, 3)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def real_and_bit_views(w: World) -> None:
    def f(x):
        x.view(torch.int32).bitwise_and_(0x7FFFFFFF)
        return x * 2

    f, x = w.jit(f), -torch.arange(4.0)
    w.call("new", f, x)
    x.neg_()
    w.change("x")
    w.call("hit", f, x)


@script(3)
def same_tensor_in_list_and_argument(w: World) -> None:
    def f(xs, y):
        return [x + y for x in xs], xs[0]

    f, x, y = w.jit(f), torch.arange(4.0), torch.ones(4)
    w.learn(f, [x, x], y)
    w.change("other aliases")
    w.learn(f, [x, y], y)


@script(3)
def detach_shares(w: World) -> None:
    def f(x):
        d = x.detach()
        d.add_(1)
        return d, d.view(2, 2)

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def contiguous_and_to_may_be_the_input(w: World) -> None:
    def f(x):
        return x.contiguous(), x.to(torch.float32), x.reshape(-1), x.float()

    f, x = w.jit(f), torch.arange(9.0).view(3, 3)
    w.learn(f, x)
    w.change("transposed")
    w.learn(f, x.t())


@script(3)
def shared_memory_and_storage_write(w: World) -> None:
    f, x = w.jit(lambda x: x + 1), torch.arange(4.0).share_memory_()
    w.call("new", f, x)
    x.untyped_storage().fill_(0)
    w.change("storage filled")
    w.call("hit", f, x)


@script(3)
def empty_and_zero_dim(w: World) -> None:
    f = w.jit(lambda x: x.mul_(2) + 1)
    w.call("new", f, torch.empty(0))
    w.change("nothing")
    w.call("hit", f, torch.empty(0))
    w.call("new", f, torch.tensor(3.0))
    w.call("hit", f, torch.tensor(4.0))


@script(3, rtol=1e-6)
def optimizer_like_step(w: World) -> None:
    p, m = torch.randn(8), torch.zeros(8)

    def f(p, g, m):
        m.mul_(0.9).add_(g, alpha=0.1)
        p.addcdiv_(m, m.abs().sqrt() + 1e-3, value=-0.1)

    f = w.jit(f)
    w.call("new", f, p, torch.ones(8), m)
    for _ in range(3):
        w.change("p and m")
        w.call("hit", f, p, torch.randn(8), m)
