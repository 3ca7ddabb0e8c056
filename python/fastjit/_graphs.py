"""Graphs of torch.fx as functions that fastjit can record: with the user's lines, control flow outside of them."""

from __future__ import annotations

import ast
import operator
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx

# What to record, its name, and which dims of its parameters are any size -> what runs it.
Make = Callable[[Callable[..., Any], str, dict[str, list[int]]], Callable[..., Any]]

# Operators on graphs whose own eager code only calls these, so that a program can stand for a graph.
_CALLS_BODIES = frozenset(
    "cond while_loop while_loop_stack_output scan associative_scan map_impl invoke_subgraph".split()
)

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
_OF_TORCH = str(Path(torch.__file__).parent) + "/"


def compiled(gm: fx.GraphModule, make: Make, name: str) -> Callable[..., Any]:
    """What runs the graph: one program, or several with the graph's control flow between them."""
    if not any(_is_higher_order(node) for node in gm.graph.nodes):
        return _program(gm, make, name)
    from torch.fx.passes.split_module import split_module

    parent = split_module(gm, None, _part_numbers(gm).__getitem__, keep_original_order=True)  # type: ignore[arg-type]
    bodies: dict[fx.GraphModule, Callable[..., Any]] = {}
    for child, part in [(name, cast(fx.GraphModule, part)) for name, part in parent.named_children()]:
        run: Callable[..., Any] = part.forward
        if any(_is_higher_order(node) for node in part.graph.nodes):
            for attribute, body in _bodies(part):
                if body not in bodies:
                    bodies[body] = compiled(body, make, f"{name}, {attribute}")
                _replace(part, attribute, bodies[body])
        else:
            run = _program(part, make, f"{name}, {child.replace('submod_', 'part ')}")
        _replace(parent, child, run)
    return parent.forward


def _replace(owner: torch.nn.Module, attribute: str, run: Callable[..., Any]) -> None:
    delattr(owner, attribute)
    setattr(owner, attribute, run)


