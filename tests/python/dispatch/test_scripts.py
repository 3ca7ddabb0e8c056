"""Every script of tests/python/scripts: @fastjit shows what eager shows, and what ran is what is declared."""

from __future__ import annotations

import collections
from typing import Any

import pytest

import script_tools

script_tools.load()
HITS_AFTER_CHANGE: dict[str, int] = {}  # of the scripts played in this process


def _case(name: str) -> Any:
    reason = script_tools.SCRIPTS[name].xfail
    return pytest.param(name, marks=[pytest.mark.xfail(reason=reason, strict=True)] if reason else [])


@pytest.mark.parametrize("name", [_case(name) for name in script_tools.SCRIPTS])
@pytest.mark.filterwarnings("ignore::fastjit.FastJITWarning")
def test_script(name: str) -> None:
    HITS_AFTER_CHANGE[name] = script_tools.play(script_tools.SCRIPTS[name]).hits_after_change


def test_how_many_there_are() -> None:
    items = collections.Counter(script.item for script in script_tools.SCRIPTS.values())
    assert items.total() >= 250 and all(items[item] >= 15 for item in range(1, 6)), items


def test_how_many_hit_after_a_change() -> None:
    if set(HITS_AFTER_CHANGE) != set(script_tools.SCRIPTS):
        pytest.skip("not all of the scripts were played in this process")
    assert sum(hits > 0 for hits in HITS_AFTER_CHANGE.values()) >= 200
