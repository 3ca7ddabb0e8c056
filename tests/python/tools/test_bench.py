"""fastjit bench and compare: what is printed, what is checked, how it ends."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastjit
from bench_tools import MACHINE, PACKAGES
from fastjit._bench import check, measure, table, timeit_form, tiny
from fastjit._bench.errors import BenchError
from fastjit._bench.load import CaseSpec, load_case, parse_sweeps, points
from fastjit._bench.result import Result, Row
from fastjit._bench.variants import build
from fastjit.bench import compare
from fastjit.bench_cli import main

pytestmark = pytest.mark.usefixtures("own_caches")
QUICK = ["--no-first", "--rounds", "3", "--min-time", "0", "--variants", "jit"]


# timeit's own form


def test_exactly_r_repeats_of_n_loops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = tmp_path / "count"
    setup = f"runs = open({str(count)!r}, 'a')"
    assert main(["bench", "-n", "7", "-r", "3", "-v", "-s", setup, "runs.write('x')"]) == 0
    printed = capsys.readouterr().out
    assert count.read_text() == "x" * 21
    assert "7 loops, best of 3: " in printed and "per loop" in printed
    raw = next(line for line in printed.splitlines() if line.startswith("raw times: "))
    assert len(raw.split(",")) == 3


def test_one_loop_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-n", "1", "-r", "2", "pass"]) == 0
    assert capsys.readouterr().out.startswith("1 loop, best of 2: ")


def test_statement_sweep_sees_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-n", "2", "-r", "1", "--sweep", "n=3,4", "-s", "y = [0] * n", "assert len(y) == n"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["n=3", "n=4"]


def test_statement_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-n", "5", "-r", "4", "--json", "pass"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["number"] == 5 and len(found["raw"]) == 4


def test_statement_with_torch_runs_without_gradients() -> None:
    order = timeit_form.Order("assert not torch.is_grad_enabled()", "import torch", number=1, repeats=1)
    assert timeit_form.run(order)["number"] == 1


def test_units_as_timeit_prints_them() -> None:
    assert timeit_form.in_unit(1.234e-7, None) == "123 nsec"
    assert timeit_form.in_unit(2.5e-3, None) == "2.5 msec"
    assert timeit_form.in_unit(2.5e-3, "usec") == "2.5e+03 usec"


# a function in a file


def test_function_table_and_exit_status(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", f"{case_file}::scale", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "torch.jit.trace" in printed and "median [25 %, 75 %]" in printed and "dispatch" in printed
    assert printed.strip().splitlines()[-1].endswith(".")


def test_wrong_results_are_not_timed_and_exit_with_one(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", f"{case_file}::drift", *QUICK, "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["results"][0]["rows"]}
    assert rows["torch.jit.trace"]["status"] == "wrong"
    assert rows["torch.jit.trace"]["samples_s"] == []


def test_inputs_from_the_command_line(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*QUICK, "--args", "torch.randn(n, n), factor=0.5", "--sweep", "n=4,6", "--variants", "eager", "--json"]
    assert main(["bench", f"{case_file}::scale", *options]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["values"] for result in results] == [{"n": 4}, {"n": 6}]
    assert [result["traffic_bytes"] for result in results] == [2 * 16 * 4, 2 * 36 * 4]


def test_plot(case_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    options = [*QUICK, "--sweep", "n=4,8", "--plot", str(out)]
    assert main(["bench", f"{case_file}::scale", *options]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_an_expression_in_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    setup = "import torch; x = torch.randn(8); c = 2.5"
    assert main(["compare", "-s", setup, "x * c + 1", *QUICK]) == 0
    assert "torch.jit.trace" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to measure"),
        (["missing.py::f"], "no file 'missing.py'"),
        (["CASE"], "::name"),
        (["CASE::nothing"], "has no 'nothing'; it has scale, drift"),
        (["CASE::no_inputs"], "define 'no_inputs_args()'"),
        (["CASE::scale", "--args", "1 +"], "--args '1 +': SyntaxError"),
        (["CASE::scale", "--args", "m"], "NameError: name 'm' is not defined"),
        (["CASE::scale", "--sweep", "m=1"], "'scale_args()' has no parameter 'm'"),
        (["CASE::scale", "--sweep", "n"], "write --sweep n=250,500,1000"),
        (["CASE::scale", "--variants", "numba"], "no variant 'numba'; choose from eager"),
        (["CASE::scale", "CASE::drift"], "one FILE.py::fn at a time"),
        (["-n", "0", "pass"], "-n 0: give at least 1"),
        (["--frobnicate", "pass"], "--frobnicate"),
        (["1 1"], "is not Python"),
        (["1 / 0"], "ZeroDivisionError"),
        (["pass", "--plot", "x.png"], "--plot belongs to FILE.py::fn"),
    ],
)
def test_usage_errors_name_the_argument(
    arguments: list[str], words: str, case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *(word.replace("CASE", str(case_file)) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err.replace(str(case_file), "CASE") and captured.err.count("\n") == 1
    assert captured.out == ""


def test_nothing_but_the_table_on_standard_output(case_file: Path) -> None:
    program = f"import sys; sys.path.insert(0, {PACKAGES!r})\n"
    program += "from fastjit.bench_cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "bench", f"{case_file}::scale", *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{case_file.name}::scale\nvariant ") and "fastjit: " not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_first_calls_and_peak_memory_come_from_fresh_processes(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--rounds",
        "3",
        "--min-time",
        "0",
        "--variants",
        "eager",
        "--json",
        "--args",
        "torch.randn(2048, 2048), 3.0",
    ]
    assert main(["bench", f"{case_file}::scale", *options]) == 0
    for row in json.loads(capsys.readouterr().out)["results"][0]["rows"]:
        assert row["first_cold_s"] > 0 and row["first_warm_s"] > 0
        # One 16 MB product and one 16 MB sum, at least one of them alive at the end.
        assert 16 << 20 <= row["peak_bytes"] <= 48 << 20


# fastjit.compare


def test_compare_checks_and_times() -> None:
    x = torch.randn(64)
    result = compare(
        {"eager": lambda a: a * 2, "sum": lambda a: a + a, "off": lambda a: a * 2.1}, args=(x,), rounds=5, min_time=0
    )
    assert [row.status for row in result.rows] == ["ok", "ok", "wrong"]
    assert len(result.rows[0].samples) >= 5
    assert result.wrong and "WRONG results from off" in result.verdict()
    assert json.loads(json.dumps(result.to_dict()))["rows"][1]["speedup"][1] > 0
    assert "<table>" in result._repr_html_() and "WRONG" in result.table()


def test_compare_a_later_call_that_differs_is_wrong() -> None:
    calls = []

    def second_call_wrong(a: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return a if len(calls) == 1 else a + 1

    result = compare(
        {"eager": lambda a: a.clone(), "other": second_call_wrong}, args=(torch.ones(4),), rounds=3, min_time=0
    )
    other = result.row("other")
    assert other is not None and other.status == "wrong" and "call 2" in (other.note or "")


def test_compare_checks_mutated_arguments() -> None:
    def with_write(a: torch.Tensor) -> None:
        a.add_(1)

    result = compare({"eager": with_write, "no write": lambda a: None}, args=(torch.zeros(4),), rounds=3, min_time=0)
    row = result.row("no write")
    assert row is not None and row.status == "wrong" and "argument 0" in (row.note or "")


def test_compare_leaves_the_arguments_alone() -> None:
    x = torch.zeros(4)
    compare({"eager": lambda a: a.add_(1)}, args=(x,), rounds=3, min_time=0)
    assert x.tolist() == [0.0] * 4


def test_compare_a_failing_variant_is_a_row() -> None:
    def broken(a: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such luck\nsecond line")

    result = compare({"eager": lambda a: a, "broken": broken}, args=(torch.zeros(4),), rounds=3, min_time=0)
    row = result.row("broken")
    assert row is not None and (row.status, row.note) == ("failed", "RuntimeError: no such luck")


def test_compare_runs_without_gradients() -> None:
    seen = set()
    x = torch.zeros(4, requires_grad=True)

    def look(a: torch.Tensor) -> torch.Tensor:
        seen.add(torch.is_grad_enabled())
        return a * 1

    compare({"eager": look}, args=(x,), rounds=3, min_time=0)
    assert seen == {False}


def test_a_compile_while_timing_voids_the_row() -> None:
    class Recompiling:
        calls = 0

        def __call__(self, a: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return a * 2

        def stats(self) -> dict[str, int]:
            return {"compiles": self.calls, "kernels": 1, "steps": 1}

    result = compare({"eager": lambda a: a * 2, "fastjit": Recompiling()}, args=(torch.ones(4),), rounds=3, min_time=0)
    row = result.row("fastjit")
    assert row is not None and row.status == "void" and row.compiles > 0
    assert "VOID" in result.table()


@pytest.mark.parametrize(
    ("variants", "args", "words"),
    [({}, (), "no variants"), ({"eager": 3}, (), "not a function"), ({"eager": abs}, torch.zeros(2), "give a tuple")],
)
def test_compare_usage(variants: dict[str, object], args: object, words: str) -> None:
    with pytest.raises(BenchError, match=words):
        compare(variants, args=args)  # type: ignore[arg-type]


# the parts


def test_rounds_alternate_their_order() -> None:
    order: list[tuple[str, int]] = []

    def timer(name: str) -> measure.Timer:
        return lambda n: (order.append((name, n)), 1.0)[1]

    samples = measure.interleave({"a": timer("a"), "b": timer("b")}, {"a": 2, "b": 4}, 4)
    a, b = [("a", 1), ("a", 2)], [("b", 1), ("b", 4)]  # the first call of each is not timed
    assert order == [*a, *b, *b, *a, *a, *b, *b, *a]
    assert samples == {"a": [0.5] * 4, "b": [0.25] * 4}


def test_ratio_interval() -> None:
    clear = measure.ratio_interval([2.0, 2.1, 1.9, 2.0] * 10, [1.0, 1.05, 0.95, 1.0] * 10)
    assert clear.low <= 2.0 <= clear.high and not clear.holds_one()
    even = measure.ratio_interval([1.0, 1.1, 0.9, 1.0] * 10, [1.0, 0.9, 1.1, 1.0] * 10)
    assert even.holds_one() and table.interval(even).startswith("≈ ")


def test_numbers_as_they_are_printed() -> None:
    assert [table.seconds(value) for value in (1.5, 0.0123, 4.56e-6, 7e-9, None)] == [
        "1.50 s",
        "12.3 ms",
        "4.56 µs",
        "7.00 ns",
        "-",
    ]
    assert table.seconds(0.9999e-6) == "1.00 µs"


def test_break_even() -> None:
    rows = [Row("eager", samples=[3e-6] * 5), Row("fastjit", samples=[1e-6] * 5, first_cold=2e-3 + 3e-6)]
    result = Result("t", rows, "eager", MACHINE)
    assert result.break_even(rows[1]) == pytest.approx(1000)
    assert (
        "paid back after 1,000 calls" in result.verdict()
        and "3.00 times as fast as the best other, eager" in result.verdict()
    )
    rows[1].samples = [4e-6] * 5
    assert result.break_even(rows[1]) == math.inf
    assert "fastjit is slower" in result.verdict()


def test_errors_against_f64() -> None:
    exact = check.Outcome([torch.tensor([1.0, 2.0], dtype=torch.float64)], [])
    got = check.Outcome([torch.tensor([1.0, 2.0 + 2**-22])], [])
    found = check.errors(got, exact)
    assert found.max_abs == 2**-22 and found.max_ulp == 1.0


def test_special_values_compare_as_themselves() -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    outcome = check.Outcome([special], [])
    assert check.explain_difference(outcome, check.Outcome([special.clone()], []), None) is None
    assert check.explain_difference(outcome, check.Outcome([torch.zeros(4)], []), None) is not None


def test_other_dtype_or_shape_is_a_difference() -> None:
    one = check.Outcome([torch.ones(2)], [])
    assert "float64" in str(check.explain_difference(one, check.Outcome([torch.ones(2).double()], []), None))
    assert "[2, 1]" in str(check.explain_difference(one, check.Outcome([torch.ones(2, 1)], []), None))


def test_the_fastjit_variant_tells_kernels_steps_and_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the decorator: its stats reach the row, and an eager run is said."""

    @dataclasses.dataclass(frozen=True)
    class Stats:
        compiles: int = 1
        kernels: int = 2
        steps: int = 3
        fallbacks: dict[str, int] = dataclasses.field(default_factory=lambda: {"tracer active": 4})

    class StandIn:
        def __init__(self, fn: Callable[..., Any]) -> None:
            self.__wrapped__ = fn

        def __call__(self, *args: Any) -> Any:
            return self.__wrapped__(*args)

        def stats(self) -> Stats:
            return Stats()

    monkeypatch.setitem(vars(fastjit), "fastjit", StandIn)
    monkeypatch.setitem(vars(fastjit), "of", lambda module: module)
    built = build("fastjit", torch.relu, (torch.ones(2),), {})
    assert (built.counts(), built.compiles(), built.note()) == ((2, 3), 1, "ran eagerly: tracer active (4x)")


