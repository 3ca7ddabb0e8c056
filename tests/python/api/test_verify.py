"""verify=: hits are compared with eager on copies; what differs is caught, taken out of service and written down."""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from fastjit import _C, FastJITWarning, cache, fastjit, of
from helpers import assert_same

KERNEL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_int64)
SCALE = 2.0


def add_one_at(index: int, count: int):
    """A kernel that gives max(x, 0) * 3, but one more at one place."""

    def run(args, _begin, _end):
        pointers = ctypes.cast(args[0], ctypes.POINTER(ctypes.c_void_p))
        x = (ctypes.c_float * count).from_address(pointers[0])
        out = (ctypes.c_float * count).from_address(pointers[1])
        for i in range(count):
            out[i] = max(x[i], 0.0) * 3 + (i == index)

    return KERNEL(run)


def damage(function, kernel) -> None:
    _C.replace_kernels(function, 0, [ctypes.cast(kernel, ctypes.c_void_p).value])


def mismatch(function, *args):
    """Calls it and returns its result and the warning."""
    with pytest.warns(FastJITWarning, match="computed something else than eager") as caught:
        out = function(*args)
    assert [w.filename for w in caught] == [__file__]
    return out, str(caught[0].message)


def reproducer_of(message: str) -> Path:
    return Path(re.search(r"reproducer: (\S+)$", message).group(1))


def counts(function) -> tuple[int, int, int]:
    stats = function.stats()
    return stats.hits, stats.verified, stats.mismatches


@pytest.mark.parametrize(
    ("verify", "verified"), [(False, 0), (True, 20), (1, 20), (0.1, 2), (0.25, 5), (0.0, 0), (0.001, 1)]
)
def test_a_fraction_of_the_hits_is_compared(verify, verified):
    fast = fastjit(verify=verify)(lambda x: torch.tanh(x) * 2)
    for _ in range(21):
        x = torch.randn(16)
        assert_same(fast(x), torch.tanh(x) * 2)
    assert counts(fast) == (20, verified, 0)


def test_a_wrong_kernel_is_caught_and_written_down():
    fast = fastjit(verify=True)(lambda x: torch.relu(x) * 3)
    x = torch.randn(8)
    fast(x)
    (key,) = fast.variants()[0].keys
    assert key in {entry.key for entry in cache.ls().entries}
    damage(fast, kernel := add_one_at(5, 8))
    out, message = mismatch(fast, x)
    assert_same(out, torch.relu(x) * 3, exact=True)
    assert "result differs in 1 of 8 elements: at [5]" in message
    assert key not in {entry.key for entry in cache.ls().entries}
    with warnings.catch_warnings():  # once
        warnings.simplefilter("error")
        assert_same(fast(x), torch.relu(x) * 3, exact=True)
    assert counts(fast) == (0, 1, 1)
    ((reason, calls),) = fast.stats().fallbacks.items()
    assert reason.startswith("verification failed: result differs") and calls == 2
    assert fast.explain(x) == f"eager: {reason}"
    assert fast.variants()[0].reason == reason
    with pytest.raises(LookupError):
        fast.inspect("plan")
    file = reproducer_of(message)
    assert file.parent == Path(cache.dir()) / "reproducers"
    assert file.stat().st_mode & 0o777 == 0o600
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    assert done.stdout.splitlines()[0].startswith("found: result differs in 1 of 8 elements: at [5]"), done.stderr
    assert done.stdout.splitlines()[1] == (
        "result: fastjit - eager 1 (in 1 of 8 elements), captured program - eager 0 (in 0 of 8 elements)"
    )
    compiles = fast.stats().compiles
    fast.clear()  # learns anew, and compiles: the kernel is nowhere
    fast(x)
    fast(x)
    assert counts(fast) == (1, 2, 1) and fast.stats().compiles == compiles + 1
    del kernel


def test_without_verify_the_wrong_kernel_runs():
    """What the test above shows is not the loader's doing."""
    fast = fastjit(lambda x: torch.relu(x) * 3)
    fast(x := torch.randn(8))
    damage(fast, kernel := add_one_at(5, 8))
    assert (fast(x) - torch.relu(x) * 3).tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    del kernel


def test_a_broken_promise_of_purity_is_caught():
    global SCALE

    @fastjit(pure=True, verify=True)
    def f(x):
        x.add_(1)
        return x * SCALE, x.sum()

    x = torch.zeros(4)
    f(x)
    f(x)
    SCALE = 3.0
    try:
        out, message = mismatch(f, x)
    finally:
        SCALE = 2.0
    assert_same(out[0], torch.full((4,), 9.0))
    assert_same(x, torch.full((4,), 3.0))  # written once a call
    assert "result[0] differs in 4 of 4" in message
    text = subprocess.run([sys.executable, str(reproducer_of(message))], capture_output=True, text=True).stdout
    assert "result[0]: fastjit - eager 3 (in 4 of 4 elements), captured program - eager 3" in text


