"""The programs of FuncTs (TensorSSA), written anew from their description: sizes, loops, views and writes are theirs.

Weights and inputs are drawn from a seed. Detection is what follows the network, on maps of its shapes; torchvision's
compiled nms has a loop in tensor code in its place, over the 100 highest scores.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from _program import Program

from . import detection

EVERY_SEQUENCE = (50, 100, 150, 200, 250, 300)
EVERY_BATCH = (1, 4, 8, 16)


def weight(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*sizes) / sizes[-1] ** 0.5)


class LSTM(nn.Module):
    def __init__(self, layers: int = 10, hidden: int = 256) -> None:
        super().__init__()
        self.layers, self.hidden = layers, hidden
        self.w_ih, self.w_hh = weight(layers, 4, hidden, hidden), weight(layers, 4, hidden, hidden)
        self.b_ih, self.b_hh = weight(layers, 4, 1, hidden), weight(layers, 4, 1, hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        batch = inputs.shape[1]
        state_c = torch.zeros(self.layers, 1, batch, self.hidden)
        state_h = torch.zeros(self.layers, 1, batch, self.hidden)
        for t in range(inputs.shape[0]):
            x = inputs[t]
            for j in range(self.layers):
                c, h = state_c[j], state_h[j]
                ih = torch.matmul(x, self.w_ih[j]) + self.b_ih[j]
                hh = torch.matmul(h, self.w_hh[j]) + self.b_hh[j]
                i = torch.sigmoid(ih[0] + hh[0])
                f = torch.sigmoid(ih[1] + hh[1])
                g = torch.tanh(ih[2] + hh[2])
                o = torch.sigmoid(ih[3] + hh[3])
                c = f * c + i * g
                h = o * torch.tanh(c)
                state_c[j] = c
                state_h[j] = h
                x = h
        return state_h[self.layers - 1]


class NASRNN(nn.Module):
    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        self.hidden = hidden
        self.w_ih, self.w_hh = weight(8, hidden, hidden), weight(8, hidden, hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        c = torch.zeros(inputs.shape[1], self.hidden)
        m = torch.zeros(inputs.shape[1], self.hidden)
        for t in range(inputs.shape[0]):
            ih = torch.matmul(inputs[t], self.w_ih)
            hh = torch.matmul(m, self.w_hh)
            a0 = torch.sigmoid(ih[0] + hh[0])
            a1 = torch.relu(ih[1] + hh[1])
            a2 = torch.sigmoid(ih[2] + hh[2])
            a3 = torch.relu(ih[3] + hh[3])
            a4 = torch.tanh(ih[4] + hh[4])
            a5 = torch.sigmoid(ih[5] + hh[5])
            a6 = torch.tanh(ih[6] + hh[6])
            a7 = torch.sigmoid(ih[7] + hh[7])
            p = torch.tanh(a0 * a1)
            q = torch.tanh(a2 + a3)
            r = torch.tanh(a4 * a5)
            u = torch.sigmoid(a6 + a7)
            p = torch.tanh(p + c)
            c = p * q
            m = torch.tanh(c * torch.tanh(r + u))
        return c + m


class Seq2Seq(nn.Module):
    """A greedy decoder: how long it goes on depends on the tokens that it finds."""

    def __init__(self, hidden: int = 256, vocabulary: int = 500, most: int = 50) -> None:
        super().__init__()
        self.most = most
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.w_ih, self.w_hh = weight(4, hidden, hidden), weight(4, hidden, hidden)
        self.biases = weight(8, hidden)
        self.out = nn.Linear(hidden, vocabulary)

    def forward(self, encoded: Tensor, std: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        batch = encoded.shape[1]
        every = torch.zeros(self.most, batch, dtype=torch.long)
        token = torch.ones(batch, dtype=torch.long)
        at = 0
        going = True
        while going:
            x = self.embedding(token)
            ih, hh = torch.matmul(x, self.w_ih), torch.matmul(h, self.w_hh)
            b = self.biases
            i = torch.sigmoid(ih[0] + b[0] + hh[0] + b[1])
            f = torch.sigmoid(ih[1] + b[2] + hh[1] + b[3])
            g = torch.tanh(ih[2] + b[4] + hh[2] + b[5])
            o = torch.sigmoid(ih[3] + b[6] + hh[3] + b[7])
            c = f * c + i * g
            h = o * torch.tanh(c)
            logits = self.out(h) + std[at]
            token = logits.argmax(1)
            every[at] = token
            at += 1
            going = bool((token.max() > 0).item()) and at < self.most
        return every, h


class Attention(nn.Module):
    """Decoding with a cache of keys and values that is written to in place."""

    def __init__(self, start: int = 32) -> None:
        super().__init__()
        self.start = start
        self.w_q, self.w_k, self.w_v, self.w_o = (weight(12, 64, 64) for _ in range(4))

    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = k + 0, v + 0
        for at in range(self.start, k.shape[2]):
            q = torch.matmul(x, self.w_q)
            k[:, :, at, :] = torch.matmul(x, self.w_k).reshape(x.shape[0], 12, 64)
            v[:, :, at, :] = torch.matmul(x, self.w_v).reshape(x.shape[0], 12, 64)
            scores = 0.125 * torch.matmul(k, q.transpose(-1, -2)).transpose(-1, -2)
            x = torch.matmul(torch.matmul(torch.softmax(scores, dim=3), v), self.w_o)
        return k.clone(), v.clone(), x


class Normalize(nn.Module):
    """RGB to BGR by two writes, then the mean and the scale of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([103.53, 116.28, 123.675]))
        self.scale = nn.Parameter(torch.tensor([0.017429, 0.017507, 0.017125]))

    def forward(self, image: Tensor) -> Tensor:
        swapped = image.clone()
        swapped[..., 0] = image[..., 2]
        swapped[..., 2] = image[..., 0]
        return (swapped - self.mean) * self.scale


