"""Item 2: numbers that follow from number arguments, `-lr` or `1 - beta ** step`, take any value as those do."""

from __future__ import annotations

import functools
import math

import torch

from script_tools import World, script


def _data():
    return torch.linspace(-2, 2, 65)


@script(2)
def minus_of_an_argument(w: World) -> None:
    def f(x, lr):
        return x.add(x, alpha=-lr)

    f = w.jit(f)
    w.learn(f, _data(), 0.1)
    w.change("lr")
    w.call("hit", f, _data(), 0.3)
    w.call("hit", f, _data(), -0.0)
    w.call("hit", f, _data(), float("inf"))


@script(2)
def steps_of_adam(w: World) -> None:
    def f(x, g, m, v, step, lr):
        m.mul_(0.9).add_(g, alpha=1 - 0.9)
        v.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
        first, second = 1 - 0.9**step, 1 - 0.999**step
        x.addcdiv_(m, (v.sqrt() / math.sqrt(second)).add_(1e-8), value=-lr / first)

    f = w.jit(f)
    x, g, m, v = _data(), _data().cos(), torch.zeros(65), torch.zeros(65)
    w.learn(f, x, g, m, v, 1000, 1e-3)
    w.change("step and lr")
    w.call("hit", f, x, g, m, v, 1001, 2e-3)
    w.call("hit", f, x, g, m, v, 1002, 3e-3)
    w.call("hit", f, x, g, m, v, 10**9, 0.0)


@script(2)
def derived_numbers_in_the_result(w: World) -> None:
    def f(x, a):
        half = a / 2
        return x * half, half, {"minus": -half, "both": [half, half]}

    f = w.jit(f)
    w.learn(f, _data(), 3.0)
    w.change("a")
    out = w.call("hit", f, _data(), 5.0)
    assert out[1] is out[2]["both"][0] is out[2]["both"][1]


@script(2)
def derived_number_is_stored(w: World) -> None:
    class State:
        rate = 0.0

    state = State()

    def f(x, a):
        state.rate = a * 0.5
        return x * state.rate

    f = w.jit(f)
    w.watch(state=state)
    w.learn(f, _data(), 3.0)
    w.change("a")
    w.call("hit", f, _data(), 5.0)
    w.call("hit", f, _data(), 7.0)


@script(2)
def derived_number_is_compared(w: World) -> None:
    def f(x, a):
        return x * a if 2 * a > 5 else x / a

    f = w.jit(f)
    w.learn(f, _data(), 3.0)
    w.change("a")
    w.call("new", f, _data(), 2.0)
    w.call("hit", f, _data(), 3.0)


@script(2)
def base_is_compared_after_the_sum(w: World) -> None:
    def f(x, a):
        b = a + 1
        y = x * b
        return y if a > 0 else -y

    f = w.jit(f)
    w.learn(f, _data(), 3.0)
    w.change("a")
    w.call("new", f, _data(), -2.0)
    w.call("hit", f, _data(), 3.0)


@script(2)
def derived_number_becomes_an_index(w: World) -> None:
    def f(x, n):
        return x[n - 290 :] * 2

    f = w.jit(f)
    w.learn(f, _data(), 300)
    w.change("n")
    w.call("new", f, _data(), 301)
    w.call("hit", f, _data(), 300)


@script(2)
def derived_number_raises(w: World) -> None:
    def f(x, a, b):
        return x * (a / b)

    f = w.jit(f)
    w.learn(f, _data(), 3.0, 2.0)
    w.change("b")
    w.call("raises ZeroDivisionError", f, _data(), 3.0, 0.0)
    w.call("hit", f, _data(), 3.0, 4.0)


@script(2)
def unused_quotient_raises(w: World) -> None:
    def f(x, a):
        1 / a
        return x * 2

    f = w.jit(f)
    w.learn(f, _data(), 3.0)
    w.change("a")
    w.call("hit", f, _data(), 2.0)
    w.call("raises ZeroDivisionError", f, _data(), 0.0)


@script(2)
def derived_number_becomes_complex(w: World) -> None:
    def f(x, a):
        return x * a**0.5

    f = w.jit(f)
    w.learn(f, _data(), 3.0)
    w.change("a")
    w.call("was of type float, is of type complex", f, _data(), -3.0)
    w.call("hit", f, _data(), 4.0)


