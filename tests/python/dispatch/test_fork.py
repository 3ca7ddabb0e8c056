"""Processes made by fork while other threads compile or run programs: neither process waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_WATCHED = """
import faulthandler, gc, os, signal, threading, time
import torch
from fastjit import fastjit

torch.set_num_threads(1)
torch.set_grad_enabled(False)


def worker(body):
    def run():
        torch.set_grad_enabled(False)  # of this thread
        while True:
            body()
    threading.Thread(target=run, daemon=True).start()


def forks(child, rounds):
    faulthandler.dump_traceback_later(60, exit=True)  # this process hangs
    for _ in range(rounds):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # the child hangs
            os._exit(not child())
        assert os.waitpid(pid, 0)[1] == 0, "a child hung or failed"
        time.sleep(0.001)
"""

# 40 products a call: the program runs without the GIL and takes its memory from the pool.
_HITS = """
w, x = torch.ones(1, 1), torch.randn(10000, 1)

@fastjit
def f(x):
    for _ in range(40):
        x = (x @ w) * 1.01
    return x

expected = f.eager(x)
f(x), f(x)
assert f.stats().hits == 1
for _ in range(4):
    worker(lambda: f(x))

def child():
    hits = f.stats().hits
    return all(torch.equal(f(x), expected) for _ in range(3)) and f.stats().hits == hits + 3

forks(child, 100)
"""

# Each operator runs once before there are threads: torch looks an operator up at its first call, without the GIL and
# under a lock of the C++ runtime. A child of a fork that comes meanwhile waits for ever at its own call, eager or not.
_COMPILES = """
x = torch.randn(16)
number = iter(range(2, 1 << 30))

def chain(n):
    steps = bin(n)[3:]
    def f(x):
        for step in steps:
            x = x * 1.5 if step == "0" else x.abs() - 0.5
        return x + 1
    return f

assert torch.equal(chain(5)(x), (x * 1.5).abs() - 0.5 + 1)

def compile_another():
    fastjit(chain(next(number)))(x)

for _ in range(2):
    worker(compile_another)

def child():
    fast = fastjit(chain(next(number)))
    return torch.equal(fast(x), fast(x)) and fast.stats().hits == 1 and gc.isenabled()

forks(child, 40)
"""


@pytest.mark.parametrize("what", [_HITS, _COMPILES], ids=["hits", "compiles"])
def test_fork_beside_threads_that(what, tmp_path):
    env = {**os.environ, "FASTJIT_CACHE_DIR": str(tmp_path)}
    said = tmp_path / "said"
    with said.open("w") as out:  # no pipe: a child that hangs would keep it open
        command = [sys.executable, "-W", "error", "-c", _WATCHED + what + "\nos._exit(0)\n"]
        code = subprocess.run(command, env=env, stdout=out, stderr=out).returncode
    assert code == 0, said.read_text()
