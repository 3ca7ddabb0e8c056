"""pure=True promises that only the arguments matter. What a program cannot do again is refused all the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from fastjit import fastjit


def _draws(x: torch.Tensor) -> torch.Tensor:
    g = torch.Generator()
    g.manual_seed(3)
    return x + torch.rand(4, generator=g)


def _draws_unseeded(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(4, generator=torch.Generator())


def _applies(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.apply_(lambda v: v * 2)
    return y


def _maps(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.map_(x, lambda a, b: a - 3 * b)
    return y


def _fills_by_numpy(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(4)
    y.numpy()[:] = 7
    return x + y


def _writes_by_pointer(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(4)
    ctypes.memset(y.data_ptr(), 1, 4)
    return x + y


def _seeds(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(5)
    return x + torch.rand(4)


@torch.jit.script
def _scripted(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0])


@torch.jit.script
def _scripted_into(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])
    table[0] = 9.0
    return x * table


def _calls_scripted(x: torch.Tensor) -> torch.Tensor:
    return _scripted(x)


def _calls_scripted_into(x: torch.Tensor) -> torch.Tensor:
    return _scripted_into(x)


REFUSED = {
    _draws: "use of a random number generator by Generator.manual_seed at test_pure.py:",
    _draws_unseeded: "it draws from a generator that is no argument",
    _applies: "use of a tensor outside operators by Tensor.apply_ at test_pure.py:",
    _maps: "use of a tensor outside operators by Tensor.map_ at test_pure.py:",
    _fills_by_numpy: "use of a tensor outside operators by Tensor.numpy at test_pure.py:",
    _writes_by_pointer: "use of a tensor outside operators by Tensor.data_ptr at test_pure.py:",
    _seeds: "use of a random number generator by Generator.manual_seed at random.py:",
    _calls_scripted: "a tensor of unknown origin was used by aten::mul",
    _calls_scripted_into: "memory that no operator filled is used by",
    _scripted: "constant tensor made at test_pure.py:",
    _scripted_into: "constant tensor made at test_pure.py:",
}


@pytest.mark.parametrize("f", REFUSED, ids=[getattr(f, "__name__", "scripted") for f in REFUSED])
def test_what_no_program_can_repeat_is_refused(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    fast = fastjit(pure=True, on_unsupported="eager")(f)
    for x in (torch.arange(4.0), torch.ones(4)):
        torch.manual_seed(0)
        want = f(x)
        torch.manual_seed(0)
        got = fast(x)
        assert f is _draws_unseeded or torch.equal(got, want)
    stats = fast.stats()
    assert (stats.calls, stats.hits) == (2, 0)
    assert [REFUSED[f] in reason for reason in stats.fallbacks] == [True], stats.fallbacks


def test_a_generator_that_is_an_argument_is_drawn_from() -> None:
    def f(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return x + torch.rand(4, generator=g)

    fast, g, x = fastjit(pure=True)(f), torch.Generator(), torch.arange(4.0)
    for seed in (3, 4, 3):
        want = f(x, g.manual_seed(seed))
        assert torch.equal(fast(x, g.manual_seed(seed)), want)
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {})


def test_memory_that_operators_fill_is_no_obstacle() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(4)
        y[:2] = x[:2]
        y[2:] = 1.0
        mask = torch.empty(4, dtype=torch.bool)
        torch.gt(x, 1.0, out=mask)
        return torch.where(mask, y, torch.empty_like(y).copy_(x))

    for options in ({}, {"pure": True}):
        fast = fastjit(f, **options) if not options else fastjit(**options)(f)
        for x in (torch.arange(4.0), torch.ones(4), torch.arange(4.0)):
            assert torch.equal(fast(x), f(x))
        assert (fast.stats().hits, fast.stats().fallbacks) == (2, {})


def test_the_profile_function_of_a_recording_is_gone_after_it() -> None:
    import sys

    fast = fastjit(pure=True)(lambda x: x + 1)
    fast(torch.ones(4))
    assert sys.getprofile() is None
    with pytest.raises(RuntimeError):
        fastjit(pure=True)(lambda x: x.view(3))(torch.ones(4))
    assert sys.getprofile() is None
