"""Filters, transforms and augmentations of images, and what follows a detector."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import Program, add, case, rand

KORNIA: dict[str, tuple[str, dict[str, Any]]] = {
    "gaussian_blur": ("filters.GaussianBlur2d", {"kernel_size": (5, 5), "sigma": (1.5, 1.5)}),
    "sobel": ("filters.Sobel", {}),
    "canny": ("filters.Canny", {}),
    "unsharp": ("filters.UnsharpMask", {"kernel_size": (5, 5), "sigma": (1.5, 1.5)}),
    "rgb_to_hsv": ("color.RgbToHsv", {}),
    "rgb_to_lab": ("color.RgbToLab", {}),
    "equalize_clahe": ("enhance.equalize_clahe", {}),
    "adjust_brightness": ("enhance.AdjustBrightness", {"brightness_factor": 0.3}),
    "dilation": ("morphology.dilation", {"kernel": torch.ones(3, 3)}),
    "harris_corners": ("feature.CornerHarris", {"k": 0.04}),
    "kornia_ssim": ("metrics.ssim", {"window_size": 5}),
    "color_jiggle": ("augmentation.ColorJiggle", {"brightness": 0.1, "contrast": 0.1, "saturation": 0.1, "hue": 0.1}),
    "random_affine": ("augmentation.RandomAffine", {"degrees": 15.0, "p": 1.0}),
}  # fmt: skip
TWO_IMAGES = ("kornia_ssim",)


def of_kornia(name: str) -> Program:
    import kornia

    place, options = KORNIA[name]
    found: Any = kornia
    for part in place.split("."):
        found = getattr(found, part)
    images = rand(3, 24, 24, count=2 if name in TWO_IMAGES else 1)
    if isinstance(found, type):
        return Program(found(**options), images)
    return Program(functools.partial(found, **options), images)


for _name in KORNIA:
    add("kornia", _name, functools.partial(of_kornia, _name))


@case("kornia")
def warp_perspective() -> Program:
    import kornia

    def warp(image: Tensor, corners: Tensor) -> Tensor:
        square = torch.tensor([[[0.0, 0.0], [23, 0], [23, 23], [0, 23]]], dtype=image.dtype).expand(len(image), 4, 2)
        matrix = kornia.geometry.get_perspective_transform(square, square + corners)
        return kornia.geometry.warp_perspective(image, matrix, (24, 24))

    return Program(warp, lambda batch: (torch.rand(batch, 3, 24, 24), torch.rand(batch, 4, 2)))


@case("kornia")
def rotate_and_crop() -> Program:
    import kornia

    def both(image: Tensor, angle: Tensor) -> Tensor:
        return kornia.geometry.center_crop(kornia.geometry.rotate(image, angle), (16, 16))

    return Program(both, lambda batch: (torch.rand(batch, 3, 24, 24), 90 * torch.rand(batch)))


def transform(make: Callable[[Any], Any]) -> Program:
    from torchvision.transforms import v2

    return Program(make(v2), rand(3, 32, 32))


@case("torchvision")
def preprocess() -> Program:
    """What stands before a classifier of ImageNet."""
    return transform(
        lambda v2: v2.Compose(
            [v2.Resize(28), v2.CenterCrop(24), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
        )
    )


@case("torchvision")
def augment() -> Program:
    return transform(
        lambda v2: v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2)])
    )


@case("torchvision")
def blur_and_gray() -> Program:
    return transform(lambda v2: v2.Compose([v2.GaussianBlur(5, 1.0), v2.Grayscale(3), v2.RandomErasing(p=1.0)]))


@case("torchvision")
def functional_adjust() -> Program:
    from torchvision.transforms.v2 import functional as V

    def adjust(image: Tensor) -> Tensor:
        return V.adjust_saturation(V.adjust_gamma(V.hflip(image), 1.2), 0.7)

    return Program(adjust, rand(3, 24, 24))


@case("torchvision")
def generalized_iou() -> Program:
    from torchvision.ops import box_convert, generalized_box_iou

    def score(one: Tensor, other: Tensor) -> Tensor:
        return generalized_box_iou(box_convert(one, "cxcywh", "xyxy"), box_convert(other, "cxcywh", "xyxy"))

    return Program(score, rand(4, count=2), batches=(6, 9))


@case("torchvision")
def focal_loss() -> Program:
    from torchvision.ops import sigmoid_focal_loss

    def loss(logits: Tensor, wanted: Tensor) -> Tensor:
        return sigmoid_focal_loss(logits, (wanted > 0).to(logits.dtype), reduction="mean")

    return Program(loss, lambda batch: (torch.randn(batch, 9), torch.randn(batch, 9)))


def of_vision(name: str, size: int, **options: Any) -> Program:
    from torchvision import models

    model = models.get_model(name, weights=None, **options)
    return Program(model.eval(), rand(3, size, size), batches=(1, 2))


for _name, _size, _options in (
    ("resnet18", 48, {}),
    ("mobilenet_v3_small", 48, {}),
    ("regnet_y_400mf", 48, {}),
    ("googlenet", 64, {"aux_logits": False, "init_weights": False}),
    ("lraspp_mobilenet_v3_large", 48, {"weights_backbone": None}),
):
    add("torchvision", _name, functools.partial(of_vision, _name, _size, **_options))


@case("torchvision")
def swin_transformer() -> Program:
    from torchvision.models import SwinTransformer

    made = SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4])
    return Program(made.eval(), rand(3, 32, 32))


@case("torchvision")
def vision_transformer() -> Program:
    from torchvision.models import VisionTransformer

    return Program(VisionTransformer(32, 8, 2, 2, 32, 64).eval(), rand(3, 32, 32))


@case("torchvision")
def fcos_head_and_boxes() -> Program:
    """The dense part of a detector: anchors, heads and decoded boxes, before suppression."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.fcos import FCOSHead
    from torchvision.models.detection.image_list import ImageList

    head = FCOSHead(32, 1, 5, num_convs=1).eval()
    anchors = AnchorGenerator(((8,), (16,)), ((1.0,),) * 2)

    def detect(image: Tensor, fine: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        found = head([fine, coarse])
        images = ImageList(image, [(32, 32)] * len(image))
        return found["cls_logits"].sigmoid(), found["bbox_regression"], anchors(images, [fine, coarse])

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.rand(batch, 3, 32, 32), torch.randn(batch, 32, 8, 8), torch.randn(batch, 32, 4, 4)

    return Program(detect, inputs, head)


MONAI_TRANSFORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "monai_gaussian_smooth": ("GaussianSmooth", {"sigma": 1.5}),
    "monai_scale_intensity": ("ScaleIntensity", {}),
    "monai_rotate": ("Rotate", {"angle": 0.3}),
}


