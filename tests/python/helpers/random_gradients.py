"""Seeded random programs that are differentiated, and how they are compared with eager.

A program is smooth where its values are rounded: what jumps, in value or in slope, takes only values that are eager's
bits.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch

from fastjit import fastjit
from random_programs import JOIN, MATMUL, VIEWS, Maker, Program, memory_of

FAMILIES = [
    [(4, 6), (6,), (1, 6), (4, 1), (6, 6)],
    [(3, 5), (5,), (5, 5)],
    [(9, 17), (17,), (9, 1)],
    [(2, 3, 4), (3, 4)],
]
TYPES = {torch.float32: 0.6, torch.float64: 0.2, torch.bfloat16: 0.2}
# kind -> (weight, texts). Of one operand.
SMOOTH = ["-{x}", "{x} * 0.5", "{x} + 1", "2 - {x}", "{x}.clone()", "{x} / 3.0", "{x}.contiguous()", "{x} * {s}"]
SMOOTH += ["torch.tanh({x})", "torch.sigmoid({x})", "torch.sin({x})", "torch.cos({x})", "torch.erf({x})", "F.gelu({x})"]
SMOOTH += [
    "F.silu({x})",
    "F.softplus({x})",
    "torch.exp(-{x} * {x})",
    "({x} * {x} + 0.5).sqrt()",
    "{x} ** 2",
    "{x} ** 3",
]
SMOOTH += [
    "torch.log1p({x} * {x})",
    "torch.rsqrt({x} * {x} + 1)",
    "1 / (2 + {x} * {x})",
    "F.mish({x})",
    "torch.atan({x})",
]
KINKED = [
    "torch.relu({x})",
    "{x}.abs()",
    "{x}.clamp(-1.0, 0.5)",
    "F.leaky_relu({x}, 0.1)",
    "F.hardtanh({x})",
    "F.elu({x})",
]
KINKED += [
    "torch.floor({x}) * {x}",
    "{x}.amax(-1)",
    "{x}.max(-1).values",
    "{x}.max(0, keepdim=True)[0]",
    "{x}.sort(-1)[0]",
]
KINKED += [
    "torch.where({x} > 0.1, {x}, {x} * 0.3)",
    "{x}.masked_fill({x} < -0.5, 0.0)",
    "F.hardswish({x})",
    "F.relu6({x})",
]
TWO = [
    "{x} + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "{x} / ({y} * {y} + 1)",
    "torch.addcmul({x}, {x}, {y})",
    "torch.lerp({x}, {y}, 0.3)",
]
TWO += [
    "torch.hypot({x} * {x} + 3, {y})",
    "F.mse_loss({x}, {y})",
    "torch.atan2({x}, {y} * {y} + 1)",
    "{x} * {y}.sigmoid()",
]
KINKED_TWO = [
    "torch.maximum({x}, {y})",
    "torch.minimum({x}, {y})",
    "torch.where({x} > {y}, {x}, {y} * 2)",
    "F.l1_loss({x}, {y})",
]
SUMS = ["{x}.sum()", "{x}.sum(0)", "{x}.sum(-1, keepdim=True)", "{x}.mean()", "{x}.mean(-1)", "torch.softmax({x}, -1)"]
SUMS += [
    "{x}.var(-1)",
    "F.layer_norm({x}, {x}.shape[-1:])",
    "{x}.cumsum(0)",
    "torch.log_softmax({x}, -1)",
    "{x}.logsumexp(-1)",
]
SUMS += ["F.rms_norm({x}, {x}.shape[-1:])", "({x} + 3).norm()", "F.softmax({x}, 0)", "F.normalize({x} + 2, dim=-1)"]
SUMS += [
    "{x}.square().sum(-1)",
    "torch.einsum('...i,...i->...', {x}, {x})",
    "{x}.logcumsumexp(0)",
    "{x}.float().sum(0)",
]
PRODUCTS = [
    *MATMUL,
    "torch.einsum('ij,kj->ik', {x}, {y})",
    "torch.outer({x}[..., 0].reshape(-1), {y}[..., 0].reshape(-1))",
]
PRODUCTS += ["torch.matmul({x}.transpose(-1, -2), {x})", "torch.bmm({x}[None], {x}.t()[None])[0]"]
PARTS = [
    "{x}[[0, 2]]",
    "{x}.gather(0, torch.zeros_like({x}, dtype=torch.int64))",
    "{x}.index_select(0, torch.tensor([1, 1, 0]))",
]
PARTS += [
    "F.pad({x}, (1, 2))",
    "{x}.roll(1, 0)",
    "{x}.tril()",
    "{x}.repeat(2, 1)",
    "{x}.repeat_interleave(2, 0)",
    "torch.flip({x}, [0])",
]
WRITES = [
    "{x}.add_({y})",
    "{x}.mul_({y})",
    "{x}.copy_({y})",
    "{x} += {y}",
    "{x}[0] = {y}",
    "{x}[..., 0] = {y}",
    "{x}[1:] = {y}",
]
WRITES += [
    "{x}[0:1] *= {y}",
    "{x}[..., 1] += {y}",
    "{x}.mul_(0.5)",
    "{x}.add_(1)",
    "{x}.zero_()",
    "{x}[0] = 1.5",
    "{x}.tanh_()",
]
WRITES += [
    "{x}[1:].mul_(2.0)",
    "{x}[0].add_({s})",
    "{x}.sigmoid_()",
    "{x}.neg_()",
    "{x}.addcmul_({y}, {y})",
    "{x}.fill_(0.5)",
]
CUT = ["{x}.detach()", "{x}.detach() * 2", "{x}.argmax(-1)", "torch.ones_like({x})", "{x}.data.sum()"]
CASTS = ["{x}.double()", "{x}.float()", "{x}.bfloat16()"]
KINDS = {
    "smooth": 20,
    "kinked": 6,
    "two": 18,
    "kinked two": 3,
    "sum": 12,
    "view": 14,
    "product": 8,
    "join": 5,
    "part": 5,
}
KINDS |= {"write": 10, "cut": 3, "cast": 3}
TEXTS = {"smooth": SMOOTH, "kinked": KINKED, "two": TWO, "kinked two": KINKED_TWO, "sum": SUMS, "view": VIEWS}
TEXTS |= {"product": PRODUCTS, "join": JOIN, "part": PARTS, "write": WRITES, "cut": CUT, "cast": CASTS}
EXACT = {"view", "join", "part", "write", "cut"}


@dataclasses.dataclass
class Case:
    """A program, its arguments, which of them require grad, and the seed of the gradients that it is given."""

    program: Program
    inputs: list[torch.Tensor]
    needs: list[bool]

    def shown(self) -> str:
        given = zip(self.program.arguments, self.inputs, self.needs, strict=True)
        rows = [f"{name}: {str(t.dtype)[6:]} {list(t.shape)}{' requires grad' * needs}" for name, t, needs in given]
        return f"seed {self.program.seed}\n{self.program.source()}{', '.join(rows)}; s = {self.program.number}\n"


class GradientMaker(Maker):
    """Programs of operators that are differentiated; only what the program makes is written."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        generator = torch.Generator().manual_seed(seed)
        family = rng.choice(FAMILIES)
        dtype = rng.choices(list(TYPES), list(TYPES.values()))[0]
        count = rng.randint(1, 4)
        self.inputs = [torch.randn(rng.choice(family), generator=generator).to(dtype) for _ in range(count)]
        self.needs = [rng.random() < 0.75 for _ in range(count)]
        self.needs[rng.randrange(count)] = True
        self.program.arguments = [f"a{i}" for i in range(count)]
        self.env = {name: t.clone() for name, t in zip(self.program.arguments, self.inputs, strict=True)}

    def step(self) -> None:
        rng, env = self.rng, self.env
        floats = [n for n in env if env[n].is_floating_point()]
        x, y = rng.choice([*floats, *floats[-3:]]), rng.choice(floats)
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        text, out = rng.choice(TEXTS[kind]), f"v{self.count}"
        uses = [x, y] if "{y}" in text else [x]
        given = {memory_of(env[name]) for name in self.program.arguments}
        is_alone = memory_of(env[x]) not in given and (len(uses) == 1 or memory_of(env[x]) != memory_of(env[y]))
        if kind == "write" and not is_alone:
            return
        if (kind.startswith("kinked") or "arg" in text) and self.taints(uses):
            return
        whole = text.format(x=x, y=y, s="s", out=out)
        target = x if kind == "write" else out
        if not self.run(whole if kind == "write" else f"{out} = {whole}", target):
            return
        if kind not in EXACT or self.taints(uses) or env[x].dtype == torch.bfloat16:
            memory = memory_of(env[target])
            self.program.tainted |= {n for n, t in env.items() if memory_of(t) == memory}
        self.program.lines.append(whole if kind == "write" else f"{out} = {whole}")
        self.count += kind != "write"

    def case(self) -> Case:
        wanted = self.rng.randint(2, 16)
        for _ in range(wanted * 4):
            if len(self.program.lines) >= wanted:
                break
            self.step()
        made = [n for n in self.env if n.startswith("v")]
        self.rng.shuffle(made)
        made.sort(key=lambda name: name != f"v{self.count - 1}")
        memory = {memory_of(self.env[name]) for name in self.program.arguments}
        for name in made:
            if len(self.program.outputs) < self.wanted_results() and memory_of(self.env[name]) not in memory:
                self.program.outputs.append(name)
                memory.add(memory_of(self.env[name]))
        return Case(self.program, self.inputs, self.needs)

    def wanted_results(self) -> int:
        return self.rng.choice([1, 1, 2, 3])


