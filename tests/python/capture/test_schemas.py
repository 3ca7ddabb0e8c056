"""Operators are lowered only where the running torch's schema is the one that their rows were written for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from fastjit import _C, fastjit


def name_of(schema: str) -> str:
    return schema.partition("(")[0]


def in_place(name: str) -> str:
    base, dot, overload = name.partition(".")
    if base.startswith("aten::__"):
        return f"aten::__i{base.removeprefix('aten::__')}{dot}{overload}"
    return f"{base}_{dot}{overload}"


# Operators that a row is for, where the result goes to `out`: those few that are lowered so.
OUT = {f"aten::{name}.out" for name in ("add", "sub", "mul", "div", "maximum", "minimum")}


def schemas_of_lowered_operators() -> list[str]:
    """What the running torch says of every operator that a row is for, of its in-place form, and of some with `out`."""
    registered = set(torch._C._dispatch_get_all_op_names())
    names = OUT.union(form for name, _ in _C.lowered_ops() for form in (name, in_place(name)))
    return [str(torch._C._get_schema(*name.partition(".")[::2])) for name in sorted(names & registered)]


@contextlib.contextmanager
def expected(schema: str) -> Iterator[None]:
    before = _C.expect_schema(schema)
    try:
        yield
    finally:
        _C.expect_schema(before)


def test_lowering_knows_the_schemas_of_this_torch() -> None:
    """A line that differs is for src/capture/ops/schemas.def, once the rows that it is for were compared with ATen."""
    known, running = set(_C.known_schemas()), set(schemas_of_lowered_operators())
    names = {name_of(schema) for schema in known}
    changed = [schema for schema in sorted(running - known) if name_of(schema) in names]
    new = [schema for schema in sorted(running - known) if name_of(schema) not in names]
    gone = sorted(names - {name_of(schema) for schema in running})
    assert {"changed": changed, "new": new, "gone": gone} == {"changed": [], "new": [], "gone": []}, torch.__version__


def test_an_operator_has_one_schema() -> None:
    names = [name_of(schema) for schema in _C.known_schemas()]
    assert sorted(names) == sorted(set(names))


def test_an_operator_with_another_schema_is_left_to_torch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2 + 1

    def changed_in_place(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        y.mul_(2)
        return y + 1

    x = torch.randn(33)
    assert left_to_torch(f, x) == left_to_torch(changed_in_place, x) == ""
    with expected("aten::sin(Tensor self, bool other) -> Tensor"):
        assert "aten::sin" in left_to_torch(f, x)
    with expected("aten::mul_.Tensor(Tensor(a!) self, Tensor other, bool more) -> Tensor(a!)"):
        assert "aten::mul_" in left_to_torch(changed_in_place, x)
    assert left_to_torch(f, x) == ""


def left_to_torch(function, x: torch.Tensor) -> str:
    """The calls left to torch; the second call is a hit with eager's result."""
    jitted = fastjit(function)
    jitted(x)
    torch.testing.assert_close(jitted(x), function(x))
    assert jitted.stats().hits == 1
    return " ".join(row["op"] for row in _C.capture_debug(function, x)["calls"])
