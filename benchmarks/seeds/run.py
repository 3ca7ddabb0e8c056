"""`make bench-seeds`: the programs of the works that FastJIT began with, each folder a result file.

Names of folders choose; without one all run. Each program has processes of its own: FastJIT, torch.jit and eager on the
same inputs in turn; torch.compile beside eager, ended when its first call takes too long; FastJIT once more with the
cache that is there by then.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

import _bands
import _harness as harness
from _program import Program, programs_of
from fastjit._bench import firstcall, table

HERE = Path(__file__).resolve().parent
FOLDERS = ("functional", "convnext", "fortran", "hpml", "functs", "arrays", "pyhpc")
COMPILE_LIMIT_S, WORKER_LIMIT_S = 120, 1200
BUDGET_S = 10.0
MAIN = ("eager", "torch.jit", "torch.compile", "fastjit")
TIMES = ["program", *MAIN, "over the best other", "launches: eager", "fastjit", "fastjit's fallbacks"]
FIRSTS = ["program", "eager", "torch.jit", "torch.compile", "fastjit", "fastjit, full cache", "kernels compiled"]


class Run:
    def __init__(self, folder: str, options: harness.Options) -> None:
        self.folder, self.options = folder, options
        self.peers = options.given.peers.split(",")
        if options.given.threads == 1:  # what JAX's runtime reads
            os.environ["NPROC"] = "1"
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

    def measured(self, program: Program) -> dict[str, Any]:
        """What the processes of one program answered, together."""
        with tempfile.TemporaryDirectory(prefix="fastjit-seeds-", ignore_cleanup_errors=True) as caches:
            source = self.options.given.sources
            more = {"source": str(Path(source, f"{slug(self.folder, program.name)}.py"))} if source else {}
            found = self.ask(program, "steady", caches, **more)
            if "error" in found:
                return {"fastjit": {"absent": found["error"]}}
            again = self.ask(program, "again", caches)
            found["fastjit"]["again_s"] = again.get("fastjit", {}).get("first_s")
            if "torch.compile" in program.peers and "torch.compile" in self.peers and not self.options.quick:
                other = self.ask(program, "compile", caches)
                found["torch.compile"] = other.get("torch.compile", {"absent": other.get("error", "no answer")})
                found["torch.compile"]["eager_beside"] = other.get("eager", {}).get("best_s")
        return found

    def ask(self, program: Program, part: str, caches: str, **more: Any) -> dict[str, Any]:
        given = self.options.given
        order = {"folder": self.folder, "program": program.name, "part": part, "threads": given.threads, **more}
        order |= {"rounds": 3 if self.options.quick else 7, "budget_s": 0.1 if self.options.quick else given.budget}
        order["limit_s"] = given.compile_limit
        self.options.progress.say(f"{program.name}: {part}")
        try:
            return firstcall.ask([str(HERE / "_worker.py")], order, caches, WORKER_LIMIT_S)
        except (firstcall.FirstCallError, subprocess.TimeoutExpired) as error:
            return {"error": str(error)}


def slug(folder: str, name: str) -> str:
    return f"{folder}-" + "".join(letter if letter.isalnum() else "_" for letter in name)


def cell(found: dict[str, Any], name: str, key: str = "best_s") -> str:
    return table.seconds(found[name][key]) if found.get(name, {}).get(key) is not None else "-"


def best_other(found: dict[str, Any]) -> tuple[str, float] | None:
    times = {name: one["best_s"] for name, one in found.items() if name != "fastjit" and "best_s" in one}
    return min(times.items(), key=lambda item: item[1]) if times else None


def ratio(found: dict[str, Any]) -> float | None:
    other = best_other(found)
    ours = found.get("fastjit", {}).get("best_s")
    return other[1] / ours if other is not None and ours else None


def times_row(program: Program, found: dict[str, Any], others: list[str]) -> list[str]:
    value, other = ratio(found), best_other(found)
    over = f"{table.figures(value)}x {other[0]}" if value is not None and other is not None else "-"
    ours = found.get("fastjit", {})
    launches = [str(found.get(name, {}).get("launches", "-")) for name in ("eager", "fastjit")]
    fallbacks = "; ".join(f"{why} ({count}x)" for why, count in ours.get("stats", {}).get("fallbacks", {}).items())
    return [program.name, *(cell(found, name) for name in (*MAIN, *others)), over, *launches, fallbacks]


def firsts_row(program: Program, found: dict[str, Any]) -> list[str]:
    compiles = found.get("fastjit", {}).get("stats", {}).get("compiles", "-")
    times = [cell(found, name, "first_s") for name in MAIN]
    return [program.name, *times, cell(found, "fastjit", "again_s"), str(compiles)]


def words(program: Program, found: dict[str, Any]) -> list[list[str]]:
    """Why there is no figure, and how torch.jit took the program."""
    rows = []
    for name, one in found.items():
        if "absent" in one:
            rows.append([program.name, name, one["absent"]])
        elif name == "torch.jit" and str(one.get("note", "")).startswith("trace"):
            rows.append([program.name, name, one["note"]])
    return rows


def sheets(programs: list[Program], results: dict[str, dict[str, Any]]) -> list[harness.Sheet]:
    made = []
    for title in dict.fromkeys(program.table for program in programs):
        rows = [program for program in programs if program.table == title]
        others = list(dict.fromkeys(name for program in rows for name in program.others))
        columns = [*TIMES[:5], *others, *TIMES[5:]]
        lines = [times_row(program, results[program.name], others) for program in rows]
        made.append(harness.Sheet(f"{title}: a call, best of the rounds", columns, lines))
        lines = [firsts_row(program, results[program.name]) for program in rows]
        made.append(harness.Sheet(f"{title}: the first call", FIRSTS, lines))
    lines = [line for program in programs for line in words(program, results[program.name])]
    if lines:
        made.append(harness.Sheet("Why there is no figure", ["program", "variant", "reason"], lines))
    return made


def body_of(folder: str) -> Any:
    module = programs_of(folder)

    def body(options: harness.Options) -> harness.Outcome:
        run = Run(folder, options)
        programs = [
            one
            for one in module.PROGRAMS
            if options.wants(f"{one.name} {one.table}") and (one.quick or not options.quick)
        ]
        results = {}
        for program in programs:
            found = results[program.name] = run.measured(program)
            options.done(times_row(program, found, list(program.others)))
            options.done(firsts_row(program, found))
            for line in words(program, found):
                options.done(line)
        reported = [harness.Sheet(*sheet) for sheet in getattr(module, "REPORTED", [])]
        made = [*reported, *sheets(programs, results)]
        over = getattr(module, "BANDS", None)
        if over is not None:
            made.append(_bands.sheet(programs, results, over))
            if options.given.plot:
                _bands.draw(programs, results, over, options.given.plot)
        return harness.Outcome(sheets=made, samples=results)

    return body


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", default="torch.jit,torch.compile", help="without torch.compile a run is no figure")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds a program's rounds take")
    parser.add_argument("--compile-limit", type=float, default=COMPILE_LIMIT_S, help="seconds for its first call")
    parser.add_argument("--plot", help="a picture of the times over the depth, of functional")
    parser.add_argument("--sources", help="a folder for the programs that FastJIT made, as Python")


def main(argv: list[str]) -> int:
    unknown = [word for word in argv[:1] if not word.startswith("-") and word not in FOLDERS]
    if unknown:
        print(f"run.py: no folder '{unknown[0]}'; there are {', '.join(FOLDERS)}", file=sys.stderr)
        return 2
    if argv and argv[0] in FOLDERS:
        sys.argv = [sys.argv[0], *argv[1:]]
        module = programs_of(argv[0])
        peers = "torch.jit,torch.compile"
        return harness.run(
            f"seeds-{argv[0]}",
            module.TITLE,
            module.QUESTION,
            body_of(argv[0]),
            add_options,
            apart=lambda given: given.peers != peers,
        )
    failed = [
        folder
        for folder in FOLDERS
        if subprocess.run([sys.executable, str(HERE / "run.py"), folder, *argv], env=os.environ).returncode != 0
    ]
    if failed:
        print(f"run.py: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
