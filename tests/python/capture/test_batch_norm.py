"""Batch normalisation in training: a row that gives the new running statistics too."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from fastjit import fastjit

KINDS = {
    "2d": (lambda: nn.BatchNorm2d(6), (3, 6, 5, 7)),
    "1d": (lambda: nn.BatchNorm1d(6), (9, 6)),
    "1d, planes": (lambda: nn.BatchNorm1d(6, momentum=0.3), (4, 6, 11)),
    "3d": (lambda: nn.BatchNorm3d(4, affine=False), (2, 4, 3, 4, 5)),
    "without statistics": (lambda: nn.BatchNorm2d(6, track_running_stats=False), (3, 6, 5, 7)),
}


def step(call, model: nn.Module, x: Tensor, g: Tensor | None) -> list[Tensor]:
    model.zero_grad()
    x = x.detach().requires_grad_(g is not None)
    y = call(x)
    if g is not None:
        y.backward(g)
    grads = [p.grad for p in model.parameters()] + [x.grad]
    return [y.detach(), *(t for t in grads if t is not None), *(b.clone() for b in model.buffers())]


@pytest.mark.parametrize("goes_back", [False, True])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_as_eager(kind, dtype, order, goes_back):
    make, sizes = KINDS[kind]
    if order == torch.channels_last and len(sizes) != 4:
        pytest.skip("channels_last is for images")
    torch.manual_seed(0)
    model = make()
    if model.affine:
        nn.init.normal_(model.weight)
        nn.init.normal_(model.bias)
    if dtype == torch.float64:
        model.double()
    twin, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    fast = fastjit(lambda x: twin(x))
    with torch.set_grad_enabled(goes_back):
        for _ in range(5):
            x = (torch.randn(sizes) * 3 + 2).to(dtype).contiguous(memory_format=order)
            g = torch.empty_like(x).normal_() if goes_back else None
            want = step(model, model, x, g)
            got = step(fast, twin, x, g)
            true = step(exact, exact, x.double(), None if g is None else g.double())
            for mine, eager, right in zip(got, want, true, strict=True):
                assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
                if not mine.is_floating_point():
                    assert torch.equal(mine, eager)
                    continue
                limit = 2 * (eager - right).abs().max() + 16 * torch.finfo(mine.dtype).eps * right.abs().max()
                assert (mine - right).abs().max() <= limit
    assert fast.stats().hits >= 2 and fast.stats().fallbacks == {}
    if goes_back and dtype != torch.bfloat16:
        assert "aten::native_batch_norm" not in fast.inspect("ir")


EPS = {
    "batch_norm": lambda x, w, m, v, eps: torch.native_batch_norm(x, w, w, m, v, True, eps / 2, eps),
    "batch_norm, evaluation": lambda x, w, m, v, eps: torch.native_batch_norm(x, w, w, m, v, False, 0.1, eps)[0],
    "layer_norm": lambda x, w, m, v, eps: torch.native_layer_norm(x, [6], w, w, eps),
    "group_norm": lambda x, w, m, v, eps: torch.native_group_norm(x, w, w, 5, 6, 6, 2, eps),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EPS)
def test_eps_and_momentum_are_numbers_of_the_call(name, dtype):
    call, fast = EPS[name], fastjit(EPS[name])
    x, w, m, v = (torch.rand(*sizes).to(dtype) for sizes in ((5, 6, 6), (6,), (6,), (6,)))
    for eps in (0.25, 0.25, 0.5, 0.125, 0.75):
        want, got = ([t.clone() for t in (x, w, m, v)] for _ in range(2))
        results = [*pytree.tree_leaves(call(*want, eps)), *want]
        mine = [*pytree.tree_leaves(fast(*got, eps)), *got]
        eps_of_type = torch.finfo(dtype).eps
        torch.testing.assert_close(mine, results, rtol=8 * eps_of_type, atol=8 * eps_of_type)
    assert (fast.stats().misses, fast.stats().fallbacks) == (1, {})
    assert "extern" not in fast.inspect("ir")


@torch.enable_grad()
def test_statistics_are_written_as_eager_counts():
    """Eager writes them unseen: a way back that reads them in evaluation goes on."""
    model, x = nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4)
    fast = fastjit(lambda x: model(x))
    for _ in range(3):
        fast(x.requires_grad_()).sum().backward()
    version = model.running_mean._version
    fast(x).sum().backward()
    assert model.running_mean._version == version and fast.stats().hits == 3


@torch.enable_grad()
def test_one_layer_twice_and_modes_between():
    model = nn.BatchNorm1d(4)
    twin = copy.deepcopy(model)
    fast = fastjit(lambda x: twin(twin(x) * 2) + twin.running_mean)
    eager = lambda x: model(model(x) * 2) + model.running_mean  # noqa: E731
    for training in (True, True, True, False, False, True):
        model.train(training)
        twin.train(training)
        x = torch.randn(5, 4)
        torch.testing.assert_close(fast(x), eager(x))
        torch.testing.assert_close(twin.running_var, model.running_var)
    assert fast.stats().hits >= 3 and fast.stats().fallbacks == {}


@torch.enable_grad()
def test_a_momentum_that_counts():
    model = nn.BatchNorm1d(4, momentum=None)
    twin = copy.deepcopy(model)
    fast = fastjit(lambda x: twin(x))
    for _ in range(6):
        x = torch.randn(5, 4)
        torch.testing.assert_close(fast(x), model(x))
        torch.testing.assert_close(twin.running_mean, model.running_mean)
        torch.testing.assert_close(twin.running_var, model.running_var)


@torch.enable_grad()
def test_one_value_a_channel_is_eagers_error():
    model = nn.BatchNorm1d(4)
    fast = fastjit(lambda x: model(x))
    for _ in range(3):
        fast(torch.randn(5, 4))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        fast(torch.randn(1, 4))
