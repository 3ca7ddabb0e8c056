"""`make demo`: six functions, tiny and large, in every variant; then what the cache holds.

--quick skips torch.compile's first calls; --no-compile leaves torch.compile out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / "cache-demo"


def main(argv: list[str]) -> int:
    unknown = [word for word in argv if word not in ("--quick", "--no-compile")]
    if unknown:
        print(f"demo: unknown option '{unknown[0]}'; there are --quick and --no-compile", file=sys.stderr)
        return 2
    quick = "--quick" in argv
    shutil.rmtree(CACHE, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="fastjit-demo-", ignore_cleanup_errors=True) as caches:
        from fastjit.bench import isolate_caches

        isolate_caches(caches)
        os.environ["FASTJIT_CACHE_DIR"] = str(CACHE)
        wrong = compare_all(quick, "--no-compile" not in argv)
        first_calls(quick, "--no-compile" not in argv)
    print(f"\nThe cache ({CACHE}), as `fastjit cache ls` shows it:", flush=True)
    listed = subprocess.run([sys.executable, "-m", "fastjit", "cache", "ls"]).returncode
    return 1 if wrong else listed


def compare_all(quick: bool, with_compile: bool) -> bool:
    """Prints the table; True when a variant gave wrong results."""
    import _compare
    import cases
    from _harness import CASES
    from fastjit._bench import machine, table
    from fastjit._bench.load import CaseSpec
    from fastjit._bench.progress import Progress
    from fastjit._bench.variants import BUILDERS
    from fastjit.bench import bench

    names = [name for name in BUILDERS if name != "torch.jit.script" and (with_compile or name != "torch.compile")]
    rows, notes, wrong, verdicts = [], [], False, []
    with Progress() as progress:
        for name, tiny, large in cases.DEMO:
            for n in (tiny, large):
                spec = CaseSpec(CASES, name, values={"n": n})
                result = bench(
                    spec,
                    names=names,
                    rounds=5 if quick else 30,
                    min_time=0.2 if quick else 1.0,
                    first_calls=False,
                    dispatch=False,
                    progress=progress,
                )
                size = _compare.size_name(n)
                rows.append(_compare.line(result, name, f"n={size}"))
                notes += [f"{name} n={size}, {row.name}: {row.note}" for row in result.rows if row.note]
                wrong = wrong or result.wrong
                verdicts.append(f"{name} n={size}: {result.verdict()}")
    print(table.align(_compare.COLUMNS, rows))
    print("\n".join(dict.fromkeys(notes)))
    print(machine.in_words(machine.describe()))
    print("\n".join(verdicts), flush=True)
    return wrong


def first_calls(quick: bool, with_compile: bool) -> None:
    """First calls of the gelu chain in fresh processes, less the best of eager: a slow call of it flatters nobody."""
    from _harness import CASES
    from fastjit._bench import firstcall, table
    from fastjit._bench.load import CaseSpec
    from fastjit._bench.progress import Progress

    spec = CaseSpec(CASES, "gelu_chain")
    found: dict[str, list[firstcall.FirstCall | str]] = {}
    with Progress() as progress:
        for variant in ["torch.jit.trace", *(["torch.compile"] if with_compile and not quick else []), "fastjit"]:
            with tempfile.TemporaryDirectory(prefix="fastjit-demo-first-") as root:
                found[variant] = []
                for state in ("empty", "full"):
                    progress.say(f"first call of {variant}, fresh process, {state} caches")
                    try:
                        found[variant].append(firstcall.first_call(spec, variant, root))
                    except firstcall.FirstCallError as error:
                        found[variant].append(str(error))
    calls = [call for of in found.values() for call in of if isinstance(call, firstcall.FirstCall)]
    eager = min((call.eager_s for call in calls), default=0.0)

    def cell(call: firstcall.FirstCall | str) -> str:
        return call if isinstance(call, str) else table.seconds(call.first_s - eager)

    rows = [[variant, *map(cell, of)] for variant, of in found.items()]
    print("\nFirst call of gelu_chain beyond an eager call, fresh process")
    print(table.align(["variant", "empty caches", "full caches"], rows), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
