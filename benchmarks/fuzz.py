"""Random programs of torch calls against eager: `make fuzz`; FUZZ=first:last names the seeds, SAVE=1 keeps the count.

Without FUZZ the seeds are named by the date. What is kept (benchmarks/results/fuzz.json, shown in docs/correctness.md)
is added to what was kept before while the sources of the checker and of the programs are the same, else it starts anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HELPERS = ROOT / "tests" / "python" / "helpers"
PATH = ROOT / "benchmarks" / "results" / "fuzz.json"
CHECKER = ("random_programs.py", "random_compare.py", "shadows.py", "error_bounds.py")
# Programs a process: one that dies names its seeds.
CHUNK = 2000
WANTED = 100_000


def seeds_of_today() -> str:
    first = int(f"{date.today():%Y%m%d}") * 10_000
    return f"{first}:{first + 2000}"


def checker() -> str:
    """Names the sources that make and judge the programs."""
    return hashlib.sha256(b"".join((HELPERS / name).read_bytes() for name in CHECKER)).hexdigest()[:16]


def play(first: int, last: int) -> dict[str, Any]:
    """The programs of these seeds, in this process."""
    sys.path.insert(0, str(HELPERS))
    import torch

    import random_compare

    with torch.no_grad():
        wrong, found = random_compare.check_seeds(range(first, last))
    fallbacks: Counter[str] = Counter()
    for why, count in found.items():
        fallbacks[re.sub(r" at <program [^>]*>:\d+", "", why)] += count
    return {"first": first, "last": last, "wrong": wrong, "fallbacks": fallbacks}


def played(first: int, last: int) -> dict[str, Any]:
    """The same in a process of its own, with a cache of its own."""
    with tempfile.TemporaryDirectory(prefix="fastjit-fuzz-", ignore_cleanup_errors=True) as cache:
        command = [sys.executable, __file__, "--play", f"{first}:{last}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"FASTJIT_CACHE_DIR": cache})
    if done.returncode:
        wrong = [f"seeds {first}:{last}: the process ended with {done.returncode}\n"]
        return {"first": first, "last": last, "wrong": wrong, "fallbacks": {}}
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def joined(ranges: list[list[int]]) -> list[list[int]]:
    """Ranges of seeds without overlaps, in order."""
    out: list[list[int]] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1]:
            out[-1][1] = max(last, out[-1][1])
        else:
            out.append([first, last])
    return out


def kept() -> dict[str, Any]:
    nothing: dict[str, Any] = {"checker": checker(), "ranges": [], "fallbacks": {}, "wrong": 0}
    known = json.loads(PATH.read_text())["samples"] if PATH.exists() else nothing
    return known if known["checker"] == checker() else nothing


def keep(found: dict[str, Any], described: dict[str, Any]) -> None:
    """Adds a chunk to the result file; seeds that were counted before are not counted again."""
    taken = kept()
    if any(first < found["last"] and found["first"] < last for first, last in taken["ranges"]):
        return
    taken["ranges"] = joined([*taken["ranges"], [found["first"], found["last"]]])
    taken["fallbacks"] = dict(Counter(taken["fallbacks"]) + Counter(found["fallbacks"]))
    taken["wrong"] += len(found["wrong"])
    PATH.write_text(json.dumps(document(taken, described), indent=1) + "\n")


def document(taken: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    from _harness import SCHEMA, Sheet, Target

    count = sum(last - first for first, last in taken["ranges"])
    eager = sum(taken["fallbacks"].values())
    rows = [[str(first), str(last - 1), str(last - first)] for first, last in taken["ranges"]]
    sheets = [
        Sheet("Seeds", ["first", "last", "programs"], rows),
        Sheet(
            "What ran",
            ["", "programs"],
            [
                ["a program is played on the second call, and is right", str(count - eager - taken["wrong"])],
                *[[f"eager, and right: {why}", str(n)] for why, n in sorted(taken["fallbacks"].items())],
                ["wrong", str(taken["wrong"])],
            ],
        ),
    ]
    targets = [
        Target("random programs that were compared with eager", WANTED, None, count, "higher"),
        Target("random programs that differ from eager by more than the bounds", 0, None, taken["wrong"]),
    ]
    return {
        "schema": SCHEMA,
        "name": "fuzz",
        "title": "Random programs",
        "question": "Do programs that nobody chose give what eager gives?",
        "quick": False,
        "machine": described,
        "targets": [asdict(target) for target in targets],
        "tables": [asdict(sheet) for sheet in sheets],
        "samples": taken,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="?", default="", help="first:last, the last one not included")
    parser.add_argument("--save", action="store_true", help=f"count them in {PATH.name}")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    seeds = given.seeds or seeds_of_today()
    try:
        first, last = (int(n) for n in seeds.split(":"))
    except ValueError:
        parser.error(f"seeds are first:last, two whole numbers, not {seeds!r}")
    if given.play:
        print(json.dumps(play(first, last)))
        return 0
    print(f"fuzz: seeds {first}:{last}", flush=True)
    wrong: list[str] = []
    fallbacks: Counter[str] = Counter()
    for start in range(first, last, CHUNK):
        found = played(start, min(start + CHUNK, last))
        wrong += found["wrong"]
        fallbacks.update(found["fallbacks"])
        print("".join(f"\n{text}" for text in found["wrong"]), end="", flush=True)
        print(f"fuzz: {found['last'] - first} of {last - first}, {len(wrong)} wrong", file=sys.stderr, flush=True)
        if given.save:
            from fastjit._bench import machine

            keep(found, machine.describe() | {"threads": 1})
    for why, count in fallbacks.most_common():
        print(f"fuzz: eager {count}: {why}")
    print(f"fuzz: seeds {first}:{last}: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