@dataclasses.dataclass
class Seen:
    """What one call and its way back showed."""

    flags: list[tuple[Any, ...]]
    values: list[torch.Tensor]


def leaves_of(case: Case, dtype: torch.dtype | None) -> list[torch.Tensor]:
    copies = [t.to(dtype or t.dtype, copy=True) for t in case.inputs]
    return [t.requires_grad_(needs) for t, needs in zip(copies, case.needs, strict=True)]


def went(case: Case, function: Callable[..., Any], turn: int, dtype: torch.dtype | None = None) -> Seen:
    """One call with `turn`'s choice of results and gradients: all results, some, or each in turn."""
    rng = random.Random(case.program.seed * 7 + turn)
    generator = torch.Generator().manual_seed(case.program.seed + turn)
    given = leaves_of(case, dtype)
    arguments = [t * 1 if t.requires_grad and rng.random() < 0.2 else t for t in given]
    results = list(function(*arguments, case.program.number))
    flags: list[tuple[Any, ...]] = [(t.requires_grad, t.is_leaf, t.dtype, t.shape, t.stride()) for t in results]
    chosen = [t for t in results if t.requires_grad]
    if turn and len(chosen) > 1:
        chosen = rng.sample(chosen, rng.randint(1, len(chosen)))
    grads = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in chosen]
    values = [t.detach().clone() for t in results]
    if turn % 2:
        for k, (t, g) in enumerate(zip(chosen, grads, strict=True)):
            t.backward(g, retain_graph=k + 1 < len(chosen))
    elif chosen:
        torch.autograd.backward(chosen, grads)
    flags += [(t.grad is None, t._version) for t in given]
    return Seen(flags, values + [t.grad for t in given if t.grad is not None])


