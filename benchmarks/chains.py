"""24 chains of ops as in models, 1M to 16M elements: is any behind the best peer, and how far ahead is the mean?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import _compare
import _harness as harness
from fastjit._bench import table

COLUMNS = 1024
Make = Callable[[int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Chain:
    kind: str
    name: str
    fn: Callable[..., Any]
    inputs: Make  # from the number of elements
    memory_bound: bool = False


def flat(count: int, dtype: torch.dtype = torch.float32) -> Make:
    return lambda n: tuple(torch.randn(n).to(dtype) for _ in range(count))


def matrix(n: int) -> Tensor:
    return torch.randn(n // COLUMNS, COLUMNS)


def with_row(rows: int, columns: int) -> Make:
    """A matrix, `rows` vectors along its columns' direction and `columns` vectors along its rows'."""
    return lambda n: (
        matrix(n),
        *(torch.randn(COLUMNS) for _ in range(rows)),
        *(torch.randn(n // COLUMNS, 1) for _ in range(columns)),
    )


def two_matrices(n: int) -> tuple[Tensor, ...]:
    return matrix(n), matrix(n)


def gelu_gate(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x * y + 1, approximate="tanh") * x


def softplus_mix(x: Tensor, y: Tensor) -> Tensor:
    return torch.log1p(torch.exp(-x.abs())) + torch.relu(x) * y


def gru_mix(x: Tensor, y: Tensor) -> Tensor:
    z = torch.sigmoid(x)
    return z * torch.tanh(y) + (1 - z) * y


def rotate(x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x) * torch.cos(y) + torch.sqrt(x * x + y * y)


def half_scale(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() * y + 0.5).half()


def bf16_residual(x: Tensor, y: Tensor) -> Tensor:
    return (x + F.silu(y.to(torch.bfloat16)) * 2).to(torch.float32)


def dequantize(q: Tensor, scale: Tensor) -> Tensor:
    return (q.to(torch.float32) - 128) * scale + 1


def double_step(x: Tensor, y: Tensor) -> Tensor:
    return (x.double() * 0.9 + y * 0.1).float()


def bias_relu(x: Tensor, b: Tensor, s: Tensor) -> Tensor:
    return torch.relu(x + b) * s


def rows_and_columns(x: Tensor, r: Tensor, c: Tensor) -> Tensor:
    return x * c + r


def outer_distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b) ** 2 * 0.5


def channel_norm(x: Tensor, mean: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.relu((x - mean) * scale + bias)


def transposed_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() * 2 + y


def pairs(x: Tensor) -> Tensor:
    return x[::2] * x[1::2] + x[::2]


def transposed_copy(x: Tensor, y: Tensor) -> Tensor:
    return (x * y + 1).t().contiguous()


def neighbours(x: Tensor) -> Tensor:
    return (x[:, 1:] - x[:, :-1]).abs() * 0.5


def scaled_softmax(x: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(x * 0.125 + b, dim=-1)


def norm_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (COLUMNS,), w, b))


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def centred_energy(x: Tensor, w: Tensor) -> Tensor:
    return torch.sqrt(((x - x.mean(-1, keepdim=True)) * w).square().sum(-1))


def select(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > y, x * 2, y - 1)


def masked_store(x: Tensor) -> Tensor:
    y = x * 0.5
    y[x > 1] = x[x > 1] * x[x > 1]
    return y


def dropped(x: Tensor, keep: Tensor) -> Tensor:
    return (x * keep / 0.9).masked_fill(~keep, 0.0) + 1


def clipped(x: Tensor, y: Tensor) -> Tensor:
    z = torch.where(x.abs() > 2, torch.sign(x) * 2, x)
    return z * (y > 0) - torch.clamp(y, -1, 1)


CHAINS = (
    Chain("transcendental", "gelu_gate", gelu_gate, flat(2)),
    Chain("transcendental", "softplus_mix", softplus_mix, flat(2)),
    Chain("transcendental", "gru_mix", gru_mix, flat(2)),
    Chain("transcendental", "rotate", rotate, flat(2)),
    Chain("mixed dtype", "half_scale", half_scale, lambda n: (torch.randn(n).half(), torch.randn(n)), True),
    Chain("mixed dtype", "bf16_residual", bf16_residual, lambda n: (torch.randn(n).bfloat16(), torch.randn(n))),
    Chain(
        "mixed dtype",
        "dequantize",
        dequantize,
        lambda n: (torch.randint(256, (n,), dtype=torch.uint8), torch.randn(n)),
        True,
    ),
    Chain("mixed dtype", "double_step", double_step, lambda n: (torch.randn(n), torch.randn(n).double()), True),
    Chain("broadcast", "bias_relu", bias_relu, with_row(2, 0), True),
    Chain("broadcast", "rows_and_columns", rows_and_columns, with_row(1, 1), True),
    Chain(
        "broadcast",
        "outer_distance",
        outer_distance,
        lambda n: (torch.randn(n // COLUMNS, 1), torch.randn(1, COLUMNS)),
        True,
    ),
    Chain(
        "broadcast",
        "channel_norm",
        channel_norm,
        lambda n: (torch.randn(n // 65536, 64, 32, 32), *(torch.randn(64, 1, 1) for _ in range(3))),
        True,
    ),
    Chain("strided", "transposed_add", transposed_add, lambda n: (matrix(n), torch.randn(COLUMNS, n // COLUMNS))),
    Chain("strided", "pairs", pairs, lambda n: (torch.randn(2 * n),), True),
    Chain("strided", "transposed_copy", transposed_copy, two_matrices),
    Chain("strided", "neighbours", neighbours, lambda n: (matrix(n),), True),
    Chain("row reduction", "scaled_softmax", scaled_softmax, with_row(1, 0)),
    Chain("row reduction", "norm_gelu", norm_gelu, with_row(2, 0)),
    Chain("row reduction", "rms_norm", rms_norm, with_row(1, 0), True),
    Chain("row reduction", "centred_energy", centred_energy, with_row(1, 0), True),
    Chain("masked", "select", select, flat(2), True),
    Chain("masked", "masked_store", masked_store, flat(1), True),
    Chain("masked", "dropped", dropped, lambda n: (torch.randn(n), torch.rand(n) > 0.1), True),
    Chain("masked", "clipped", clipped, flat(2), True),
)
SIZES = (1 << 20, 4 << 20, 16 << 20)


def body(options: harness.Options) -> harness.Outcome:
    outcome = harness.Outcome()
    rows, speeds, lows, shares = [], [], [], []
    for chain in CHAINS:
        for n in (1 << 16,) if options.quick else SIZES:
            size = _compare.size_name(n)
            if not options.wants(f"{chain.name} {size}"):
                continue
            torch.manual_seed(0)
            result = _compare.measured(f"{chain.name} {size}", chain.fn, chain.inputs(n), options)
            rows.append([chain.kind, *_compare.line(result, chain.name, size)])
            options.done(rows[-1])
            outcome.samples[f"{chain.name}/{n}"] = _compare.samples(result)
            ratio = _compare.over_best(result)
            if ratio is not None:
                speeds.append(ratio.value)
                lows.append((ratio.low, f"{chain.name} {size}"))
            share = _compare.copy_share(result)
            if chain.memory_bound and share is not None:
                shares.append((share, f"{chain.name} {size}"))
    if not rows:
        raise SystemExit(f"no chain and size contains '{options.only}'")
    behind = [name for low, name in lows if low < 0.97]
    expected = len(rows)
    lowest, where = min(lows) if len(lows) == expected else (None, f"{expected - len(lows)} of {expected} not timed")
    least, at = min(shares) if shares else (None, "")
    said = f"{where}; {len(behind)} of {expected} below 0.97" if lowest is not None else where
    mean = harness.geometric_mean(speeds) if len(speeds) == expected else None
    outcome.targets += [
        harness.Target(
            "24 chains, lowest end of the 95 % intervals over the best peer", 0.97, None, lowest, "higher", detail=said
        ),
        harness.Target("24 chains, geometric mean over the best peer", 1.5, 2.5, mean, "higher"),
        harness.Target("memory-bound chains, least share of copy bandwidth", None, 0.9, least, "higher", detail=at),
    ]
    outcome.sheets.append(harness.Sheet("24 chains", ["kind", *_compare.COLUMNS], rows))
    if speeds:
        outcome.sheets.append(
            harness.Sheet("By kind, geometric mean over the best peer", ["kind", "times as fast"], _kinds(rows, speeds))
        )
    return outcome


def _kinds(rows: list[list[str]], speeds: list[float]) -> list[list[str]]:
    """Empty unless every row has its ratio."""
    if len(rows) != len(speeds):
        return []
    by_kind: dict[str, list[float]] = {}
    for row, speed in zip(rows, speeds, strict=True):
        by_kind.setdefault(row[0], []).append(speed)
    return [[kind, table.figures(harness.geometric_mean(found))] for kind, found in by_kind.items()]


if __name__ == "__main__":
    sys.exit(harness.run("chains", "Chains", __doc__ or "", body))
