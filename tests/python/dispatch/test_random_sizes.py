"""Random programs called at random sizes: results, aliasing, strides, writes and errors are eager's at each of them."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fastjit import fastjit
from helpers import torch_threads
from random_compare import aliasing
from random_programs import Maker, Program, copy_all, memory_of
from shadows import Replay

BASE = (2, 3, 4, 5, 6, 7, 17, 33)  # sizes that the programs are made with
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 19, 24, 31, 33)
PROGRAMS = 240
PARTS = 4
ran: Counter[str] = Counter()


def at_sizes(t: Tensor, sizes: dict[int, int], generator: torch.Generator) -> Tensor | None:
    """A tensor like `t` at other sizes, its dims in the same order; None where `t` has gaps."""
    order = sorted(range(t.dim()), key=lambda d: (-t.stride(d), d))
    if torch.empty([t.shape[d] for d in order]).stride() != tuple(t.stride(d) for d in order):
        return None
    shape = [sizes.get(t.shape[d], t.shape[d]) for d in order]
    if t.is_floating_point():
        made = torch.randn(shape, generator=generator, dtype=t.dtype)
    else:
        made = torch.randint(-5, 6, shape, generator=generator)
    return made.permute([order.index(d) for d in range(t.dim())]) if t.dim() else made


def difference(program: Program, inputs: list[Tensor], fast: Any, eager: Any) -> str:
    """What is wrong with one call, or nothing."""
    wanted_args, args = copy_all(inputs), copy_all(inputs)
    wanted, refused = None, None
    try:
        wanted = eager(*wanted_args, program.number)
    except Exception as error:
        refused = error
    hits = fast.stats().hits
    try:
        got = fast(*args, program.number)
    except Exception as error:
        return "" if type(error) is type(refused) else f"raised {error!r}, eager {refused!r}"
    ran["hit" if fast.stats().hits > hits else "recorded or eager"] += 1
    if wanted is None:
        return f"did not raise {refused!r}"
    if aliasing(got, args) != aliasing(wanted, wanted_args):
        return f"aliasing {aliasing(got, args)} is not {aliasing(wanted, wanted_args)}"
    replay = Replay(eager, lambda: copy_all(inputs), program.number)
    names = [*program.outputs, *program.arguments]
    for k, (g, w) in enumerate(zip([*got, *args], [*wanted, *wanted_args], strict=True)):
        if bool(((g == w) | ((g != g) & (w != w))).all()):
            continue
        if names[k] not in program.tainted:
            return f"{names[k]} differs where every step is exact"
        if why := replay.wrong(k, g, w):
            return f"{names[k]} differs by {why}"
    return ""


def play(seed: int) -> str:
    program, inputs = Maker(seed).make()
    if len({memory_of(t) for t in inputs}) < len(inputs):
        return ""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    fast, eager = fastjit(on_unsupported="eager")(program.function()), program.function()
    for call in range(6):
        # The first call is at the sizes that the program was made with; now and then there is none, or one.
        others = (0, 1) if rng.random() < 0.15 else ()
        sizes = {size: rng.choice(SIZES + others) for size in BASE} if call else {}
        now = [at_sizes(t, sizes, generator) if call else t for t in inputs]
        if any(t is None for t in now):
            return ""
        if wrong := difference(program, [t for t in now if t is not None], fast, eager):
            return f"seed {seed}, call {call}, {sizes}: {wrong}\n{program.source()}"
    return ""


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_at_random_sizes(part: int) -> None:
    with warnings.catch_warnings(), torch_threads(1):
        warnings.simplefilter("ignore")
        wrong = [found for seed in range(part, PROGRAMS, PARTS) if (found := play(seed))]
    assert wrong == [], "\n".join(wrong)
    assert ran["hit"] > 0.05 * ran.total(), ran  # equality alone would pass a decorator that does nothing
