"""Imports the extension, or says in one sentence why it does not fit this Python or torch."""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

import fastjit

try:
    from fastjit import _build_info as build
except ImportError:  # a build tree without the generated file
    build = None  # type: ignore[assignment]


def _check() -> None:
    """A wheel's metadata have told pip the same; Python and torch can change after it was installed."""
    if build is None:
        return
    running = "{}.{}".format(*sys.version_info[:2])
    built_for, here = (text.split("+")[0] for text in (build.TORCH, torch.__version__))
    if running != build.PYTHON:
        way = _again(here if here in build.SUPPORTED else built_for)
        raise ImportError(f"fastjit was built for Python {build.PYTHON}, and this is Python {running}; type: {way}")
    if here != built_for:
        if here in build.SUPPORTED:
            way = f"{_again(here)} (or, for the torch that it was built for: pip install torch=={built_for})"
        else:
            way = f"pip install torch=={built_for} (fastjit can be built for torch {', '.join(build.SUPPORTED)})"
        raise ImportError(
            f"fastjit was built for torch {built_for}, and this is torch {torch.__version__}; type: {way}"
        )


def _again(release: str) -> str:
    """The command that brings this FastJIT for the running Python and that torch, in the way in which it came."""
    if build.INPLACE:
        return f"make -C {shlex.quote(str(Path(__file__).parents[2]))} build PY={shlex.quote(sys.executable)}"
    source = _installed_from()
    if source:
        return f"pip install {source}"
    series = ".".join(release.split(".")[:2])
    return f'pip install --force-reinstall --no-deps "fastjit=={fastjit.__version__}+torch{series}"'


def _installed_from() -> str:
    """What pip was given to build FastJIT from, as it is typed; empty when it was given a wheel."""
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        note = json.loads(metadata.distribution("fastjit").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    if "dir_info" in note:
        editable = "-e " if note["dir_info"].get("editable") else ""
        return editable + shlex.quote(unquote(urlsplit(note["url"]).path))
    return shlex.quote(f"{note['vcs_info']['vcs']}+{note['url']}") if "vcs_info" in note else ""


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
    from fastjit._known_frames import known_frames

    _C.register_callees(*callees())
    _C.register_before_recording(before_recording())
    _C.register_known_frames(known_frames)
    _C.register_module_type(torch.nn.Module)
    _C.register_library(torch.library._impls)
    gc.callbacks.append(_C.give_idle_back)
    _C.register_library_folders(*_library_folders())
    atexit.register(_C.stop_background)
    os.register_at_fork(after_in_child=_C.after_fork_in_child)
    _C.register_message_types(FastJITWarning, UnsupportedError)


_register()
disabled = _C.setting_flag("FASTJIT_DISABLE")
extension: Any = _C
