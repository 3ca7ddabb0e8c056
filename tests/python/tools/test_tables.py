"""Tables on a terminal: width, letters that take two cells, units; entries by a function's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from cache_tools import make
from fastjit import _tables, cache, cli

HEAD = ("KEY", "FUNCTION", "SIZE")
ROWS = [("0123abcd", "model.gelu_of_a_long_name", "4.9 KiB"), ("4567", "模型.向前", "12 B")]


def test_a_pipe_cuts_nothing() -> None:
    assert _tables.layout(HEAD, ROWS, right={2}).splitlines() == [
        "KEY       FUNCTION                      SIZE",
        "0123abcd  model.gelu_of_a_long_name  4.9 KiB",
        "4567      模型.向前                     12 B",
    ]


@pytest.mark.parametrize("width", range(20, 50))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = _tables.layout(HEAD, ROWS, right={2}, elastic=(1,), width=width, rule=True)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "0123abcd" in text and "4.9 KiB" in text
    assert ("…" in text) == (width < 44)


def test_rows_become_paragraphs_where_no_table_fits() -> None:
    text = _tables.layout(HEAD, ROWS[:1], elastic=(1,), width=26)
    assert text == "0123abcd\n  FUNCTION\n    model.gelu_of_a_long_…\n  SIZE      4.9 KiB"


def test_what_is_cut_ends_before_half_a_letter() -> None:
    assert _tables.clip("模型向前", 8) == "模型向前"
    assert _tables.clip("模型向前", 7) == "模型向…"
    assert _tables.clip("模型向前", 6) == "模型…"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.5 KiB"), (500 << 20, "500 MiB"), (1 << 30, "1 GiB"), (3 << 29, "1.5 GiB")],
)
def test_sizes_are_powers_of_1024_and_say_so(number: int, text: str) -> None:
    assert _tables.size(number) == text


def test_plurals() -> None:
    assert [_tables.several(n, "call") for n in (0, 1, 2, 1000)] == ["0 calls", "1 call", "2 calls", "1,000 calls"]
    assert _tables.several(2, "entry", "entries") == "2 entries"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("FASTJIT_CACHE_DIR", str(folder))
    return {
        "new": make(folder, "pack.model.gelu"),
        "old": make(folder, "pack.model.gelu", target="cpu-avx512", age=3600),
        "other": make(folder, "模型.向前", age=60),
    }


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_ls_fits_the_terminal(columns: int, keys: dict[str, str], monkeypatch, capsys) -> None:
    monkeypatch.setattr(_tables, "terminal_width", lambda: columns)
    assert cli.main(["cache", "ls"]) == 0
    listed = capsys.readouterr().out.splitlines()[:-1]  # the last line is a sentence
    assert max(map(cell_len, listed)) <= columns
    assert all(any(line.startswith(key[:8]) for line in listed) for key in keys.values())


def test_columns_of_the_listing_are_straight(keys: dict[str, str], capsys) -> None:
    assert cli.main(["cache", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert len({cell_len(line.partition("cpu-avx")[0]) for line in lines[1:]}) == 1


@pytest.mark.parametrize("name", ["pack.model.gelu", "gelu", "*.gelu"])
def test_show_takes_a_function(name: str, keys: dict[str, str], capsys) -> None:
    assert cli.main(["cache", "show", name]) == 0
    captured = capsys.readouterr()
    assert f"key        {keys['new']}\n" in captured.out
    assert captured.err == (
        f"fastjit: {name} has 2 entries; this one was used last, the others are {keys['old'][:8]}\n"
    )
    assert cache.show(name).others == (keys["old"],)


def test_show_takes_a_function_with_one_entry(keys: dict[str, str], capsys) -> None:
    assert cli.main(["cache", "show", "向前", "--ir"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out == "%0 = input f32\n"
    assert cache.show(keys["other"][:8]).entry.key == keys["other"]


def test_show_of_a_name_that_no_entry_has(keys: dict[str, str], capsys) -> None:
    assert cli.main(["cache", "show", "softmax"]) == 2
    assert capsys.readouterr().err == (
        "fastjit: 'softmax' is not a key: give 6 to 32 hexadecimal digits, and no entry is of a function of that name\n"
    )
