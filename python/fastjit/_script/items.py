"""The nodes of a graph with what is known of them before anything runs: which control depends on data."""

from __future__ import annotations

import dataclasses

from fastjit._script import scalars
from fastjit._script.axes import POINTWISE
from fastjit._script.nodes import Block, Node, Value, is_constant, is_tensor, kind_of, operator_name, writes

NUMBERS = ("IntType", "FloatType", "BoolType", "NumberType")
_METADATA = frozenset(
    "aten::size aten::size.int aten::dim aten::numel aten::len.Tensor prim::dtype prim::device aten::stride.int "
    "aten::is_floating_point prim::is_cuda".split()
)
_LIST_VIEWS = frozenset("prim::unchecked_cast prim::unchecked_unwrap_optional aten::_unwrap_optional".split())


@dataclasses.dataclass
class Item:
    """A node; `index` to `end` number it and the nodes inside."""

    node: Node
    index: int
    end: int
    blocks: list[list[Item]]
    in_driver: bool = False  # runs between programs
    floats: bool = False  # numbers of sizes and constants: made again wherever they are used

    @property
    def kind(self) -> str:
        return str(self.node.kind())

    def all(self) -> list[Item]:
        return [self, *(inner for block in self.blocks for item in block for inner in item.all())]

    def inputs(self) -> list[Value]:
        """Of the node and of all inside, what blocks give back too."""
        found = []
        for item in self.all():
            found += list(item.node.inputs())
            found += [value for block in item.node.blocks() for value in block.outputs()]
        return found


