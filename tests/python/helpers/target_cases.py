"""Public callables as targets of fastjit, and arguments for them: two sets of one form, with other numbers in each.

Arguments come from op_db where it has samples of the callable, and from a list of hand-made forms of which those are
taken that eager accepts.
"""

from __future__ import annotations

import builtins
import inspect
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from opinfo_forms import first_type
from opinfo_tools import fresh, samples_of
from target_own_cases import own_calls

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named arguments

NAMESPACES: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.special": torch.special,
    "torch.fft": torch.fft,
    "torch.linalg": torch.linalg,
    "operator": operator,
    "builtins": builtins,
}

# Not played, and why.
SETTING = "it changes a setting of the process, under which the cases after it would run"
ENDS = "it waits for the user or ends the process"
CODE = "it starts a compiler, a debugger or a process"
FILES = "it reads or writes files"
FRAME = "it gives the variables of the frame that calls it, which differ between the two calls"
MOMENT = "its result is an address or a number of that moment"
SIGNS = "the vectors of singular values that are zero have either sign, as the last rounding decides"
NOT_PLAYED = {
    **dict.fromkeys("exit quit input breakpoint help copyright credits license".split(), ENDS),
    **dict.fromkeys("compile fork wait import_ir_module parse_ir merge_type_from_type_comment".split(), CODE),
    **dict.fromkeys("globals locals vars dir".split(), FRAME),
    **dict.fromkeys("seed data_ptr const_data_ptr hash id".split(), MOMENT),
    "pca_lowrank": SIGNS,
    **dict.fromkeys("open save load from_file share_memory_".split(), FILES),
    **dict.fromkeys(
        """use_deterministic_algorithms init_num_threads autocast_increment_nesting autocast_decrement_nesting
        clear_autocast_cache set_ module_load read_vitals thread_safe_generator""".split(),
        SETTING,
    ),
}
_SETTERS = ("set_", "_set_")
_OBJECT = frozenset(dir(object)) | {"__dict__", "__weakref__", "__module__", "__slots__"}


def is_played(space: str, name: str) -> bool:
    return not (name in NOT_PLAYED or (space == "torch" and name.startswith(_SETTERS)))


