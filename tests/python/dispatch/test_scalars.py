"""Numbers among the arguments: values the kernel reads at run time where only operators use them, guards where not.

Every test says how many recordings a series of values took: 1 where the number is a run-time value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fastjit import FastJITWarning, fastjit, of
from helpers import assert_same

VALUES = (2.5, 3.5, 0.0, -0.0, math.nan, math.inf, -math.inf, 1e-40, 1e300, 1.0, 2.0, 0.5)


def series(fn: Callable[..., Any], calls: Iterable[tuple], *, misses: int, fallbacks: int = 0, **options: Any) -> Any:
    """Runs `calls` and compares each with eager; then the number of recordings and of eager calls."""
    fast = fastjit(**options)(fn)
    calls = list(calls)
    for args in calls:
        assert_same(fast(*args), fn(*args))
    stats = fast.stats()
    assert stats.misses == misses, (stats, fast.inspect("guards"))
    assert sum(stats.fallbacks.values()) == fallbacks, stats.fallbacks
    assert stats.hits == len(calls) - misses - fallbacks
    return fast


def x8() -> torch.Tensor:
    return torch.linspace(-3, 3, 8)


RUN_TIME = {
    "mul": lambda x, a: x * a,
    "rmul": lambda x, a: a * x,
    "add": lambda x, a: x + a,
    "sub": lambda x, a: x - a,
    "div": lambda x, a: x / a,
    "rdiv": lambda x, a: a / x,
    "floordiv": lambda x, a: x // a,
    "used twice": lambda x, a: (x * a - 1.0) * a,
    "in place": lambda x, a: x.clone().mul_(a).add_(1.0),
    "chain": lambda x, a: torch.exp(x * a).sum(),
    "moved": lambda x, a: x * (a, 1)[0],
    "nested function": lambda x, a: (lambda y: y + a)(x),
    "never used": lambda x, a: x + 1.0,
    "number arithmetic": lambda x, a: x * (2.0 * a),
    "arithmetic of arithmetic": lambda x, a: x * (a / 7 - (1 - a) * 3) + -a,
}
# Operators that convert the number themselves: they raise for what the tensor's type cannot hold.
CHECKED = {
    "less or equal": lambda x, a: x <= a,
    "greater": lambda x, a: x > a,
    "rpow": lambda x, a: a**x,
    "rsub": lambda x, a: a - x,
    "alpha": lambda x, a: torch.add(x, x, alpha=a),
    "where": lambda x, a: torch.where(x > 0, x, a),
    "clamp": lambda x, a: x.clamp(-1.0, a),
    "clamp_min": lambda x, a: torch.clamp_min(x, a),
    "leaky_relu": lambda x, a: F.leaky_relu(x, a),
    "lerp": lambda x, a: torch.lerp(x, x * 2.0, a),
    "negated": lambda x, a: x.clamp(-a, 5.0),
    "masked_fill": lambda x, a: x.masked_fill(x > 0, a),
    "addcmul": lambda x, a: torch.addcmul(x, x, x, value=a),
    "elu": lambda x, a: F.elu(x, a),
    "full": lambda x, a: x + torch.full((8,), a),
}
# What Python asks of the number is a guard, the number is not.
ASKED = {
    "compared arithmetic": (lambda x, a: x * a if 2.0 * a > 3.0 else x, 2),
    "branch": (lambda x, a: x * a if a > 1 else x - a, 2),
    "chain": (lambda x, a: x * a if 0 < a <= 3 else x - a, 2),
    "truth": (lambda x, a: x * a if a else x - 1.0, 1),
    "type": (lambda x, a: x * a if isinstance(a, float) and a == 2.5 else x, 2),
    "largest": (lambda x, a: x * max(a, 1.0), 2),
    "smallest": (lambda x, a: x * min(5.0, a), 1),
    "not": (lambda x, a: x if not a else x * float(a), 1),
}
# Operators that a kernel would have as a constant in are torch's own calls once the number has changed.
BY_TORCH = {
    "exponent": lambda x, a: x**a,
    "dropout": lambda x, a: F.dropout(x, a / 4, training=True),
    "softshrink": lambda x, a: F.softshrink(x, a),
    "celu": lambda x, a: F.celu(x, a),
    "quantile": lambda x, a: x.quantile(a / 4),
    "norm": lambda x, a: torch.norm(x, a),
    "random": lambda x, a: x.clone().normal_(a, 1.25),
}
BY_VALUE = {
    "two equal operands": lambda x, a: x.clamp(a, a),
    "text": lambda x, a: x * a if f"{a}" == "2.5" else x,
    "call of a C function": lambda x, a: x * math.floor(a) if math.isfinite(a) else x,
    "size": lambda x, a: x.sum() + torch.arange(0.0, 4.0, a).sum() if a > 0 else x,
    "tensor of a list": lambda x, a: x + torch.tensor([a, 1.0])[0],
}


@pytest.mark.parametrize("name", RUN_TIME)
def test_a_number_that_only_operators_use_is_a_run_time_value(name):
    series(RUN_TIME[name], [(x8(), a) for a in VALUES], misses=1)


@pytest.mark.parametrize("name", CHECKED)
def test_a_number_that_operators_convert_is_a_run_time_value(name):
    fn = CHECKED[name]
    fast = series(fn, [(x8(), a) for a in VALUES if a != 1e300], misses=1)
    try:
        expected = fn(x8(), 1e300)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match="without overflow"):
            fast(x8(), 1e300)
        assert "without overflow" in str(error)
    else:
        assert_same(fast(x8(), 1e300), expected)


@pytest.mark.parametrize("name", BY_VALUE)
def test_a_number_that_python_reads_is_a_guard(name):
    fn = BY_VALUE[name]
    values = [2.5, 0.5, 2.0, 3.5]
    fast = series(fn, [(x8(), a) for a in values for _ in range(2)], misses=len(values))
    for a in (math.nan, -0.0, 0.0) if name != "call of a C function" else ():
        assert_same(fast(x8(), a), fn(x8(), a))
        assert_same(fast(x8(), a), fn(x8(), a))


@pytest.mark.parametrize("name", ASKED)
def test_what_python_asks_of_a_number_is_a_guard(name):
    fn, misses = ASKED[name]
    fast = series(fn, [(x8(), a) for a in (2.5, 0.5, 2.0, 3.5, 0.75, 2.5)], misses=misses)
    for a in (math.nan, -0.0, 0.0, math.inf, -1.0):
        assert_same(fast(x8(), a), fn(x8(), a))
        assert_same(fast(x8(), a), fn(x8(), a))
    assert fast.stats().fallbacks == {}


@pytest.mark.parametrize("name", BY_TORCH)
def test_torch_gets_a_number_that_varies(name):
    def fn(x, a):
        torch.manual_seed(3)
        return BY_TORCH[name](x * 2.0, a) + 1.0

    fast = series(fn, [(x8(), a) for a in (2.5, 0.5, 2.0, 3.5, 0.75, 2.5)], misses=2)
    torch.manual_seed(3)
    for a in (math.nan, 0.0, -1.0, math.inf, 1e39):  # some are refused by torch, some give the argument back
        for _ in range(2):
            try:
                expected = fn(x8(), a)
            except (RuntimeError, ValueError) as error:
                with pytest.raises(type(error), match=re.escape(str(error)[:40])):
                    fast(x8(), a)
            else:
                assert_same(fast(x8(), a), expected)


MADE = {
    "float32": lambda x, a: x * torch.tensor(a),
    "float64": lambda x, a: x.double() * torch.tensor(a, dtype=torch.float64),
    "as_tensor": lambda x, a: torch.as_tensor(a) - x,
    "returned": lambda x, a: (x + 1, torch.tensor(a)),
    "written": lambda x, a: x + torch.tensor(a).add_(1),
    "computed": lambda x, a: x * torch.tensor(a * 2 + 1),
    "stored in a tensor": lambda x, a: torch.zeros(8).index_put((x > 0,), torch.tensor(a)),
}


@pytest.mark.parametrize("name", MADE)
def test_a_tensor_of_a_number_is_a_run_time_value(name):
    series(MADE[name], [(x8(), a) for a in VALUES for _ in range(2)], misses=1)


def test_tensors_of_ints_and_of_other_types():
    series(lambda x, n: x * torch.tensor(n), [(x8(), n) for n in (1000, -4000, 2**40, 1000)], misses=1)
    series(lambda x, a: x * torch.tensor(a, dtype=torch.float16), [(x8(), a) for a in (1.5, 0.3, 1.5)], misses=2)
    series(lambda x, a: x * torch.tensor([a, 1.0])[0], [(x8(), a) for a in (1.5, 0.3, 1.5)], misses=2)


def test_a_tensor_of_a_number_that_was_read():
    def rescale(x):
        loss = (x * x).mean().item()
        return torch.tensor(loss) + x, torch.tensor(loss * 2, dtype=torch.float64)

    series(rescale, [(x8() * n,) for n in range(1, 7)], misses=1)


def test_a_tensor_of_a_number_that_is_used_as_one():
    def shift(x, a):
        t = torch.tensor(a)
        return torch.add(x, x, alpha=a) + t.item() + t

    series(shift, [(x8(), a) for a in (1.5, 0.3, 1.5, 2.25)], misses=1)


def test_numbers_that_are_returned_are_the_callers():
    fast = fastjit(lambda x, a, b: (x * a, a, (b,)))
    for a, b in ((2.5, 300), (math.nan, 301), (-0.0, 1 << 40)):
        got = fast(x8(), a, b)
        if fast.stats().hits == 0:  # the recording hands out objects of equal value
            continue
        assert got[1] is a and got[2][0] is b
        assert_same(got[0], x8() * a)
    assert (fast.stats().misses, fast.stats().hits) == (1, 2)


def test_two_numbers_that_are_equal_at_first_are_told_apart():
    series(
        lambda x, a, b: x * a + b, [(x8(), 2.5, 2.5), (x8(), 2.5, 3.5), (x8(), 0.5, 0.5), (x8(), 1.0, -0.0)], misses=1
    )
    # Operands of one instruction are told apart by their values, so an equal pair is a guard.
    series(
        lambda x, a, b: x.clamp(a, b),
        [(x8(), 1.5, 1.5), (x8(), -1.5, 1.5), (x8(), -2.0, 0.5), (x8(), 1.5, 1.5), (x8(), 2.5, 2.5)],
        misses=2,
    )
    # A literal of equal value beside it: the first call cannot tell them apart.
    series(lambda x, a: x.clamp(a, 1.5), [(x8(), 1.5), (x8(), -1.5), (x8(), 0.5)], misses=2)


def test_one_object_for_two_parameters():
    fast = series(lambda x, a, b: x * a - b, [(x8(), 2.5, 2.5)], misses=1)
    same = 4.5
    assert_same(fast(x8(), same, same), x8() * same - same)
    assert_same(fast(x8(), 1.5, 4.5), x8() * 1.5 - 4.5)
    assert fast.stats().misses == 1


def test_integers():
    x = torch.arange(8)
    values = (300, -1000, 1 << 40, 5, 0, (1 << 62) - 1)
    series(lambda x, n: x * n + n, [(x, n) for n in values], misses=1)
    series(lambda x, n: x * n + 0.5, [(x8(), n) for n in values], misses=1)
    # Small integers are shared objects and stay guards; so do integers of more than 62 bits.
    series(lambda x, n: x * n, [(x, 3), (x, 4), (x, 3)], misses=2)
    series(lambda x, n: x * n, [(x8(), n) for n in (300, (1 << 62) + 1, -(1 << 63), 301)], misses=3)
    # A divisor may be zero, where eager raises.
    series(lambda x, n: x // n, [(x, n) for n in (300, 301, 300)], misses=2)
    fast = fastjit(lambda x, n: x // n)
    fast(x, 300)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fast(x, 0)
    # Sizes decide the structure.
    series(lambda x, n: x.expand(n, 8).sum(0), [(x, n) for n in (300, 301, 300)], misses=2)


def test_int_float_and_bool_are_different_numbers():
    fast = fastjit(lambda x, a: x * a)
    for a in (2.5, 300, True, 3.5, 301, True, 1, 1.0):
        assert_same(fast(x8(), a), x8() * a)
        assert_same(fast(torch.arange(8), a), torch.arange(8) * a)
    assert fast.stats().misses == 2 * 3  # float, int, True; the tensor's type


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int8, torch.bool], ids=str
)
def test_the_result_type_depends_on_the_type_of_the_number_only(dtype):
    x = x8().to(dtype)
    for fn in (
        lambda x, a: x * a,
        lambda x, a: x + a,
        lambda x, a: x / a,
        lambda x, a: a - x if x.is_floating_point() else x * a,
    ):
        fast = fastjit(fn)
        for a in (2.5, 1.0 / 3.0, 2049.0, 1e-8, -0.0, math.nan, 1e6):
            got, expected = fast(x, a), fn(x, a)
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert fast.stats().misses == 1


def test_keyword_arguments_are_run_time_values_and_items_are_guards():
    fast = fastjit(lambda x, *, scale, shift=1.0: x * scale + shift)
    for scale in (2.5, 3.5, 4.5):
        assert_same(fast(x8(), scale=scale, shift=scale + 1), x8() * scale + (scale + 1))
        assert_same(fast(x8(), scale=scale), x8() * scale + 1.0)
    assert fast.stats().misses == 2
    series(lambda x, pair: x * pair[0] + pair[1], [(x8(), p) for p in ((2.5, 1.5), (3.5, 1.5), (2.5, 1.5))], misses=2)


def test_modules():
    class Scale(torch.nn.Module):
        def forward(self, x, a):
            return F.silu(x * a) + a

    net = fastjit(Scale())
    for a in (2.5, 3.5, 4.5):
        assert_same(net(x8(), a), F.silu(x8() * a) + a)
    assert (of(net).stats().misses, of(net).stats().hits) == (1, 2)


def test_a_number_that_always_changes_does_not_compile_for_ever():
    fast = fastjit(on_unsupported="eager")(lambda x, a: x * a if f"{a}" else x)
    for i in range(70):
        assert_same(fast(x8(), i + 0.5), x8() * (i + 0.5))
    stats = fast.stats()
    assert stats.fallbacks == {"its last recordings served no second call: a took 9 values": 60}
    assert stats.variants == 10
    assert_same(fast(x8(), 0.5), x8() * 0.5)
    assert fast.stats().hits == 1


WEIGHT = torch.linspace(0, 1, 8)


def test_pure_functions_hold_the_tensors_they_name():
    local = torch.linspace(1, 2, 8)
    fast = fastjit(pure=True)(lambda x, a: x * WEIGHT + local * a)
    for a, misses in ((2.5, 1), (2.5, 1), (3.5, 2)):  # nobody watches what Python does with a: a guard
        assert_same(fast(x8(), a), x8() * WEIGHT + local * a)
        assert fast.stats().misses == misses
    assert fast.stats().fallbacks == {}
    # In-place changes are seen, another object under the name is not: that is what pure promises.
    local.mul_(2.0)
    assert_same(fast(x8(), 2.5), x8() * WEIGHT + local * 2.5)
    old = local
    local = None
    assert_same(fast(x8(), 2.5), x8() * WEIGHT + old * 2.5)
    assert fast.stats().misses == 2


def test_library_switches_are_part_of_the_key():
    fast = fastjit(lambda x: x * 2.0 if torch._C._get_mkldnn_enabled() else x * 3.0)
    assert_same(fast(x8()), x8() * 2.0)
    torch._C._set_mkldnn_enabled(False)
    try:
        assert_same(fast(x8()), x8() * 3.0)
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert_same(fast(x8()), x8() * 2.0)
    assert (fast.stats().misses, fast.stats().hits) == (2, 1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc1(x)


class Shared(Net):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = self.fc1.weight[1:]  # a view that autograd goes through
        return super().forward(x) + part.sum(), part


@pytest.mark.parametrize(
    "make",
    [lambda: fastjit(Shared()), lambda: fastjit(pure=True)(Shared().forward)],
    ids=["module", "pure"],
)
def test_a_call_whose_gradients_are_not_compiled_says_what_to_do(make):
    fast = make()
    said = r"its gradients are not compiled: a result that requires grad .*docs training.* torch.no_grad\(\)$"
    with torch.enable_grad(), pytest.warns(FastJITWarning, match=said):
        fast(x8())
    fast(x8())
    assert_same(fast(x8()), fast(x8()))


@pytest.mark.parametrize(
    "write",
    [
        lambda x, a: torch.Tensor.__setitem__(x, 0, a),
        lambda x, a: x.__setitem__(slice(2, 5), a),
        lambda x, a: torch.Tensor.__setitem__(x, x > 0, a),
        lambda x, a: torch.Tensor.__setitem__(x, 1, torch.tensor(a)),
    ],
    ids=["item", "slice", "mask", "tensor"],
)
def test_a_number_that_is_stored_by_a_method(write):
    """The binding makes a tensor of the number, which is a constant of what it runs."""
    fast = fastjit(lambda x, a: (write(x, a), x + 1)[1])
    for a in (1.5, 1.75, -2.0, 1.5, 0.0):
        mine, theirs = x8(), x8()
        write(theirs, a)
        assert_same(fast(mine, a), theirs + 1, exact=True)
        assert_same(mine, theirs, exact=True)
    assert fast.stats().fallbacks == {} and fast.stats().hits >= 1
