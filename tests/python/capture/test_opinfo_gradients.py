"""Operators of op_db that require grad under fastjit, forward and back, against eager.

Each run takes one sample of every eighth entry; OPINFO_GRADIENTS=n (`make opinfo-gradients`) takes the first n
samples of all.
"""

from __future__ import annotations

import collections
import os

from torch.testing._internal.common_methods_invocations import op_db

from opinfo_gradients import rows_of, sweep

SAMPLES = int(os.environ.get("OPINFO_GRADIENTS", "0"))


def test_gradients_of_every_sample_are_right() -> None:
    if SAMPLES:
        rows = sweep(list(range(len(op_db))), SAMPLES)
    else:
        rows = [row for index in range(0, len(op_db), 8) for row in rows_of(index, 1)]
    kinds = collections.Counter(row.kind for row in rows)
    reasons = collections.Counter(row.why for row in rows if row.kind == "eager")
    print(dict(kinds), *(f"\n{count} eager: {why}" for why, count in reasons.most_common()))
    assert [str(row) for row in rows if row.kind == "wrong"] == []
    assert kinds["hit"] > 0.7 * (kinds["hit"] + kinds["eager"]), (kinds, reasons)
