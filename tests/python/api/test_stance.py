"""fastjit.stance and FASTJIT_DISABLE: whose calls they are for, and until when."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest
import torch

from fastjit import fastjit, stance
from fastjit.testing import assert_no_recompile


def test_stances():
    x = torch.randn(4)
    fast = fastjit(lambda x: x + 1)
    with stance("eager"):
        fast(x)
    assert fast.stats().misses == 0
    with stance("error_on_compile"), pytest.raises(RuntimeError, match="would compile for a new call"):
        fast(x)
    fast.warmup(x)
    with stance("error_on_compile"), assert_no_recompile(fast):
        fast(x)
    with pytest.raises(AssertionError, match="had 1 calls that no variant served"), assert_no_recompile(fast):
        fast(torch.randn(5, 5))
    with pytest.raises(ValueError, match="unknown stance"), stance("fast"):
        pass


@pytest.mark.parametrize("inner", ["eager", "error_on_compile"])
def test_stances_of_threads_that_end_in_another_order(inner):
    fast, x = fastjit(lambda x: x + 1), torch.randn(4)
    fast.warmup(x)
    inside, other_inside, outside = threading.Event(), threading.Event(), threading.Event()

    def first():
        with stance("eager"):
            inside.set()
            other_inside.wait()
        outside.set()

    def second():
        inside.wait()
        with stance(inner):
            other_inside.set()
            outside.wait()

    threads = [threading.Thread(target=body) for body in (first, second)]
    for thread in threads:
        thread.start()
    other_inside.wait()
    with assert_no_recompile(fast):
        fast(x)  # the blocks are those of other threads
    for thread in threads:
        thread.join()
    with assert_no_recompile(fast):
        fast(x)


def test_stances_of_tasks():
    fast, x = fastjit(lambda x: x + 1), torch.randn(4)
    fast.warmup(x)
    hits = fast.stats().hits

    async def late():
        await asyncio.sleep(0.02)
        fast(x)  # the block that this task was started in is over

    async def eager(seconds):
        with stance("eager"):
            await asyncio.sleep(seconds)
            fast(x)
            return asyncio.create_task(late())

    async def plain():
        await asyncio.sleep(0.005)
        fast(x)  # while blocks of other tasks are open

    async def main():
        first, second, _ = await asyncio.gather(eager(0.01), eager(0.02), plain())
        await asyncio.gather(first, second)
        fast(x)

    asyncio.run(main())
    assert fast.stats().hits == hits + 4
    assert fast.stats().fallbacks == {"stance is eager": 2}


def test_stances_nest_and_end_in_any_order():
    fast, x = fastjit(lambda x: x + 1), torch.randn(4)
    fast.warmup(x)
    outer, inner = stance("eager"), stance("default")
    outer.__enter__(), inner.__enter__()
    with assert_no_recompile(fast):
        fast(x)
    outer.__exit__(None, None, None)
    with assert_no_recompile(fast):
        fast(x)
    inner.__exit__(None, None, None)
    with assert_no_recompile(fast):
        fast(x)


_DISABLED = """
import torch
import fastjit as fj
from fastjit.testing import assert_no_recompile

x = torch.ones(2, 3)
f, module = fj.fastjit(lambda x: x * 2), fj.fastjit(torch.nn.Linear(3, 3).eval().requires_grad_(False))
for name in ("default", "eager", "error_on_compile"):
    with fj.stance(name), assert_no_recompile(f, fj.of(module)):
        f(x), module(x), f(x), module(x)
stats = f.stats()
assert stats.fallbacks == {"stance is eager": 6} and stats.misses == stats.hits == 0, stats
assert module._compiled_call_impl is None and fj.of(module).stats().calls == 0
assert torch.equal(fj.of(module)(x), module(x))
"""


def test_disabled_is_more_than_a_stance():
    env = {**os.environ, "FASTJIT_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-W", "error", "-c", _DISABLED], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
