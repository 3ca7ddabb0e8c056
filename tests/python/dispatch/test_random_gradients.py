"""Random differentiable programs: 60 in each run, more with RANDOM_GRADIENTS=first:last (`make fuzz-training`)."""

from __future__ import annotations

import collections
import os
import warnings

import pytest
import torch

from helpers import torch_threads
from random_gradients import HITS_AT_SIZES, GradientMaker, played, report

FIRST, LAST = (int(n) for n in os.environ.get("RANDOM_GRADIENTS", "0:60").split(":"))
A_TEST = 20
RAN: collections.Counter[str] = collections.Counter()

# Sound refusals that programs run into: views that need no gradient beside results that do, matmul of one dim, memory
# that both halves would write, what the formula of logcumsumexp makes unseen.
EXPECTED = ("shape of a tensor was changed in place",)
EXPECTED += ("it could not be compiled (the way back needs memory that",)
EXPECTED += ("a tensor of unknown origin was used by aten::detach",)


@pytest.mark.parametrize("first", range(FIRST, LAST, A_TEST))
def test_random_gradients(first: int) -> None:
    wrong = []
    with torch.enable_grad(), torch_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(first, min(first + A_TEST, LAST)):
            case = GradientMaker(seed).case()
            outcome = played(case)
            RAN["refused" if outcome.refused else outcome.eager or "hit"] += 1
            if outcome.wrong:
                wrong.append(report(case))
    assert not wrong, "\n".join(wrong)


def test_what_ran() -> None:
    """Equality alone would pass a decorator that does nothing, and a program that eager refuses shows nothing."""
    if not RAN:
        pytest.skip("the programs were played in other processes")
    print(dict(RAN), "at other sizes:", dict(HITS_AT_SIZES))
    unexpected = {why: n for why, n in RAN.items() if not why.startswith(("hit", "refused", *EXPECTED))}
    assert not unexpected
    assert RAN["hit"] > 0.7 * RAN.total(), RAN
