"""What follows four detection networks: YOLOv3, SSD, YOLACT and FCOS on images of 320 x 320, batch 1.

Numbers stand where they are used: torch.jit.script takes no globals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def greedy(over: Tensor) -> Tensor:
    """What is kept where a row overlaps each later one that `over` says."""
    keep = torch.ones(over.shape[0], dtype=torch.bool)
    for i in range(over.shape[0] - 1):
        keep[i + 1 :] &= ~(over[i, i + 1 :] & keep[i])
    return keep


def nms(boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Greedy, class by class (the boxes of each label are moved apart), among the highest scores."""
    order = scores.sort(descending=True)[1][:100]
    near = boxes[order]
    moved = near + (labels[order].to(near.dtype) * (near.max() + 1)).unsqueeze(1)
    low = torch.max(moved[:, None, :2], moved[None, :, :2])
    high = torch.min(moved[:, None, 2:], moved[None, :, 2:])
    sides = (high - low).clamp(min=0)
    both = sides[:, :, 0] * sides[:, :, 1]
    area = (moved[:, 2] - moved[:, 0]) * (moved[:, 3] - moved[:, 1])
    over = both / (area[:, None] + area[None, :] - both) > threshold
    kept = order[greedy(over)]
    return torch.cat((boxes[kept], scores[kept].unsqueeze(1)), dim=1), labels[kept]


def decode(anchors: Tensor, deltas: Tensor) -> Tensor:
    """Boxes from anchors and what the network says of them, inside the image: two writes to every other column."""
    deltas = deltas * torch.tensor([0.1, 0.1, 0.2, 0.2])
    sizes = anchors[:, 2:] - anchors[:, :2]
    centres = (anchors[:, :2] + anchors[:, 2:]) * 0.5 + sizes * deltas[:, :2]
    half = sizes * deltas[:, 2:].clamp(-4.1352, 4.1352).exp() * 0.5
    boxes = torch.cat((centres - half, centres + half), dim=1)
    boxes[..., 0::2].clamp_(0, 320)
    boxes[..., 1::2].clamp_(0, 320)
    return boxes


def grid(width: int, stride: float) -> Tensor:
    """The corners of the cells as x, y, x, y."""
    at = torch.arange(width) * stride
    x, y = at.repeat(width), at.view(-1, 1).repeat(1, width).view(-1)
    return torch.stack((x, y, x, y), dim=1)


class YOLOv3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strides = [32, 16, 8]
        self.anchors = [
            [[116.0, 90.0], [156.0, 198.0], [373.0, 326.0]],
            [[30.0, 61.0], [62.0, 45.0], [59.0, 119.0]],
            [[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]],
        ]

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        maps = [a, b, c]
        flat, every, widths = [], [], []
        for level in range(3):
            stride = self.strides[level]
            one = maps[level].permute(0, 2, 3, 1).reshape(a.shape[0], -1, 85)
            one[..., :2].sigmoid_()
            flat.append(one)
            half = torch.tensor(self.anchors[level]) * 0.5
            base = torch.cat((stride * 0.5 - half, stride * 0.5 + half), dim=1)
            cells = grid(maps[level].shape[2], float(stride))
            every.append((cells[:, None, :] + base[None, :, :]).view(-1, 4))
            widths.append(torch.tensor([float(stride)]).expand(one.shape[1]))
        found, anchors = torch.cat(flat, dim=1), torch.cat(every)
        stride_of = torch.cat(widths).unsqueeze(1)
        centres = (anchors[:, :2] + anchors[:, 2:]) * 0.5 + (found[..., :2] - 0.5) * stride_of
        half_sizes = (anchors[:, 2:] - anchors[:, :2]) * 0.5 * found[..., 2:4].exp()
        boxes = torch.cat((centres - half_sizes, centres + half_sizes), dim=-1)
        objectness, classes = torch.sigmoid(found[..., 4]), torch.sigmoid(found[..., 5:])
        there = objectness[0] >= 0.005
        boxes_there, classes_there, objectness_there = boxes[0][there], classes[0][there], objectness[0][there]
        index = (classes_there > 0.05).nonzero()
        scores = (classes_there * objectness_there.unsqueeze(1))[index[:, 0], index[:, 1]]
        return nms(boxes_there[index[:, 0]], scores, index[:, 1], 0.45)


