"""Composites that the capture enters read no tensor data: each runs on meta tensors, which have none.

One C++ kernel serves the CPU and meta devices (asserted), so what runs here is what runs there; and on the CPU no
composite itself calls an operator that brings data to Python or C++ (a step inside it may: steps are not entered).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree

from fastjit import _C

ENTERED = [name for name, lowered in _C.lowered_ops() if not lowered]
READERS = {f"aten::{name}" for name in ("item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "allclose")}


def schema_of(row: str) -> Any:
    name, _, overload = row.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def special_args(device: str) -> dict[str, tuple]:
    def t(*sizes: int) -> torch.Tensor:
        return torch.rand(sizes, device=device)

    whole = torch.ones(4, 4, dtype=torch.int64, device=device)
    channel = t(4)
    logic = {f"aten::__{op}__.{kind}": (whole, whole if kind == "Tensor" else 3)
             for op in ("and", "or", "xor") for kind in ("Tensor", "Scalar")}  # fmt: skip
    return logic | {
        "aten::clip.Tensor": (t(4, 4), t(4, 4), t(4, 4)),
        "aten::clip": (t(4, 4), 0.1, 0.5),
        "aten::divide.Tensor_mode": (t(4, 4), t(4, 4), "floor"),
        "aten::divide.Scalar_mode": (t(4, 4), 2.0, "floor"),
        "aten::moveaxis.intlist": (t(4, 4), [0, 1], [1, 0]),
        "aten::movedim.intlist": (t(4, 4), [0, 1], [1, 0]),
        "aten::to.dtype": (t(4, 4), torch.float64),
        "aten::to.device": (t(4, 4), torch.device(device), torch.float64),
        "aten::split.sizes": (t(4, 4), [1, 3]),
        "aten::hsplit.array": (t(4, 4), [1, 3]),
        "aten::vsplit.array": (t(4, 4), [1, 3]),
        "aten::dsplit.array": (t(4, 4, 4), [1, 3]),
        "aten::dsplit.int": (t(4, 4, 4), 2),
        "aten::tile": (t(4, 4), [2, 1]),
        "aten::meshgrid": ([t(4), t(3)],),
        "aten::meshgrid.indexing": ([t(4), t(3)], "ij"),
        "aten::sum_to_size": (t(4, 4), [1, 4]),
        "aten::frobenius_norm.dim": (t(4, 4), [0, 1], False),
        "aten::special_logsumexp": (t(4, 4), [1]),
        "aten::prelu": (t(4, 4), channel),
        "aten::layer_norm": (t(4, 4), [4], channel, channel),
        "aten::rms_norm": (t(4, 4), [4], channel),
        "aten::_fused_rms_norm": (t(4, 4), [4], channel, 1e-5),
        "aten::group_norm": (t(2, 4, 3), 2, channel, channel),
        "aten::instance_norm": (t(2, 4, 3), channel, channel, channel, channel, False, 0.1, 1e-5, False),
        "aten::linear": (t(3, 4), t(4, 4), channel),
        "aten::lstm_cell": (t(3, 4), [t(3, 2), t(3, 2)], t(8, 4), t(8, 2), t(8), t(8)),
        "aten::gru_cell": (t(3, 4), t(3, 2), t(6, 4), t(6, 2), t(6), t(6)),
        "aten::rnn_tanh_cell": (t(3, 4), t(3, 2), t(2, 4), t(2, 2), t(2), t(2)),
        "aten::rnn_relu_cell": (t(3, 4), t(3, 2), t(2, 4), t(2, 2), t(2), t(2)),
        "aten::tensordot": (t(4, 4), t(4, 4), [1], [0]),
        "aten::outer": (t(4), t(3)),
        "aten::ger": (t(4), t(3)),
        "aten::dropout": (t(4, 4), 0.5, False),
        "aten::feature_dropout": (t(4, 4), 0.5, False),
        "aten::alpha_dropout": (t(4, 4), 0.5, False),
    }


def args_of(row: str, device: str) -> tuple[tuple, dict]:
    """Arguments by type for the schema's arguments without a default, or the ones written above."""
    special = special_args(device)
    if row in special:
        args = special[row]
        named = {a.name: args[i] for i, a in enumerate(schema_of(row)._schema.arguments[: len(args)]) if a.kwarg_only}
        return args[: len(args) - len(named)], named
    plain = {"Tensor": torch.rand(4, 4, device=device), "number": 2.0, "int": 1, "float": 0.5, "bool": True}
    out = []
    for argument in schema_of(row)._schema.arguments:
        if argument.has_default_value():
            break
        kind = str(argument.type)
        out.append([plain["Tensor"]] * 2 if kind == "List[Tensor]" else plain[kind])
    return tuple(out), {}


@pytest.mark.parametrize("row", ENTERED)
def test_composite_runs_without_data(row):
    composite = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    assert any(torch._C._dispatch_has_kernel_for_dispatch_key(row, key) for key in composite)
    args, kwargs = args_of(row, "meta")
    schema_of(row)(*args, **kwargs)


def full_name(event: Any) -> str:
    return f"{event.name}.{event.overload_name}" if event.overload_name else event.name


@pytest.mark.parametrize("row", ENTERED)
def test_composite_itself_calls_no_reader(row):
    args, kwargs = args_of(row, "cpu")
    overloads = _ExperimentalConfig(capture_overload_names=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=overloads) as trace:
        schema_of(row)(*args, **kwargs)
    assert row in map(full_name, trace.events())
    for event in trace.events():
        above = event.cpu_parent
        while above is not None and full_name(above) in ENTERED:
            above = above.cpu_parent
        assert above is not None or event.name not in READERS, f"{event.name} under {event.cpu_parent}"


@pytest.mark.parametrize("row", ENTERED)
def test_composite_leaves_every_result_to_recorded_calls(row):
    args, kwargs = args_of(row, "cpu")
    leaves, spec = _pytree.tree_flatten(args)
    found = _C.capture_debug(
        lambda *tensors: call_with(row, leaves, spec, kwargs, tensors),
        *[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)],
    )
    assert found["unsound"] == ""
    assert row not in [call["op"] for call in found["calls"]]


def call_with(row: str, leaves: list, spec: Any, kwargs: dict, tensors: tuple) -> Any:
    rest = iter(tensors)
    filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return schema_of(row)(*_pytree.tree_unflatten(filled, spec), **kwargs)
