"""Variants come and go: how many there may be, which one goes, and when calls are left eager for a while."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
import warnings

import pytest
import torch

from fastjit import FastJITWarning, fastjit
from helpers import assert_same

UNUSED = "its last recordings served no second call"


def affine(x):
    str(len(x))  # what Python looks at is a variant for each size
    return x * 2 + 1


def check(fast, fn, *args):
    """The call gives what eager gives; whether it was a hit."""
    hits = fast.stats().hits
    assert_same(fast(*args), fn(*args), exact=True)
    return fast.stats().hits > hits


def test_two_hundred_sizes_in_room_for_eight():
    """Each size comes several times and then never again: the last ones are kept."""
    fast = fastjit(affine, max_variants=8, on_unsupported="eager")
    for n in range(1, 201):
        kinds = [check(fast, affine, torch.randn(n)) for _ in range(4)]
        assert kinds[2:] == [True, True], n  # at the latest the second call is recorded
        assert fast.stats().variants == min(n, 8)
    assert [row.signature for row in fast.variants()] == [f"f32[{n}]" for n in range(200, 192, -1)]
    hits = fast.stats().hits
    for n in range(193, 201):
        assert check(fast, affine, torch.randn(n))
    assert fast.stats().hits == hits + 8


def test_a_new_kind_takes_the_place_of_the_least_recently_used():
    fast = fastjit(affine, max_variants=2)
    calls = [torch.randn(4), torch.randn(4, 4), torch.randn(2, 2, 2)]
    for x in calls:  # none has served yet: the first one goes
        assert not check(fast, affine, x)
    assert [row.signature for row in fast.variants()] == ["f32[2,2,2]", "f32[4,4]"]
    assert fast.stats().fallbacks == {}
    assert check(fast, affine, calls[1]) and check(fast, affine, calls[2]) and not check(fast, affine, calls[0])


def test_what_was_used_since_stays():
    fast = fastjit(affine, max_variants=3, on_unsupported="eager")
    hot = torch.randn(7)
    check(fast, affine, hot)
    for n in range(10, 40):
        for _ in range(3):
            check(fast, affine, torch.randn(n))
            check(fast, affine, hot)
    assert fast.variants()[0].signature == "f32[7]" and fast.variants()[0].hits == 90
    assert fast.stats().variants == 3 and fast.stats().hits > 90 + 25


def test_a_round_over_more_sizes_than_there_is_room_for_keeps_what_it_has():
    fast = fastjit(affine, max_variants=8, on_unsupported="eager")
    for n in range(8):
        for _ in range(2):
            check(fast, affine, torch.randn(n + 1))
    for _ in range(5):
        hits = sum(check(fast, affine, torch.randn(n + 1)) for n in range(12))
        assert hits == 8
    assert fast.stats().misses == 8 + 5 * 4
    assert fast.stats().fallbacks == {"variant limit (8) reached: x took 9 layouts": 20}


def test_what_served_long_ago_goes_for_any_new_call():
    """Nothing but facts changes, so that no call can be seen to come again."""

    class Settings:
        rate = 0.0

    def f(x):
        return x + 1 if Settings.rate > 0.5 else x * Settings.rate

    fast, x = fastjit(f, max_variants=2, on_unsupported="eager"), torch.ones(3)
    for step in range(6):
        Settings.rate = step / 16
        hits = [check(fast, f, x) for _ in range(50)]
        assert hits[-5:] == [True] * 5 and hits.count(True) > 10, step
    assert fast.stats().variants == 2


def test_the_limit_is_said_once_and_names_what_varies():
    fast = fastjit(affine, max_variants=2)
    for n in (1, 1, 2, 2):
        fast(torch.randn(n))
    text = (
        r"variant limit \(2\) reached: x took 3 layouts; raise max_variants, or call it with tensors of fewer sizes, "
        r"strides and dtypes$"
    )
    assert fast.explain(torch.randn(3)) == "eager: variant limit (2) reached: x took 3 layouts"
    with pytest.warns(FastJITWarning, match=text):
        fast(torch.randn(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(torch.randn(4))
        assert fast.explain(torch.randn(3)).startswith("a new variant: argument 0 was f32[2], is f32[3]: x.size(0) is")
        fast(torch.randn(3))  # it comes again
    assert check(fast, affine, torch.randn(3)) and check(fast, affine, torch.randn(2))
    assert fast.stats().fallbacks == {"variant limit (2) reached: x took 3 layouts": 2}


def test_an_error_is_for_what_cannot_be_compiled_and_no_stretch_raises():
    fast = fastjit(affine, on_unsupported="error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(1, 60):
            check(fast, affine, torch.randn(n))


BYTES = """
import torch
from fastjit import fastjit

