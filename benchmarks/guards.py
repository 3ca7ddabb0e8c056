"""What do the checks of a 250-layer model cost a call, and what does recording it cost over running it?"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import _harness as harness
from fastjit import fastjit
from fastjit._bench import measure, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python" / "helpers"))

LAYERS = 250
CHECKS = "checking the facts of a call of the model"
PARAMETERS = "a hit that looks at every parameter, over one that looks at none"
RECORDINGS = 9


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(LAYERS)))


def recording_over_eager(x: torch.Tensor) -> list[float]:
    """Seconds of the watched first call of fresh functions of one model, less eager's median call."""
    net = model()
    net(x)
    eager = []
    for _ in range(RECORDINGS):
        start = time.perf_counter()
        net(x)
        eager.append(time.perf_counter() - start)
    over = []
    for _ in range(RECORDINGS):
        fast = fastjit(lambda x: net(x))
        fast(x)
        over.append(fast.stats().record_ms / 1e3 - statistics.median(eager))
    return over


def facts_of(net: torch.nn.Module, x: torch.Tensor) -> Any:
    """What the read observer notes of one call, as an object whose check_many(n) checks all of it n times.

    A hit of the whole model takes hundreds of microseconds of library calls: the check is timed by itself.
    """
    from observer_tools import built, observe
    from torch_host import TorchHost

    net(x)
    seen = observe(built(), net, x, host=TorchHost)
    assert seen.unsound == "" and len(seen.tensors) == 2 * LAYERS, seen.unsound
    assert seen.facts.check()
    return seen.facts


def parameters_checked(net: torch.nn.Sequential, rounds: int) -> list[float]:
    """Seconds by which a hit that compares all parameters of the layers is longer than one that reads none."""

    def all_of_them(x: torch.Tensor) -> torch.Tensor:
        for layer in net:
            if layer.weight.shape[0] != 4 or layer.bias.shape[0] != 4:  # type: ignore[union-attr, operator]
                return x
        return x + 1

    x, calls, over = torch.randn(4), 2000, []
    programs = [fastjit(all_of_them), fastjit(lambda x: x + 1)]
    for program in programs:
        program(x), program(x)
        assert program.stats().hits == 1, program.stats()
    for _ in range(rounds):
        seconds = []
        for program in programs:
            start = time.perf_counter()
            for _ in range(calls):
                program(x)
            seconds.append((time.perf_counter() - start) / calls)
        over.append(seconds[0] - seconds[1])
    return over


def body(options: harness.Options) -> harness.Outcome:
    x = torch.randn(4, 4)
    net = model()  # facts keep no model alive
    facts = facts_of(net, x)
    count = 2000
    checks = []
    for _ in range(options.rounds):
        start = time.perf_counter()
        good = facts.check_many(count)
        checks.append((time.perf_counter() - start) / count)
        assert good == count
    recording = recording_over_eager(x)
    compared = parameters_checked(net, options.rounds)
    samples = {PARAMETERS: compared, CHECKS: checks, "recording over an eager call": recording}
    rows = []
    for name, found in samples.items():
        low, middle, high = measure.quartiles(found)
        rows.append([name, *map(table.seconds, (middle, low, high))])
    return harness.Outcome(
        [
            harness.Target(
                "checking 250 Linear layers with 500 parameters, each compared, a call",
                3.5e-6,
                None,
                statistics.median(compared),
                unit="s",
                detail=f"the {len(facts.describe())} facts of the model's own forward take "
                f"{table.seconds(statistics.median(checks))} of such a call",
            ),
            harness.Target(
                "recording 250 Linear layers over the eager call", 40e-3, None, statistics.median(recording), unit="s"
            ),
        ],
        [harness.Sheet("250 Linear(4, 4), batch 4", ["what", "median", "25 %", "75 %"], rows)],
        {name: harness.short(found) for name, found in samples.items()},
    )


if __name__ == "__main__":
    sys.exit(harness.run("guards", "Guards", __doc__ or "", body))
