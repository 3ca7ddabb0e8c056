"""FastJIT: makes repeated PyTorch code fast without making its user wait or worry.

    from fastjit import fastjit

    @fastjit
    def f(x, w, b):
        return torch.nn.functional.gelu(x @ w + b)

Names are loaded when they are first used, so that ``fastjit cache`` starts without torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"


def _refuse_subinterpreters() -> None:
    for name in ("_interpreters", "_xxsubinterpreters"):  # of Python 3.13, and before
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError("fastjit runs in the main interpreter only: torch does not run in subinterpreters")
        return


def _refuse_free_threaded() -> None:
    if "t" not in getattr(sys, "abiflags", ""):
        return
    version = "{}.{}".format(*sys.version_info[:2])
    raise ImportError(
        f"fastjit relies on the global interpreter lock, and this is a free-threaded Python ({sys.executable}): "
        f"use the Python that has the lock, python{version} in place of python{version}t"
    )


_refuse_free_threaded()
_refuse_subinterpreters()

if TYPE_CHECKING:
    from fastjit import cache as cache
    from fastjit import testing as testing
    from fastjit import torch_compile as torch_compile
    from fastjit.api import FastFunction as FastFunction
    from fastjit.api import FastJITWarning as FastJITWarning
    from fastjit.api import UnsupportedError as UnsupportedError
    from fastjit.api import fastjit as fastjit
    from fastjit.api import of as of
    from fastjit.api import stance as stance
    from fastjit.bench import compare as compare

    jit = fastjit

# Public name -> (module, attribute; "" for the module itself).
_LAZY = {
    "fastjit": ("fastjit.api", "fastjit"),
    "jit": ("fastjit.api", "fastjit"),
    "FastFunction": ("fastjit.api", "FastFunction"),
    "FastJITWarning": ("fastjit.api", "FastJITWarning"),
    "UnsupportedError": ("fastjit.api", "UnsupportedError"),
    "of": ("fastjit.api", "of"),
    "stance": ("fastjit.api", "stance"),
    "compare": ("fastjit.bench", "compare"),
    "cache": ("fastjit.cache", ""),
    "testing": ("fastjit.testing", ""),
    "torch_compile": ("fastjit.torch_compile", ""),
}

__all__ = [
    "FastFunction",
    "FastJITWarning",
    "UnsupportedError",
    "cache",
    "compare",
    "fastjit",
    "jit",
    "of",
    "stance",
    "testing",
    "torch_compile",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fastjit' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value: Any = importlib.import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
