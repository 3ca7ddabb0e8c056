"""Sizes that differ from call to call: the second recording is for any size, and every call after it is a hit.

Each test plays calls at several sizes in eager and compiled, compares results with sizes and strides, and says how many
recordings they took.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastjit
from helpers import assert_same

WEIGHT = torch.linspace(-1, 1, 64 * 16).reshape(16, 64)


def play(
    fn: Callable[..., Any],
    make: Callable[..., tuple[Tensor, ...]],
    sizes: Iterable[Any],
    *,
    misses: int = 2,
    rtol: float | None = None,
) -> Any:
    fast = fastjit.jit(fn)
    count = 0
    for size in sizes:
        args = make(*(size if isinstance(size, tuple) else (size,)))
        with torch.no_grad():
            got, want = fast(*args), fn(*args)
        assert_same(got, want)
        leaves = [(got, want)] if isinstance(got, Tensor) else list(zip(got, want, strict=True))
        assert [g.stride() for g, _ in leaves] == [w.stride() for _, w in leaves], size
        count += 1
    stats = fast.stats()
    assert stats.fallbacks == {}, stats
    assert (stats.misses, stats.hits) == (misses, count - misses), (stats, fast.inspect("guards"))
    return fast


def rows(*shape: int) -> tuple[Tensor]:
    return (torch.randn(*shape),)


PAIRS = [(3, 5), (4, 7), (5, 9), (17, 33), (100, 31), (2, 2), (3, 5), (8, 1000)]


@torch.no_grad()
def test_a_chain():
    play(lambda x, y: torch.tanh(x * y + 1) * torch.sigmoid(x), lambda n, m: (*rows(n, m), *rows(n, m)), PAIRS)


def test_a_softmax():
    play(lambda x: torch.softmax(x, -1), rows, PAIRS)


def test_counts_of_elements_are_numbers_of_the_call():
    play(lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), rows, PAIRS)


def test_a_product_and_what_follows():
    play(lambda x: torch.relu(x @ WEIGHT.t()) + 1, lambda n: rows(n, 64), [3, 4, 5, 64, 2, 300])


def test_parts_of_a_cat():
    play(lambda x, y: torch.cat([x, y * 2], 0) + 1, lambda n, m: (*rows(n, 4), *rows(m, 4)), PAIRS)


def test_reshapes():
    play(lambda x: (x * 2).flatten(1).sum(1), lambda n, m: rows(n, 3, m), PAIRS)
    play(lambda x: (x + 1).view(-1, 6).relu() * 2, lambda n: rows(n, 6), [3, 4, 50, 7])


def test_views_have_strides_of_the_call():
    play(lambda x: (x.transpose(0, 1) * 3 + 1, x.t(), x.unsqueeze(1), x[:, 0]), rows, PAIRS)


def test_several_results_and_temporaries():
    def f(x: Tensor) -> tuple[Tensor, ...]:
        a = x.sum(0)
        b = torch.exp(x - a)
        c = b.sum(1, keepdim=True)
        return b / c, a, (b * x).mean()

    play(f, rows, PAIRS)


@pytest.mark.parametrize("shape", [(2, 3), (5, 1), (1, 1), (0, 3)])
def test_sizes_of_none_and_one_are_variants_of_their_own(shape):
    play(lambda x: x * 2 + x.sum(), rows, [(3, 5), (4, 7), (6, 8), shape], misses=2 + (min(shape) < 2))


def test_what_is_asked_of_sizes_is_a_guard():
    fast = play(lambda x, y: x + y, lambda n, m: (*rows(n), *rows(m)), [(3, 3), (5, 5), (9, 9)])
    assert "x.size(0) == y.size(0)" in fast.inspect("guards")
    with pytest.raises(RuntimeError, match="size of tensor"):
        fast(torch.randn(4), torch.randn(5))
    assert_same(fast(torch.ones(4), torch.ones(1)), torch.full((4,), 2.0))


def test_explain_says_which_size_is_none_of_it():
    fast = fastjit.jit(lambda x, y: x * 2 + y)
    for n in (3, 4):
        fast(torch.randn(n, 5), torch.randn(n, 5))
    assert fast.explain(torch.randn(9, 5), torch.randn(9, 5)) == "a hit: f32[*,5], f32[*,5]"
    assert fast.explain(torch.randn(1, 5), torch.randn(1, 5)) == "a new variant: guard failed: x.size(0) >= 2"
    assert "guard failed: x.size(0) == y.size(0)" in fast.explain(torch.randn(7, 5), torch.randn(8, 5))


def test_slices_lie_inside():
    play(lambda x: x.narrow(0, 2, 3) * 2, lambda n: rows(n, 4), [5, 6, 7, 40])
    fast = fastjit.jit(lambda x: x.narrow(0, 2, 3) * 2)
    for n in (6, 7, 8):
        fast(torch.randn(n, 4))
    with pytest.raises(RuntimeError):
        fast(torch.randn(4, 4))


def test_python_that_walks_over_rows_fixes_their_count():
    play(lambda x: sum(row.sum() for row in x) + x, lambda n: rows(n, 2), [3, 4, 5, 4], misses=3)


def test_other_orders_of_dims_are_other_variants():
    fast = fastjit.jit(lambda x: x * 2 + 1)
    for n, m in PAIRS[:4]:
        for x in (torch.randn(n, m), torch.randn(m, n).t(), torch.randn(n, 2 * m)[:, ::2]):
            assert_same(fast(x), x * 2 + 1, exact=True)
            assert fast(x).stride() == (x * 2 + 1).stride()
    assert fast.stats().fallbacks == {}


def test_one_tensor_in_two_places():
    play(lambda x, y: x * 2 + y, lambda n: rows(n, 3) * 2, [3, 4, 5, 9])


def test_arguments_that_are_written():
    fast = fastjit.jit(lambda x, y: x.mul_(2).add_(y))
    for n in (3, 4, 5, 6, 50):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        want = x * 2 + y
        assert fast(x, y) is x
        assert_same(x, want)
    assert (fast.stats().misses, fast.stats().hits) == (2, 3)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.GELU(),
    ).eval()


def test_batches_and_pixels_of_convolutions():
    model = network()
    play(lambda x: model(x).mean((-2, -1)), lambda b: rows(b, 3, 32, 32), [2, 3, 5, 16, 2])
    play(lambda x: model(x).mean((-2, -1)), lambda p: rows(2, 3, p, p), [32, 40, 48, 33, 31, 30, 29, 64])


def test_what_an_operator_gives_is_compared_with_what_was_foretold():
    """An upsampled size does not follow from a rule that is known here: the call starts again in eager, once."""
    fast = fastjit.jit(lambda x: F.interpolate(x, scale_factor=1.5) + 1)
    for n in (4, 6, 8, 10, 12, 8, 10):
        x = torch.randn(2, 3, n, n)
        assert_same(fast(x), F.interpolate(x, scale_factor=1.5) + 1)


def test_errors_at_a_new_size_leave_nothing_written():
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + torch.linalg.inv(y) @ torch.ones(y.shape[-1] if False else 2)

    fast = fastjit.jit(f)
    for n in (3, 4, 5):
        x = torch.zeros(n, 2)
        assert_same(fast(x, torch.eye(2)), torch.full((n, 2), 2.0))
    x = torch.zeros(6, 2)
    with pytest.raises(RuntimeError):
        fast(x, torch.zeros(2, 2))
    assert_same(x, torch.ones(6, 2))  # as in eager


def test_threads_at_different_sizes():
    fast = fastjit.jit(lambda x: torch.softmax(x @ WEIGHT.t(), -1) * 2)
    for n in (3, 4):
        fast(torch.randn(n, 64))
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for n in torch.randint(2, 60, (150,), generator=generator).tolist():
            x = torch.randn(n, 64, generator=generator)
            if not torch.allclose(fast(x), torch.softmax(x @ WEIGHT.t(), -1) * 2, atol=1e-5):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fast.stats().misses <= 2 + len(threads)  # threads may have modes of their own


def test_a_pure_function_has_sizes_of_its_own():
    fast = fastjit.jit(lambda x: x * len(x), pure=True)
    for n in (3, 4, 5, 6):
        x = torch.randn(n)
        assert_same(fast(x), x * n)


DYNAMIC: dict[str, tuple[Any, int]] = {
    "all": (True, 1),
    "none": (False, 5),
    "rows": ({"x": 0}, 1),
    "last": ({"x": -2}, 1),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_sizes_that_are_known_to_differ(name):
    dynamic, misses = DYNAMIC[name]
    fast = fastjit.fastjit(lambda x, y: x * 2 + y, dynamic=dynamic)
    for n in (3, 4, 5, 9, 100):
        x, y = torch.randn(n, 4), torch.randn(4)
        assert_same(fast(x, y), x * 2 + y, exact=True)
    assert (fast.stats().misses, fast.stats().hits) == (misses, 5 - misses)


def test_what_fixes_a_size_is_told():
    def f(x: Tensor) -> Tensor:
        return x * {3: 1.0, 4: 2.0, 5: 3.0}[x.shape[0]]

    fast = fastjit.jit(f)
    for n in (3, 4):
        fast(torch.ones(n, 2))
    told = f"x.size(0) is one size for Python code that reads it at test_sizes.py:{f.__code__.co_firstlineno + 1}"
    assert told in fast.inspect("guards")
    assert fast.explain(torch.ones(5, 2)).endswith(told)


def test_what_fixes_a_size_in_an_operator_is_told():
    fast = fastjit.jit(lambda x: x.split(1)[0] * 2)
    for n in (3, 4):
        fast(torch.ones(n, 2))
    assert "x.size(0) is one size for aten::split at test_sizes.py" in fast.inspect("guards")


def test_copies_in_another_memory_format():
    for change in (
        lambda x: x.to("cpu", torch.float32, copy=True, memory_format=torch.channels_last),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.clone(memory_format=torch.channels_last),
    ):
        play(change, lambda n: rows(n, n + 1, n, n), [3, 4, 5, 9])


def test_what_is_empty_has_sizes_of_the_call():
    fast = fastjit.jit(lambda x: x.repeat(0, 2), on_unsupported="eager")
    for n in (2, 3, 6, 3, 7):  # sizes that nobody foretells are found out when an operator gives them
        assert fast(torch.randn(n)).shape == (0, 2 * n)
    assert fast.stats().hits >= 1


def turned(x: Tensor) -> Tensor:
    return torch.exp(x.t()) + 1


def turned_back(x: Tensor) -> Tensor:
    return torch.exp(x.transpose(0, -1)) + 1


def flattened(x: Tensor) -> Tensor:
    return (x.reshape(-1) * 2).sum() + x.contiguous().view(-1)[1]


def is_dense(x: Tensor) -> Tensor:
    return x + 1 if x.is_contiguous() else x.transpose(0, -1).flatten() - 1


def into_it(x: Tensor) -> Tensor:
    return x.mul_(2).sum(0)


GAPS: dict[str, Callable[[int], Tensor]] = {
    "all but the last": lambda n: torch.randn(5, n + 1)[:, :-1],
    "from the second on": lambda n: torch.randn(5, n + 1)[:, 1:],
    "of a buffer": lambda n: torch.randn(4, 64)[:, :n],
    "every other one": lambda n: torch.randn(n, 8)[:, ::2],
    "rows of every other one": lambda n: torch.randn(2 * n, 6)[::2],
    "in the middle": lambda n: torch.randn(3, n + 2, 4)[:, 1:-1],
    "a corner": lambda n: torch.randn(n + 3, 2 * n + 1)[1 : n + 1, 2 : n + 2],
    "turned": lambda n: torch.randn(n + 1, 5)[1:].t(),
    "with a gap inside": lambda n: torch.randn(n, 3, 10)[:, :, 1:5],
    "with two gaps": lambda n: torch.randn(3, n + 1, n + 2)[:, :n, :n],
}


def seeded(make: Callable[[int], Tensor], n: int) -> Tensor:
    torch.manual_seed(n)
    return make(n)


@pytest.mark.parametrize("fn", [turned_back, flattened, is_dense, into_it])
@pytest.mark.parametrize("gaps", GAPS)
def test_arguments_with_gaps(fn: Callable[[Tensor], Tensor], gaps: str) -> None:
    """As x[:, :-1] has them: strides follow from no size, and each call brings its own."""
    fast, make = fastjit.jit(fn), GAPS[gaps]
    for n in (5, 7, 6, 9, 12, 30, 3, 7, 2):
        x, wanted = seeded(make, n), seeded(make, n)
        assert_same(fast(x), fn(wanted))
        assert_same(x, wanted)
        assert_same(x._base, wanted._base)
    if fn is not is_dense:  # where that says no, it makes sizes those of the call
        assert fast.stats().hits >= 6, fast.inspect("guards")
    assert not fast.stats().fallbacks
    dense = torch.randn(8, 8)
    assert_same(fast(dense.clone()), fn(dense))


def written_diagonal(x: Tensor) -> Tensor:
    y = x * 2
    y.diagonal().zero_()
    return y


ONE_SIZE: dict[str, tuple[Any, Callable[[int], Tensor], dict[str, Any], str]] = {
    "shared": (turned, lambda n: torch.randn(8).expand(n, 8), {}, "x.size(0) is one size: elements of x share memory"),
    "one": (turned, lambda n: torch.randn(3, 1 if n > 3 else 2), {}, "x.size(1) is one size: it is 1"),
    "a diagonal": (written_diagonal, lambda n: torch.randn(n, 4), {}, "for aten::diagonal at test_sizes.py:"),
    "not foretold": (
        lambda x: F.interpolate(x, scale_factor=1.5),
        lambda n: torch.randn(1, 3, 2 * n),
        {"on_unsupported": "eager"},
        "each size is recorded: the result of aten::upsample_nearest1d.vec has other sizes",
    ),
    "pure": (turned, lambda n: torch.randn(n, 4), {"pure": True}, "each size is recorded: pure=True"),
    "by option": (turned, lambda n: torch.randn(n, 4), {"dynamic": False}, "each size is recorded: dynamic=False"),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_SIZE)
def test_why_a_size_is_one_size_is_told(name):
    fn, make, options, told = ONE_SIZE[name]
    fast = fastjit.jit(fn, **options)
    for n in (3, 4, 5, 6):
        x = make(n)
        assert_same(fast(x), fn(x))
    assert told in fast.inspect("guards"), fast.inspect("guards")
    if name != "one":
        for n in range(7, 24):
            fast(make(n))
        assert told in fast.explain(make(30)), fast.explain(make(30))


def play_and_wait(fast: Any, shape: tuple[int, int], calls: int = 9) -> None:
    """So many calls, and one more when what they asked for in the background is there."""
    with torch.no_grad():
        for call in range(calls + 1):
            x = torch.randn(shape)
            assert_same(fast(x), turned(x))
            if call == calls - 1:
                fast._wait()


def test_sizes_far_above_the_recorded_ones_get_a_plan_of_their_own():
    """In the background: until it is there the old plan runs, which is right for them too. What was served still is."""
    fast, near = fastjit.jit(turned), fastjit.jit(turned)
    for shape in ((2, 3), (3, 2)):
        fast(torch.randn(shape))
    for shape in ((600, 500), (640, 480)):
        near(torch.randn(shape))
    first = fast.inspect("plan")
    play_and_wait(fast, (10, 12), 20)  # not so far
    assert fast.inspect("plan") == first
    play_and_wait(fast, (640, 480), 7)  # too few
    assert fast.inspect("plan") == first
    play_and_wait(fast, (640, 480))
    assert fast.inspect("plan") != first
    guards, last = fast.inspect("guards"), fast.inspect("asm")
    assert last == near.inspect("asm")
    play_and_wait(fast, (2, 3), 20)  # smaller ones cost little, whatever the plan
    assert fast.inspect("asm") == last and fast.inspect("guards") == guards
    stats = fast.stats()
    assert (stats.misses, stats.fallbacks) == (2, {}) and stats.hits == stats.calls - 2


def test_a_new_plan_beside_threads_that_run_the_old_one():
    fast = fastjit.jit(turned)
    for shape in ((2, 3), (3, 2)):
        fast(torch.randn(shape))
    wrong = []

    def calls(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for i in range(120):
                x = torch.randn(2 + i * 4, 3 + (i * 7 + seed) % 300, generator=generator)
                if not torch.allclose(fast(x), turned(x), rtol=1e-5):
                    wrong.append(x.shape)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = fast.stats()
    assert not wrong and (stats.misses, stats.fallbacks) == (2, {}) and stats.hits == 480


def masked_parts(x: Tensor) -> Tensor:
    y = x * 0.5
    y[x > 1] = x[x > 1] * x[x > 1]
    y[x < -1] = 0.0
    return y


def masked_by_another(x: Tensor, y: Tensor) -> Tensor:
    z = torch.tanh(x)
    z[y > 0] = torch.exp(y[y > 0]) + 1
    return z


def masked_argument(x: Tensor, y: Tensor) -> Tensor:
    x[y > 0] = y[y > 0] * 2
    return x + 1


def test_selects_that_are_written_with_masks():
    play(masked_parts, rows, PAIRS)
    fast = play(masked_by_another, lambda n, m: (*rows(n, m), *rows(n, m)), PAIRS)
    assert {"y.size(0) == x.size(0)", "y.size(1) == x.size(1)"} <= set(fast.inspect("guards").splitlines())
    with pytest.raises(IndexError, match="shape of the mask"):
        fast(torch.randn(5, 7), torch.randn(4, 7))
    fast, count = fastjit.jit(masked_argument), 0
    for n, m in PAIRS:
        x, y = torch.randn(n, m), torch.randn(n, m)
        other = x.clone()
        assert_same((fast(x, y), x), (masked_argument(other, y), other))
        count += 1
    assert (fast.stats().misses, fast.stats().hits, fast.stats().fallbacks) == (2, count - 2, {})


def gates(x: Tensor) -> Tensor:
    first, second = (x @ WEIGHT).chunk(2, 1)
    first.sigmoid_()
    second.tanh_()
    return first * second


def rows_of_a_result(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 5, x.shape[1])
    for t in range(5):
        out[:, t] = x * t + (out[:, t - 1] if t else 0)
    return out


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y[:, : x.shape[1] // 2].clamp_(min=0)
    y[:, 1::2] += 3
    return y, y[:, :2] * 2


@pytest.mark.parametrize("fn", [gates, rows_of_a_result, halves])
def test_writes_to_parts(fn):
    fast = play(fn, lambda n: rows(n, 16), [3, 4, 5, 9, 33, 2])
    assert "= update " in fast.inspect("ir")


CELLS = {"LSTM": nn.LSTMCell(5, 6), "GRU": nn.GRUCell(5, 6), "RNN": nn.RNNCell(5, 6)}


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_any_batch(name):
    cell = CELLS[name]

    def steps(x: Tensor) -> Tensor:
        state: Any = None
        for t in range(4):
            state = cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state

    play(steps, lambda n: rows(n, 4, 5), [3, 4, 5, 9, 33, 2], rtol=1e-5)


MAYBE_COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda x: x[:, :3].reshape(-1),
    "flatten": lambda x: x.narrow(1, 0, 3).flatten(),
    "reshape_as": lambda x: x[:, :3].reshape_as(x[:, :3].clone().view(-1)),
    "contiguous": lambda x: x.narrow(1, 0, 3).contiguous(),
    "contiguous in a format": lambda x: x.narrow(1, 0, 3).contiguous(memory_format=torch.contiguous_format),
}


@pytest.mark.parametrize("columns", [(5, 6, 7, 3, 4, 3), (6, 3, 3, 7, 4, 3)])
@pytest.mark.parametrize("name", MAYBE_COPIES)
def test_what_is_a_view_at_some_sizes_and_a_copy_at_others(name, columns):
    """Three columns of three lie together: what is written to is then the argument."""

    def f(x: Tensor) -> Tensor:
        return MAYBE_COPIES[name](x).mul_(2)

    fast = fastjit.fastjit(f, on_unsupported="eager")
    for n, count in enumerate((*columns, *columns)):
        x = torch.randn(3 + n % 4, count)
        mine, theirs = x.clone(), x.clone()
        got, want = fast(mine), f(theirs)
        assert_same(got, want)
        assert_same(mine, theirs)
        assert (got.data_ptr() == mine.data_ptr()) == (want.data_ptr() == theirs.data_ptr())
    assert fast.stats().hits >= 2, fast.stats()


def test_a_format_of_channels_that_an_image_has_or_has_not():
    def f(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last).mul_(2)

    fast = fastjit.fastjit(f)
    for channels, side in ((3, 4), (4, 5), (1, 5), (5, 1), (2, 3), (1, 4), (6, 1), (3, 3)):
        x = torch.randn(2, channels, side, side)
        mine, theirs = x.clone(), x.clone()
        got, want = fast(mine), f(theirs)
        assert_same(got, want)
        assert_same(mine, theirs)
        assert got.stride() == want.stride()
