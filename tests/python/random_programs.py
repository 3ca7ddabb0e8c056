"""Seeded random programs of torch calls, made as source text. random_compare.py runs them.

A program that only rounds where eager rounds (+ - * /, casts, comparisons, moves) must give eager's bits. Values
that went through functions or sums carry a taint: they reach no step that jumps (comparison, floor, cast to integers),
and their bound is what the same program in f64 does when each result is moved by a few units of its own dtype.
"""

from __future__ import annotations

import dataclasses
import linecache
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

SHAPES = [(4, 6), (6,), (1, 6), (4, 1), (2, 4, 6), (6, 6), (3, 5), (5,), (17, 33), (33,), (7, 1, 33), ()]
UNARY_SAME = [
    "-{x}",
    "{x}.abs()",
    "torch.relu({x})",
    "{x}.clamp(-1.0, 0.5)",
    "{x} * 0.5",
    "{x} + 1",
    "2 - {x}",
    "{x}.clone()",
]
UNARY_SAME += ["{x} / 3.0", "torch.zeros_like({x})", "torch.ones_like({x})", "{x}.contiguous()"]
UNARY_ROUND = [
    "torch.tanh({x})",
    "torch.exp(-{x}.abs())",
    "torch.sigmoid({x})",
    "torch.sin({x})",
    "torch.cos({x})",
    "torch.erf({x})",
]
# The library behind eager's f32 sqrt is not correctly rounded on every machine; kernels are.
UNARY_ROUND += [
    "{x}.abs().sqrt()",
    "F.gelu({x})",
    "F.silu({x})",
    "torch.log1p({x}.abs())",
    "F.softplus({x})",
    "{x} ** 3",
    "torch.rsqrt({x}.abs() + 1)",
]
UNARY_JUMP = ["torch.floor({x})", "torch.round({x})", "torch.sign({x})", "torch.trunc({x})", "{x}.remainder(2.0)"]
BINARY_SAME = [
    "{x} + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "torch.maximum({x}, {y})",
    "torch.minimum({x}, {y})",
    "{x} / ({y}.abs() + 1)",
]
COMPARE = ["{x} > {y}", "{x} <= {y}", "{x} == {y}", "{x} < 0.1", "{x} >= 0", "torch.isnan({x})"]
VIEWS = [
    "{x}.t()",
    "{x}.transpose(0, -1)",
    "{x}[1:]",
    "{x}[:-1]",
    "{x}[0]",
    "{x}[-1]",
    "{x}[..., 0]",
    "{x}[..., ::2]",
    "{x}[..., 1:]",
]
VIEWS += [
    "{x}.unsqueeze(0)",
    "{x}.unsqueeze(-1)",
    "{x}.squeeze()",
    "{x}.reshape(-1)",
    "{x}.flatten()",
    "{x}.expand(3, *{x}.shape)",
]
VIEWS += [
    "{x}.chunk(2, -1)[0]",
    "{x}.chunk(2)[-1]",
    "{x}.diagonal()",
    "{x}.narrow(0, 1, 2)",
    "{x}.view(-1)",
    "{x}[None]",
    "{x}[1:3, 2:]",
]
VIEWS += ["{x}.unbind(0)[1]", "{x}.movedim(0, -1)", "{x}.flip(0)", "{x}.swapaxes(0, 1)", "{x}.split(2)[0]"]
SUMS = [
    "{x}.sum()",
    "{x}.sum(0)",
    "{x}.sum(-1, keepdim=True)",
    "{x}.mean()",
    "{x}.mean(-1)",
    "torch.softmax({x}, -1)",
    "{x}.var(-1)",
]
SUMS += [
    "F.layer_norm({x}, {x}.shape[-1:])",
    "{x}.cumsum(0)",
    "torch.log_softmax({x}, 0)",
    "{x}.norm()",
    "{x}.std(0, keepdim=True)",
]
EXTREMES = ["{x}.amax(-1)", "{x}.amin(0)", "{x}.amax()", "{x}.max(-1).values", "{x}.amax(0, keepdim=True)"]
IN_PLACE = [
    "{x}.add_({y})",
    "{x}.mul_({y})",
    "{x}.copy_({y})",
    "{x} += {y}",
    "{x}.sub_({y}, alpha=2)",
    "{x}[0] = {y}",
    "{x}[..., 0] = {y}",
]
IN_PLACE += ["{x}[1:] = {y}", "{x}[:] = {y}", "{x}[0:1] *= {y}", "{x}[..., 1] += {y}", "{x}[::2] = {y}"]
IN_PLACE_ONE = [
    "{x}.mul_(0.5)",
    "{x}.add_(1)",
    "{x}.zero_()",
    "{x}.fill_(0.25)",
    "{x}.relu_()",
    "{x}.clamp_(-1, 1)",
    "{x}.neg_()",
]
IN_PLACE_ONE += ["{x}[0] = 1.5", "{x}[..., -1] = 0", "{x}[1:].mul_(2.0)", "{x} *= {s}", "{x}[0].add_({s})"]
IN_PLACE_ROUND = ["{x}.tanh_()", "{x}.sigmoid_()", "{x}.sin_()"]
MATMUL = [
    "{x} @ {y}",
    "torch.mm({x}, {y})",
    "F.linear({x}, {y})",
    "torch.mm({x}.t(), {y})",
    "torch.matmul({x}, {y}.t())",
]
# Terms may cancel: the error is that of their magnitudes, not of the result's.
LINEAR = {text for text in SUMS if any(name in text for name in (".sum(", ".mean(", ".cumsum("))} | set(MATMUL)
JOIN = [
    "torch.cat([{x}, {y}])",
    "torch.cat([{x}, {y}], -1)",
    "torch.stack([{x}, {y}])",
    "torch.cat([{x}, {y}, {x}], 0)",
]
CASTS = {"double": torch.float64, "float": torch.float32, "bfloat16": torch.bfloat16, "half": torch.float16}
LOOPS = ["acc = {x}[0] * 0\nfor i in range({x}.shape[0]):\n    acc = acc + {x}[i]\n{out} = acc"]
LOOPS += ["{out} = {x}.clone()\nfor i in range({out}.shape[0] - 1):\n    {out}[i + 1] = {out}[i] * 0.5 + {out}[i + 1]"]