def lstm(sequence: int = 50, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return LSTM(), (torch.randn(sequence, batch, 256),)


def nasrnn(sequence: int = 50, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return NASRNN(), (torch.rand(sequence, batch, 256),)


def seq2seq(sequence: int = 50, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    std = torch.zeros(sequence, batch, 500)
    for at in range(sequence):
        std[at, :, 1 + at % 9] = 1e6
    return Seq2Seq(most=sequence), (
        torch.randn(sequence, batch, 256),
        std,
        torch.randn(batch, 256),
        torch.randn(batch, 256),
    )


def attention(sequence: int = 50, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    k, v = torch.randn(2, batch, 12, sequence, 64)
    k[:, :, 32:] = 0
    v[:, :, 32:] = 0
    return Attention(), (torch.randn(batch, 12, 1, 64), k, v)


def normalize() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Normalize(), (torch.rand(800, 1333, 3) * 255,)


def curves() -> list[Program]:
    rows = []
    for name, make in (("LSTM", lstm), ("NASRNN", nasrnn), ("seq2seq", seq2seq), ("Attention", attention)):
        rows += [
            Program(
                f"{name}, sequence {n}",
                make,
                {"sequence": n},
                peers=("torch.jit",),
                table="Length of the sequence",
                planned=n == EVERY_SEQUENCE[-1],
            )
            for n in EVERY_SEQUENCE[1:]
        ]
        rows += [
            Program(f"{name}, batch {n}", make, {"batch": n}, peers=("torch.jit",), table="Batch")
            for n in EVERY_BATCH[1:]
        ]
    return rows


TITLE = "FuncTs"
QUESTION = (
    "The programs of FuncTs: loops with writes to views, and what follows a detection network. How long is a call, and "
    "how many launches is it?"
)
# Kernel launches and time a call on an RTX 3090, from the scripts of FuncTs's repository (commit b5aec23) that draw its
# figures. Of detection what follows the network; of seq2seq the launches are of 50 steps.
LAUNCHES = ["program", "eager", "TorchDynamo", "TorchScript, nvFuser", "TorchScript, NNC", "FuncTs"]
LATENCIES = ["program", "eager", "TorchDynamo", "TorchScript, nvFuser", "TorchScript, NNC", "FuncTs", "over the best"]
REPORTED = [
    (
        "FuncTs on a GPU, as its authors report: kernel launches a call",
        LAUNCHES,
        [
            ["LSTM", "10822", "3123", "3200", "3202", "1921"],
            ["NASRNN", "1655", "106", "203", "154", "104"],
            ["seq2seq", "1449", "301", "352", "401", "351"],
            ["Attention", "323", "288", "321", "322", "288"],
            ["YOLOv3", "96", "64", "75", "83", "34"],
            ["SSD", "242", "161", "187", "236", "103"],
            ["YOLACT", "269", "147", "181", "231", "92"],
            ["FCOS", "268", "124", "182", "185", "73"],
        ],
    ),
    (
        "FuncTs on a GPU, as its authors report: a call, RTX 3090",
        LATENCIES,
        [
            ["LSTM", "105 ms", "31.6 ms", "52.1 ms", "39.3 ms", "19.5 ms", "1.62x"],
            ["NASRNN", "13.2 ms", "2.62 ms", "3.52 ms", "2.90 ms", "2.12 ms", "1.23x"],
            ["seq2seq", "19.1 ms", "5.30 ms", "5.74 ms", "9.74 ms", "4.63 ms", "1.14x"],
            ["Attention", "3.24 ms", "2.52 ms", "2.69 ms", "2.42 ms", "2.05 ms", "1.18x"],
            ["YOLOv3", "1.44 ms", "1.46 ms", "1.27 ms", "1.13 ms", "480 µs", "2.36x"],
            ["SSD", "4.09 ms", "8.07 ms", "8.13 ms", "2.97 ms", "1.26 ms", "2.36x"],
            ["YOLACT", "4.35 ms", "3.13 ms", "2.76 ms", "2.80 ms", "865 µs", "3.19x"],
            ["FCOS", "2.77 ms", "2.78 ms", "2.55 ms", "2.55 ms", "1.33 ms", "1.92x"],
        ],
    ),
]
PROGRAMS = [
    Program("LSTM", lstm, planned=True),
    Program("NASRNN", nasrnn, planned=True, quick=True),
    Program("seq2seq", seq2seq, planned=True),
    Program("Attention", attention, planned=True, quick=True),
    Program("YOLOv3", detection.yolov3, counted=detection.without_loop(detection.yolov3)),
    Program("SSD", detection.ssd, counted=detection.without_loop(detection.ssd)),
    Program("YOLACT", detection.yolact),
    Program("FCOS", detection.fcos, counted=detection.without_loop(detection.fcos)),
    Program("Normalize", normalize),
    *curves(),
]
