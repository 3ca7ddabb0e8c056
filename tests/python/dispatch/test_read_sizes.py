"""Python code that reads sizes: a program follows what it does with them for any size, and is right at each."""

from __future__ import annotations

import linecache
import random
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fastjit import fastjit
from helpers import assert_same
from random_compare import aliasing, one_thread
from size_programs import BASE, Maker, Sizes, inputs

PROGRAMS = 300
PARTS = 4
CALLS = 7
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
ran: Counter[str] = Counter()


def compiled(source: str, seed: int) -> Any:
    name = f"<sizes {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(source, name, "exec"), scope)
    return scope["f"]


def called(function: Any, args: list[Tensor]) -> tuple[Any, Exception | None]:
    try:
        return function(*args), None
    except Exception as error:
        return None, error


def difference(fast: Any, eager: Any, args: list[Tensor]) -> str:
    """What is wrong with one call, or nothing. All is in float64, where no order of a sum shows."""
    wanted, refused = called(eager, args)
    hits = fast.stats().hits
    got, raised = called(fast, args)
    ran["hit" if fast.stats().hits > hits else "raised" if refused else "recorded or eager"] += 1
    if type(raised) is not type(refused) or str(raised) != str(refused):
        return f"raised {raised!r}, eager {refused!r}"
    if refused:
        return ""
    for k, (g, w) in enumerate(zip(got, wanted, strict=True)):
        if (g.dtype, g.shape, g.stride()) != (w.dtype, w.shape, w.stride()):
            return f"result {k} is {g.dtype, g.shape, g.stride()}, not {w.dtype, w.shape, w.stride()}"
        if not torch.allclose(g, w, rtol=1e-9, atol=1e-9, equal_nan=True):
            return f"result {k} differs by {(g - w).abs().max()}"
    if aliasing(list(got), args) != aliasing(list(wanted), args):
        return f"aliasing {aliasing(list(got), args)} is not {aliasing(list(wanted), args)}"
    return ""


def play(seed: int) -> str:
    source = Maker(seed).make()
    fast, eager = fastjit(on_unsupported="eager")(compiled(source, seed)), compiled(source, seed)
    rng = random.Random(seed)
    free = [k for k in BASE if rng.random() < 0.7]
    for call in range(CALLS):
        choices = SIZES + ((1, 0) if rng.random() < 0.1 else ())
        sizes: Sizes = BASE | ({k: rng.choice(choices) for k in free} if call else {})
        if wrong := difference(fast, eager, inputs(sizes, seed + call)):
            return f"seed {seed}, call {call}, {sizes}: {wrong}\n{source}"
    return ""


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_that_read_sizes(part: int) -> None:
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore")
        wrong = [found for seed in range(part, PROGRAMS, PARTS) if (found := play(seed))]
    assert wrong == [], "\n".join(wrong)
    assert ran["hit"] > 0.3 * ran.total(), ran  # equality alone would pass a decorator that does nothing


def play_at(fn: Any, make: Any, misses: int = 2, calls: int = 8) -> Any:
    """Calls at sizes that grow: so many of them are recorded, all others are hits."""
    fast = fastjit(fn)
    for i in range(calls):
        args = make(i)
        assert_same(fast(*args), fn(*args))
    stats = fast.stats()
    assert stats.fallbacks == {} and (stats.misses, stats.hits) == (misses, calls - misses), fast.inspect("guards")
    return fast


@pytest.mark.parametrize("seed", [10044, 10308, 10509, 10514, 10767, 10781, 10958, 11036])
def test_programs_that_were_others_at_other_sizes(seed: int) -> None:
    """test_check.py records each hit of theirs again."""
    assert play(seed) == ""


def cube(i: int) -> tuple[Tensor]:
    return (torch.randn(3 + i, 4 + 2 * i, 6, dtype=torch.float64),)


