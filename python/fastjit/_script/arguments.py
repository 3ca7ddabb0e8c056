"""What TorchScript does to arguments and results at its border with Python, as Python code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastjit._script.nodes import Unknown, fields_of

Classes = Callable[[str, list[str]], str]

# TorchScript counts a text in bytes, Python in characters: texts of others than ASCII are the original's.
_EXACT = {"IntType": "int", "FloatType": "float", "BoolType": "bool", "StringType": "str", "NoneType": "type(None)"}


def check(type_: Any, name: str, depth: int = 0) -> str:
    """An expression: whether the original takes the value as it is, so that no error or conversion is its to make."""
    kind = type_.kind()
    if kind == "TensorType":
        return f"isinstance({name}, Tensor)"
    if kind == "FloatType":
        return f"type({name}) in (float, int)"
    if kind == "StringType":
        return f"(type({name}) is str and {name}.isascii())"
    if kind in _EXACT:
        return f"type({name}) is {_EXACT[kind]}"
    if kind == "NumberType":
        return f"type({name}) in (int, float, bool)"
    if kind == "OptionalType":
        return f"({name} is None or {check(type_.getElementType(), name, depth)})"
    if kind == "DeviceObjType":
        return f"type({name}) is device_type"
    item = f"item{depth}"
    if kind == "ListType":
        inner = check(type_.getElementType(), item, depth + 1)
        return f"(type({name}) is list and all([{inner} for {item} in {name}]))"
    if kind == "DictType":
        inner = check(type_.getValueType(), item, depth + 1)
        key = check(type_.getKeyType(), "key", depth + 1)
        return f"(type({name}) is dict and all([{key} and {inner} for key, {item} in {name}.items()]))"
    if kind == "TupleType":
        parts = [check(part, f"{name}[{i}]", depth) for i, part in enumerate(type_.elements())]
        return " and ".join([f"(isinstance({name}, tuple) and len({name}) == {len(parts)}", *parts]) + ")"
    raise Unknown(f"an argument of type {type_.annotation_str}")


def taken(type_: Any, name: str) -> str:
    """The value inside: containers are copied, as each side has its own; named tuples are tuples."""
    return _copied(type_, name, 0, None)


def given(type_: Any, name: str, classes: Classes) -> str:
    """The result outside. `classes` gives the name of the class for the name and fields of a named tuple."""
    return _copied(type_, name, 0, classes)


def _copied(type_: Any, name: str, depth: int, classes: Classes | None) -> str:
    kind, item = type_.kind(), f"item{depth}"
    if kind == "FloatType" and classes is None:
        return f"({name} if type({name}) is float else float({name}))"
    if not _changes(type_, classes):
        return name
    if kind == "OptionalType":
        return f"(None if {name} is None else {_copied(type_.getElementType(), name, depth, classes)})"
    if kind == "ListType":
        inner = _copied(type_.getElementType(), item, depth + 1, classes)
        return f"list({name})" if inner == item else f"[{inner} for {item} in {name}]"
    if kind == "DictType":
        inner = _copied(type_.getValueType(), item, depth + 1, classes)
        return f"dict({name})" if inner == item else f"{{key: {inner} for key, {item} in {name}.items()}}"
    parts = ", ".join([_copied(part, f"{name}[{i}]", depth, classes) for i, part in enumerate(type_.elements())])
    fields = fields_of(type_) if classes else None
    return f"{classes(*fields)}({parts})" if classes and fields else f"({parts},)"


def _changes(type_: Any, classes: Classes | None) -> bool:
    kind = type_.kind()
    if kind == "FloatType":
        return classes is None
    if kind in ("ListType", "DictType") or (kind == "TupleType" and classes and fields_of(type_)):
        return True
    if kind == "OptionalType":
        return _changes(type_.getElementType(), classes)
    return kind == "TupleType" and any(_changes(part, classes) for part in type_.elements())


def refuse_result(type_: Any) -> None:
    """Raises Unknown for a type that Python code would give back as something else."""
    kind = type_.kind()
    if kind in ("ListType", "OptionalType"):
        refuse_result(type_.getElementType())
    elif kind == "DictType":
        refuse_result(type_.getValueType())
    elif kind == "TupleType":
        for part in type_.elements():
            refuse_result(part)
    elif kind not in (*_EXACT, "TensorType", "NumberType", "DeviceObjType"):
        raise Unknown(f"a result of type {type_.annotation_str}")
