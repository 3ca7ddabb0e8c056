"""on_miss="background": calls run eagerly, and none waits, until the program is ready."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fastjit
from fastjit import _C, FastJITWarning

WAITS = "its program is being compiled in the background"


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Nothing is compiled in the background within the block."""
    _C.hold_background(True)
    try:
        yield
    finally:
        _C.hold_background(False)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def of(function: Any, **options: Any) -> Any:
    return fastjit.jit(on_miss="background", **options)(function)


def test_calls_run_eagerly_until_the_program_is_ready():
    fast = of(lambda x: torch.tanh(x * 1.25) + 0.5)
    x = torch.randn(37)
    expected = fast.eager(x)
    with held():
        for _ in range(3):
            assert torch.equal(fast(x), expected)
        stats = fast.stats()
        assert (stats.calls, stats.misses, stats.hits, stats.fallbacks) == (3, 1, 0, {WAITS: 2})
        assert (stats.variants, stats.compiles + stats.disk_hits + stats.memory_hits) == (0, 0)
        assert fast.explain(x) == f"eager: {WAITS}"
        assert [row.reason for row in fast.variants()] == [WAITS]
        with pytest.raises(LookupError, match="has 0 compiled variants"):
            fast.inspect("plan")
    fast._wait()
    assert fast.explain(x).startswith("a hit: ")
    torch.testing.assert_close(fast(x), expected)
    stats = fast.stats()
    assert (stats.calls, stats.misses, stats.hits, stats.fallbacks) == (4, 1, 1, {WAITS: 2})
    assert (stats.variants, stats.compiles + stats.disk_hits + stats.memory_hits) == (1, 1)
    assert stats.compile_ms > 0
    assert "fj_" in fast.inspect("llvm")


def test_warmup_waits_for_the_program():
    fast = of(lambda x: x.sin() * 3)
    x = torch.randn(5)
    fast.warmup(x)
    fast(x)
    assert fast.stats().hits >= 2


def test_a_call_of_another_kind_is_recorded_meanwhile():
    fast = of(lambda x: x.exp() - 2)
    inputs = [torch.randn(4), torch.randn(4, dtype=torch.float64), torch.randn(2, 3)]
    with held():
        for x in inputs:
            assert torch.equal(fast(x), fast.eager(x))
        assert fast.stats().misses == 3
    fast._wait()
    for x in inputs:
        torch.testing.assert_close(fast(x), fast.eager(x))
    assert fast.stats().hits == 3


def test_what_changes_before_the_program_is_ready_is_noticed():
    scale = {"by": 2.0}
    fast = of(lambda x: x * scale["by"] + 1)
    x = torch.randn(8)
    with held():
        fast(x)
        scale["by"] = 3.0
        assert torch.equal(fast(x), x * 3 + 1)
        assert fast.stats().misses == 2
    fast._wait()
    assert torch.equal(fast(x), x * 3 + 1)
    scale["by"] = 2.0
    assert torch.equal(fast(x), x * 2 + 1)
    assert fast.stats().hits == 2


def test_values_read_out_of_tensors():
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.max() > 0 else x - 1

    fast = of(f)
    up, down = torch.ones(6), -torch.ones(6)
    with held():
        fast(up)
        assert torch.equal(fast(down), f(down)) and torch.equal(fast(up), f(up))
        assert fast.stats().fallbacks == {WAITS: 2}
    fast._wait()
    with held():
        assert torch.equal(fast(up), f(up))
        assert torch.equal(fast(down), f(down))  # recorded: the value is another one
        assert torch.equal(fast(down), f(down))  # and waited for
        assert (fast.stats().hits, fast.stats().misses, fast.stats().fallbacks) == (1, 2, {WAITS: 3})
    fast._wait()
    for x in (up, down, up):
        assert torch.equal(fast(x), f(x))
    assert (fast.stats().hits, fast.stats().misses) == (4, 2)


def test_effects_happen_once_a_call():
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

    counter = Counter()

    def f(x: torch.Tensor) -> torch.Tensor:
        counter.calls += 1
        x.add_(1)
        return x * 2

    fast = of(f)
    x = torch.zeros(3)
    with held():
        fast(x), fast(x)
    fast._wait()
    assert torch.equal(fast(x), torch.full((3,), 6.0))
    assert torch.equal(x, torch.full((3,), 3.0)) and counter.calls == 3
    assert fast.stats().hits == 1


