"""Imports the extension, or says in one sentence why it does not fit this Python or torch."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch

try:
    from fastjit import _build_info as build
except ImportError:  # a build tree without the generated file
    build = None  # type: ignore[assignment]


def _refuse(why: str) -> None:
    raise ImportError(
        f"fastjit was built for {why}; build it again in its source folder with: "
        "pip install --no-build-isolation --force-reinstall --no-deps ."
    )


def _check() -> None:
    if build is None:
        return
    running = "{}.{}".format(*sys.version_info[:2])
    if running != build.PYTHON:
        _refuse(f"Python {build.PYTHON}, and this is Python {running}")
    if torch.__version__.split("+")[0] != build.TORCH.split("+")[0]:
        _refuse(f"torch {build.TORCH}, and this is torch {torch.__version__}")


_check()
import fastjit._C as _C  # noqa: E402


class FastJITWarning(UserWarning):
    """A function runs eagerly; the text says why, where, and what to do."""


class UnsupportedError(RuntimeError):
    """Raised in place of FastJITWarning with ``on_unsupported="error"``."""


def _register() -> None:
    from fastjit._callees import callees

    _C.register_callees(*callees())
    _C.register_module_type(torch.nn.Module)
    _C.register_library(torch.library._impls)
    libraries = [f"{Path(file).parent}/" for file in (torch.__file__, __file__)]
    gc.callbacks.append(_C.give_idle_back)
    os.register_at_fork(after_in_child=_C.after_fork_in_child)
    _C.register_message_types(FastJITWarning, UnsupportedError, libraries)


_register()
disabled = _C.setting_flag("FASTJIT_DISABLE")
extension: Any = _C
