"""What libraries ask of their own classes and tensors on the way: how often a tensor was written, which names a class
has, and in which order a product of several tensors is best taken."""

from __future__ import annotations

import copy
import decimal
import functools
import itertools
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fastjit
from helpers import assert_same, settle


def agree(fast: Any, eager: Any, *args: Any, hit: bool) -> None:
    before = fast.stats().hits
    assert_same(fast(*args), eager(*args), exact=True)
    assert fast.stats().hits == before + hit, fast.stats()


X = torch.arange(12.0).reshape(3, 4)


class Augmentation(nn.Module):
    """As those of kornia: keeps what it drew, with the count of writes to each tensor."""

    params: dict[str, Tensor] | None = None
    kept: tuple[dict[str, Tensor], tuple[tuple[str, Tensor, int], ...]] | None = None

    def commit(self, params: dict[str, Tensor]) -> None:
        self.params = params

    def forward(self, x: Tensor) -> Tensor:
        params = {"scale": torch.rand(3, 1), "shift": torch.zeros(3, 1).add_(1).mul_(2), "ones": torch.ones(2)}
        params["view"] = params["shift"][0]
        params["size"] = torch.tensor([3, 4])
        self.commit(params)
        self.commit(params)
        self.kept = params, tuple((name, value, value._version) for name, value in params.items())
        if params["shift"]._version != 2:
            return x
        return x * params["scale"] + params["shift"]


def test_how_often_a_new_tensor_was_written():
    ours, eager = Augmentation(), Augmentation()
    fast = fastjit.jit(lambda x: ours(x))
    for call in range(4):
        x = X + call
        torch.manual_seed(call)
        got = fast(x)
        torch.manual_seed(call)
        assert_same(got, eager(x), exact=True)
        assert_same(ours.params, eager.params, exact=True)
        params, snapshot = ours.kept  # type: ignore[misc]
        assert params is ours.params
        assert [version for _, _, version in snapshot] == [version for _, _, version in eager.kept[1]]  # type: ignore[index]
        for name, value, version in snapshot:
            assert params[name] is value and value._version == version, name
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}
    assert [version for _, _, version in ours.kept[1]] == [0, 2, 0, 2, 0]  # type: ignore[index]


KEPT = torch.ones(3, 4)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x + x._version,
        lambda x: x + x[0]._version,
        lambda x: x + x.detach()._version,
        lambda x: x + KEPT._version,
        lambda x: x + KEPT.view(-1)._version,
        lambda x: x + x.data._version,
    ],
)
def test_counts_of_writes_to_what_was_there_already(body: Any):
    fast = fastjit.jit(body)
    x = X.clone()
    for _ in range(3):
        agree(fast, body, x, hit=False)
        x.add_(1)
        KEPT.add_(1)
    assert "read of Tensor._version at test_library_state.py" in "".join(fast.stats().fallbacks)


class Listing(type):
    """As torchsde's: a class that is asked for the values of all its names."""

    def values(cls) -> list[Any]:
        return sorted(getattr(cls, name) for name in dir(cls) if not name.startswith("_"))

    def __contains__(cls, item: Any) -> bool:
        return item in cls.values()


class Common:
    a = "euler"


class Methods(Common, metaclass=Listing):
    b = "heun"


def by_method(x: Tensor) -> Tensor:
    return x * len(Methods.values()) if "heun" in Methods else -x


def test_the_names_of_a_class():
    fast = settle(by_method, X)
    assert "names in Methods" in "".join(fast.inspect("guards"))
    Methods.c = "milstein"  # type: ignore[attr-defined]
    agree(fast, by_method, X, hit=False)
    agree(fast, by_method, X, hit=True)
    Common.d = "midpoint"  # type: ignore[attr-defined]
    assert "the names in Common changed" in fast.explain(X)
    agree(fast, by_method, X, hit=False)
    agree(fast, by_method, X, hit=True)
    del Methods.c, Common.d  # type: ignore[attr-defined]
    agree(fast, by_method, X, hit=True)  # as at first
    Methods.b = "rk4"
    agree(fast, by_method, X, hit=False)
    Methods.b = "heun"
    Methods.unread_before = None  # type: ignore[attr-defined]
    del Methods.unread_before  # type: ignore[attr-defined]
    agree(fast, by_method, X, hit=True)


def test_a_metaclass_that_says_which_names_there_are():
    fast = settle(by_method, X)
    Listing.__dir__ = lambda cls: ["b"]  # type: ignore[method-assign,assignment]
    try:
        agree(fast, by_method, X, hit=False)
    finally:
        del Listing.__dir__
    agree(fast, by_method, X, hit=True)
    Listing.__bases__, before = (Named,), Listing.__bases__
    try:
        agree(fast, by_method, X, hit=False)
    finally:
        Listing.__bases__ = before


