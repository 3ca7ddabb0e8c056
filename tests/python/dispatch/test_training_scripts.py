"""Small training scripts, in eager and with fastjit: what they see, step by step, and what ran."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import fastjit
from gradient_tools import assert_same
from training_scripts import OPTIMIZERS, SCRIPTS, Script, played, whole_step_with


@pytest.fixture(scope="module", autouse=True)
def first_uses() -> None:
    """Torch imports parts of itself at the first step of an optimizer in a process: that call is not recorded."""
    played(Script(whole_step_with(OPTIMIZERS["AdamW"])), lambda function: function)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_script(name: str) -> None:
    script, made = SCRIPTS[name], []

    def wrap(function: Any) -> Any:
        made.append(fastjit.fastjit(function, on_unsupported="eager"))
        return made[-1]

    want = played(script, lambda function: function)
    assert_same(played(script, wrap), want)
    stats = [(fastjit.of(fast) if isinstance(fast, torch.nn.Module) else fast).stats() for fast in made]
    reasons = collections.Counter(why for each in stats for why in each.fallbacks)
    hits = sum(each.hits for each in stats)
    if script.hits:
        assert hits >= script.hits and not reasons, (hits, reasons)
    else:
        assert not hits and reasons and all(script.eager in why for why in reasons), (hits, reasons)
