"""Python code that reads sizes: a program follows what it does with them for any size, and is right at each."""

from __future__ import annotations

import linecache
import random
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastjit import fastjit
from helpers import assert_same, torch_threads
from random_compare import aliasing
from size_programs import BASE, Maker, Sizes, inputs

PROGRAMS = 300
PARTS = 4
CALLS = 7
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
ran: Counter[str] = Counter()


def compiled(source: str, seed: int) -> Any:
    name = f"<sizes {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "F": F}
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
        if not isinstance(w, Tensor):
            if type(g) is not type(w) or g != w:
                return f"result {k} is {g!r}, not {w!r}"
            continue
        if (g.dtype, g.shape, g.stride()) != (w.dtype, w.shape, w.stride()):
            return f"result {k} is {g.dtype, g.shape, g.stride()}, not {w.dtype, w.shape, w.stride()}"
        if not torch.allclose(g, w, rtol=1e-9, atol=1e-9, equal_nan=True):
            return f"result {k} differs by {(g - w).abs().max()}"
    alike = [aliasing([t for t in result if isinstance(t, Tensor)], args) for result in (got, wanted)]
    if alike[0] != alike[1]:
        return f"aliasing {alike[0]} is not {alike[1]}"
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
    with warnings.catch_warnings(), torch_threads(1):
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


