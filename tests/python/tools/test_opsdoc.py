"""docs/ops.md says what the capture does with every entry of op_db, and issue-level widths hold."""

import re
from pathlib import Path

import pytest

from fastjit import _opsdoc

DOCUMENT = Path(__file__).parents[3] / "docs" / "ops.md"


@pytest.fixture(scope="module")
def written():
    return DOCUMENT.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(written):
    return _opsdoc.document(written)


def test_document_is_what_the_table_says(text, written):
    wrong = [line for line in text.splitlines() if line not in set(written.splitlines())]
    assert wrong == [], "write it anew: python -m fastjit._opsdoc docs/ops.md"
    assert written == text


def test_enough_pointwise_entries_are_lowered(text):
    part = _opsdoc.parts_of(text)[_opsdoc.release()]
    unary, binary = re.search(r"at least partly: (\d+) of \d+ unary, (\d+) of \d+ binary", part).groups()
    assert int(unary) >= 82 and int(binary) >= 53