def targets() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(name, callable) of every public one, once a namespace, classes and those that are not played included."""
    for space, holder in NAMESPACES.items():
        known: set[int] = set()
        for name in sorted(dir(holder)):
            dunder = name.startswith("__") and name.endswith("__")
            has_dunders = space in ("torch.Tensor", "operator")
            public = not name.startswith("_") or (dunder and has_dunders and name not in _OBJECT)
            value = inspect.getattr_static(holder, name) if space == "torch.Tensor" else getattr(holder, name)
            value = getattr(holder, name) if isinstance(value, (staticmethod, classmethod)) else value
            if public and callable(value) and id(value) not in known:
                known.add(id(value))
                yield f"{space}.{name}", value


def _samples(name: str) -> list[Call]:
    """Of op_db, for the function or method of this name."""
    space, _, base = name.rpartition(".")
    prefix = {"torch": "", "torch.Tensor": "", "operator": ""}.get(space, space.removeprefix("torch.") + ".")
    bases = {base, base.strip("_"), base.removesuffix("_")}
    for op in op_db:
        if op.name not in {prefix + b for b in bases} or (dtype := first_type(op)) is None:
            continue
        try:
            return samples_of(op, dtype, 6)[:3]
        except Exception:
            return []
    return []


def _other_numbers(call: Call, step: int) -> Call:
    """The same with other numbers: floats move by a quarter, ints by `step`, and booleans are turned."""

    def other(leaf: Any) -> Any:
        if isinstance(leaf, bool):
            return not leaf if step == 1 else leaf
        if isinstance(leaf, float):
            return leaf * 1.5 + 0.25
        return leaf + step if isinstance(leaf, int) else leaf

    return pytree.tree_map(other, call)


def _forms(k: int) -> Iterator[Call]:
    """Hand-made calls; k = 0 and 1 differ in every number."""
    g = torch.Generator().manual_seed(7 + k)

    def t(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=g)

    x, y, square, positive = t(3, 4), t(3, 4), t(4, 4), t(3, 4).abs() + 0.5
    index, ints, mask = torch.tensor([2, 0, 1]), torch.arange(12).view(3, 4), x > 0
    signal, image = t(2, 3, 8), t(1, 2, 8, 8)
    number, size, dim, text = (0.5, 1.75)[k], (2, 3)[k], (1, 0)[k], "ab"[k]
    low, high = (-0.5, -0.25)[k], (0.5, 1.25)[k]
    positional: list[tuple[Any, ...]] = [
        (x,), (x, number), (x, size), (x, y), (number, x), (size, x), (x, dim), (x, dim, size - 1), (x, low, high),
        (x, y, number), (x, index), (x, dim, index), (x, mask), (x, mask, number), (x, mask, y), (mask, x, y),
        (mask, x, number), (x, dim, index, number), (ints,), (ints, size), (ints, ints), (mask,), (mask, mask),
        (square,), (square, square), (square, size), (positive, number), (signal,), (signal, size), (image,),
        (image, size), (image, size, size), (x, size, dim), (x, dim, dim), (x, (dim,)), (x, (4, 3)),
        (x, [size, 6 // size]), ([x, y],), ([x, y], dim), ((x, y), number), ([x, y], [y, x]), ([x, y], number),
        (size,), (size, size + 1), (number,), ((size, 4),), ([size, size],), (size, number), (low, high, size),
        (low, high, size, number), (number, size), (text,), (text, text), ([3, 1, size], ), ([3, 1, size], 0),
        ([3, 1, size], 0, number), ({"a": number, "b": x}, "a"), ({"a": number}, "b", number), ({"a": number},),
        ([x, y, x], size - 1), ([x, y, x], 0, number), (x, slice(0, size)), (x, slice(0, size), number),
        (x, (slice(None), dim), number), (x, dim, y[0]), (x, size - 1, number), (x, "size"),
        (x, "no such name", number), (x, "requires_grad", False), (len, [size]), (abs, [low, high]),
        (None, [number, 0]), ([number, low],), ([size, 2], size), ({1, size},), ({1, size}, size), ("a", "b"),
        (iter([number]),), (x, text), (x, None), (x, [0, dim]), (x, torch.float64), (x, number, size),
        (x, size, number), (square, square[0], square[1]), (square, x.T, y), (x, y, x), (x, x, x, x),
        (x, number, number, number), (signal, size, size), (index, 3 + k), (torch.Size([size, 4]),),
        (torch.device("cpu"),), (torch.float32, torch.float64), (x, (size, 0)), (image, (size, 2)),
        (lambda v: v * number, x), (lambda v: v * number,), (lambda v: v * number, [x, y]), ("f", (), {}), (),
    ]  # fmt: skip
    yield from ((args, {}) for args in positional)
    yield from [
        ((x,), {"dim": dim}), ((x,), {"min": low, "max": high}), ((x, y), {"alpha": number}),
        ((x,), {"dtype": torch.float64}), ((x,), {"dim": dim, "keepdim": bool(k)}), (([x, y],), {"dim": dim}),
        ((size,), {"dtype": torch.float64}), ((x,), {"p": number}), (([number],), {"start": number}),
        ((x, y), {"value": number}), ((x,), {"generator": None}), (([low, high],), {"key": abs}),
        (([low, high],), {"reverse": bool(k)}), ((x, y), {"rounding_mode": ("floor", "trunc")[k]}),
    ]  # fmt: skip


_ENOUGH = 4  # hand-made forms of one target


def _accepted(function: Callable[..., Any], call: Call) -> bool:
    positional, named = fresh(call)
    torch.manual_seed(3)
    try:
        function(*positional, **named)
    except Exception:
        return False
    return True


def pairs_of(name: str, function: Callable[..., Any]) -> list[tuple[Call, Call]]:
    """Pairs of calls that eager takes, and one of a call that it refuses where it takes none."""
    pairs: list[tuple[Call, Call]] = []
    samples = [call for call in _samples(name) if _accepted(function, call)]
    for call in samples:
        others = (_other_numbers(call, step) for step in (1, -1, 0))
        pairs += [(call, other) for other in itertools.islice((o for o in others if _accepted(function, o)), 1)]
    pairs += itertools.pairwise(samples[:2])
    own = (own_calls(k).get(name.rpartition(".")[2], []) for k in (0, 1))
    for first, second in zip(*own, strict=True):
        if _accepted(function, (first, {})) and _accepted(function, (second, {})):
            pairs.append(((first, {}), (second, {})))
    taken = 0
    for first, second in zip(_forms(0), _forms(1), strict=True):
        if taken == _ENOUGH:
            break
        if _accepted(function, first) and _accepted(function, second):
            taken += 1
            pairs.append((first, second))
    return pairs or [(((), {}), ((1.5,), {}))]