def test_small_inputs_keep_their_layout() -> None:
    x, row = torch.randn(64, 32).t(), torch.randn(64).expand(16, 64)
    small, small_row = tiny.shrink((x, row), tiny.CUTS[0])
    assert small.shape == (4, 4) and small.stride() == (1, 4)
    assert small_row.shape == (4, 4) and small_row.stride(0) == 0


def test_small_inputs_are_ones_the_function_takes() -> None:
    weight = torch.randn(8, 8)
    found = tiny.tiny_inputs(lambda x: x @ weight, (torch.randn(512, 8),), {})
    assert found is not None and found[0][0].shape == (1, 8)


def test_sweeps() -> None:
    assert parse_sweeps(["n=1,2", "kind=a,0.5"]) == {"n": [1, 2], "kind": ["a", 0.5]}
    assert list(points({"n": [1, 2], "m": [3]})) == [{"n": 1, "m": 3}, {"n": 2, "m": 3}]
    assert list(points({})) == [{}]


def test_a_case_has_the_same_numbers_every_time(case_file: Path) -> None:
    spec = CaseSpec(str(case_file), "scale")
    assert torch.equal(load_case(spec).args[0], load_case(spec).args[0])


def test_a_function_that_raises_is_wrong_use(tmp_path, capsys) -> None:
    file = tmp_path / "raises.py"
    file.write_text("def f(x):\n    raise ValueError('no')\n")
    assert main(["bench", f"{file}::f", "--args", "1", *QUICK]) == 2
    assert capsys.readouterr().err == "fastjit bench: the function raised ValueError: no\n"


def test_values_that_json_has_no_word_for(tmp_path, capsys) -> None:
    file = tmp_path / "sweeps.py"
    file.write_text("def g(x):\n    return x * 2\n")
    options = ["--args", "torch.ones(3) * abs(m)", "--sweep", "m=1j", "--json", *QUICK]
    assert main(["bench", f"{file}::g", *options]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["values"] == {"m": "1j"}
