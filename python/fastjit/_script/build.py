"""Functions of Python that do what a TorchScript graph does."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fastjit._script import arguments
from fastjit._script.attributes import Attributes
from fastjit._script.emit import Rewrite, Writer
from fastjit._script.nodes import Node, Unknown, all_nodes, is_tensor, line_of, root_of, schema_of, writes

_OF_TORCH = str(Path(torch.__file__).parent) + "/"


class Scripted:
    """A ScriptFunction, ScriptModule or ScriptMethod with what is asked of it."""

    def __init__(self, target: Any):
        self.original = target
        self.module = target if isinstance(target, torch.jit.ScriptModule) else None
        method = target.forward if self.module is not None else target
        self.schema = method.schema
        self.graph = method.inlined_graph
        self.root = None if isinstance(target, torch.jit.ScriptFunction) else method.owner
        self.name = name_of(target)

    def parameters(self) -> list[tuple[Any, Any]]:
        """Each argument of the schema with its value in the graph, without the module itself."""
        skip = 0 if self.root is None else 1
        return list(zip(self.schema.arguments, self.graph.inputs(), strict=True))[skip:]

    def place(self) -> tuple[str, int] | None:
        """The first line that is not torch's own."""
        lines = [line for node in all_nodes(self.graph) if (line := line_of(node))]
        return next((line for line in lines if not line[0].startswith(_OF_TORCH)), None)


def name_of(target: Any) -> str:
    """What messages call it: as the Python function or class that it was made of."""
    if isinstance(target, torch.jit.ScriptModule):
        return str(target.original_name)
    if isinstance(target, torch.jit.ScriptFunction):
        return str(target.qualified_name).removeprefix("__torch__.").removeprefix("__main__.")
    return str(target.name)


def writer_of(scripted: Scripted, rewrite: Rewrite | None) -> Writer:
    """A writer that knows the parameters and the module."""
    writer = Writer(Attributes(scripted.root), rewrite)
    writer.has_effect = has_effect
    if scripted.root is not None:
        writer.own(next(iter(scripted.graph.inputs())))
    for argument, value in scripted.parameters():
        if not argument.name.isidentifier() or not argument.name.isascii() or not writer.take(argument.name):
            raise Unknown(f"a parameter named {argument.name!r}")
        writer.set_text(value, argument.name)
    return writer


def signature(scripted: Scripted, writer: Writer) -> str:
    parts, keywords = [], False
    for argument, _ in scripted.parameters():
        if argument.kwarg_only and not keywords:
            keywords = True
            parts.append("*")
        default = f"={writer.constant(argument.default_value, 'default')}" if argument.has_default_value() else ""
        parts.append(argument.name + default)
    return ", ".join(parts)


def begin(scripted: Scripted, writer: Writer) -> None:
    """Hands calls over to the original that it answers otherwise; copies what each side has its own of."""
    writer.globals.update(Tensor=torch.Tensor, device_type=torch.device, original=scripted.original)
    passed = ", ".join(f"{a.name}={a.name}" if a.kwarg_only else a.name for a, _ in scripted.parameters())
    tests = [arguments.check(argument.type, argument.name) for argument, _ in scripted.parameters()]
    if scripted.module is not None:
        tests += _no_hooks(scripted.module, writer)
    if tests:
        writer.put(f"if not ({' and '.join(tests)}):")
        writer.lines.append(f"{'    ' * (writer.indent + 1)}return original({passed})")
        writer.places.append(writer.place)
    for argument, _ in scripted.parameters():
        held = arguments.taken(argument.type, argument.name)
        if held != argument.name:
            writer.given[argument.name] = writer.fresh(f"given_{argument.name}")
            writer.put(f"{writer.given[argument.name]} = {argument.name}")
            writer.put(f"{argument.name} = {held}")


def _no_hooks(module: Any, writer: Writer) -> list[str]:
    owner = torch.nn.modules.module
    found = [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks]
    found += [owner._global_forward_hooks, owner._global_forward_pre_hooks, owner._global_backward_hooks]
    return [f"not {writer.constant(hooks, 'hooks')}" for hooks in found]


def result_of(scripted: Scripted, writer: Writer) -> str:
    """The expression that the original would return."""
    values = list(scripted.graph.outputs())
    (returned,) = scripted.schema.returns
    arguments.refuse_result(returned.type)
    return arguments.given(returned.type, writer.text(values[0]), writer.class_name)


