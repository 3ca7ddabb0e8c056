"""The build backend: scikit-build-core's, once the torch that pyproject.toml pins is found.

pip builds in an environment of its own, which has no torch. The extension is built against the torch that it will run
with, so that is looked for in the environment that pip installs into as well.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def _pinned() -> str:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(text.removeprefix("torch==") for text in project["dependencies"] if text.startswith("torch=="))


def _found() -> str:
    asks = "from importlib.metadata import version; print(version('torch'))"
    for flags in ([], ["-E"]):  # -E: without the variables by which pip hides the environment
        done = subprocess.run([sys.executable, *flags, "-c", asks], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    return ""


def _need_torch() -> None:
    pinned, found = _pinned(), _found()
    if found.split("+")[0] != pinned:
        here = f"torch {found}" if found else "none"
        raise SystemExit(
            f"fastjit is built against torch {pinned}, and this environment has {here}. "
            f"Type: pip install torch=={pinned} && pip install . (other front ends than pip: without build isolation)"
        )


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    _need_torch()
    return _build.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    _need_torch()
    return _build.get_requires_for_build_editable(config_settings)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    _need_torch()
    return _build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    _need_torch()
    return _build.build_editable(wheel_directory, config_settings, metadata_directory)


__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
