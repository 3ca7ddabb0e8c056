"""Small convolutions and their gradients, which kernels compute as sums of products over taps and channels."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastjit
from gradient_tools import compare, leaf, whole_step
from helpers import assert_same, check

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
# image, channels of the result, taps, stride, padding, dilation
WINDOWS = [
    ((4, 16, 16, 16), 16, (3, 3), 1, 1, 1),
    ((2, 3, 17, 14), 16, (3, 3), 1, 1, 1),
    ((2, 1, 28, 28), 32, (5, 5), 1, 0, 1),
    ((2, 16, 9, 10), 32, (3, 3), 2, 1, 1),
    ((2, 16, 9, 10), 32, (1, 1), 2, 0, 1),
    ((2, 8, 8, 8), 24, (1, 1), 1, 0, 1),
    ((2, 8, 8, 8), 9, (1, 1), 1, 2, 1),
    ((1, 5, 12, 11), 7, (3, 2), (2, 1), (1, 0), (1, 3)),
    ((2, 20, 13, 9), 4, (5, 3), (3, 2), (2, 1), 1),
    ((2, 20, 7, 7), 1, (7, 7), 1, 0, 1),
    ((3, 2, 4, 4), 2, (4, 4), 4, 0, 1),
    ((2, 6, 30), 8, (3,), 1, 1, 1),
    ((2, 6, 30), 8, (5,), 2, 2, 2),
    ((1, 4, 6, 7, 5), 8, (3, 3, 3), 1, 1, 1),
    ((1, 4, 6, 7, 5), 8, (1, 3, 2), (1, 2, 1), (0, 1, 1), 1),
]


def is_own(fast: Any) -> bool:
    """No step of the plan is a call of torch's for a convolution or its gradients."""
    return not any("convolution" in line for line in fast.inspect("plan").splitlines())


def check_own(fn: Any, *args: Tensor) -> Any:
    fast = check(fn, *args)
    assert is_own(fast), fast.inspect("plan")
    return fast


def weight_of(image: tuple[int, ...], channels: int, taps: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    weight = torch.randn(channels, image[1], *taps, dtype=dtype)
    return weight / weight[0].numel() ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("image, channels, taps, stride, padding, dilation", WINDOWS)
def test_windows(image, channels, taps, stride, padding, dilation, dtype):
    convolve, how = CONVOLVE[len(taps)], (stride, padding, dilation)
    x, bias = torch.randn(image, dtype=dtype), torch.randn(channels, dtype=dtype)
    w = weight_of(image, channels, taps, dtype)
    check_own(lambda x, w: convolve(x, w, None, *how), x, w)
    check_own(lambda x, w, b: torch.relu(convolve(torch.relu(x), w, b, *how)) * 2, x, w, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("image, channels, taps, stride, padding, dilation", WINDOWS)
def test_gradients_of_windows(image, channels, taps, stride, padding, dilation, dtype):
    convolve, how = CONVOLVE[len(taps)], (stride, padding, dilation)

    def squares(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return convolve(x.sin(), w, b, *how).cos()

    def scenario(run: Any) -> list[Any]:
        x, b = leaf(*image, dtype=dtype), leaf(channels, dtype=dtype)
        w = weight_of(image, channels, taps, dtype).requires_grad_()
        out = run(x, w, b)
        out.backward(torch.randn_like(out) / out[:, 0].numel() ** 0.5)  # sums of the order of one
        return [out, x.grad, w.grad, b.grad]

    stats = compare(scenario, squares)
    assert stats.hits == 2 and stats.fallbacks == {}


@pytest.mark.parametrize("which", ["x", "w", "b", "xw", "xb", "wb"])
@torch.enable_grad()
def test_some_gradients_only(which: str):
    def apply(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, w, b, 1, 1).tanh()

    fast = fastjit.fastjit(apply)
    args = {"x": torch.randn(2, 8, 7, 6), "w": torch.randn(9, 8, 3, 3) / 9, "b": torch.randn(9)}
    for name in which:
        args[name].requires_grad_()
    wanted = [args[name] for name in which]
    given = torch.randn(2, 9, 7, 6)
    for _ in range(3):
        got = torch.autograd.grad(fast(**args), wanted, given)
        for mine, eagers in zip(got, torch.autograd.grad(apply(**args), wanted, given), strict=True):
            assert mine.stride() == eagers.stride()
            torch.testing.assert_close(mine, eagers)
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}
    assert is_own(fast), fast.inspect("plan")


def test_images_as_they_lie():
    w = torch.randn(8, 4, 3, 3) / 6
    rows = torch.randn(2, 4, 9, 10)
    last = rows.contiguous(memory_format=torch.channels_last)
    parts = [rows[:, :, ::2, 1:], torch.randn(2, 8, 9, 10)[:, ::2], torch.randn(1, 4, 9, 10).expand(2, 4, 9, 10)]
    for x in [rows, last, rows.transpose(2, 3), rows.flip(3), *parts]:
        for weight in (w, w.contiguous(memory_format=torch.channels_last), w.transpose(2, 3)):
            check_own(lambda x, w: F.conv2d(x, w, padding=1), x, weight)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("taps", [1, 3])
def test_padding_by_name(padding: str, taps: int):
    check_own(lambda x, w: F.conv2d(x, w, padding=padding), torch.randn(2, 4, 8, 9), torch.randn(8, 4, taps, taps) / 6)


def test_same_padding_of_an_even_number_of_taps_is_torchs():
    fast = check(lambda x, w: F.conv2d(x, w, padding="same"), torch.randn(2, 4, 8, 9), torch.randn(8, 4, 2, 2) / 4)
    assert fast.stats().hits == 1


def test_what_stays_torchs():
    x, w = torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3) / 9
    assert not is_own(check(lambda x, w: F.conv2d(x, w, groups=2).relu(), x, w[:, :4]))
    assert not is_own(check(lambda x, w: F.conv_transpose2d(x, w).relu(), x, w))
    assert not is_own(check(lambda x, w: F.conv2d(x, w).relu(), x.bfloat16(), w.bfloat16()))
    assert not is_own(check(lambda x, w: F.conv2d(x, w).relu(), x[0], w))
    large = torch.randn(4, 64, 56, 56), torch.randn(64, 64, 3, 3) / 24
    assert not is_own(check(lambda x, w: F.conv2d(x, w, padding=1).relu(), *large))


def test_what_decides_a_branch_is_torchs():
    def branches(x: Tensor, w: Tensor) -> Tensor:
        y = F.conv2d(x, w)
        return y * 2 if y.sum() > 0 else y - 1

    x, w = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3)
    fast = fastjit.fastjit(branches)
    for _ in range(3):
        assert_same(fast(x, w), branches(x, w), exact=True)
    assert fast.stats().hits >= 1 and fast.stats().fallbacks == {} and not is_own(fast)


