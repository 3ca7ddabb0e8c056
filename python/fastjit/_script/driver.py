"""Control that depends on data, between programs: a function of Python that calls them and decides what comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastjit._script import axes, build, scalars
from fastjit._script.attributes import Attributes
from fastjit._script.emit import Writer
from fastjit._script.items import NUMBERS, Item, Items
from fastjit._script.nodes import VIEWS, Unknown, Value, is_constant, is_tensor, kind_of, line_of, writes

# A function to record, with the slots that its attributes need -> what runs it.
MakePart = Callable[[Callable[..., Any], Any], Callable[..., Any]]

_VIEWS = ("aten::select", "aten::slice", "aten::unsqueeze", "aten::transpose")


class Driver:
    """Writes the function, and makes a part of each stretch between decisions."""

    def __init__(self, scripted: build.Scripted, items: Items, make_part: MakePart):
        self.scripted, self.items, self.make_part = scripted, items, make_part
        self.writer = build.writer_of(scripted, None)
        self.parts: list[Callable[..., Any]] = []
        self._makers = {value.unique(): item for item in items.all for value in item.node.outputs()}
        self._scopes: list[list[Value]] = [[]]  # numbers that are written so far, by block
        self._views: list[dict[tuple[str, ...], str]] = [{}]

    def function(self) -> Callable[..., Any]:
        writer, scripted = self.writer, self.scripted
        build.head(scripted, writer)
        writer.put("refresh()")
        self._run(self.items.top)
        for value in scripted.graph.outputs():
            self._ensure(value)
        build.tail(scripted, writer)
        attributes = writer.attributes

        def refresh() -> None:
            if attributes.paths:
                writer.globals.update(attributes.values())

        writer.globals["refresh"] = refresh
        return build.made(writer, scripted)

    # Order.

    def _run(self, items: list[Item]) -> None:
        pending: list[Item] = []
        after: list[Item] = []

        def flush() -> None:
            if pending:
                self._part(list(pending))
            for item in after:
                self._statement(item)
            pending.clear()
            after.clear()

        for item in items:
            if item.floats:
                continue
            if not item.in_driver:
                if after and self._uses(item, after):
                    flush()
                pending.append(item)
            elif item.blocks:
                flush()
                self._control(item)
            elif _can_wait(item, self.items):
                after.append(item)
            else:
                if (pending or after) and (not _commutes(item) or self._uses(item, [*pending, *after])):
                    flush()
                self._statement(item)
        flush()

    def _uses(self, item: Item, others: list[Item]) -> bool:
        """Whether the item needs what these make, or a list that they change."""
        made = {value.unique() for other in others for inner in other.all() for value in inner.node.outputs()}
        made |= {list(other.node.inputs())[i].unique() for other in others for i in writes(other.node)}
        return any(value.unique() in made for value in self._needs(item.inputs(), set()))

    def _needs(self, values: list[Value], seen: set[int]) -> list[Value]:
        """The values, and those that numbers among them are made of."""
        found = []
        for value in values:
            if value.unique() in seen:
                continue
            seen.add(value.unique())
            found.append(value)
            maker = self._makers.get(value.unique())
            if maker is not None and maker.floats:
                found += self._needs(list(maker.node.inputs()), seen)
        return found

    # What the driver does itself.

    def _ensure(self, value: Value, before: Item | None = None) -> None:
        """Writes what makes a number of sizes and constants, unless it stands there already."""
        self._write_made(self.writer, value, before, self._scopes[-1])

    def _write_made(self, writer: Writer, value: Value, before: Item | None, made: list[Value] | None = None) -> None:
        """The same for any writer, in front of an item, whose own code makes what is made inside it where it is due."""
        maker = self._makers.get(value.unique())
        if maker is None or not maker.floats or is_constant(value) or writer.has(value):
            return
        if before is not None and before.index < maker.index < before.end:
            return
        for operand in maker.node.inputs():
            self._write_made(writer, operand, before, made)
        writer.node(maker.node)
        if made is not None:
            made.append(value)

    def _statement(self, item: Item) -> None:
        for value in item.inputs():
            self._ensure(value, item)
        if item.kind not in _VIEWS:
            self.writer.node(item.node)
            return
        key = (item.kind, *[self.writer.text(value) for value in item.node.inputs()])
        known = next((scope[key] for scope in self._views if key in scope), "")
        if known:  # a program that reads and writes one place takes it as one tensor
            self.writer.set_text(item.node.output(), known)
        else:
            self.writer.node(item.node)
            self._views[-1][key] = self.writer.text(item.node.output())

    def _enter(self) -> None:
        self._scopes.append([])
        self._views.append({})

    def _inside(self, items: list[Item], outputs: list[Value]) -> None:
        before = len(self.writer.lines)
        self._run(items)
        for value in outputs:
            self._ensure(value)
        if len(self.writer.lines) == before:
            self.writer.put("pass")

    def _leave(self) -> None:
        self._views.pop()
        for value in self._scopes.pop():
            self.writer.forget(value)

    def _control(self, item: Item) -> None:
        writer, node = self.writer, item.node
        for value in node.inputs():
            self._ensure(value)
        writer.mark(node)
        if item.kind == "prim::Loop":
            (block,) = node.blocks()
            self._enter()
            writer.loop(node, lambda _: self._inside(item.blocks[0], list(block.outputs())))
            self._leave()
            return
        place = writer.place
        condition = writer.text(next(iter(node.inputs())))
        for word, block, inner in zip((f"if {condition}:", "else:"), node.blocks(), item.blocks, strict=True):
            writer.place = place
            writer.put(word)
            writer.indent += 1
            self._enter()
            outputs = list(block.outputs())
            self._inside(inner, outputs)
            writer.move([writer.name(out) for out in node.outputs()], [writer.text(value) for value in outputs])
            self._leave()
            writer.indent -= 1

    # Parts.

    def _part(self, items: list[Item]) -> None:
        if not any(_computes(inner) for item in items for inner in item.all()):
            for item in items:
                self._statement(item)
            return
        inside = {inner.index for item in items for inner in item.all()}
        arguments = self._arguments(items)
        results = [value for item in items for value in item.node.outputs() if self._is_used_outside(value, inside)]
        writer = Writer(Attributes(self.scripted.root), axes.rewrite)
        if self.scripted.root is not None:
            writer.own(next(iter(self.scripted.graph.inputs())))
        names = [writer.name(value) for value in arguments]
        self._write_part(writer, items, names, results)
        function = build.made(writer, self.scripted)
        part = self.make_part(function, build.slots_of(writer))
        self.parts.append(part)
        self._call(part, items, arguments, results)

    def _arguments(self, items: list[Item]) -> list[Value]:
        own = {value.unique() for item in items for inner in item.all() for value in inner.node.outputs()}
        for item in items:
            for inner in item.all():
                own |= {value.unique() for block in inner.node.blocks() for value in block.inputs()}
        found = []
        for value in self._needs([value for item in items for value in item.inputs()], set()):
            maker = self._makers.get(value.unique())
            if value.unique() in own or is_constant(value) or (maker is not None and maker.floats):
                continue
            if kind_of(value) != "ClassType":
                found.append(value)
        return found

    def _is_used_outside(self, value: Value, inside: set[int]) -> bool:
        if value.unique() in self.items.results:
            return True
        for user in self.items.users.get(value.unique(), []):
            if user.index in inside:
                continue
            if not user.floats or any(self._is_used_outside(made, inside) for made in user.node.outputs()):
                return True
        return False

    def _write_part(self, writer: Writer, items: list[Item], names: list[str], results: list[Value]) -> None:
        writer.place = line_of(items[0].node) or self.scripted.place()
        writer.lines.append(f"def part({', '.join(names)}):")
        writer.places.append(writer.place)

        for item in items:
            for value in item.inputs():
                self._write_made(writer, value, item)
            writer.node(item.node)
        texts = [writer.text(value) for value in results]
        writer.put(f"return {texts[0]}" if len(texts) == 1 else f"return ({''.join(text + ', ' for text in texts)})")

    def _call(self, part: Callable[..., Any], items: list[Item], arguments: list[Value], results: list[Value]) -> None:
        writer = self.writer
        for value in arguments:
            self._ensure(value)
        if any(build.has_effect(inner.node) for item in items for inner in item.all()):
            writer.put("changed = True")
        writer.place = line_of(items[0].node) or writer.place
        name = writer.constant(part, "part")
        call = f"{name}({', '.join(writer.text(value) for value in arguments)})"
        names = [writer.name(value) for value in results]
        writer.put(f"{', '.join(names)} = {call}" if names else call)


def _can_wait(item: Item, items: Items) -> bool:
    """Whether the statement may as well come after programs that do not use what it changes."""
    if item.kind not in scalars.STATEMENTS or kind_of(next(iter(item.node.inputs()))) not in ("ListType", "DictType"):
        return False
    return not any(items.users.get(value.unique()) for value in item.node.outputs())


def _commutes(item: Item) -> bool:
    """Whether it gives the same before programs as after them, unless they make what it is given."""
    numbers = [*item.node.inputs(), *item.node.outputs()]
    return item.kind in _VIEWS or (
        item.kind not in ("prim::RaiseException", "aten::warn")
        and not writes(item.node)
        and all(kind_of(value) in (*NUMBERS, "NoneType") for value in numbers)
    )


def _computes(item: Item) -> bool:
    if not item.kind.startswith("aten::") or item.kind in VIEWS:
        return False
    return any(is_tensor(value) for value in item.node.outputs()) or bool(writes(item.node))


__all__ = ["Driver", "MakePart", "Unknown"]