class Named(type):
    @property
    def __dict__(cls) -> dict[str, int]:  # type: ignore[override]
        return {"a": 1}


def test_dir_of_what_is_no_class():
    def body(x: Tensor) -> Tensor:
        return x * len(dir(HOLDER))

    fast = fastjit.jit(body)
    for call in range(3):
        setattr(HOLDER, f"more_{call}", call)
        agree(fast, body, X, hit=False)
    assert "call of dir at" in "".join(fast.stats().fallbacks)


HOLDER = Common()


TERMS = ["ij", "jk", "kl"]
SIZES = {"i": 2, "j": 3, "k": 4, "l": 5}


def cheapest(x: Tensor) -> Tensor:
    """As opt_einsum looks for a path."""
    inputs = tuple(map(frozenset, TERMS))
    output, best = frozenset("il"), float("inf")
    path: tuple[tuple[int, ...], ...] = ()
    remaining = set(range(len(inputs)))
    for i, j in itertools.combinations(remaining, 2):
        keep = frozenset.union(output, *map(inputs.__getitem__, remaining - {i, j}))
        cost = 1
        for name in inputs[i] | inputs[j]:
            cost *= SIZES[name]
        if cost < best:
            best, path = cost, ((i, j), (0, 1))
        if not keep:
            return x
    terms = list(inputs)
    taken = (terms.pop(i) for i in sorted(path[0], reverse=True))
    joined = "".join(sorted(frozenset.union(*taken), key="lkji".find))
    flat = [*itertools.chain.from_iterable(list(path))]
    return x * sum(map(len, path)) + flat[0] + len(flat) + best + {"kji": 1, "lkj": 2}.get(joined, 3)


def test_a_search_for_the_best_order_of_a_product():
    fast = settle(cheapest, X)
    TERMS[2] = "il"
    agree(fast, cheapest, X, hit=False)
    agree(fast, cheapest, X, hit=True)
    TERMS[2] = "kl"
    SIZES["i"] = 200
    agree(fast, cheapest, X, hit=False)
    agree(fast, cheapest, X, hit=True)
    SIZES["i"] = 2
    agree(fast, cheapest, X, hit=True)


GROUPS = ["ab", "bc"]


class Lengthy:
    def __len__(self) -> int:
        return len(GROUPS)


LENGTHY = Lengthy()


def test_what_generators_given_to_frozenset_read():
    def body(x: Tensor) -> Tensor:
        return x * len(frozenset.union(*(frozenset(group) for group in GROUPS)))

    fast = settle(body, X)
    GROUPS.append("xyz")
    agree(fast, body, X, hit=False)
    agree(fast, body, X, hit=True)
    GROUPS.pop()
    agree(fast, body, X, hit=True)


def test_lengths_that_a_mapped_len_finds():
    def lists(x: Tensor) -> Tensor:
        return x * sum(map(len, (GROUPS, "abc")))

    def instances(x: Tensor) -> Tensor:
        return x * sum(map(len, (LENGTHY,)))

    def later(x: Tensor) -> Tensor:
        groups = [("a",)]
        lengths = map(len, groups)
        groups.append(GROUPS)  # type: ignore[arg-type]
        return x * sum(lengths)

    for body in (lists, instances, later):
        fast = fastjit.jit(body)
        agree(fast, body, X, hit=False)
        GROUPS.append("more")
        agree(fast, body, X, hit=False)
        GROUPS.pop()
        agree(fast, body, X, hit=False)
        assert "map with len" in "".join(fast.stats().fallbacks)


COST = 3


def gain(x: Tensor) -> Tensor:
    costs = Decimal(COST), Decimal(7)
    return x * 2 if costs[0] / max(costs[1], Decimal(1)) > Decimal(1) else x


def test_numbers_of_decimal():
    fast = fastjit.jit(gain)
    with decimal.localcontext():
        decimal.getcontext().clear_flags()
        agree(fast, gain, X, hit=False)
        assert decimal.getcontext().flags[decimal.Inexact] and decimal.getcontext().flags[decimal.Rounded]
        agree(fast, gain, X, hit=True)  # the division would raise both again
        decimal.getcontext().clear_flags()
        assert "the context of decimal changed" in fast.explain(X)
        fast(X)
        assert decimal.getcontext().flags[decimal.Inexact] and decimal.getcontext().flags[decimal.Rounded]
        agree(fast, gain, X, hit=True)
        decimal.getcontext().prec = 5
        agree(fast, gain, X, hit=False)
        decimal.getcontext().traps[decimal.Inexact] = True
        for _ in range(2):
            with pytest.raises(decimal.Inexact):
                fast(X)
        decimal.getcontext().traps[decimal.Inexact] = False
        agree(fast, gain, X, hit=True)
        decimal.getcontext().Emax = 20  # a context of which FastJIT keeps no account
        agree(fast, gain, X, hit=False)
        agree(fast, gain, X, hit=False)


