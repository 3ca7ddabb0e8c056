"""Item 3, what a program has changed when an operator of it raises: eager's own error and eager's own changes."""

from __future__ import annotations

import torch

from script_tools import World, script

RAISED = "an operator raised"


def _bad_index(w: World, f, x: torch.Tensor) -> None:
    """A hit, a call whose index is out of range, and a hit again."""
    good, bad = torch.tensor([0, 2]), torch.tensor([0, 99])
    w.learn(f, x, good)
    w.change("an index is out of range")
    w.call(RAISED, f, x, bad)
    w.change("it is not")
    w.call("hit", f, x, good)


@script(3, rtol=1e-6)
def fused_write_before_embedding_raises(w: World) -> None:
    table = torch.randn(4, 3)

    def f(x, i):
        x.mul_(2)
        return torch.nn.functional.embedding(i, table).sum() + x

    _bad_index(w, w.jit(f), torch.arange(4.0))


@script(3)
def write_after_gather_raises_is_not_made(w: World) -> None:
    def f(x, i):
        y = torch.index_select(x, 0, i)
        x.add_(1)
        return y

    _bad_index(w, w.jit(f), torch.arange(4.0))


@script(3)
def writes_to_two_arguments_between_raising_steps(w: World) -> None:
    def f(x, y, i):
        x.add_(1)
        a = x.index_select(0, i)
        y.sub_(x)
        b = torch.take(y, i)
        return a + b

    f, x, y = w.jit(f), torch.arange(4.0), torch.ones(4)
    good, bad = torch.tensor([0, 2]), torch.tensor([0, -9])
    w.learn(f, x, y, good)
    w.change("an index is out of range")
    w.call(RAISED, f, x, y, bad)
    w.call(RAISED, f, x, y, torch.tensor([1, 4]))
    w.call("hit", f, x, y, good)


@script(3, rtol=1e-6)
def strided_and_transposed_arguments_are_restored(w: World) -> None:
    def f(x, y, i):
        x.exp_()
        y.copy_(x.t())
        return x.index_select(0, i)

    base, other = torch.randn(6, 8), torch.randn(3, 3).t()
    w.watch(base=base, other=other)
    f, x = w.jit(f), base[::2, 1:4]
    w.learn(f, x, other, torch.tensor([1]))
    w.change("an index is out of range")
    w.call(RAISED, f, x, other, torch.tensor([7]))
    w.call("hit", f, x, other, torch.tensor([2]))


@script(3)
def cholesky_raises_after_a_write(w: World) -> None:
    def f(a, n):
        n.add_(1)
        return torch.linalg.cholesky(a) * 2

    f, a, n = w.jit(f), torch.eye(3) * 4, torch.zeros(2)
    w.learn(f, a, n)
    w.change("the matrix is not positive definite")
    w.call(RAISED, f, -a, n)
    w.call("hit", f, a, n)


@script(3)
def random_numbers_before_a_raising_step(w: World) -> None:
    def f(x, i):
        noise = torch.rand_like(x)
        return (x + noise).index_select(0, i)

    f, x = w.jit(f), torch.arange(4.0)
    _bad_index(w, f, x)
    w.watch(state=torch.get_rng_state())
    w.change("the state of the generator is watched")
    w.call(RAISED, f, x, torch.tensor([5, 5]))


@script(3)
def own_generator_before_a_raising_step(w: World) -> None:
    gen = torch.Generator().manual_seed(7)

    def f(x, i):
        x.uniform_(generator=gen)
        return x.index_select(0, i)

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.tensor([0, 1]))
    w.change("the index is out of range")
    w.call(RAISED, f, x, torch.tensor([0, 9]))
    w.change("the index is good, and the generator goes on as in eager")
    w.call("hit", f, x, torch.tensor([1, 2]))
    gen.manual_seed(3)
    w.change("another seed")
    w.call("hit", f, x, torch.tensor([1, 2]))


