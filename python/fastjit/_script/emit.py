"""Nodes of a TorchScript graph as statements of Python."""

from __future__ import annotations

import builtins
import keyword
import math
import re
import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch

from fastjit._script import scalars
from fastjit._script.attributes import Attributes
from fastjit._script.nodes import (
    Node,
    Unknown,
    Value,
    is_constant,
    is_operator,
    is_tensor,
    kind_of,
    line_of,
    operator_name,
    schema_of,
)
from fastjit._script.uses import (
    counts_bytes,
    is_finite,
    is_message,
    is_shown,
    is_whole,
    looks_alike,
    needs_list,
    written,
)

# What a loop that is no plain sequence of rounds may be instead: statements that do the same, or False.
Rewrite = Callable[["Writer", Node], bool]

_ENDLESS = 2**63 - 1
_RESERVED = frozenset([*dir(builtins), *keyword.kwlist, "error", "changed", "failed", "original"])

_USED = frozenset(
    "abs all bool dict float int isinstance len list max min range str tuple type error changed failed original views "
    "pointwise pointwise_into Tensor device_type tensor dtypes raised warn_explicit".split()
)


class Writer:
    """Writes statements; names of values, constants and what the code finds as globals are shared by all of a graph."""

    has_effect: Callable[[Node], bool] = staticmethod(lambda node: False)

    def __init__(self, attributes: Attributes, rewrite: Rewrite | None = None):
        self.lines: list[str] = []
        self.places: list[tuple[str, int] | None] = []
        self.globals: dict[str, Any] = dict(scalars.HELPERS)
        self.attributes = attributes
        self.rewrite = rewrite
        self.given: dict[str, str] = {}  # parameters that the code takes as something else -> what the caller gave
        self.indent = 1
        self.place: tuple[str, int] | None = None
        self._texts: dict[int, str] = {}
        self._objects: dict[int, int] = {}  # value -> path
        self._taken = {*self.globals}
        self._classes: dict[tuple[str, tuple[str, ...]], str] = {}

    def put(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)
        self.places.append(self.place)

    def text(self, value: Value) -> str:
        found = self._texts.get(value.unique())
        if found is None and is_constant(value):
            found = self._texts[value.unique()] = self._constant(value)
        if found is None:
            raise Unknown(f"a value of type {value.type().annotation_str}", value.node())
        return found

    def set_text(self, value: Value, text: str) -> str:
        self._texts[value.unique()] = text
        return text

    def has(self, value: Value) -> bool:
        """Whether the value has a text already; an object of a class has none."""
        return value.unique() in self._texts or value.unique() in self._objects

    def forget(self, value: Value) -> None:
        self._texts.pop(value.unique(), None)

    def name(self, value: Value) -> str:
        """A new name for a value, which is its text from now on."""
        found = self._texts.get(value.unique())
        if found:
            return found
        base = re.sub(r"\W", "_", value.debugName())
        base = base if base.isidentifier() and not keyword.iskeyword(base) and base.isascii() else f"v{base}"
        base = base if base.isascii() and base.isidentifier() else f"v{value.unique()}"
        return self.set_text(value, self.fresh(base))

    def fresh(self, base: str) -> str:
        name, count = base, 0
        while name in self._taken or name in _RESERVED or name.startswith(("self_", "aten_")):
            count += 1
            name = f"v_{base}_{count}" if base.startswith(("self_", "aten_")) else f"{base}_{count}"
        self._taken.add(name)
        return name

    def take(self, name: str) -> bool:
        """Makes a parameter's name nobody else's. False: the code that is written uses it for something else."""
        free = name not in self._taken and name not in _USED and not name.startswith(("self_", "aten_"))
        self._taken.add(name)
        return free

    def class_name(self, name: str, fields: list[str]) -> str:
        """The global that holds the class of named tuples."""
        key = (name, tuple(fields))
        if key not in self._classes:
            self._classes[key] = self.fresh(f"class_{name}")
            self.globals[self._classes[key]] = namedtuple(name, fields)
        return self._classes[key]

    def constant(self, value: Any, base: str) -> str:
        """A global that holds it."""
        name = self.fresh(base)
        self.globals[name] = value
        return name

    def _constant(self, value: Value) -> str:
        held = value.toIValue()
        if "str" in value.type().annotation_str and not str(held).isascii() and not is_shown(value):
            raise Unknown("a text of other characters than ASCII", value.node())
        if held is None and kind_of(value) == "NoneType":
            return "None"
        if isinstance(held, (bool, int, str)) or (isinstance(held, float) and math.isfinite(held)):
            return repr(held) if not isinstance(held, (int, float)) or held >= 0 else f"({held!r})"
        if isinstance(held, (list, tuple, dict)):
            return self._literal(held, value)
        if isinstance(held, (torch.Tensor, torch.device, float, complex)):
            return self.constant(held, "constant")
        raise Unknown(f"a constant of type {value.type().annotation_str}", value.node())

    def _literal(self, held: Any, value: Value) -> str:
        items = list(held.values()) if isinstance(held, dict) else list(held)
        if all(isinstance(item, (bool, int, str, float)) and item == item and is_finite(item) for item in items):
            return repr(held)
        if isinstance(held, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in items):
            names = ", ".join(self.constant(item, "constant") for item in items)
            return f"[{names}]" if isinstance(held, list) else f"({names},)"
        raise Unknown(f"a constant of type {value.type().annotation_str}", value.node())

    def block(self, nodes: list[Node]) -> None:
        before = len(self.lines)
        for node in nodes:
            self.node(node)
        if len(self.lines) == before:
            self.put("pass")

    def node(self, node: Node) -> None:
        kind = node.kind()
        self.mark(node)
        special = getattr(self, "_" + kind.replace("::", "_"), None)
        if kind == "prim::Constant":
            return
        if special is not None:
            special(node)
        elif not self._python(node) and not self._operator(node):
            raise Unknown(operator_name(node), node, ", which no table knows")

    def mark(self, node: Node) -> None:
        """What is written next is of this node."""
        self.place = line_of(node) or self.place
        if self.has_effect(node):
            self.put("changed = True")

    def assign(self, value: Value, expression: str) -> None:
        self.put(f"{self.name(value)} = {expression}")

    # Numbers, lists, sizes.

    def _python(self, node: Node) -> bool:
        name, inputs = operator_name(node), list(node.inputs())
        bare = name.partition(".")[0]
        plain = not any(is_tensor(value) for value in inputs)
        if name == "aten::Int.Tensor" and inputs[0].node().kind() == "prim::NumToTensor":
            number = next(iter(inputs[0].node().inputs()))
            if kind_of(number) == "IntType":
                self.set_text(node.output(), self.text(number))
                return True
        held = [self.text(value) for value in inputs]
        if bare in scalars.STATEMENTS and kind_of(inputs[0]) in ("ListType", "DictType"):
            self.put(scalars.STATEMENTS[bare].format(*held))
            for output in node.outputs():
                self.set_text(output, held[0])
            return True
        if bare == "aten::pop" and kind_of(inputs[0]) == "ListType":
            self.assign(node.output(), f"{held[0]}.pop({held[1]})")
            return True
        found = scalars.EXPRESSIONS.get(name)
        if bare in scalars.WHOLE_TEXTS and is_whole(inputs[0], inputs[2], inputs[3]):
            found = scalars.WHOLE_TEXTS[bare]
        if found is None and (plain or kind_of(inputs[0]) in ("ListType", "DictType", "TupleType")):
            found = scalars.EXPRESSIONS.get(bare)
        if found is None or (bare == "aten::slice" and kind_of(inputs[0]) not in ("ListType", "StringType")):
            return False
        if name == "aten::size" and needs_list(node.output()):
            found = "list({0}.shape)"
        if found == "{0}":
            self.set_text(node.output(), held[0])
        else:
            self.assign(node.output(), found.format(*held))
        return True

    # Operators of torch.

    def _operator(self, node: Node) -> bool:
        name, inputs = operator_name(node), list(node.inputs())
        if name.startswith("aten::copy_.") or name in ("aten::copy_.int", "aten::copy_.float"):
            self.assign(
                node.output(), f"{self.operator('fill_', 'Scalar')}({self.text(inputs[0])}, {self.text(inputs[1])})"
            )
            return True
        if name in ("aten::tensor", "aten::tensor.int", "aten::tensor.float", "aten::tensor.bool"):
            return self._tensor(node, inputs)
        if not is_operator(name) or not name.startswith("aten::"):
            return False
        outputs = [self.name(value) for value in node.outputs()]
        call = self.call(node, [self.text(value) for value in inputs])
        self.put(f"{', '.join(outputs)} = {call}" if outputs else call)
        return True

    def call(self, node: Node, held: list[str]) -> str:
        """The operator with these operands."""
        _, _, rest = operator_name(node).partition("::")
        base, _, overload = rest.partition(".")
        arguments = schema_of(node.schema()).arguments
        given = [
            f"{argument.name}={text}" if argument.kwarg_only else text
            for argument, text in zip(arguments, held, strict=True)
            if not (argument.kwarg_only and text == "None")
        ]
        return f"{self.operator(base, overload or 'default')}({', '.join(given)})"

    def operator(self, base: str, overload: str = "default") -> str:
        """The global that holds an operator of torch."""
        name = f"aten_{base}" if overload == "default" else f"aten_{base}_{overload}"
        self.globals.setdefault(name, getattr(getattr(torch.ops.aten, base), overload))
        return name

    def _tensor(self, node: Node, inputs: list[Value]) -> bool:
        data, dtype, device, requires_grad = inputs
        if not is_constant(requires_grad, bool) or requires_grad.toIValue():
            return False
        where = [f"{key}={self.text(value)}" for key, value in (("dtype", dtype), ("device", device))]
        options = ", ".join(part for part in where if not part.endswith("=None"))
        if operator_name(node) != "aten::tensor":
            joined = f", {options}" if options else ""
            self.assign(node.output(), f"{self.operator('full')}([], {self.text(data)}{joined})")
            return True
        if any(not is_constant(value, type(None)) for value in (dtype,)):
            dtype_text = self.text(dtype)
            self.globals["dtypes"] = {number: held for held, number in scalars.DTYPE_NUMBERS.items()}
            options = options.replace(f"dtype={dtype_text}", f"dtype=dtypes[{dtype_text}]")
        self.globals["tensor"] = torch.tensor
        self.assign(node.output(), f"tensor({self.text(data)}, {options})" if options else f"tensor({self.text(data)})")
        return True

    # Nodes of TorchScript's own.

    def _prim_GetAttr(self, node: Node) -> None:
        owner = self._objects.get(next(iter(node.inputs())).unique())
        if owner is None:
            raise Unknown("prim::GetAttr of an object of a class", node)
        is_object = kind_of(node.output()) == "ClassType"
        path, name = self.attributes.object_or_name(owner, node.s("name"), is_object)
        if is_object:
            self._objects[node.output().unique()] = path
        elif kind_of(node.output()) == "StringType" and counts_bytes(node.output()):
            raise Unknown(f"the text {node.s('name')!r}", node, ", which another may replace")
        else:
            self.set_text(node.output(), name)

    def own(self, value: Value) -> None:
        """The value is the module itself."""
        self._objects[value.unique()] = -1

    def _prim_SetAttr(self, node: Node) -> None:
        owner, value = node.inputs()
        path = self._objects.get(owner.unique())
        if path is not None and is_tensor(value):
            _, name = self.attributes.object_or_name(path, node.s("name"), False)
            if self._texts.get(written(value).unique()) == name:  # x.a += 1
                return
        raise Unknown(f"prim::SetAttr of {node.s('name')!r}", node)

    def _prim_ListConstruct(self, node: Node) -> None:
        self.assign(node.output(), f"[{', '.join(self.text(value) for value in node.inputs())}]")

    def _prim_TupleConstruct(self, node: Node) -> None:
        parts = [self.text(value) for value in node.inputs()]
        self.assign(node.output(), f"({', '.join(parts)},)" if parts else "()")

    def _prim_DictConstruct(self, node: Node) -> None:
        parts = [self.text(value) for value in node.inputs()]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        self.assign(node.output(), f"{{{', '.join(f'{key}: {value}' for key, value in pairs)}}}")

    def _prim_TupleUnpack(self, node: Node) -> None:
        names = [self.name(value) for value in node.outputs()]
        if names:
            self.put(f"{', '.join(names)}, = {self.text(next(iter(node.inputs())))}")

    _prim_ListUnpack = _prim_TupleUnpack

    def _prim_Uninitialized(self, node: Node) -> None:
        self.set_text(node.output(), "None")

    def _aten_format(self, node: Node) -> None:
        is_alike = looks_alike(node)
        if not is_alike and not is_message(node.output()):
            raise Unknown("aten::format", node)
        first, *rest = [self.text(value) for value in node.inputs()]
        if is_alike:
            values = list(node.inputs())[1:]
            rest = [
                f"listed({text})" if kind_of(value) == "ListType" else text
                for text, value in zip(rest, values, strict=True)
            ]
        self.assign(node.output(), f"{first}.format({', '.join(rest)})")

    def _aten_str(self, node: Node) -> None:
        if not is_message(node.output()):
            raise Unknown("aten::str", node)
        self.assign(node.output(), f"str({self.text(next(iter(node.inputs())))})")

    def _aten_warn(self, node: Node) -> None:
        place = line_of(node)
        if place is None:
            raise Unknown("aten::warn", node)
        # As the interpreter warns: of this line in every call, whatever was shown before.
        self.globals.update(warn_explicit=warnings.warn_explicit, UserWarning=UserWarning)
        self.put(f"warn_explicit({self.text(next(iter(node.inputs())))}, UserWarning, {place[0]!r}, {place[1]})")

    def _prim_RaiseException(self, node: Node) -> None:
        message, kind = node.inputs()
        self.globals["raised"] = scalars.raised
        held = "'AssertionError'" if kind_of(kind) == "NoneType" else self.text(kind)
        self.put(f"raise raised({self.text(message)}, {held}, {self.constant(node.sourceRange(), 'place')})")

    def _prim_If(self, node: Node) -> None:
        (condition,) = node.inputs()
        place = self.place
        for word, block in zip((f"if {self.text(condition)}:", "else:"), node.blocks(), strict=True):
            results = list(zip(node.outputs(), block.outputs(), strict=True))
            nodes = list(block.nodes())
            if word == "else:" and not results and not nodes:
                continue
            self.place = place
            self.put(word)
            self.indent += 1
            self.block(nodes) if nodes or not results else None
            self.move([self.name(out) for out, _ in results], [self.text(of) for _, of in results])
            self.indent -= 1

    def move(self, targets: list[str], sources: list[str]) -> None:
        """All assignments at once."""
        pairs = [(target, source) for target, source in zip(targets, sources, strict=True) if target != source]
        if pairs:
            self.put(f"{', '.join(t for t, _ in pairs)} = {', '.join(s for _, s in pairs)}")

    def _prim_Loop(self, node: Node) -> None:
        if self.rewrite is None or not self.rewrite(self, node):
            self.loop(node, lambda nodes: self.block(nodes))

    def loop(self, node: Node, body: Callable[[list[Node]], None]) -> None:
        """The loop as one of Python's around what `body` writes."""
        rounds, first, *carried = node.inputs()
        (block,) = node.blocks()
        index, *inside = block.inputs()
        last, *after = block.outputs()
        names = [self.name(value) for value in inside]
        self.move(names, [self.text(value) for value in carried])
        always = [is_constant(value, bool) and value.toIValue() is True for value in (first, last)]
        counter = self.name(index)
        condition = "" if all(always) else self.fresh("goes_on")
        counted = not (is_constant(rounds, int) and rounds.toIValue() == _ENDLESS)
        if condition:
            self.put(f"{condition} = {self.text(first)}")
        if counted and not condition:
            self.put(f"for {counter} in range({self.text(rounds)}):")
        else:
            self.put(f"{counter} = 0")
            tests = ([f"{counter} < {self.text(rounds)}"] if counted else []) + ([condition] if condition else [])
            self.put(f"while {' and '.join(tests) or 'True'}:")
        self.indent += 1
        body(list(block.nodes()))
        self.move(
            names + ([condition] if condition else []),
            [self.text(value) for value in after] + ([self.text(last)] if condition else []),
        )
        if condition or not counted:
            self.put(f"{counter} += 1")
        self.indent -= 1
        for outside, name in zip(node.outputs(), names, strict=True):
            self.assign(outside, name)
