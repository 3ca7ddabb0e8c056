"""Loops over elements as operators on all of them.

A loop qualifies where a round does nothing but pointwise operators on what it selects with its counters, and writes
to what it selects. It is legal where a tensor that is written is used at one place only in each round, a place of its
own in each, and shares no memory with others. What the graph cannot tell of that is asked in the call: `views()`.
"""

from __future__ import annotations

import dataclasses

from fastjit._script.emit import Writer
from fastjit._script.nodes import (
    Node,
    Unknown,
    Value,
    is_constant,
    is_tensor,
    kind_of,
    operator_name,
    root_of,
    schema_of,
    writes,
)
from fastjit._script.rounds import pointwise, pointwise_into, views

POINTWISE = frozenset(
    "add sub mul div neg abs exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "sigmoid relu sqrt rsqrt pow clamp clamp_min clamp_max maximum minimum where eq ne lt le gt ge logical_and "
    "logical_or logical_not logical_xor floor ceil round trunc sign reciprocal square erf erfc atan2 remainder "
    "fmod floor_divide rsub addcmul addcdiv lerp clone silu gelu leaky_relu elu hardtanh hardswish hardsigmoid "
    "softplus relu6 isnan isinf bitwise_and bitwise_or bitwise_xor bitwise_not copy fill __and__ __or__ __xor__ "
    "hypot frac".split()
)


@dataclasses.dataclass(frozen=True)
class Counter:
    """The number `offset + step * round` of the loop at this level."""

    level: int
    offset: str
    step: str


@dataclasses.dataclass(frozen=True)
class View:
    """What a chain of selects and slices makes of a tensor from outside; each step as a tuple in Python's words."""

    base: Value
    steps: tuple[str, ...]
    levels: tuple[int, ...]

    @property
    def place(self) -> tuple[int, tuple[str, ...]]:
        return self.base.unique(), self.steps


@dataclasses.dataclass(frozen=True)
class Batched:
    """A tensor with one dim in front for each of the levels."""

    text: str
    levels: tuple[int, ...]


class _Loop(Exception):
    """It stays a loop."""


def rewrite(writer: Writer, node: Node) -> bool:
    """Writes the loop as operators on all elements, and as a loop for calls where that would not be the same."""
    try:
        nest = _Nest(writer, node)
    except _Loop:
        return False
    nest.write()
    return True


