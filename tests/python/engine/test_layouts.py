"""Convolutions that follow each other run in channels_last; whatever leaves the program is as eager's."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastjit
from gradient_tools import whole_step
from helpers import assert_same, check


def in_channels_last(fast) -> int:
    """How many calls of torch's give a tensor whose channels lie next to each other, in a plan for row-major images."""
    plan = fast.inspect("plan").splitlines()
    strides = {
        line.split(":")[0]: line.split("strides [")[1].rstrip("]").split(",") for line in plan if " strides [" in line
    }
    calls = [line for line in plan if line.startswith(("product convolution", "extern"))]
    results = [slot for line in calls for slot in line.split("->")[1].split() if slot != "-"]
    return sum(len(s) == 4 and s[1] == "1" != s[3] for s in (strides[slot] for slot in results))


def weights(outer: int, inner: int, *taps: int) -> Tensor:
    """Of two groups: kernels compute small convolutions with one, whatever their layout."""
    return torch.randn(outer, inner // 2, *taps) / (inner * math.prod(taps)) ** 0.5


def convolve(x: Tensor, weight: Tensor, **how: Any) -> Tensor:
    return F.conv2d(x, weight, groups=2, **how)


def pair(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return convolve(F.relu(convolve(x, first, padding=1)), second).relu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_two_that_follow_each_other(dtype):
    args = [t.to(dtype) for t in (torch.randn(2, 8, 17, 16), weights(16, 8, 3, 3), weights(24, 16, 1, 1))]
    expected = pair(*args)
    fast = fastjit.jit(pair)
    for _ in range(3):
        got = fast(*args)
        assert got.stride() == expected.stride()
        # the sums of a convolution, in eager's own order for images in channels_last
        tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(got, expected, **tolerance)
    assert fast.stats().hits == 2 and in_channels_last(fast) == 2


def test_no_further_from_the_exact_result_than_eager():
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Conv2d(32, 32, 3, padding=1, groups=2), nn.ReLU()))).eval()
    x = torch.randn(2, 32, 24, 24)
    eager = model(x)
    exact = model.double()(x.double())
    model.float()
    fast = fastjit.jit(model)
    got = [fast(x) for _ in range(3)][2]
    assert fastjit.of(model).stats().hits == 2 and in_channels_last(fastjit.of(model)) == 6
    assert (got - exact).abs().max() <= 2 * (eager - exact).abs().max()


def test_one_alone_stays_as_it_is():
    fast = check(lambda x, w: convolve(x, w).relu(), torch.randn(2, 8, 16, 16), weights(16, 8, 3, 3), exact=True)
    assert in_channels_last(fast) == 0


def test_what_the_library_does_slower_so_stays():
    args = torch.randn(1, 64, 2, 2), weights(256, 64, 3, 3), weights(64, 256, 1, 1)
    assert in_channels_last(check(pair, *args, exact=True)) == 0


def test_doubles_vectors_and_volumes_stay():
    assert (
        in_channels_last(
            check(pair, *(t.double() for t in (torch.randn(2, 8, 16, 16), weights(16, 8, 3, 3), weights(16, 16, 1, 1))))
        )
        == 0
    )
    check(
        lambda x, w: F.conv1d(F.conv1d(x, w, groups=2).relu(), w, groups=2),
        torch.randn(2, 8, 30),
        torch.randn(8, 4, 3),
        exact=True,
    )
    check(
        lambda x, w: F.conv3d(F.conv3d(x, w, groups=2).relu(), w, groups=2),
        torch.randn(1, 4, 9, 9, 9),
        torch.randn(4, 2, 3, 3, 3),
        exact=True,
    )


@pytest.mark.parametrize("sizes", [(2, 1, 9, 9), (2, 8, 1, 1)])
def test_images_that_lie_both_ways_stay(sizes):
    channels = sizes[1]
    w = torch.randn(channels, channels, 1, 1)
    assert in_channels_last(check(lambda x, w: F.conv2d(F.conv2d(x, w).relu(), w).relu(), torch.randn(sizes), w)) == 0


