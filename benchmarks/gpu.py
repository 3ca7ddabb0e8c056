"""On an NVIDIA GPU: do calls of CUDA tensors beat eager, torch.jit and torch.compile?

A call's time is that of many calls in a row until the device has finished them, so that the slower of host and device
counts. Training is one forward and one backward pass of a model, whose gradients are compared. Needs a CUDA device;
without one it says so and writes nothing.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import _compare
import _harness as harness
import _training_programs as programs
from chains import CHAINS, SIZES, Chain
from fastjit import fastjit, of
from fastjit._bench import measure, table

VARIANTS = ("eager", "torch.jit.trace", "torch.compile", "fastjit")
COLUMNS = [*VARIANTS, "fastjit over best other [95 %]"]
SMALL, LARGE = 1 << 16, SIZES[-1]
SAMPLE_S = 4e-3
CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5, torch.float64: 1e-9}


@dataclass
class Case:
    """One function on the device, and what its variants took.

    `loose`: by how much sums of products may differ; in training, as a part of the largest gradient.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    loose: float = 0.0
    samples: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)  # seconds of the first call
    words: dict[str, str] = field(default_factory=dict)  # why a variant has no time
    kernels: str = "-"
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None  # what is measured of a variant


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [one for item in value for one in tensors(item)]


def build(name: str, case: Case) -> Callable[..., Any]:
    if name == "eager":
        return case.fn
    if name == "torch.jit.trace":
        return torch.jit.trace(case.fn, case.args, check_trace=False)  # type: ignore[no-any-return, no-untyped-call]
    if name == "torch.compile":
        torch._dynamo.reset()
        return torch.compile(case.fn, dynamic=False)
    return fastjit(copy.deepcopy(case.fn))  # a module comes back as itself: eager keeps its own


def check(case: Case, got: Any, expected: Any) -> None:
    largest = max(float(t.detach().abs().max()) for t in tensors(expected)) if case.around else 1.0
    for one, other in zip(tensors(got), tensors(expected), strict=True):
        close = CLOSE.get(other.dtype, 0.0)
        torch.testing.assert_close(one, other, rtol=close, atol=max(close, case.loose * largest), equal_nan=True)