class _Nest:
    """A loop with the loops inside."""

    def __init__(self, writer: Writer, node: Node):
        self.writer, self.node = writer, node
        self.counts: list[Value] = []
        self.known: dict[int, Counter | View | Batched] = {}
        self.fixed: list[Node] = []  # the same in every round, and made first
        self.inside: set[int] = set()
        self.views: list[View] = []
        self.work: list[tuple[Node, tuple[int, ...]]] = []
        self.written: list[View] = []
        self._enter(node, ())
        if not self.written:
            raise _Loop
        self._check()

    def _enter(self, loop: Node, levels: tuple[int, ...]) -> None:
        rounds, first, *carried = loop.inputs()
        (block,) = loop.blocks()
        index = next(iter(block.inputs()))
        last = next(iter(block.outputs()))
        if carried or not all(is_constant(value, bool) and value.toIValue() for value in (first, last)):
            raise _Loop
        if rounds.unique() in self.known or len(levels) == 6:
            raise _Loop
        level = len(self.counts)
        self.counts.append(rounds)
        self.known[index.unique()] = Counter(level, "0", "1")
        for node in block.nodes():
            self._node(node, (*levels, level))

    def _node(self, node: Node, levels: tuple[int, ...]) -> None:
        kind, inputs = node.kind(), list(node.inputs())
        self.inside.update(value.unique() for value in node.outputs())
        if kind == "prim::Constant":
            self.inside.difference_update(value.unique() for value in node.outputs())
        elif kind == "prim::Loop":
            self._enter(node, levels)
        elif kind in ("aten::select", "aten::slice") and is_tensor(inputs[0]):
            self._view(node, inputs)
        elif any(isinstance(self.known.get(value.unique()), Counter) for value in inputs):
            self._count(node, inputs)
        elif self._is_pointwise(node):
            self._pointwise(node, inputs, levels)
        elif not any(value.unique() in self.known for value in inputs) and _is_fixed(node):
            self.fixed.append(node)
        else:
            raise _Loop

    def _is_pointwise(self, node: Node) -> bool:
        base = node.kind().removeprefix("aten::")
        outputs = list(node.outputs())
        is_one = len(outputs) == 1 and is_tensor(outputs[0])
        return node.kind().startswith("aten::") and is_one and base.removesuffix("_") in POINTWISE

    def _count(self, node: Node, inputs: list[Value]) -> None:
        """Counters plus and minus what is the same in every round."""
        name, first = operator_name(node), self.known.get(inputs[0].unique())
        others = [value for value in inputs[1:] if value.unique() not in self.known]
        if name == "aten::add.int" and not isinstance(first, Counter):
            first, others = self.known.get(inputs[1].unique()), [inputs[0]]
        if not isinstance(first, Counter) or len(others) != len(inputs) - 1:
            raise _Loop
        texts = [self._text(value) for value in others]
        if name == "aten::add.int":
            made = Counter(first.level, f"{first.offset} + {texts[0]}", first.step)
        elif name == "aten::sub.int":
            made = Counter(first.level, f"{first.offset} - {texts[0]}", first.step)
        elif name == "aten::__derive_index" and (first.offset, first.step) == ("0", "1"):
            made = Counter(first.level, texts[0], texts[1])
        else:
            raise _Loop
        self.known[node.output().unique()] = made

    def _text(self, value: Value) -> str:
        """What is the same in every round."""
        if value.unique() in self.known:
            raise _Loop
        return self.writer.name(value) if value.unique() in self.inside else self.writer.text(value)

    def _view(self, node: Node, inputs: list[Value]) -> None:
        start = self._view_of(inputs[0])
        counter = self.known.get(inputs[2].unique())
        levels = start.levels
        if node.kind() == "aten::select" and isinstance(counter, Counter):
            if counter.level in levels:
                raise _Loop
            levels = tuple(sorted((*levels, counter.level)))
            step = f"('at', {self._text(inputs[1])}, {counter.level}, {counter.offset}, {counter.step})"
        else:
            texts = [self._text(value) for value in inputs[1:]]
            step = f"({node.kind().removeprefix('aten::')!r}, {', '.join(texts)})"
        self.known[node.output().unique()] = View(start.base, (*start.steps, step), levels)

    def _view_of(self, value: Value) -> View:
        found = self.known.get(value.unique())
        if isinstance(found, View):
            return found
        if found is not None or value.unique() in self.inside:
            raise _Loop
        return View(value, (), ())

    def _use(self, view: View) -> View:
        if view.place not in [known.place for known in self.views]:
            self.views.append(view)
        return view

    def _pointwise(self, node: Node, inputs: list[Value], levels: tuple[int, ...]) -> None:
        target = writes(node)
        found: set[int] = set()
        for position, value in enumerate(inputs):
            if not is_tensor(value):
                self._text(value)
                continue
            known = self.known.get(value.unique())
            if known is None and value.unique() not in self.inside:
                known = self._view_of(value)
            if known is None and node.kind() != "aten::copy_":  # a tensor without dims, which may promote otherwise
                raise _Loop
            if isinstance(known, View):
                self._use(known)
                self.known[value.unique()] = known
            found.update(known.levels if isinstance(known, (View, Batched)) else ())
            if position in target and not (isinstance(known, View) and known.levels == tuple(sorted(levels))):
                raise _Loop
        if target and target != [0]:
            raise _Loop
        if target:
            view = self.known[inputs[0].unique()]
            assert isinstance(view, View)
            self.written.append(view)
            self.known[node.output().unique()] = view
        else:
            self.known[node.output().unique()] = Batched(self.writer.fresh("batched"), tuple(sorted(found)))
        self.work.append((node, levels))

    def _check(self) -> None:
        """What the graph can tell: a written tensor is used at one place only."""
        roots = {view.base.unique(): root_of(view.base) for view in self.views}
        self.apart: list[tuple[int, int]] = []
        places = {view.place: view for view in self.written}
        for view in places.values():
            mine = roots[view.base.unique()]
            for position, other in enumerate(self.views):
                theirs = roots[other.base.unique()]
                if other.place == view.place:
                    continue
                if mine.unique() == theirs.unique():
                    raise _Loop
                if not (_is_new(mine) and _is_new(theirs)) and not _made_after(mine, theirs):
                    self.apart.append((self._index(view), position))

    def _index(self, view: View) -> int:
        return [known.place for known in self.views].index(view.place)

    # Writing.

    def write(self) -> None:
        writer = self.writer
        writer.globals.update(views=views, pointwise=pointwise, pointwise_into=pointwise_into)
        found = writer.fresh("axes")
        writer.put(f"{found} = None")
        writer.put(f"if {writer.text(self.counts[0])} > 0:")
        writer.indent += 1
        for node in self.fixed:
            writer.node(node)
        counts = ", ".join(writer.text(value) for value in self.counts)
        paths = ", ".join(f"({writer.text(view.base)}, ({_joined(view.steps)}))" for view in self.views)
        written = sorted({self._index(view) for view in self.written})
        writer.put(f"{found} = views(({counts},), ({paths},), {tuple(written)}, {tuple(self.apart)})")
        writer.indent -= 1
        writer.put(f"if {found} is not None:")
        writer.indent += 1
        self._write_work(found)
        writer.indent -= 1
        writer.put("else:")
        writer.indent += 1
        writer.loop(self.node, writer.block)
        writer.indent -= 1

    def _write_work(self, found: str) -> None:
        writer = self.writer
        texts = [writer.fresh("view") for _ in self.views]
        writer.put(f"{', '.join(texts)}, = {found}")
        for node, _ in self.work:
            writer.mark(node)
            operands = [self._operand(value, texts) for value in node.inputs()]
            into = bool(writes(node))
            named: list[str] = []
            plain: list[str] = []
            for argument, text in zip(schema_of(node.schema()).arguments, operands, strict=True):
                (named if argument.kwarg_only else plain).append(
                    f"{argument.name}={text}" if argument.kwarg_only else text
                )
            _, _, rest = operator_name(node).partition("::")
            base, _, overload = rest.partition(".")
            call = f"({', '.join([writer.operator(base, overload or 'default'), *plain, *named])})"
            if into:
                writer.put(f"pointwise_into{call}")
            else:
                made = self.known[node.output().unique()]
                assert isinstance(made, Batched)
                writer.put(f"{made.text} = pointwise{call}")

    def _operand(self, value: Value, texts: list[str]) -> str:
        """A tensor goes with the levels that it has."""
        known = self.known.get(value.unique())
        if isinstance(known, View):
            return f"({texts[self._index(known)]}, {known.levels})"
        if isinstance(known, Batched):
            return f"({known.text}, {known.levels})"
        text = self.writer.text(value)
        return f"({text}, ())" if is_tensor(value) else text


