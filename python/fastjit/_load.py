"""Imports the extension, or says in one sentence why it does not fit this Python or torch."""

from __future__ import annotations

import gc
import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

try:
    from fastjit import _build_info as build
except ImportError:  # a build tree without the generated file
    build = None  # type: ignore[assignment]


def _check() -> None:
    """A wheel has told pip the same by the pins of pyproject.toml; both can change after it was installed."""
    if build is None:
        return
    running = "{}.{}".format(*sys.version_info[:2])
    if running != build.PYTHON:
        _refuse(f"Python {build.PYTHON}, and this is Python {running}; install fastjit under Python {build.PYTHON}")
    built_for = build.TORCH.split("+")[0]
    if torch.__version__.split("+")[0] != built_for:
        _refuse(f"torch {built_for}, and this is torch {torch.__version__}; type: pip install torch=={built_for}")


def _refuse(what: str) -> None:
    raise ImportError(f"fastjit was built for {what} (or build it again for this one: make build in its source folder)")


_check()
import fastjit._C as _C  # noqa: E402


class FastJITWarning(UserWarning):
    """A function runs eagerly; the text says why, where, and what to do."""


class UnsupportedError(RuntimeError):
    """Raised in place of FastJITWarning with ``on_unsupported="error"``."""


def _library_folders() -> tuple[list[str], list[str]]:
    """Folders of torch and fastjit, and of the standard library and installed packages, whose lines are no user's."""
    ours = {str(Path(file).parent) for file in (torch.__file__, __file__)}
    paths = sysconfig.get_paths()
    others = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    others |= {*site.getsitepackages(), site.getusersitepackages()}
    return sorted(f"{folder}/" for folder in ours), sorted(f"{folder}/" for folder in others)


def _register() -> None:
    from fastjit._callees import before_recording, callees

    _C.register_callees(*callees())
    _C.register_before_recording(before_recording())
    _C.register_module_type(torch.nn.Module)
    _C.register_library(torch.library._impls)
    gc.callbacks.append(_C.give_idle_back)
    _C.register_library_folders(*_library_folders())
    os.register_at_fork(after_in_child=_C.after_fork_in_child)
    _C.register_message_types(FastJITWarning, UnsupportedError)


_register()
disabled = _C.setting_flag("FASTJIT_DISABLE")
extension: Any = _C
