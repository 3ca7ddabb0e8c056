"""The read observer under other versions of Python: the same tests pass and the same read sets come out as here.

`make test-observer PY=/path/to/python` (or PY=3.12) runs this for one of them; otherwise those that pyenv has.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from observer_tools import build

HERE = Path(__file__).resolve().parent
# What pytest needs of itself; the other Python has only its standard library.
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py.py")


def interpreters() -> list[Path]:
    named = os.environ.get("FASTJIT_OBSERVER_PYTHON")
    versions = Path.home() / ".pyenv" / "versions"
    if named and Path(named).exists():
        return [Path(named)]
    found = [max(versions.glob(f"{minor}.*"), default=None) for minor in ([named] if named else ("3.12", "3.13"))]
    found = [home / "bin" / "python" for home in found if home]
    assert found or not named, f"no Python at {named}"
    return found


class Other:
    """Another Python, the observer built for it, and pytest beside it."""

    def __init__(self, python: Path, folder: Path):
        self.python = python
        self.library = build(python)
        self.packages = folder / "packages"
        self.packages.mkdir()
        for name in PYTEST:
            source = Path(pytest.__file__).resolve().parents[1] / name
            if source.exists():
                (self.packages / name).symlink_to(source)

    def output(self, *arguments: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")} | {
            "FASTJIT_OBSERVER_LIBRARY": str(self.library),
            "PYTHONPATH": str(self.packages),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [self.python, *arguments]
        done = subprocess.run(command, cwd=HERE, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


FOUND = interpreters()


@pytest.fixture(scope="module", params=FOUND or [None], ids=lambda python: python.parents[1].name if python else "none")
def other(request, tmp_path_factory) -> Other:
    if request.param is None:
        pytest.skip("pyenv has no Python 3.12 or 3.13 here")
    return Other(request.param, tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def read_sets_here(tmp_path_factory) -> dict[str, list[str]]:
    out = tmp_path_factory.mktemp("here") / "read_sets.json"
    subprocess.run([sys.executable, "observer_read_sets.py", out], cwd=HERE, check=True)
    return json.loads(out.read_text())


def test_the_observers_tests_pass(other):
    """No test is left out there but those that say why."""
    options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "--rootdir", str(HERE)]
    report = other.output(
        "-m", "pytest", *options, "test_observer.py", "test_observer_effects.py", "test_observer_lives.py"
    )
    assert " passed" in report and "skipped" not in report, report


def test_the_read_sets_are_the_same(other, read_sets_here, tmp_path):
    out = tmp_path / "read_sets.json"
    other.output("observer_read_sets.py", str(out))
    there = json.loads(out.read_text())
    assert len(there) >= 200 and there.keys() == read_sets_here.keys()
    assert {name: lines for name, lines in there.items() if lines != read_sets_here[name]} == {}


def test_an_instruction_is_judged_alike_in_each_version():
    """But those that another instruction has prepared: on 3.13 conditions jump on what TO_BOOL made."""
    judges: dict[str, set[str]] = {}
    for table in (HERE.parents[1] / "src" / "observe").glob("opcodes_*.def"):
        for name, judge in re.findall(r"^OP\((\w+), \d+, (\w+)\)", table.read_text(), re.MULTILINE):
            judges.setdefault(name, set()).add(judge)
    different = {name for name, judge in judges.items() if len(judge) > 1}
    assert different == {"UNARY_NOT", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "MAKE_CELL"}
