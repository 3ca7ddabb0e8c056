"""Tables of text that fit the terminal: columns by the width that is seen, one line a cell where it is too narrow."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence

NARROWEST = 8  # a column that is cut keeps so many cells
GAP = "  "


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None for a pipe or a file, where nothing is cut."""
    try:
        on_terminal = sys.stdout.isatty()
    except (AttributeError, ValueError):  # no stream, or a closed one
        return None
    return shutil.get_terminal_size().columns if on_terminal else None


def cells(text: str) -> int:
    """Columns that the text takes on a terminal. rich knows wide letters; it is loaded only where there may be any."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def clip(text: str, width: int) -> str:
    """At most `width` cells; what is cut ends with an ellipsis."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1).rstrip() + "…"


def layout(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    elastic: Collection[int] = (),
    width: int | None = None,
    rule: bool = False,
) -> str:
    """The table as lines. Where it is wider than `width`, the columns in `elastic` are cut; where that is not enough,
    each row becomes a paragraph with a line for each cell."""
    widths = [max(cells(line[i]) for line in [head, *rows]) for i in range(len(head))]
    if width is not None:
        _shrink(widths, elastic, width - len(GAP) * (len(head) - 1))
        if _total(widths) > width:
            return _paragraphs(head, rows, width)
    columns = range(len(head))
    lines = [GAP.join(_cell(line[i], widths[i], i in right) for i in columns).rstrip() for line in [head, *rows]]
    if rule:
        lines.insert(1, "-" * max(map(cells, lines)))
    return "\n".join(lines)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shrink(widths: list[int], elastic: Collection[int], room: int) -> None:
    """Takes what is too much from the widest of the elastic columns first."""
    while sum(widths) > room:
        widest = max(elastic, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1


def _cell(text: str, width: int, right: bool) -> str:
    text = clip(text, width)
    pad = " " * (width - cells(text))
    return pad + text if right else text + pad


def _paragraphs(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    indent = max((cells(name) for name in head[1:]), default=0)
    blocks = []
    for row in rows:
        lines = [clip(row[0], width)]
        for name, cell in zip(head[1:], row[1:], strict=True):
            label = f"  {_cell(name, indent, False)}  "
            if cells(label) + cells(cell) <= width:
                lines.append(label + cell)
            else:
                lines += [clip(f"  {name}", width), clip(f"    {cell}", width)]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def size(value: float) -> str:
    """Bytes in powers of 1024: 512 B, 1.5 KiB, 2 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"


def several(number: int, one: str, many: str | None = None) -> str:
    """1 call, 2 calls, 1,000 calls."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
