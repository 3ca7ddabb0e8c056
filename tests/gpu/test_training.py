"""On a GPU: models with gradients, in both passes and in whole steps, against eager on the same device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cuda_training_cases as training
from fastjit import fastjit, of
from gradient_tools import whole_step
from helpers import assert_same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _float32_products():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.enable_grad():
        yield


class Sdpa(nn.Module):
    """Which kernel attends is torch's choice; flash attention keeps a seed on the CPU."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.dropout = nn.Linear(64, 192), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, _ = x.shape
        q, k, v = self.qkv(x).view(batch, steps, 3, 2, 32).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return nn.functional.gelu(out.transpose(1, 2).reshape(x.shape))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[1], 32, device=x.device)
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
        return h


class Layer(nn.Module):
    """A recurrent layer of cuDNN's, with its weights in one buffer."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layer = kind(16, 32, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]  # type: ignore[no-any-return]


def in_one_buffer(model: nn.Module) -> nn.Module:
    """Copies of weights lie apart, of which cuDNN warns once."""
    for layer in model.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters()
    return model


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.3), nn.GELU(), nn.Linear(64, 8))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **training.MODELS,
    "sdpa": (Sdpa, (2, 32, 64)),
    "sdpa with dropout": (lambda: Sdpa(0.2), (2, 32, 64)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True), (2, 8, 32)),
    "recurrent": (Recurrent, (6, 4, 16)),
    "dropout": (dropped, (12, 16)),
    "GRU": (lambda: Layer(nn.GRU), (6, 4, 16)),
    "LSTM, both ways, two layers": (lambda: Layer(nn.LSTM, num_layers=2, bidirectional=True), (6, 4, 16)),
}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_both_passes(name: str, dtype: torch.dtype | None) -> None:
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model, x = make().cuda(), torch.randn(sizes, device="cuda")
    twin = in_one_buffer(copy.deepcopy(model))
    fast = fastjit(twin)

    def under(forward: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                return forward(x)  # type: ignore[no-any-return]

        return call

    torch.cuda.manual_seed(1)
    expected = training.play(model, under(model), x)
    torch.cuda.manual_seed(1)
    got = training.play(twin, under(fast), x)
    training.assert_alike(got, expected, lambda t: t, 2e-4 if dtype is None else 3e-2)
    stats = of(fast).stats()
    if isinstance(model, Layer) and dtype is not None:  # torch casts the weights into a buffer that no operator shows
        assert stats.hits == 0 and all("_cudnn_rnn" in reason for reason in stats.fallbacks), stats
    else:
        assert (stats.hits, stats.fallbacks) == (3, {}), stats


def test_weights_that_lie_apart() -> None:
    """cuDNN copies them then, and torch warns."""
    model, x = Layer(nn.GRU).cuda(), torch.randn(6, 4, 16, device="cuda")
    fast = fastjit(in_one_buffer(copy.deepcopy(model)))
    fast(x), fast(x)
    assert of(fast).stats().hits == 1
    weight = fast.layer.weight_hh_l0
    weight.data = weight.data * 2
    with torch.no_grad():
        model.layer.weight_hh_l0.mul_(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(fast(x), model(x))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW, each parameter": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW, capturable": lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2),
}


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="torch.autograd.backward reads hashes of types in older releases"
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whole_steps(name: str) -> None:
    make, sizes = training.MODELS["norm"]
    torch.manual_seed(0)
    model, x = make().cuda(), torch.randn(sizes, device="cuda")
    twin = copy.deepcopy(model)
    plain = whole_step(model, OPTIMIZERS[name](model.parameters()))
    fast = fastjit(whole_step(twin, OPTIMIZERS[name](twin.parameters())))
    for _ in range(7):
        expected = plain(x)
        torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert fast.stats().hits >= 4 and fast.stats().fallbacks == {}, fast.stats()


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("halves", [False, True])
def test_checkpoints(dropout: float, halves: bool) -> None:
    """torch.utils.checkpoint reads the state of the device's generator, with the device made current."""
    torch.manual_seed(0)
    model = training.Checkpointed(dropout).cuda()
    twin, x = copy.deepcopy(model), torch.randn(8, 16, device="cuda")
    fast = fastjit(twin)
    close = 2e-2 if halves else 1e-4
    for round_ in range(4):
        results = []
        for forward in (model, fast):
            forward.zero_grad()
            torch.manual_seed(round_)
            with torch.autocast("cuda", torch.bfloat16, enabled=halves):
                out = forward(x)
            out.square().mean().backward()
            results.append(out)
        torch.testing.assert_close(results[1], results[0], rtol=close, atol=close)
        for one, other in zip(twin.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=close, atol=close)
    assert of(fast).stats().hits == 3 and of(fast).stats().fallbacks == {}, of(fast).stats()


