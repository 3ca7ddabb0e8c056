"""Models of images."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from . import Program, add, case, rand

TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (48, {"img_size": 48}),
    "mixer_s32_224": (224, {}),
    "swin_tiny_patch4_window7_224": (56, {"img_size": 56}),
    "maxvit_pico_rw_256": (64, {"img_size": 64}),
    "efficientnet_b0": (48, {}),
    "convnext_atto": (48, {}),
    "resnet10t": (48, {}),
    "regnetx_002": (48, {}),
    "mobilevit_xxs": (64, {}),
    "cait_xxs24_224": (32, {"img_size": 32}),
    "edgenext_xx_small": (64, {}),
    "eva02_tiny_patch14_224": (42, {"img_size": 42}),
    "fastvit_t8": (64, {}),
    "nfnet_l0": (48, {}),
}
VIT_PYTORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "simple_vit": ("simple_vit.SimpleViT", {"patch_size": 8, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}),
    "vit": ("vit.ViT", {"patch_size": 8, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}),
    "cait": ("cait.CaiT", {"patch_size": 8, "dim": 32, "depth": 2, "cls_depth": 1, "heads": 2, "mlp_dim": 64}),
    "cvt": ("cvt.CvT", {"s1_emb_dim": 16, "s2_emb_dim": 32, "s3_emb_dim": 48, "s3_depth": 2}),
    "max_vit": ("max_vit.MaxViT", {"dim": 16, "dim_head": 8, "depth": (1, 1), "window_size": 4}),
    "deepvit": ("deepvit.DeepViT", {"patch_size": 8, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}),
}
NO_SIZE = ("cvt", "max_vit")


def of_timm(name: str) -> Program:
    import timm

    size, options = TIMM[name]
    model = timm.create_model(name, **options)
    return Program(model.eval(), rand(3, size, size), batches=(1, 2))


for _name in TIMM:
    add("timm", _name, functools.partial(of_timm, _name))


def of_vit_pytorch(name: str) -> Program:
    import importlib

    place, options = VIT_PYTORCH[name]
    file, _, kind = place.partition(".")
    made = getattr(importlib.import_module(f"vit_pytorch.{file}"), kind)
    size = {} if name in NO_SIZE else {"image_size": 32}
    return Program(made(num_classes=10, **size, **options).eval(), rand(3, 32, 32))


for _name in VIT_PYTORCH:
    add("vit-pytorch", f"vit_pytorch_{_name}", functools.partial(of_vit_pytorch, _name))


def of_smp(name: str, encoder: str) -> Program:
    import segmentation_models_pytorch as smp

    return Program(getattr(smp, name)(encoder, encoder_weights=None).eval(), rand(3, 64, 64))


for _name, _encoder in (
    ("Unet", "resnet18"),
    ("FPN", "mobilenet_v2"),
    ("DeepLabV3Plus", "resnet18"),
    ("MAnet", "resnet18"),
    ("Segformer", "mit_b0"),
):
    add("segmentation-models-pytorch", f"smp_{_name.lower()}", functools.partial(of_smp, _name, _encoder))


@case("efficientnet-pytorch")
def efficientnet_pytorch_b0() -> Program:
    from efficientnet_pytorch import EfficientNet

    return Program(EfficientNet.from_name("efficientnet-b0", image_size=64).eval(), rand(3, 64, 64), batches=(1, 2))


@case("efficientnet-pytorch")
def efficientnet_pytorch_features() -> Program:
    from efficientnet_pytorch import EfficientNet

    model: nn.Module = EfficientNet.from_name("efficientnet-b0", image_size=32).eval()
    return Program(model.extract_features, rand(3, 32, 32), model, batches=(1, 2))
