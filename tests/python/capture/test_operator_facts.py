"""What is known of torch's operators beyond their schemas (src/capture/ops/aten.def), against the torch that runs."""

from __future__ import annotations

import pytest
import torch

from fastjit import _C

ROWS = _C.operator_rows()
LOWERED = {name for name, lowered in _C.lowered_ops() if lowered}
REGISTERED = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
# Names that not every supported release has.
OF_SOME_RELEASES: set[str] = set()
EFFECTS = {"Metadata", "Value", "Read", "Test", "DataSized", "Replaces"}


def base(name: str) -> str:
    return name.partition(".")[0]


def facts(name: str) -> set[str]:
    return {fact for row in _C.operator_facts(name) for fact in row.split(" | ")}


def having(fact: str) -> list[str]:
    return [name for name in REGISTERED if fact in facts(name)]


def test_rows_are_sorted_and_each_stands_once() -> None:
    names = [name for name, _ in ROWS]
    assert names == sorted(set(names))
    assert all(len(row.split(" | ")) == len(set(row.split(" | "))) for _, row in ROWS)


def test_every_row_is_of_an_operator() -> None:
    bases = {base(name) for name in REGISTERED}
    missing = {
        name
        for name, _ in ROWS
        if (base(name) not in bases if name.endswith(".*") else name not in REGISTERED) and name not in OF_SOME_RELEASES
    }
    assert not missing, torch.__version__


def test_a_row_with_an_overload_is_of_that_alone() -> None:
    assert "Mm" in facts("aten::mm") and "Opaque" in facts("aten::mm")
    assert facts("aten::mm.dtype") == facts("aten::mm.out") == facts("aten::mm") - {"Mm"}
    assert facts("aten::where") - facts("aten::where.self") == {"DataSized", "FirstDim"}
    assert facts("aten::mm_") == facts("aten::m") == facts("foreign::mm") == facts("") == set()


def test_what_is_lowered_is_not_entered() -> None:
    assert not LOWERED & set(having("Enter"))


@pytest.mark.parametrize(
    ("prefix", "fact"),
    [("aten::empty", "Allocates"), ("aten::new_empty", "Allocates"), ("aten::as_strided", "ReachesStorage")],
)
def test_families_are_whole(prefix: str, fact: str) -> None:
    """A release may add a member."""
    assert [name for name in REGISTERED if name.startswith(prefix)] == [n for n in having(fact) if n.startswith(prefix)]


def test_what_is_opaque_gives_no_values_and_sizes_that_depend_on_data() -> None:
    tags = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    for name in having("Opaque"):
        assert not facts(name) & EFFECTS, name
        packet, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        assert operator is None or not tags & set(operator.tags), name


def test_an_error_may_come_or_never_comes() -> None:
    assert not set(having("MayRaise")) & set(having("NeverRaises"))


def test_statistics_are_arguments() -> None:
    names = having("WritesStatistics")
    assert "aten::native_batch_norm" in names
    for name in names:
        schema = torch._C._get_schema(*name.partition(".")[::2])
        assert {"running_mean", "running_var"} <= {argument.name for argument in schema.arguments}, name
