"""What runs inside an operator that nobody enters is not recorded, unless somebody else wants to see it."""

import os
import subprocess
import sys

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same, check


def convolve(x, w):
    return torch.relu(torch.nn.functional.conv2d(x, w)) + 1


def arguments():
    return torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)


def names_seen(call):
    with torch.autograd.profiler.profile() as seen:
        call()
    return {event.name for event in seen.function_events}


def test_a_profiler_sees_what_runs_inside():
    x, w = arguments()
    fast = fastjit(convolve)
    assert "aten::_convolution" in names_seen(lambda: fast(x, w))
    assert fast.stats().fallbacks == {}


def test_it_is_seen_again_after_a_recording():
    check(convolve, *arguments())
    assert "aten::_convolution" in names_seen(lambda: convolve(*arguments()))


def test_it_is_seen_again_after_an_operator_that_raises():
    x, w = arguments()
    fast = fastjit(convolve, on_unsupported="eager")
    with pytest.raises(RuntimeError):
        fast(x, w[0])
    assert "aten::_convolution" in names_seen(lambda: convolve(x, w))
    check(convolve, x, w)


def test_it_is_seen_again_after_a_recording_that_ended_inside(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_OPERATORS", "1")
    x, w = arguments()
    fast = fastjit(convolve, on_unsupported="eager")
    assert_same(fast(x, w), convolve(x, w))
    assert "aten::_convolution" in names_seen(lambda: convolve(x, w))
    monkeypatch.setenv("FASTJIT_RECORD_OPERATORS", "1000")
    check(convolve, x, w)


WORK = """
import torch
from fastjit import _C, fastjit

def many(x, w):
    for _ in range(30):
        x = torch.nn.functional.conv2d(x, w, padding=1)
    return x

def work():
    before = _C.recording_work()
    fastjit(many)(torch.randn(1, 3, 8, 8), torch.randn(3, 3, 3, 3))
    return _C.recording_work() - before

work()
hidden = work()
with torch.autograd.profiler.profile():
    print(hidden, work())
"""


def test_fewer_events_are_recorded(tmp_path):
    """In a process of its own: where something else watches operators, all are recorded."""
    env = {**os.environ, "FASTJIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", WORK], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hidden, seen = map(int, done.stdout.split())
    assert 2 * hidden < seen


def test_a_python_kernel_inside_is_noticed():
    x, w = arguments()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("convolution", lambda *args: torch.zeros(1, 4, 6, 6), "CPU")
        fast = fastjit(convolve, on_unsupported="eager")
        expected = convolve(x, w)
        for _ in range(2):
            assert_same(fast(x, w), expected, exact=True)
        assert any("Python code has registered a kernel" in reason for reason in fast.stats().fallbacks)
    check(convolve, x, w)
