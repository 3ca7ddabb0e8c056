"""Models that no one here wrote, under the default capture: equal to eager, and what ran."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("transformers", reason="the models come from the package transformers")

from model_tools import DECODERS, DECODINGS, MODELS, STEPS, decode, play


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_model_is_a_program(name: str, train: bool) -> None:
    played = play(name, train)
    # Recorded are the prompt, the first token, and one behind it at any length.
    assert (played.hits, played.reason) == (3, "")
    assert played.kernels > 0


@pytest.mark.parametrize("name", DECODERS)
def test_a_cache_made_in_the_call_is_a_result(name: str) -> None:
    played = play(name, use_cache=True)
    assert (played.hits, played.reason) == (3, "")


@pytest.mark.parametrize("name", DECODERS)
def test_decoding_with_a_cache_is_as_eager(name: str) -> None:
    played = decode(name)  # the lengths of the first time are recorded, later ones are hits
    assert (played.hits, played.reason) == (DECODINGS * STEPS - 3, ""), played.runs_as


def test_modules_made_in_a_call_beside_torch_compile() -> None:
    """torch.compile, once used, notes every module that is made, and forgets those that die. In a process of its own:
    it never stops doing so."""
    done = subprocess.run([sys.executable, "-c", _BESIDE_COMPILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3 {}\n"), done.stderr


_BESIDE_COMPILE = """
import torch
from torch import nn
from torch._dynamo.mutation_guard import install_generation_tagging_init
import fastjit

install_generation_tagging_init()  # what the first call of torch.compile does

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers[:2]:
            x = layer(x)
        return x

module = Stack()
fast = fastjit.fastjit(module)
with torch.no_grad():
    for _ in range(4):
        x = torch.randn(2, 4)
        assert torch.equal(fast(x), module.layers[1](module.layers[0](x)))
stats = fastjit.of(fast).stats()
print(stats.hits, stats.fallbacks)
"""
