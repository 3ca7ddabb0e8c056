"""Seeded random programs of torch calls, made as source text. random_compare.py runs them.

A program that only rounds where eager rounds (+ - * /, casts, comparisons, moves) must give eager's bits. Values
that went through functions or sums carry a taint: they reach no step that jumps (comparison, floor, cast to integers).
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
class Program:
    seed: int
    lines: list[str]
    outputs: list[str]
    arguments: list[str]
    tainted: set[str]
    number: float

    def source(self) -> str:
        body = [row for line in self.lines for row in line.split("\n")]
        body.append(f"return {', '.join(self.outputs)},")
        return f"def program({', '.join(self.arguments)}, s):\n" + "".join(f"    {row}\n" for row in body)

    def function(self) -> Callable[..., Any]:
        source = self.source()
        name = f"<program {self.seed} {hash(source) & 0xFFFFFF:x}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        space: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(source, name, "exec"), space)
        return space["program"]  # type: ignore[no-any-return]


def memory_of(t: torch.Tensor) -> int:
    """Names the memory of a tensor; each storage of no bytes, whose pointer is null, is one of its own."""
    storage = t.untyped_storage()
    return storage.data_ptr() or -storage._cdata


def copy_all(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies that share memory, and overlap, as the given ones do."""
    memory: dict[int, torch.Tensor] = {}
    out = []
    for t in tensors:
        storage, key = t.untyped_storage(), memory_of(t)
        if key not in memory:
            whole = torch.empty(0, dtype=t.dtype).set_(storage, 0, (storage.nbytes() // t.element_size(),), (1,))
            memory[key] = whole.clone()
        out.append(memory[key].as_strided(t.size(), t.stride(), t.storage_offset()))
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
        # What the lines so far have made of copies of the inputs.
        self.env: dict[str, torch.Tensor] = dict(zip(names, copy_all(self.inputs), strict=True))
        self.count = 0

    def run(self, line: str, target: str) -> bool:
        """Runs one more line, which makes or writes `target`; False, and nothing has changed, where it is refused."""
        written = self.env.get(target)
        before = None if written is None else written.untyped_storage().clone()
        space: dict[str, Any] = {"torch": torch, "F": F, "s": self.program.number, **self.env}
        try:
            exec(line, space)
            made = space[target]
            touched = [made] if written is None else self.sharing(written)
            if isinstance(made, torch.Tensor) and all(map(tame, touched)):
                self.env[target] = made
                return True
        except (RuntimeError, IndexError, TypeError, ValueError):
            pass
        if written is not None:
            written.untyped_storage().copy_(before)
        return False

    def sharing(self, t: torch.Tensor) -> list[torch.Tensor]:
        return [other for other in self.env.values() if memory_of(other) == memory_of(t)]

    def taints(self, names: list[str]) -> bool:
        return any(n in self.program.tainted for n in names)

    def step(self) -> None:
        rng, env, tainted = self.rng, self.env, self.program.tainted
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
        target, uses, discontinuous = out, [x], False
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
            text = rng.choice(VIEWS)
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
                return
            m = rng.choice(masks)
            y = rng.choice(floats)
            uses = [x, y]
            if kind == "where":
                text = f"torch.where({m}, {{x}}, {{y}})"
            else:
                text, target = f"{{x}}[{m}] = 0.5", x
        writes = target != out
        if discontinuous and self.taints(uses):
            return
        # A cast to integers jumps too.
        if writes and not env[x].is_floating_point() and self.taints(uses):
            return
        if writes and len(uses) == 2 and memory_of(env[x]) == memory_of(env[y]):
            return  # eager's own result depends on the order in which elements are copied
        whole = text.format(x=x, y=y, s="s", out=out)
        line = whole if writes or kind == "loop" else f"{out} = {whole}"
        if not self.run(line, target):
            return
        rounds = kind in ("round", "sum", "matmul", "write2") and env[target].is_floating_point()
        if rounds or self.taints(uses):
            tainted.add(target)
            if writes:
                memory = memory_of(env[x])
                tainted |= {n for n, t in env.items() if memory_of(t) == memory}
        self.program.lines.append(line)
        self.count += not writes

    def make(self) -> tuple[Program, list[torch.Tensor]]:
        wanted = self.rng.randint(1, 30)
        for _ in range(wanted * 3):
            if len(self.program.lines) >= wanted:
                break
            self.step()
        names = sorted(self.env)
        last = [n for n in names if n.startswith("v")][-1:] or names[-1:]
        self.program.outputs = [*last, *self.rng.choices(names, k=self.rng.randint(0, 2))]
        return self.program, self.inputs


def tame(t: torch.Tensor) -> bool:
    return t.numel() <= 20000 and not (t.is_floating_point() and not bool((t.abs() < 1e3).all()))
