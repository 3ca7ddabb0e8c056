"""What the tests of `fastjit bench` share: where the package lies, and a machine that measured."""

from __future__ import annotations

from pathlib import Path

PACKAGES = str(Path(__file__).resolve().parents[3] / "python")
MACHINE = {
    "date": "2024-02-29T00:00:00+00:00",
    "cpu": "a CPU",
    "cores": 2,
    "isa": ["avx2"],
    "governor": "",
    "system": "",
    "python": "3.11.0",
    "torch": "2.13.0",
    "fastjit": None,
    "llvm": None,
    "threads": 2,
    "load": [0.1, 0.1, 0.1],
}
