"""Item 2: numbers read out of tensors that only leave with the result, or are kept, are no guards."""

from __future__ import annotations

import torch

from script_tools import World, script


def _data(k):
    return torch.tensor([1.0, 2.5, -3.0]) * k


@script(2)
def item_is_the_result(w: World) -> None:
    def f(x):
        return x.sum().item()

    f = w.jit(f)
    w.learn(f, _data(1))
    w.change("other data")
    w.call("hit", f, _data(3))
    w.call("hit", f, _data(float("nan")))


@script(2)
def items_in_a_dictionary(w: World) -> None:
    def f(x):
        return {"max": x.max().item(), "all": [x.min().item(), float(x.sum())], "x": x * 2}

    f = w.jit(f)
    w.learn(f, _data(1))
    w.change("other data")
    w.call("hit", f, _data(-2))


@script(2)
def one_item_twice(w: World) -> None:
    def f(x):
        m = x.max().item()
        return x * m, m, [m]

    f = w.jit(f)
    w.learn(f, _data(1))
    w.change("other data")
    w.call("hit", f, _data(-2))


@script(2)
def item_read_before_a_write(w: World) -> None:
    def f(x):
        before = x.max().item()
        x.mul_(2)
        return before, x.max().item()

    f = w.jit(f)
    w.learn(f, _data(1))
    w.change("other data")
    w.call("hit", f, _data(-2))


@script(2)
def item_of_a_0d_argument(w: World) -> None:
    def f(t):
        v = t.item()
        t.add_(1)
        return v

    f = w.jit(f)
    w.learn(f, torch.tensor(2.0, dtype=torch.float64))
    w.change("another number")
    w.call("hit", f, torch.tensor(5.0, dtype=torch.float64))


@script(2)
def item_kept_in_a_list(w: World) -> None:
    g = w.source("LOG = []\ndef f(x):\n    LOG.append(x.sum().item())\n    return x * 2\n")
    f = w.jit(g["f"])
    w.watch(log=g["LOG"])
    w.learn(f, _data(1))
    w.change("other data")
    w.call("hit", f, _data(4))


@script(2)
def item_that_is_looked_at_too(w: World) -> None:
    def f(x):
        m = x.max().item()
        return m if round(m, 6) > 0 else -m

    f = w.jit(f)
    w.learn(f, _data(1))
    w.change("other data: another value of the guard")
    w.learn(f, _data(-2))
    w.call("hit", f, _data(1))


@script(2)
def item_summed_with_others(w: World) -> None:
    def f(x):
        pair = (x.max().item(), 2.0)
        return x * sum(pair)

    f = w.jit(f)
    w.learn(f, _data(1))
    w.change("other data: another value of the guard")
    w.learn(f, _data(2))
    w.call("hit", f, _data(1))
