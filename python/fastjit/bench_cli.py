"""`fastjit bench` and `fastjit compare`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ._bench.errors import BenchError
from ._bench.load import TARGET, CaseSpec, check_sweeps, parse_sweeps, points

OK, WRONG, USAGE = 0, 1, 2
MODEL_OPTIONS = ("batch", "image_size", "length", "config")
MODEL_VARIANTS = "eager,jit.trace,compile,fastjit"
EPILOG = """
  fastjit bench model.py::step                       inputs from model.py::step_args()
  fastjit bench model.py::step --args "torch.randn(64, 64), 2.0"
  fastjit bench model.py::step --args "torch.randn(n, n)" --sweep n=250,500,1000 --plot out.png
  fastjit bench --model timm:vit_tiny_patch16_224 --batch 1,8              random weights, nothing is downloaded
  fastjit bench -s "import torch; x = torch.randn(64)" "x * 2 + 1"         as python -m timeit
  fastjit compare -s "import torch; x = torch.randn(64)" "x * 2 + 1"       the expression in every variant
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BenchError(f"{message}; see 'fastjit bench --help'")


def _parser(verb: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"fastjit {verb}",
        description="Times one function as eager, torch.jit, torch.compile and fastjit; or a statement, as timeit.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("target", nargs="*", metavar="FILE.py::fn | STMT", help="a function in a file, or statements")
    case = parser.add_argument_group("a function")
    case.add_argument("--args", help="its arguments as Python source; names of the file and torch may be used")
    case.add_argument("--tiny-args", help="arguments for the dispatch column (default: the inputs cut down)")
    case.add_argument("--variants", help="comma-separated: eager, jit.trace, jit.script, compile, fastjit")
    case.add_argument(
        "--sweep", action="append", default=[], metavar="n=250,500", help="one run for each value of a name"
    )
    case.add_argument("--rounds", type=int, default=30, help="at least so many interleaved rounds (default 30)")
    case.add_argument(
        "--min-time", type=float, default=1.0, metavar="S", help="and at least so many seconds (default 1)"
    )
    case.add_argument("--threads", type=int, help="torch.set_num_threads")
    case.add_argument("--no-first", action="store_true", help="no first calls and peak memory (no fresh processes)")
    case.add_argument("--no-dispatch", action="store_true", help="no dispatch column")
    case.add_argument("--plot", metavar="OUT.png", help="draw median and band (needs matplotlib)")
    model = parser.add_argument_group("a model of timm, torchvision or transformers, with random weights")
    model.add_argument("--model", metavar="LIBRARY:NAME", help="timm:vit_tiny_patch16_224, for example")
    model.add_argument("--batch", metavar="N[,N]", help="how many images or sequences a call has (default 1)")
    model.add_argument("--image-size", type=int, metavar="N", help="pixels a side (default: the model's own, else 224)")
    model.add_argument("--length", type=int, metavar="N", help="tokens a sequence (default 128)")
    model.add_argument("--config", metavar="NAME=VALUE,…", help="what differs from the library's own configuration")
    both = parser.add_argument_group("both")
    both.add_argument("-s", "--setup", action="append", default=[], help="run once before; its names are seen")
    both.add_argument("--json", action="store_true", help="print JSON, raw samples included")
    loop = parser.add_argument_group("a statement, as timeit")
    loop.add_argument("-n", "--number", type=int, help="loops per repeat (default: until 0.2 s)")
    loop.add_argument("-r", "--repeat", type=int, default=5, help="repeats (default 5)")
    loop.add_argument("-v", "--verbose", action="count", default=0, help="raw times; twice: the calibration too")
    loop.add_argument("-p", "--process", action="store_true", help="process time instead of wall clock")
    loop.add_argument("-u", "--unit", choices=["nsec", "usec", "msec", "sec"], help="unit of the printed times")
    return parser


def main(argv: list[str]) -> int:
    """`argv` starts with the verb: bench or compare. Returns the exit status: 0, 1 for WRONG results, 2 for usage."""
    verb = argv[0] if argv and argv[0] in ("bench", "compare") else "bench"
    try:
        given = _parser(verb).parse_intermixed_args(argv[1:] if argv[:1] == [verb] else argv)
        return _run(verb, given)
    except BenchError as error:
        print(f"fastjit {verb}: {error}", file=sys.stderr)
        return USAGE


def _run(verb: str, given: argparse.Namespace) -> int:
    _check_numbers(given)
    if given.model is not None:
        return _model(given)
    for option in MODEL_OPTIONS:
        if getattr(given, option) is not None:
            raise BenchError(f"--{option.replace('_', '-')} belongs to --model LIBRARY:NAME")
    if not given.target:
        raise BenchError("nothing to measure: give FILE.py::fn, --model LIBRARY:NAME or a statement")
    setup = "\n".join(given.setup)
    found = TARGET.match(given.target[0])
    if found is not None and len(given.target) > 1:
        raise BenchError(f"one FILE.py::fn at a time, '{given.target[1]}' is left over")
    if found is not None:
        spec = CaseSpec(found["path"], found["name"], given.args, setup or None)
        return _functions(spec, given)
    if given.target[0].endswith(".py"):
        raise BenchError(f"which function of '{given.target[0]}'? Write {given.target[0]}::name")
    statement = "\n".join(given.target)
    if verb == "compare":
        sweeps = parse_sweeps(given.sweep)
        check_sweeps(sweeps, statement, setup)
        with tempfile.TemporaryDirectory(prefix="fastjit-compare-") as folder:
            return _functions(_expression_case(folder, statement, setup, sweeps), given)
    return _statements(statement, setup, given)


def _check_numbers(given: argparse.Namespace) -> None:
    for option, value, least in (
        ("-n", given.number, 1),
        ("-r", given.repeat, 1),
        ("--rounds", given.rounds, 1),
        ("--min-time", given.min_time, 0),
        ("--threads", given.threads, 1),
        ("--image-size", given.image_size, 1),
        ("--length", given.length, 1),
    ):
        if value is not None and not least <= value < math.inf:
            raise BenchError(f"{option} {value}: give " + (f"at least {least}" if value < least else "a finite number"))


def _model(given: argparse.Namespace) -> int:
    """The named model as a case of its own file, so that fresh processes can make it again."""
    from ._bench import models

    if given.target:
        raise BenchError(f"--model {given.model} is what is measured; '{given.target[0]}' is left over")
    for option in ("args", "tiny_args", "setup", "sweep"):
        if getattr(given, option):
            word = "-s" if option == "setup" else f"--{option.replace('_', '-')}"
            raise BenchError(f"{word} belongs to FILE.py::fn; a model has --batch, --image-size, --length and --config")
    batches = _batches(given.batch)
    spec = models.ModelSpec(given.model, batches[0], given.image_size, given.length, models.parse_config(given.config))
    models.check(spec)
    given.variants = given.variants or MODEL_VARIANTS
    given.no_dispatch = True
    given.sweep = [f"batch={','.join(map(str, batches))}"]
    with tempfile.TemporaryDirectory(prefix="fastjit-model-") as folder:
        return _functions(models.write_case(spec, folder), given)


def _batches(text: str | None) -> list[int]:
    words = (text or "1").split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise BenchError(f"--batch {text}: give at least 1, or several as in --batch 1,8")
    return [int(word) for word in words]


def _statements(statement: str, setup: str, given: argparse.Namespace) -> int:
    from ._bench import timeit_form

    for option in ("args", "tiny_args", "variants", "plot"):
        if getattr(given, option) is not None:
            raise BenchError(f"--{option.replace('_', '-')} belongs to FILE.py::fn; a statement has none")
    found = []
    sweeps = parse_sweeps(given.sweep)
    check_sweeps(sweeps, statement, setup)
    for values in points(sweeps):
        order = timeit_form.Order(
            statement, setup or "pass", given.number, given.repeat, given.verbose, given.process, given.unit, values
        )
        outcome = timeit_form.run(order)
        found.append(outcome)
        if not given.json:
            point = "".join(f"{key}={value}: " for key, value in values.items())
            print(point + timeit_form.render(order, outcome), flush=True)
    if given.json:
        _print_json("fastjit.timeit/1", found, statement=statement, setup=setup)
    return OK


def _functions(spec: CaseSpec, given: argparse.Namespace) -> int:
    from ._bench.plot import draw
    from ._bench.progress import Progress
    from ._bench.variants import parse_names
    from .bench import bench, isolate_caches

    names = parse_names(given.variants)
    results: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="fastjit-bench-", ignore_cleanup_errors=True) as caches:
        isolate_caches(caches)
        cases = _checked_cases(spec, given)
        for point in cases:
            with Progress(True) as progress:
                result = bench(
                    point,
                    names=names,
                    tiny_args=given.tiny_args,
                    rounds=given.rounds,
                    min_time=given.min_time,
                    threads=given.threads,
                    first_calls=not given.no_first and not results,
                    dispatch=not given.no_dispatch and not results,
                    progress=progress,
                )
            results.append(result)
            if not given.json:
                print(("\n" if len(results) > 1 else "") + result.table(), flush=True)
    if given.json:
        _print_json("fastjit.bench/1", [result.to_dict() for result in results])
    if given.plot:
        draw(results, given.plot)
    return WRONG if any(result.wrong for result in results) else OK


