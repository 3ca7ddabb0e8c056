"""How much memory a training step needs over eager's, and how far its gradients are from f64 over eager's.

memory  of training.py's programs, the most that a step makes the process hold, in fresh processes
errors  of the same programs, what result and gradients differ from those of a copy in f64, over what eager's do
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import _harness as harness
from _training_programs import PROGRAMS, Program, fast_step, step_of
from fastjit._bench import firstcall, table

PARTS = ("memory", "errors")
WORKER = str(Path(__file__).resolve().parent / "_training_worker.py")
PROCESSES = 2  # a variant, of which the least counts; the first of them fills the disk cache
WARM_STEPS = 6
BATCHES = 32
FLOOR = 2 * torch.finfo(torch.float32).eps  # of the greatest element, see below
Found = dict[str, Any]
Step = Callable[[torch.Tensor], Any]


def memory(program: Program, threads: int | None) -> Found:
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="fastjit-training-", ignore_cleanup_errors=True) as root:
        for variant in ("eager", "fastjit"):
            order = {"program": program.name, "variant": variant, "threads": threads}
            calls = [firstcall.ask([WORKER], order, root) for _ in range(PROCESSES)]
            least = {key: min(call[key] for call in calls) for key in ("peak_bytes", "kept_bytes")}
            found[variant] = {**calls[-1], **least}
    return found


@torch.enable_grad()
def errors(program: Program) -> Found:
    """By result and parameter: the error of each variant over several batches, the lower quartile.

    Inputs are multiples of 1/64, so that f32 and f64 see the same tokens and the same side of every bound on x.
    """
    torch.manual_seed(0)
    model = program.make()
    torch.manual_seed(1)
    batches = [(torch.randn(*program.sizes) * 64).round() / 64 for _ in range(BATCHES)]
    start = copy.deepcopy(model.state_dict())
    models = {"exact": copy.deepcopy(model).double(), "eager": model, "fastjit": copy.deepcopy(model)}
    steps = {name: step_of(program, models[name], models[name]) for name in ("exact", "eager")}
    steps["fastjit"], fast = fast_step(program, models["fastjit"])
    for _ in range(WARM_STEPS):
        steps["fastjit"](batches[0])
    hits = fast.stats().hits
    of_batches: dict[str, dict[str, list[float]]] = {name: {} for name in ("eager", "fastjit")}
    for x in batches:
        got = {name: gradients(models[name], steps[name], start, x, exact=name == "exact") for name in steps}
        for variant, of_tensors in of_batches.items():
            for name, want in got["exact"].items():
                of_tensors.setdefault(name, []).append(error_of(got[variant][name], want))
    quartile = {
        variant: {name: sorted(of)[BATCHES // 4 - 1] for name, of in of_tensors.items()}
        for variant, of_tensors in of_batches.items()
    }
    return {
        **quartile,
        "all_hits": fast.stats().hits - hits == BATCHES,
        "fallbacks": dict(fast.stats().fallbacks),
    }


def gradients(model: nn.Module, step: Step, start: Found, x: torch.Tensor, exact: bool) -> dict[str, torch.Tensor]:
    """The step's result and gradients, from the same weights each time."""
    model.load_state_dict(start)
    if exact:
        torch.set_default_dtype(torch.float64)  # of what a forward pass makes
    found = {"result": step(x.double() if exact else x)}
    torch.set_default_dtype(torch.float32)
    return found | {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def error_of(got: torch.Tensor, want: torch.Tensor) -> float:
    """The greatest difference over the greatest element. A gradient that is zero has no error to speak of."""
    largest = float(want.abs().max())
    return float((got.double() - want).abs().max()) / largest if largest else 0.0


def ratios(found: Found) -> dict[str, float]:
    """Errors over eager's. One below two units in the last place of the greatest element counts as that: of so few
    roundings it is chance which variant has one more, and an eager error of zero would be no measure. Where eager's
    error is as large as the gradient, that is zero but for the roundings of f64."""
    return {
        name: max(error, FLOOR) / max(found["eager"][name], FLOOR)
        for name, error in found["fastjit"].items()
        if found["eager"][name] < 1
    }


def ran_as(found: Found) -> str:
    if found["all_hits"]:
        return "program"
    return "eager: " + ("; ".join(found["fallbacks"]) or "calls found no variant")


def memory_row(program: Program, found: Found) -> list[str]:
    sizes = " x ".join(map(str, program.large or program.sizes))
    bytes_of = [found["eager"]["peak_bytes"], *(found["fastjit"][key] for key in ("peak_bytes", "kept_bytes"))]
    over = found["fastjit"]["peak_bytes"] / found["eager"]["peak_bytes"]
    return [program.name, sizes, *map(table.size, bytes_of), table.figures(over), ran_as(found["fastjit"])]


def errors_row(program: Program, found: Found) -> list[str]:
    over = ratios(found)
    worst = max(over, key=lambda name: over[name])
    own = [f"{found[variant][worst]:.1e}" for variant in ("eager", "fastjit")]
    least, middle = min(over.values()), statistics.median(over.values())
    shown = [table.figures(over[worst]), worst, *own, table.figures(middle), table.figures(least)]
    return [program.name, str(len(over)), *shown, ran_as(found)]


def body(options: harness.Options) -> harness.Outcome:
    parts = options.given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"training_quality: no part '{min(unknown)}'; there are {', '.join(PARTS)}")
    found: dict[str, dict[str, Found]] = {part: {} for part in parts}
    rows: dict[str, list[list[str]]] = {part: [] for part in parts}
    for program in [one for one in PROGRAMS if one.ends == "gradient" and options.wants(one.name)]:
        for part in parts:
            options.progress.say(f"{program.name}, {part}")
            if part == "memory":
                got = memory(program, options.given.threads)
                rows[part].append(memory_row(program, got))
            else:
                got = errors(program)
                rows[part].append(errors_row(program, got))
            found[part][program.name] = got
            options.done(rows[part][-1])
    return harness.Outcome(targets(found), [SHEETS[part](rows[part]) for part in parts], found)