@pytest.mark.parametrize("seed", [10044, 10308, 10509, 10514, 10767, 10781, 10958, 11036, 20814])
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
    "layer_norm": lambda x: F.layer_norm(x, x.shape[2:]),
    "padded": lambda x: F.pad(x, (1, 2)) * 2,
    "padded and cut": lambda x: F.pad(x, (0, 1, -1, 0, 2, 2), value=2.5),
    "padded to a size": lambda x: F.pad(x, (0, 0, 0, x.shape[0])) * 2,
    "padded as a mirror": lambda x: F.pad(x, (1, 3), mode="reflect"),
    "diff": lambda x: torch.diff(x, dim=1, prepend=x[:, :1]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_python_does_with_sizes(name: str) -> None:
    play_at(NUMBERS[name], cube)


PRODUCTS: dict[str, Any] = {
    "linear": lambda x, w, v: F.linear(x, w.t()),
    "linear with a bias": lambda x, w, v: F.linear(x, w.t(), w[0]),
    "linear of rows with gaps": lambda x, w, v: F.linear(x.transpose(0, 1), w.t(), w[0]),
    "folded": lambda x, w, v: x @ w,
    "by a vector": lambda x, w, v: x @ v,
    "a vector by": lambda x, w, v: v @ x.transpose(1, 2),
    "a matrix by": lambda x, w, v: w.t() @ x.transpose(1, 2),
    "batches": lambda x, w, v: x @ x.transpose(1, 2),
    "broadcast batches": lambda x, w, v: x.unsqueeze(1) @ x[:1].unsqueeze(0).transpose(-1, -2),
    "attention": lambda x, w, v: F.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_more_than_two_dims(name: str) -> None:
    w, v = torch.randn(6, 7, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    play_at(PRODUCTS[name], lambda i: (*cube(i), w, v))


PARTS_OF: dict[str, Any] = {
    "split in halves": lambda x: torch.cat(x.split(x.shape[1] // 2, 1)[::-1], 1),
    "split by sizes": lambda x: torch.cat(x.split([1, x.shape[1] - 1], 1)[::-1], 1),
    "views": lambda x: (x * 2).split([2, x.shape[1] - 2], 1),
    "chunk": lambda x: (lambda a, b: a * b)(*x.chunk(2, 1)),
    "chunk of the last": lambda x: F.scaled_dot_product_attention(*x.chunk(3, -1)),
    "tensor_split": lambda x: [part.sum() for part in x.tensor_split(2, 1)],
    "unbind of another dim": lambda x: [part * 2 for part in x.unbind(2)],
    "roll": lambda x: x.roll(1, 1) + x.roll((-1, 2), (0, 1)),
}


@pytest.mark.parametrize("name", PARTS_OF)
def test_parts_by_sizes(name: str) -> None:
    play_at(PARTS_OF[name], cube)


def test_how_many_parts_there_are_is_a_guard() -> None:
    fast = fastjit(lambda x: [part * 2 for part in x.split(5, 1)])
    for n in (11, 12, 13, 14, 17, 18, 19, 12, 18, 13):
        x = torch.randn(3, n)
        for got, want in zip(fast(x), x.split(5, 1), strict=True):
            assert_same(got, want * 2)
    assert (fast.stats().misses, fast.stats().hits) == (3, 7), fast.inspect("guards")


def test_as_many_parts_as_the_size_says_are_one_size() -> None:
    play_at(lambda x: sum(x.unbind(1)) * 2, cube, misses=4, calls=4)
    play_at(lambda x: sum(x.split(1, 1)) * 2, cube, misses=4, calls=4)


IMAGES: dict[str, Any] = {
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)) * 2,
    "pad by a size": lambda x: F.pad(x, (0, -x.shape[-1] % 8, 0, 0)) * 2,
    "reflect": lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect") * 2,
    "twice as large": lambda x: F.interpolate(x, scale_factor=2.0) * 2,
    "half": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear") * 2,
    "as another": lambda x: F.interpolate(x, size=x[..., ::2].shape[2:], mode="bilinear") * 2,
    "by sizes": lambda x: F.interpolate(x, (x.shape[2] * 3 // 2, x.shape[3] + 1), mode="bicubic", antialias=True) * 2,
    "transposed": lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 3, 3), stride=2, padding=1, output_padding=1) * 2,
    "shuffled": lambda x: F.pixel_shuffle(x, 2) * 2,
    "rounded up": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True) * 2,
    "indexed": lambda x: x[:, :, torch.tensor([0, 2, 1])] * 2,
    "indexed by two": lambda x: x[torch.tensor([[0], [1]]), :, torch.tensor([0, 2, 1])] * 2,
    "repeated": lambda x: x.repeat_interleave(3, 2) * 2,
    "summed": lambda x: torch.einsum("bchw,bcvw->bhv", x, x) * 2,
    "distances": lambda x: torch.cdist(x, x[:, :, 1:]) * 2,
    "line": lambda x: x * torch.linspace(0, 1, x.shape[-1]),
}


@pytest.mark.parametrize("name", IMAGES)
def test_what_operators_of_torch_give_follows_from_sizes(name: str) -> None:
    misses = 5 if name in ("pad by a size", "rounded up") else 2
    fast = fastjit(IMAGES[name])
    for i in range(10):
        x = torch.randn(3 + i % 3, 4, 6 + i, 7 + 2 * i)
        got, want = fast(x), IMAGES[name](x)
        assert_same(got, want)
        assert got.stride() == want.stride()
    assert fast.stats().fallbacks == {} and fast.stats().misses <= misses, (fast.stats(), fast.inspect("guards"))


def test_text_that_nothing_reads() -> None:
    """A message is made in each call, and read where the condition does not hold."""

    def f(x: Tensor) -> Tensor:
        n = x.shape[1]
        torch._assert(n % 2 == 0, f"{n} is odd, as {n + 1:04} is not, of {x.shape[0]} rows")
        return x * 2

    play_at(f, cube)
    fast = fastjit(f)
    for n in (4, 6, 8, 7, 10, 9):
        x = torch.randn(3, n)
        if n % 2 == 0:
            assert_same(fast(x), x * 2)
            continue
        with pytest.raises(AssertionError, match=f"{n} is odd, as 00{n + 1:02} is not, of 3 rows"):
            fast(x)
    assert fast.stats().hits == 2


def test_text_that_is_read() -> None:
    def f(x: Tensor) -> Tensor:
        text = f"{x.shape[0]} rows"
        torch._assert(True, text)
        return x * len(text) * (2 if text == "4 rows" else 3)

    play_at(f, lambda i: (torch.randn(3 + i, 4, dtype=torch.float64),), misses=4, calls=4)


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


class Sized:
    rows = count = 0


RESULTS: dict[str, Any] = {
    "a size": lambda x: (x * 2, x.shape[0]),
    "all": lambda x: (x * 2, x.shape, x.size()[1:]),
    "one twice": lambda x: (lambda n: (x * 2, n, n + n, [n]))(len(x)),
    "computed": lambda x: {"y": x * 2, "n": x.shape[0] * x.shape[1] // 2 - 1, "k": x.numel()},
    "of a result": lambda x: (x[:, ::2].exp(), x[:, ::2].shape),
    "the same in all": lambda x: (x * 2, x.shape[2], x.shape[-1:]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_sizes_that_are_returned(name: str) -> None:
    fast = fastjit(RESULTS[name])
    for i in range(8):
        (x,) = cube(i)
        got, want = (list(r.values()) if isinstance(r, dict) else list(r) for r in (fast(x), RESULTS[name](x)))
        assert_same(got[0], want[0])
        assert got[1:] == want[1:] and list(map(type, got)) == list(map(type, want))
    assert (fast.stats().misses, fast.stats().hits, fast.stats().fallbacks) == (2, 6, {}), fast.inspect("guards")


def test_sizes_that_are_stored() -> None:
    holder = Sized()

    def f(x: Tensor) -> Tensor:
        holder.rows, holder.count = x.shape[0] + 1, x.numel()
        return x * 2

    fast = fastjit(f)
    for i in range(8):
        (x,) = cube(i)
        assert_same(fast(x), x * 2)
        assert (holder.rows, holder.count) == (4 + i, x.numel()) and type(holder.rows) is int
    assert (fast.stats().misses, fast.stats().hits, fast.stats().fallbacks) == (2, 6, {}), fast.inspect("guards")


def test_a_size_that_is_returned_and_read_otherwise_is_one_size() -> None:
    fast = fastjit(lambda x: (lambda n: (x * len(str(n)), n, [n]))(x.shape[0]))
    for i in range(4):
        (x,) = cube(i)
        assert fast(x)[1:] == (3 + i, [3 + i])
    assert "x.size(0) is one size for Python code" in fast.inspect("guards")


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
