"""Each formula of autograd's that formulas.def says is the same for all sizes, at sizes that were not recorded.

Each row is an expression of x, a leaf of n times 6 elements; the test asserts that the node is in its graph. Every call
is compared with eager, twice at each size, with its gradients.
"""

from __future__ import annotations

import collections
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchgen
from torch import Tensor

from fastjit import fastjit
from helpers import since

SIZES = (4, 5, 6, 9, 12, 4, 33, 7, 16, 8)
TABLE = Path(__file__).parents[3] / "src/capture/ops/formulas.def"
ROWS = re.findall(r"^FORMULA\((\w+)\)", TABLE.read_text(), re.MULTILINE)
READ: dict[str, list[str]] = json.loads(Path(__file__).with_name("formulas_read.json").read_text())

POINTWISE = """abs acosh:x.abs()+2 asinh ceil celu:F cos cosh elu:F erf erfc exp exp2 expm1 floor frac hardshrink:F
hardsigmoid:F hardswish:F hardtanh:F lgamma mish:F neg relu round sigmoid sign silu:F sin sinc sinh softplus:F
softshrink:F tan tanh trunc gelu:F leaky_relu:F reciprocal atan log_sigmoid"""
CASES: dict[str, str] = {
    "Acos": "(x.sin() / 2).acos()",
    "Acosh": "(x.abs() + 2).acosh()",
    "AdaptiveAvgPool2D": "F.adaptive_avg_pool2d(x.view(1, 1, -1, 6), 2)",
    "AdaptiveAvgPool3D": "F.adaptive_avg_pool3d(x.view(1, 1, -1, 2, 3), 2)",
    "AdaptiveMaxPool2D": "F.adaptive_max_pool2d(x.view(1, 1, -1, 6), 2)",
    "AdaptiveMaxPool3D": "F.adaptive_max_pool3d(x.view(1, 1, -1, 2, 3), 2)",
    "Add": "torch.add(x, x.exp(), alpha=2)",
    "Addbmm": "torch.addbmm(x, x.view(-1, 2, 3).transpose(0, 1), x.view(-1, 2, 3)[:3].transpose(0, 1).repeat(1, 1, 2))",
    "Addcdiv": "torch.addcdiv(x, x, x.exp(), value=3)",
    "Addcmul": "torch.addcmul(x, x, x.exp(), value=3)",
    "Addmm": "torch.addmm(x, x, x.t() @ x, beta=2, alpha=3)",
    "Addmv": "torch.addmv(x[:, 0], x, x[0], alpha=2)",
    "Alias": "torch.ops.aten.alias(x) * 2",
    "Amax": "x.amax(0)",
    "Amin": "x.amin(1)",
    "Asin": "(x.sin() / 2).asin()",
    "Atan2": "torch.atan2(x, x.exp())",
    "Atanh": "(x.sin() / 2).atanh()",
    "AvgPool2D": "F.avg_pool2d(x.view(1, 1, -1, 6), 2)",
    "AvgPool3D": "F.avg_pool3d(x.view(1, 1, -1, 2, 3), 2)",
    "Baddbmm": "torch.baddbmm(x[None], x[None], (x.t() @ x)[None], alpha=2)",
    "BinaryCrossEntropyWithLogits": "F.binary_cross_entropy_with_logits(x * 2, x.cos().sigmoid())",
    "Bmm": "torch.bmm(x[None], (x.t() @ x)[None])",
    "Cat": "torch.cat([x, x.exp()], 1)",
    "Clamp": "x.clamp(-0.5, 0.5)",
    "ClampMax": "x.clamp_max(0.5)",
    "ClampMin": "x.clamp_min(0.5)",
    "Clone": "x.clone() * 2",
    "Col2Im": "F.fold(x.reshape(1, -1, 6)[:, :4], (3, 4), 2)",
    "ConstantPadNd": "F.pad(x, (1, -1, 2, 0))",
    "Convolution": "F.conv1d(x.view(-1, 2, 3), x.view(-1, 2, 3)[:3, :, :2])",
    "Cumsum": "x.cumsum(0)",
    "DiagEmbed": "torch.diag_embed(x)",
    "Diagonal": "x.view(-1, 2, 3).diagonal(0, 1, 2) * 2",
    "Div": "x / x.exp()",
    "Dot": "torch.dot(x[:, 0], x[:, 1])",
    "Embedding": "F.embedding(torch.tensor([0, 2, 1]), x)",
    "Erfinv": "(x.sin() / 2).erfinv()",
    "Expand": "x[:, None].expand(-1, 3, -1) * 2",
    "Fill": "torch.fill(x, 2.0) + x",
    "Flip": "x.flip(0) * 2",
    "Fmod": "x.fmod(0.3)",
    "Gather": "x.gather(0, torch.tensor([[0, 1, 2, 0, 1, 2]]))",
    "Glu": "F.glu(x)",
    "GridSampler2D": "F.grid_sample(x.view(1, 1, -1, 6), x.sin()[:4, :4].reshape(1, 2, 4, 2), align_corners=True)",
    "HuberLoss": "F.huber_loss(x, x.exp())",
    "Hypot": "torch.hypot(x, x.exp())",
    "Im2Col": "F.unfold(x.view(-1, 1, 2, 3), 2)",
    "Index": "x[torch.tensor([0, 2])]",
    "IndexAdd": "x.index_add(0, torch.tensor([0, 1]), x[:2])",
    "IndexCopy": "x.index_copy(0, torch.tensor([0, 1]), x[1:3])",
    "IndexFill0": "x.index_fill(0, torch.tensor([0, 1]), 0.5)",
    "IndexPut": "x.index_put((torch.tensor([0, 1]),), x[1:3])",
    "IndexPutImpl": "torch.ops.aten._index_put_impl_(x.clone(), [torch.tensor([0, 1])], x[1:3])",
    "IndexSelect": "x.index_select(0, torch.tensor([0, 1, 1]))",
    "Lerp": "torch.lerp(x, x.exp(), 0.3)",
    "LinalgVectorNorm": "torch.linalg.vector_norm(x, 3, 0)",
    "Log": "(x.abs() + 1).log()",
    "Log10": "(x.abs() + 1).log10()",
    "Log1P": "x.abs().log1p()",
    "Log2": "(x.abs() + 1).log2()",
    "LogSigmoid": "F.logsigmoid(x)",
    "LogSoftmax": "x.log_softmax(0)",
    "Logaddexp": "torch.logaddexp(x, x.cos())",
    "Logaddexp2": "torch.logaddexp2(x, x.cos())",
    "Logsumexp": "x.logsumexp(0)",
    "MaskedFill0": "x.masked_fill(x > 0, 0.5)",
    "Max0": "x.max(0)[0]",
    "MaxPool2DWithIndices": "F.max_pool2d(x.view(1, 1, -1, 6), 2)",
    "Maximum": "torch.maximum(x, x.cos())",
    "Mean": "x.exp().mean(0)",
    "Median1": "x.median(0)[0]",
    "Min0": "x.min(0)[0]",
    "Minimum": "torch.minimum(x, x.cos())",
    "MkldnnRnnLayer": "torch.lstm(x.view(-1, 2, 3), [torch.zeros(1, 2, 4)] * 2, [torch.ones(16, 3) / 9, "
    "torch.ones(16, 4) / 9, torch.ones(16) / 9, torch.ones(16) / 9], True, 1, 0.0, True, False, False)[0]",
    "Mm": "x @ (x.t() @ x)",
    "MseLoss": "F.mse_loss(x, x.exp())",
    "Mul": "x * x.exp()",
    "Mv": "torch.mv(x, x[0])",
    "NativeBatchNorm": "F.batch_norm(x, None, None, training=True)",
    "NativeGroupNorm": "F.group_norm(x, 2)",
    "NativeLayerNorm": "F.layer_norm(x, (6,))",
    "NllLoss": "F.nll_loss(x, torch.zeros(len(x), dtype=torch.long))",
    "NllLoss2D": "F.nll_loss(x.view(-1, 3, 2, 1), torch.zeros(len(x), 2, 1, dtype=torch.long))",
    "Norm": "torch.ops.aten.norm.Scalar(x, 3)",
    "Permute": "x.view(-1, 2, 3).permute(2, 0, 1) * 2",
    "PixelShuffle": "F.pixel_shuffle(x.view(1, -1, 6)[:, :4].reshape(1, 4, 2, 3), 2)",
    "PixelUnshuffle": "F.pixel_unshuffle(x.view(1, -1, 6)[:, :4], 2)",
    "Pow": "x**3",
    "PreluKernel": "F.prelu(x, x[0, :1])",
    "ReflectionPad1D": "F.pad(x, (1, 2), mode='reflect')",
    "ReflectionPad2D": "F.pad(x.view(1, -1, 6), (1, 2, 1, 1), mode='reflect')",
    "ReflectionPad3D": "F.pad(x.view(1, -1, 2, 3), (1, 2, 1, 1, 1, 1), mode='reflect')",
    "Remainder": "x.remainder(0.3)",
    "Repeat": "x.repeat(2, 3)",
    "ReplicationPad1D": "F.pad(x, (1, 2), mode='replicate')",
    "ReplicationPad2D": "F.pad(x.view(1, -1, 6), (1, 2, 1, 1), mode='replicate')",
    "ReplicationPad3D": "F.pad(x.view(1, -1, 2, 3), (1, 2, 1, 1, 1, 1), mode='replicate')",
    "ReshapeAlias": "x.t()[:, :3].reshape(2, 3, 3) * 2",
    "Roll": "x.roll(1, 0) * 2",
    "Rsqrt": "(x.abs() + 1).rsqrt()",
    "Rsub": "torch.rsub(x, x.exp())",
    "SafeSoftmax": "torch._safe_softmax(x, 1)",
    "ScaledDotProductFlashAttentionForCpu": "F.scaled_dot_product_attention(*[x[None, None]] * 3)",
    "Scatter": "x.scatter(0, torch.tensor([[0, 1, 2, 0, 1, 2]]), x[1:2])",
    "ScatterAdd": "x.scatter_add(0, torch.tensor([[0, 1, 2, 0, 1, 2]]), x[1:2])",
    "Select": "x[1] * 2",
    "Slice": "x[1:] * 2",
    "SmoothL1Loss": "F.smooth_l1_loss(x, x.exp())",
    "SoftMarginLoss": "F.soft_margin_loss(x, torch.ones_like(x))",
    "Softmax": "x.softmax(0)",
    "Sort": "x.sort(0)[0]",
    "Split": "x.split(2, 1)[1] * 2",
    "SplitWithSizes": "x.split([2, 4], 1)[1] * 2",
    "Sqrt": "(x.abs() + 1).sqrt()",
    "Squeeze": "x[:, None].squeeze(1) * 2",
    "Stack": "torch.stack([x, x.exp()], 1)",
    "Std": "x.std(1)",
    "StdMean": "torch.std_mean(x, 1)[0]",
    "Sub": "torch.sub(x, x.exp(), alpha=2)",
    "Sum": "x.exp().sum(0)",
    "T": "x.t() * 2",
    "Threshold": "F.threshold(x, 0.1, 3.0)",
    "ToCopy": "x.double() * 2",
    "Topk": "x.topk(2, 0)[0]",
    "Transpose": "x.transpose(0, 1) * 2",
    "Tril": "x.tril() * 2",
    "Triu": "x.triu() * 2",
    "Unbind": "x.unbind(1)[2] * 2",
    "Unfold": "x.unfold(1, 2, 1) * 2",
    "UnsafeSplit": "x.unsafe_split(2, 1)[1] * 2",
    "UnsafeSplitWithSizes": "x.unsafe_split_with_sizes([2, 4], 1)[1] * 2",
    "UnsafeView": "torch.matmul(x.view(-1, 2, 3), x[:3, :4])",
    "Unsqueeze": "x[:, None] * 2",
    "UpsampleBicubic2D": "F.interpolate(x.view(1, 1, -1, 6), scale_factor=2, mode='bicubic')",
    "UpsampleBilinear2D": "F.interpolate(x.view(1, 1, -1, 6), scale_factor=2, mode='bilinear')",
    "UpsampleLinear1D": "F.interpolate(x[None], scale_factor=2, mode='linear')",
    "UpsampleNearest1D": "F.interpolate(x[None], scale_factor=2)",
    "UpsampleNearest2D": "F.interpolate(x.view(1, 1, -1, 6), scale_factor=2)",
    "UpsampleNearest3D": "F.interpolate(x.view(1, 1, -1, 2, 3), scale_factor=2)",
    "UpsampleTrilinear3D": "F.interpolate(x.view(1, 1, -1, 2, 3), scale_factor=2, mode='trilinear')",
    "Var": "x.var(1)",
    "VarMean": "torch.var_mean(x, 1)[0]",
    "View": "x.view(-1, 2, 3) * 2",
    "Where": "torch.where(x > 0, x, x.exp())",
    "Xlogy": "torch.xlogy(x, x.exp())",
    "Zero": "x.clone().zero_() + x",
}
for name in POINTWISE.split():
    op = name.split(":")[0]
    row = "".join(part.capitalize() for part in op.split("_"))
    CASES.setdefault(row, f"F.{op}(x)" if name.endswith(":F") else f"x.{op}()")
