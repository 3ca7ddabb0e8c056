"""What the tests of TorchScript share: a scripted object against fastjit's, on fresh arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from fastjit import fastjit as jit


def same(expected: Any, found: Any) -> None:
    left, left_spec = _pytree.tree_flatten(_plain(expected))
    right, right_spec = _pytree.tree_flatten(_plain(found))
    assert left_spec == right_spec, (left_spec, right_spec)
    for a, b in zip(left, right, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a)
            assert a.stride() == b.stride()
        else:
            assert a == b


def _plain(value: Any) -> Any:
    """The interpreter makes a class of named tuples in each call."""
    if hasattr(value, "_fields"):
        return {"class": type(value).__name__, **value._asdict()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def clones(args: Any) -> Any:
    return copy.deepcopy(args)


def compare(scripted: Any, make: Callable[[int], tuple[Any, ...]], hits: int, calls: int = 4, **options: Any) -> Any:
    """Calls both with equal arguments, which are compared afterwards too; `hits` of the calls are programs."""
    f = jit(scripted, **options)
    is_module = isinstance(scripted, torch.jit.ScriptModule)
    for k in range(calls):
        args = make(k)
        copied = clones(args)
        original = copy.deepcopy(scripted) if is_module else scripted
        torch.manual_seed(k)
        expected = original(*copied)
        torch.manual_seed(k)
        found = f(*args)
        same(expected, found)
        same(copied, args)
        if is_module:
            same(dict(original.state_dict()), dict(scripted.state_dict()))
    stats = f.stats()
    assert stats.hits == hits and not stats.fallbacks, stats
    return f
