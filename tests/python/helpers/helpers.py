"""What every correctness test says: same as eager, and what ran."""

from __future__ import annotations

import contextlib
import copy
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fastjit import fastjit


def since(*release: int) -> bool:
    """Whether the running torch is of this release, or of a later one: since(2, 15)."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= release


class OldName(DeprecationWarning):
    """What a library says of a name that it will drop."""


def clone_args(args: Any) -> Any:
    """A deep copy of the arguments that keeps strides and aliasing between them."""
    return copy.deepcopy(args)


def assert_same(got: Any, expected: Any, exact: bool = False) -> None:
    """Equal structure, dtype, sizes, strides; equal values (bit for bit if `exact`, NaN equal to NaN)."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert got.stride() == expected.stride()
        if exact:
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        else:
            torch.testing.assert_close(got, expected, equal_nan=True)
    elif isinstance(expected, (tuple, list)):
        assert type(got) is type(expected) and len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            assert_same(g, e, exact)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_same(got[key], expected[key], exact)
    else:
        assert got == expected and type(got) is type(expected)


def check(
    fn: Callable[..., Any],
    *args: Any,
    kernels: int | None = None,
    steps: int | None = None,
    exact: bool = False,
    **options: Any,
) -> Any:
    """Runs `fn` in eager and twice under fastjit on copies of `args`; the second call must be a hit with equal results.

    Results and the arguments after the call must equal eager's. Returns the compiled function.
    """
    expected_args = clone_args(args)
    expected = fn(*expected_args)
    fast = fastjit(fn, **options) if not options else fastjit(**options)(fn)
    for call in range(2):
        now = clone_args(args)
        assert_same(fast(*now), expected, exact)
        assert_same(list(now), list(expected_args), exact)
        stats = fast.stats()
        assert stats.fallbacks == {}, stats.fallbacks
        assert (stats.calls, stats.hits) == (call + 1, call)
    if kernels is not None:
        assert fast.stats().kernels == kernels, fast.inspect("plan")
    if steps is not None:
        assert fast.stats().steps == steps, fast.inspect("plan")
    return fast


def settle(fn: Any, *args: Any) -> Any:
    """Its second and third calls are hits, and give what eager gives."""
    fast = fastjit(fn)
    for call in range(3):
        assert_same(fast(*args), fn(*args), exact=True)
        assert (fast.stats().hits, fast.stats().fallbacks) == (call, {})
    return fast


def loop_trips(fast: Any) -> list[int]:
    """How often each loop of its program runs, outside its kernels or inside one."""
    found = re.findall(
        r"^loop (\d+)(?: team \d+)?$|^kernel \d+ \(.*\) sizes .* rounds (\d+)", fast.inspect("plan"), re.MULTILINE
    )
    return [int(outside or inside) for outside, inside in found]


def cell_over_time(cell: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The states of a recurrent cell after each step of a sequence, in one tensor."""

    def run(x: torch.Tensor) -> torch.Tensor:
        state, out = None, []
        for t in range(x.shape[0]):
            state = cell(x[t], state)
            out.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(out)

    return run


def outcome(fn: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    """What a call gives, or the type and the text of what it raises; the same random numbers come in each."""
    torch.manual_seed(0)
    try:
        return "gives", fn(*args)
    except Exception as error:
        return "raises", (type(error), str(error))


def hits_as_eager(fast: Any, eager: Callable[..., Any], ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    """Whether the call was a hit. It gives, raises and leaves in its arguments what eager's does with copies."""
    wanted, hits = outcome(eager, *theirs), fast.stats().hits
    kind, got = outcome(fast, *ours)
    assert kind == wanted[0], (got, wanted)
    if kind == "raises":
        assert got == wanted[1]
    else:
        assert_same(got, wanted[1])
    assert_same(ours, theirs)
    return bool(fast.stats().hits > hits)


def play_as_eager(
    eager: Callable[..., Any], calls: Iterable[tuple[torch.Tensor, ...]], **options: Any
) -> tuple[Any, str]:
    """The compiled function, and of each call, which is as eager's, whether it was a hit ("h") or a miss ("m")."""
    fast, seen = fastjit(eager, **options), ""
    for args in calls:
        seen += "h" if hits_as_eager(fast, eager, clone_args(args), args) else "m"
    return fast, seen


def in_threads(count: int, work: Callable[[], None]) -> list[BaseException]:
    """Runs `work` in so many threads at once; what they raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def hits_of(fast, calls: int) -> int:
    """The hits of a function of which all `calls` were programs, or the first ones of some."""
    stats = fast.stats()
    assert stats.fallbacks == {}, stats
    assert stats.hits + stats.misses == calls, stats
    return stats.hits