def head(scripted: Scripted, writer: Writer) -> None:
    """What stands before the graph's own statements."""
    writer.place = scripted.place()
    writer.lines.append(f"def forward({signature(scripted, writer)}):")
    writer.places.append(writer.place)
    begin(scripted, writer)
    writer.put("try:")
    writer.indent += 1
    writer.put("changed = False")


def tail(scripted: Scripted, writer: Writer) -> None:
    """What stands behind them."""
    writer.put(f"return {result_of(scripted, writer)}")
    writer.indent -= 1
    writer.globals["failed"] = failure_of(scripted)
    given = [(argument, writer.given.get(argument.name, argument.name)) for argument, _ in scripted.parameters()]
    passed = ", ".join(f"{argument.name}={text}" if argument.kwarg_only else text for argument, text in given)
    writer.put("except Exception as error:")
    writer.indent += 1
    writer.put(f"return failed(error, changed, {passed})")


def whole(scripted: Scripted, rewrite: Rewrite | None = None) -> tuple[Callable[..., Any], Writer]:
    """The graph as one function, and the writer that wrote it."""
    writer = writer_of(scripted, rewrite)
    head(scripted, writer)
    writer.block(list(scripted.graph.nodes()))
    tail(scripted, writer)
    return made(writer, scripted), writer


def made(writer: Writer, scripted: Scripted) -> Callable[..., Any]:
    """The function that was written, with the lines of what it was made of."""
    text = "\n".join(writer.lines) + "\n"
    first = scripted.place()
    file = first[0] if first else f"<TorchScript of {scripted.name}>"
    tree = ast.parse(text)
    lines, line = [], first[1] if first else 1
    for place in writer.places:
        line = place[1] if place and place[0] == file else line
        lines.append(line)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            at = lines[node.lineno - 1]
            node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = at, at, 0, 0  # type: ignore[attr-defined]
    (definition,) = (part for part in tree.body if isinstance(part, ast.FunctionDef))
    writer.globals.update(writer.attributes.values())
    writer.globals["__name__"] = "__main__"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `3 is not None` is what the graph says
        code = compile(tree, file, "exec")
    exec(code, writer.globals)
    function = writer.globals.pop(definition.name)
    name = scripted.name.rpartition(".")[2]
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    function.__name__, function.__qualname__, function.text = name, scripted.name, text
    return function  # type: ignore[no-any-return]


def slots_of(writer: Writer) -> Any:
    """What the extension needs to keep the globals that are attributes up to date; None without any."""
    attributes = writer.attributes
    if not attributes.paths:
        return None

    def update() -> None:
        writer.globals.update(attributes.values())

    return attributes.root, list(attributes.paths), update


def failure_of(scripted: Scripted) -> Callable[..., Any]:
    """What to do after an exception: the original makes its own, unless it would repeat effects."""
    original = scripted.original

    def failed(error: Exception, changed: bool, *args: Any, **kwargs: Any) -> Any:
        if not changed:
            return original(*args, **kwargs)
        if isinstance(error, (torch.jit.Error, Warning)):
            raise error
        raise RuntimeError(f"The following operation failed in the TorchScript interpreter.\n{error}\n") from error

    return failed


def has_effect(node: Node) -> bool:
    """Whether the node itself may write to a tensor that was there before the call."""
    roots = [root_of(list(node.inputs())[i]) for i in writes(node)]
    return any(is_tensor(root) and not is_fresh(root.node()) for root in roots)


def is_fresh(node: Node) -> bool:
    """Whether what the operator returns shares no memory with anything that was there before."""
    if not node.kind().startswith("aten::") or not node.schema():
        return False
    name = node.kind()
    if name in _MAY_ALIAS:
        return False
    return all(returned.alias_info is None for returned in schema_of(node.schema()).returns)


# Operators that return an operand or a view of it, without saying so.
_MAY_ALIAS = frozenset(
    f"aten::{name}"
    for name in "to contiguous reshape reshape_as flatten dropout feature_dropout alpha_dropout expand_as type_as cpu "
    "float double half bool int long type cuda chunk split unbind __getitem__ pin_memory resolve_conj resolve_neg "
    "broadcast_tensors meshgrid ravel unflatten atleast_1d atleast_2d atleast_3d tensor_split hsplit vsplit dsplit "
    "swapaxes swapdims moveaxis movedim squeeze narrow rrelu einsum matrix_H adjoint mT mH H pad pop"
    "".split()
)
