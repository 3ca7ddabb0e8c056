"""Values that leave tensor land: guards inside the program, and the tree of variants over them."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same, clone_args, outcome


def by_sign(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def agree(fast, fn, *args):
    """Calls both on copies of the arguments; results and arguments afterwards are equal bit for bit."""
    mine, theirs = clone_args(args), clone_args(args)
    assert_same(fast(*mine), fn(*theirs), exact=True)
    assert_same(list(mine), list(theirs), exact=True)


def settled(fast, variants):
    """Every call since the recordings was a hit."""
    stats = fast.stats()
    assert (stats.fallbacks, stats.variants, stats.misses) == ({}, variants, variants), stats
    assert stats.hits == stats.calls - variants


def test_a_guard_stands_in_every_view_of_the_program():
    fast, x = fastjit(by_sign), torch.ones(4)
    fast(x)
    line = by_sign.__code__.co_firstlineno + 1
    at = f"bool at test_values.py:{line}"
    assert f'"{at}" kind=guard call=0 outputs=0' in fast.inspect("ir")
    assert "\nguard 0 (s2) sizes []\n" in fast.inspect("plan")
    assert f"value {at}: True\n" in fast.inspect("guards")
    assert at in fast.inspect("source")
    assert fast.explain(x) == "a hit: f32[4]"
    assert fast.explain(-x) == f"a new variant: value of {at} was True, is False"
    fast(-x)
    assert fast.explain(-x) == "a hit: f32[4]" and fast.explain(x) == "a hit: f32[4]"
    settled(fast, 2)


def test_the_source_runs():
    fast, x = fastjit(by_sign), torch.ones(4)
    fast(x)
    scope = {}
    exec(fast.inspect("source"), scope)
    assert_same(scope["program"]({"x": x}), [x * 2], exact=True)


def read_all(x, i):
    b = x.max().item()
    n = i.tolist()
    return x + b * 2 + n[0] if round(b, 3) > 0 else x + n[1]


def test_explain_names_variables_and_values():
    """A number that decides is a value of the program; arithmetic alone would be computed by it."""
    fast, i = fastjit(read_all), torch.tensor([1, 2])
    fast(torch.ones(2), i)
    line = read_all.__code__.co_firstlineno + 1
    x = torch.tensor([1.0, 2.5])
    assert fast.explain(x, i) == f"a new variant: value of b at test_values.py:{line} was 1.0, is 2.5"
    why = fast.explain(torch.ones(2), i + 1)
    assert why == f"a new variant: value of n at test_values.py:{line + 1} was [1, 2], is [2, 3]"
    assert fast.explain(torch.full((2,), float("nan")), i).endswith("was 1.0, is nan")


def test_guards_see_what_eager_sees_to_the_last_bit():
    torch.manual_seed(0)
    fast = fastjit(by_sign)
    seen = set()
    for _ in range(300):  # sums that cancel: their sign depends on the order of the additions
        x = torch.randn(33)
        x[32] = -x[:32].sum()
        seen.add(bool(x.sum() > 0))
        agree(fast, by_sign, x)
    assert len(seen) == 2
    settled(fast, 2)


def test_numbers_of_inexact_operators_hit_again():
    def f(x):
        return x * (x.exp().mean().item() * 2) + torch.softmax(x, 0).std().item()

    fast = fastjit(f)
    for seed in range(5):
        x = torch.randn(100, generator=torch.Generator().manual_seed(seed))
        for _ in range(2):
            agree(fast, f, x)
    assert "value " not in fast.inspect("guards") and "number" in fast.inspect("plan")
    settled(fast, 1)


def test_values_of_inexact_operators_hit_again():
    """Guarded numbers have eager's own bits: the same input is the same value."""

    def f(x):
        scale, spread = x.exp().mean().item(), torch.softmax(x, 0).std().item()
        return x * round(scale, 12) + round(spread, 12)

    fast = fastjit(f)
    for seed in range(5):
        x = torch.randn(100, generator=torch.Generator().manual_seed(seed))
        for _ in range(2):
            agree(fast, f, x)
    assert fast.inspect("guards").count("value ") == 2
    settled(fast, 5)