POOLS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_follow(name):
    def body(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return convolve(POOLS[name](convolve(x, first).relu()), second) + 1

    fast = check(body, torch.randn(2, 8, 16, 16), weights(16, 8, 3, 3), weights(8, 16, 1, 1))
    assert in_channels_last(fast) == 3


def test_calls_that_know_nothing_of_it_get_eagers_strides():
    def body(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = convolve(convolve(x, w, padding=1).relu(), w, padding=1) * 2
        return torch.cumsum(y, 1), convolve(y.relu(), w)

    args = torch.randn(2, 8, 16, 16), weights(8, 8, 3, 3)
    assert in_channels_last(check(body, *args)) > 0


def test_views_and_writes_of_torch_see_one_memory():
    w = weights(8, 8, 3, 3)

    def writes(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = convolve(convolve(x, w, padding=1).relu(), w, padding=1)
        rows = y.view(2, 8, -1)
        rows.masked_scatter_(mask, torch.ones(2 * 8 * 256))
        y.index_fill_(1, torch.tensor([3]), 4.0)
        return y, rows.cumsum(2), convolve(y.relu(), w)

    check(writes, torch.randn(2, 8, 16, 16), torch.rand(2, 8, 256) > 0.5)


def test_attention_over_an_image():
    def body(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
        q, k, v = convolve(convolve(x, out).relu(), w).chunk(3, 1)
        q, k, v = (t.reshape(2, 4, 8, 64).transpose(2, 3) for t in (q, k, v))
        y = torch.softmax(q @ k.transpose(2, 3), -1) @ v
        return convolve(y.transpose(2, 3).reshape(2, 32, 8, 8), out) + x

    check(body, torch.randn(2, 32, 8, 8), weights(96, 32, 1, 1), weights(32, 32, 1, 1))


def test_what_decides_a_branch_keeps_its_bits():
    def body(x: Tensor, w: Tensor) -> Tensor:
        y = convolve(convolve(x, w).relu(), w)
        return y * 2 if y.sum() > 0 else y * 3

    args = torch.randn(2, 8, 16, 16), weights(8, 8, 3, 3)
    assert in_channels_last(check(body, *args)) == 0


def test_results_that_are_convolutions_keep_their_bits():
    def body(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        first = convolve(x, w, padding=1)
        return first, convolve(first.relu(), w, padding=1)

    check(body, torch.randn(2, 8, 16, 16), weights(8, 8, 3, 3), exact=True)


def test_without_onednn():
    args = torch.randn(2, 8, 16, 16), weights(16, 8, 3, 3), weights(16, 16, 1, 1)
    fast = check(pair, *args)
    assert in_channels_last(fast) == 2
    with torch.backends.mkldnn.flags(enabled=False):
        assert_same(fast(*args), pair(*args))


def test_other_sizes_and_groups():
    def body(x: Tensor, wide: Tensor, narrow: Tensor, deep: Tensor) -> Tensor:
        y = convolve(x, wide).sigmoid()
        return (
            F.conv2d(y, deep, padding=2, dilation=2, groups=32, stride=2)
            + convolve(y, narrow).mean((2, 3), keepdim=True)[:, :1]
        )

    for sizes in ((1, 8, 9, 13), (3, 8, 16, 16), (2, 8, 31, 7)):
        check(body, torch.randn(sizes), weights(32, 8, 1, 1), weights(8, 32, 1, 1), torch.randn(32, 1, 3, 3) / 3)


def test_a_model_in_channels_last_stays_so():
    model = nn.Sequential(nn.Conv2d(8, 16, 3, groups=2), nn.ReLU(), nn.Conv2d(16, 8, 1, groups=2), nn.Hardswish())
    model = model.eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 12, 12).to(memory_format=torch.channels_last)
    check(lambda x: model(x), x, exact=False)


def both_ways(call, model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The result and the gradients of one call, by name."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = call(x * 1.0)
    torch.manual_seed(3)
    y.backward(torch.randn_like(y))
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"result": y.detach(), "x": x.grad} | {name: grad for name, grad in grads.items() if grad is not None}


def differs(mine: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    return {name: float((mine[name] - exact[name]).abs().max() / exact[name].abs().max()) for name in exact}


def residual(channels: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, padding=1, bias=False, groups=2), nn.BatchNorm2d(channels), nn.ReLU()]


NETS = {
    "plain": lambda: nn.Sequential(
        nn.Conv2d(4, 18, 3, padding=1, groups=2), nn.ReLU(), nn.Conv2d(18, 24, 3, groups=2), nn.ReLU()
    ),
    "normed": lambda: nn.Sequential(nn.Conv2d(4, 16, 3, groups=2), *residual(16), *residual(16), nn.Flatten(2)),
    "strided, 1 x 1": lambda: nn.Sequential(
        nn.Conv2d(4, 16, 3, 2, groups=2),
        nn.SiLU(),
        nn.Conv2d(16, 32, 1, groups=2),
        nn.SiLU(),
        nn.Conv2d(32, 8, 2, 2, groups=2),
    ),
    "pooled": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=2),
        nn.AvgPool2d(2),
        nn.Flatten(),
    ),
    "each channel by itself": lambda: nn.Sequential(
        nn.Conv2d(4, 16, 1, groups=2),
        nn.Conv2d(16, 16, 5, padding=2, groups=16),
        nn.Hardswish(),
        nn.Conv2d(16, 8, 1, groups=2),
    ),
}


def lies_last(line: str) -> bool:
    """Whether a line of the IR makes images whose channels lie next to each other."""
    return "](" in line and line.split("](")[1].split(",")[1] == "1"


@torch.enable_grad()
@pytest.mark.parametrize("name", NETS)
def test_both_ways_of_a_net_lie_so(name):
    torch.manual_seed(0)
    model, x = NETS[name](), torch.randn(2, 4, 20, 21)
    fast = fastjit.fastjit(lambda x: model(x))
    eager = both_ways(model, model, x)
    for _ in range(4):
        got = both_ways(fast, model, x)
        assert {key: value.stride() for key, value in got.items()} == {k: v.stride() for k, v in eager.items()}
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}
    exact = both_ways(model.double(), model, x.double())
    of_eager, of_fast = differs(eager, exact), differs(got, exact)
    assert all(of_fast[key] <= 2 * of_eager[key] + 1e-6 for key in exact), (of_fast, of_eager)
    back = fast.inspect("ir").split("# the way back")[1]
    lines = back.splitlines()
    calls = [line for line in lines if "aten::convolution_backward" in line]
    images = [line for line in lines if "= result f32[" in line and "which=0" in line and lies_last(line)]
    assert calls and len(images) >= len(calls) - 1
    # what is kept lies as its readers want it: nobody reorders it on the way back
    kept = {line.split()[0] for line in lines if ' "saved' in line and not lies_last(line)}
    assert not [line for line in lines if "= view f32[" in line and lies_last(line) and kept & set(line.split()[3:])]


@torch.enable_grad()
def test_one_alone_stays_row_major_on_the_way_back():
    model, x = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2)), torch.randn(2, 4, 9, 9)
    fast = fastjit.fastjit(lambda x: model(x))
    eager = both_ways(model, model, x)
    for _ in range(3):
        got = both_ways(fast, model, x)
    assert all(torch.equal(got[name], eager[name]) for name in eager) and fast.stats().hits == 2


