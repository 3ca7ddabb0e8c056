"""Requests of ever new sizes, and tokens that are generated one by one: what do recordings cost where none repeats?"""

from __future__ import annotations

import inspect
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import _harness as harness
import _traffic_models as models
from fastjit import fastjit
from fastjit._bench import table

CALLS = 30
SIZES = 20  # of each model, all different
LEARNT = 3  # calls after which no more are recorded
TOKENS = 128
SETTLED = 4  # the first token that must be a hit, as all after it


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    items = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


def check(got: Any, wanted: Any) -> None:
    for one, other in zip(tensors_of(got), tensors_of(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@dataclass
class Counts:
    """Calls at ever new sizes, from the first one: which were recorded, and how many kernels they compiled. Late are
    those in which no size is the second one of its dim, after the third call."""

    calls: int = 0
    early: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    late_kernels: int = 0
    seen: dict[tuple[int, int], set[int]] = field(default_factory=dict)

    def meet(self, args: models.Arguments) -> bool:
        """Whether some dim has its second size in this call."""
        is_second = False
        for i, tensor in enumerate(args):
            for dim, size in enumerate(tensor.shape):
                known = self.seen.setdefault((i, dim), set())
                is_second |= len(known) == 1 and size not in known
                known.add(size)
        return is_second


def counts(model: models.Model) -> Counts:
    eager, rng, found = model.make(), random.Random(0), Counts()
    fast = fastjit(lambda *args: eager(*args))
    seen: set[Any] = set()
    torch.manual_seed(0)
    while found.calls < SIZES:
        args = model.draw(rng)
        sizes = tuple(tensor.shape for tensor in args)
        if sizes in seen:
            continue
        seen.add(sizes)
        before = fast.stats()
        got = models.played(fast, eager, args)
        after = fast.stats()
        check(got, models.played(eager, eager, args))
        found.calls += 1
        is_early = found.meet(args) or found.calls <= LEARNT
        if after.misses > before.misses:
            (found.early if is_early else found.late).append(found.calls)
        found.late_kernels += 0 if is_early else after.compiles - before.compiles
    assert not fast.stats().fallbacks, fast.stats()
    return found


def counted(options: harness.Options) -> tuple[list[harness.Target], harness.Sheet]:
    """The figures and the table of models and functions at so many sizes each."""
    rows, late, kernels, count = [], [], 0, 0

    def add(name: str, of: list[models.Model]) -> None:
        nonlocal kernels, count
        found = [counts(model) for model in of]
        calls = sum(len(one.late) for one in found)
        new = sum(one.late_kernels for one in found)
        first = ", ".join(map(str, sorted({call for one in found for call in one.early})))
        rows.append([name, first, str(calls), str(new)])
        options.done(rows[-1])
        late.extend([name] * calls)
        kernels += new
        count += len(of)

    for model in models.MODELS:
        try:
            add(model.name, [model])
        except ImportError:
            rows.append([model.name, "its library is missing", "", ""])
    functions = models.functions()
    add(f"{len(functions)} chains and functions of chains.py and cases.py", functions)
    what = f"of {count} models and functions at {SIZES} random sizes each"
    targets = [
        harness.Target(
            f"recordings after the third size {what}", 0, None, len(late), detail=", ".join(sorted(set(late)))
        ),
        harness.Target("kernels compiled in those calls", 0, None, kernels),
    ]
    columns = ["model", "recorded calls", "recorded after the third size", "kernels that these compiled"]
    return targets, harness.Sheet(f"{SIZES} random sizes of each, none twice", columns, rows)


def traffic(of: models.Model) -> tuple[float, float, list[int]]:
    """Seconds of all calls in eager and compiled, recordings included, and which calls were recorded."""
    model, rng = of.make(), random.Random(0)
    fast = fastjit(lambda x: model(x))
    eager_s = fast_s = 0.0
    recorded = []
    with torch.no_grad():
        model(*of.draw(rng))  # torch's own first use
        for call in range(CALLS):
            (x,) = of.draw(rng)
            start = time.perf_counter()
            wanted = model(x)
            middle = time.perf_counter()
            got = fast(x)
            end = time.perf_counter()
            eager_s, fast_s = eager_s + middle - start, fast_s + end - middle
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
            if fast.stats().misses > len(recorded):
                recorded.append(call + 1)
    assert not fast.stats().fallbacks, fast.stats()
    return eager_s, fast_s, recorded


def generated(model: Any, forward: Any, ids: Tensor) -> tuple[Tensor, list[float]]:
    """What greedy decoding gives, and the seconds of each call of the model."""
    seconds: list[float] = []

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = forward(*args, **kwargs)
        seconds.append(time.perf_counter() - start)
        return result

    own = model.forward
    timed.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
    model.forward = timed
    try:
        return model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False), seconds
    finally:
        model.forward = own


def generate(name: str, batch: int) -> tuple[list[float], list[float], int]:
    """Seconds of each token in eager and compiled, and the first token from which on all are hits."""
    model: Any = models.of_transformers(name, 12)
    own = model.forward
    fast = fastjit(lambda *args, **kwargs: own(*args, **kwargs))
    ids = torch.randint(2, 1000, (batch, 8), generator=torch.Generator().manual_seed(1))
    hits: list[int] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        before = fast.stats().hits
        result = fast(*args, **kwargs)
        hits.append(fast.stats().hits - before)
        return result

    wanted, eager = generated(model, own, ids)
    got, compiled = generated(model, call, ids)
    assert torch.equal(got, wanted) and not fast.stats().fallbacks, fast.stats()
    first = next(i for i in range(len(hits) + 1) if all(hits[i:])) + 1
    _, eager_again = generated(model, own, ids)
    return eager + eager_again, compiled, first


def body(options: harness.Options) -> harness.Outcome:
    rows, ratios = [], {}
    for model in (models.TRANSFORMER, models.RESNET):
        eager_s, fast_s, recorded = traffic(model)
        ratios[model.name] = fast_s / eager_s
        rows.append([model.name, table.seconds(eager_s), table.seconds(fast_s), f"{fast_s / eager_s:.2f}",
                     ", ".join(map(str, recorded))])  # fmt: skip
    tokens, speedups, first = [], [], 0
    try:
        models.library_of("transformers")
        names = ["GPT-2", "Llama"]
    except ImportError:
        names = []
    for name in names:
        for batch in (1, 4):
            eager, fast, hit = generate(name, batch)
            eager_token, fast_token = statistics.median(eager[SETTLED:]), statistics.median(fast[SETTLED:])
            speedups.append(eager_token / fast_token)
            first = max(first, hit)
            tokens.append([f"{name}, batch {batch}", table.seconds(eager_token), table.seconds(fast_token),
                           f"{speedups[-1]:.2f}", str(hit)])  # fmt: skip
    recordings, sheet = counted(options)
    calls = f"{CALLS} calls of a transformer of {models.BLOCKS} blocks at random sizes"
    targets = [
        harness.Target(f"{calls}, recordings included, over eager", 1.0, 0.6, ratios[models.TRANSFORMER.name]),
        *recordings,
    ]
    if speedups:
        targets += [
            harness.Target("generate(): the first token from which on all calls are hits", SETTLED, None, first),
            harness.Target(
                "generate(): times as fast as eager, a token, the slowest model", 1.5, 3, min(speedups), "higher"
            ),
        ]
    return harness.Outcome(
        targets,
        [
            harness.Sheet(
                f"{CALLS} calls at random sizes", ["model", "eager", "fastjit", "over eager", "recorded calls"], rows
            ),
            sheet,
            harness.Sheet(
                f"greedy decoding of {TOKENS} tokens, 12 layers, width 256",
                ["model", "eager, a token", "fastjit, a token", "times as fast", "hits from token"],
                tokens,
            ),
        ],
        {},
    )


if __name__ == "__main__":
    sys.exit(harness.run("traffic", "Traffic", __doc__ or "", body))