def timer(call: Callable[..., Any], args: tuple[Any, ...]) -> measure.Timer:
    run = measure.make_timer(call, args, {})

    def timed(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(count)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return timed


def ready(name: str, case: Case, expected: Any) -> measure.Timer | None:
    """None, with a word on it in the case, where the variant does not run or is wrong."""
    torch.cuda.synchronize()
    try:
        start = time.perf_counter()
        made = build(name, case)
        call = case.around(made) if case.around else made
        got = call(*case.args)
        torch.cuda.synchronize()
        case.first[name] = time.perf_counter() - start
        for _ in range(3):
            got = call(*case.args)
        check(case, got, expected)
    except AssertionError as error:
        case.words[name] = "WRONG"
        print(f"{case.name}, {name}: {error}", file=sys.stderr)
        return None
    except Exception as error:  # a compiler under test may raise anything
        case.words[name] = "FAILED"
        print(f"{case.name}, {name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
        return None
    if name == "fastjit":
        stats = of(made).stats()
        if not stats.hits or stats.fallbacks:
            case.words[name] = "EAGER"
            print(f"{case.name}: {stats.fallbacks}", file=sys.stderr)
            return None
        case.kernels = f"{stats.kernels}/{stats.steps}"
    return timer(call, case.args)


def measured(case: Case, variants: tuple[str, ...], options: harness.Options) -> list[str]:
    options.progress.title(case.name)
    expected = case.around(case.fn)(*case.args) if case.around else case.fn(*case.args)
    timers = {name: made for name in variants if (made := ready(name, case, expected)) is not None}
    for run in timers.values():
        run(10)
    loops = {name: measure.calibrate(run, SAMPLE_S) for name, run in timers.items()}
    case.samples = measure.interleave(timers, loops, options.rounds)
    cells = [
        table.seconds(statistics.median(case.samples[name])) if name in case.samples else case.words.get(name, "-")
        for name in VARIANTS
    ]
    line = [*cells, table.interval(over_best(case))]
    options.done([case.name, *line])
    return line


def over_best(case: Case) -> measure.Interval | None:
    peers = [name for name in case.samples if name != "fastjit"]
    if "fastjit" not in case.samples or not peers:
        return None
    best = min(peers, key=lambda name: statistics.median(case.samples[name]))
    return measure.ratio_interval(case.samples[best], case.samples["fastjit"])


def copy_rate() -> float:
    """Bytes a second that a copy between two buffers of 256 MiB reads and writes."""
    source = torch.ones(1 << 26, device="cuda")
    target = torch.empty_like(source)
    run = timer(target.copy_, (source,))
    run(10)
    return 2 * source.numel() * 4 / (min(run(20) for _ in range(5)) / 20)


def share(case: Case, rate: float) -> float | None:
    """Bytes that the call must read and write, over those that a copy moves in its time."""
    if "fastjit" not in case.samples:
        return None
    moved = sum(t.numel() * t.element_size() for t in [*tensors(case.args), *tensors(case.fn(*case.args))])
    return moved / statistics.median(case.samples["fastjit"]) / rate


def chain_case(chain: Chain, n: int) -> Case:
    torch.manual_seed(0)
    inputs = tuple(t.cuda() for t in chain.inputs(n))
    halves = any(t.dtype in (torch.float16, torch.bfloat16) for t in inputs)
    # What is a half in eager may stay a float in the kernels of others.
    return Case(f"{chain.name} {_compare.size_name(n)}", chain.fn, inputs, 0.2 if halves else 0.0)


def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return nn.functional.gelu(nn.functional.linear(x, w, b))


def scaled_product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x.t(), y) * 100 + 10


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v


def products() -> list[Case]:
    torch.manual_seed(0)

    def random(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*sizes).to("cuda", dtype)

    made = []
    for n in (512, 4096):
        made.append(Case(f"mm(x.t(), y)*100+10 {n}", scaled_product, (random(n, n), random(n, n)), 0.5))
        half = [random(n, n, dtype=torch.bfloat16) for _ in range(2)]
        made.append(Case(f"linear+gelu bf16 {n}", linear_gelu, (*half, random(n, dtype=torch.bfloat16)), 1.0))
    heads = [random(8, 12, 256, 64) for _ in range(3)]
    made.append(Case("attention by hand, 8 x 12 x 256 x 64", attention, tuple(heads), 1e-4))
    return made


def models() -> list[Case]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 10))
    encoder = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, activation="gelu")
    made = [
        Case("MLP 64-256-256-10, 32 rows", mlp.eval().cuda(), (torch.randn(32, 64, device="cuda"),), 1e-4),
        Case("encoder layer, 16 x 128 x 512", encoder.eval().cuda(), (torch.randn(16, 128, 512, device="cuda"),), 1e-3),
    ]
    try:
        from torchvision.models import convnext_tiny, resnet18
    except ImportError:
        return made
    images = torch.randn(8, 3, 224, 224, device="cuda")
    for name, maker in (("resnet18", resnet18), ("convnext_tiny", convnext_tiny)):
        made.append(Case(f"{name}, 8 images", maker(weights=None).eval().cuda(), (images,), 2e-2))
    return made


class FastSwish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < -3, torch.zeros_like(x), torch.where(x > 3, x, x * (x + 3) / 6))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(64, 128)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[1], 128, device=x.device)
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
        return h


def both_ways(halves: bool) -> Callable[[Any], Callable[..., Any]]:
    """Around a model, or what was made of it: its result and the gradients of its parameters."""

    def around(forward: Any) -> Callable[..., Any]:
        parameters = list(forward.parameters())

        def step(x: Tensor) -> list[Tensor]:
            for parameter in parameters:
                parameter.grad = None
            with torch.enable_grad(), torch.autocast("cuda", torch.bfloat16, enabled=halves):
                out = forward(x)
                loss = out.float().square().mean()
            loss.backward()
            return [out.detach(), *(p.grad for p in parameters if p.grad is not None)]

        return step

    return around