def coarsest(case: Case) -> float:
    """The unit of the coarsest type that the program meets; a coarser one for f64, of which there is no finer truth."""
    source = case.program.source()
    known = {torch.bfloat16: "bfloat16", torch.float32: "float"}
    types = [t.dtype for t in case.inputs] + [d for d, text in known.items() if f".{text}()" in source]
    return max(2.0**-36, *(torch.finfo(dtype).eps for dtype in types))


UNITS, TIMES = 16, 32


def in_f64(case: Case, turn: int, want: Seen) -> list[torch.Tensor]:
    """What f64 gives; what eager gave, where the program names types that f64 does not go with."""
    try:
        return went(case, case.program.function(), turn, torch.float64).values
    except RuntimeError:
        return want.values


def difference(case: Case, got: Seen, want: Seen, turn: int) -> str:
    """What differs; a value may be UNITS of the coarsest type's off, or TIMES as far off from f64 as eager's."""
    if got.flags != want.flags:
        return f"call {turn + 1}: {got.flags} is not {want.flags}"
    truth: list[torch.Tensor] = []
    largest = max((float(w.abs().nan_to_num(0, 0, 0).max()) for w in want.values if w.numel()), default=0.0)
    for k, (g, w) in enumerate(zip(got.values, want.values, strict=True)):
        if torch.equal(g, w) or not g.numel():
            continue
        truth = truth or in_f64(case, turn, want)
        exact = truth[k].double()
        size = max(float(w.double().nan_to_num(0, 0, 0).abs().max()), largest / 16)
        own = float((w.double() - exact).abs().nan_to_num(0).max())
        apart = (g.double() - w.double()).abs()
        bad = ~((g == w) | (g.isnan() & w.isnan()) | (apart <= TIMES * own + UNITS * coarsest(case) * size))
        if bool(bad.any()):
            kind = "result" if k < len(case.program.outputs) else "gradient"
            is_so, eager, f64 = (t[bad][:4].tolist() for t in (g, w, exact))
            return f"call {turn + 1}: {kind} {k} is {is_so}, eager's {eager}, f64's {f64}"
    return ""


