"""Models that no one here wrote, under the default capture: equal to eager, and what ran."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="the models come from the package transformers")

from model_tools import DECODERS, MODELS, STEPS, decode, play


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_model_is_a_program(name: str, train: bool) -> None:
    played = play(name, train)
    assert (played.hits, played.reason) == (3, "")
    assert played.share is not None and played.share >= 0.95


@pytest.mark.parametrize("name", DECODERS)
def test_a_cache_made_in_the_call_is_a_result(name: str) -> None:
    played = play(name, use_cache=True)
    assert (played.hits, played.reason) == (3, "")


@pytest.mark.parametrize("name", DECODERS)
def test_decoding_with_a_cache_is_as_eager(name: str) -> None:
    played = decode(name)
    assert played.mode == f"{STEPS} decode steps"
