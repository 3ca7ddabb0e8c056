"""How long does a user wait for the first call, with empty caches and with full ones?"""

from __future__ import annotations

import sys
import tempfile

import _harness as harness
from fastjit._bench import firstcall, table
from fastjit._bench.load import CaseSpec

CASE = CaseSpec(harness.CASES, "ten_ops")


Calls = list[firstcall.FirstCall]


def processes(variant: str, cold: int, warm: int, options: harness.Options) -> tuple[Calls, Calls, str]:
    """First calls of `cold` processes with empty caches and of `warm` ones with the last caches; or the error."""
    calls: tuple[Calls, Calls] = ([], [])
    try:
        for index in range(cold):
            with tempfile.TemporaryDirectory(prefix="fastjit-first-") as root:
                options.progress.say(f"{variant}, empty caches, process {index + 1} of {cold}")
                calls[0].append(firstcall.first_call(CASE, variant, root))
                if index + 1 < cold:
                    continue
                for again in range(warm):
                    options.progress.say(f"{variant}, full caches, process {again + 1} of {warm}")
                    calls[1].append(firstcall.first_call(CASE, variant, root))
    except firstcall.FirstCallError as error:
        return [], [], str(error)
    return *calls, ""


def over_eager(calls: Calls) -> float:
    """Best first call less eager's best: a disturbed call of eager makes nobody look fast."""
    return min(call.first_s for call in calls) - min(call.eager_s for call in calls)


def raw(calls: Calls) -> dict[str, list[float]]:
    return {
        "first_s": harness.short([call.first_s for call in calls]),
        "eager_s": harness.short([call.eager_s for call in calls]),
    }


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
        best[variant] = (over_eager(cold), over_eager(warm))
        samples[variant] = {"cold": raw(cold), "warm": raw(warm)}
        seconds = [table.seconds(value) for value in best[variant]]
        rows.append([variant, *seconds, f"{len(cold)} + {len(warm)}"])
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