@fastjit(on_unsupported="eager")
def f(x):
    str(len(x))
    return x * 2 + 1

rows = []
for n in range(1, 31):
    x = torch.randn(n, 4)
    for _ in range(3):
        assert torch.equal(f(x), x * 2 + 1)
    rows.append((f.stats().variants, sum(row.bytes for row in f.variants())))
print(max(bytes for _, bytes in rows), rows[-1][0], f.variants()[0].signature, f.stats().hits)
"""


@pytest.mark.parametrize("limit", [40_000, 1])
def test_a_limit_of_bytes(tmp_path, limit):
    env = {**os.environ, "FASTJIT_CACHE_DIR": str(tmp_path), "FASTJIT_VARIANT_BYTES": str(limit)}
    done = subprocess.run([sys.executable, "-c", BYTES], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    most, variants, newest, hits = done.stdout.split()
    assert newest == "f32[30,4]" and int(hits) >= 28  # the newest stays, whatever it weighs
    if limit == 1:
        assert int(variants) == 1
    else:
        assert int(most) <= limit and 1 < int(variants) < 30


def test_what_a_variant_weighs():
    """It grows with the program, counts constants that are its own, and no tensors of the user's."""

    def weight(fn, **options):
        fast = fastjit(fn, **options)
        fast(torch.ones(8))
        (row,) = fast.variants()
        return row.bytes

    def long(x):
        for _ in range(100):
            x = x.sin() * 2
        return x

    small, large = weight(affine), weight(long)
    assert 500 < small < 100_000 and large > small + 100 * 64
    mine = torch.randn(8, 50_000)
    assert weight(lambda x: x @ mine, pure=True) < 100_000
    assert weight(lambda x: x + torch.tensor([0.5] * 8)) >= weight(lambda x: x + 0.5)


