"""``fastjit docs``: the pages of docs/, which a wheel carries, as text. Starts without torch."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def pages() -> dict[str, Path]:
    """Name -> file, in the wheel or in the source tree."""
    folders = (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs")
    folder = next((folder for folder in folders if (folder / "limits.md").exists()), folders[0])
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def text(name: str = "") -> str:
    """A page, or without a name the list of them.

    Raises:
        LookupError: when there is no such page; the text says which there are.
    """
    found = pages()
    if name in found:
        return found[name].read_text(encoding="utf-8")
    if name:
        raise LookupError(f"there is no page {name!r}; the pages are {', '.join(found) or 'not installed'}")
    titles = {page: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for page, path in found.items()}
    return "".join(f"fastjit docs {page:<14} {title}\n" for page, title in titles.items())