def of_monai(name: str) -> Program:
    from monai import transforms

    place, options = MONAI_TRANSFORMS[name]
    return Program(getattr(transforms, place)(**options), lambda batch: (torch.rand(1, 12 + batch, 14),))


for _name in MONAI_TRANSFORMS:
    add("monai", _name, functools.partial(of_monai, _name))


@case("monai")
def monai_unet() -> Program:
    from monai.networks.nets import UNet

    module = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)
    return Program(module.eval(), rand(1, 16, 16, 16), batches=(1, 2))


@case("monai")
def monai_dice_loss() -> Program:
    from monai.losses import DiceCELoss

    return Program(
        DiceCELoss(to_onehot_y=True, softmax=True),
        lambda batch: (torch.randn(batch, 3, 12, 12), torch.randint(0, 3, (batch, 1, 12, 12))),
    )


@case("monai")
def monai_unetr() -> Program:
    from monai.networks.nets import UNETR

    module = UNETR(1, 2, (16, 16, 16), feature_size=4, hidden_size=24, mlp_dim=32, num_heads=4)
    return Program(module.eval(), rand(1, 16, 16, 16), batches=(1, 2))


@case("monai")
def monai_sliding_window() -> Program:
    from monai.inferers import SlidingWindowInferer
    from monai.networks.nets import BasicUNet

    network = BasicUNet(spatial_dims=2, features=(4, 4, 8, 8, 16, 4)).eval()
    inferer = SlidingWindowInferer((32, 32), sw_batch_size=2, overlap=0.25)
    return Program(lambda image: inferer(image, network), rand(1, 56, 56), [network], batches=(1, 2))