def _is_higher_order(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _part_numbers(gm: fx.GraphModule) -> dict[fx.Node, int]:
    """Each operator on graphs has a part of its own, with the items that are taken of its results."""
    numbers: dict[fx.Node, int] = {}
    current = 0
    for node in gm.graph.nodes:
        if _is_higher_order(node):
            numbers[node] = current + 1
            current += 2
        elif node.target is operator.getitem and isinstance(node.args[0], fx.Node) and _is_higher_order(node.args[0]):
            numbers[node] = numbers[node.args[0]]
        else:
            numbers[node] = current
    return numbers


def _bodies(part: fx.GraphModule) -> list[tuple[str, fx.GraphModule]]:
    """Attribute -> graph that an operator calls as a function."""
    operators = (node for node in part.graph.nodes if _is_higher_order(node) and node.target.name() in _CALLS_BODIES)
    names = {str(of.target): None for node in operators for of in node.all_input_nodes if of.op == "get_attr"}
    graphs = [(name, getattr(part, name)) for name in names]
    return [(name, graph) for name, graph in graphs if isinstance(graph, fx.GraphModule)]


def _program(gm: fx.GraphModule, make: Make, name: str) -> Callable[..., Any]:
    if not any(_is_tensor_operator(node) for node in gm.graph.nodes):
        return gm.forward
    graph, kept = _sizes_of_tensors(gm.graph)
    function = make(_forward(graph, gm), name, _any_sizes(graph))
    if all(kept):
        return function
    names = [f"a{index}" for index in range(len(kept))]
    passed = ", ".join(name for name, is_kept in zip(names, kept, strict=True) if is_kept)
    return cast(Callable[..., Any], eval(f"lambda {', '.join(names)}: function({passed})", {"function": function}))


def _is_tensor_operator(node: fx.Node) -> bool:
    return node.op.startswith("call_") and isinstance(_value(node), (torch.Tensor, tuple, list))


def _value(node: fx.Node) -> Any:
    """The fake tensor or symbol that stands for it: Dynamo's graphs and AOTAutograd's have it under different names."""
    return node.meta.get("val", node.meta.get("example_value"))


def _sizes_of_tensors(original: fx.Graph) -> tuple[fx.Graph, list[bool]]:
    """The graph with sizes of parameters in place of parameters that are such sizes, and which parameters are left.

    fastjit knows a size of a tensor for any value, an int that shapes something by each value.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(original, {}))  # Dynamo still reads the parameters of its own
    parameters = [node for node in graph.nodes if node.op == "placeholder"]
    places: dict[Any, tuple[fx.Node, int]] = {
        cast(Any, size).node.expr: (node, dim)
        for node in parameters
        if isinstance(tensor := _value(node), torch.Tensor)
        for dim, size in enumerate(tensor.shape)
        if isinstance(size, torch.SymInt)
    }
    kept = []
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        for node in parameters:
            size = _value(node)
            place = places.get(size.node.expr) if isinstance(size, torch.SymInt) else None
            kept.append(place is None)
            if place is not None:
                if node.users:
                    read = graph.call_method("size", place)
                    read.meta.update(node.meta)
                    node.replace_all_uses_with(read)
                graph.erase_node(node)
    return graph, kept


def _any_sizes(graph: fx.Graph) -> dict[str, list[int]]:
    shapes = ((node.target, getattr(_value(node), "shape", ())) for node in graph.nodes if node.op == "placeholder")
    found = {name: [d for d, size in enumerate(shape) if isinstance(size, torch.SymInt)] for name, shape in shapes}
    return {name: dims for name, dims in found.items() if dims}


def _frames(node: fx.Node) -> Iterator[tuple[str, int, str]]:
    for file, line, function in _FRAME.findall(node.meta.get("stack_trace") or ""):
        yield file, int(line), function


def _user_frame(graph: fx.Graph) -> tuple[str, int, str] | None:
    """The outermost frame that is not torch's own; for a module of torch, its."""
    frames = [frame for node in graph.nodes for frame in _frames(node)]
    return next((frame for frame in frames if not frame[0].startswith(_OF_TORCH)), frames[0] if frames else None)


def name_of(gm: fx.GraphModule, role: str) -> str:
    frame = _user_frame(gm.graph)
    name = frame[2] if frame else "graph"
    if name in ("forward", "graph"):
        stacks = (node.meta.get("nn_module_stack") for node in gm.graph.nodes)
        classes = [kind for stack in stacks if stack for _, kind in stack.values()]
        name = getattr(classes[0], "__qualname__", str(classes[0])) if classes else name
    return f"{name}, {role}" if role else name


def _forward(graph: fx.Graph, owner: fx.GraphModule) -> Callable[..., Any]:
    """The graph as a method whose code has the file and lines of what was traced, for messages and tracebacks."""
    code = graph.python_code("self")
    tree = ast.parse(code.src)
    file, line, function = _user_frame(graph) or ("<torch.compile>", 1, "forward")
    nodes = {node.name: node for node in graph.nodes}
    (definition,) = (part for part in tree.body if isinstance(part, ast.FunctionDef))
    _move(definition, line)
    for statement in definition.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        node = nodes.get(target.id) if isinstance(target, ast.Name) else None
        line = next((at for where, at, _ in reversed([*_frames(node)]) if where == file), line) if node else line
        _move(statement, line)
    names = dict(code.globals)
    exec(compile(tree, file, "exec"), names)
    made = names[definition.name]
    made.__code__ = made.__code__.replace(co_name=function, co_qualname=function)
    return types.MethodType(made, owner)


def _move(tree: ast.AST, line: int) -> None:
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = line, line, 0, 0  # type: ignore


def partition(joint: fx.GraphModule, inputs: Any, **given: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """AOTAutograd's joint graph as a forward and a backward graph, which computes cheap values again."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    _simplify(joint.graph)
    joint.recompile()
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **given)
    return forward, backward


def _simplify(graph: fx.Graph) -> None:
    """Without views that show what there is already: of a result, each would be a tensor that a hit makes for nothing.

    The graph writes to nothing but inputs, at its end, so that an alias is as good as what it is of; two results stay
    two tensors.
    """
    aten = torch.ops.aten
    (output,) = (node for node in graph.nodes if node.op == "output")
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(source, fx.Node):
            continue
        if node.target is aten._conj.default and output not in node.users:
            # What the backward graph is given must not be lazily conjugated: fastjit takes no such tensors.
            node.target = aten._conj_physical.default
            node.meta["val"] = _value(node).resolve_conj()
        shown: Any = None
        if node.target in (aten.detach.default, aten.alias.default):
            shown = source
        elif node.target is aten.t.default and source.target is aten.t.default:
            shown = source.args[0]
        elif node.target is aten.view.default and source.target is aten.sum.dim_IntList and len(source.users) == 1:
            shown = _sum_without_kept_dims(node, source)
        if shown and not (output in node.users and (shown.op == "placeholder" or output in shown.users)):
            node.replace_all_uses_with(shown)
    graph.eliminate_dead_code()


def _sum_without_kept_dims(view: fx.Node, total: fx.Node) -> fx.Node | None:
    """The sum, if all that the view does is to leave out the dims that the sum keeps."""
    x, dims, *rest = total.args
    shape = [*_value(cast(fx.Node, x)).shape]
    summed = {dim % len(shape) for dim in cast(list[int], dims)} if shape else set()
    if rest[:1] != [True] or [*_value(view).shape] != [size for d, size in enumerate(shape) if d not in summed]:
        return None
    total.args = (x, dims, False, *rest[1:])
    total.meta.update(view.meta)
    return total


def backward_formulas() -> dict[Any, Callable[..., Any]]:
    """Backward operators as the operators that they are made of: kernels compute these with their neighbours."""
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    return get_decompositions([getattr(aten, name) for name in _BACKWARD])


_BACKWARD = """
    elu_backward gelu_backward glu_backward hardsigmoid_backward hardswish_backward hardtanh_backward
    leaky_relu_backward log_sigmoid_backward mish_backward sigmoid_backward silu_backward softplus_backward
    softshrink_backward tanh_backward threshold_backward mse_loss_backward smooth_l1_loss_backward
    huber_loss_backward _softmax_backward_data _log_softmax_backward_data native_layer_norm_backward
    native_dropout_backward
""".split()
