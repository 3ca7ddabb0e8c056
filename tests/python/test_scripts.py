"""Every script of tests/python/scripts: @fastjit shows what eager shows, and what ran is what is declared."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import pytest

import script_tools

for _file in sorted((pathlib.Path(__file__).parent / "scripts").glob("item*.py")):
    importlib.import_module(f"scripts.{_file.stem}")


def _case(name: str) -> Any:
    reason = script_tools.SCRIPTS[name].xfail
    return pytest.param(name, marks=[pytest.mark.xfail(reason=reason, strict=True)] if reason else [])


@pytest.mark.parametrize("name", [_case(name) for name in script_tools.SCRIPTS])
@pytest.mark.filterwarnings("ignore::fastjit.FastJITWarning")
def test_script(name: str) -> None:
    script_tools.play(script_tools.SCRIPTS[name])
