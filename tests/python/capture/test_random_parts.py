"""Random writes to parts of tensors (helpers/part_programs.py): results, aliases and arguments are eager's."""

from __future__ import annotations

import os

import pytest

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