@torch.enable_grad()
@pytest.mark.parametrize(("channels", "lies_so"), [(64, True), (256, False)])
def test_long_sums_stay_as_exact_as_eagers_on_both_ways(channels: int, lies_so: bool):
    """oneDNN's are further from the exact ones in channels_last: of 3 x 3 taps and 128 channels, 2.7 times."""
    torch.manual_seed(0)
    first = nn.Conv2d(4, channels, 3, padding=1, bias=False, groups=2)
    model, x = nn.Sequential(first, *residual(channels), *residual(channels)), torch.randn(2, 4, 12, 12)
    fast = fastjit.fastjit(lambda x: model(x))
    for _ in range(4):
        got = both_ways(fast, model, x)
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}
    back = fast.inspect("ir").split("# the way back")[1].splitlines()
    assert any("aten::convolution_backward" in line for line in back)
    images = [line for line in back if "= result f32[" in line and "which=0" in line]
    assert images and all(lies_last(line) == lies_so for line in images)
    if not lies_so:
        eager = both_ways(model, model, x)
        exact = both_ways(model.double(), model, x.double())
        of_eager, of_fast = differs(eager, exact), differs(got, exact)
        assert all(of_fast[key] <= 1.5 * of_eager[key] + 2e-7 for key in exact), (of_fast, of_eager)
    with torch.no_grad():
        model.eval().float()
        for _ in range(3):
            fast(x)
    assert in_channels_last(fast) == 3, "without gradients the library's speed decides"


