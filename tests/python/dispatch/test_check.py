"""FASTJIT_CHECK=record: a hit records again and compares; a hole in the guards is found, the tests have none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
HOLE = """
import ctypes, torch
from fastjit import fastjit
L = [1.5]
@fastjit
def f(x): return x * L[0]
for _ in range(3): f(torch.ones(4))
assert f.stats().hits == 2
ctypes.c_double.from_address(id(L[0]) + 16).value = 2.5  # no guard can see a number that is changed in place
try:
    f(torch.ones(4))
except AssertionError as error:
    print(error)
"""


def checked(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FASTJIT_CHECK": "record", "FASTJIT_CACHE_DIR": str(folder)}
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, cwd=TESTS)


def test_a_hole_is_found(tmp_path):
    done = checked("-c", HOLE, folder=tmp_path)
    assert done.stdout == (
        "fastjit: FASTJIT_CHECK=record: the guards of f held, but a new recording differs: "
        "'%1 = const f32[] 1.5 bits=3ff8000000000000' then, '%1 = const f32[] 2.5 bits=4004000000000000' now\n"
    ), done.stderr


def test_hits_of_the_tests_record_the_same_again(tmp_path):
    files = ["observe/test_unsound.py", "capture/test_capture.py", "capture/test_mutation.py"]
    done = checked("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]


def test_programs_for_any_size_are_the_same_at_other_sizes(tmp_path):
    chosen = "others_at_other_sizes or what_python_does"
    files = ["dispatch/test_read_sizes.py", "-k", chosen]
    done = checked("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