@dataclasses.dataclass
class Line:
    """One statement. `perturb` names what the twin moves after it, in units of `eps`; `magnitude`, an expression, is
    the sum of the magnitudes of up to `terms` terms that were added."""

    text: str
    perturb: str = ""
    eps: float = 0.0
    magnitude: str = "None"
    terms: int = 0


@dataclasses.dataclass
class Program:
    seed: int
    lines: list[Line]
    outputs: list[str]
    arguments: list[str]
    tainted: set[str]
    number: float

    def source(self, twin: bool = False) -> str:
        body = []
        for line in self.lines:
            text = line.text
            if twin:
                for name in ("double", "float", "bfloat16", "half"):
                    text = text.replace(f".{name}()", ".clone()" if name != "double" else ".double()")
            body += text.split("\n")
            if twin and line.perturb:
                body.append(f"_move({line.perturb}, {line.eps!r}, {line.magnitude}, {line.terms})")
        body.append(f"return {', '.join(self.outputs)},")
        return f"def program({', '.join(self.arguments)}, s):\n" + "".join(f"    {row}\n" for row in body)

    def function(self, twin: bool = False, **extra: Any) -> Callable[..., Any]:
        source = self.source(twin)
        name = f"<program {self.seed}{' twin' if twin else ''} {hash(source) & 0xFFFFFF:x}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        space: dict[str, Any] = {"torch": torch, "F": F, **extra}
        exec(compile(source, name, "exec"), space)
        return space["program"]  # type: ignore[no-any-return]