class SSD(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strides = [16.0, 32.0, 64.0, 107.0, 160.0, 320.0]
        self.least = [48.0, 100.0, 150.0, 202.0, 253.0, 304.0]
        self.most = [100.0, 150.0, 202.0, 253.0, 304.0, 320.0]

    def base(self, level: int) -> Tensor:
        ratios = torch.sqrt(torch.tensor([1.0, 1.0, 0.5, 2.0, 1 / 3, 3.0]))
        sizes = torch.full((6,), self.least[level])
        sizes[1] = (self.least[level] * self.most[level]) ** 0.5
        half = torch.stack((sizes / ratios, sizes * ratios), dim=1) * 0.5
        return torch.cat((self.strides[level] * 0.5 - half, self.strides[level] * 0.5 + half), dim=1)

    def forward(self, classes: list[Tensor], deltas: list[Tensor]) -> tuple[Tensor, Tensor]:
        boxes, scores, labels = [], [], []
        for level in range(6):
            cls = classes[level][0].permute(1, 2, 0).reshape(-1, 81)
            box = deltas[level][0].permute(1, 2, 0).reshape(-1, 4)
            cells = grid(classes[level].shape[2], self.strides[level])
            anchors = (cells[:, None, :] + self.base(level)[None, :, :]).view(-1, 4)
            score = torch.softmax(cls, dim=-1)[:, :-1]
            over = score > 0.02
            index = over.nonzero()
            best, order = score[over].sort(descending=True)
            index = index[order[:1000]]
            boxes.append(decode(anchors[index[:, 0]], box[index[:, 0]]))
            scores.append(best[:1000])
            labels.append(index[:, 1])
        return nms(torch.cat(boxes), torch.cat(scores), torch.cat(labels), 0.45)


class YOLACT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strides = [8.0, 16.0, 32.0, 64.0, 128.0]

    def base(self, stride: float) -> Tensor:
        roots = torch.sqrt(torch.tensor([0.5, 1.0, 2.0]))
        half = torch.stack((3 * stride / roots, 3 * stride * roots), dim=1) * 0.5
        return torch.cat((stride * 0.5 - half, stride * 0.5 + half), dim=1)

    def masks(self, proto: Tensor, coefficients: Tensor, boxes: Tensor) -> Tensor:
        found = torch.sigmoid(torch.matmul(proto, coefficients.t()))
        side = proto.shape[0]
        x1, x2 = torch.min(boxes[:, 0], boxes[:, 2]), torch.max(boxes[:, 0], boxes[:, 2])
        y1, y2 = torch.min(boxes[:, 1], boxes[:, 3]), torch.max(boxes[:, 1], boxes[:, 3])
        x1, y1 = (x1 - 1).clamp(min=0), (y1 - 1).clamp(min=0)
        x2, y2 = (x2 + 1).clamp(max=side), (y2 + 1).clamp(max=side)
        columns = torch.arange(side, dtype=boxes.dtype).view(1, -1, 1).expand_as(found)
        rows = torch.arange(side, dtype=boxes.dtype).view(-1, 1, 1).expand_as(found)
        inside = (columns >= x1) & (columns < x2) & (rows >= y1) & (rows < y2)
        return (found * inside).permute(2, 0, 1)

    def forward(self, classes: list[Tensor], deltas: list[Tensor], more: list[Tensor], proto: Tensor) -> list[Tensor]:
        boxes, scores, coefficients = [], [], []
        for level in range(5):
            cls = torch.softmax(classes[level][0].permute(1, 2, 0).reshape(-1, 81), dim=-1)
            box = deltas[level][0].permute(1, 2, 0).reshape(-1, 4)
            coefficient = torch.tanh(more[level][0].permute(1, 2, 0).reshape(-1, 32))
            cells = grid(classes[level].shape[2], self.strides[level])
            anchors = (cells[:, None, :] + self.base(self.strides[level])[None, :, :]).view(-1, 4)
            rows = cls[:, :-1].max(dim=1)[0].topk(min(1000, cls.shape[0]))[1]
            boxes.append(decode(anchors[rows], box[rows]))
            scores.append(cls[rows])
            coefficients.append(coefficient[rows])
        every, coefficient = torch.cat(boxes), torch.cat(coefficients)
        score, index = torch.cat(scores)[:, :-1].t().sort(dim=1, descending=True)
        score, index = score[:, :200].contiguous(), index[:, :200].contiguous()
        near = every[index.view(-1)].view(80, 200, 4)
        low = torch.max(near[:, :, None, :2], near[:, None, :, :2])
        high = torch.min(near[:, :, None, 2:], near[:, None, :, 2:])
        sides = (high - low).clamp(min=0)
        both = sides[..., 0] * sides[..., 1]
        area = (near[..., 2] - near[..., 0]) * (near[..., 3] - near[..., 1])
        iou = both / (area[:, :, None] + area[:, None, :] - both).clamp(min=1e-6)
        iou.triu_(1)
        keep = (iou.max(dim=1)[0] <= 0.5) & (score > 0.05)
        label = torch.arange(80)[:, None].expand_as(keep)[keep]
        best, order = score[keep].sort(descending=True)
        order = order[:100]
        chosen = near[keep][order]
        mask = self.masks(proto, coefficient[index.view(-1)].view(80, 200, 32)[keep][order], chosen)
        return [chosen, best[:100], label[order], mask]


class FCOS(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strides = [8.0, 16.0, 32.0, 64.0, 128.0]

    def points(self, width: int, stride: float) -> Tensor:
        at = torch.arange(width)
        shifts = torch.zeros(width * width, 2)
        shifts[:, 0].copy_((at.repeat(width) + 0.5) * stride)
        shifts[:, 1].copy_((at.view(-1, 1).repeat(1, width).view(-1) + 0.5) * stride)
        return shifts

    def forward(self, classes: list[Tensor], sides: list[Tensor], centred: list[Tensor]) -> tuple[Tensor, Tensor]:
        boxes, scores, labels, weights = [], [], [], []
        for level in range(5):
            cls = torch.sigmoid(classes[level][0].permute(1, 2, 0).reshape(-1, 80))
            box = sides[level][0].permute(1, 2, 0).reshape(-1, 4)
            centre = torch.sigmoid(centred[level][0].permute(1, 2, 0).reshape(-1))
            points = self.points(classes[level].shape[2], self.strides[level])
            over = cls > 0.025
            index = over.nonzero()
            best, order = cls[over].sort(descending=True)
            index = index[order[:1000]]
            at, out = points[index[:, 0]], box[index[:, 0]]
            decoded = torch.cat((at - out[:, :2], at + out[:, 2:]), dim=1)
            decoded[..., 0::2].clamp_(0, 320)
            decoded[..., 1::2].clamp_(0, 320)
            boxes.append(decoded)
            scores.append(best[:1000])
            labels.append(index[:, 1])
            weights.append(centre[index[:, 0]])
        every, score, label = torch.cat(boxes), torch.cat(scores), torch.cat(labels)
        score *= torch.cat(weights)
        if score.numel() == 0:
            return torch.cat((every, score.unsqueeze(1)), dim=1), label
        return nms(every, score, label, 0.5)


def one_step(over: Tensor) -> Tensor:
    return over.sum(0) == 0


def without_loop(make: Callable[[], Any]) -> Callable[[], Any]:
    """The same with a step in the place of the loop of nms, from then on in the whole process: what is kept differs,
    and is for a count of launches alone."""

    def made() -> Any:
        globals()["greedy"] = one_step
        return make()

    return made


def yolov3() -> tuple[nn.Module, tuple[Tensor, ...]]:
    maps = []
    for width in (10, 20, 40):
        one = torch.randn(1, 3, 85, width, width)
        one[:, :, 2:4] *= 0.3
        one[:, :, 4] -= 6
        one[:, :, 5:] -= 5
        maps.append(one.view(1, 255, width, width))
    return YOLOv3(), tuple(maps)


def ssd() -> tuple[nn.Module, tuple[list[Tensor], ...]]:
    widths = (20, 10, 5, 3, 2, 1)
    classes = [torch.randn(1, 6, 81, width, width) for width in widths]
    for one in classes:
        one[:, :, 80] += 7
    deltas = [torch.randn(1, 24, width, width) for width in widths]
    return SSD(), ([one.flatten(1, 2) for one in classes], deltas)


def yolact() -> tuple[nn.Module, tuple[object, ...]]:
    widths = (40, 20, 10, 5, 3)
    classes, deltas, more = ([torch.randn(1, count, width, width) for width in widths] for count in (243, 12, 96))
    return YOLACT(), (classes, deltas, more, torch.randn(80, 80, 32))


def fcos() -> tuple[nn.Module, tuple[list[Tensor], ...]]:
    widths = (40, 20, 10, 5, 3)
    classes = [torch.randn(1, 80, width, width) - 6 for width in widths]
    sides = [torch.rand(1, 4, width, width) * 64 for width in widths]
    return FCOS(), (classes, sides, [torch.randn(1, 1, width, width) for width in widths])