def test_wrong_sizes_are_eagers_error():
    fast = fastjit.fastjit(lambda x, w: F.conv2d(x, w))
    fast(torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3))
    for x, w in [((2, 3, 6, 6), (8, 4, 3, 3)), ((2, 4, 2, 2), (8, 4, 3, 3))]:
        with pytest.raises(RuntimeError) as eager:
            F.conv2d(torch.randn(x), torch.randn(w))
        with pytest.raises(RuntimeError) as ours:
            fast(torch.randn(x), torch.randn(w))
        assert str(ours.value) == str(eager.value)


def test_any_batch_and_any_image():
    w = torch.randn(16, 8, 3, 3) / 9

    def apply(x: Tensor) -> Tensor:
        return F.conv2d(x, w, stride=2, padding=1).relu()

    fast = fastjit.fastjit(apply)
    for size in [
        (2, 8, 9, 9),
        (3, 8, 9, 9),
        (5, 8, 9, 9),
        (3, 8, 12, 15),
        (4, 8, 7, 30),
        (2, 8, 10, 11),
        (6, 8, 21, 5),
    ]:
        x = torch.randn(size)
        assert_same(fast(x), apply(x))
    assert fast.stats().fallbacks == {} and fast.stats().misses <= 4, fast.stats()
    assert is_own(fast), fast.inspect("plan")


@torch.enable_grad()
def test_gradients_of_any_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 16, 3, 2, 1), nn.Tanh()).double()
    fast = fastjit.fastjit(lambda x: model(x))
    for batch in (2, 3, 4, 5, 7, 6, 9, 8):
        x = torch.randn(batch, 3, 8, 9, dtype=torch.float64)
        grads = []
        for call in (model, fast):
            model.zero_grad()
            call(x).square().mean().backward()
            grads.append([p.grad for p in model.parameters()])
        for eagers, mine in zip(*grads, strict=True):
            torch.testing.assert_close(mine, eagers)
    assert fast.stats().fallbacks == {} and fast.stats().hits >= 5, fast.stats()
    assert is_own(fast), fast.inspect("plan")