class Items:
    """A graph's items, and what depends on elements of tensors."""

    def __init__(self, graph: Block):
        self._count = 0
        self.top = self._read(graph)
        self.all = [item for top in self.top for item in top.all()]
        self.data: set[int] = set()  # numbers that were read of tensors, and what follows from them
        self._grow(self.data, _reads)
        self.control = {item.index for item in self.all if self._depends(item)}
        self.varying: set[int] = set(self.data)  # numbers that differ from round to round of loops of the driver
        self.users: dict[int, list[Item]] = {}
        for item in self.all:
            for value in item.node.inputs():
                self.users.setdefault(value.unique(), []).append(item)
            for block in item.node.blocks():
                for value in block.outputs():
                    self.users.setdefault(value.unique(), []).append(item)
        self.results = {value.unique() for value in graph.outputs()}
        if self.control:
            self._choose()

    def _read(self, block: Block) -> list[Item]:
        found = []
        for node in block.nodes():
            index = self._count
            self._count += 1
            blocks = [self._read(inner) for inner in node.blocks()]
            found.append(Item(node, index, self._count, blocks))
        return found

    def _grow(self, known: set[int], begins: object) -> None:
        """Numbers that follow from these numbers, until nothing more does."""
        before = -1
        while before != len(known):
            before = len(known)
            for item in self.all:
                node = item.node
                if item.kind == "prim::Loop":
                    self._grow_loop(known, node)
                    continue
                if item.kind == "prim::If":
                    self._grow_branches(known, node)
                    continue
                if (begins is _reads and _reads(item)) or any(value.unique() in known for value in node.inputs()):
                    known.update(value.unique() for value in node.outputs() if _is_number(value))

    def _grow_loop(self, known: set[int], node: Node) -> None:
        rounds, _, *carried = node.inputs()
        (block,) = node.blocks()
        last, *after = block.outputs()
        _, *inside = block.inputs()
        for values in zip(carried, inside, after, node.outputs(), strict=True):
            if any(value.unique() in known for value in (*values[:3], last, rounds)):
                known.update(value.unique() for value in values[1:] if _is_number(value))
                known.update([values[3].unique()] if _is_number(values[3]) else [])

    def _grow_branches(self, known: set[int], node: Node) -> None:
        (condition,) = node.inputs()
        for position, output in enumerate(node.outputs()):
            given = [list(block.outputs())[position] for block in node.blocks()]
            if _is_number(output) and any(value.unique() in known for value in (condition, *given)):
                known.add(output.unique())

    def _depends(self, item: Item) -> bool:
        asked = []
        if item.kind == "prim::If":
            asked = list(item.node.inputs())
        elif item.kind == "prim::Loop":
            asked = [*list(item.node.inputs())[:2], next(iter(next(iter(item.node.blocks())).outputs()))]
        return any(value.unique() in self.data for value in asked)

    # What runs where.

    def _choose(self) -> None:
        before: tuple[int, int] = (-1, -1)
        while before != (len(self.varying), sum(item.in_driver for item in self.all)):
            before = (len(self.varying), sum(item.in_driver for item in self.all))
            for item in self.all:
                if item.blocks and any(inner.in_driver or inner.index in self.control for inner in item.all()):
                    item.in_driver = True
            for item in self.all:
                if item.in_driver and item.kind == "prim::Loop":
                    (block,) = item.node.blocks()
                    self.varying.update(value.unique() for value in block.inputs() if _is_number(value))
            self._grow(self.varying, None)
            hot = self._hot_lists()
            for item in self.all:
                item.in_driver = item.in_driver or self._is_in_driver(item, hot)
        for item in self.all:
            item.floats = not item.in_driver and self._is_floating(item)

    def _hot_lists(self) -> set[int]:
        """Lists and dictionaries that loops and branches of the driver change or pass on, under all their names."""
        hot: set[int] = set()
        for item in self.all:
            if not (item.in_driver and item.blocks):
                continue
            for inner in item.all():
                hot.update(
                    list(inner.node.inputs())[i].unique() for i in writes(inner.node) if _is_container(inner.node, i)
                )
                if inner.in_driver and inner.blocks:
                    values = [*inner.node.inputs(), *inner.node.outputs()]
                    values += [value for block in inner.node.blocks() for value in (*block.inputs(), *block.outputs())]
                    hot.update(value.unique() for value in values if kind_of(value) in ("ListType", "DictType"))
        for item in self.all:
            if item.kind in _LIST_VIEWS or writes(item.node):
                names = [value.unique() for value in [*list(item.node.inputs())[:1], *item.node.outputs()]]
                if any(name in hot for name in names):
                    hot.update(names)
        return hot

    def _is_in_driver(self, item: Item, hot: set[int]) -> bool:
        node, inputs = item.node, list(item.node.inputs())
        if item.kind in ("prim::Constant", "prim::GetAttr"):
            return False
        if item.kind in ("prim::RaiseException", "aten::warn") or _reads(item):
            return True
        if any(value.unique() in hot for value in [*inputs, *node.outputs()]):
            return True
        if not any(value.unique() in self.varying for value in inputs):
            return False
        return not (
            item.kind.startswith("aten::") and item.kind[6:].removesuffix("_") in POINTWISE and is_tensor(inputs[0])
        )

    def _is_floating(self, item: Item) -> bool:
        outputs = list(item.node.outputs())
        if item.kind in ("prim::Constant", "prim::GetAttr"):
            return True
        if item.blocks or writes(item.node) or len(outputs) != 1 or is_tensor(outputs[0]):
            return False
        name = operator_name(item.node)
        if any(is_tensor(value) for value in item.node.inputs()):
            return name in _METADATA
        if kind_of(outputs[0]) in NUMBERS:
            return all(
                kind_of(value) in (*NUMBERS, "NoneType") or self._is_int_list(value) for value in item.node.inputs()
            )
        return self._is_int_list(outputs[0])

    def _is_int_list(self, value: Value) -> bool:
        """A list of ints or None that is read only."""
        if value.type().annotation_str != "List[int]" or value.node().kind() not in (
            "prim::ListConstruct",
            "aten::size",
        ):
            return False
        return not any(
            writes(user.node) and next(iter(user.node.inputs())).unique() == value.unique()
            for user in self.users.get(value.unique(), [])
        )


def _is_number(value: Value) -> bool:
    kind = kind_of(value)
    if kind == "ListType":
        return kind_of_item(value) in NUMBERS
    return kind in NUMBERS or (kind == "OptionalType" and value.type().getElementType().kind() in NUMBERS)


def kind_of_item(value: Value) -> str:
    return str(value.type().getElementType().kind())


def _reads(item: Item) -> bool:
    return item.kind in scalars.READS and any(
        is_tensor(value) and value.node().kind() != "prim::NumToTensor" for value in item.node.inputs()
    )


def _is_container(node: Node, position: int) -> bool:
    return kind_of(list(node.inputs())[position]) in ("ListType", "DictType")


__all__ = ["Item", "Items", "is_constant"]
