"""Nested tensors that a call makes and uses up: torch runs what takes them, inside the program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastjit
from helpers import assert_same


def padding(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(x.shape[1])[None] >= lengths[:, None]


def nested(x: Tensor, lengths: Tensor) -> Tensor:
    return torch._nested_tensor_from_mask(x, ~padding(x, lengths))


def batch(seed: int, full: bool = True) -> tuple[Tensor, Tensor]:
    """Four sequences of up to seven steps; full: one of them has them all."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 7, (4,), generator=rng)
    if full:
        lengths[seed % 4] = 7
    return torch.randn(4, 7, 16, generator=rng), lengths


@pytest.fixture(autouse=True)
def _warned() -> None:
    """torch says once that nested tensors are a prototype."""
    nested(*batch(0))


class Tagger(nn.Module):
    """A TransformerEncoder that is given which steps are padding takes torch's fast path over nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return torch.tanh(self.head(self.encoder(torch.sigmoid(x) * 2, src_key_padding_mask=padding(x, lengths)))) + 1


@torch.no_grad()
def test_an_encoder_with_padding_is_a_program() -> None:
    torch.manual_seed(0)
    model = Tagger().eval()
    fast = fastjit.jit(model.forward)
    for seed in range(6):
        x, lengths = batch(seed, full=seed != 4)  # the longest is shorter than the batch: its end is padding
        got, expected = fast(x, lengths), model(x, lengths)
        assert_same(got, expected)
        assert got.shape == (4, 7, 5) and got.is_contiguous()
    stats = fast.stats()
    assert (stats.hits, stats.fallbacks) == (5, {}) and stats.kernels >= 2
    assert "_transformer_encoder_layer_fwd" in fast.inspect("ir")


@torch.no_grad()
def test_padding_in_front_is_a_path_of_its_own() -> None:
    torch.manual_seed(0)
    model = Tagger().eval()

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        return model.encoder(x + 1, src_key_padding_mask=mask)

    fast = fastjit.jit(forward)
    for call in range(6):
        x, lengths = batch(call)
        mask = padding(x, lengths)
        if call % 2:
            mask = mask.flip(1)
        assert_same(fast(x, mask), forward(x, mask))
    assert (fast.stats().hits, fast.stats().fallbacks) == (4, {})


@torch.no_grad()
def test_operators_on_nested_tensors() -> None:
    def body(x: Tensor, lengths: Tensor) -> Tensor:
        n = nested(x.relu(), lengths)
        return (torch.relu(n) + n).to_padded_tensor(0.5) * 2 + 1

    fast = fastjit.jit(body)
    for seed in range(6):
        x, lengths = batch(seed, full=seed % 2 == 0)  # so is the result's length another one
        assert_same(fast(x, lengths), body(x, lengths), exact=True)
    assert (fast.stats().hits, fast.stats().fallbacks) == (5, {})


REFUSED: dict[str, tuple[Any, str]] = {
    "its sizes": (
        lambda x, n: nested(x, n).to_padded_tensor(0.0) * nested(x, n).size(0),
        "the sizes of a nested tensor",
    ),
    "as a result": (lambda x, n: (nested(x, n), x + 1), "depends on data"),
    "its parts": (lambda x, n: nested(x, n).unbind()[0] * 2, "depends on data"),
}


@torch.no_grad()
@pytest.mark.parametrize("case", REFUSED)
def test_what_no_program_has(case: str) -> None:
    fn, reason = REFUSED[case]
    fast = fastjit.jit(fn, on_unsupported="eager")
    for seed in range(3):
        got, expected = fast(*batch(seed)), fn(*batch(seed))
        if isinstance(got, tuple):
            got, expected = [torch.cat([n.values().flatten(), y.flatten()]) for n, y in (got, expected)]
        assert_same(got, expected, exact=True)
    assert fast.stats().hits == 0 and any(reason in why for why in fast.stats().fallbacks), fast.stats().fallbacks


def test_a_nested_argument_is_not_supported() -> None:
    fast = fastjit.jit(lambda n: n.to_padded_tensor(0.0) + 1, on_unsupported="eager")
    n = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    assert_same(fast(n), n.to_padded_tensor(0.0) + 1)
    assert "nested" in "".join(fast.stats().fallbacks)
