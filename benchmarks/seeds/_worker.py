"""A process of run.py with one program: `ORDER` is JSON, the answer a file. Eager is called before anything is timed.

`steady`: FastJIT's first call with an empty cache, then every variant checked against eager and timed in rounds.
`compile`: the same for torch.compile beside eager; a first call that takes too long ends the process.
`again`: FastJIT's first call in a new process, with the cache that the first one left.
`peak`: what a warm call of one variant makes the process hold at most, with the means of _peak.py.
`planning`: what recording and compiling take, of functions made anew with empty caches. It empties the cache on disk.
`counted`: the launches of the program as it is made for the count.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "build" / "seeds-peers"))  # numba, jax: make seeds-peers
sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch

import _peak
import fastjit.api  # noqa: F401  # a user's script imports it at its top
from _program import Made, Program, program
from fastjit._bench import check, measure
from fastjit._bench.variants import BUILDERS, Absent, Built, build, own_copy, quiet

sys.modules["coverage"] = None  # type: ignore[assignment]  # numba would take benchmarks/coverage.py for the package

CHECKED = 3
EAGER_CALLS, WARM_CALLS = 2, 6  # before a call's peak is taken
PLANNED = 5  # functions made anew, of which the least counts


def script_or_trace(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Built:
    how = "script"
    try:
        call = torch.jit.script(fn)
        call(*copy.deepcopy(args))
    except Exception as refusal:
        how = f"trace: not scripted, {first_line(refusal)}"
        call = torch.jit.trace(fn, copy.deepcopy(args), check_trace=False)
    return Built(call, note=lambda: how)


BUILDERS["torch.jit"] = script_or_trace


def first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:160]


def exact(fn: Callable[..., Any], args: tuple[Any, ...]) -> check.Outcome | None:
    """The same in f64, what the function makes itself included."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return check.reference(fn, args, {})
    finally:
        torch.set_default_dtype(before)


def launches_of(handle: Any) -> int:
    """Eager's views are no launches; a program's steps of torch's are numbered in the order of the recorded graph."""
    calls = re.findall(r" = extern .* kind=(\w+) call=", str(handle.inspect("ir")))
    views = {number for number, kind in enumerate(calls) if kind == "view"}
    return launches(str(handle.inspect("plan")), views)


def launches(plan: str, views: Set[int] = frozenset()) -> int:
    """Kernels and calls of torch's that one call of a program runs, those of a loop each round."""
    count, open_loops = 0, []  # (indent, rounds)
    for line in plan.split("\n\n", 1)[1].splitlines():
        indent = len(line) - len(line.lstrip())
        while open_loops and indent <= open_loops[-1][0]:
            open_loops.pop()
        words = line.split()
        if words[:1] == ["loop"]:
            open_loops.append((indent, int(words[1])))
        elif words[:1] == ["arena"]:
            break
        elif words and words[0] in ("kernel", "extern", "product"):
            if words[0] == "extern" and int(words[1].partition("+")[0]) in views:
                continue
            rounds = 1
            for _, trip in open_loops:
                rounds *= trip
            count += rounds
    return count


def handle_of(built: Built) -> Any:
    from fastjit import of

    return of(built.call) if isinstance(built.call, torch.nn.Module) else built.call


