"""The lowering table: every row against eager, over torch's own samples and over special values."""

from __future__ import annotations

import itertools
import math
import os
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from fastjit import _C, fastjit
from lowering_tools import DTYPES, FLOATS, ROWS, Check, compare

aten = torch.ops.aten
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    3.0,
    -3.0,
    6.0,
    -6.0,
    2.5,
    3.5,
    20.0,
    21.0,
    -20.0,
    88.7,
    89.0,
    -88.0,
    -104.0,
]
SPECIAL += [1e-7, -1e-7, 1e-40, 1e30, -1e30, math.inf, -math.inf, math.nan, 0.999, 1e-3, 100.0, -100.0]


def special(dtype: torch.dtype, shift: int = 0) -> torch.Tensor:
    """Special values and random ones, rotated so that two of them meet in all pairings of a kind."""
    generator = torch.Generator().manual_seed(7)
    values = torch.cat([torch.tensor(SPECIAL), torch.randn(224, generator=generator) * 3])
    return torch.roll(values, shift).to(dtype)


# Entries without pointwise or row work whose samples take long to make.
SLOW = (
    "linalg.",
    "fft.",
    "masked.",
    "sparse.",
    "signal.",
    "special.",
    "_refs",
    "ops.",
    "nn.functional.max_",
    "nn.functional.grid",
)
SAMPLE_DTYPES = [torch.float32, torch.bfloat16, torch.int32, torch.bool]


def overload(row: str):
    name, _, which = row.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, name), which or "default")


def test_every_row_is_an_operator_of_torch():
    known = set(torch._C._dispatch_get_all_op_names())
    assert [name for name, _ in _C.lowered_ops() if name not in known] == []


def test_no_operator_has_two_rows():
    names = [name for name, _ in _C.lowered_ops()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("part", range(4))
def test_samples_of_op_db_match_eager(part):
    check = Check()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op, dtype in itertools.product(op_db[part::4], SAMPLE_DTYPES):
            if dtype not in op.supported_dtypes("cpu") or op.name.startswith(SLOW) or "jiterator" in op.name:
                continue
            try:
                samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 1))
            except (RuntimeError, ValueError):
                continue
            for sample in samples:
                try:
                    with check:
                        op(sample.input, *sample.args, **sample.kwargs)
                except (RuntimeError, TypeError, NotImplementedError):
                    pass  # eager's own refusal, or a test helper that a dispatch mode cannot enter
    assert check.wrong == []
    assert len(check.seen) > 70


