"""Rows of the operators that autograd's formulas call: against eager, and fused in the way back of a call."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fastjit import _C, fastjit
from lowering_tools import FLOATS, compare

aten = torch.ops.aten
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, -6.0, 20.0, -20.0, 89.0, -88.0, 1e-7, -1e-7, 1e30, -1e30]
SPECIAL += [math.inf, -math.inf, math.nan, 0.999, 1e-3, 100.0]
Cases = dict[str, tuple[Any, tuple, dict]]


def random(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(sizes, dtype=torch.float64).to(dtype)


def elementwise(g: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Cases:
    """Calls of which each element of the result follows from one of each operand."""
    plain = {name: getattr(aten, f"{name}_backward").default for name in
             "sigmoid tanh silu mish hardswish hardsigmoid gelu".split()}  # fmt: skip
    inside = x.abs().clamp(0, 1)
    cases: Cases = {name: (op, (g, x), {}) for name, op in plain.items()} | {
        "gelu of tanh": (aten.gelu_backward.default, (g, x), {"approximate": "tanh"}),
        "threshold": (aten.threshold_backward.default, (g, x, 0.3), {}),
        "hardshrink": (aten.hardshrink_backward.default, (g, x, 0.5), {}),
        "softshrink": (aten.softshrink_backward.default, (g, x, 0.3), {}),
        "hardtanh": (aten.hardtanh_backward.default, (g, x, -0.3, 0.7), {}),
        "leaky_relu": (aten.leaky_relu_backward.default, (g, x, 0.1, False), {}),
        "elu": (aten.elu_backward.default, (g, 1.1, 1.2, 1.3, False, x), {}),
        "elu of the result": (aten.elu_backward.default, (g, 1.1, 1.2, 1.3, True, x), {}),
        "softplus": (aten.softplus_backward.default, (g, x, 1.3, 20.0), {}),
        "logit": (aten.logit_backward.default, (g, inside, None), {}),
        "logit, clamped": (aten.logit_backward.default, (g, inside, 0.1), {}),
        "prelu": (aten._prelu_kernel_backward.default, (g, x, y), {}),
        "dropout": (aten.native_dropout_backward.default, (g, x > 0, 1.7), {}),
        "mse_loss": (aten.mse_loss_backward.default, (g, x, y, 0), {}),
        "smooth_l1_loss": (aten.smooth_l1_loss_backward.default, (g, x, y, 0, 0.7), {}),
        "l1_loss": (aten.smooth_l1_loss_backward.default, (g, x, y, 0, 0.0), {}),
        "huber_loss": (aten.huber_loss_backward.default, (g, x, y, 0, 0.7), {}),
        "binary_cross_entropy": (aten.binary_cross_entropy_backward.default, (g, inside, y, y, 0), {}),
    }
    if x.dtype != torch.float16:
        cases["log_sigmoid"] = (aten.log_sigmoid_backward.default, (g, x, torch.exp(-x.abs())), {})
    return cases


def losses(dtype: torch.dtype) -> Cases:
    """Means and sums, whose gradient is one number."""
    g, x, y, inside = (random(*sizes, dtype=dtype) for sizes in ((), (3, 7), (3, 7), (3, 7)))
    inside = inside.sigmoid()
    cases: Cases = {}
    for reduction in (1, 2):
        cases |= {
            f"mse_loss {reduction}": (aten.mse_loss_backward.default, (g, x, y, reduction), {}),
            f"smooth_l1_loss {reduction}": (aten.smooth_l1_loss_backward.default, (g, x, y, reduction, 0.7), {}),
            f"huber_loss {reduction}": (aten.huber_loss_backward.default, (g, x, y, reduction, 0.7), {}),
            f"binary_cross_entropy {reduction}": (
                aten.binary_cross_entropy_backward.default, (g, inside, y, None, reduction), {}),
        }  # fmt: skip
    weight, total = random(13, dtype=dtype).abs(), torch.tensor(3.3, dtype=dtype)
    for op, sizes in ((aten.nll_loss_backward.default, (7, 13)), (aten.nll_loss2d_backward.default, (2, 13, 3, 4))):
        target = torch.randint(13, (sizes[0], *sizes[2:]))
        target.view(-1)[2] = -100
        scores = random(*sizes, dtype=dtype)
        for reduction in (0, 1, 2):
            gradient = g if reduction else random(*target.shape, dtype=dtype)
            for w in (weight, None):
                args = (gradient, scores, target, w, reduction, -100, total)
                cases[f"{op} {reduction} {w is None}"] = (op, args, {})
    lone = (g, random(13, dtype=dtype), torch.tensor(4), weight, 1, -100, total)
    cases["nll_loss of one"] = (aten.nll_loss_backward.default, lone, {})
    return cases


def parts(dtype: torch.dtype) -> Cases:
    g = random(4, 5, dtype=dtype)
    return {
        "select": (aten.select_backward.default, (g, [4, 7, 5], 1, -2), {}),
        "slice": (aten.slice_backward.default, (g, [4, 16], 1, 3, 2**62, 3), {}),
        "slice from behind": (aten.slice_backward.default, (g, [9, 5], 0, -5, -1, 1), {}),
        "diagonal": (aten.diagonal_backward.default, (g, [7, 4, 7], 2, 2, 0), {}),
        "diagonal below": (aten.diagonal_backward.default, (g, [4, 8, 5], -3, 1, 2), {}),
        "choice": (aten.value_selecting_reduction_backward.default,
                   (g, 1, torch.randint(7, (4, 5)), [4, 7, 5], False), {}),
        "choice, kept": (aten.value_selecting_reduction_backward.default,
                         (g[:, None], 1, torch.randint(7, (4, 1, 5)), [4, 7, 5], True), {}),
        "glu": (aten.glu_backward.default, (g, random(4, 10, dtype=dtype), -1), {}),
        "pad": (aten.constant_pad_nd.default, (g, [1, 2, -1, 3], 0.5), {}),
        "pad with nothing": (aten.constant_pad_nd.default, (g, [-1, -2]), {}),
        "pad by mode": (aten.pad.default, (g, [2, 0]), {}),
    }  # fmt: skip


def norms(dtype: torch.dtype, statistics: torch.dtype) -> Cases:
    cases: Cases = {}
    for sizes in ((5, 33), (1, 7), (3, 4, 65)):
        g, x = random(*sizes, dtype=dtype), random(*sizes, dtype=dtype) + 3
        if dtype == statistics:
            for dim in (0, -1):
                args = (g, torch.softmax(x, dim), dim, dtype)
                cases[f"softmax {sizes} {dim}"] = (aten._softmax_backward_data.default, args, {})
                args = (g, torch.log_softmax(x, dim), dim, dtype)
                cases[f"log_softmax {sizes} {dim}"] = (aten._log_softmax_backward_data.default, args, {})
        for mask in ([True, True, True], [False, True, False]):
            w, b = random(sizes[-1], dtype=statistics), random(sizes[-1], dtype=statistics)
            _, mean, rstd = torch.native_layer_norm(x, [sizes[-1]], w, b, 1e-5)
            args = (g, x, [sizes[-1]], mean, rstd, w, b, mask)
            cases[f"layer_norm {sizes} {mask}"] = (aten.native_layer_norm_backward.default, args, {})
    for sizes, groups in (((2, 6, 5), 3), ((3, 6, 5, 7), 1), ((1, 6, 33), 6)):
        g, x = random(*sizes, dtype=dtype), random(*sizes, dtype=dtype) + 3
        w, b, running, spread = (random(6, dtype=statistics) for _ in range(4))
        spread = spread.abs() + 0.1
        shape = (sizes[0], 6, x.numel() // sizes[0] // 6)
        for weight in (w, None):
            mask = [True, weight is not None, weight is not None]
            _, mean, rstd = torch.native_group_norm(x, w, b, *shape, groups, 1e-5)
            args = (g, x, mean, rstd, weight, *shape, groups, mask)
            cases[f"group_norm {sizes} {mask}"] = (aten.native_group_norm_backward.default, args, {})
            _, mean, rstd = torch.native_batch_norm(x, w, b, running.clone(), spread.clone(), True, 0.1, 1e-5)
            for training in (True, False):
                args = (g, x, weight, running, spread, mean, rstd, training, 1e-5, mask)
                cases[f"batch_norm {sizes} {mask} {training}"] = (aten.native_batch_norm_backward.default, args, {})
    return cases


def check(cases: Cases, ulps: float = 2.0) -> None:
    wrong = {name: found for name, (op, args, kwargs) in cases.items()
             if (found := compare(op, args, kwargs, ulps=ulps)) is not None}  # fmt: skip
    assert wrong == {}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elements(dtype):
    values = torch.tensor(SPECIAL, dtype=torch.float64)
    x = torch.cat([values, torch.randn(235, dtype=torch.float64) * 3]).to(dtype)
    gradients = torch.roll(x, 5).nan_to_num(1.0, 2.0, -2.0)
    check(elementwise(gradients, x, torch.roll(x, 50)))


# Eager has one formula for its vectors and another one for what is left over, which differ in NaN.
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elements_of_less_than_a_vector(dtype):
    x = torch.tensor([math.nan, 0.3, -3.0]).to(dtype)
    check(elementwise(torch.tensor([2.0, 0.7, -1.0]).to(dtype), x, x.flip(0)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elements_that_are_not_contiguous(dtype):
    g, x, y = random(9, 7, dtype=dtype).t(), random(7, 18, dtype=dtype)[:, ::2], random(1, 9, dtype=dtype)
    check(elementwise(g, x, y.expand(7, 9)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_losses(dtype):
    check(losses(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_parts(dtype):
    check({name: case for name, case in parts(dtype).items() if name != "glu" or dtype.is_floating_point})


@pytest.mark.parametrize(("dtype", "statistics"), [*((d, d) for d in FLOATS), (torch.bfloat16, torch.float32)], ids=str)
def test_norms(dtype, statistics):
    check(norms(dtype, statistics))


def test_what_torch_may_refuse_is_left_to_it():
    g, x = torch.randn(4, 5), torch.randn(4, 5)
    assert compare(aten.leaky_relu_backward.default, (g, x, 0.1, True), {}, symbolic=True) == "extern"
    assert compare(aten.elu_backward.default, (g, 1.0, 1.0, 1.0, True, x), {}, symbolic=True) == "extern"
    for name in ("threshold_backward", "leaky_relu_backward"):
        args = (g, x, 0.1) if name.startswith("threshold") else (g, x, 0.1, False)
        assert compare(getattr(aten, name).default, args, {}, symbolic=True) is None


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_programs_have_no_step_of_torchs(dtype):
    cases = list(elementwise(*(random(5, 9, dtype=dtype) for _ in range(3))).values())
    cases += [case for case in (norms(dtype, dtype) | parts(dtype) | losses(dtype)).values()]

    def f(*tensors):
        rest = iter(tensors)
        out = []
        for op, args, kwargs in cases:
            found = op(*[next(rest) if isinstance(a, torch.Tensor) else a for a in args], **kwargs)
            out += [t for t in (found if isinstance(found, tuple) else (found,)) if t is not None]
        return out

    fast = fastjit(f)
    tensors = [a for _, args, _ in cases for a in args if isinstance(a, torch.Tensor)]
    with torch.no_grad():
        for _ in range(3):
            got = fast(*tensors)
        for mine, eager in zip(got, f(*tensors), strict=True):
            limit = 32 * torch.finfo(dtype).eps * float(eager.abs().max())
            torch.testing.assert_close(mine, eager, rtol=0, atol=limit)
    assert fast.stats().fallbacks == {} and fast.stats().hits == 2
    assert "extern" not in fast.inspect("ir")


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(16, 33), nn.GELU(), nn.LayerNorm(33), nn.Sigmoid()), (8, 16)),
    "planes": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(), nn.BatchNorm2d(4), nn.GLU(1)), (3, 4, 5, 5)),
    "attention": (lambda: nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True), (2, 5, 16)),
}  # fmt: skip


@torch.enable_grad()
@pytest.mark.parametrize("name", MODELS)
def test_the_way_back_of_a_model_is_fused(name):
    make, sizes = MODELS[name]
    model, x = make(), torch.randn(sizes, requires_grad=True)
    leaves = [x, *model.parameters()]
    fast = fastjit(lambda x: model(x))

    def gradients(call: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(2)
        y = call(x)
        return torch.autograd.grad(y, leaves, torch.randn_like(y))

    want = gradients(model)
    for _ in range(3):
        gradients(fast)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        got = gradients(fast)
    for mine, eager in zip(got, want, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=2e-5)
    rows = {row for row, lowered in _C.lowered_ops() if lowered}
    ran = {event.name for event in seen.events() if event.name.startswith("aten::") and "_backward" in event.name}
    assert ran & rows == set() and fast.stats().hits >= 2


# taps, stride, padding, dilation
TAPS = [(7, 1, 3, 1), (5, 2, 2, 1), (5, 2, 4, 2), ((1, 11), 1, (0, 5), 1), (4, 3, 0, 1)]


@torch.enable_grad()
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("taps", TAPS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_a_channel_by_itself(taps, order, bias):
    model = nn.Conv2d(8, 8, *taps, groups=8, bias=bias)
    x = torch.randn(3, 8, 14, 15).to(memory_format=order).requires_grad_()
    fast = fastjit(lambda x: torch.tanh(model(x)))
    leaves = [x, *model.parameters()]
    y = torch.tanh(model(x))
    g = torch.randn_like(y)
    want = torch.autograd.grad(y, leaves, g)
    for _ in range(3):
        got = torch.autograd.grad(fast(x), leaves, g)
    exact = copy.deepcopy(model).double()
    wide = x.detach().double().requires_grad_()
    right = torch.autograd.grad(torch.tanh(exact(wide)), [wide, *exact.parameters()], g.double())
    for mine, eager, true in zip(got, want, right, strict=True):
        assert mine.stride() == eager.stride()
        assert (mine - true).abs().max() <= 1.5 * (eager - true).abs().max() + 1e-6 * true.abs().max()
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}
    back = fast.inspect("ir").split("# the way back")[1]
    assert back.count("aten::convolution_backward") == 1 and "= result" in back
    assert not [line for line in back.splitlines() if "= result" in line and "which=0" not in line]


@torch.enable_grad()
def test_weights_of_few_taps_are_torchs():
    """oneDNN has a kernel for 3 x 3 taps."""
    model, x = nn.Conv2d(8, 8, 3, groups=8), torch.randn(2, 8, 9, 9)
    fast = fastjit(lambda x: model(x))
    for _ in range(3):
        fast(x).sum().backward()
    assert fast.stats().hits == 2 and "which=1" in fast.inspect("ir").split("# the way back")[1]