def test_an_int_that_decimal_is_made_of():
    global COST
    with decimal.localcontext():
        gain(X)
        fast = settle(gain, X)
        COST = 70
        agree(fast, gain, X, hit=False)
        agree(fast, gain, X, hit=True)
        COST = 3
        agree(fast, gain, X, hit=True)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x * float(Decimal("1.5")),
        lambda x: x * int(Decimal(9).sqrt()),
        lambda x: (x + 1, Decimal(9)),
        lambda x: x if decimal.getcontext().prec > 1 else -x,
    ],
)
def test_other_uses_of_decimal(body: Any):
    fast = fastjit.jit(body)
    for _ in range(2):
        before = fast.stats().hits
        fast(X)
        assert fast.stats().hits == before and fast.stats().fallbacks


def test_tuples_in_a_row_that_are_walked_later():
    def body(x: Tensor) -> Tensor:
        groups = [("a",)]
        names = itertools.chain.from_iterable(groups)
        groups.append(GROUPS)  # type: ignore[arg-type]
        return x * len([*names])

    fast = fastjit.jit(body)
    for _ in range(2):
        agree(fast, body, X, hit=False)
        GROUPS.append("more")
    del GROUPS[2:]
    assert "call of chain.from_iterable at" in "".join(fast.stats().fallbacks)


class Option:
    scale = 0.5


class Other:
    pass


@functools.singledispatch
def scaled_by(by: object, x: Tensor) -> Tensor:
    return x


@scaled_by.register
def _(by: int, x: Tensor) -> Tensor:
    return x * by


@scaled_by.register
def _(by: Option, x: Tensor) -> Tensor:
    return x - by.scale


def test_functions_by_the_class_of_their_first_argument():
    """functools.singledispatch keeps what it found by weak references to classes."""
    option, other = Option(), Other()

    def body(x: Tensor) -> Tensor:
        return scaled_by(3, x) + scaled_by(option, x) + scaled_by(other, x)

    fast = fastjit.jit(body)
    for call in range(5):
        assert_same(fast(X), body(X), exact=True)
        assert fast.stats().hits >= call - 1
    option.scale = 7.0
    agree(fast, body, X, hit=False)
    agree(fast, body, X, hit=True)

    @scaled_by.register
    def _(by: Other, x: Tensor) -> Tensor:
        return x * 100

    for _ in range(3):
        assert_same(fast(X), body(X), exact=True)
    agree(fast, body, X, hit=True)


def test_copies_of_new_instances():
    def body(x: Tensor) -> Tensor:
        made = Option()
        made.scale = 3.0
        again = copy.copy(made)
        again.scale += 1
        return x * made.scale + copy.deepcopy(again).scale

    agree(fastjit.jit(body), body, X, hit=False)
    fast = fastjit.jit(body)
    agree(fast, body, X, hit=False)
    agree(fast, body, X, hit=True)


INDEXED = """
import torch, fastjit
X = torch.arange(4.0)
f = fastjit.jit(lambda x: x[1:] * 2)
f(X), f(X)
torch.Tensor.__getitem__ = lambda a, i: a.neg()
assert f(X).tolist() == [-0.0, -2.0, -4.0, -6.0] and f.stats().hits == 1, f.stats()
del torch.Tensor.__getitem__
assert f(X).tolist() == [2.0, 4.0, 6.0] and f.stats().hits == 2, f.stats()
"""


def test_an_index_operator_of_the_class_of_tensors():
    """In a process of its own: Python takes a class that had one in Python for a sequence ever after."""
    subprocess.run([sys.executable, "-c", INDEXED], check=True)


TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_numbers_of_an_array_that_is_found():
    def numbers(x: Tensor) -> Tensor:
        rows, columns = TABLE.shape
        return x * float(TABLE[1, 2]) + rows * columns + TABLE.ndim + torch.tensor(TABLE).sum()

    fast = settle(numbers, X)
    TABLE[1, 2] = 9
    agree(fast, numbers, X, hit=False)
    agree(fast, numbers, X, hit=True)
    assert "the elements of " in fast.inspect("guards")
    TABLE[1, 2] = 5


def test_a_tensor_of_an_array_is_its_own():
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.tensor(TABLE)
        made.add_(1)
        return made, x + made[0, 0]

    fast = settle(body, X)
    fast(X)[0].zero_()
    agree(fast, body, X, hit=True)
    assert TABLE[0, 0] == 0
