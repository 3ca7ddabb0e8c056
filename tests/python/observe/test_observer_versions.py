"""The read observer under other versions of Python: the same tests pass and the same read sets come out as here.

Those that pyenv has or that are on the PATH; `make test` ends with a line that says which there were. `make
test-observer PY=/path/to/python` (or PY=3.12) runs this for one of them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from observer_tools import HELPERS, ROOT, build

HERE = Path(__file__).resolve().parent
READ_SETS = HELPERS / "observer_read_sets.py"
THIS = "{}.{}".format(*sys.version_info[:2])
VERSIONS = ("3.11", "3.12", "3.13", "3.14")  # that have an observer
# What pytest needs of itself; the other Python has only its standard library.
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py.py")
QUESTION = """import pathlib, sys, sysconfig
assert sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
assert pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists()
print("{}.{}".format(*sys.version_info[:2]))"""


def version_of(python: Path) -> str:
    """ "3.12"; empty for what is no CPython with a lock and with headers."""
    try:
        asked = subprocess.run([python, "-c", QUESTION], text=True, capture_output=True, timeout=60)
    except OSError:
        return ""
    return asked.stdout.strip()


def find(version: str) -> Path | None:
    """The newest that pyenv has of this version, or the one on the PATH."""
    homes = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*")
    newest = sorted(homes, key=lambda home: [int(n) if n.isdigit() else -1 for n in home.name.split(".")], reverse=True)
    on_path = shutil.which(f"python{version}")
    candidates = [home / "bin" / "python" for home in newest] + ([Path(on_path)] if on_path else [])
    return next((python for python in candidates if version_of(python) == version), None)


def interpreters() -> dict[str, Path | None]:
    """By version; None where it is missing."""
    named = os.environ.get("FASTJIT_OBSERVER_PYTHON")
    if not named:
        return {version: find(version) for version in VERSIONS if version != THIS}
    python = Path(named) if Path(named).exists() else find(named)
    assert python and version_of(python), f"no CPython at {named}"
    return {version_of(python): python}


def summary() -> str:
    """The last line of `make test` about this."""
    found = [f"{version} ({python})" for version, python in FOUND.items() if python]
    missing = [version for version, python in FOUND.items() if not python]
    text = f"read observer: tested under CPython {THIS} (this one)" + "".join(f", {one}" for one in found)
    return text + (f"; NOT under {', '.join(missing)}: neither pyenv nor the PATH has it" if missing else "")


# 3.14 calls __enter__ by an instruction of its own, does not evaluate annotations before someone asks for them, and has
# a parameter more in inspect.signature.
NEW_IN_314 = {
    "with",
    "function with defaults and annotations made in the call",
    "signature of a function",
    "signature of a wrapper",
    "signature of a bound method",
}


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
            "PYTHONPATH": f"{self.packages}{os.pathsep}{HELPERS}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [self.python, *arguments]
        done = subprocess.run(command, cwd=HERE, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


FOUND = interpreters()


@pytest.fixture(scope="module", params=FOUND)
def other(request, tmp_path_factory) -> Other:
    python = FOUND[request.param]
    if python is None:
        pytest.skip(f"neither pyenv nor the PATH has a CPython {request.param} with its headers")
    return Other(python, tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def read_sets_here(tmp_path_factory) -> dict[str, list[str]]:
    out = tmp_path_factory.mktemp("here") / "read_sets.json"
    subprocess.run([sys.executable, READ_SETS, out], check=True)
    return json.loads(out.read_text())


def test_the_observers_tests_pass(other):
    """No test is left out there but those that say why."""
    options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "--rootdir", str(HERE)]
    names = (
        "test_observer.py",
        "test_observer_effects.py",
        "test_observer_lives.py",
        "test_observer_rehearsals.py",
        "test_observer_dicts.py",
        "test_observer_numbers.py",
    )
    report = other.output("-m", "pytest", *options, *names)
    assert " passed" in report, report
    assert "skipped" not in report or version_of(other.python) == "3.11", report  # sys.monitoring came later


def test_the_read_sets_are_the_same(other, read_sets_here, tmp_path):
    out = tmp_path / "read_sets.json"
    other.output(str(READ_SETS), str(out))
    there = json.loads(out.read_text())
    assert len(there) >= 200 and there.keys() == read_sets_here.keys()
    different = {name for name, lines in there.items() if lines != read_sets_here[name]}
    is_one_new = (version_of(other.python) == "3.14") != (THIS == "3.14")
    assert different == (NEW_IN_314 if is_one_new else set())


def test_an_instruction_is_judged_alike_in_each_version():
    """But those that another instruction has prepared: since 3.13 conditions jump on what TO_BOOL made."""
    judges: dict[str, set[str]] = {}
    for table in (ROOT / "src" / "observe").rglob("opcodes_*.def"):
        for name, judge in re.findall(r"^OP\((\w+), \d+, (\w+)\)", table.read_text(), re.MULTILINE):
            judges.setdefault(name, set()).add(judge)
    different = {name for name, judge in judges.items() if len(judge) > 1}
    assert different == {"UNARY_NOT", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "MAKE_CELL"}


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setitem(globals(), "FOUND", {"3.12": Path("/usr/bin/python3.12"), "3.13": None, "3.14": None})
    assert summary() == (
        f"read observer: tested under CPython {THIS} (this one), 3.12 (/usr/bin/python3.12); "
        "NOT under 3.13, 3.14: neither pyenv nor the PATH has it"
    )
    monkeypatch.setitem(globals(), "FOUND", {"3.12": Path("/usr/bin/python3.12")})
    assert summary().endswith("3.12 (/usr/bin/python3.12)")


def test_only_a_cpython_with_a_lock_and_headers_is_taken(tmp_path):
    assert version_of(Path(sys.executable)) == THIS
    assert version_of(tmp_path / "python") == ""
    other = tmp_path / "python3.12"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    assert version_of(other) == ""