def test_an_error_that_the_program_does_not_raise_is_caught():
    flag = []

    @fastjit(pure=True, verify=True)
    def f(x):
        if flag:
            raise ValueError("no")
        return x * 2

    f(torch.ones(2))
    flag.append(1)
    with pytest.warns(FastJITWarning, match="eager raised ValueError"), pytest.raises(ValueError, match="no"):
        f(torch.ones(2))
    assert counts(f) == (0, 1, 1)


def test_state_changes_once():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)).train()
    twin = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)).train()
    fastjit(verify=True)(module)
    for seed in range(4):
        x = torch.randn(6, 3)
        torch.manual_seed(seed)
        want = twin(x)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        assert_same(module(x), want)
        assert torch.equal(torch.get_rng_state(), state)
    assert_same(dict(module.state_dict()), dict(twin.state_dict()))
    assert counts(of(module)) == (3, 3, 0)


def test_effects_happen_once():
    log, seen = [], {}

    @fastjit(verify=True)
    def f(x):
        y = x * 2
        log.append(1)
        seen["last"] = y
        return y + 1

    for value in range(4):
        f(torch.full((2,), float(value)))
        assert_same(seen["last"], torch.full((2,), value * 2.0))
    assert log == [1, 1, 1, 1]
    assert counts(f) == (3, 3, 0)


def test_aliases_views_and_containers():
    @fastjit(verify=True)
    def f(x, pair):
        pair[0].mul_(2)
        return {"x": x, "view": x[1:], "pair": pair[0], "new": (pair[1] + 1).t(), "n": 3}

    for _ in range(3):
        x, pair = torch.randn(3, 2), [torch.randn(4), torch.randn(2, 3)]
        out = f(x, pair)
        assert out["x"] is x and out["pair"] is pair[0]
        assert out["view"].data_ptr() == x[1:].data_ptr()
    assert counts(f) == (2, 2, 0)


def test_writes_to_views_of_one_base():
    @fastjit(verify=True)
    def f(x, y):
        x.add_(1)
        y.mul_(2).sub_(x)
        return y, y

    for _ in range(3):
        base = torch.randn(8)
        want = base.clone()
        f.eager(want[:4], want[4:])
        f(base[:4], base[4:])
        assert_same(base, want)
    assert counts(f) == (2, 2, 0)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: torch.sin(torch.exp(x * 3) * 1000.0),
        lambda x: (x - x.mean()).sum(),
        lambda x: torch.softmax(x * 50, -1) @ x.t(),
        lambda x: torch.nn.functional.layer_norm(x, [64]).half(),
        lambda x: (torch.exp(x) > 1.5).sum(),
        lambda x: x.std(-1).argmax(),
        lambda x: (x / 0.0, torch.log(x - 100), torch.exp(x * 1e4)),
        lambda x: x.double().cumsum(-1).bfloat16(),
    ],
)
def test_rounding_is_no_difference(body):
    fast = fastjit(verify=True)(body)
    for _ in range(4):
        fast(torch.randn(32, 64) + 1)
    assert counts(fast) == (3, 3, 0)


def test_a_difference_below_eager_s_own_rounding_is_none_and_above_it_is_one():
    from fastjit import _verify

    want = torch.tensor([1.0, 1000.0, math.nan, math.inf])
    assert (_verify._distance(want.clone(), want) == 0).all()
    assert (_verify._distance(want * (1 + 2e-7), want) <= _verify._allowed(want)).all()
    off = want.clone()
    off[0] += 0.1
    assert (_verify._distance(off, want) > _verify._allowed(want)).tolist() == [True, False, False, False]
    off = torch.tensor([1.0, 1000.0, 0.0, -math.inf])
    assert (_verify._distance(off, want) > _verify._allowed(want)).tolist() == [False, False, True, True]


def test_overlapping_arguments_are_no_mismatch():
    @fastjit(verify=True)
    def f(x, y):
        return x.add_(y)

    base = torch.ones(4)
    f(base[:2], base[2:])
    f(base[:2], base[2:])
    with pytest.raises(RuntimeError, match=r"single memory location|partially overlap"):
        f(base[:2], base[1:3])
    f(base[:2], base[2:])
    assert f.stats().fallbacks == {"a written tensor shares memory with another argument": 1}
    assert counts(f)[2] == 0


def test_unusable_calls_of_a_program_are_eager_as_without_verify():
    @fastjit(verify=True)
    def f(x, i):
        x.add_(1)
        return x.index_select(0, i)

    x, good = torch.zeros(4), torch.tensor([1])
    f(x, good)
    f(x, good)
    with pytest.raises(IndexError):
        f(x, torch.tensor([9]))
    assert_same(x, torch.full((4,), 3.0))
    assert f.stats().fallbacks == {"an operator raised": 1}
    assert counts(f) == (1, 1, 0)


@pytest.mark.parametrize("value", [2, -0.1, "all", None, math.nan])
def test_values_that_are_no_fraction(value):
    with pytest.raises(TypeError, match="option 'verify' must be bool or a number from 0 to 1"):
        fastjit(verify=value)