def test_variants_go_while_other_threads_run_them():
    def f(x):
        for _ in range(4):
            x = torch.tanh(x @ x.t()) * 0.5
        return x

    fast, wrong = fastjit(f, max_variants=2, on_unsupported="eager"), []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for round in range(60):
            n = 40 + (seed * 7 + round // 4) % 9
            x = torch.rand(n, n, generator=generator)
            if not torch.equal(fast(x), f(x)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and fast.stats().variants <= 2 and fast.stats().hits > 0


def test_a_variant_goes_while_it_runs():
    """A call of the function within its own hit: the variant that runs is dropped, and not found again."""
    fast = None

    @torch.library.custom_op("fastjit_room::inner", mutates_args=())
    def inner(x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 1 and depth:
            depth.pop()
            for n in (2, 3, 4, 2, 3, 4):
                fast(torch.ones(n, n))
        return x * 2

    def f(x):
        return inner(x) + 1

    depth = []
    fast = fastjit(f, pure=True, max_variants=2, on_unsupported="eager")
    x = torch.ones(3)
    assert_same(fast(x), x * 2 + 1)
    depth.append(1)
    assert_same(fast(x), x * 2 + 1)
    assert not depth and fast.stats().variants <= 2
    for _ in range(4):
        assert_same(fast(x), x * 2 + 1)
    assert len(fast.variants()) <= 2
    fast.clear()
    assert fast.variants() == [] and fast.stats().variants == 0


def test_pending_variants_go_too():
    fast = fastjit(affine, max_variants=2, on_miss="background", on_unsupported="eager")
    for n in range(1, 30):
        for _ in range(2):
            check(fast, affine, torch.randn(n))
    assert len(fast.variants()) <= 2
    fast.warmup(torch.randn(7))
    assert check(fast, affine, torch.randn(7))


def test_an_unsound_variant_stays_while_calls_use_it():
    def f(x, n):
        if n == 1:
            open(os.devnull).close()
        return x * n

    fast, x = fastjit(f, max_variants=3, on_unsupported="eager", dynamic=False), torch.ones(3)
    assert not check(fast, f, x, 1)
    for n in range(2, 30):
        check(fast, f, torch.ones(n), n)
        check(fast, f, x, 1)
    (reason,) = [row.reason for row in fast.variants() if row.reason]
    assert "test_variant_cache.py" in reason and fast.stats().fallbacks[reason] > 10
    assert len(fast.variants()) == 3


# Stretches


def kinds(fast, fn, calls):
    """Of each call whether it was recorded, run eagerly or a hit; as explain() said."""
    out = ""
    for args in calls:
        said, before = fast.explain(*args), fast.stats()
        assert_same(fast(*args), fn(*args), exact=True)
        after = fast.stats()
        out += "h" if after.hits > before.hits else "r" if after.record_ms > before.record_ms else "e"
        assert said.startswith({"h": "a hit", "r": "a new variant", "e": "eager: "}[out[-1]]), (said, out)
    return out


def sizes(first, count):
    return [(torch.randn(n),) for n in range(first, first + count)]


def test_ever_new_sizes_are_eager_in_growing_stretches():
    fast = fastjit(affine, on_unsupported="eager")
    ran = kinds(fast, affine, sizes(1, 140))
    assert ran == "r" * 8 + "e" * 16 + "r" + "e" * 32 + "r" + "e" * 64 + "r" + "e" * 17
    stats = fast.stats()
    assert stats.fallbacks == {f"{UNUSED}: x took 9 layouts": 129} and stats.variants == 11
    # A size that comes again is recorded at once, within the stretch, and serves.
    assert kinds(fast, affine, sizes(135, 2) * 2) == "rrhh"
    # So new ones are recorded again, as at the beginning.
    assert kinds(fast, affine, sizes(200, 10)) == "r" * 8 + "ee"


def test_a_stretch_is_said_once_if_it_was_not_the_only_one():
    fast = fastjit(affine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for (x,) in sizes(1, 25):
            fast(x)
    text = (
        "runs new calls eagerly for a while because its last recordings served no second call: x took 9 layouts; call "
        "it with tensors of fewer sizes, strides and dtypes$"
    )
    with pytest.warns(FastJITWarning, match=text):
        fast(torch.randn(26))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for (x,) in sizes(27, 100):
            fast(x)


def test_warmup_ends_a_stretch():
    """Who asks for a call by name means it to come again."""
    fast = fastjit(affine, on_unsupported="eager")
    for (x,) in sizes(1, 30):
        fast(x)
    fast.warmup(torch.randn(77))
    assert check(fast, affine, torch.randn(77))
    for n in range(100, 120):
        fast.warmup(torch.randn(n))
        assert check(fast, affine, torch.randn(n))


def test_rounds_over_sizes_that_there_is_room_for_become_hits():
    fast = fastjit(affine, on_unsupported="eager")
    calls = sizes(1, 40)
    first, second, third, fourth = (kinds(fast, affine, calls) for _ in range(4))
    assert first == "r" * 8 + "e" * 16 + "r" + "e" * 15
    assert second.count("h") == 9 and second.count("e") == 0
    assert third == fourth == "h" * 40


def by_number(x, n):
    return x.roll(n)


def test_ever_new_numbers_are_eager_in_growing_stretches():
    fast, x = fastjit(by_number, on_unsupported="eager"), torch.arange(5.0)
    ran = kinds(fast, by_number, [(x, n) for n in range(60)])
    assert ran == "r" * 8 + "e" * 16 + "r" + "e" * 32 + "ree"
    assert fast.stats().fallbacks == {f"{UNUSED}: n took 9 values": 50}
    assert kinds(fast, by_number, [(x, 58), (x, 58), (x, 58), (x, 3)]) == "rhhh"


def test_a_fact_that_keeps_changing():
    class Settings:
        rate = 0.0

    def f(x):
        return x * Settings.rate

    fast, x, ran = fastjit(f, on_unsupported="eager"), torch.ones(3), ""
    for step in range(60):
        Settings.rate = step / 64 + 1 / 128
        ran += kinds(fast, f, [(x,)])
    line = f.__code__.co_firstlineno + 1
    reason = f"{UNUSED}: Settings.rate at test_variant_cache.py:{line} keeps changing"
    # The same arguments each time say nothing about what comes next.
    assert ran == "r" * 8 + "e" * 16 + "r" + "e" * 32 + "ree" and fast.stats().fallbacks == {reason: 50}
    assert kinds(fast, f, [(x,)] * 80).endswith("hhhhh")  # it stays as it is


def crop(x):
    n = int(x[0].item() * 1000)
    return torch.tanh(x * 2)[: n % 7 + 1] * n


def test_ever_new_values_are_not_even_looked_at():
    fast = fastjit(crop, on_unsupported="eager")
    calls = [(torch.full((9,), 0.1 + n / 64),) for n in range(70)]
    ran = kinds(fast, crop, calls)
    assert ran == "r" * 8 + "e" * 16 + "r" + "e" * 32 + "r" + "e" * 12
    line = crop.__code__.co_firstlineno + 1
    reason = f"{UNUSED}: item at test_variant_cache.py:{line} took 9 values"
    assert fast.stats().fallbacks == {reason: 60}
    # Within the stretch a known value is not recognised; after it, what comes is looked at again.
    ran = kinds(fast, crop, [calls[3]] * 80)
    assert ran.startswith("e" * 50) and ran.endswith("h" * 20)
    assert kinds(fast, crop, [calls[5], calls[0]]) == "hh"


def test_the_way_out_of_ever_new_values():
    fast = fastjit(crop)
    with pytest.warns(FastJITWarning, match=r"took 9 values; keep it a tensor, as torch\.where does, or compare it"):
        for n in range(40):
            fast(torch.full((9,), 0.1 + n / 64))


def test_values_of_which_some_come_again_go_on_being_looked_at():
    fast = fastjit(crop, on_unsupported="eager")
    hits = 0
    for n in range(200):
        value = 0.1 + n / 256 if n % 4 else 5.0
        hits += check(fast, crop, torch.full((9,), value))
    assert hits >= 45
    assert fast.stats().variants < 30


def test_a_value_that_comes_again_within_a_stretch_is_recorded():
    fast = fastjit(crop, on_unsupported="eager")
    known = torch.full((9,), 5.0)
    for n in range(30):  # hits between them: programs are begun
        check(fast, crop, known)
        check(fast, crop, torch.full((9,), 0.1 + n / 64))
    before = fast.stats()
    assert before.variants < 20
    for _ in range(3):
        check(fast, crop, torch.full((9,), 0.1 + 29 / 64))
        check(fast, crop, known)
    assert fast.stats().hits - before.hits >= 4


def test_objects_that_are_new_each_time():
    class State:
        __slots__ = ("__weakref__", "x")

        def __init__(self, x):
            self.x = x

    def f(x, state):
        return state.x * 2 + x

    fast, alive, x = fastjit(f), [], torch.ones(4)
    with pytest.warns(FastJITWarning, match=r"state took 9 objects; pass the tensors in it as arguments of their own"):
        for n in range(40):
            alive.append(State(torch.arange(4.0) + n))
            assert_same(fast(x, alive[-1]), alive[-1].x * 2 + x)
    assert fast.stats().fallbacks == {f"{UNUSED}: state took 9 objects": 31}


def test_what_changed_is_named_and_not_what_is_asked_beside_it():
    """A count that is compared is a guard on a number, and holds at each call."""
    settings = types.SimpleNamespace(rates=(0.5, 0.25), count=2)

    def f(x):
        scale = 2.0 if settings.count == 1 else len(str(settings.rates[0]))
        settings.count += 1
        return x * scale

    fast, x = fastjit(f, on_unsupported="eager"), torch.ones(3)
    for step in range(12):
        settings.rates = (0.5 + step, 0.25)
        kinds(fast, f, [(x,)])
    line = f.__code__.co_firstlineno + 1
    assert fast.stats().fallbacks == {f"{UNUSED}: settings.rates at test_variant_cache.py:{line} keeps changing": 4}
