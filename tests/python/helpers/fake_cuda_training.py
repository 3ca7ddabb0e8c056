"""Checks on the stand-in for a CUDA device: gradients, whole steps, and what of a call happens on the host."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch

import cuda_training_cases as training
import fastjit as package
from fastjit import fastjit
from gradient_tools import whole_step
from helpers import assert_same
from stand_in import back, put


def check_gradients() -> None:
    for name, (make, sizes) in {**training.MODELS, **training.CHECKPOINTS}.items():
        model, x = make(), torch.randn(sizes)
        on_device = training.moved(model, put)
        fast = fastjit(on_device)
        got = training.play(on_device, fast, put(x))
        training.assert_alike(got, training.play(model, model, x), lambda t: back(t) if t.is_cuda else t)
        stats = package.of(fast).stats()
        assert (stats.hits, stats.fallbacks) == (3, {}) and stats.kernels > 0, (name, stats)


def check_gradients_with_autocast() -> None:
    for name, (make, sizes) in training.MODELS.items():
        made, x = make(), put(torch.randn(sizes))
        model, twin = training.moved(made, put), training.moved(made, put)
        fast = fastjit(twin)

        def under_autocast(forward: Any, x: torch.Tensor) -> torch.Tensor:
            torch.set_autocast_enabled("cuda", True)
            try:
                return forward(x)  # type: ignore[no-any-return]
            finally:
                torch.set_autocast_enabled("cuda", False)
                torch.clear_autocast_cache()

        torch.set_autocast_dtype("cuda", torch.bfloat16)
        expected = training.play(model, lambda x: under_autocast(model, x), x)  # noqa: B023
        got = training.play(twin, lambda x: under_autocast(fast, x), x)  # noqa: B023
        training.assert_alike(got, expected, back, 3e-2)
        stats = package.of(fast).stats()
        assert (stats.hits, stats.fallbacks) == (3, {}), (name, stats)


def check_whole_steps() -> None:
    """Optimizers keep their step counters on the CPU, and what follows from these is given to operators on lists."""
    optimizers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
        "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
        "AdamW, each parameter": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    }
    for name, made in optimizers.items():
        make, sizes = training.MODELS["norm"]
        model, x = make(), torch.randn(sizes)
        on_device = training.moved(model, put)
        plain = whole_step(model, made(model.parameters()))
        fast = fastjit(whole_step(on_device, made(on_device.parameters())))
        with torch.enable_grad():
            for _ in range(6):
                expected = plain(x)  # torch.optim imports what it needs at its first step
                torch.testing.assert_close(back(fast(put(x))), expected, rtol=1e-4, atol=1e-5)
        for one, other in zip(on_device.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(back(one.detach()), other.detach(), rtol=1e-4, atol=1e-5)
        # The first step makes the optimizer's state, and leaves gradients behind.
        assert (fast.stats().hits, fast.stats().fallbacks) == (4, {}), (name, fast.stats())


def check_backward_runs_on_the_device_s_thread_but_while_it_is_recorded() -> None:
    seen: list[int] = []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 2

    def hook(grad: torch.Tensor) -> None:
        seen.append(threading.get_ident())

    fast, x = fastjit(Seen.apply), put(torch.randn(4)).requires_grad_()
    with torch.enable_grad():
        for _ in range(3):
            y = fast(x)
            assert torch._C._is_multithreading_enabled()
            y.register_hook(hook)
            y.sum().backward()
    assert threading.get_ident() not in seen and len(seen) == 3
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {}), fast.stats()
    assert_same(back(x.grad), torch.full((4,), 6.0))

    def raises(x: torch.Tensor) -> torch.Tensor:
        raise ValueError((x * 2).shape)

    with contextlib.suppress(ValueError):
        fastjit(raises)(x)
    assert torch._C._is_multithreading_enabled()


def check_tensors_of_the_host_beside() -> None:
    x, y, kept = torch.randn(8), torch.randn(8), torch.zeros(8)

    def alike(got: Any, expected: Any) -> None:
        for one, other in training.pairs(got, expected):
            assert one.device == other.device
            assert_same(back(one) if one.is_cuda else one, back(other) if other.is_cuda else other)

    for name, function in training.beside_the_host(kept).items():
        fast, on_device = fastjit(function), put(x)
        expected = function(on_device, y)
        for count in range(1, 4):
            alike(fast(on_device, y), expected)
            assert fast.stats().hits == count - 1, (name, fast.stats())
        assert fast.stats().fallbacks == {}, (name, fast.stats())
    assert_same(kept, y * 4)
    # Nothing on the device is an argument.
    fast, weight = fastjit(lambda y: torch.ops.fake_cuda.to(y, 0) * weight), put(torch.ones(8))
    for _ in range(3):
        alike(fast(y), put(y))
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {}), fast.stats()


def check_values_that_python_reads() -> None:
    for name, function in training.READS.items():
        fast = fastjit(function)
        for round_ in range(8):
            x, y = torch.linspace(-1, 1, 8) + round_ * 0.1, torch.tensor(float(round_ + 1))
            got, expected = fast(put(x), y), function(x, y)
            for one, other in training.pairs(got, expected):
                torch.testing.assert_close(back(one) if isinstance(one, torch.Tensor) else one, other)
        assert fast.stats().hits >= 4 and fast.stats().fallbacks == {}, (name, fast.stats())
