"""Every entry of op_db in every form, once: as eager, and what ran.

`make correctness-report` takes the six largest samples, FASTJIT_OPINFO_FULL=1 (`make opinfo-full`) the first forty.
"""

from __future__ import annotations

import collections
import functools
import os

from torch.testing._internal.common_methods_invocations import op_db

import opinfo_forms
from helpers import since
from opinfo_forms import FORMS, UNREPEATABLE, Row, by_form

FULL = os.environ.get("FASTJIT_OPINFO_FULL") == "1"
SHARE = {"call": 0.9, "in place": 0.9, "out=": 0.95}


@functools.cache
def rows() -> tuple[Row, ...]:
    return tuple(opinfo_forms.sweep([*range(len(op_db))], samples=40 if FULL else 1))


def test_every_form_is_as_eager():
    assert [str(row) for row in rows() if row.kind == "wrong"] == []


def test_every_entry_is_here():
    found = by_form(list(rows()))
    counts = (703, 163, 358) if since(2, 14) else (702, 163, 359)
    assert {form: len(of) for form, of in found.items()} == dict(zip(FORMS, counts, strict=True))
    refused = {form: sorted(row.entry for row in of.values() if row.kind == "refused") for form, of in found.items()}
    assert len(refused["call"]) <= 15, refused["call"]
    assert len(UNREPEATABLE) <= 20


def test_nine_in_ten_entries_hit():
    for form, of in by_form(list(rows())).items():
        kinds = collections.Counter(row.kind for row in of.values())
        taken = sum(kinds.values()) - kinds["refused"]
        hits = kinds["kernels"] + kinds["extern"] + kinds["views"]
        print(form, dict(kinds))
        reasons = collections.Counter(opinfo_forms.reason(row.why) for row in of.values() if row.kind == "eager")
        assert hits >= SHARE[form] * taken, (form, reasons)
