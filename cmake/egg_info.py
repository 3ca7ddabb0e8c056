"""Tells importlib.metadata of the entry points of a source tree that runs in place: `make setup` runs this."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write() -> None:
    """Beside the package, which is on sys.path: torch finds the backend there as in an installed wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "python/fastjit/__init__.py").read_text())
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    folder = ROOT / "python/fastjit.egg-info"
    folder.mkdir(exist_ok=True)
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version[1] if version else 0}\n"
    (folder / "PKG-INFO").write_text(metadata)


if __name__ == "__main__":
    write()
