"""What does `import fastjit` add to a program that has imported torch?"""

from __future__ import annotations

import statistics
import subprocess
import sys

import _harness as harness
from fastjit._bench import table

# The decorator is asked for as well, so that a lazily loaded extension is counted.
PROGRAM = "import time, torch; t = time.perf_counter(); from fastjit import fastjit; print(time.perf_counter() - t)"


def body(options: harness.Options) -> harness.Outcome:
    found: list[float] = []
    detail = "median of fresh processes"
    for index in range(3 if options.quick else 11):
        options.progress.say(f"process {index + 1}")
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        if done.returncode != 0:
            detail = (done.stderr.strip().splitlines() or ["no output"])[-1]
            break
        found.append(float(done.stdout))
    median = statistics.median(found) if found else None
    row = [
        table.seconds(median),
        table.seconds(min(found, default=None)),
        table.seconds(max(found, default=None)),
        str(len(found)),
    ]
    return harness.Outcome(
        [harness.Target("`import fastjit` after `import torch`", 0.030, 0.010, median, unit="s", detail=detail)],
        [harness.Sheet("import fastjit after import torch", ["median", "best", "worst", "processes"], [row])],
        {"import_s": harness.short(found)},
    )


if __name__ == "__main__":
    sys.exit(harness.run("import_time", "Import", __doc__ or "", body))
