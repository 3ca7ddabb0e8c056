"""20 models of timm, torchvision and transformers: how long is the first call, how fast and how large the later ones?

Each part of each model is measured in processes of its own, with caches of its own:

first   the first call in a process with empty caches, over eager's call in the same process; the same with the caches
        that this process left; torch.compile's first call, ended after --limit seconds
steady  eager, torch.jit.trace, torch.compile and fastjit, interleaved, outputs checked before anything is timed
memory  the most that a call makes the process hold, eager's and fastjit's (_model_worker.py says how)
deep    first calls of long programs, and how many kernels 48 equal layers compile

A model whose calls are no hits ran eagerly: it stands in the table with its reason and in no figure as a success.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _harness as harness
import _model_tables as tables
import _zoo as zoo
from fastjit._bench import firstcall, machine
from fastjit._bench.load import CaseSpec
from fastjit._bench.models import write_case

PARTS = ("first", "steady", "memory", "deep")
PEERS = {"all": ["torch.jit.trace", "torch.compile"], "jit": ["torch.jit.trace"], "none": []}
WORKER = str(Path(__file__).resolve().parent / "_model_worker.py")
ROUNDS = 7  # unless --rounds says otherwise: a call takes tens of milliseconds
LIMIT_S = 60.0
Found = dict[str, Any]


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated: " + ", ".join(PARTS))
    parser.add_argument("--peers", choices=list(PEERS), default="all", help="none and jit: without torch.compile")
    parser.add_argument("--batches", default="1,8", help="of the steady state (default 1,8)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for torch.compile's first call (60)")
    parser.add_argument("--processes", type=int, default=2, help="of which the best first call counts (2)")
    parser.add_argument(
        "--keep", type=Path, help="a file that holds what is measured so far; what it has is not measured again"
    )


def is_part_of_all(given: argparse.Namespace) -> bool:
    return set(given.parts.split(",")) != set(PARTS) or given.peers == "none" or given.batches != "1,8"


class Kept:
    """Measurements by case and part, written after each one where --keep names a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.taken_with = _taken_with()
        self.found: dict[str, Found] = {}
        if path is not None and path.exists():
            document = json.loads(path.read_text())
            if document["taken_with"] != self.taken_with:
                raise SystemExit(f"models: {path} was taken with another machine or build; remove it or name another")
            self.found = document["found"]

    def measure(self, case: str, part: str, run: Callable[[], Found], options: harness.Options) -> Found:
        of_case = self.found.setdefault(case, {})
        if part not in of_case or of_case[part].get("error"):
            options.progress.say(f"{case}, {part}")
            try:
                of_case[part] = run()
            except (firstcall.FirstCallError, subprocess.TimeoutExpired) as error:
                of_case[part] = {"error": _sentence(error)}
            options.done([case, part, tables.in_short(part, of_case[part])])
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                whole = {"taken_with": self.taken_with, "found": self.found}
                self.path.with_suffix(".part").write_text(json.dumps(whole, indent=1))
                self.path.with_suffix(".part").replace(self.path)
        return of_case[part]


def _taken_with() -> dict[str, Any]:
    """What two runs must share to be one: machine, versions, and the very extension."""
    from fastjit import _C

    now = machine.describe()
    built = Path(_C.__file__).stat()
    return {
        **{name: now[name] for name in ("cpu", "cores", "threads", "torch", "python", "fastjit", "llvm")},
        "extension": [built.st_size, int(built.st_mtime)],
    }