def copy_all(tensors: list[torch.Tensor], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Copies that share memory, and overlap, as the given ones do."""
    memory: dict[int, torch.Tensor] = {}
    out = []
    for t in tensors:
        storage = t.untyped_storage()
        if storage.data_ptr() not in memory:
            whole = torch.empty(0, dtype=t.dtype).set_(storage, 0, (storage.nbytes() // t.element_size(),), (1,))
            memory[storage.data_ptr()] = whole.to(dtype) if dtype and whole.is_floating_point() else whole.clone()
        base = memory[storage.data_ptr()]
        out.append(base.as_strided(t.size(), t.stride(), t.storage_offset()))
    return out


def arguments_of(rng: random.Random, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out: list[torch.Tensor] = []
    family = rng.choice([SHAPES[:6], SHAPES[6:8], SHAPES[8:11]])
    for _ in range(rng.randint(1, 4)):
        shape = rng.choice(family if rng.random() < 0.9 else SHAPES)
        kind = rng.random()
        if kind < 0.7:
            t = torch.randn(shape, generator=generator)
        elif kind < 0.8 and shape:
            t = torch.randn(shape[::-1], generator=generator).permute(*range(len(shape))[::-1])
        elif kind < 0.88:
            t = torch.randn((*shape, 2), generator=generator)[..., 1]
        elif kind < 0.94:
            t = torch.randint(-5, 6, shape, generator=generator)
        elif kind < 0.97 or not out:
            t = torch.randn(shape, generator=generator, dtype=torch.float64)
        else:
            t = out[-1][..., 1:] if out[-1].dim() else out[-1]  # shares memory
        out.append(t)
    return out


class Maker:
    """Grows a program step by step; a step that eager refuses, or whose values leave a tame range, is not taken."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inputs = arguments_of(self.rng, seed)
        names = [f"a{i}" for i in range(len(self.inputs))]
        self.program = Program(seed, [], [], names, set(), round(self.rng.uniform(-2, 2), 3))
        self.known = set(names)
        self.count = 0

    def run(self, lines: list[Line]) -> dict[str, Any] | None:
        trial = dataclasses.replace(self.program, lines=lines)
        names = sorted(self.known | {f"v{self.count}"})
        source = trial.source().rsplit("    return", 1)[0] + "    return {k: v for k, v in locals().items()}\n"
        space: dict[str, Any] = {"torch": torch, "F": F}
        try:
            exec(source, space)
            found = space["program"](*copy_all(self.inputs), self.program.number)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return None
        values = {k: v for k, v in found.items() if k in names}
        for value in values.values():
            if not isinstance(value, torch.Tensor) or value.numel() > 20000:
                return None
            if value.is_floating_point() and not bool((value.abs() < 1e3).all()):
                return None
        return values

    def taints(self, names: list[str]) -> bool:
        return any(n in self.program.tainted for n in names)

    def step(self, env: dict[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        rng, tainted = self.rng, self.program.tainted
        floats = [n for n in env if env[n].is_floating_point()]
        masks = [n for n in env if env[n].dtype == torch.bool]
        x, y = rng.choice(list(env)), rng.choice(list(env))
        if floats and rng.random() < 0.85:
            x = rng.choice(floats)
        out = f"v{self.count}"
        kind = rng.choices(
            [
                "same",
                "round",
                "jump",
                "binary",
                "compare",
                "view",
                "sum",
                "extreme",
                "write",
                "write1",
                "write2",
                "matmul",
                "join",
                "cast",
                "where",
                "loop",
                "mask",
            ],
            [14, 10, 3, 16, 4, 16, 8, 3, 8, 6, 2, 3, 4, 3, 4, 1, 3],
        )[0]
        target, uses, moved, discontinuous = out, [x], True, False
        s = "s"
        if kind == "same":
            text = rng.choice(UNARY_SAME)
        elif kind == "round":
            text = rng.choice(UNARY_ROUND)
        elif kind == "jump":
            text, discontinuous = rng.choice(UNARY_JUMP), True
        elif kind == "binary":
            text, uses = rng.choice(BINARY_SAME), [x, y]
        elif kind == "compare":
            text, uses, discontinuous = rng.choice(COMPARE), [x, y], True
        elif kind == "view":
            text, moved = rng.choice(VIEWS), False
        elif kind == "sum":
            text = rng.choice(SUMS)
        elif kind == "extreme":
            text = rng.choice(EXTREMES)
        elif kind == "write":
            text, target, uses = rng.choice(IN_PLACE), x, [x, y]
        elif kind == "write1":
            text, target = rng.choice(IN_PLACE_ONE), x
        elif kind == "write2":
            text, target = rng.choice(IN_PLACE_ROUND), x
        elif kind == "matmul":
            text, uses = rng.choice(MATMUL), [x, y]
        elif kind == "join":
            text, uses = rng.choice(JOIN), [x, y]
        elif kind == "cast":
            name = rng.choice(list(CASTS))
            text = f"{{x}}.{name}()"
            discontinuous = name != "double"
        elif kind == "loop":
            text = rng.choice(LOOPS)
        else:
            if not masks or not floats:
                return None
            m = rng.choice(masks)
            y = rng.choice(floats)
            uses = [x, y]
            if kind == "where":
                text = f"torch.where({m}, {{x}}, {{y}})"
            else:
                text, target = f"{{x}}[{m}] = 0.5", x
        if discontinuous and self.taints(uses):
            return None
        writes = target != out
        whole = text.format(x=x, y=y, s=s, out=out)
        line = Line(whole if writes or kind == "loop" else f"{out} = {whole}")
        values = self.run([*self.program.lines, line])
        if values is None:
            return None
        rounds = kind in ("round", "sum", "matmul", "write2") and values[target].is_floating_point()
        if not writes and out not in values:
            return None
        if writes and len(uses) == 2 and partly_overlaps(env[x], env[y]):
            return None
        if moved and values[target].is_floating_point():
            line.perturb, line.eps = target, torch.finfo(values[target].dtype).eps
            if text in LINEAR:
                line.magnitude = text.format(x=f"{x}.abs()", y=f"{y}.abs()")
                line.terms = env[x].numel()
        if rounds or self.taints(uses):
            if writes:  # everything that shares the memory
                memory = env[x].untyped_storage().data_ptr()
                tainted |= {n for n, t in env.items() if t.untyped_storage().data_ptr() == memory}
            tainted.add(target)
        self.program.lines.append(line)
        if not writes:
            self.known.add(out)
            self.count += 1
        return values

    def make(self) -> tuple[Program, list[torch.Tensor]]:
        env = self.run([]) or {}
        wanted = self.rng.randint(1, 30)
        for _ in range(wanted * 3):
            if len(self.program.lines) >= wanted:
                break
            env = self.step(env) or env
        names = sorted(env)
        last = [n for n in names if n.startswith("v")][-1:] or names[-1:]
        self.program.outputs = [*last, *self.rng.choices(names, k=self.rng.randint(0, 2))]
        return self.program, self.inputs


def partly_overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Eager's own result depends on the order in which elements are copied."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