def _joined(steps: tuple[str, ...]) -> str:
    return "".join(step + ", " for step in steps)


def _is_fixed(node: Node) -> bool:
    """Whether it only makes numbers of numbers and sizes, or a number a tensor."""
    if operator_name(node) in ("aten::tensor.float", "aten::tensor.int", "aten::tensor.bool"):
        return True
    outputs = list(node.outputs())
    if writes(node) or list(node.blocks()) or not outputs or any(is_tensor(value) for value in outputs):
        return False
    if any(
        kind_of(value) not in ("IntType", "FloatType", "BoolType", "ListType", "DeviceObjType") for value in outputs
    ):
        return False
    reads = any(is_tensor(value) for value in node.inputs())
    return not reads or operator_name(node) in (
        "aten::size",
        "aten::size.int",
        "aten::dim",
        "prim::dtype",
        "prim::device",
    )


def _is_new(root: Value) -> bool:
    from fastjit._script.build import is_fresh

    return is_fresh(root.node())


def _made_after(one: Value, other: Value) -> bool:
    """Whether one is new memory and the other was there before it."""
    return any(
        _is_new(new) and old.node().kind() in ("prim::Param", "prim::GetAttr", "prim::Constant")
        for new, old in ((one, other), (other, one))
    )


__all__ = ["Unknown", "rewrite"]