@script(3)
def multinomial_raises_after_a_write(w: World) -> None:
    def f(p, n):
        n.mul_(3)
        return torch.multinomial(p, 2), n + 1

    f, n = w.jit(f), torch.ones(2)
    w.learn(f, torch.tensor([0.5, 0.25, 0.25]), n)
    w.change("a negative probability")
    w.call(RAISED, f, torch.tensor([0.5, -1.0, 0.25]), n)
    w.change("probabilities again, and the same random stream")
    w.call("hit", f, torch.tensor([0.5, 0.25, 0.25]), n)


@script(3)
def index_add_raises_half_way(w: World) -> None:
    def f(x, i, v):
        x.index_add_(0, i, v)
        return x * 2

    f, x, v = w.jit(f), torch.arange(4.0), torch.ones(3)
    w.learn(f, x, torch.tensor([0, 1, 1]), v)
    w.change("the last index is out of range")
    w.call(RAISED, f, x, torch.tensor([0, 1, 8]), v)
    w.call("hit", f, x, torch.tensor([3, 1, 1]), v)


@script(3)
def index_copy_into_two_caches(w: World) -> None:
    """Each cache is written once and never read before: only its version counter is taken back."""

    def f(k, v, i, x):
        k.index_copy_(0, i, x)
        v.index_copy_(0, i, x * 2)
        return k.index_select(0, i + 1) + v

    f, k, v, x = w.jit(f), torch.zeros(4, 2), torch.zeros(4, 2), torch.ones(1, 2)
    w.learn(f, k, v, torch.tensor([1]), x)
    w.change("the caches are full")
    w.call(RAISED, f, k, v, torch.tensor([3]), x)
    w.call(RAISED, f, k, v, torch.tensor([4]), x)
    w.call("hit", f, k, v, torch.tensor([2]), x)


@script(3)
def index_copy_after_a_read(w: World) -> None:
    def f(k, i, x):
        s = k.cumsum(0)
        k.index_copy_(0, i, x + s[:1])
        return k.index_select(0, i + 1)

    f, k, x = w.jit(f), torch.ones(4, 2), torch.ones(1, 2)
    w.learn(f, k, torch.tensor([1]), x)
    w.change("the cache is full")
    w.call(RAISED, f, k, torch.tensor([3]), x)


@script(3)
def buffer_written_before_a_raising_step(w: World) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("rows", torch.randn(4, 2))

        def forward(self, i):
            self.seen.add_(1)
            return torch.nn.functional.embedding(i, self.rows)

    m = Counter()
    w.watch(m=m)
    f = w.jit(m.forward)
    w.learn(f, torch.tensor([0, 2]))
    w.change("an index is out of range")
    w.call(RAISED, f, torch.tensor([9, 2]))
    w.call("hit", f, torch.tensor([1, 2]))


@script(3)
def pinned_view_overlaps_another_argument(w: World) -> None:
    """The write goes through a view that torch makes; the other argument shares the memory."""

    def f(x, y, i, v):
        x.view(-1).index_add_(0, i, v)
        return y + 1, x.sum()

    base, i, v = torch.arange(8.0), torch.tensor([3]), torch.ones(1)
    w.watch(base=base)
    f = w.jit(f)
    w.learn(f, base[:4], base[4:], i, v)
    w.change("they overlap")
    w.call("a written tensor shares memory", f, base[:4], base[2:6], i, v)


@script(3)
def write_of_an_inference_tensor_before_a_raising_step(w: World) -> None:
    def f(x, i):
        x.mul_(2)
        return x.index_select(0, i)

    f = w.jit(f)
    with torch.inference_mode():
        x = torch.arange(4.0)
        _bad_index(w, f, x)


@torch.library.custom_op("fjundo::strides_by_value", mutates_args=())
def strides_by_value(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t() if x[0, 0] > 0 else x.clone()


@script(3)
def strides_of_a_result_change_after_a_write(w: World) -> None:
    def f(x, n):
        n.add_(1)
        return strides_by_value(x), n * 2

    f, x, n = w.jit(f), torch.arange(6.0).view(2, 3), torch.zeros(2)
    w.learn(f, x, n)
    w.change("the result is laid out otherwise")
    if w.records:
        return  # the second recording is of another program, rightly: only the one that runs finds out
    w.call("has other sizes, strides or dtype", f, x + 1, n)
    w.call("hit", f, x, n)
