"""`make bench-seeds`: the programs of the works that FastJIT began with, each folder a result file.

Names of folders choose; without one all run. Each program has processes of its own: FastJIT, torch.jit and eager on the
same inputs in turn; torch.compile beside eager, ended when its first call takes too long; FastJIT once more with the
cache that is there by then. With that cache it and eager say what a call needs, too.
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
import _figures as figures
import _harness as harness
import _targets
from _program import Program, programs_of
from fastjit._bench import firstcall, table

HERE = Path(__file__).resolve().parent
FOLDERS = ("functional", "convnext", "fortran", "hpml", "functs", "arrays", "pyhpc")
COMPILE_LIMIT_S, WORKER_LIMIT_S = 120, 1200
BUDGET_S = 10.0
PARTS = ("times", "peak")
PEERS = "torch.jit,torch.compile"
PROCESSES = 2  # a variant's peak is the least of so many
MAIN = ("eager", "torch.jit", "torch.compile", "fastjit")
TIMES = ["program", *MAIN, "over the best other", "launches: eager", "fastjit", "fastjit's fallbacks"]
FIRSTS = ["program", "eager", "torch.jit", "torch.compile", "fastjit", "fastjit, full cache", "kernels compiled"]
PEAKS = ["program", "eager", "fastjit", "over eager's", "code and tables that it keeps", "calls ran as"]


class Run:
    def __init__(self, folder: str, options: harness.Options) -> None:
        self.folder, self.options = folder, options
        self.peers, self.parts = options.given.peers.split(","), options.given.parts.split(",")
        if options.given.threads == 1:  # what JAX's runtime reads
            os.environ["NPROC"] = "1"
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

    def measured(self, program: Program) -> dict[str, Any]:
        """What the processes of one program answered, together."""
        with tempfile.TemporaryDirectory(prefix="fastjit-seeds-", ignore_cleanup_errors=True) as caches:
            found = self.timed(program, caches) if "times" in self.parts else {}
            if "peak" in self.parts and "absent" not in found.get("fastjit", {}):
                found["peak"] = self.peak(program, caches, full="times" in self.parts)
            for part, wanted in (("planning", program.planned), ("counted", program.counted is not None)):
                if wanted and "times" in self.parts:
                    answer = self.ask(program, part, caches)
                    found[part] = {"absent": answer["error"]} if "error" in answer else answer
        return found

    def timed(self, program: Program, caches: str) -> dict[str, Any]:
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

    def peak(self, program: Program, caches: str, full: bool) -> dict[str, Any]:
        """FastJIT's processes find a full cache, so that none of them loads a compiler: else one fills it before."""
        if not full:
            self.ask(program, "peak", caches, variant="fastjit")
        found = {}
        for variant in ("eager", "fastjit"):
            calls = [
                self.ask(program, "peak", caches, variant=variant)
                for _ in range(1 if self.options.quick else PROCESSES)
            ]
            wrong = next((call["error"] for call in calls if "error" in call), None)
            if wrong is not None:
                return {"absent": f"{variant}: {wrong}"}
            least = {key: min(call[key] for call in calls) for key in ("peak_bytes", "kept_bytes")}
            found[variant] = {**calls[-1], **least, "all_hits": all(call.get("all_hits", True) for call in calls)}
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


def times_row(program: Program, found: dict[str, Any], others: list[str]) -> list[str]:
    value, other = figures.over_best(found), figures.best_other(found)
    over = f"{table.figures(value)}x {other[0]}" if value is not None and other is not None else "-"
    ours = found.get("fastjit", {})
    launches = [str(found.get(name, {}).get("launches", "-")) for name in ("eager", "fastjit")]
    fallbacks = "; ".join(f"{why} ({count}x)" for why, count in ours.get("stats", {}).get("fallbacks", {}).items())
    return [program.name, *(cell(found, name) for name in (*MAIN, *others)), over, *launches, fallbacks]


def firsts_row(program: Program, found: dict[str, Any]) -> list[str]:
    compiles = found.get("fastjit", {}).get("stats", {}).get("compiles", "-")
    times = [cell(found, name, "first_s") for name in MAIN]
    return [program.name, *times, cell(found, "fastjit", "again_s"), str(compiles)]


def peak_row(program: Program, found: dict[str, Any]) -> list[str]:
    eager, ours = (found["peak"][name] for name in ("eager", "fastjit"))
    over = figures.peak_over_eager(found)
    ran = "eager: " + ("; ".join(ours["fallbacks"]) or "calls found no variant")
    return [
        program.name,
        *map(table.size, (eager["peak_bytes"], ours["peak_bytes"])),
        "-" if over is None else table.figures(over),
        table.size(ours["kept_bytes"]),
        ran if figures.ran_eagerly(found) else "program",
    ]


def lines_of(program: Program, found: dict[str, Any]) -> list[list[str]]:
    """Of one program, for whoever waits."""
    lines = [times_row(program, found, list(program.others)), firsts_row(program, found)] if "fastjit" in found else []
    lines += [peak_row(program, found)] if "eager" in found.get("peak", {}) else []
    return [*lines, *words(program, found)]


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
    timed = [program for program in programs if "fastjit" in results[program.name]]
    for title in dict.fromkeys(program.table for program in timed):
        rows = [program for program in timed if program.table == title]
        others = list(dict.fromkeys(name for program in rows for name in program.others))
        columns = [*TIMES[:5], *others, *TIMES[5:]]
        lines = [times_row(program, results[program.name], others) for program in rows]
        made.append(harness.Sheet(f"{title}: a call, best of the rounds", columns, lines))
        lines = [firsts_row(program, results[program.name]) for program in rows]
        made.append(harness.Sheet(f"{title}: the first call", FIRSTS, lines))
    weighed = [program for program in programs if "eager" in results[program.name].get("peak", {})]
    if weighed:
        lines = [peak_row(program, results[program.name]) for program in weighed]
        made.append(harness.Sheet("Peak memory of a call, beyond what is held before it", PEAKS, lines))
    lines = [line for program in programs for line in words(program, results[program.name])]
    if lines:
        made.append(harness.Sheet("Why there is no figure", ["program", "variant", "reason"], lines))
    return made


def body_of(folder: str) -> Any:
    module = programs_of(folder)

    def body(options: harness.Options) -> harness.Outcome:
        run = Run(folder, options)
        if unknown := set(run.parts) - set(PARTS):
            raise SystemExit(f"run.py: no part '{min(unknown)}'; there are {', '.join(PARTS)}")
        programs = [
            one
            for one in module.PROGRAMS
            if options.wants(f"{one.name} {one.table}") and (one.quick or not options.quick)
        ]
        results = {}
        for program in programs:
            found = results[program.name] = run.measured(program)
            for line in lines_of(program, found):
                options.done(line)
        reported = [harness.Sheet(*sheet) for sheet in getattr(module, "REPORTED", [])]
        made = [*reported, *sheets(programs, results)]
        over = getattr(module, "BANDS", None)
        if over is not None and "times" in run.parts:
            made.append(_bands.sheet(programs, results, over))
            if options.given.plot:
                _bands.draw(programs, results, over, options.given.plot)
        return harness.Outcome(_targets.targets(folder, module, results), made, results)

    return body


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", default=PEERS, help="without torch.compile a run is no figure")
    parser.add_argument("--parts", default=",".join(PARTS), help="one of them alone is no figure")
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
        return harness.run(
            f"seeds-{argv[0]}",
            module.TITLE,
            module.QUESTION,
            body_of(argv[0]),
            add_options,
            apart=lambda given: given.peers != PEERS or set(given.parts.split(",")) != set(PARTS),
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