def largest(scores):
    return scores.argmax(1)


def drawn(scores):
    return torch.multinomial(torch.softmax(scores, 1), 1)[:, 0]


def decode(pick, out, cell, table, h, token):
    """Until there is nothing but the token 0."""
    found = []
    for _ in range(6):
        h = torch.tanh(torch.sigmoid(table[token] @ cell[0]) + h @ cell[1])
        token = pick(h @ out)
        found.append(token)
        if bool((token == 0).all()):
            break
    return torch.stack(found), h


@pytest.mark.parametrize(("pick", "calls"), [(largest, []), (drawn, ["aten::multinomial"])])
def test_which_element_is_picked_asks_for_no_bits(pick, calls):
    """What it is picked from is computed like anything else: by kernels."""
    torch.manual_seed(0)
    weights = torch.randn(16, 6), torch.randn(2, 16, 16), torch.randn(6, 16)
    starts = [(torch.randn(1, 16), torch.tensor([i % 6])) for i in range(12)]
    fast, ways = fastjit(decode), set()
    for i, start in enumerate([*starts, *starts]):
        torch.manual_seed(i % 12)
        want = decode(pick, *weights, *start)
        state = torch.get_rng_state()
        torch.manual_seed(i % 12)
        assert_same(fast(pick, *weights, *start), want)
        assert torch.equal(torch.get_rng_state(), state)
        ways.add((len(want[0]), bool((want[0][-1] == 0).all())))
    assert len(ways) > 3
    settled(fast, len(ways))
    run = re.findall('"(aten::.*?)" kind=op', fast.inspect("ir"))
    assert set(run) == {"aten::index.Tensor", *calls}  # which may raise
    assert "\nproduct " not in fast.inspect("plan")


def largest_decides(x, what):
    values, index = (x.sin().exp() / 3).max(1)
    read = index if what == "index" else values
    return x + 1 if read.sum() > 2 else x - values.mean()


@pytest.mark.parametrize(("what", "calls"), [("index", 0), ("values", 3)])
def test_the_largest_itself_has_eagers_bits(what, calls):
    fast = fastjit(largest_decides)
    for seed in range(6):
        x = torch.randn(4, 9, generator=torch.Generator().manual_seed(seed)) - seed / 4
        for _ in range(2):
            assert_same(fast(x, what), largest_decides(x, what))
    settled(fast, fast.stats().variants)
    assert len(re.findall("^extern ", fast.inspect("plan"), re.M)) == calls


