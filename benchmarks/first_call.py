"""How long does a user wait for the first call, with empty caches and with full ones?"""

from __future__ import annotations

import sys
import tempfile

import _harness as harness
from fastjit._bench import firstcall, table
from fastjit._bench.load import CaseSpec

CASE = CaseSpec(harness.CASES, "ten_ops")


def processes(variant: str, cold: int, warm: int, options: harness.Options) -> tuple[list[float], list[float], str]:
    """Seconds over eager of `cold` processes with empty caches and `warm` ones with the last caches; or the error."""
    over: tuple[list[float], list[float]] = ([], [])
    try:
        for index in range(cold):
            with tempfile.TemporaryDirectory(prefix="fastjit-first-") as root:
                options.progress.say(f"{variant}, empty caches, process {index + 1} of {cold}")
                over[0].append(firstcall.first_call(CASE, variant, root).over_eager_s)
                if index + 1 < cold:
                    continue
                for again in range(warm):
                    options.progress.say(f"{variant}, full caches, process {again + 1} of {warm}")
                    over[1].append(firstcall.first_call(CASE, variant, root).over_eager_s)
    except firstcall.FirstCallError as error:
        return [], [], str(error)
    return *over, ""


def body(options: harness.Options) -> harness.Outcome:
    count = 2 if options.quick else 5
    rows, samples, best = [], {}, {}
    detail = ""
    for variant, cold_runs, warm_runs in (
        ("torch.jit.trace", count, count),
        ("torch.compile", 0 if options.quick else 1, 1 if options.quick else 2),
        ("fastjit", count, count),
    ):
        if not cold_runs:
            continue
        cold, warm, problem = processes(variant, cold_runs, warm_runs, options)
        if problem:
            rows.append([variant, "-", "-", problem])
            detail = problem if variant == "fastjit" else detail
            continue
        best[variant] = (min(cold), min(warm))
        samples[variant] = {"cold_s": harness.short(cold), "warm_s": harness.short(warm)}
        rows.append([variant, table.seconds(min(cold)), table.seconds(min(warm)), f"{len(cold)} + {len(warm)}"])
    cold_best, warm_best = best.get("fastjit", (None, None))
    return harness.Outcome(
        [
            harness.Target(
                "first call over eager, empty cache, 10-op chain", 0.030, 0.010, cold_best, unit="s", detail=detail
            ),
            harness.Target("the same, full disk cache", 0.005, 0.001, warm_best, unit="s", detail=detail),
        ],
        [
            harness.Sheet(
                "First call over eager's call, 10-op chain, best of fresh processes",
                ["variant", "empty caches", "full caches", "processes"],
                rows,
            )
        ],
        samples,
    )


if __name__ == "__main__":
    sys.exit(harness.run("first_call", "First call", __doc__ or "", body))