def trained() -> list[Case]:
    torch.manual_seed(0)
    small = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 10))
    wide = nn.Sequential(nn.Linear(256, 1024), FastSwish(), nn.Linear(1024, 256), FastSwish(), nn.Linear(256, 10))
    encoder = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, activation="gelu")
    cases: list[tuple[str, nn.Module, tuple[int, ...], bool]] = [
        ("10 operators, 16M elements", programs.Chain(4096), (4096, 4096), False),
        ("MLP 64-256-256-10, 32 rows", small, (32, 64), False),
        ("MLP with FastSwish, 4096 rows", wide, (4096, 256), False),
        ("LSTM cell, 20 steps", Recurrent(), (20, 32, 64), False),
        ("encoder layer, 16 x 128 x 512", encoder, (16, 128, 512), False),
        ("encoder layer, bf16 autocast", encoder, (16, 128, 512), True),
    ]
    try:
        from torchvision.models import convnext_tiny, resnet18
    except ImportError:
        pass
    else:
        convnext = convnext_tiny(weights=None, stochastic_depth_prob=0.0)
        cases += [
            ("resnet18, 16 images", resnet18(weights=None), (16, 3, 224, 224), False),
            ("convnext_tiny, 8 images, bf16 autocast", convnext, (8, 3, 224, 224), True),
        ]
    made = []
    for name, model, sizes, halves in cases:
        on_device = model.cuda().train()
        x = torch.randn(sizes, device="cuda")
        made.append(Case(f"training: {name}", on_device, (x,), 5e-2 if halves else 5e-3, around=both_ways(halves)))
    return made


def geometric(cases: list[Case]) -> float | None:
    ratios = [ratio.value for case in cases if (ratio := over_best(case)) is not None]
    return harness.geometric_mean(ratios) if len(ratios) == len(cases) else None


def least(what: str, cases: list[Case], must: float, aim: float | None) -> harness.Target:
    ratios = {case.name: ratio.value for case in cases if (ratio := over_best(case)) is not None}
    return harness.worst(what, ratios, must, aim, better="higher")


def first_calls(cases: list[Case]) -> list[list[str]]:
    rows = []
    for name in VARIANTS:
        taken = sorted(case.first[name] for case in cases if name in case.first)
        if taken:
            rows.append([name, table.seconds(statistics.median(taken)), table.seconds(taken[-1])])
    return rows


def body(options: harness.Options) -> harness.Outcome:
    outcome = harness.Outcome()
    variants = tuple(name for name in VARIANTS if not (options.quick and name in ("torch.compile", "torch.jit.trace")))
    rate = copy_rate()
    chains: dict[int, list[Case]] = {SMALL: [], LARGE: []}
    for n, cases in chains.items():
        rows = []
        for chain in CHAINS:
            case = chain_case(chain, n)
            if not options.wants(case.name):
                continue
            cases.append(case)
            line = measured(case, variants, options)
            part = share(case, rate)
            rows.append([chain.kind, case.name, *line, "-" if part is None else f"{100 * part:.0f} %", case.kernels])
        title = f"24 chains of {_compare.size_name(n)} elements (a copy moves {rate / 1e12:.2f} TB/s)"
        columns = ["kind", "case", *COLUMNS, "of copy bandwidth", "kernels/steps"]
        outcome.sheets.append(harness.Sheet(title, columns, rows))
    others = {
        "Products with what follows": products(),
        "Models without gradients": models(),
        "Training, forward and backward": trained(),
    }
    for title, cases in others.items():
        cases[:] = [case for case in cases if options.wants(case.name)]
        some = tuple(name for name in variants if cases and not (cases[0].around and name == "torch.jit.trace"))
        lines = [[case.name, *measured(case, some, options), case.kernels] for case in cases]
        outcome.sheets.append(harness.Sheet(title, ["case", *COLUMNS, "kernels/steps"], lines))
    whole = [case for cases in (*chains.values(), *others.values()) for case in cases]
    outcome.sheets.append(harness.Sheet("First calls", ["variant", "median", "largest"], first_calls(whole)))
    for n, cases in chains.items():
        what = f"GPU, 24 chains of {_compare.size_name(n)}"
        outcome.targets.append(least(f"{what}, the least over the best peer", cases, 0.97, None))
        outcome.targets.append(
            harness.Target(f"{what}, geometric mean over the best peer", 1.0, 1.5, geometric(cases), "higher")
        )
    for title, cases in others.items():
        outcome.targets.append(
            least(f"GPU, {title[0].lower() + title[1:]}, the least over the best peer", cases, 0.97, 1.2)
        )
    outcome.samples = {
        case.name: {name: harness.short(values) for name, values in case.samples.items()}
        | {"first": {name: round(value, 4) for name, value in case.first.items()}, **case.words}
        for case in whole
    }
    return outcome


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs a CUDA device, and torch finds none")
    sys.exit(harness.run("gpu", "On a GPU", __doc__ or "", body))