@pytest.mark.parametrize("numerics", ["accurate", "fast"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_guards_are_eagers_whatever_the_numerics(numerics, dtype):
    """A guard that had other bits than what was recorded would never hold."""

    def f(x):
        return x + round((x * 0.3 + 0.7 - x / 3).max().item(), 12)

    fast = fastjit(numerics=numerics)(f)
    for seed in range(4):
        x = torch.randn(50, generator=torch.Generator().manual_seed(seed)).to(dtype)
        for _ in range(2):
            fast(x)
    settled(fast, 4)


@pytest.mark.parametrize("numerics", ["eager", "accurate", "fast"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_that_the_program_computes(numerics, dtype):
    """Arithmetic of Python on numbers read out of tensors is no guard; its results are eager's."""

    def f(x):
        return x + 2 * (x * 0.3 + 0.7 - x / 3).max().item()

    fast = fastjit(numerics=numerics)(f)
    for seed in range(4):
        x = torch.randn(50, generator=torch.Generator().manual_seed(seed)).to(dtype)
        for _ in range(2):
            assert_same(fast(x), f(x), exact=numerics == "eager")
    settled(fast, 1)
    assert "value " not in fast.inspect("guards")


def arithmetic(x):
    a, b = x.max().item(), x.min().item()
    c = (a - b) / (a * a + 1.0)
    return x * c, x + -a, x * (a**0.5 if x.max() > 0 else 1.0), x - math.sqrt(a * a + b * b), a + b


def test_each_arithmetic_of_python():
    """The branch on a tensor decides: one variant for each side of it. A number that is returned is computed too."""
    fast = fastjit(arithmetic)
    torch.manual_seed(0)
    for n in range(12):
        agree(fast, arithmetic, torch.randn(6) + (3 if n % 3 else -9))
    settled(fast, 2)


@pytest.mark.parametrize(
    ("decide", "variants"),
    [(lambda a: a % 3, 5), (abs, 5), (lambda a: max(a, 0.5), 2), (lambda a: 0.5 if a else 1.5, 2)],
    ids=["remainder", "abs", "largest", "truth"],
)
def test_what_is_no_arithmetic_of_floats_is_a_guard(decide, variants):
    """Which of two numbers is the largest, and whether one is 0, are questions: a variant for each answer."""

    def f(x):
        return x * decide(x.max().item())

    fast = fastjit(f)
    for n in range(5):
        for _ in range(2):
            agree(fast, f, torch.arange(4.0) - n)
    assert fast.inspect("guards").count("value ") == 1
    settled(fast, variants)


def compared(x, limit):
    a, b = x.max().item(), x.min().item()
    out = x * 2 if a > 0.5 else x - 1
    if not limit <= a - b or b * b == a:
        out = out + a
    return (out + 3 if a != a else out - b if -b >= a else out), a < b


def test_a_comparison_is_a_guard_on_its_outcome():
    """One variant for each way that the comparisons go, whatever the numbers are."""
    fast = fastjit(compared)
    torch.manual_seed(0)
    for n in range(40):
        agree(fast, compared, torch.randn(6) * 0.5 + n % 3 * 0.4, 1.0)
    paths = fast.stats().variants
    assert paths < 9 and "value " in fast.inspect("guards") and fast.stats().fallbacks == {}
    settled(fast, paths)
    for special in (float("nan"), float("inf"), -0.0):
        for _ in range(2):
            agree(fast, compared, torch.full((6,), special), 1.0)
    assert fast.stats().hits == fast.stats().calls - fast.stats().variants
    agree(fast, compared, torch.randn(6), 2.5)  # a number that the caller gives is compared by its value here


def test_what_a_comparison_was_is_said():
    def f(x):
        loss = x.mean().item()
        return x if loss * 2 < 0.5 else -x

    fast = fastjit(f)
    fast(torch.zeros(3))
    line = f.__code__.co_firstlineno + 2
    assert fast.explain(torch.ones(3)) == (
        f"a new variant: value of ((loss * 2) < 0.5) at test_values.py:{line} was True, is False"
    )
    assert f"value ((loss * 2) < 0.5) at test_values.py:{line}: True\n" in fast.inspect("guards")
    assert fast.explain(torch.full((3,), 0.2)) == "a hit: f32[3]"


@pytest.mark.parametrize("ask", [math.isnan, math.isinf, math.isfinite])
def test_whether_a_number_is_finite_is_a_guard(ask):
    def f(x):
        return x.nan_to_num() + 1 if ask(x.sum().item()) else x * 2

    fast = fastjit(f)
    for _ in range(3):
        for number in (1.0, math.nan, math.inf, -math.inf, -3.5, 3e38):
            agree(fast, f, torch.full((2,), number))
    settled(fast, 2)


@pytest.mark.parametrize("numerics", ["accurate", "fast"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_comparisons_are_eagers_whatever_the_numerics(numerics, dtype):
    def f(x):
        middle = (x * 0.3 + 0.7 - x / 3).mean().item()
        return x + 1 if middle < 0.7 else x - 1

    fast = fastjit(numerics=numerics)(f)
    for seed in range(12):
        x = torch.randn(50, generator=torch.Generator().manual_seed(seed)).to(dtype)
        assert torch.equal(fast(x), f(x))
    settled(fast, 2)


def test_a_loop_until_a_number_is_small():
    def halve(x):
        rounds = 0
        while x.norm().item() > 1e-3:
            x, rounds = x * 0.25, rounds + 1
        return x, rounds

    fast = fastjit(halve)
    for n in range(24):
        agree(fast, halve, torch.full((4,), 4.0 ** (n % 4) / (1 + n)))
    assert fast.stats().variants <= 8 and fast.stats().fallbacks == {}
    assert fast.stats().hits == fast.stats().calls - fast.stats().variants


def test_a_number_that_is_compared_and_looked_at():
    """The guard on its value says how the comparison goes."""

    def f(x):
        a = x.max().item()
        return x * 2 if a > 1 and str(a) else x

    fast = fastjit(f)
    for value in (0.5, 0.75, 2.0, 0.5, 3.0, 2.0):
        agree(fast, f, torch.full((2,), value))
    assert fast.inspect("guards").count("value ") == 1
    assert fast.stats().fallbacks == {} and fast.stats().hits >= 2


def test_arithmetic_that_raises_raises_as_in_eager():
    def f(x, y):
        return x * (1.0 / y.sum().item())

    fast, x = fastjit(f), torch.ones(3)
    for y in (torch.ones(2), torch.full((2,), 4.0)):
        agree(fast, f, x, y)
    with pytest.raises(ZeroDivisionError, match="float division by zero"):
        fast(x, torch.zeros(2))
    agree(fast, f, x, torch.ones(2))
    assert fast.stats().hits >= 2


def test_a_power_that_becomes_complex_or_raises():
    def f(x, y):
        return x * y.sum().item() ** 0.5

    fast, x = fastjit(f), torch.ones(3)
    for y in (4.0, 9.0, 2.0):
        agree(fast, f, x, torch.tensor([y]))
    assert_same(fast(x, torch.tensor([-4.0])), f(x, torch.tensor([-4.0])))

    def g(x, y):
        return x * math.sqrt(y.sum().item())

    fast = fastjit(g)
    for y in (4.0, 9.0, 2.0):
        agree(fast, g, x, torch.tensor([y]))
    with pytest.raises(ValueError, match="math domain error"):
        fast(x, torch.tensor([-4.0]))
    for y in (float("inf"), float("nan"), 1e300):
        agree(fast, g, x, torch.tensor([y]))


def test_large_tensors_in_parallel():
    def f(x):
        top = x.max()
        return (x / top, top.item()) if top > 0.5 else (x, 0.0)

    fast, x = fastjit(f), torch.rand(300_000)
    x[7] = 1.0
    for _ in range(2):
        agree(fast, f, x)
        agree(fast, f, x * 0.25)
    settled(fast, 2)


def test_a_stop_undoes_what_torch_wrote():
    def f(x, y):
        x[1:].add_(y.sum())  # a call of torch's on the argument's memory
        if x.max() > 5:
            return x * 2
        return x + 0.5

    fast, x = fastjit(f), torch.arange(4.0)
    for y in (torch.zeros(2), torch.ones(2) * 3):
        agree(fast, f, x, y)
    for _ in range(3):
        for y in (torch.zeros(2), torch.ones(2) * 3, torch.ones(2) * 4):
            agree(fast, f, x, y)
    settled(fast, 2)


def test_the_generator_is_as_in_eager_after_a_stop():
    def f(x):
        y = torch.nn.functional.dropout(x, 0.5) + torch.rand(3)
        return (y * 2 if x.max() > 1 else y), torch.rand(2)

    fast = fastjit(f)
    for x in [torch.ones(3), torch.ones(3) * 2] * 3:
        torch.manual_seed(5)
        expected, after = f(x), torch.rand(1)
        torch.manual_seed(5)
        assert_same(fast(x), expected, exact=True)
        assert torch.equal(torch.rand(1), after)
    settled(fast, 2)


def test_custom_operators_before_a_value_stay_eager():
    calls = []

    @torch.library.custom_op("fastjit_values::count", mutates_args=())
    def count(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + len(calls)

    def f(x):
        return x * 2 if count(x).sum() > 100 else x

    fast, x = fastjit(pure=True, on_unsupported="eager")(f), torch.ones(2)
    for n in range(1, 4):
        assert_same(fast(x), x)
        assert len(calls) == n
    why = min(fast.stats().fallbacks, key=len)
    assert why.startswith("fastjit_values::count at ") and "runs before the value of bool at" in why
    assert fast.stats().hits == 0


def test_a_function_may_return_what_it_read_and_nothing_else():
    def f(x):
        if x.sum() > 0:
            return "positive"
        return None

    fast, x = fastjit(f), torch.ones(3)
    assert [fast(v) for v in (x, -x, x, -x, x * 3)] == ["positive", None, "positive", None, "positive"]
    settled(fast, 2)


def test_a_loop_of_many_steps_is_one_program():
    def f(x, n):
        steps = 0
        while n > 0:
            x = x * 1.01 + 0.5
            n = n - 1
            steps += 1
        return x, steps

    fast, x = fastjit(f), torch.randn(8)
    for count in (20, 3, 20, 0, 3, 0, 20):
        agree(fast, f, x, torch.tensor(count))
    settled(fast, 3)


def test_equal_numbers_are_read_once():
    def f(x):
        a, b = x.max().item(), x.max().item()
        return x * (a + b)

    fast, x = fastjit(f), torch.rand(4)
    agree(fast, f, x)
    assert "value " not in fast.inspect("guards")
    agree(fast, f, x)
    agree(fast, f, x + 1)
    settled(fast, 1)

    def g(x):
        a, b = x.max().item(), x.max().item()
        return x * round(a + b, 3) if a > 0 else x

    fast = fastjit(g)
    agree(fast, g, x)
    assert fast.inspect("guards").count("value ") == 1
    agree(fast, g, x)
    settled(fast, 1)


def test_a_number_that_only_feeds_arithmetic_is_no_guard():
    def f(x, y):
        total = x.exp().sum().item()
        y.mul_(total)
        return x / total + y.max().item()

    fast = fastjit(f)
    for seed in range(6):
        x, y = torch.randn(2, 50, generator=torch.Generator().manual_seed(seed))
        agree(fast, f, x, y)
    assert "value " not in fast.inspect("guards")
    settled(fast, 1)


def test_a_number_that_feeds_arithmetic_on_the_way_to_a_guard():
    def f(x):
        y = x - x.mean().item()
        return y * 2 if y.max() > 1 else y

    fast = fastjit(f)
    for seed in range(12):
        x = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        agree(fast, f, x)
    settled(fast, 2)


def test_a_constant_is_no_guard():
    def f(x):
        return x * torch.tensor(2.0).item()

    fast, x = fastjit(f), torch.rand(4)
    agree(fast, f, x)
    agree(fast, f, x)
    assert "value " not in fast.inspect("guards")
    settled(fast, 1)


def test_the_limit_is_for_new_values_only():
    def f(x, t):
        b = t.item()
        return x * b

    fast, x = fastjit(max_variants=3, on_unsupported="eager")(f), torch.ones(2)
    for value in (0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2):  # all serve: what is new does not drive them out
        assert_same(fast(x, torch.tensor(value)), f(x, torch.tensor(value)))
    line = f.__code__.co_firstlineno + 1
    stats = fast.stats()
    assert stats.fallbacks == {f"variant limit (3) reached: b at test_values.py:{line} took 4 values": 2}
    assert (stats.hits, stats.variants) == (6, 3)
    for value in (4, 4, 1, 2):  # it comes twice since 0 was used, which goes
        assert_same(fast(x, torch.tensor(value)), f(x, torch.tensor(value)))
    stats = fast.stats()
    assert (stats.hits, stats.variants, sum(stats.fallbacks.values())) == (8, 3, 3)


def test_threads_take_their_own_branches():
    fast, wrong = fastjit(by_sign), []

    def work(sign):
        for n in range(1, 200):
            x = torch.full((5,), sign * float(n))
            if not torch.equal(fast(x), by_sign(x)):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(sign,)) for sign in (1, -1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert fast.stats().fallbacks == {} and fast.stats().hits > 500


def test_verified_calls_compare_values_first():
    fast, x = fastjit(verify=True)(by_sign), torch.ones(3)
    for sign in (1, -1, 1, -1, 1):
        agree(fast, by_sign, x * sign)
    settled(fast, 2)
    assert fast.stats().verified == 3 and fast.stats().mismatches == 0


def test_recordings_are_checked_after_the_values(tmp_path):
    code = (
        "import torch\n"
        "from fastjit import fastjit\n"
        "@fastjit\n"
        "def f(x):\n"
        "    return x * 2 if x.sum() > 0 else x - x.max().item()\n"
        "for sign in (1, -1, 1, -1, 1):\n"
        "    f(sign * torch.ones(3))\n"
        "print(f.stats().hits, f.stats().misses, f.stats().fallbacks)\n"
    )
    env = {**os.environ, "FASTJIT_CHECK": "record", "FASTJIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "3 2 {}\n", done.stderr


def test_new_values_are_recorded_at_once_beside_many_sizes():
    def by_sign_and_size(x):
        return by_sign(x) * int(str(len(x)))

    fast = fastjit(by_sign_and_size)
    for size in range(1, 11):
        agree(fast, by_sign_and_size, torch.ones(size))
    assert fast.stats().variants == 8  # of the others none came again
    fallbacks = fast.stats().fallbacks
    assert list(fallbacks.values()) == [2]
    for size in (3, 4):
        agree(fast, by_sign_and_size, torch.ones(size))
        agree(fast, by_sign_and_size, -torch.ones(size))
    assert fast.stats().variants == 10
    for size in (3, 4):
        agree(fast, by_sign_and_size, -torch.ones(size))
        agree(fast, by_sign_and_size, torch.ones(size))
    assert fast.stats().fallbacks == fallbacks and fast.stats().hits == 6


def test_values_of_any_size():
    fast = fastjit(by_sign)
    for size in (3, 4, 5, 6, 50):
        agree(fast, by_sign, torch.ones(size))
    for size in (7, 3, 9):
        agree(fast, by_sign, -torch.ones(size))
        agree(fast, by_sign, torch.ones(size))
    assert fast.stats().fallbacks == {} and fast.stats().misses <= 4, fast.stats()


def crop(x):
    n = int(x[0].item() * 1000)
    return torch.relu(x * 2)[: n % 7 + 1] * n


def test_values_that_never_come_again_are_not_recorded_for_ever():
    """Random crops: each recording would serve one call. After eight of them few more are made."""
    fast = fastjit(crop, on_unsupported="eager")
    values = [0.1 + n / 64 for n in range(40)]
    for value in values:
        agree(fast, crop, torch.full((9,), value))
    stats = fast.stats()
    line = crop.__code__.co_firstlineno + 1
    reason = f"its last recordings served no second call: item at test_values.py:{line} took 9 values"
    assert (stats.variants, stats.hits) == (9, 0) and stats.fallbacks == {reason: 31}
    assert fast.explain(torch.full((9,), 7.0)) == f"eager: {reason}"
    for _ in range(20):
        agree(fast, crop, torch.full((9,), values[3]))
    assert fast.stats().hits >= 2 and fast.stats().misses == fast.stats().calls - fast.stats().hits
    assert fast.explain(torch.full((9,), values[7])).startswith("a hit")


def test_values_that_come_again_are_recorded_when_they_come():
    """As many as there may be, where each is used."""
    fast = fastjit(crop)
    for n in range(30):
        for _ in range(2):
            agree(fast, crop, torch.full((9,), 0.1 + n / 64))
    settled(fast, 30)


def test_what_runs_between_values_that_never_come_again_is_parts():
    inner = torch.nn.Sequential(torch.nn.Hardtanh(), torch.nn.ReLU(), torch.nn.LeakyReLU())

    def f(x):
        y = inner(x) + 1
        return crop(y.abs())

    fast = fastjit(f, on_unsupported="eager")
    with torch.no_grad():
        for seed in range(40):
            x = torch.rand(9, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(fast(x), f(x))
    assert fast.stats().variants < 12
    if sys.version_info < (3, 12):
        assert fast.stats().operators > 40


def test_values_that_follow_from_constants_have_no_limit():
    def steps(x):
        times = torch.linspace(0, 1, 50)
        now, end = times[0], times[-1]
        while now < end:
            x = x + float(now) * x.relu()
            now = now + 0.01
        return x

    fast, x = fastjit(steps), torch.ones(4)
    for _ in range(3):
        agree(fast, steps, x)
    settled(fast, 1)


def test_values_that_only_look_like_constants():
    def written(x):
        times = torch.zeros(40)
        times[3:].copy_(x.sum())
        total = 0.0
        for i in range(8):
            total = total + (1.0 if float(times[i]) > 0.5 else 0.25)
        return x * total

    def moved(x, by):
        times = torch.linspace(0, 1, 8) + by
        return x * sum(1.0 if float(time) > 0.5 else 0.25 for time in times.unbind())

    def drawn(x):
        return x * 2 if float(torch.rand(())) > 0.5 else x

    for fn in (written, lambda x: moved(x, 0.3), drawn):
        fast = fastjit(fn)
        for value in (1.0, -1.0, 1.0, 0.0, -1.0, 2.0):
            torch.manual_seed(int(value))
            mine = fast(torch.full((4,), value))
            torch.manual_seed(int(value))
            assert_same(mine, fn(torch.full((4,), value)), exact=True)
        assert fast.stats().fallbacks == {} and fast.stats().hits > 0
    fast = fastjit(moved)
    for by in (0.3, 0.8, -0.7, 0.3, 0.8, 0.1):
        agree(fast, moved, torch.ones(4), by)
    assert fast.stats().fallbacks == {}


def divides(x):
    1.0 / float(x[0])
    return x + 1


def divides_what_it_computed(x):
    a = float(x[0]) * 2
    b = 1 / a
    del b
    return x + a


def raises_to_a_power(x):
    float(x[0]) ** -1
    return x + 1


def takes_a_root(x):
    math.sqrt(float(x[0]))
    return x + 1


def divides_in_rounds(x):
    for t in range(x.shape[0]):
        1.0 / float(x[t])
    return x + 1


@pytest.mark.parametrize(
    ("fn", "bad"),
    [
        (divides, 0.0),
        (divides_what_it_computed, 0.0),
        (raises_to_a_power, 0.0),
        (takes_a_root, -1.0),
        (divides_in_rounds, 0.0),
    ],
)
def test_what_python_computes_and_nobody_reads_raises_as_in_eager(fn, bad):
    fast = fastjit(fn)
    for value in (1.5, 2.5, bad, 4.0, bad, 5.0):
        x = torch.full((12,), value)
        assert outcome(fast, x) == outcome(fn, x) if value == bad else torch.equal(fast(x), fn(x))
    stats = fast.stats()
    assert stats.hits == 3
    assert sum(stats.fallbacks.values()) == 2
    assert "is computed otherwise by Python" in next(iter(stats.fallbacks))


def divides_by_a_size(x):
    1 / (x.shape[0] - 7)
    return x + 1


def divides_ints_by_a_size(x):
    x.shape[0] // (x.shape[0] - 7)
    return x + 1


def rest_of_a_size(x):
    x.shape[0] % (x.shape[0] - 7)
    return x + 1


def makes_zeros(x):
    torch.zeros(x.shape[0] - 7)
    return x + 1


def expands(x):
    x[:, None].expand(-1, x.shape[0] - 7)
    return x + 1


def unfolds(x):
    x.unfold(0, 7, 1)
    return x + 1


@pytest.mark.parametrize(
    ("fn", "size", "error"),
    [
        (divides_by_a_size, 7, ZeroDivisionError),
        (divides_ints_by_a_size, 7, ZeroDivisionError),
        (rest_of_a_size, 7, ZeroDivisionError),
        (makes_zeros, 5, RuntimeError),
        (expands, 5, RuntimeError),
        (unfolds, 5, RuntimeError),
    ],
)
def test_what_a_size_makes_raise_does_so_where_nobody_reads_it(fn, size, error):
    fast = fastjit(fn)
    for n in (9, 10, 11, 12):
        agree(fast, fn, torch.randn(n))
    assert fast.stats().hits == 2
    with pytest.raises(error):
        fast(torch.randn(size))
    agree(fast, fn, torch.randn(8))
