"""What the tests accept where eager's own bits differ from CPU to CPU: correctly rounded roots, and nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from eager_cpu import RoundedRoots, at_least_as_near
from fastjit import _C
from script_tools import Script, World, play

VALUES = torch.cat([torch.arange(1, 400).double() / 7, torch.tensor([2.0, 0.0, -0.0, -1.0, torch.inf, torch.nan])])
ROOTS = {
    "sqrt": torch.sqrt,
    "sqrt_": lambda x: x.clone().sqrt_(),
    "out": lambda x: torch.sqrt(x, out=torch.empty_like(x)),
    "pow": lambda x: x.pow(0.5),
    "pow_": lambda x: x.clone().pow_(0.5),
    "foreach": lambda x: torch._foreach_sqrt([x, x])[1],
    "foreach_": lambda x: [torch._foreach_sqrt_(y := [x.clone()]), y][1][0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ROOTS)
def test_roots_are_rounded_as_ieee_says(name, dtype):
    x = VALUES.to(dtype)
    with np.errstate(invalid="ignore"):
        root = torch.from_numpy(np.sqrt(x.numpy()))
    with RoundedRoots():
        got = ROOTS[name](x)
    assert torch.equal(got.nan_to_num(-7.0), root.nan_to_num(-7.0))
    if name != "foreach_":  # torch counts its writes outside of a dispatch mode only
        assert got._version == ROOTS[name](x)._version


def test_other_operators_and_other_types_are_eagers():
    half = VALUES.to(torch.bfloat16)
    with RoundedRoots():
        got = [VALUES.exp(), VALUES.pow(2.0), VALUES.pow(-0.5), half.sqrt(), VALUES.to(torch.int64).sqrt()]
    want = [VALUES.exp(), VALUES.pow(2.0), VALUES.pow(-0.5), half.sqrt(), VALUES.to(torch.int64).sqrt()]
    for g, w in zip(got[:4], want[:4], strict=True):
        assert torch.equal(g.nan_to_num(-7.0), w.nan_to_num(-7.0))
    torch.testing.assert_close(got[4], want[4], equal_nan=True)


def test_nearer_is_right_and_farther_is_wrong():
    truth = torch.tensor([2.0**0.5], dtype=torch.float64)
    up, down = torch.nextafter(truth, truth + 1), torch.nextafter(truth, truth - 1)
    farther = torch.nextafter(up, up + 1)
    assert at_least_as_near(truth, up, truth) and at_least_as_near(up, down, truth) and at_least_as_near(up, up, truth)
    assert not at_least_as_near(up, truth, truth) and not at_least_as_near(farther, down, truth)


def test_zeros_of_other_signs_infinities_and_nans_are_not_near():
    def near(got: float, eager: float, truth: float) -> bool:
        return bool(at_least_as_near(*(torch.tensor([v], dtype=torch.float64) for v in (got, eager, truth))))

    nan, inf = torch.nan, torch.inf
    assert near(nan, nan, nan) and near(inf, inf, inf) and near(-0.0, -0.0, 0.0)
    wrong = [(0.0, -0.0, 0.0), (nan, 1, 1), (1, nan, 1), (inf, 1, inf), (1, inf, inf), (inf, -inf, inf)]
    for got, eager, truth in wrong:
        assert not near(got, eager, truth)


def one_unit_off(result: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(result, result + 1)


@pytest.mark.parametrize("compute", [torch.sqrt, torch.rsqrt, torch.exp, lambda x: x.pow(0.5), lambda x: x * 3])
def test_a_script_whose_last_bits_are_wrong_fails(compute):
    """A planted fault, three units: a root of eager's is at most one off."""

    def script(w: World) -> None:
        def f(x):
            y = compute(x)
            return one_unit_off(one_unit_off(one_unit_off(y))) if w.fast else y

        w.call("new", w.jit(f), torch.tensor([2.0, 3.0], dtype=torch.float64))

    with pytest.raises(AssertionError, match="Mismatched elements: 2 / 2"):
        play(Script(0, script, 0.0, None))


@pytest.mark.filterwarnings("ignore::fastjit.FastJITWarning")
def test_a_script_whose_roots_are_rounded_passes_where_eagers_are_not():
    """The other way: eager's root is a unit off, as MKL's of 2.0 is on some CPUs, and the fast world's is not."""

    def script(w: World) -> None:
        def f(x):
            y = x.sqrt()
            return one_unit_off(y) if wrong else y

        wrong = not w.fast and torch._C._len_torch_dispatch_stack() == 0
        x = torch.tensor([4.0, 9.0], dtype=torch.float64)
        w.call("new", w.jit(f), x)
        w.call("hit", f if not w.fast else w.current, x)

    assert play(Script(0, script, 0.0, None)).current.stats().hits == 1


def test_levels_are_those_that_the_environment_asks_for():
    """test_levels.py asks for them."""
    found = {"ATEN_CPU_CAPABILITY": torch.backends.cpu.get_cpu_capability().lower(), "FASTJIT_ISA": _C.host_isa()}
    asked = {name: os.environ[name] for name in found if name in os.environ}
    if not asked:
        pytest.skip("the environment asks for no level")
    assert {name: found[name] for name in asked} == asked