# Second derivatives have nodes of their own.
TWICE: dict[str, str] = {
    "GeluBackward": "F.gelu(x)",
    "HardtanhBackward": "F.hardtanh(x)",
    "LeakyReluBackward": "F.leaky_relu(x)",
    "LogSoftmaxBackwardData": "x.log_softmax(1)",
    "SigmoidBackward": "x.sigmoid()",
    "SoftmaxBackwardData": "x.softmax(1)",
    "SoftplusBackward": "F.softplus(x)",
    "TanhBackward": "x.tanh()",
    "ThresholdBackward": "F.relu(x)",
}


@pytest.fixture(autouse=True)
def _grad() -> Iterator[None]:
    with torch.enable_grad():
        yield


def compiled(expression: str) -> Any:
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(f"def f(x):\n    return {expression}\n", scope)
    return scope["f"]


def nodes_of(y: Tensor) -> set[str]:
    todo, names = [y.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in names:
            continue
        names.add(node)
        todo += [parent for parent, _ in node.next_functions]
    return {node.name() for node in names}


def rows_of(names: set[str]) -> set[str]:
    found = {match.groups() for name in names if (match := re.fullmatch(r"(\w+)Backward(\d+)", name))}
    return {row + number for row, number in found} | {row for row, _ in found}


def gradients(f: Any, n: int) -> list[Tensor]:
    torch.manual_seed(n)
    x = torch.randn(n, 6).requires_grad_()
    y = f(x)
    given = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    return [y.detach(), *torch.autograd.grad(y, x, given)]


def second(f: Any) -> Any:
    def g(x: Tensor) -> Tensor:
        y = f(x)
        (first,) = torch.autograd.grad((y * y.detach()).sum(), x, create_graph=True)
        return first.sin()

    return g


def play(f: Any) -> Any:
    fast = fastjit(f)
    for n in SIZES:
        for _ in range(2):
            for got, want in zip(gradients(fast, n), gradients(f, n), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    stats = fast.stats()
    assert not stats.fallbacks, stats
    assert stats.hits >= len(SIZES), stats
    return fast


def formulas_of_this_torch() -> dict[str, str]:
    """By node, as a row may name it: what derivatives.yaml says of gradients, for all forms of the operator."""
    text = Path(torchgen.__file__).parent.joinpath("packaged/autograd/derivatives.yaml").read_text()
    found = collections.defaultdict(list)
    for entry in re.split(r"^- name: ", text, flags=re.MULTILINE)[1:]:
        schema, *lines = [line.strip() for line in entry.splitlines() if not line.lstrip().startswith("#")]
        name, _, arguments = schema.partition("(")
        given = set(re.findall(r"\w+", arguments.partition(") -> ")[0]))
        name = name.partition(".")[0].removesuffix("_forward")
        node = "".join(word.title() for word in name.strip("_").split("_"))
        for line in lines:
            keys, is_formula, _ = line.partition(":")
            if is_formula and given.issuperset(keys.split(", ")):
                found[node].append(line)
    return {node: "\n".join(sorted(lines)) for node, lines in found.items()}


def test_formulas_are_those_that_were_read() -> None:
    """A new one is read first, with the C++ that it calls; its hash is then for formulas_read.json."""
    running = formulas_of_this_torch()
    names = sorted({row if row in running else row[:-1] for row in ROWS})  # Max0 is a row of Max
    hashes = {name: hashlib.sha256(running[name].encode()).hexdigest()[:12] for name in names}
    unread = {name: (one, running[name]) for name, one in hashes.items() if one not in READ.get(name, [])}
    assert not unread, torch.__version__
    assert sorted(READ) == names


def test_every_row_has_a_case() -> None:
    assert sorted({*CASES, *TWICE}) == ROWS


@pytest.mark.parametrize("row", CASES)
def test_formulas(row: str) -> None:
    f = compiled(CASES[row])
    assert row in rows_of(nodes_of(f(torch.randn(4, 6).requires_grad_())))
    play(f)


@pytest.mark.parametrize("row", TWICE)
def test_formulas_of_formulas(row: str) -> None:
    f = second(compiled(TWICE[row]))
    assert row in rows_of(nodes_of(f(torch.randn(4, 6).requires_grad_())))
    play(f)


def test_a_branch_that_nobody_read_is_for_one_size() -> None:
    """To be differentiated again, the formula of torch 2.14 runs other operators."""

    def f(x: Tensor) -> Tensor:
        y = F.group_norm(x.exp(), 2)
        (first,) = torch.autograd.grad((y * y.detach()).sum(), x, create_graph=True)
        return first.detach().sin()

    fast = fastjit(f)
    for n in SIZES:
        x = torch.randn(n, 6, dtype=torch.float64).requires_grad_()
        for _ in range(3):
            torch.testing.assert_close(fast(x), f(x))
    assert fast.stats().hits >= 2 * len(SIZES)
    unread = "the formula of NativeGroupNormBackward0, which may look at sizes"
    assert (unread in fast.inspect("guards")) == since(2, 14)