@torch.enable_grad()
def test_whole_steps_lie_so_too():
    torch.manual_seed(0)
    models = [
        nn.Sequential(nn.Conv2d(4, 16, 3, groups=2), *residual(16), *residual(16), nn.Flatten(2)) for _ in range(2)
    ]
    models[1].load_state_dict(models[0].state_dict())

    steps = [whole_step(model, torch.optim.SGD(model.parameters(), lr=0.01)) for model in models]
    eager, fast = steps[0], fastjit.fastjit(steps[1])
    for _ in range(6):
        x = torch.randn(2, 4, 16, 16)
        torch.testing.assert_close(fast(x), eager(x), rtol=1e-4, atol=1e-5)
    for mine, want in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-3, atol=1e-4)
        assert mine.grad.stride() == want.grad.stride()
    assert fast.stats().hits >= 2 and in_channels_last(fast) >= 3


STEPS = """
import torch
import fastjit
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.point = nn.Conv2d(3, 48, 3, 2, 1), nn.Conv2d(3, 48, 1, 2)
        self.norms = nn.ModuleList([nn.BatchNorm2d(48), nn.BatchNorm2d(48)])
        self.next = nn.Conv2d(48, 48, 3, 1, 1)

    def forward(self, x):
        return self.next((self.norms[0](self.wide(x)) + self.norms[1](self.point(x))).relu()).relu()

torch.manual_seed(0)
block = Block()
fast = fastjit.fastjit(block)
for _ in range(8):
    block.zero_grad()
    fast(torch.randn(2, 3, 560, 560)).square().mean().backward()
    rest = [torch.empty(n) for n in (100, 192, 880, 3000)]
stats = fastjit.of(fast).stats()
assert stats.hits == 7 and stats.fallbacks == {}, stats
way_back = fastjit.of(fast).inspect("ir").split("# the way back")[1]
lines = {line.split()[0]: line for line in way_back.splitlines() if " = " in line}
(call,) = [line.split()[4] for line in lines.values() if "= result f32[48,3,1,1]" in line]
image = lines[lines[call].split()[5]]
assert "f32[2,3,560,560]" in image and "f32[2,3,560,560](" not in image, image  # row-major
"""


def test_the_library_overruns_no_memory():
    """oneDNN's gradient of a weight of 1 x 1 writes past its own memory where it takes every other point of an image in
    channels_last with few channels (uxlfoundation/oneDNN#6035), as in the first block of RepVGG. The C library checks
    each block of memory here."""
    checks = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3"}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, env=os.environ | checks, timeout=300
    )
    assert done.returncode == 0, done.stderr