def test_hooks_take_gradients_on_the_way() -> None:
    """The way back goes on in parts, each on the stream of the forward pass."""
    there: list[int] = []

    def update(p: nn.Parameter) -> None:
        there.append(sum(q.grad is not None for q in fast.parameters()))
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    torch.manual_seed(0)
    eager = nn.Sequential(*[nn.Sequential(nn.Linear(520, 520), nn.Tanh()) for _ in range(4)]).cuda()
    fast = fastjit(copy.deepcopy(eager))
    for model in (eager, fast):
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
    for turn in range(4):
        x = torch.randn(8, 520, device="cuda")
        for model in (eager, fast):
            there.clear()
            model(x).square().mean().backward()
        if turn:
            assert max(there) < 8, there
    for p, q in zip(eager.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)
    assert of(fast).stats().hits == 3, of(fast).stats()


def test_scaled_losses() -> None:
    """A scaler around: its step is skipped where a gradient overflows."""
    make, sizes = training.MODELS["norm"]
    torch.manual_seed(0)
    model, x = make().cuda(), torch.randn(sizes, device="cuda")
    twin = copy.deepcopy(model)
    fast = fastjit(twin)
    scales = []
    for one, forward in ((model, model), (twin, fast)):
        optimizer, scaler = torch.optim.SGD(one.parameters(), lr=0.1), torch.amp.GradScaler("cuda", init_scale=2.0**17)
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = forward(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
    assert scales[0] == scales[1]
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-3)
    assert of(fast).stats().hits == 4 and of(fast).stats().fallbacks == {}


@pytest.mark.parametrize("name", training.beside_the_host(torch.zeros(8)))
def test_tensors_of_the_host_beside(name: str) -> None:
    kept = torch.zeros(8)
    function, x, y = training.beside_the_host(kept)[name], torch.randn(8, device="cuda"), torch.randn(8)
    fast = fastjit(function)
    with torch.no_grad():
        expected = function(x, y)
        for _ in range(3):
            got = fast(x, y)
    for one, other in training.pairs(got, expected):
        assert one.device == other.device
        assert_same(one, other)
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {}), fast.stats()


@pytest.mark.parametrize("name", training.READS)
def test_values_that_python_reads(name: str) -> None:
    fast = fastjit(training.READS[name])
    with torch.no_grad():
        for round_ in range(8):
            x, y = torch.linspace(-1, 1, 8, device="cuda") + round_ * 0.1, torch.tensor(float(round_ + 1))
            got, expected = fast(x, y), training.READS[name](x, y)
            for one, other in training.pairs(got, expected):
                assert_same(one, other) if isinstance(one, torch.Tensor) else torch.testing.assert_close(one, other)
    assert fast.stats().hits >= 4 and fast.stats().fallbacks == {}, fast.stats()


def test_hits_are_verified() -> None:
    fast = fastjit(lambda x, y: (x * (1 - 0.9 ** y.item()), torch.softmax(x, -1) + y, y * 2), verify=True)
    with torch.no_grad():
        for round_ in range(4):
            fast(torch.randn(8, device="cuda"), torch.tensor(float(round_ + 1)))
    stats = fast.stats()
    assert (stats.hits, stats.verified, stats.mismatches, stats.fallbacks) == (3, 3, 0, {}), stats