def _sentence(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not done after {error.timeout:g} s"
    return str(error)


def first(case: CaseSpec, root: str, options: harness.Options) -> Found:
    """Seconds: the first call with empty caches and with full ones, eager's call, torch.compile's first call."""
    given = options.given
    count = 1 if options.quick else given.processes
    cold = []
    for index in range(count):
        own = root if index == 0 else tempfile.mkdtemp(dir=root)
        cold.append(firstcall.first_call(case, "fastjit", own, given.threads))
    warm = [firstcall.first_call(case, "fastjit", root, given.threads) for _ in range(count)]
    best, again = (min(calls, key=lambda call: call.first_s - call.eager_s) for calls in (cold, warm))
    found = {
        "first_s": best.first_s,
        "eager_s": best.eager_s,
        "full_first_s": again.first_s,
        "full_eager_s": again.eager_s,
        "stats": best.stats,
        "full_stats": again.stats,
        "all_over_s": harness.short([call.first_s - call.eager_s for call in cold]),
        "all_full_s": harness.short([call.first_s for call in warm]),
    }
    if given.peers == "all" and not options.quick:
        found["compile"] = compile_first(case, root, options)
    return found


def compile_first(case: CaseSpec, root: str, options: harness.Options) -> Found:
    limit = options.given.limit
    try:
        call = firstcall.first_call(case, "torch.compile", root, options.given.threads, limit)
    except subprocess.TimeoutExpired:
        return {"over_limit_s": limit}
    except firstcall.FirstCallError as error:
        return {"error": str(error)}
    return {"first_s": call.first_s, "eager_s": call.eager_s}


def steady(case: CaseSpec, root: str, options: harness.Options, skip: str | None) -> Found:
    """Medians and ratios of one batch size. `skip`: why torch.compile is left out."""
    given = options.given
    names = ["eager", *PEERS[given.peers], "fastjit"]
    left_out = {"torch.compile": skip} if skip and "torch.compile" in names else {}
    order = {
        "part": "steady",
        "spec": case.to_dict(),
        "rounds": given.rounds or (3 if options.quick else ROUNDS),
        "min_time": 0.1 if options.quick else 1.0,
        "threads": given.threads,
        "variants": [name for name in names if name not in left_out],
    }
    try:
        answer = firstcall.ask([WORKER], order, root, given.limit * 4)
    except subprocess.TimeoutExpired:
        if "torch.compile" not in order["variants"]:
            raise
        left_out["torch.compile"] = f"the comparison with it was not done after {given.limit * 4:g} s"
        order["variants"].remove("torch.compile")
        answer = firstcall.ask([WORKER], order, root, given.limit * 4)
    return {**answer, "left_out": left_out}


def memory(case: CaseSpec, root: str, options: harness.Options) -> Found:
    """Of three times as many processes as first calls have: how much scratch memory oneDNN's threads hold at once, and
    on which pages, is chance."""
    found = {}
    for variant in ("eager", "fastjit"):
        order = {"part": "memory", "spec": case.to_dict(), "variant": variant, "threads": options.given.threads}
        count = 1 if options.quick else 3 * options.given.processes
        calls = [firstcall.ask([WORKER], order, root) for _ in range(count)]
        found[variant] = min(calls, key=lambda call: call["peak_bytes"])
    return found


def measure_model(model: zoo.Model, kept: Kept, options: harness.Options) -> None:
    parts = options.given.parts.split(",")
    with tempfile.TemporaryDirectory(prefix="fastjit-models-", ignore_cleanup_errors=True) as root:
        case = write_case(model.spec(), root)
        skip = None
        if "first" in parts:
            got = kept.measure(model.short, "first", lambda: first(case, root, options), options)
            theirs = got.get("compile", {})
            if "over_limit_s" in theirs:
                skip = f"its first call was not done after {theirs['over_limit_s']:g} s"
        elif "memory" in parts and "memory" not in kept.found.get(model.short, {}):
            firstcall.first_call(case, "fastjit", root, options.given.threads)  # fills the disk cache
        if "steady" in parts:
            for batch in options.given.batches.split(","):
                of_batch = CaseSpec(case.path, case.name, values={"batch": int(batch)}, label=case.label)
                kept.measure(model.short, f"steady {batch}", lambda c=of_batch: steady(c, root, options, skip), options)
        if "memory" in parts:
            kept.measure(model.short, "memory", lambda: memory(case, root, options), options)


def measure_deep(kept: Kept, options: harness.Options) -> None:
    threads = options.given.threads

    def first_of(case: CaseSpec) -> Found:
        with tempfile.TemporaryDirectory(prefix="fastjit-deep-", ignore_cleanup_errors=True) as root:
            call = firstcall.first_call(case, "fastjit", root, threads)
        return {"first_s": call.first_s, "eager_s": call.eager_s, "stats": call.stats}

    for title, name in zoo.DEEP.items():
        if options.wants(name):
            kept.measure(title, "deep", lambda name=name: first_of(zoo.deep_case(name)), options)
    for kind in zoo.BLOCKS:
        for count in (zoo.FEW, zoo.MANY):
            if options.wants(f"{kind}_{count}"):
                run = lambda kind=kind, count=count: first_of(zoo.block_case(kind, count))  # noqa: E731
                kept.measure(f"{kind} block, {count} layers", "deep", run, options)


def body(options: harness.Options) -> harness.Outcome:
    unknown = set(options.given.parts.split(",")) - set(PARTS)
    if unknown:
        raise SystemExit(f"models: no part '{min(unknown)}'; there are {', '.join(PARTS)}")
    kept = Kept(options.given.keep)
    models = [model for model in zoo.MODELS if options.wants(model.short)]
    if set(options.given.parts.split(",")) != {"deep"}:
        for model in models:
            measure_model(model, kept, options)
    if "deep" in options.given.parts.split(","):
        measure_deep(kept, options)
    return tables.outcome(models, kept.found)


if __name__ == "__main__":
    question = (__doc__ or "").partition("\n")[0]
    sys.exit(harness.run("models", "Real models", question, body, options_of, is_part_of_all))