class Bench:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order, self.answer = order, dict[str, Any]()
        self.program: Program = program(order["folder"], order["program"])
        self.made: Made = self.program.made()
        self.timers: dict[str, measure.Timer] = {}

    def report(self) -> None:
        path = Path(self.order["report"])
        path.with_suffix(".part").write_text(json.dumps(self.answer))
        path.with_suffix(".part").rename(path)

    def eager_first(self) -> None:
        fn, args = self.made
        self.eager = check.run_once(fn, args, {})
        own = copy.deepcopy(args)
        start = time.perf_counter()
        fn(*own)
        self.answer["eager"] = {"first_s": time.perf_counter() - start}

    def first_call(self, name: str) -> Built | None:
        """Builds a variant and calls it once, both timed together."""
        fn, args = self.made
        found = self.answer[name] = dict[str, Any]()
        try:
            own, own_fn = copy.deepcopy(args), own_copy(fn)
            torch.manual_seed(check.SEED)
            start = time.perf_counter()
            built = build(name, own_fn, args, {}, own=False)
            built.call(*own)
            found["first_s"] = time.perf_counter() - start
        except Absent as reason:
            found["absent"] = str(reason)
            return None
        except Exception as error:
            found["absent"] = first_line(error)
            return None
        return built

    def check_and_time(self, name: str, call: Callable[..., Any]) -> None:
        fn, args = self.made
        if not hasattr(self, "exact"):
            self.exact = exact(fn, args)
        try:
            outcomes = [check.run_once(call, args, {}) for _ in range(CHECKED)]
        except Exception as error:
            self.answer[name]["absent"] = first_line(error)
            return
        problems = [check.explain_difference(outcome, self.eager, self.exact) for outcome in outcomes]
        wrong = next((problem for problem in problems if problem is not None), None)
        if wrong is not None:
            self.answer[name]["absent"] = f"WRONG: {wrong}"
            return
        self.timers[name] = measure.make_timer(call, args, {})

    def time(self) -> None:
        for timer in self.timers.values():
            timer(2)
        loops = {name: measure.calibrate(timer) for name, timer in self.timers.items()}
        round_s = sum(timer(loops[name]) for name, timer in self.timers.items())
        rounds = measure.rounds_for(2 * round_s, self.order["budget_s"], least=self.order["rounds"], most=200)
        for name, samples in measure.interleave(self.timers, loops, rounds).items():
            self.answer[name] |= {
                "best_s": min(samples),
                "median_s": statistics.median(samples),
                "samples": [float(f"{value:.4g}") for value in samples],
            }

    def steady(self) -> None:
        self.eager_first()
        fn, args = self.made
        built: dict[str, Built] = {}
        for name in ("fastjit", *(name for name in self.program.peers if name == "torch.jit")):
            one = self.first_call(name)
            if one is not None:
                built[name] = one
                self.check_and_time(name, one.call)
        for name, maker in self.program.others.items():
            self.other(name, maker)
        self.timers["eager"] = measure.make_timer(fn, args, {})
        self.answer["eager"]["launches"] = build("eager", fn, args, {}).counts()[0]
        self.time()
        for name, one in built.items():
            self.answer[name]["note"] = one.note()
        self.tell(built.get("fastjit"))

    def other(self, name: str, maker: Callable[[Made], Callable[[], Any]]) -> None:
        """NumPy, Numba or JAX on the same values; its results are arrays."""
        found = self.answer[name] = dict[str, Any]()
        try:
            start = time.perf_counter()
            call = maker(copy.deepcopy(self.made))
            results = [torch.as_tensor(copy.deepcopy(one)) for one in check.leaves(call())]
            found["first_s"] = time.perf_counter() - start
        except Exception as error:
            found["absent"] = first_line(error)
            return
        outcome = check.Outcome(results, self.eager.arguments)
        problem = check.explain_difference(outcome, self.eager, None)
        if problem is not None:
            found["absent"] = f"WRONG: {problem}"
            return
        self.timers[name] = measure.make_timer(call, (), {})

    def tell(self, built: Built | None) -> None:
        if built is None:
            return
        ours = self.answer["fastjit"]
        stats = dict(built.stats() or {})
        ours["stats"] = {key: stats[key] for key in stats if isinstance(stats[key], (int, float, str, dict))}
        handle = handle_of(built)
        try:
            ours["launches"] = launches_of(handle)
        except (LookupError, RuntimeError) as error:
            ours["no_plan"] = first_line(error)
        if self.order.get("source"):
            try:
                Path(self.order["source"]).write_text(str(handle.inspect("source")))
            except (LookupError, RuntimeError) as error:
                ours["no_source"] = first_line(error)

    def compile(self) -> None:
        self.eager_first()
        fn, args = self.made
        late = threading.Timer(self.order["limit_s"], self.give_up)
        late.daemon = True
        late.start()
        built = self.first_call("torch.compile")
        late.cancel()
        if built is not None:
            self.check_and_time("torch.compile", built.call)
            self.timers["eager"] = measure.make_timer(fn, args, {})
            self.time()

    def give_up(self) -> None:
        """Ends this process and the compilers that it started: they are a session of their own."""
        self.answer["torch.compile"] = {"absent": f"its first call takes over {self.order['limit_s']:g} s"}
        self.report()
        os.killpg(0, signal.SIGKILL)

    def again(self) -> None:
        self.eager_first()
        built = self.first_call("fastjit")
        if built is not None:
            self.answer["fastjit"]["disk_hits"] = (built.stats() or {}).get("disk_hits")

    def peak(self) -> None:
        """Eager is called first, so that what is paid once is paid, and FastJIT takes the same module, not a copy."""
        fn, args = self.made
        restore = check.restorer(args)
        for _ in range(EAGER_CALLS):
            fn(*args)
        start = _peak.held_bytes()
        built = build(self.order["variant"], fn, args, {}, own=False)
        for _ in range(WARM_CALLS):
            restore()
            built.call(*args)
        before = dict(built.stats() or {})
        peak_bytes, held = _peak.peak_of_calls(lambda: built.call(*args), restore)
        self.answer |= {"peak_bytes": peak_bytes, "kept_bytes": max(0, held - start)}
        if before:
            stats = dict(built.stats() or {})
            self.answer["all_hits"] = stats["hits"] - before["hits"] == _peak.PEAK_CALLS
            self.answer["fallbacks"] = dict(stats["fallbacks"])

    def planning(self) -> None:
        """A function that does not count goes first: it loads the compiler. Each is gone before the next one, which
        would find its kernels."""
        from fastjit import _C, cache

        fn, args = self.made
        found = []
        for count in range(1 + PLANNED):
            if count:
                cache.clear()
                _C.clear_memory()
            built = build("fastjit", fn, args, {})
            built.call(*copy.deepcopy(args))
            found.append(dict(built.stats() or {}))
            del built
            gc.collect()
        self.answer |= {key: min(one[key] for one in found[1:]) for key in ("compile_ms", "record_ms", "compiles")}

    def counted(self) -> None:
        assert self.program.counted is not None
        fn, args = self.program.made(self.program.counted)
        built = build("fastjit", fn, args, {})
        for _ in range(CHECKED):
            built.call(*copy.deepcopy(args))
        self.answer["launches"] = launches_of(handle_of(built))


def main(text: str) -> int:
    order = json.loads(text)
    if order["part"] == "peak":
        _peak.map_blocks()
    if order.get("threads"):
        torch.set_num_threads(order["threads"])
    with torch.no_grad(), quiet():
        bench = Bench(order)
        try:
            getattr(bench, order["part"])()
        except Exception as error:
            bench.answer["error"] = re.sub(r"\s+", " ", first_line(error))
            bench.report()
            raise
        bench.report()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