def targets(found: dict[str, dict[str, Found]]) -> list[harness.Target]:
    """A program whose calls were no hits ran eagerly: its row says so, and it is in no figure as a success."""
    made = []
    if "memory" in found:
        peaks = {
            name: got["fastjit"]["peak_bytes"] / got["eager"]["peak_bytes"]
            for name, got in found["memory"].items()
            if got["fastjit"]["all_hits"]
        }
        made.append(harness.worst("peak memory of a training step over eager's, largest", peaks, 1.0, None))
    if "errors" in found:
        over = {name: ratios(got) for name, got in found["errors"].items() if got["all_hits"]}
        largest = {name: max(of.values()) for name, of in over.items()}
        middle = {name: statistics.median(of.values()) for name, of in over.items()}
        what = "error of a result or gradient against f64 over eager's"
        made.append(harness.worst(f"{what}, largest", largest, 1.5, None))
        made.append(harness.worst(f"{what}, median of a program, largest", middle, 1.5, 1.0))
    return made


SHEETS = {
    "memory": lambda rows: harness.Sheet(
        "Peak memory of a step above model, optimizer's state and input",
        ["a step", "input", "eager", "fastjit", "code and tables that it keeps", "over eager's", "calls ran as"],
        rows,
    ),
    "errors": lambda rows: harness.Sheet(
        "Errors of the result and of every parameter's gradient against f64, over eager's",
        ["a step", "tensors", "largest", "of", "its error: eager", "fastjit", "median", "smallest", "calls ran as"],
        rows,
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated: " + ", ".join(PARTS))


QUESTION = """\
How much memory does a training step need, and how exact are its gradients? What a step makes the process hold at most,
gradients included, is measured in processes of its own; programs that need less than a megabyte have a larger batch
for it, since the kernel counts pages, to within some 250 KB. An error is the greatest difference of a tensor from that
of a copy of the model in f64, over its greatest element, in that of 32 batches where it is the eighth least: where a
network has kinks (relu), a value within rounding of one falls on the other side in up to half of the batches, of
eager's or of fastjit's, and those say nothing. Below two units in the last place of the greatest element an error
counts as so much: there it is chance which of two ways has one rounding more. A gradient that is zero (of a bias in
front of a batch normalisation), which f64 leaves as some roundings, is left out."""


if __name__ == "__main__":
    sys.exit(
        harness.run(
            "training_quality",
            "Memory and errors of training steps",
            QUESTION,
            body,
            add_options,
            apart=lambda given: set(given.parts.split(",")) != set(PARTS),
        )
    )
