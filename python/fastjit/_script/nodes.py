"""What is asked of the nodes and values of a TorchScript graph."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_NAME = re.compile(r"^(\w+)::(\w+)(?:\.(\w+))?\(")
_FIELD = re.compile(r"(\w+) : ")

Node = Any  # torch._C.Node
Value = Any  # torch._C.Value
Block = Any  # torch._C.Block, or the graph itself


class Unknown(Exception):
    """The graph has what the converter does not know; the text is a plain sentence for the user."""

    def __init__(self, what: str, node: Node | None = None, why: str = ""):
        place = place_of(node) if node is not None else ""
        super().__init__(f"{what}{why and why + ','} at {place}" if place else what + why)


def line_of(node: Node) -> tuple[str, int] | None:
    """The file and line that the node was written at."""
    found = _PLACE.search(node.sourceRange())
    return (found[1], int(found[2])) if found and not found[1].startswith("<") else None


def place_of(node: Node) -> str:
    line = line_of(node)
    return f"{line[0].rpartition('/')[2]}:{line[1]}" if line else ""


@functools.cache
def schema_of(text: str) -> Any:
    return torch._C.parse_schema(text)


def operator_name(node: Node) -> str:
    """ "aten::add.Tensor": with the overload; without for the first and for nodes that have no schema."""
    found = _NAME.match(node.schema() or "")
    if not found:
        return str(node.kind())
    return f"{found[1]}::{found[2]}" + (f".{found[3]}" if found[3] else "")


def is_operator(name: str) -> bool:
    """Whether torch's dispatcher knows it, so that a recording sees it."""
    return name in _operators()


@functools.cache
def _operators() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def writes(node: Node) -> list[int]:
    """The positions of the operands that the node writes to."""
    if "!" not in (node.schema() or ""):
        return []
    arguments = schema_of(node.schema()).arguments
    return [i for i, argument in enumerate(arguments) if argument.alias_info and argument.alias_info.is_write]


def is_constant(value: Value, *kinds: type) -> bool:
    """Whether it is a constant, of one of these types where any are given."""
    if value.node().kind() != "prim::Constant":
        return False
    return not kinds or type(value.toIValue()) in kinds


def kind_of(value: Value) -> str:
    """ "TensorType", "IntType", "ListType", ..."""
    return str(value.type().kind())


def is_tensor(value: Value) -> bool:
    return kind_of(value) == "TensorType"


def fields_of(type_: Any) -> tuple[str, list[str]] | None:
    """The name and the fields of a named tuple's type."""
    text = type_.str()
    if not text.startswith("NamedTuple("):
        return None
    inner, depth, fields = text[len("NamedTuple(") : -1], 0, [""]
    for letter in inner:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            fields.append("")
        else:
            fields[-1] += letter
    names = [_FIELD.match(field.strip()) for field in fields]
    if not all(names):
        return None
    return type_.annotation_str.rpartition(".")[2], [name[1] for name in names if name]


def all_nodes(block: Block) -> list[Node]:
    """Every node, those inside other nodes' blocks too."""
    found = []
    for node in block.nodes():
        found.append(node)
        for inner in node.blocks():
            found += all_nodes(inner)
    return found


def root_of(value: Value) -> Value:
    """The tensor that the value is, or is a view of, as far as the nodes that made it tell."""
    while True:
        node = value.node()
        name = node.kind()
        first = next(iter(node.inputs()), None)
        if name in VIEWS or (writes(node) == [0] and is_tensor(value)):
            value = first
        else:
            return value


VIEWS = frozenset(
    f"aten::{name}"
    for name in "select slice unsqueeze squeeze transpose t permute expand expand_as view view_as alias detach narrow "
    "diagonal movedim swapaxes unfold real imag numpy_T mT".split()
)
