"""Memory: a process in which it runs out goes on, and what lies idle goes back to the system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
CLOSED = "it could not be compiled (LLVM ran out of memory, and makes no more kernels in this process)"
SAID = (
    "fastjit: LLVM ran out of memory; no kernel is compiled or loaded any more in this process, and what needs a new "
    "one runs eagerly"
)

_START = """
import ctypes, gc, os, resource, signal, sys, warnings
import torch
from fastjit import FastJITWarning, _C, fastjit

torch.set_num_threads(1)
torch.set_grad_enabled(False)
x = torch.randn(16)
faults = ctypes.CDLL(os.environ["LD_PRELOAD"]) if "LD_PRELOAD" in os.environ else None
parts = [line.split()[0].split("-") for line in open("/proc/self/maps") if "/fastjit/_C." in line]
extension = [int(parts[0][0], 16), int(parts[-1][1], 16)]


def fail_request(number):
    faults.fail_request(*map(ctypes.c_size_t, extension), ctypes.c_long(number))


def in_child(body):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # it hangs
        try:
            body()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status
"""

# The n-th request for memory that the extension makes in a call fails, for ever larger n. In the parent nothing was
# compiled yet, so LLVM runs out while it makes its tables, too.
_EVER_LATER = """
import collections, tempfile
reasons = collections.Counter()

def call(number, log):
    fast, other = (fastjit(f, cache="memory", on_unsupported="eager") for f in (lambda x: x * 2 + 1, lambda x: x.abs()))
    fail_request(number)
    try:
        assert torch.equal(fast(x), x * 2 + 1)
        raised = ""
    except (MemoryError, RuntimeError) as error:  # before the function ran
        raised = str(error)
        assert "bad_alloc" in raised or not raised, raised
    fail_request(0)
    for _ in range(2):
        assert torch.equal(fast(x), x * 2 + 1) and torch.equal(other(x), x.abs())
    if any("LLVM" in reason for reason in fast.stats().fallbacks):
        assert list(other.stats().fallbacks) == list(fast.stats().fallbacks)
    else:
        assert other.stats().hits == 1
    log.write("|".join(fast.stats().fallbacks) or raised or f"{fast.stats().hits} hits")

number, last = 1, ""
while reasons["2 hits"] < 2:  # one request is for spare room, which nobody misses
    assert number < 100_000
    with tempfile.TemporaryFile("w+") as log:
        in_child(lambda: call(number, log) or log.flush())
        log.seek(0)
        last = log.read()
    reasons[last] += 1
    number += 1 + number // 10
print(reasons)
assert reasons[sys.argv[1]] > 5
"""

_ENDS = """
# Of LLVM for sure: it makes thousands of requests, and the call before it some hundreds.
fast, other = fastjit(lambda x: x * 2 + 1, cache="memory"), fastjit(lambda x: x.abs(), cache="memory")
fail_request(8000)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(20):
        assert torch.equal(fast(x), x * 2 + 1) and torch.equal(other(x), x.abs())
assert [str(w.message).partition("; ")[2] for w in said] == ["give the process more memory and start it again"] * 2
print(*fast.stats().fallbacks, sep="|")
assert list(other.stats().fallbacks) == list(fast.stats().fallbacks)
"""

_LIMITED = """
def size():
    return int(open("/proc/self/statm").read().split()[0]) * 4096

def call(more):
    limits = resource.getrlimit(resource.RLIMIT_AS)
    fast = fastjit(lambda x: x * 2 + 1, cache="memory", on_unsupported="eager")
    resource.setrlimit(resource.RLIMIT_AS, (size() + more, limits[1]))
    for _ in range(3):
        assert torch.equal(fast(x), x * 2 + 1)
    reasons = set(fast.stats().fallbacks)
    assert reasons <= {"it could not be compiled (the compiler needs 64 MiB of memory, and cannot get them)"}, reasons
    assert bool(reasons) == (more < 64 << 20) and fast.stats().hits == (0 if reasons else 2)
    resource.setrlimit(resource.RLIMIT_AS, limits)  # nothing is over for this process
    fast = fastjit(lambda x: x * 2 + 1, cache="memory")
    assert torch.equal(fast(x), x * 2 + 1) and torch.equal(fast(x), x * 2 + 1) and fast.stats().hits == 1

for more in (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 60, 70, 80, 100, 200):
    in_child(lambda: call(more << 20))
"""

_IDLE = """
large = torch.randn(3 << 20)
fast, small = fastjit(lambda x: x * 2 + 1), fastjit(lambda x: x + 1)
for _ in range(2):
    fast(large), fast(large[:100_000]), small(x)

def idle():
    return _C.pool_stats()["idle_bytes"]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def use():
    fast(large)
    assert fast.stats().fallbacks == {} and idle() >= 12 << 20

ways = {
    "hits": lambda: fast(large[:50_000]),
    "small hits": lambda: [small(x) for _ in range(100)],
    "compile": lambda: fastjit(lambda x: x.sin())(x),
    "collection": lambda: gc.collect(0),
}
ahead = 0
for name, way in ways.items():
    way()
    use()
    before = resident()
    faults.set_clock_ahead(ctypes.c_long(ahead := ahead + 55))
    way()
    assert idle() >= 12 << 20, name  # not yet
    faults.set_clock_ahead(ctypes.c_long(ahead := ahead + 16))
    way()
    assert idle() < 4 << 20, (name, idle())
    assert resident() <= before - (10 << 20), (name, before, resident())
use()
reuses = _C.pool_stats()["reuses"]
use()  # what is used stays
assert _C.pool_stats()["reuses"] > reuses
"""


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    command = ["c++", "-O1", "-shared", "-fPIC", "-std=c++20", str(HELPERS / "faults.cpp"), "-o", str(library)]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library)}


def run(script: str, tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _START + script, *arguments]
    said = tmp_path / "said"
    with said.open("w") as out:  # no pipe: a child that hangs would keep it open
        done = subprocess.run(
            command, env={**os.environ, "FASTJIT_CACHE_DIR": str(tmp_path / "cache"), **env}, stdout=out, stderr=out
        )
    return subprocess.CompletedProcess(command, done.returncode, said.read_text())


def test_a_process_goes_on_whichever_request_of_a_compile_fails(preloaded, tmp_path) -> None:
    done = run(_EVER_LATER, tmp_path, CLOSED, **preloaded)
    assert done.returncode == 0, done.stdout
    assert SAID in done.stdout.splitlines()


def test_it_is_said_once_that_nothing_more_is_compiled_and_the_process_ends_well(preloaded, tmp_path) -> None:
    done = run(_ENDS, tmp_path, **preloaded)
    assert (done.returncode, done.stdout.splitlines()) == (0, [SAID, CLOSED])


def test_too_little_memory_for_the_compiler_is_a_reason(tmp_path) -> None:
    done = run(_LIMITED, tmp_path)
    assert done.returncode == 0 and done.stdout == "", done.stdout


def test_memory_that_lies_idle_goes_back_to_the_system(preloaded, tmp_path) -> None:
    done = run(_IDLE, tmp_path, **preloaded)
    assert done.returncode == 0 and done.stdout == "", done.stdout
