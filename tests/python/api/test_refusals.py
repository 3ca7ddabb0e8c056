"""What is refused or ignored before anything runs: variables, interpreters, options and stances that mean nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastjit import _C, fastjit, stance

ROOT = Path(__file__).resolve().parents[3]


def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], env={**os.environ, **env}, capture_output=True, text=True)


_TWO_FUNCTIONS = """
import torch, fastjit
x = torch.ones(4)
for f in (fastjit.fastjit(lambda x: x + 1), fastjit.fastjit(lambda x: x * 2)):
    f(x), f(x)
    print(f.stats().hits, f.stats().fallbacks)
"""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("FASTJIT_CHECK", "recrod", "FASTJIT_CHECK: there is no 'recrod'; choose from record"),
        (
            "FASTJIT_ISA",
            "avx1024",
            "FASTJIT_ISA: there is no 'avx1024'; choose from avx2, avx512; using the best level of this CPU",
        ),
        ("FASTJIT_POOL", "x", "FASTJIT_POOL='x' is not a number of bytes (500M, 2GiB); using min(512MiB, RAM/16)"),
        (
            "FASTJIT_CACHE_DIR",
            "here",
            "the cache folder is not used: FASTJIT_CACHE_DIR='here' is not an absolute path; "
            "kernels are kept in memory only",
        ),
        ("FASTJIT_LOGG", "all", "FASTJIT_LOGG is no setting of fastjit; did you mean FASTJIT_LOG?"),
    ],
)
def test_a_variable_that_means_nothing_is_said_once(name, value, said) -> None:
    done = run(_TWO_FUNCTIONS, **{name: value})
    assert (done.returncode, done.stderr) == (0, f"fastjit: {said}\n")
    assert done.stdout == "1 {}\n1 {}\n"


def test_a_nonsense_flag_is_taken_as_one_and_said() -> None:
    done = run(_TWO_FUNCTIONS, FASTJIT_DISABLE="ture")
    assert done.stderr == "fastjit: FASTJIT_DISABLE='ture' is neither 0 nor 1; using 1\n"
    assert done.stdout == "0 {'stance is eager': 2}\n" * 2


def test_every_variable_that_the_tests_read_is_known() -> None:
    files = [ROOT / "Makefile", *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    read = re.compile(r'environ(?:\.get\(|\[)"(FASTJIT_\w+)"|\b(FASTJIT_\w+)=\S')
    names = {name for file in files for pair in read.findall(file.read_text()) for name in pair if name}
    known = set(re.findall(r'"(FASTJIT_\w+)"', (ROOT / "jit/support/settings.def").read_text()))
    made_up = {"FASTJIT_LOGG"}
    assert {"FASTJIT_SCRIPTS", "FASTJIT_CACHE_DIR"} <= names
    assert names - made_up <= known


_IN_ANOTHER = """
import sys, torch
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

inside = '''
import sys
sys.path[:] = %r
try:
    %s
except ImportError as error:
    print(type(error).__name__, error, sep=": ")
''' % (sys.path, sys.argv[1])
interpreters.run_string(interpreters.create(), inside)
import fastjit  # this one still can
print(fastjit.fastjit(lambda x: x + 1)(torch.ones(1)).item())
"""

_BELOW = """
    import importlib.machinery, importlib.util
    importlib.util.module_from_spec(importlib.machinery.PathFinder.find_spec("_C", [{folder!r}]))
"""


@pytest.mark.parametrize(
    "what",
    [
        "import fastjit",
        "from fastjit import fastjit",
        "import fastjit._C",
        "import fastjit.cache",
        _BELOW.strip().format(folder=str(Path(_C.__file__).parent)),
    ],
    ids=["package", "decorator", "extension", "cache", "extension alone"],
)
def test_subinterpreters_are_refused_in_one_sentence(what) -> None:
    done = subprocess.run([sys.executable, "-c", _IN_ANOTHER, what], capture_output=True, text=True, timeout=60)
    wanted = "ImportError: fastjit runs in the main interpreter only: torch does not run in subinterpreters\n2.0\n"
    if sys.version_info >= (3, 13) and "PathFinder" in what:  # Python itself is first there
        wanted = "ImportError: module _C does not support loading in subinterpreters\n2.0\n"
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr


class _Odd:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        if not self.text:
            raise ValueError("no words")
        return self.text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.zeros(400, 400), "tensor([[0., 0., 0., ..., 0., 0., 0.], [0., 0., 0., ..., 0., 0., 0.], [0., 0., …"),
        ("x" * 10_000, "'" + "x" * 78 + "…"),
        (_Odd("two\nlines\t and \x1b[2J"), "two lines and \\x1b[2J"),
        (_Odd(""), "an object of type _Odd"),
    ],
    ids=["tensor", "text", "lines", "no repr"],
)
def test_option_errors_are_one_line(value, shown) -> None:
    with pytest.raises(TypeError) as raised:
        fastjit(numerics=value)
    assert str(raised.value) == f"option 'numerics' must be 'eager' or 'accurate' or 'fast', not {shown}"


def test_unknown_options_are_one_line() -> None:
    with pytest.raises(TypeError) as raised:
        fastjit(**{"numeric\n" * 1000: 1})
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 250
    assert str(raised.value).startswith("unknown option 'numeric\\nnumeric\\n")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        (3, TypeError, "a stance is text, not an object of type int"),
        (None, TypeError, "a stance is text, not an object of type NoneType"),
        (b"eager", TypeError, "a stance is text, not an object of type bytes"),
        ("Eager", ValueError, "unknown stance 'Eager'"),
        ("a\nb\x1b", ValueError, r"unknown stance 'a\nb\x1b'"),
        ("\ud800", ValueError, r"unknown stance '\ud800'"),
        ("x" * 900, ValueError, "unknown stance '" + "x" * 60 + "'..."),
    ],
)
def test_other_stances_have_a_message(name, error, said) -> None:
    with pytest.raises(error) as raised, stance(name):
        pass
    assert str(raised.value) == f"{said}; choose 'default', 'eager' or 'error_on_compile'"