def heads(x: Tensor) -> Tensor:
    b, n, c = x.shape
    q, k = x.reshape(b, n, 2, c // 2).permute(0, 2, 1, 3), x.view(b * n, c).reshape(b, n, 2, c // 2).transpose(1, 2)
    scores = q @ k.transpose(-2, -1) * (c // 2) ** -0.5
    return (scores.softmax(-1) @ q).transpose(1, 2).reshape(b, n, c)


NUMBERS: dict[str, Any] = {
    "views": heads,
    "unused": lambda x: (x.shape, x.size(), x.numel(), len(x), x * 2)[-1],
    "beside a tensor": lambda x: x * x.shape[0] / x.numel(),
    "floats": lambda x: x * (1 / x.shape[0]) + x.shape[1] ** -0.5,
    "arithmetic": lambda x: x.reshape(len(x) * x.shape[1] // 2 * 2, -1).sum(0) * -x.size(1),
    "unpacked": lambda x: x.reshape(-1, *x.shape[1:]) + torch.ones(*x.shape[:-1], 1),
    "joined": lambda x: x.new_zeros(x.shape[:-1] + (3,)) + x[..., :3],  # noqa: RUF005
    "made of sizes": lambda x: x + torch.arange(x.size(1))[:, None] + torch.full((len(x), 1, 1), 2.5),
    "expanded": lambda x: x[0].expand(x.shape[0], -1, -1) + x.repeat(1, 1, 1),
    "half": lambda x: (x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :] * 2),
    "last": lambda x: x[:, x.shape[1] - 1] + x[:, -1] + x[len(x) - 1, 0],
    "bounded": lambda x: x[1:, :-1, 2:5].exp(),
    "all": lambda x: x[: x.shape[0]] * 2,
    "all, from the first": lambda x: x[0 : len(x)] * 2,
    "more than all": lambda x: x[: x.shape[0] + 2] * 2,
    "all, twice": lambda x: x[: x.shape[0]][: x.shape[0]] * 2,
    "all of a product": lambda x: (x * 2)[: x.shape[0]] + 1,
    "all of two dims": lambda x: x[: x.shape[0], : x.shape[1]] * 2,
    "all and a part": lambda x: x[: x.shape[0], 1 : x.shape[1]] * 2,
    "all in steps": lambda x: x[: x.shape[0] : 2] * 2,
    "compared": lambda x: x * 2 if x.shape == x.clone().shape and x.size(0) > 2 else x,
    "larger": lambda x: x / max(x.shape[0], x.shape[1]),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[2:]),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 2)) * 2,
    "padded and cut": lambda x: torch.nn.functional.pad(x, (0, 1, -1, 0, 2, 2), value=2.5),
    "padded to a size": lambda x: torch.nn.functional.pad(x, (0, 0, 0, x.shape[0])) * 2,
    "padded as a mirror": lambda x: torch.nn.functional.pad(x, (1, 3), mode="reflect"),
    "diff": lambda x: torch.diff(x, dim=1, prepend=x[:, :1]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_python_does_with_sizes(name: str) -> None:
    play_at(NUMBERS[name], cube)


PRODUCTS: dict[str, Any] = {
    "linear": lambda x, w, v: torch.nn.functional.linear(x, w.t()),
    "linear with a bias": lambda x, w, v: torch.nn.functional.linear(x, w.t(), w[0]),
    "linear of rows with gaps": lambda x, w, v: torch.nn.functional.linear(x.transpose(0, 1), w.t(), w[0]),
    "folded": lambda x, w, v: x @ w,
    "by a vector": lambda x, w, v: x @ v,
    "a vector by": lambda x, w, v: v @ x.transpose(1, 2),
    "a matrix by": lambda x, w, v: w.t() @ x.transpose(1, 2),
    "batches": lambda x, w, v: x @ x.transpose(1, 2),
    "broadcast batches": lambda x, w, v: x.unsqueeze(1) @ x[:1].unsqueeze(0).transpose(-1, -2),
    "attention": lambda x, w, v: torch.nn.functional.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_more_than_two_dims(name: str) -> None:
    w, v = torch.randn(6, 7, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    play_at(PRODUCTS[name], lambda i: (*cube(i), w, v))


FIXES: dict[str, Any] = {
    "a loop": lambda x: sum(x[i] for i in range(x.shape[0])),
    "a slice": lambda x: x[(slice(x.shape[0]),)] * 2,
    "a key": lambda x: x * {n: n + 1 for n in range(40)}[x.shape[0]],
    "text": lambda x: x + len(f"{x.shape[0]:09}") + x.shape[0],
    "a result": lambda x: (x * 2, torch.ones(1) * x.shape[0])[0] if str(x.shape[0]) else x,
}


@pytest.mark.parametrize("name", FIXES)
def test_what_python_looks_at_itself_is_one_size(name: str) -> None:
    play_at(FIXES[name], lambda i: (torch.randn(3 + i, 4, dtype=torch.float64),), misses=4, calls=4)


def test_a_branch_is_a_guard() -> None:
    fast = play_at(lambda x: x * 2 if x.shape[1] % 4 == 0 else x + 1, cube, misses=3)
    assert "x.size(1) % 4" in fast.inspect("guards")


def test_a_size_that_is_returned() -> None:
    fast = fastjit(lambda x: (x * 2, x.shape[0], x.shape))
    for i in range(4):
        (x,) = cube(i)
        got = fast(x)
        assert got[1:] == (x.shape[0], x.shape) and type(got[1]) is int and type(got[2]) is torch.Size


def test_errors_are_those_of_the_sizes() -> None:
    fast = fastjit(lambda x: (x * 2)[x.shape[0] // 2, x.shape[1] - 6])
    for shape in ((3, 8), (4, 9), (5, 10), (9, 6), (2, 7)):
        x = torch.randn(shape)
        assert_same(fast(x), (x * 2)[shape[0] // 2, shape[1] - 6])
    with pytest.raises(IndexError, match="index -4 is out of bounds for dimension 1 with size 2"):
        fast(torch.randn(3, 2))
    assert fast.stats().hits >= 2


@pytest.mark.parametrize("layers", [1, 3])
def test_an_encoder_at_any_batch_and_length(layers: int) -> None:
    layer = torch.nn.TransformerEncoderLayer(12, 3, 24, batch_first=True, dropout=0.0, dtype=torch.float64)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).requires_grad_(False).train()
    play_at(lambda x: model(x), lambda i: (torch.randn(2 + i, 3 + 2 * i, 12, dtype=torch.float64),))


def test_a_number_that_follows_from_a_value_and_is_not_used() -> None:
    fast = fastjit(lambda x: (x * (1 - x.sum().item()), x * 2)[1])
    for i in range(3):
        x = torch.randn(3) + i
        assert_same(fast(x), x * 2)
    assert fast.stats().hits == 2