def test_sums_are_as_near_to_the_exact_ones_as_eagers():
    torch.manual_seed(0)
    x, w = torch.randn(2, 64, 8, 8), torch.randn(32, 64, 3, 3) / 24
    fast = check_own(lambda x, w: F.conv2d(x, w, padding=1), x, w)
    exact, eager = F.conv2d(x.double(), w.double(), padding=1), F.conv2d(x, w, padding=1)
    assert (fast(x, w) - exact).abs().max() <= 1.5 * (eager - exact).abs().max()


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.second, self.norm2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.short(x))


@torch.enable_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_residual_network_trains(dtype: torch.dtype):
    torch.manual_seed(0)
    model = nn.Sequential(Block(3, 8, 1), Block(8, 16, 2), Block(16, 16, 1), nn.Flatten(1)).to(dtype)
    other = copy.deepcopy(model)
    fast = fastjit.fastjit(other)
    for _ in range(4):
        x, given = torch.randn(2, 3, 8, 8, dtype=dtype), torch.randn(2, 256, dtype=dtype)
        for each in (model, fast):
            each.zero_grad()
            each(x).backward(given)
        for mine, eagers in zip(other.parameters(), model.parameters(), strict=True):
            assert mine.grad.stride() == eagers.grad.stride()
            torch.testing.assert_close(mine.grad, eagers.grad, rtol=2e-3, atol=2e-3)
        for mine, eagers in zip(other.buffers(), model.buffers(), strict=True):
            torch.testing.assert_close(mine, eagers)
    stats = fastjit.of(other).stats()
    assert stats.hits == 3 and stats.fallbacks == {}
    assert is_own(fastjit.of(other)), fastjit.of(other).inspect("plan")


@torch.enable_grad()
@pytest.mark.parametrize("order", ["tktkt", "kttkt", "tttkk", "ktktk", "kkttt"])
def test_calls_of_torchs_between_them(order: str):
    """A call for gradients that kernels take the place of has a number no more; the others keep theirs."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, kind in enumerate(order):
        layers += [nn.Conv2d(4, 4, 3 - i % 2, 1 + i % 3 // 2, i % 2, groups=2 if kind == "t" else 1), nn.Tanh()]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.MaxPool2d(2)).double()
    other = copy.deepcopy(model)
    eager, step = (whole_step(net, torch.optim.SGD(net.parameters(), lr=0.1)) for net in (model, other))
    whole = fastjit.fastjit(step)
    ways = fastjit.fastjit(lambda x: model(x))
    for _ in range(5):
        x = torch.randn(2, 3, 14, 15, dtype=torch.float64)
        given = torch.randn_like(model(x))
        wanted = torch.autograd.grad(model(x), list(model.parameters()), given)
        for mine, eagers in zip(torch.autograd.grad(ways(x), list(model.parameters()), given), wanted, strict=True):
            torch.testing.assert_close(mine, eagers)
        torch.testing.assert_close(whole(x), eager(x))
    for mine, eagers in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, eagers)
    assert ways.stats().fallbacks == {} and ways.stats().hits == 4 and not is_own(ways)
    assert whole.stats().hits >= 1  # the first one meets what torch imports for its optimizers


@torch.enable_grad()
def test_weights_are_reordered_when_their_turn_comes():
    """Also before a call of torch's, here for the first layer: no two are alive at once that need not be."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.Tanh())]
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.ReLU(), *layers)
    fast, x = fastjit.fastjit(model), torch.randn(2, 16, 8, 8)
    for _ in range(3):
        model(x).square().sum().backward()
    assert fastjit.of(fast).stats().hits == 2 and fastjit.of(fast).stats().fallbacks == {}
    way_back = fastjit.of(fast).inspect("plan").split("# input I:")[-1]
    reordered = re.findall(r"^(s\d+): .* f32\[3,3,16,16\]", way_back, re.MULTILINE)
    steps = way_back[: way_back.index("\noutputs ")]
    at_once = re.split(r"^(?=\S)", steps, flags=re.MULTILINE)  # a `parallel` with its launches is one
    made = [i for i, launches in enumerate(at_once) for name in reordered if re.search(rf" {name}\) sizes", launches)]
    assert len(reordered) == 3 and len(set(made)) == 3, way_back


def test_the_same_layer_many_times():
    layers = nn.Sequential(*(m for _ in range(12) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()))).eval()
    fast = check_own(lambda x: layers(x), torch.randn(2, 8, 8, 8))
    assert fast.inspect("plan").count("\nkernel dims") <= 6, fast.inspect("plan")