@script(2)
def derived_int_is_too_large(w: World) -> None:
    def f(x, n):
        return x * (n * n)

    f = w.jit(f)
    w.learn(f, _data(), 1000)
    w.change("n")
    w.call("hit", f, _data(), 2**30)
    w.call("number (n * n) at item2_numbers.py", f, _data(), 2**40)


@script(2)
def smaller_of_two_numbers(w: World) -> None:
    def f(x, a):
        return x * min(a, 2.0) + 2.0

    f = w.jit(f)
    w.learn(f, _data(), 3.0)
    w.change("a")
    w.call("new", f, _data(), 1.0)
    w.call("hit", f, _data(), 3.0)


@script(2)
def functions_of_math(w: World) -> None:
    def f(x, a):
        return x * math.exp(-a) + math.sqrt(a) - abs(a)

    f = w.jit(f)
    w.learn(f, _data(), 3.0)
    w.change("a")
    w.call("hit", f, _data(), 0.5)
    w.call("raises ValueError", f, _data(), -1.0)


@script(2)
def keywords_are_not_positions(w: World) -> None:
    def f(x, a):
        return x * round(a, ndigits=1) + functools.partial(round, ndigits=2)(a) + pow(exp=2.0, base=a)

    f = w.jit(f)
    w.learn(f, _data(), 3.123)
    w.change("a")
    w.call("new", f, _data(), 0.567)
    w.call("hit", f, _data(), 3.123)


@script(2)
def counter_grows_by_an_argument(w: World) -> None:
    class State:
        total = 1.0

    state = State()
    state.total = 1.0

    def f(x, a):
        state.total += a
        return x * a

    f = w.jit(f)
    w.watch(state=state)
    w.learn(f, _data(), 3.5)
    w.change("a")
    w.call("hit", f, _data(), 3.5)
    w.call("new", f, _data(), 4.5)


@script(2)
def global_beside_an_argument(w: World) -> None:
    class Config:
        pass

    config = Config()
    config.scale = 2.0

    def f(x, a):
        return x * (a * config.scale)

    f = w.jit(f)
    w.learn(f, _data(), 3.0)
    w.change("a")
    w.call("hit", f, _data(), 4.0)
    config.scale = 5.0
    w.change("scale")
    w.call("new", f, _data(), 4.0)
    w.call("hit", f, _data(), 6.0)


@script(2)
def time_step_is_a_small_int(w: World) -> None:
    f, x = w.jit(lambda x, t: x * (1 - 0.9**t) / (t + 1)), torch.arange(1.0, 5.0)
    w.call("new", f, x, 1)
    w.call("new", f, x, 2)
    for t in (3, 0, 7, 200, 300, -1, 1):
        w.change("the time step")
        w.call("hit", f, x, t)


@script(2)
def small_ints_are_handed_out(w: World) -> None:
    f, x = w.jit(lambda x, t: (x * t, t, t + 1, [t - 1])), torch.ones(3)
    w.call("new", f, x, 1)
    w.call("new", f, x, 2)
    for t in (0, 5, 256, 257, -5, -6):
        w.change("the number")
        w.call("hit", f, x, t)


@script(2)
def small_ints_decide(w: World) -> None:
    def f(x: torch.Tensor, t: int) -> torch.Tensor:
        if t is None or t > 3:
            return x * 2
        return x[:t] + t

    f, x = w.jit(f), torch.arange(4.0)
    for t in (1, 2, 4):
        w.call("new", f, x, t)
    for t in (1, 2, 4, 5):
        w.change("the number")
        w.call("hit", f, x, t)


@script(2)
def small_int_is_the_same_object(w: World) -> None:
    limit = 7
    f, x = w.jit(lambda x, t: x * 2 if t is limit else x * t), torch.ones(3)
    w.call("identity of int", f, x, 6)
    for t in (7, 8, 7):
        w.change("the number")
        w.call("identity of int", f, x, t)


@script(2)
def small_int_equals_a_constant_of_the_function(w: World) -> None:
    f, x = w.jit(lambda x, t: x * 3 + t), torch.ones(3)
    w.call("new", f, x, 1)
    w.call("new", f, x, 3)
    for t in (2, 4, 3, 1):
        w.change("the number")
        w.call("hit", f, x, t)
