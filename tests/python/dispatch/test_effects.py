"""Effects on Python objects that a hit makes again: what scripts cannot say (see scripts/item1_effects.py)."""

from __future__ import annotations

import io
import sys
import threading

import pytest
import torch

from fastjit import fastjit


class Plain:
    """An object with the attributes it is made with."""

    def __init__(self, **values):
        self.__dict__.update(values)


def test_inspect_shows_the_effects():
    state, log = Plain(n=0), []

    @fastjit
    def f(x):
        state.n += 1
        state.last = x * 2
        log.append("called")
        return x + 1

    f(torch.ones(3))
    lines = [line.rsplit(" (", 1)[0] for line in f.inspect("guards").splitlines() if line.startswith("effect")]
    assert lines == ["effect: state.n += 1", "effect: state.last = Tensor", "effect: log.append('called')"]
    assert "state.n is of type int" in f.inspect("guards")


def test_no_call_of_many_threads_is_lost():
    state = Plain(n=0, log=[])

    @fastjit
    def f(x):
        state.n += 1
        state.log.append(x)
        return x * 2

    x, calls, threads = torch.ones(8), 200, 4

    def work():
        with torch.no_grad():
            for _ in range(calls):
                f(x)

    with torch.no_grad():
        f(x)
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert f.stats().hits == calls * threads
    assert state.n == len(state.log) == calls * threads + 1
    assert all(entry is x for entry in state.log)


def test_a_stream_of_python_code_is_seen_before_the_program_runs(monkeypatch):
    class Stream(io.StringIO):
        def write(self, text):
            return super().write(text.upper())

    state = Plain(n=0)

    @fastjit(on_unsupported="eager")
    def f(x):
        state.n += 1
        print("called")
        return x * 2

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    f(torch.ones(3))
    f(torch.ones(3))
    assert f.stats().hits == 1 and sys.stdout.getvalue() == "called\n" * 2
    monkeypatch.setattr(sys, "stdout", Stream())
    f(torch.ones(3))
    assert sys.stdout.getvalue() == "CALLED\n" and state.n == 3
    assert f.stats().hits == 1
    assert [reason.split(" at ")[0] for reason in f.stats().fallbacks] == ["side effect: print"]


def test_what_is_replaced_is_finalised_after_all_effects():
    seen = []

    class Old:
        def __del__(self):
            seen.append((state.first, state.second))

    state = Plain(first=None, second=None)

    @fastjit
    def f(x):
        state.first = 1
        state.second = 2
        return x * 2

    f(torch.ones(3))
    state.first, state.second = Old(), 5
    f(torch.ones(3))
    assert f.stats().hits == 1 and seen == [(1, 2)]


def test_an_effect_that_fails_raises_and_the_ones_before_it_stay(monkeypatch):
    state = Plain(before=0, after=0)

    @fastjit
    def f(x):
        state.before += 1
        print("called")
        state.after += 1
        return x * 2

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    f(torch.ones(3))
    sys.stdout.close()
    with pytest.raises(ValueError, match="closed file"):
        f(torch.ones(3))
    assert (state.before, state.after) == (2, 1)


def test_a_program_keeps_no_target_alive():
    import weakref

    class Box:
        pass

    namespace = {"box": Box(), "torch": torch}
    exec("def f(x):\n    box.last = x * 2\n    return x + 1", namespace)
    f = fastjit(namespace["f"])
    for _ in range(3):
        f(torch.ones(3))
    assert f.stats().hits == 2
    dead = weakref.ref(namespace["box"])
    namespace["box"] = Box()
    assert dead() is None
    f(torch.ones(3))
    assert torch.equal(namespace["box"].last, torch.ones(3) * 2)


def test_state_is_eager_after_three_recordings_and_recorded_again_later():
    state = Plain(h=[torch.zeros(3)])

    @fastjit(on_unsupported="eager")
    def f(x):
        state.h = [torch.tanh(state.h[0] + x)]
        return state.h[0]

    expected = torch.zeros(3)
    for _ in range(6):
        expected = torch.tanh(expected + 1)
        assert torch.equal(f(torch.ones(3)), expected)
    (reason, count), *others = f.stats().fallbacks.items()
    assert reason.startswith("state: state.h at test_effects.py:") and reason.endswith("is read and written")
    assert count == 4 and not others and f.stats().hits == 0


def test_an_item_of_a_tensor_is_a_value_that_is_added():
    state = Plain(total=0.0)

    @fastjit
    def f(x):
        loss = x.sum()
        value = loss.item()
        state.total += value
        return loss * 2

    total = 0.0
    for value in (1.0, 1.0, 2.0, 2.0, 1.0):
        f(torch.full((3,), value))
        total += 3 * value
        assert state.total == total
    assert f.stats().hits == 3
