"""Functions of torch.nn.Module of which FastJIT knows what they read.

Most of the instructions that a model's forward runs are theirs: looking up a submodule, and the way from a call of a
module to its forward(). The read observer notes what such a function reads when it is entered
(src/observe/judge/known_frames.cpp), and does not watch its instructions. It does so only for code that is, instruction
for instruction, that of the text below; any other release's code is watched like the user's.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

_TELL_OF_TRACING = ("_get_tracing_state", "_is_tracing")  # up to torch 2.14, and since
# What follows the last return is another matter: the observer sees beforehand that the function does not come there.
_TEXTS = {
    "__getattr__": """
def __getattr__(self, name):
    if "_parameters" in self.__dict__:
        _parameters = self.__dict__["_parameters"]
        if name in _parameters:
            return _parameters[name]
    if "_buffers" in self.__dict__:
        _buffers = self.__dict__["_buffers"]
        if name in _buffers:
            return _buffers[name]
    if "_modules" in self.__dict__:
        modules = self.__dict__["_modules"]
        if name in modules:
            return modules[name]
    raise AttributeError
""",
    "_wrapped_call_impl": """
def _wrapped_call_impl(self, *args, **kwargs):
    if self._compiled_call_impl is not None:
        return self._compiled_call_impl(*args, **kwargs)
    else:
        return self._call_impl(*args, **kwargs)
""",
    "_call_impl": """
def _call_impl(self, *args, **kwargs):
    forward_call = self._slow_forward if torch._C.{tells_of_tracing}() else self.forward
    if not (self._backward_hooks or self._backward_pre_hooks or self._forward_hooks or self._forward_pre_hooks
            or _global_backward_pre_hooks or _global_backward_hooks
            or _global_forward_hooks or _global_forward_pre_hooks):
        return forward_call(*args, **kwargs)
    def inner():
        nonlocal args, kwargs
        return self, forward_call
    raise inner
""",
}


def _instructions(code: CodeType) -> Iterator[tuple[str, Any]]:
    for one in dis.get_instructions(code):
        is_jump = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
        if one.opname not in ("MAKE_CELL", "EXTENDED_ARG"):
            yield one.opname, one.argval - one.offset if is_jump else one.argval


def _starts_as(code: CodeType, text: str) -> bool:
    """Whether the code begins as that of the text, up to its last return."""
    made: dict[str, Any] = {}
    exec(text, made)
    reference = list(_instructions(made[code.co_name].__code__))
    end = max(i for i, (name, _) in enumerate(reference) if name == "RETURN_VALUE") + 1
    return all(a == b for a, b in zip(reference[:end], _instructions(code), strict=False))


def known_frames() -> dict[str, CodeType]:
    """By name, the code of those that are as FastJIT knows them."""
    found = {}
    for name, text in _TEXTS.items():
        code = getattr(getattr(torch.nn.Module, name, None), "__code__", None)
        if code is None:
            continue
        tells = next((one for one in _TELL_OF_TRACING if one in code.co_names), "")
        if _starts_as(code, text.replace("{tells_of_tracing}", tells)):
            found[name] = code
    return found
