"""Losses, metrics, and steps of reinforcement learning."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from . import Inputs, Program, add, case, classified, rand, randn

METRICS: dict[str, tuple[str, dict[str, Any], Inputs]] = {
    "tm_accuracy": ("classification.multiclass_accuracy", {"num_classes": 10}, classified()),
    "tm_f1": ("classification.multiclass_f1_score", {"num_classes": 10}, classified()),
    "tm_confusion": ("classification.multiclass_confusion_matrix", {"num_classes": 10}, classified()),
    "tm_binned_auroc": (
        "classification.binary_auroc",
        {"thresholds": 20},
        lambda batch: (torch.rand(16 * batch), torch.randint(0, 2, (16 * batch,))),
    ),
    "tm_mse": ("regression.mean_squared_error", {}, randn(8, count=2)),
    "tm_pearson": ("regression.pearson_corrcoef", {}, lambda batch: (torch.randn(8 * batch), torch.randn(8 * batch))),
    "tm_r2": ("regression.r2_score", {}, lambda batch: (torch.randn(8 * batch), torch.randn(8 * batch))),
    "tm_ssim": ("image.structural_similarity_index_measure", {"data_range": 1.0}, rand(3, 20, 20, count=2)),
    "tm_psnr": ("image.peak_signal_noise_ratio", {"data_range": 1.0}, rand(3, 12, 12, count=2)),
    "tm_si_sdr": ("audio.scale_invariant_signal_distortion_ratio", {}, randn(200, count=2)),
    "tm_cosine": ("pairwise.pairwise_cosine_similarity", {}, randn(8, count=2)),
}


def functional_metric(name: str) -> Program:
    import importlib

    place, options, inputs = METRICS[name]
    file, _, function = place.rpartition(".")
    found = getattr(importlib.import_module(f"torchmetrics.functional.{file}"), function)
    return Program(functools.partial(found, **options), inputs)


for _name in METRICS:
    add("torchmetrics", _name, functools.partial(functional_metric, _name))


@case("torchmetrics")
def tm_accuracy_object() -> Program:
    """A metric that gathers counts, as a loop of evaluation holds one."""
    from torchmetrics.classification import MulticlassAccuracy

    return Program(MulticlassAccuracy(num_classes=10), classified(), flips=False)


@case("torchmetrics")
def tm_collection_update() -> Program:
    from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection

    metrics = MetricCollection([MeanSquaredError(), MeanAbsoluteError()])

    def evaluate(got: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        metrics.update(got, wanted)
        return metrics.compute()

    return Program(evaluate, randn(8, count=2), metrics, flips=False)


PIQ: dict[str, tuple[str, dict[str, Any], int]] = {
    "piq_ssim": ("ssim", {"data_range": 1.0, "kernel_size": 5}, 24),
    "piq_gmsd": ("gmsd", {"data_range": 1.0}, 24),
    "piq_vif": ("vif_p", {"data_range": 1.0}, 48),
    "piq_haarpsi": ("haarpsi", {"data_range": 1.0}, 32),
    "piq_total_variation": ("total_variation", {}, 16),
}


def of_piq(name: str) -> Program:
    import piq

    place, options, size = PIQ[name]
    images = rand(3, size, size, count=1 if name == "piq_total_variation" else 2)
    return Program(functools.partial(getattr(piq, place), **options), images)


for _name in PIQ:
    add("piq", _name, functools.partial(of_piq, _name))


@case("pytorch-msssim")
def msssim_function() -> Program:
    from pytorch_msssim import ssim

    return Program(functools.partial(ssim, data_range=1.0, win_size=7), rand(3, 24, 24, count=2))


@case("pytorch-msssim")
def msssim_module() -> Program:
    from pytorch_msssim import MS_SSIM

    return Program(MS_SSIM(data_range=1.0, win_size=3), rand(3, 48, 48, count=2))


@case("lpips")
def lpips_squeeze() -> Program:
    from lpips import LPIPS

    module = LPIPS(net="squeeze", pretrained=False, pnet_rand=True, verbose=False)
    return Program(module.eval(), rand(3, 48, 48, count=2), batches=(1, 2))


METRIC_LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "contrastive_loss": ("ContrastiveLoss", {}),
    "ntxent_loss": ("NTXentLoss", {}),
    "arcface_loss": ("ArcFaceLoss", {"num_classes": 4, "embedding_size": 16}),
    "triplet_margin_loss": ("TripletMarginLoss", {}),
}


def metric_loss(name: str) -> Program:
    from pytorch_metric_learning import losses

    kind, options = METRIC_LOSSES[name]
    return Program(
        getattr(losses, kind)(**options), lambda batch: (torch.randn(6 * batch, 16), torch.arange(6 * batch) % 4)
    )


for _name in METRIC_LOSSES:
    add("pytorch-metric-learning", _name, functools.partial(metric_loss, _name))


@case("auraloss")
def multi_resolution_stft_loss() -> Program:
    from auraloss.freq import MultiResolutionSTFTLoss

    module = MultiResolutionSTFTLoss(fft_sizes=[128, 64], hop_sizes=[32, 16], win_lengths=[128, 64])
    return Program(module, randn(1, 512, count=2))


@case("auraloss")
def audio_si_sdr_loss() -> Program:
    from auraloss.time import SISDRLoss

    return Program(SISDRLoss(), randn(1, 300, count=2))
