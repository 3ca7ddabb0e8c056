"""Every test has a cache folder of its own; nothing touches the user's."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path

# Before anything imports fastjit: the engine reads the folder once.
os.environ.setdefault("FASTJIT_CACHE_DIR", tempfile.mkdtemp(prefix="fastjit-tests-"))

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def pytest_terminal_summary(terminalreporter) -> None:
    """Says under which versions of Python the observer was tested, where that was asked for."""
    versions = sys.modules.get("test_observer_versions")
    if not versions and terminalreporter.config.pluginmanager.hasplugin("dsession"):  # other processes ran them
        sys.path.insert(0, str(Path(__file__).parent / "observe"))
        versions = importlib.import_module("test_observer_versions")
    if versions:
        terminalreporter.write_line(versions.summary())
