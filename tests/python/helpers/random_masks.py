"""Random functions of two tensors and a mask: what masks pick, pointwise work on it, losses, stores through masks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

UNARY = (
    "{0}.sin()", "{0}.exp() * 0.3", "{0} * 2 - 1", "torch.sigmoid({0})", "{0}.abs() + 0.1", "{0}.clamp(-1, 1)",
    "F.gelu({0})", "{0}.detach()", "{0}.float()", "-{0}", "torch.where({0} > 0, {0}, {0} * 0.1)", "{0}.square()",
)  # fmt: skip
BINARY = ("{0} + {1}", "{0} * {1}", "{0} - {1}", "torch.maximum({0}, {1})", "{0} / ({1}.abs() + 1)")
TOTALS = (
    "F.mse_loss({0}, {1})",
    "F.l1_loss({0}, {1})",
    "F.smooth_l1_loss({0}, {1}, beta=0.5)",
    "F.huber_loss({0}, {1})",
    "F.binary_cross_entropy_with_logits({0}, torch.sigmoid({1}))",
    "F.mse_loss({0}, {1}, reduction='sum')",
    "F.l1_loss({0}, {1}, reduction='none').mean()",
    "({0} - {1}).abs().sum()",
    "F.soft_margin_loss({0}, {1}.sign())",
    "F.poisson_nll_loss({0}, {1}.abs())",
    "F.mse_loss({0}.flatten(), {1}.flatten())",
    "(F.l1_loss({0}, {1}) if {0}.numel() > 0 else x.sum() * 0)",
    "(({0} * {1}).mean() if {0}.shape == {1}.shape else x.sum())",
)
MASKS = ("~m", "y[:, 0] > 0", "y > 0.3", "m & (x[:, 1] > 0)", "x.detach() > 0.2", "m", "m.clone()")


def source(seed: int) -> str:
    """Of `f(x, y, m)`, where x and y have 16 rows of 4 and m is a mask of rows."""
    draw = random.Random(seed)
    lines: list[str] = []

    def let(text: str) -> str:
        lines.append(f"v{len(lines)} = {text}")
        return f"v{len(lines) - 1}"

    masks = ["m", *(let(draw.choice(MASKS)) for _ in range(draw.randrange(3)))]
    picked: dict[str, list[str]] = {}
    for mask in masks:
        values = [let(f"({draw.choice(('x', 'y', 'x * 1.5', 'x + y'))})[{mask}]") for _ in range(draw.randrange(2, 4))]
        for _ in range(draw.randrange(4)):
            form = draw.choice(UNARY if draw.random() < 0.5 else BINARY)
            values.append(let(form.format(draw.choice(values), draw.choice(values))))
        picked[mask] = values
    totals = []
    for _ in range(draw.randrange(1, 4)):
        values = picked[draw.choice(masks)]
        totals.append(let(draw.choice(TOTALS).format(draw.choice(values), draw.choice(values))))
    if draw.random() < 0.3:
        stored, mask = let("x.clone()"), draw.choice(masks)
        lines.append(f"{stored}[{mask}] = {draw.choice('xy')}[{mask}] * 0.5")
        totals.append(f"{stored}.sum()")
    return "\n    ".join(["def f(x, y, m):", *lines, "return " + " + ".join(totals)])


def function(seed: int) -> Callable[..., Any]:
    made: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(source(seed), f"random_masks_{seed}.py", "exec"), made)
    return made["f"]
