"""Item 2: numbers that an operator checks or rounds, and results that a composite writes without an operator."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from script_tools import World, script


@script(2)
def softshrink_checks_its_bound(w: World) -> None:
    def f(x, bound):
        return F.softshrink(x, bound)

    f, x = w.jit(f), torch.tensor([-2.0, 0.0, 0.25, 2.0, math.nan])
    w.learn(f, x, 0.5)
    for bad in (-1.0, math.nan, math.inf):
        w.change("a bound that eager refuses")
        w.call("raised", f, x, bad)
    w.call("hit", f, x, 0.5)


@script(2)
def losses_check_their_bound(w: World) -> None:
    def huber(x, y, bound):
        return F.huber_loss(x, y, delta=bound)

    def smooth(x, y, bound):
        return torch._C._nn.smooth_l1_loss(x, y, 0, bound)

    x, y = torch.linspace(-2, 2, 8), torch.linspace(2, -1, 8)
    for f in (huber, smooth):
        f = w.jit(f)
        w.learn(f, x, y, 0.5)
        for bad in (-1.0, math.nan):
            w.change("a bound that eager refuses")
            w.call("raised", f, x, y, bad)
        w.call("hit", f, x, y, 0.5)


@script(2)
def numbers_beside_halves_keep_their_precision(w: World) -> None:
    def f(x):
        return F.softshrink(x, 0.3), F.threshold(x, 0.3, 1.1), F.hardshrink(x, 0.3), F.leaky_relu(x, 0.3)

    f = w.jit(f)
    for dtype in (torch.bfloat16, torch.float16):
        every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
        w.learn(f, every)
        w.change("the other half type")


@script(2)
def order_of_zeros_in_max_and_min(w: World) -> None:
    def f(x, y):
        return (
            x * 2, torch.maximum(y, x), torch.minimum(y, x), torch.fmax(y, x), torch.fmin(y, x), y.clamp(min=x),
            torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y), y.clamp(max=x),
        )  # fmt: skip

    f, zeros = w.jit(f), torch.tensor([0.0, -0.0] * 32)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        w.learn(f, zeros.to(dtype), -zeros.to(dtype))
        w.call("hit", f, -zeros.to(dtype), zeros.to(dtype))
        w.change("another type")


@script(2)
def fill_with_a_value_that_does_not_fit(w: World) -> None:
    mask = torch.tensor([True, False, True, False])

    def inplace(x, v):
        return x.masked_fill_(mask, v)

    def functional(x, v):
        return x.masked_fill(mask, v)

    def store(x, v):
        x[mask] = v
        return x

    large = {torch.uint8: 300, torch.int8: 200, torch.int32: 2**40, torch.float16: 10**9}
    for fn in (inplace, functional, store):
        for dtype, value in large.items():
            f = w.jit(fn)
            w.learn(f, torch.ones(4, dtype=dtype), torch.tensor(5))
            w.change("a value that the type has not")
            w.call("an operator raised", f, torch.ones(4, dtype=dtype), torch.tensor(value))
            w.call("hit", f, torch.ones(4, dtype=dtype), torch.tensor(7))


@script(2)
def fill_with_a_value_that_always_fits(w: World) -> None:
    mask = torch.tensor([True, False, True, False])

    def f(x, v):
        return x.masked_fill(mask, v)

    f = w.jit(f)
    for dtype in (torch.float32, torch.float64, torch.bool):
        w.learn(f, torch.ones(4, dtype=dtype), torch.tensor(5))
        w.call("hit", f, torch.ones(4, dtype=dtype), torch.tensor(-(2**62)))


@script(2)
def write_before_a_fill_that_does_not_fit(w: World) -> None:
    def f(x, y, v):
        y.add_(1)
        return x.to(torch.complex64).real.to(torch.int8).masked_fill(x > 0, v)

    f, y = w.jit(f), torch.zeros(1)
    w.learn(f, torch.arange(4.0), y, torch.tensor(5))
    w.change("a value that the type has not")
    w.call("an operator raised", f, torch.arange(4.0), y, torch.tensor(300))


@script(2)
def ldexp_of_integers(w: World) -> None:
    def f(x, e):
        return torch.ldexp(x, e)

    f = w.jit(f)
    w.learn(f, torch.ones(4), torch.arange(4))
    w.change("other exponents")
    w.call("hit", f, torch.arange(4.0), torch.full((4,), 3))
    w.learn(f, torch.ones(4), torch.arange(4.0))
    w.learn(f, torch.ones(4, dtype=torch.float16), torch.arange(4, dtype=torch.int32))


@script(2)
def sum_of_one_negative_zero(w: World) -> None:
    def f(x):
        return x.sum(-1), x.mean(-1), x.nansum(-1), x[0, 0].sum(), x[0, 0].mean(), x.sum(0, keepdim=True)

    f = w.jit(f)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        w.learn(f, torch.full((1, 1), -0.0, dtype=dtype))
        w.change("another type")


@script(2)
def floor_divide_of_halves(w: World) -> None:
    def f(x, y):
        return x // y

    f, generator = w.jit(f), torch.Generator().manual_seed(1)
    x, y = (torch.randn(5000, generator=generator) * 200 for _ in range(2))
    for dtype in (torch.bfloat16, torch.float16):
        w.learn(f, x.to(dtype), (y / 200).to(dtype))
        w.change("the other half type")


@script(2)
def sign_of_a_nan_that_is_read(w: World) -> None:
    def f(x):
        return x * math.copysign(2.0, x[1].item()), x[1:].tolist()

    f = w.jit(f)
    for dtype, bits in ((torch.float32, torch.int32), (torch.float64, torch.int64), (torch.bfloat16, torch.int16)):
        plus = torch.tensor([3.0, math.nan], dtype=dtype)
        minus = (plus.view(bits) ^ torch.iinfo(bits).min).view(dtype)
        w.learn(f, plus)
        w.change("the sign of NaN")
        results = w.call("new", f, minus)
        w.watch(sign=math.copysign(1.0, results[1][0]))
        results = w.call("hit", f, minus)
        w.watch(sign=math.copysign(1.0, results[1][0]))
        w.call("hit", f, plus)


@script(2)
def number_that_decides_the_size_of_arange(w: World) -> None:
    def end(x, a):
        return torch.arange(a) + x

    def start_and_end(x, a):
        return torch.arange(0, a), x * 2

    def step(x, a):
        return torch.arange(0, a, 2.0) + x

    for f in (end, start_and_end, step):
        f, x = w.jit(f), torch.ones(1)
        w.learn(f, x, 3.0)
        for other in (5.0, 9.5):
            w.change("another size")
            w.call("new", f, x, other)
        w.call("hit", f, x, 3.0)


@script(2)
def number_beside_nothing_is_checked_too(w: World) -> None:
    def soft(x, a):
        return F.softshrink(x, a)

    def huber(x, a):
        return F.huber_loss(x, x, reduction="none", delta=a)

    for f in (soft, huber):
        f, x = w.jit(f), torch.empty(0)
        w.learn(f, x, 0.5)
        w.change("a bound that eager refuses")
        w.call("raised", f, x, -1.0)
        w.call("hit", f, x, 0.5)


@script(2)
def power_in_place_is_that_of_a_number(w: World) -> None:
    def roots(x, y):
        y **= -0.5
        return x.pow_(0.5), y

    def by_argument(x, p):
        return x.pow_(p), x * 2

    values = torch.tensor([-math.inf, -0.0, 0.0, 4.0, math.inf, 2.0] * 3)
    f, g = w.jit(roots), w.jit(by_argument)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for ran in ("new", "hit"):
            w.call(ran, f, values.to(dtype, copy=True), values.to(dtype, copy=True), of=f)
            w.call(ran, g, values.to(dtype, copy=True), 0.5, of=g)


@script(2, rtol=2e-6)
def norm_of_one_element_takes_no_root(w: World) -> None:
    def f(x):
        v = torch.linalg.vector_norm
        return [v(x, p, dim=1) for p in (2, 3, 0.5, 0)] + [x.norm(dim=1, keepdim=True), F.normalize(x, dim=1)]

    f = w.jit(f)
    w.learn(f, torch.tensor([[3e38], [-1e-30], [2e20], [-1e-22], [0.0], [math.nan]]))
    w.change("other values")
    w.call("hit", f, torch.tensor([[-3e38], [1e-30], [-2e20], [math.inf], [-math.inf], [1.0]]))


@script(2, rtol=1e-5)
def spread_of_large_and_small_values(w: World) -> None:
    def f(x):
        return x.std(), x.std(1), x.std(0, keepdim=True)

    f, x = w.jit(f), torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    w.learn(f, x)
    for scale in (1e-30, 1e-22, 1e20, 1e30):
        w.change("another scale")
        results = w.call("hit", f, x * scale)
        w.watch(ratio=results[0] / scale)
    w.learn(f, (x * 1e20).bfloat16())


@script(2, rtol=1e-6)
def odd_orders_and_corrections(w: World) -> None:
    def norm(x, p):
        return torch.norm(x, p), x * 2

    def spread(x, correction):
        return torch.std(x, correction=correction), x * 2

    for f, first, odd in ((norm, 2.0, -1e39), (spread, 1.0, math.nan)):
        f = w.jit(f)
        for dtype in (torch.float32, torch.float64):
            x = torch.tensor([0.0, 1.0, 2.0, -3.0, 5.0, 1.5], dtype=dtype)
            w.learn(f, x, first)
            w.change("a number that torch takes in its own way")
            w.call("new" if dtype == torch.float32 else "hit", f, x, odd)
            w.call("hit", f, x, odd)
