"""docs/ops.md says what the capture does with every entry of op_db, and issue-level widths hold."""

import re
from pathlib import Path

import pytest

from fastjit import _opsdoc

DOCUMENT = Path(__file__).parents[2] / "docs" / "ops.md"


@pytest.fixture(scope="module")
def text():
    return _opsdoc.document()


def test_document_is_what_the_table_says(text):
    written = DOCUMENT.read_text(encoding="utf-8").splitlines()
    wrong = [line for line in text.splitlines() if line not in set(written)]
    assert wrong == [], "write it anew: python -m fastjit._opsdoc docs/ops.md"
    assert len(written) == len(text.splitlines())


def test_enough_pointwise_entries_are_lowered(text):
    unary, binary = re.search(r"partly: (\d+) of \d+ unary, (\d+) of \d+ binary", text).groups()
    assert int(unary) >= 82 and int(binary) >= 53
