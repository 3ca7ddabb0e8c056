"""Threads that stay awake for a loop and share each of its launches: results against eager, and when there are none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same, check, in_threads, loop_trips, torch_threads


def decode(x, weights, keys, values, start):
    """Attention that writes to a cache; each step reads what the one before wrote."""
    keys, values = keys.clone(), values.clone()
    for at in range(start, keys.shape[1]):
        query = torch.matmul(x, weights[0])
        keys[:, at] = torch.matmul(x, weights[1])[:, 0]
        values[:, at] = torch.matmul(x, weights[2])[:, 0]
        scores = torch.softmax(torch.matmul(query, keys.transpose(1, 2)) / 8, 2)
        x = torch.matmul(torch.matmul(scores, values), weights[3])
    return x, keys, values


def arguments(steps: int = 60, heads: int = 12):
    torch.manual_seed(0)
    cache = torch.randn(2, heads, steps, 64)
    return torch.randn(heads, 1, 64), torch.randn(4, heads, 64, 64) / 8, *cache, steps - 50


def is_team(fast) -> bool:
    return any(" team " in line for line in fast.inspect("plan").splitlines() if line.startswith("loop"))


def test_threads_share_each_launch():
    with torch_threads(2):
        fast = check(decode, *arguments())
        assert is_team(fast), fast.inspect("plan")
        args = arguments()
        expected = decode(*args)
        for _ in range(200):
            assert_same(fast(*args), expected)
        torch.set_num_threads(1)  # the program is the same, by one thread
        assert_same(fast(*args), expected)


def test_one_thread_is_no_team():
    with torch_threads(1):
        fast = check(decode, *arguments())
    assert loop_trips(fast) and not is_team(fast), fast.inspect("plan")


def test_many_threads():
    """More than there are cores: those that wait give theirs away."""
    with torch_threads(7):
        fast = check(decode, *arguments())
        assert is_team(fast), fast.inspect("plan")


@contextlib.contextmanager
def on_one_core():
    """All threads of the process, as where others have the rest."""
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    cores = {tid: os.sched_getaffinity(tid) for tid in threads}
    try:
        for tid in cores:
            os.sched_setaffinity(tid, {min(cores[tid])})
        yield
    finally:
        for tid, before in cores.items():
            os.sched_setaffinity(tid, before)


def test_one_core_for_two_threads():
    """They wait for each other asleep, and then one thread does the work for a while."""
    with torch_threads(2), torch.no_grad():
        fast = check(decode, *arguments())
        assert is_team(fast), fast.inspect("plan")
        args = arguments()
        expected, hits = decode(*args), fast.stats().hits
        with on_one_core():
            for _ in range(100):
                assert_same(fast(*args), expected)
        assert_same(fast(*args), expected)
        assert fast.stats().hits == hits + 101 and fast.stats().fallbacks == {}


def test_any_number_of_heads():
    with torch_threads(2), torch.no_grad():
        fast = fastjit(decode)
        for heads in (12, 13, 16, 2, 30):
            args = arguments(heads=heads)
            assert_same(fast(*args), decode(*args))
        assert fast.stats().fallbacks == {} and fast.stats().variants == 2, fast.stats()
        assert is_team(fast), fast.inspect("plan")
        args = arguments(heads=14)
        expected = decode(*args)
        for _ in range(100):
            assert_same(fast(*args), expected)


def test_calls_from_several_threads():
    with torch_threads(2), torch.no_grad():
        args = arguments()
        expected = decode(*args)
        fast = fastjit(decode)
        fast(*args)

        @torch.no_grad()
        def call():
            for _ in range(30):
                assert_same(fast(*args), expected)

        wrong = in_threads(3, call)
        assert not wrong and fast.stats().hits == 90, (wrong, fast.stats())


@pytest.mark.parametrize("rows", [1, 3])
def test_a_product_of_all_and_arithmetic_of_one(rows):
    """Launches that cannot be shared stay one thread's, and the others wait."""

    def run(x, w):
        h = torch.zeros(rows, 192)
        for t in range(x.shape[0]):
            h = torch.tanh(torch.relu(h @ w[0]) @ w[1] + x[t])
            h = h / h.abs().sum(1, keepdim=True)
        return h

    with torch_threads(2):
        check(run, torch.randn(80, rows, 192), torch.randn(2, 192, 192) / 14)