BINARY = "maximum minimum fmax fmin atan2 logaddexp heaviside hypot floor_divide add.Tensor sub.Tensor mul.Tensor "
BINARY += "div.Tensor remainder.Tensor fmod.Tensor copysign.Tensor xlogy.Tensor pow.Tensor_Tensor eq.Tensor lt.Tensor"
UNARY = (
    "silu mish hardswish hardsigmoid relu sigmoid reciprocal sign frac sinc isnan isfinite isinf signbit "
    "logical_not neg abs nan_to_num round angle log_sigmoid_forward gelu hardshrink softshrink softplus "
    "leaky_relu elu exp log tanh erf floor ceil trunc sgn log1p expm1 sqrt isposinf isneginf deg2rad "
    "rad2deg special_entr "
)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY.split())
def test_special_values_of_one_operand(name, dtype):
    op = getattr(aten, name).default
    # oneDNN's gelu gives NaN at +inf; the f64 kernel and the formula give +inf, which compare() accepts.
    assert compare(op, (special(dtype),), {}, composed=name == "gelu") is None


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY.split())
def test_special_values_of_two_operands(name, dtype):
    for shift in (1, 5, 11, 97):
        assert (
            compare(overload(name), (special(dtype), special(dtype, shift)), {}, composed=name == "logaddexp") is None
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_steps_that_eager_fuses_or_rounds(dtype):
    x, y, z = special(dtype), special(dtype, 3), special(dtype, 50)
    for op, args, kwargs in [
        (aten.add.Tensor, (x, y), {"alpha": 0.3}),
        (aten.sub.Tensor, (x, y), {"alpha": 0.3}),
        (aten.rsub.Scalar, (x, 0.3, 2), {}),
        (aten.addcmul.default, (x, y, z), {"value": 0.1}),
        (aten.addcmul.default, (x, y, z), {}),
        (aten.addcdiv.default, (x, y, z), {"value": 0.1}),
        (aten.lerp.Scalar, (x, y, 0.3), {}),
        (aten.lerp.Scalar, (x, y, 0.7), {}),
        (aten.lerp.Tensor, (x, y, z), {}),
        (aten.mse_loss.default, (x, y, 0), {}),
        (aten.smooth_l1_loss.default, (x, y, 0, 0.7), {}),
        (aten.huber_loss.default, (x, y, 0, 0.7), {}),
        (aten.clamp.default, (x, 0.0, None), {}),
        (aten.clamp.default, (x, -0.0, None), {}),
        (aten.clamp.default, (x, -0.1, 0.3), {}),
        (aten.clamp.default, (x, math.nan, None), {}),
        (aten.clamp.Tensor, (x, y, z), {}),
        (aten.threshold.default, (x, 0.1, 0.2), {}),
        (aten.logit.default, (x, 0.1), {}),
        (aten.glu.default, (x,), {}),
        (aten.div.Tensor_mode, (x, y), {"rounding_mode": "trunc"}),
        (aten.div.Tensor_mode, (x, 0.3), {"rounding_mode": "trunc"}),
        (aten.round.decimals, (x,), {"decimals": 2}),
        (aten.gelu.default, (x,), {"approximate": "tanh"}),
    ]:
        assert (
            compare(
                op,
                args,
                kwargs,
                ulps=0.5 if dtype in (torch.bfloat16, torch.float16) else 2.0,
                composed=op is aten.gelu.default,
            )
            is None
        ), op


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, -2, -0.5, 1.7, 4, -3, 0, 1])
def test_powers_that_eager_treats_specially(dtype, exponent):
    assert compare(aten.pow.Tensor_Scalar, (special(dtype), exponent), {}, ulps=1.0, composed=False) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "row", ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "remainder.Tensor", "fmod.Tensor", "floor_divide"]
)
@pytest.mark.parametrize(
    "number", [0.1, torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64)], ids=["number", "f32", "f64"]
)
def test_half_and_one_number_round_as_eager(dtype, row, number):
    """mul and div keep the number in f32, the others round it to the half type first."""
    assert compare(overload(row), (torch.randn(500).to(dtype), number), {}, ulps=0, composed=False) is None


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32], ids=str)
@pytest.mark.parametrize(
    "row",
    [
        "add.Tensor",
        "mul.Tensor",
        "div.Tensor",
        "pow.Tensor_Scalar",
        "clamp_min",
        "clamp_max",
        "leaky_relu",
        "hardshrink",
        "masked_fill.Scalar",
        "lt.Scalar",
    ],
)
def test_run_time_scalars_mean_the_same(dtype, row):
    x = torch.randn(200).mul(3).to(dtype)
    args = (x, x > 0, 2.5) if row.startswith("masked") else (x, 2.5)
    if not dtype.is_floating_point and row in ("leaky_relu", "hardshrink", "masked_fill.Scalar"):
        pytest.skip("eager refuses integers here")
    assert compare(overload(row), args, {}, symbolic=True, composed=False) in (None, "extern")
    if row in ("add.Tensor", "mul.Tensor", "clamp_min"):
        assert compare(overload(row), args, {}, symbolic=True, composed=False) is None


@pytest.mark.parametrize("a", DTYPES, ids=str)
def test_promotion_over_all_pairs_of_types(a):
    x = torch.arange(-3, 9).to(a)
    for b in DTYPES:
        for y in (torch.arange(1, 13).to(b), torch.tensor(3).to(b), 3, 2.5, True):
            for op in (aten.mul.Tensor, aten.div.Tensor, aten.maximum.default, aten.eq.Tensor, aten.where.self):
                if op is aten.maximum.default and not isinstance(y, torch.Tensor):
                    continue
                args = (x > 0, x, y) if op is aten.where.self else (x, y)
                assert compare(op, args, {}, ulps=0.5, composed=False) is None, (op, b, y)


def test_integer_division_by_what_may_be_zero_is_left_to_torch():
    x = torch.arange(1, 9)
    for row in ("div.Tensor_mode", "floor_divide", "remainder.Tensor", "fmod.Tensor"):
        kwargs = {"rounding_mode": "floor"} if row.startswith("div") else {}
        assert compare(overload(row), (x, x), kwargs) == "extern"
        assert compare(overload(row), (x, 3), kwargs) is None
        assert compare(overload(row), (x, 3), kwargs, symbolic=True) == "extern"


