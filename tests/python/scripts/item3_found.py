"""Item 3: memory that calls must not share, memory beyond a tensor's own elements, and programs that start again."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from script_tools import World, script


@script(3)
def view_of_a_constant_is_of_this_call(w: World) -> None:
    def f(x):
        t = torch.tensor(2.0)
        return x + 1, t.view(1), t

    f, x = w.jit(f), torch.arange(3.0)
    for ran in ("new", "hit", "hit"):
        _, view, t = w.call(ran, f, x)
        w.watch(view=view, t=t)
        view.add_(5)
        w.change("the result was written to")
    w.call("hit", f, x)


@script(3)
def views_of_constants_made_by_calls(w: World) -> None:
    def f(x):
        a, b = torch.tensor(2.0), torch.tensor(2.0)
        return a.expand_as(x), b.as_strided((1,), (1,), 0), torch.tensor(3).view(torch.float64), b[None]

    f, x = w.jit(f), torch.arange(3.0)
    for ran in ("new", "hit", "hit"):
        results = w.call(ran, f, x)
        for result in results[1:]:
            result.add_(5)
        w.change("the results were written to")
    w.call("hit", f, x)


@script(3)
def write_before_a_view_of_a_constant(w: World) -> None:
    def f(x, y):
        y.add_(1)
        return torch.rand(2), torch.tensor(3.0).expand_as(x)

    f, x, y = w.jit(f), torch.arange(3.0), torch.zeros(1)
    w.learn(f, x, y)
    w.call("hit", f, x, y)


@script(3)
def write_before_a_product_with_a_constant(w: World) -> None:
    def f(a, b, y):
        y.add_(1)
        return torch.addmm(torch.tensor(2.0), a, b)

    f, y = w.jit(f), torch.zeros(1)
    w.learn(f, torch.ones(2, 4), torch.ones(4, 3), y)
    w.call("hit", f, torch.ones(2, 4), torch.ones(4, 3), y)


@script(3)
def as_strided_writes_the_neighbour(w: World) -> None:
    def f(x, y):
        x.as_strided((8,), (1,), 0).add_(100)
        return y * 2

    f, base = w.jit(f), torch.arange(8.0)
    w.learn(f, torch.arange(8.0)[:4], torch.arange(4.0) + 10)
    w.change("neighbours in one tensor")
    w.call("shares memory with another argument", f, base[:4], base[4:])
    w.change("apart again")
    w.call("hit", f, torch.arange(8.0)[:4], base[4:])


@script(3)
def as_strided_reads_the_neighbour(w: World) -> None:
    def f(x, y):
        z = x.as_strided((8,), (1,), 0).sum()
        y.mul_(3)
        return z

    f, base = w.jit(f), torch.arange(8.0)
    w.learn(f, torch.arange(8.0)[:4], torch.arange(4.0) + 10)
    w.change("neighbours in one tensor")
    w.call("shares memory with another argument", f, base[:4], base[4:])


@script(3)
def as_strided_copy_reads_the_neighbour(w: World) -> None:
    def f(x, y):
        y.mul_(3)
        return torch.as_strided_copy(x, (8,), (1,), 0)

    f, base = w.jit(f), torch.arange(8.0)
    w.learn(f, torch.arange(8.0)[:4], torch.arange(4.0) + 10)
    w.change("neighbours in one tensor")
    w.call("shares memory with another argument", f, base[:4], base[4:])


@script(3)
def as_strided_of_a_written_slice(w: World) -> None:
    def f(x):
        x.mul_(3)
        return x.as_strided((2,), (1,), 1) + 1

    f = w.jit(f)
    w.learn(f, torch.arange(8.0)[2:6])
    w.change("elsewhere in its storage")
    w.call("hit", f, torch.arange(8.0)[1:5])


@script(3)
def view_raises_after_a_write(w: World) -> None:
    def as_complex(x, y):
        y.add_(1)
        return torch.view_as_complex(x.view(2, 2))

    def strided(x, y):
        y.add_(1)
        return x.as_strided((4,), (1,), 4) + 1

    def wider(x, y):
        y.add_(1)
        return x.view(torch.float64) + 1

    y = torch.zeros(3)
    for f, bad in (
        (as_complex, torch.arange(10.0)[1:5]),
        (strided, torch.arange(5.0)[:4]),
        (wider, torch.arange(10.0)[1:5]),
    ):
        f = w.jit(f)
        w.learn(f, torch.arange(10.0)[:4], y)
        w.change("a place in a storage where there is no such view")
        w.call("an operator raised", f, bad, y)
        w.call("hit", f, torch.arange(10.0)[2:6], y)


@script(3)
def ravel_is_a_view_of_a_copy(w: World) -> None:
    def f(x):
        return x.ravel(), x.ravel()[1:] + 1

    for x in (torch.arange(6.0).view(2, 3).t(), torch.arange(6.0).view(2, 3)):
        fast = w.jit(f)
        w.learn(fast, x)
        w.change("contiguous")


@script(3)
def views_of_torch_and_fused_ones_share_their_base(w: World) -> None:
    def strided(x):
        y = x * 2
        return y.as_strided((2,), (1,), 1), y[None]

    def beside_another(x):
        y, z = x * 2, x * 3
        return y.as_strided((2,), (1,), 1), y[None], z[None]

    def bits(x):
        y = x * 2
        return y.view(torch.int32), y[1:], y

    def bits_of_a_slice(x):
        y = x * 2
        y.exp()
        return y[1:].view(torch.int32), y[1:]

    for f in (strided, beside_another, bits, bits_of_a_slice):
        f = w.jit(f)
        w.learn(f, torch.arange(4.0))
        w.call("hit", f, torch.ones(4))


@script(3)
def one_result_at_two_places(w: World) -> None:
    def twice(x):
        t = x * 1
        return t, t

    def among_equals(x):
        p, minus = x + 1, -(x + 1)
        q = -minus
        return p, q, q, [q]

    for f in (twice, among_equals):
        f = w.jit(f)
        results = w.learn(f, torch.arange(3.0))
        results[1].add_(1)
        w.watch(results=results)
        w.call("hit", f, torch.ones(3))


@script(3)
def one_result_stored_and_returned(w: World) -> None:
    g = w.source("h = None\ndef f(x):\n    global h\n    h = -(-x)\n    return h\n")
    f = w.jit(g["f"])
    w.watch(scope=g)
    w.learn(f, torch.arange(3.0))
    w.change("another value")
    w.call("hit", f, torch.ones(3))


@script(3)
def view_by_torch_of_a_written_argument(w: World) -> None:
    def bits(x):
        x.mul_(2)
        return x.view(torch.int32), x.view(torch.int32)[1:] + 1

    def bits_of_a_slice(x):
        x.mul_(2)
        return x[1:].view(torch.int32)

    def as_complex(x):
        x.add_(1)
        return torch.view_as_complex(x).real

    def parts(x):
        x[x > 3] = 0.0
        return x.tensor_split(2)

    def at(x):
        start = torch.tensor(1)
        x.mul_(2)
        part = x.narrow(0, start, 2)
        start.add_(1)
        return part

    for f in (bits, bits_of_a_slice, as_complex, parts, at):
        f, x = w.jit(f), torch.arange(8.0).view(4, 2)
        w.learn(f, x)
        result = w.call("hit", f, x)
        w.watch(x=x, result=result)
        (result if isinstance(result, torch.Tensor) else result[0]).zero_()
        w.change("the result was written to")
        w.call("hit", f, torch.arange(8.0).view(4, 2))


@script(3)
def elements_that_share_memory_are_written_in_order(w: World) -> None:
    def in_place(x):
        x.mul_(2).add_(1)
        return x + 1

    def own(x):
        windows = (x * 2).view(-1).unfold(0, 3, 1)
        windows.mul_(2)
        return windows * 1

    def strided(x):
        x.copy_(x * 3)
        return x * 1

    f, base = w.jit(in_place), torch.arange(8.0)
    w.watch(base=base)
    w.learn(f, torch.arange(18.0).view(6, 3))
    w.change("windows of one tensor")
    for ran in ("new", "hit"):
        w.call(ran, f, base.unfold(0, 3, 1))
    w.learn(w.jit(own), torch.arange(8.0))
    w.learn(w.jit(strided), base.as_strided((3, 3), (2, 1)))


@script(3)
def masked_value_viewed_as_one(w: World) -> None:
    def whole(x, y, m):
        y[m] = x[m].view(()) * 2
        return y

    def two(x, y, m):
        y[m] = x[m][:2]
        return y

    def rolled(x, y, m):
        y[m] = x[m].roll(3)
        return y

    some, one, every = (torch.tensor(v) for v in ([False, True, True], [False, True, False], [True, True, True]))
    for f, first, others in (
        (whole, one, {some: "raised"}),
        (two, some, {every: "raised"}),
        (rolled, some, {one: "new", every: "hit"}),
    ):
        f = w.jit(f)
        w.learn(f, torch.arange(3.0), torch.zeros(3), first)
        for mask, ran in (*others.items(), (first, "hit")):
            w.change("another count")
            w.call(ran, f, torch.arange(3.0), torch.zeros(3), mask)


@script(3)
def masked_values_flattened_and_forwarded(w: World) -> None:
    def f(x, y, m):
        y[m] = F.relu6(x[m].view(-1).flatten()).square()
        return y

    f, mask = w.jit(f), torch.tensor([False, False, False])
    w.learn(f, torch.arange(3.0), torch.zeros(3), mask)
    for count, ran in ((1, "new"), (2, "new"), (3, "hit"), (0, "hit"), (1, "hit")):
        w.change("another count")
        w.call(ran, f, torch.arange(3.0) * 4, torch.zeros(3), torch.arange(3) < count)


@script(3)
def dropout_of_no_masked_value(w: World) -> None:
    def f(x, y, m):
        y[m] = F.dropout(x[m], 0.5)
        return y

    f, x = w.jit(f), torch.ones(64)
    w.watch(state=torch.get_rng_state())
    w.learn(f, x, torch.zeros(64), torch.arange(64) < 0)
    for count, ran in ((60, "new"), (1, "new"), (0, "hit"), (64, "hit")):
        w.change("another count")
        w.call(ran, f, x, torch.zeros(64), torch.arange(64) < count)


@script(3)
def rows_are_written_and_nothing_is_returned(w: World) -> None:
    def f(x: torch.Tensor) -> None:
        x[0].copy_(x[1])

    f = w.jit(f)
    w.learn(f, torch.arange(6.0).view(3, 2))
    w.change("the argument")
    w.call("hit", f, torch.ones(3, 2))


@script(3)
def lists_are_updated_and_nothing_is_returned(w: World) -> None:
    weights, grads = [torch.ones(3), torch.ones(2)], [torch.ones(3), torch.full((2,), 2.0)]
    w.watch(weights=weights)

    def f(grads: list[torch.Tensor]) -> None:
        torch._foreach_add_(weights, grads, alpha=-0.5)

    f = w.jit(f)
    w.learn(f, grads)
    weights[0].fill_(7)
    w.change("contents of a weight")
    w.call("hit", f, grads)


@script(3)
def noise_is_written_and_nothing_is_returned(w: World) -> None:
    def f(x: torch.Tensor) -> None:
        x.normal_()

    f, x = w.jit(f), torch.empty(5)
    torch.manual_seed(3)
    w.learn(f, x)
    torch.manual_seed(4)
    w.change("the generator")
    w.call("hit", f, x)
    print(torch.rand(1))