def _checked_cases(spec: CaseSpec, given: argparse.Namespace) -> list[CaseSpec]:
    """One case a point of the sweep, each built once: what is wrong with any is said before the first is timed."""
    from ._bench.load import load_case
    from ._bench.plot import check

    if given.plot:
        check(given.plot)
    sweeps = parse_sweeps(given.sweep)
    if spec.args is not None:
        check_sweeps(sweeps, f"f({spec.args})", spec.setup)
    cases = [dataclasses.replace(spec, values=values) for values in points(sweeps)]
    for case in cases:
        load_case(case)
    if given.tiny_args is not None:
        load_case(dataclasses.replace(cases[0], args=given.tiny_args))
    return cases


def _print_json(schema: str, results: list[Any], **fields: Any) -> None:
    # The values of a sweep may be of any type.
    print(json.dumps({"schema": schema, **fields, "results": results}, default=repr))


def _expression_case(folder: str, expression: str, setup: str, sweeps: dict[str, list[Any]]) -> CaseSpec:
    """The expression as a file with a function whose arguments are the names that SETUP gives it."""
    import ast

    try:
        tree = ast.parse(expression, mode="eval")
        known = ast.parse(setup)
    except SyntaxError as error:
        raise BenchError(f"compare takes one expression and Python in -s SETUP: {error}") from error
    assigned = {node.id for node in ast.walk(known) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names = [name for name in dict.fromkeys(used) if name in assigned]
    if not names:
        raise BenchError("compare: -s SETUP assigns none of the names in the expression")
    inside = re.sub(r"^", "    ", setup, flags=re.MULTILINE)
    source = (
        f"import torch\n{_imports(known)}\n\ndef expression({', '.join(names)}):\n"
        f"    return (\n{expression}\n    )\n\n\n"
        f"def expression_args({', '.join(sweeps)}):\n{inside}\n    return ({', '.join(names)},)\n"
    )
    path = Path(folder, "fastjit_compare.py")
    path.write_text(source)
    return CaseSpec(str(path), "expression")


def _imports(tree: Any) -> str:
    import ast

    return "\n".join(ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
