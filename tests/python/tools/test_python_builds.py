"""Pythons that FastJIT does not run on, and builds without the read observer, as for Pythons newer than it."""

import ctypes
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from fastjit import _C, FastJITWarning, fastjit

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("what", ["import fastjit", "from fastjit import fastjit", "import fastjit.cache"])
def test_a_free_threaded_python_is_refused_at_import(what) -> None:
    pretend = f"import sys; sys.abiflags = 't'; sys.executable = '/usr/bin/python'; {what}"
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    version = "{}.{}".format(*sys.version_info[:2])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: fastjit relies on the global interpreter lock, and this is a free-threaded Python "
        f"(/usr/bin/python): use the Python that has the lock, python{version} in place of python{version}t"
    )


@pytest.mark.parametrize(("answer", "is_refused"), [("1", True), ("0", False)])
def test_a_free_threaded_python_is_refused_by_the_build(tmp_path, answer, is_refused) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {answer}\n")
    python.chmod(0o755)
    script = ROOT / "cmake" / "free_threaded.cmake"
    done = subprocess.run(["cmake", f"-DPython_EXECUTABLE={python}", "-P", script], capture_output=True, text=True)
    said = " ".join(done.stderr.split())
    assert (done.returncode != 0) == is_refused
    assert ("the global interpreter lock, and" in said) == is_refused
    assert ("build with -DPython_EXECUTABLE naming one that has the lock" in said) == is_refused
    assert "include(cmake/free_threaded.cmake)" in (ROOT / "cmake" / "extension.cmake").read_text()


def test_the_observers_folder_is_complete_without_the_observer(tmp_path) -> None:
    """What the rest of the extension calls is there: the same sources, built as for a Python that they do not know."""
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-DFASTJIT_NO_OBSERVER"]
    flags += [f"-I{ROOT / 'src'}", f"-I{ROOT / 'jit'}", "-isystem", sysconfig.get_paths()["include"]]
    sources = [*sorted((ROOT / "src/observe").rglob("*.cpp")), ROOT / "tests/python/helpers/no_observer.cpp"]
    whole = tmp_path / "whole.cpp"  # one file: next to nothing is left of each
    whole.write_text("".join(f'#include "{source}"\n' for source in sources))
    library = tmp_path / "no_observer.so"
    subprocess.run(["c++", *flags, str(whole), "-o", str(library)], check=True)
    loaded = ctypes.PyDLL(str(library))  # every symbol is looked up now
    loaded.what_it_says.restype = ctypes.py_object
    assert loaded.what_it_says() == "this build has no read observer"


@pytest.mark.skipif(_C.observer_available(), reason="this build has the read observer: see make test-no-observer")
class TestNoObserver:
    def test_plain_functions_run_eagerly_with_one_sentence(self) -> None:
        @fastjit
        def f(x):
            return torch.relu(x * 2) + 1

        x = torch.randn(64)
        with pytest.warns(FastJITWarning) as warned:
            results = [f(x) for _ in range(5)]
        assert all(torch.equal(result, torch.relu(x * 2) + 1) for result in results)
        reason = "this build has no read observer, which is for CPython 3.11 to 3.14 with their GIL"
        assert [reason in str(one.message) and "pass pure=True" in str(one.message) for one in warned] == [True]
        assert f.stats().hits == 0 and f.stats().fallbacks == {reason: 5}

    def test_pure_functions_are_compiled(self) -> None:
        @fastjit(pure=True)
        def f(x):
            return torch.relu(x * 2) + 1

        for size in (64, 64, 64, 128, 128):
            x = torch.randn(size)
            assert torch.equal(f(x), torch.relu(x * 2) + 1)
        assert f.stats().hits >= 2 and not f.stats().fallbacks

    def test_a_tensor_used_outside_operators_is_noticed(self) -> None:
        @fastjit(pure=True)
        def f(x):
            return x * float(x.numpy()[0])

        with pytest.warns(FastJITWarning, match=r"use of a tensor outside operators by .*numpy"):
            for value in (2.0, 3.0, 4.0):
                x = torch.full((8,), value)
                assert torch.equal(f(x), x * value)
        assert f.stats().hits == 0
