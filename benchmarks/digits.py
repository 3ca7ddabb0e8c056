"""A small ConvNeXt learns scikit-learn's digits, by eager and by fastjit: is the accuracy the same?"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import _harness as harness
import fastjit
from _training_programs import convnext
from fastjit._bench.models import library_of

SEEDS = (0, 1, 2)
EPOCHS, BATCH, PIXELS = 4, 64, 16
WIDTHS, DEPTH = (16, 32), 1
VARIANTS = ("eager", "fastjit", "fastjit, whole step")
Data = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Learned:
    accuracy: float
    calls: int = 0
    hits: int = 0


def digits() -> tuple[Data, Data]:
    """1,797 images of 8 x 8, as large as the model wants them; every fifth is for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SystemExit("digits: needs scikit-learn; type: pip install 'fastjit[digits]'") from error
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32).unsqueeze(1)
    images = functional.interpolate(images, size=(PIXELS, PIXELS), mode="bilinear")
    labels = torch.tensor(found.target, dtype=torch.long)
    test = torch.arange(len(labels)) % 5 == 4
    return (images[~test], labels[~test]), (images[test], labels[test])


def model_of(activation: str) -> nn.Module:
    """The seed's model with two stages, for images of one channel and ten classes; without random depth."""
    parts = library_of("torchvision").models.convnext
    first, second = WIDTHS
    stages = [parts.CNBlockConfig(first, second, DEPTH), parts.CNBlockConfig(second, None, DEPTH)]
    model = parts.ConvNeXt(stages, stochastic_depth_prob=0.0, num_classes=10)
    model.features[0][0] = nn.Conv2d(1, first, 4, 4)
    convnext.replace(model, convnext.ACTIVATIONS[activation])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("layer_scale"):
                weight.fill_(0.5)
    return model


@torch.enable_grad()
def learn(activation: str, variant: str, seed: int, train: Data, test: Data, epochs: int = EPOCHS) -> Learned:
    """From the same weights in the same order, whatever the variant."""
    torch.manual_seed(seed)
    model = model_of(activation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    forward = fastjit.fastjit(model) if variant == "fastjit" else model

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if variant == "fastjit, whole step":
        step = fastjit.fastjit(step)
    order = torch.Generator().manual_seed(seed)
    images, labels = train
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=order).split(BATCH):
            step(images[rows], labels[rows])
    found = Learned(0.0)
    if variant != "eager":
        stats = (fastjit.of(forward) if variant == "fastjit" else step).stats()
        found.calls, found.hits = stats.calls, stats.hits
    with torch.no_grad():
        found.accuracy = float((model.eval()(test[0]).argmax(1) == test[1]).float().mean())
    return found


def outside(eager: list[float], ours: list[float]) -> float:
    """How far the mean of ours lies outside of what eager's seeds span."""
    mean = statistics.mean(ours)
    return max(min(eager) - mean, mean - max(eager), 0.0)


def body(options: harness.Options) -> harness.Outcome:
    train, test = digits()
    rows, samples = [], {}
    worst: dict[str, float] = {}
    for activation in convnext.ACTIVATIONS:
        if not options.wants(activation):
            continue
        samples[activation] = of_all = {}
        for variant in VARIANTS:
            options.progress.say(f"{activation}, {variant}")
            of_all[variant] = [vars(learn(activation, variant, seed, train, test)) for seed in SEEDS]
            options.done([activation, variant, span(of_all[variant])])
        eager = [one["accuracy"] for one in of_all["eager"]]
        for variant in VARIANTS[1:]:
            ours = [one["accuracy"] for one in of_all[variant]]
            worst[f"{activation}, {variant}"] = 100 * outside(eager, ours)
        rows.append(
            [activation, *(span(of_all[variant]) for variant in VARIANTS), *map(hits, list(of_all.values())[1:])]
        )
    what = "accuracy on digits: fastjit's mean outside of what eager's seeds span, in points, largest"
    target = harness.worst(what, worst, 0.0, None)
    columns = ["activation", *VARIANTS, "hits of fastjit", "of the whole step"]
    title = f"Accuracy after {EPOCHS} epochs: mean (least to greatest) of {len(SEEDS)} seeds"
    return harness.Outcome([target], [harness.Sheet(title, columns, rows)], samples)


def span(found: list[dict[str, Any]]) -> str:
    of = [100 * one["accuracy"] for one in found]
    return f"{statistics.mean(of):.1f} % ({min(of):.1f} to {max(of):.1f})"


def hits(found: list[dict[str, Any]]) -> str:
    return f"{sum(one['hits'] for one in found)} of {sum(one['calls'] for one in found)} calls"


QUESTION = """\
Does a model that fastjit trains learn what eager's learns? A ConvNeXt of two stages (widths 16 and 32, a block each)
learns scikit-learn's digits at 16 px with AdamW, in batches of 64, with each activation of the seed, from the same
weights and in the same order by all. What seeds change is the measure of what rounding may change."""


if __name__ == "__main__":
    sys.exit(harness.run("digits", "Accuracy on digits", QUESTION, body))