def test_large_tensors_are_not_kept(monkeypatch, tmp_path):
    from fastjit import _reproducer

    monkeypatch.setattr(_reproducer, "MAX_BYTES", 16)
    monkeypatch.setattr(_reproducer, "MAX_FILES", 2)
    monkeypatch.setenv("FASTJIT_CACHE_DIR", str(tmp_path))
    facts = {
        "name": 'a"""\\b',
        "signature": "f32[9]",
        "ir": "",
        "steps": {"calls": [], "numbers": [], "device": "cpu"},
        "inputs": ["x"],
        "scalars": {"s": -math.inf},
    }
    x = torch.ones(9)
    (tmp_path / "reproducers").mkdir()
    (tmp_path / "reproducers" / "mine.py").touch()
    state = torch.get_rng_state()
    files = [_reproducer.write(facts, "why", [x], state, [("x", x, x)]) for _ in range(4)]
    assert len(list((tmp_path / "reproducers").iterdir())) == 3
    done = subprocess.run([sys.executable, files[-1]], capture_output=True, text=True)
    assert done.stdout == "found: why\nthe tensors were too large to keep\n", done.stderr
    monkeypatch.setenv("FASTJIT_CACHE_DIR", f"{__file__}/not-a-folder")
    assert _reproducer.write(facts, "why", [x], state, []).startswith("none (")


def test_a_reproducer_makes_the_cache_folder_for_its_user_alone(monkeypatch, tmp_path):
    from fastjit import _cache, _reproducer

    steps: dict[str, object] = {"calls": [], "numbers": [], "device": "cpu"}
    facts = {"name": "f", "signature": "", "ir": "", "steps": steps, "inputs": [], "scalars": {}}
    folder = tmp_path / "a" / "b"
    monkeypatch.setenv("FASTJIT_CACHE_DIR", str(folder))
    before = os.umask(0o002)
    try:
        file = _reproducer.write(facts, "why", [], torch.get_rng_state(), [])
    finally:
        os.umask(before)
    assert Path(file).exists() and _cache.folder_problem(str(folder)) == ""
    folder.chmod(0o777)
    said = _reproducer.write(facts, "why", [], torch.get_rng_state(), [])
    assert said == "none (the cache folder is not used: others may write to it (chmod go-w))"


@pytest.mark.parametrize(
    ("x", "was", "now", "line"),
    [
        (torch.arange(3), 2**60, 2**60 + 1, "result: fastjit - eager 1 (in 3 of 3 elements)"),
        (torch.ones(3, dtype=torch.complex64), 1 + 0j, 1 + 5j, "result: fastjit - eager 5 (in 3 of 3 elements)"),
    ],
)
def test_large_integers_and_imaginary_parts_are_compared(x, was, now, line):
    number = was

    @fastjit(pure=True, verify=True)
    def f(x):
        return x + number

    for _ in range(3):
        f(x)
    assert counts(f) == (2, 2, 0)
    number = now
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Casting complex")
        out, message = mismatch(f, x)
    assert_same(out, x + now)
    text = subprocess.run([sys.executable, str(reproducer_of(message))], capture_output=True, text=True).stdout
    assert text.splitlines()[1].startswith(line)


def test_rounding_of_complex_numbers_is_no_difference():
    fast = fastjit(verify=True)(lambda x: torch.view_as_complex(torch.view_as_real(x).exp()) * (1 + 2j))
    for _ in range(3):
        fast(torch.randn(64, dtype=torch.complex64))
    assert counts(fast) == (2, 2, 0)


def test_reproducers_of_a_form_and_of_random_numbers():
    dtype, factor = torch.float32, 1.0

    @fastjit(pure=True, verify=True)
    def form(x):
        return x + 1, (x * 2).to(dtype)

    @fastjit(pure=True, verify=True)
    def draws(x):
        return torch.rand(3) + x * factor

    x, said = torch.ones(3), []
    for f in (form, draws):
        f(x), f(x)
    dtype, factor = torch.float64, 2.0
    for f in (form, draws):
        _, message = mismatch(f, x)
        done = subprocess.run([sys.executable, str(reproducer_of(message))], capture_output=True, text=True)
        said.append(done.stdout.splitlines())
    assert said[0][:2] == [
        "found: result[1] has dtype torch.float32, not torch.float64",
        "result[0]: fastjit - eager 0 (in 0 of 3 elements)",
    ]
    assert said[0][2] == "result[1]: fastjit - eager torch.float32 [3] against torch.float64 [3]"
    assert said[1][1].endswith("captured program - eager 1 (in 3 of 3 elements)")


@pytest.mark.parametrize("inside", [False, True])
def test_inference_mode_is_no_difference(inside):
    @fastjit(verify=True)
    def f(y):
        y.mul_(2)
        return y + 1

    with torch.inference_mode(inside):
        own = torch.ones(4, 3)
    with torch.inference_mode():
        for _ in range(3):
            f(own)
    assert counts(f) == (2, 2, 0)


@pytest.mark.parametrize("read", [lambda y: float(y.sqrt().sum()), lambda y: (y.sqrt()[0] * 2).item()])
def test_a_number_that_is_nan_is_no_difference(read):
    f = fastjit(verify=True, on_unsupported="error")(lambda y: (y + 1, read(y)))
    for _ in range(3):
        f(torch.tensor([-1.0, -2.0, 3.0]))
    assert counts(f) == (2, 2, 0)