@pytest.mark.parametrize("how", ["warn", "error"])
def test_a_compile_that_fails_is_said_by_the_next_call(how):
    done = subprocess.run([sys.executable, "-c", _FAILS.format(how=how)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# The compiler needs memory that it may not have.
_FAILS = """
import resource, warnings, torch
import fastjit
from fastjit import UnsupportedError, _C
torch.set_grad_enabled(False)
torch.set_num_threads(1)
fast = fastjit.jit(on_miss="background", cache="memory", on_unsupported="{how}")(lambda x: x.cos() + 7)
x = torch.randn(9)
expected = fast.eager(x)
_C.hold_background(True)
fast(x)
pages = int(open("/proc/self/statm").read().split()[0])
most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (24 << 20), most[1]))
_C.hold_background(False)
fast._wait()
resource.setrlimit(resource.RLIMIT_AS, most)
reason = "it could not be compiled (the compiler needs 64 MiB of memory, and cannot get them)"
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    try:
        assert torch.equal(fast(x), expected)
        assert "{how}" == "warn" and len(said) == 1 and reason in str(said[0].message), said
    except UnsupportedError as error:
        assert "{how}" == "error" and reason in str(error)
assert torch.equal(fast(x), expected)
stats = fast.stats()
assert stats.fallbacks == {{reason: 2}}, stats
for _ in range(20):
    torch.testing.assert_close(fast(x), expected)
fast._wait()
torch.testing.assert_close(fast(x), expected)
assert fast.stats().hits > 0, fast.stats()
"""


def test_threads():
    fast = of(lambda x: (x * 0.3).sigmoid() + x)
    x = torch.randn(64)
    expected, wrong = fast.eager(x), []

    def body() -> None:
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(fast(x), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fast._wait()
    hits = fast.stats().hits
    fast(x)
    stats = fast.stats()
    assert not wrong and stats.hits == hits + 1
    assert stats.calls == stats.hits + stats.misses + sum(stats.fallbacks.values())


def test_a_function_that_goes_away_while_it_waits():
    with held():
        for i in range(20):
            of(lambda x, i=i: x * 1.5 + i)(torch.randn(3))
        fast = of(lambda x: x - 4)
        fast(torch.randn(3))
        fast.clear()
        assert fast.variants() == []
    last = of(lambda x: x + 11)
    x = torch.randn(3)
    last.warmup(x)  # the jobs before it are done
    assert last.stats().hits == 1


def _script(text: str, tmp_path: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FASTJIT_CACHE_DIR": str(tmp_path)}
    said = tmp_path / "said"
    with said.open("w") as out:  # no pipe: a child that hangs would keep it open
        done = subprocess.run([sys.executable, "-W", "error", "-c", _HEAD + text], env=env, stdout=out, stderr=out)
    done.stderr = said.read_text()
    return done


_HEAD = """
import faulthandler, os, signal, sys, threading
import torch
import fastjit
from fastjit import _C
faulthandler.dump_traceback_later(60, exit=True)
torch.set_grad_enabled(False)
torch.set_num_threads(1)


def chain(n):
    def f(x):
        for i in range(n):
            x = (x.sin() if i % 2 else x.tanh()) * (1 + i)
            x = x.reshape(-1, 4 + i).mean(0)[:1] + torch.arange(40 * (5 + i)) * 0.01
        return x
    return fastjit.jit(on_miss="background")(f)
"""

_ENDS = {
    "at once": "chain(30)(torch.randn(160))",
    "held": "_C.hold_background(True)\nchain(3)(torch.randn(160))",
    "by sys.exit": "chain(30)(torch.randn(160)); sys.exit(0)",
    "by os._exit": "chain(30)(torch.randn(160)); os._exit(0)",
    "with a call at the end": """
import atexit
fast, x = chain(30), torch.randn(160)
atexit.register(lambda: fast(x))
fast(x)
""",
}


@pytest.mark.parametrize("text", _ENDS.values(), ids=_ENDS)
def test_a_process_ends_while_something_is_compiled(text, tmp_path):
    done = _script(text, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


_FORKS = """
fast, x = chain(6), torch.randn(160)
expected = fast.eager(x)
for round in range(12):
    _C.hold_background(round % 2 == 0)
    fast.clear()
    fast(x)
    other = chain(round % 5)
    other(x)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # the child hangs
        fast._wait()
        hits = fast.stats().hits
        torch.testing.assert_close(fast(x), expected)
        good = fast.stats().hits == hits + 1
        new = chain(2)
        new.warmup(x)
        os._exit(not (good and new.stats().hits == 1))
    assert os.waitpid(pid, 0)[1] == 0, f"a child hung or failed in round {round}"
    _C.hold_background(False)
    fast._wait()
    torch.testing.assert_close(fast(x), expected)
"""


def test_fork_while_something_is_compiled(tmp_path):
    done = _script(_FORKS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_option_is_checked_and_kept():
    with pytest.raises(TypeError, match="option 'on_miss' must be 'compile' or 'background', not 'later'"):
        fastjit.jit(on_miss="later")
    fast = of(lambda x: x + 1)
    assert fast._options == {"on_miss": "background"}
    module = torch.nn.Linear(3, 3)
    fastjit.jit(module, on_miss="background")
    with held():
        module(torch.ones(1, 3)), module(torch.ones(1, 3))
        assert fastjit.of(module).stats().fallbacks == {WAITS: 1}


def test_nothing_is_said_while_it_waits(recwarn):
    fast = of(lambda x: x.log() * 5)
    x = torch.rand(3) + 1
    with held():
        fast(x), fast(x)
    assert not [w for w in recwarn if issubclass(w.category, FastJITWarning)]
