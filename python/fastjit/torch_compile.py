"""The backend of ``torch.compile(f, backend="fastjit")``: each graph that Dynamo finds becomes fastjit functions.

Dynamo guards what the graph was traced from; fastjit guards what a call of the graph reads, and learns sizes by itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fastjit import _graphs
from fastjit._function import FastFunction
from fastjit.api import _OF_TORCH_COMPILE, _check_options, fastjit

_made: list[weakref.ref[Any]] = []


def programs() -> list[FastFunction[..., Any]]:
    """What the backend made in this process and Dynamo still holds, oldest first: each tells its ``stats()``.

    The order is that of compiling: a forward graph comes before its backward graph, the bodies of control flow after
    the parts of the graph around it.
    """
    alive = [(ref, function) for ref in _made if (function := ref()) is not None]
    _made[:] = [ref for ref, _ in alive]
    return [function for _, function in alive]


def backend(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **others: Any
) -> Callable[..., Any]:
    """What Dynamo calls for each graph; the entry point ``fastjit`` of the group ``torch_dynamo_backends``.

    Without gradients Dynamo's graph runs as it is, so that aliases and writes are eager's. With them AOTAutograd makes
    a forward and a backward graph of it.

    Args:
        options: those of :func:`fastjit.fastjit`; ``dynamic`` as a bool only, since a graph has no parameters of the
            user's.

    Raises:
        TypeError: for an unknown option, which the text names.
    """
    options = _checked(options, others)
    if not _differentiates(gm, example_inputs):
        return _compile(gm, options, "")
    from torch._dynamo.backends.common import aot_autograd

    with torch._functorch.config.patch(donated_buffer=False):  # else backward(retain_graph=True) raises
        return aot_autograd(
            fw_compiler=_boxed_compiler(options, "forward"),
            bw_compiler=_boxed_compiler(options, "backward"),
            inference_compiler=_boxed_compiler(options, ""),
            partition_fn=_graphs.partition,
            decompositions=_graphs.backward_formulas(),
            keep_inference_input_mutations=True,
        )(gm, example_inputs)


def _checked(options: dict[str, Any] | None, others: dict[str, Any]) -> dict[str, Any]:
    for name in others:
        instead = _OF_TORCH_COMPILE.get(name, "leave it out")
        raise TypeError(f"{name}= of torch.compile is not for the backend 'fastjit'; {instead}")
    return _check_options(dict(options or {}))


def _differentiates(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    held = [*inputs, *gm.parameters(), *gm.buffers()]
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in held)


def _boxed_compiler(options: dict[str, Any], role: str) -> Callable[..., Any]:
    def compile_boxed(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        run = _compile(gm, options, role)

        def boxed(args: list[Any]) -> Any:
            taken = tuple(args)
            args.clear()
            return run(*taken)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    return compile_boxed


def _compile(gm: torch.fx.GraphModule, options: dict[str, Any], role: str) -> Callable[..., Any]:
    def make(forward: Callable[..., Any], name: str, any_sizes: dict[str, list[int]]) -> Callable[..., Any]:
        dynamic = any_sizes if any_sizes and not options.get("pure") else None
        function = fastjit(forward, **{"name": name, "dynamic": dynamic, **options})
        _made.append(weakref.ref(function))
        return function

    return _graphs.compiled(gm, make, _graphs.name_of(gm, role))


__all__ = ["backend", "programs"]
