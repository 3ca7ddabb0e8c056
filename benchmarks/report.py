"""`make bench-report`: benchmarks/results/*.json into the marked places of README.md and docs.

A place is `<!-- bench:NAME -->` … `<!-- /bench -->`: NAME is a result file, `figures` for the targets of all, or
`matrix` for the last run of `make test-matrix`.
`--check` writes nothing and exits with 1 when a text differs. Needs neither torch nor fastjit.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TEXTS = (
    "README.md",
    "docs/performance.md",
    "docs/correctness.md",
    "docs/coverage.md",
    "docs/install.md",
    "docs/seeds.md",
    "docs/training.md",
    "docs/gpu.md",
)
MATRIX = "matrix"
ORDER = (
    "dispatch",
    "first_call",
    "import_time",
    "chains",
    "fastswish",
    "matmul_epilogue",
    "guards",
    "parameters",
    "traffic",
)
ORDER += ("models", "training", "training_quality", "digits", "gpu", "correctness", "coverage")
ORDER += ("coverage_gradients", "fuzz")
SEEDS = tuple(f"seeds-{name}" for name in ("functional", "convnext", "fortran", "hpml", "functs", "arrays", "pyhpc"))
ORDER += SEEDS
COMMANDS = {name: "make bench-seeds" for name in SEEDS}  # where it is not `make bench`
COMMANDS |= {name: "make bench-training" for name in ("training", "training_quality", "digits")}
COMMANDS |= {"gpu": "make bench-gpu", "models": "make bench-models", "coverage": "make coverage-report"}
COMMANDS |= {"coverage_gradients": "make coverage-report"}
PLACE = re.compile(r"(<!-- bench:(?P<name>[\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
DISPATCH_MUST = 0.5
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class ReportError(Exception):
    """A place or a result file that cannot be used."""


def load(results: Path = RESULTS) -> dict[str, dict[str, Any]]:
    documents = {}
    for path in sorted(results.glob("*.json")):
        if path.stem == MATRIX:
            continue
        document = json.loads(path.read_text())
        if document.get("schema") != "fastjit.benchmark/1":
            raise ReportError(f"{path}: schema {document.get('schema')!r} is not fastjit.benchmark/1")
        if document["quick"]:
            raise ReportError(f"{path}: a quick run is no figure; run it without --quick")
        documents[document["name"]] = document
    return documents


def fill(text: str, documents: dict[str, dict[str, Any]]) -> str:
    """The text with every marked place written anew."""
    return PLACE.sub(lambda found: found[1] + block(found["name"], documents) + found[3], text)


def block(name: str, documents: dict[str, dict[str, Any]]) -> str:
    if name == MATRIX:
        return _matrix()
    if name == "figures":
        known = [documents[key] for key in ORDER if key in documents and key not in SEEDS]
        known += [document for key, document in documents.items() if key not in ORDER]
        return _figures(known) if known else "Not measured yet: run `make bench`.\n"
    if name not in documents and name not in ORDER:
        raise ReportError(f"<!-- bench:{name} -->: no such benchmark; there are figures, {', '.join(ORDER)}")
    if name not in documents:
        return f"Not measured yet: run `{COMMANDS.get(name, 'make bench')}`.\n"
    document = documents[name]
    machine = document["machine"]
    parts = [f"{document['question'].strip()}\n\n{_machine(machine)} {_load([machine['load'][0]])}\n"]
    parts += [f"{sheet['title']}\n\n{_markdown(sheet['columns'], sheet['rows'])}" for sheet in document["tables"]]
    if document["targets"]:
        parts.append(_targets(document["targets"]))
    return "\n".join(parts)


def _matrix(path: Path = RESULTS / f"{MATRIX}.json") -> str:
    """What tests/matrix.py found, a row a cell, and below it why tests were skipped."""
    if not path.exists():
        return "Not measured yet: run `make test-matrix`.\n"
    rows = list(json.loads(path.read_text())["cells"].values())
    cells = [row for row in rows if "error" not in row]
    columns = ["Python and torch", "passed", "failed", "skipped", "compared with eager", "wrong", "op_db hits"]
    columns += ["a call over one eager mul (must 0.5, aim 0.42)", "wheel, MB", "used without a compiler", "date"]
    table = _markdown(columns, [_cell(cell) for cell in cells])
    machines = "\n".join(dict.fromkeys(_machine(cell["machine"]) for cell in cells))
    unmade = "".join(
        f"\n{row['cell'].replace('+', ' + ')} was not run: {row['error'].splitlines()[0]}\n"
        for row in rows
        if "error" in row
    )
    return f"{table}{unmade}\n{machines}\n{_skips(cells)}"


def _cell(cell: dict[str, Any]) -> list[str]:
    suites = (cell["engine"], cell["package"])
    failed = sum(len(suite["failed"]) for suite in suites)
    skipped = sum(sum(suite["skipped"].values()) for suite in suites)
    wrong = len(cell["wrong scripts"]) + len(cell["wrong entries"])
    return [
        cell["cell"].replace("+", " + "),
        str(sum(suite["passed"] for suite in suites)),
        f"**{failed}**" if failed else "0",
        str(skipped),
        f"{cell['scripts']} scripts, {cell['entries']} entries of op_db, {cell['models']} models",
        f"**{wrong}**" if wrong else "0",
        f"{cell['op_db hits']:.1%}",
        f"{cell['dispatch']:.2f}" + (" **missed**" if cell["dispatch"] > DISPATCH_MUST else ""),
        f"{cell['bytes'] / 1e6:.1f}",
        "yes" if cell["wheel works"] else "**no**",
        cell["date"][:10],
    ]


def _skips(cells: list[dict[str, Any]]) -> str:
    reasons: dict[str, dict[str, int]] = {}
    for cell in cells:
        for suite in ("engine", "package"):
            for why, count in cell[suite]["skipped"].items():
                reasons.setdefault(why, {})[cell["cell"]] = count
    if not reasons:
        return ""
    names = [cell["cell"] for cell in cells]
    rows = [[why, *(str(of.get(name, 0)) for name in names)] for why, of in sorted(reasons.items())]
    return "\nWhy tests were skipped:\n\n" + _markdown(["reason", *(name.replace("+", " + ") for name in names)], rows)


def _figures(documents: list[dict[str, Any]]) -> str:
    targets = [target for document in documents for target in document["targets"]]
    loads: dict[str, list[float]] = {}
    for document in documents:
        loads.setdefault(_machine(document["machine"]), []).append(document["machine"]["load"][0])
    return _targets(targets) + "\n" + "\n".join(f"{taken} {_load(load)}" for taken, load in loads.items()) + "\n"


def _targets(targets: list[dict[str, Any]]) -> str:
    return _markdown(["what", "must", "aim", "measured", ""], [_target(target) for target in targets])


def _target(target: dict[str, Any]) -> list[str]:
    sign = "≤ " if target["better"] == "lower" else "≥ "
    bars = [sign + _value(target[bar], target["unit"]) if target[bar] is not None else "" for bar in ("must", "aim")]
    measured = target["measured"]
    shown = "" if measured is None else _value(measured, target["unit"])
    word = judge(target)
    detail = f" ({target['detail']})" if target["detail"] else ""
    return [
        target["what"],
        *bars,
        shown,
        f"**{word}**{detail}" if word in ("missed", "not measured") else word + detail,
    ]


def judge(target: dict[str, Any]) -> str:
    """The word beside a figure; the harness prints the same one."""
    measured = target["measured"]

    def reaches(bar: float | None) -> bool:
        return bar is not None and (measured <= bar if target["better"] == "lower" else measured >= bar)

    if measured is None:
        return "not measured"
    if reaches(target["aim"]):
        return "aim met"
    if target["must"] is None:
        return "short of the aim"
    return "met" if reaches(target["must"]) else "missed"


def _value(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.3g}"
    scale, name = next(((scale, name) for scale, name in UNITS if value >= scale), UNITS[-1])
    return f"{value / scale:.3g} {name}"


def _machine(machine: dict[str, Any]) -> str:
    llvm = f", LLVM {machine['llvm']}" if machine["llvm"] else ""
    gpu = f"{machine['gpu']} with " if machine.get("gpu") else ""
    return (
        f"Taken {machine['date'][:10]} on {gpu}{machine['cpu']} ({' '.join(machine['isa'])}), "
        f"{machine['threads']} threads; torch {machine['torch']}, fastjit {machine['fastjit'] or 'absent'}{llvm}, "
        f"Python {machine['python']}."
    )


def _load(loads: list[float]) -> str:
    low, high = min(loads), max(loads)
    return f"Load {low:g}." if low == high else f"Load {low:g} to {high:g}."


def _markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def main(argv: list[str]) -> int:
    documents = load()
    stale = []
    for name in TEXTS:
        path = ROOT / name
        if not path.exists():
            continue
        text = path.read_text()
        new = fill(text, documents)
        if new == text:
            continue
        stale.append(name)
        if "--check" not in argv:
            path.write_text(new)
    if "--check" in argv and stale:
        print(f"report: {', '.join(stale)} differs from benchmarks/results; run make bench-report", file=sys.stderr)
        return 1
    print(f"report: {', '.join(stale) or 'nothing'} {'differs' if '--check' in argv else 'rewritten'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(2)