@dataclasses.dataclass
class Outcome:
    """What a case came to: `wrong` says how it differs, `eager` why it ran eagerly; `refused` by eager itself."""

    wrong: str = ""
    eager: str = ""
    refused: bool = False


TURNS = 4
SIZES = (11, 7, 13)  # that the first size of a family takes, one after the other
HITS_AT_SIZES: collections.Counter[str] = collections.Counter()


def resized(case: Case, size: int) -> Case:
    """The same program, where the first size of its first argument is another one, wherever it comes."""
    first = case.inputs[0].shape[0]
    generator = torch.Generator().manual_seed(case.program.seed + size)
    shapes = [[size if d == first else d for d in t.shape] for t in case.inputs]
    inputs = [torch.randn(s, generator=generator).to(t.dtype) for s, t in zip(shapes, case.inputs, strict=True)]
    return dataclasses.replace(case, inputs=inputs)


def at_sizes(case: Case, fast: Any) -> str:
    """How calls at other sizes differ; sizes that eager refuses are left out."""
    for size in (*SIZES, *SIZES):
        other = resized(case, size)
        try:
            want = went(other, case.program.function(), 0)
        except (RuntimeError, IndexError):
            continue
        before = fast.stats()
        try:
            got = went(other, fast, 0)
        except Exception as error:
            return f"at size {size} raised {type(error).__name__}: {error}"
        HITS_AT_SIZES["hit" if fast.stats().hits > before.hits else "recorded"] += 1
        if wrong := difference(other, got, want, 0):
            return f"at size {size}: {wrong}"
    return ""


def played(case: Case) -> Outcome:
    if not case.program.outputs:
        return Outcome(refused=True)
    function = case.program.function()
    try:
        want = [went(case, function, turn) for turn in range(TURNS)]
    except RuntimeError:  # autograd refuses: a tensor that it needs was written, say
        return Outcome(refused=True)
    if not any(flags[0] for flags in want[0].flags[: len(case.program.outputs)]):
        return Outcome(refused=True)
    fast = fastjit(on_unsupported="eager")(case.program.function())
    for turn in range(TURNS):
        try:
            got = went(case, fast, turn)
        except Exception as error:
            return Outcome(f"call {turn + 1} raised {type(error).__name__}: {error}")
        if wrong := difference(case, got, want[turn], turn):
            return Outcome(wrong)
    stats = fast.stats()
    if stats.fallbacks:
        return Outcome(eager=next(iter(stats.fallbacks)))
    if stats.hits != TURNS - stats.misses or stats.misses > 2:
        return Outcome(f"no hits: {stats}")
    return Outcome(at_sizes(case, fast))


def minimised(case: Case) -> Case:
    """Fewer lines and results that still are wrong."""
    changed = True
    while changed:
        changed = False
        for part in ("lines", "outputs"):
            items = getattr(case.program, part)
            for i in reversed(range(len(items))):
                if part == "outputs" and len(items) == 1:
                    break
                smaller = dataclasses.replace(case.program, **{part: items[:i] + items[i + 1 :]})
                if still_wrong(fewer := dataclasses.replace(case, program=smaller)):
                    case, items, changed = fewer, getattr(smaller, part), True
    return case


def still_wrong(case: Case) -> bool:
    try:
        return bool(played(case).wrong)
    except Exception:
        return False


def report(case: Case) -> str:
    small = minimised(case)
    return f"{played(small).wrong}\n{small.shown()}"
