"""What becomes of values, where the code that is written depends on that."""

from __future__ import annotations

import math
from typing import Any

from fastjit._script.nodes import Node, Value, is_constant, is_operator, is_tensor, kind_of, operator_name


def is_finite(item: Any) -> bool:
    return not isinstance(item, float) or math.isfinite(item)


def written(value: Value) -> Value:
    """What operators that write in place were given first."""
    while value.node().kind().endswith("_") and is_tensor(value) and value.node().kind().startswith("aten::"):
        value = next(iter(value.node().inputs()))
    return value


def is_message(value: Value) -> bool:
    """A text that only exceptions show."""
    if kind_of(value) != "StringType" or is_constant(value):
        return False
    if value.node().kind() not in ("aten::format", "aten::str", "aten::add"):
        return False
    return all(
        use.user.kind() == "prim::RaiseException"
        or (use.user.kind() in ("aten::format", "aten::add") and is_message(use.user.output()))
        for use in value.uses()
    )


# TorchScript counts a text in bytes, Python in characters.
_OF_BYTES = frozenset("aten::" + name for name in "len slice __getitem__ find upper lower add format join".split())


def counts_bytes(value: Value) -> bool:
    """Whether more is asked of a text than a message shows and a comparison tells."""
    return any(use.user.kind() in _OF_BYTES and not is_message(use.user.output()) for use in value.uses())


def is_shown(value: Value) -> bool:
    """Whether a text is a message's, a part of one, or compared with others, and nothing else."""
    return all(
        use.user.kind() in ("prim::RaiseException", "aten::warn", "aten::eq", "aten::ne")
        or is_message(use.user.output())
        for use in value.uses()
    )


def looks_alike(node: Node) -> bool:
    """Whether Python's format() gives the same text: floats and tensors look otherwise, and other braces mean nothing
    to TorchScript."""
    pattern, *held = node.inputs()
    plain = ("str", "int", "List[str]", "List[int]")
    if not is_constant(pattern, str) or any(value.type().annotation_str not in plain for value in held):
        return False
    text = pattern.toIValue()
    return text.count("{}") == len(held) and not set("{}") & set(text.replace("{}", ""))


def is_whole(text: Value, start: Value, end: Value) -> bool:
    """Whether these are the text's own ends."""
    if not is_constant(start, int) or start.toIValue() != 0:
        return False
    if is_constant(end, int):
        return bool(end.toIValue() == -1)
    return end.node().kind() == "aten::len" and bool(next(iter(end.node().inputs())).unique() == text.unique())


def needs_list(sizes: Value) -> bool:
    """Whether a list of sizes is used as a list, not only read."""
    return any(
        not is_operator(operator_name(use.user))
        and operator_name(use.user) not in ("aten::__getitem__.t", "aten::len.t")
        for use in sizes.uses()
    )
