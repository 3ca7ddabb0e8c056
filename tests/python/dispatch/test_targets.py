"""Public callables of torch, operators and builtins as targets of fastjit: as eager, whatever their arguments.

One of five; FASTJIT_OPINFO_FULL=1 (`make opinfo-full`) takes each of them.
"""

from __future__ import annotations

import collections
import functools
import os

from opinfo_forms import reason
from target_cases import NAMESPACES
from target_tools import Row, counted, sweep

EVERY = 1 if os.environ.get("FASTJIT_OPINFO_FULL") == "1" else 5


@functools.cache
def rows() -> tuple[Row, ...]:
    return tuple(sweep(every=EVERY))


def test_targets_are_as_eager():
    assert [str(row) for row in rows() if row.kind == "wrong"] == []


def test_targets_of_every_namespace_are_played():
    played = collections.Counter(row.target.rpartition(".")[0] for row in rows() if row.kind in ("hit", "eager"))
    assert set(played) == set(NAMESPACES)
    assert all(row.why for row in rows() if row.kind == "not played" and not row.target.startswith("torch.set_"))


def test_most_operators_hit_as_targets():
    kinds = counted(list(rows()))
    reasons = collections.Counter(reason(row.why) for row in rows() if row.kind == "eager")
    print(kinds, reasons.most_common(12))
    assert kinds["hit"] * EVERY >= 1000, reasons