COMPOSITE = {
    "reshape": (torch.randn(4, 6), [3, -1]),
    "flatten.using_ints": (torch.randn(2, 3, 4), 1),
    "chunk": (torch.randn(7, 2), 3),
    "narrow": (torch.randn(5, 3), 0, 1, 2),
    "expand_as": (torch.randn(3, 1), torch.randn(3, 4)),
    "unflatten.int": (torch.randn(6, 2), 0, [2, 3]),
    "mT": (torch.randn(2, 3, 4),),
    "numpy_T": (torch.randn(2, 3),),
    "view_as": (torch.randn(6), torch.randn(2, 3)),
    "contiguous": (torch.randn(2, 3).t(),),
    "broadcast_to": (torch.randn(3), [2, 3]),
    "where.ScalarOther": (torch.randn(4) > 0, torch.randn(4), 2.0),
    "where.ScalarSelf": (torch.randn(4) > 0, 2, torch.randn(4)),
    "where.Scalar": (torch.randn(4) > 0, 2, 1.5),
    "isreal": (torch.randn(3),),
    "pow.Scalar": (2.0, torch.randn(5)),
    "xlogy.Scalar_Other": (torch.randn(5), 2.0),
    "xlogy.Scalar_Self": (2.0, torch.rand(5)),
    "remainder.Scalar_Tensor": (5.5, torch.randn(5)),
    "bitwise_left_shift.Tensor_Scalar": (torch.arange(5), 2),
    "bitwise_and.Scalar": (torch.arange(9), 5),
    "arange.start": (2, 9),
    "arange.start_step": (1.0, 9.0, 2.0),
    "fill.Tensor": (torch.randn(3), torch.tensor(2)),
    "norm.Scalar": (torch.randn(9), 2),
    "__lshift__.Scalar": (torch.arange(5), 2),
    "var": (torch.randn(4, 5), True),
    "std.dim": (torch.randn(4, 5), [1], False),
    "var_mean": (torch.randn(4, 5), False),
    "std_mean.dim": (torch.randn(4, 5), [0], True, True),
    "floor_divide.Scalar": (torch.arange(9), 4),
    "div.Scalar_mode": (torch.randn(9), 0.3),
    "copysign.Scalar": (torch.randn(5), -0.0),
}


@pytest.mark.parametrize("row", COMPOSITE)
def test_rows_that_a_dispatch_mode_does_not_see(row):
    kwargs = {"rounding_mode": "floor"} if row == "div.Scalar_mode" else {}
    assert compare(overload(row), COMPOSITE[row], kwargs) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_batch_norm_of_evaluation(dtype):
    x, channel = torch.randn(4, 8, 5, 3, dtype=dtype), [torch.rand(8, dtype=dtype) for _ in range(4)]
    assert (
        compare(
            aten.batch_norm.default,
            (x, *channel, False, 0.1, 1e-5, False),
            {},
            ulps=0.5 if dtype == torch.float32 else 2,
        )
        is None
    )
    assert compare(aten.batch_norm.default, (x, *channel, True, 0.1, 1e-5, False), {}) == "extern"


@pytest.mark.parametrize("row", ["var.correction", "std.correction", "var_mean.correction", "std_mean.correction"])
@pytest.mark.parametrize("shape", [(2, 0), (0,), (0, 2)])
def test_the_variance_of_nothing_is_nan_and_torch_warns_where_no_freedom_is_left(row, shape):
    for correction in (-1, 0, 1):
        for dims in ([len(shape) - 1], None):
            x = torch.ones(shape)
            empty = x.sum(dims).numel() == 0
            expected = None if correction < 0 or empty else "extern"
            assert compare(overload(row), (x, dims), {"correction": correction}) == expected


@pytest.mark.skipif(os.environ.get("FASTJIT_CHECK") == "record", reason="a warning that is an error ends the recording")
def test_a_hit_warns_of_too_few_elements_as_torch_does():
    @fastjit
    def f(x):
        return x.std(), x.var(0, unbiased=True), torch.var_mean(x, correction=2)

    x = torch.zeros(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f(x)
        f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="degrees of freedom"):
            f(x)
    assert f.stats().hits == 2 and f.stats().fallbacks == {}


def test_table_is_wide_enough():
    assert len(ROWS) > 270
