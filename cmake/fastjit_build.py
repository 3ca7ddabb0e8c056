"""The build backend: scikit-build-core's, once a torch that pyproject.toml lists is found.

pip builds in an environment of its own, which has no torch. The extension is built against the torch that it will run
with, so that is looked for in the environment that pip installs into as well. `Metadata` tells pip the same: a wheel
requires the torch that it was built with, and has its series in the version (+torch2.15).
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from scikit_build_core import build as _build
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def _need_python(running: str = "{}.{}".format(*sys.version_info[:2])) -> None:
    """pip says the same of the bounds, but only after this file has run, which an older Python cannot read on."""
    bounds = re.findall('^requires-python = "(.*)"', Path("pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if not SpecifierSet(bounds[0]).contains(running):
        raise SystemExit(f"fastjit needs CPython {bounds[0]}, and this is Python {running}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit(f"fastjit needs the usual build of CPython, and this Python {running} is a free-threaded one")


def _supported() -> list[str]:
    import tomllib

    return tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["fastjit"]["torch"]


def _series(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _found() -> str:
    asks = "from importlib.metadata import version; print(version('torch'))"
    for flags in ([], ["-E"]):  # -E: without the variables by which pip hides the environment
        done = subprocess.run([sys.executable, *flags, "-c", asks], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    return ""


def _need_torch() -> str:
    """The release of torch to build against; ends the build with one sentence if there is none that fits."""
    _need_python()
    supported, found = _supported(), _found()
    release = found.split("+")[0]
    if release not in supported:
        known = f"{', '.join(supported[:-1])} or {supported[-1]}"
        here = f"torch {found}" if found else "none"
        nearest = next((each for each in supported if _series(each) == _series(release)), supported[-1])
        raise SystemExit(
            f"fastjit is built against torch {known}, and this environment has {here}. "
            f"Type: pip install torch=={nearest} && pip install . "
            "(python -m build needs --no-isolation for it, and uv --no-build-isolation)"
        )
    return release


class Metadata:
    """What a wheel's metadata say of torch. A wheel made of an sdist has the sdist's version, as pip demands."""

    state = ""

    def build_state(self, state: str) -> None:
        self.state = state

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        if self.state == "sdist":
            return {"dependencies": ["torch", *settings["dependencies"]]}
        release = _need_torch()
        local = "" if Path("PKG-INFO").exists() else f"+torch{_series(release)}"
        return {
            "version": project["version"] + local,
            "dependencies": [f"torch=={release}", *settings["dependencies"]],
        }

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        return {"dependencies": True}


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
    "Metadata",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
