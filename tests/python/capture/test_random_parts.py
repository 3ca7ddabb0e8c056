"""Random writes to parts of tensors (helpers/part_programs.py): results, aliases and arguments are eager's."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch

import part_programs
from fastjit import fastjit
from helpers import assert_same
from random_compare import aliasing
from random_programs import copy_all

FIRST, LAST = (int(n) for n in os.environ.get("FASTJIT_PART_PROGRAMS", "0:300").split(":"))


@pytest.mark.parametrize("first", range(FIRST, LAST, 25))
def test_programs(first):
    hits = parted = 0
    for seed in range(first, min(first + 25, LAST)):
        program, args, text = part_programs.make(seed)
        fast = fastjit(on_unsupported="eager")(program)
        for call in range(3):
            given = [x + call for x in args]
            mine, theirs = copy_all(given), copy_all(given)
            try:
                got, want = fast(*mine), program(*theirs)
                assert_same(got, want)
                assert_same(mine, theirs)
                assert aliasing(got, mine) == aliasing(want, theirs)
                assert [t._version for t in mine] == [t._version for t in theirs]
            except Exception as error:
                raise AssertionError(f"seed {seed}, call {call}\n{text}") from error
        stats = fast.stats()
        hits += stats.hits == 2
        parted += stats.hits == 2 and "= update " in fast.inspect("ir")
    assert hits >= 24 and parted > 10, (hits, parted)


def outcome(program: Any, given: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """What a call gives, or its exception, and its arguments after it."""
    args = copy_all(given)
    try:
        return program(*args), args
    except Exception as error:
        return error, args


@pytest.mark.parametrize("first", range(FIRST, LAST, 25))
def test_programs_at_other_sizes(first):
    """What a program is recorded at is not what it is called at; each size is met twice."""
    hits = sized = 0
    for seed in range(first, min(first + 25, LAST)):
        program, args, text = part_programs.make(seed)
        fast, choose = fastjit(on_unsupported="eager")(program), random.Random(seed)
        for call in range(10):
            if call % 2 == 0:
                args = part_programs.others(args, choose) if call else args
            given = [torch.randn_like(x) for x in args]
            (got, mine), (want, theirs) = outcome(fast, given), outcome(program, given)
            try:
                if isinstance(want, Exception):
                    assert type(got) is type(want), (got, want)
                    continue
                assert not isinstance(got, Exception), got
                assert_same(got, want)
                assert_same(mine, theirs)
                assert aliasing(got, mine) == aliasing(want, theirs)
                assert [t.stride() for t in got] == [t.stride() for t in want]
            except Exception as error:
                raise AssertionError(f"seed {seed}, call {call}, {[tuple(x.shape) for x in args]}\n{text}") from error
        hits += fast.stats().hits
        sized += fast.stats().variants > 0 and ".size(" in fast.inspect("guards")
    assert hits >= 25 and sized >= 5, (hits, sized)


@pytest.mark.parametrize("first", range(FIRST, LAST, 50))
def test_gradients_at_other_sizes(first):
    hits = 0
    for seed in range(first, min(first + 25, LAST)):
        program, args, text = part_programs.make(seed)

        def total(a, b, c, program=program):
            return sum((out * out).sum() for out in program(a * 1.5, b * 1.5, c * 1.5))

        def back(function: Any, given: list[torch.Tensor]) -> Any:
            leaves = [x.clone().requires_grad_() for x in given]
            try:
                made = function(*leaves)
                return [made.detach(), *torch.autograd.grad(made, leaves, allow_unused=True)]
            except Exception as error:
                return error

        fast, choose = fastjit(on_unsupported="eager")(total), random.Random(seed)
        with torch.enable_grad():
            for call in range(8):
                if call % 2 == 0:
                    args = part_programs.others(args, choose) if call else args
                given = [torch.randn_like(x) for x in args]
                got, want = back(fast, given), back(total, given)
                where = f"seed {seed}, call {call}, {[tuple(x.shape) for x in args]}\n{text}"
                assert isinstance(got, Exception) == isinstance(want, Exception), where
                for g, w in zip(got, want, strict=True) if not isinstance(want, Exception) else ():
                    assert (g is None) == (w is None), where
                    if g is not None:
                        torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-3, equal_nan=True, msg=where)
        hits += fast.stats().hits
    assert hits >= 10, hits
