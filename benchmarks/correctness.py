"""Does it do what eager does: scripts, every entry of torch's operator database, models; and do its peers?

Parts that are not named are taken from the last run: `python benchmarks/correctness.py --parts scripts,models`.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _harness as harness
from _harness import Sheet, Target
from fastjit._bench import machine

HELPERS = harness.HERE.parent / "tests" / "python" / "helpers"
PARTS = ("scripts", "opinfo", "callables", "models", "peers")
PATH = harness.RESULTS / "correctness.json"
SAMPLES = 2
ITEMS = {
    1: "reads", 2: "values that leave tensor land", 3: "mutation and aliasing", 4: "modes and neighbours",
    5: "concurrency and life",
}  # fmt: skip


def take_scripts(_: argparse.Namespace) -> Any:
    """Script -> [item, outcome, why]."""
    import peer_scripts
    import script_tools

    script_tools.load()
    scripts = peer_scripts.SCRIPTS
    found = peer_scripts.run("fastjit", list(scripts))
    return {name: [scripts[name].item, *outcome] for name, outcome in found.items()}


def take_opinfo(_: argparse.Namespace) -> Any:
    """Per form: entry -> [kind, why]; and how many calls were compared."""
    import opinfo_forms

    rows = opinfo_forms.sweep([*range(len(opinfo_forms.database.op_db))], SAMPLES)
    found = opinfo_forms.by_form(rows)
    return {
        "forms": {form: {row.entry: [row.kind, row.why] for row in of.values()} for form, of in found.items()},
        "samples": dict(collections.Counter(row.form for row in rows)),
        "raised": sum(row.kind == "refused" for row in rows),
        "unrepeatable": opinfo_forms.UNREPEATABLE,
    }


def take_callables(_: argparse.Namespace) -> Any:
    """Public callable -> [kind, why]; and how many calls were compared."""
    import target_tools

    rows = target_tools.sweep()
    return {"targets": {row.target: [row.kind, row.why] for row in rows}, "calls": sum(row.calls for row in rows)}


def take_models(_: argparse.Namespace) -> Any:
    """A row a model and mode, as model_tools gives it."""
    import model_tools

    return model_tools.model_report()


def take_peers(given: argparse.Namespace) -> Any:
    """Peer -> script -> [outcome, why]."""
    import peer_scripts
    import script_tools

    script_tools.load()
    peers = [peer for peer in peer_scripts.PEERS if peer != "fastjit"]
    return {peer: peer_scripts.run(peer, list(peer_scripts.SCRIPTS), total_s=given.peer_minutes * 60) for peer in peers}


TAKE = {
    "scripts": take_scripts,
    "opinfo": take_opinfo,
    "callables": take_callables,
    "models": take_models,
    "peers": take_peers,
}


def by_item(scripts: dict[str, list[Any]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {item: [] for item in ITEMS}
    for name, (item, *_) in scripts.items():
        found[item].append(name)
    return found


def script_sheet(scripts: dict[str, list[Any]]) -> Sheet:
    rows = []
    for item, names in by_item(scripts).items():
        passed = [name for name in names if scripts[name][1] == "passed"]
        after = [name for name in passed if scripts[name][2]]
        rows.append([f"{item}. {ITEMS[item]}", str(len(names)), str(len(passed)), str(len(after))])
    total = [str(sum(int(row[k]) for row in rows)) for k in (1, 2, 3)]
    columns = ["item", "scripts", "as eager, and ran as declared", "of these with a hit after a change"]
    return Sheet("Scripts", columns, [*rows, ["all", *total]])


def peer_sheets(scripts: dict[str, list[Any]], peers: dict[str, Any]) -> list[Sheet]:
    """Pass counts side by side, and how the others fail."""
    outcomes = {"fastjit": {name: [outcome, why] for name, (_, outcome, why) in scripts.items()}, **peers}
    rows = []
    for item, names in [*by_item(scripts).items(), (0, list(scripts))]:
        row = [f"{item}. {ITEMS[item]}" if item else "all"]
        for found in outcomes.values():
            run = [name for name in names if name in found]
            row.append(f"{sum(found[name][0] == 'passed' for name in run)} of {len(run)}")
        rows.append(row)
    fails = []
    for peer, found in outcomes.items():
        counts = collections.Counter(outcome for outcome, _ in found.values())
        fails.append([peer, str(len(found)), *(str(counts[word]) for word in ("passed", "wrong", "raised"))])
    return [
        Sheet("The same scripts under other compilers: passed", ["item", *outcomes], rows),
        Sheet(
            "How they fail",
            ["", "scripts run", "passed", "shows something else than eager", "raises, hangs or ends the process"],
            fails,
        ),
    ]


def kinds_of(entries: dict[str, list[str]]) -> collections.Counter[str]:
    return collections.Counter(kind for kind, _ in entries.values())


def share(entries: dict[str, list[str]]) -> float:
    """Entries whose every sample hits, of those that eager takes."""
    kinds = kinds_of(entries)
    hits = kinds["kernels"] + kinds["extern"] + kinds["views"]
    return hits / max(sum(kinds.values()) - kinds["refused"], 1)


def opinfo_sheets(opinfo: dict[str, Any]) -> list[Sheet]:
    import opinfo_forms

    rows, reasons = [], collections.defaultdict[str, dict[str, list[str]]](lambda: collections.defaultdict(list))
    for form, entries in opinfo["forms"].items():
        kinds = kinds_of(entries)
        counts = [str(kinds[kind]) for kind in ("kernels", "extern", "views", "eager", "refused", "wrong")]
        rows.append([form, str(len(entries)), str(opinfo["samples"][form]), *counts, f"{share(entries):.1%}"])
        for entry, (kind, why) in entries.items():
            if kind == "eager":
                reasons[opinfo_forms.reason(why)][form].append(entry)

    def size(reason: str) -> int:
        return sum(map(len, reasons[reason].values()))

    def line(reason: str) -> list[str]:
        names = list(dict.fromkeys(name for of in reasons[reason].values() for name in of))
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        return [reason, *(str(len(reasons[reason][form])) for form in opinfo["forms"]), shown]

    columns = ["form", "entries", "calls", "kernels", "torch's operators only", "views only", "eager"]
    return [
        Sheet(
            "Entries of torch's operator database, by their worst sample",
            [*columns, "eager raises", "wrong", "hits"],
            rows,
        ),
        Sheet(
            "Why entries run eagerly",
            ["reason", *opinfo["forms"], "entries"],
            [line(reason) for reason in sorted(reasons, key=size, reverse=True)],
        ),
        Sheet(
            "Entries of which all but the values is compared",
            ["entry", "why"],
            [[entry, why] for entry, why in opinfo["unrepeatable"].items()],
        ),
    ]


def callable_sheet(callables: dict[str, Any]) -> Sheet:
    kinds = ("hit", "eager", "raises", "class", "not played", "wrong")
    spaces: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for target, (kind, _) in callables["targets"].items():
        for space in (target.rpartition(".")[0], "all"):
            spaces[space][kind] += 1
    rows = [[space, str(of.total()), *(str(of[kind]) for kind in kinds)] for space, of in spaces.items()]
    rows.sort(key=lambda row: row[0] == "all")
    columns = [
        "namespace",
        "public callables",
        "hits",
        "eager",
        "eager raises",
        "a class: refused",
        "not played",
        "wrong",
    ]
    title = f"Public callables as the target: three calls each with two sets of arguments, {callables['calls']} calls"
    return Sheet(title, columns, rows)


def model_sheet(models: list[dict[str, Any]]) -> Sheet:
    rows = []
    for row in models:
        inside = "-" if row["share"] is None else f"{row['share']:.0%}"
        counts = [str(row[key] if row[key] is not None else "-") for key in ("aten_calls", "kernels", "steps", "hits")]
        rows.append([row["model"], row["mode"], row["runs_as"], inside, *counts, row["reason"]])
    columns = ["model", "mode", "runs as", "ATen calls inside", "ATen calls", "kernels", "steps", "hits", "why eager"]
    return Sheet("Models of transformers, 2 layers, hidden size 64, random weights, under no_grad", columns, rows)


def targets(taken: dict[str, Any]) -> list[Target]:
    scripts, opinfo = taken["scripts"], taken["opinfo"]
    passed = [found for found in scripts.values() if found[1] == "passed"]
    after = sum(bool(why) for _, _, why in passed)
    wrong = sum(kinds_of(entries)["wrong"] for entries in opinfo["forms"].values())
    wrong_callables = sum(kind == "wrong" for kind, _ in taken["callables"]["targets"].values())
    models = [row for row in taken["models"] if row["mode"] == "eval" and (row["share"] or 0) >= 0.95]
    return [
        Target("scripts that show what eager shows", 250, None, len(passed), "higher"),
        Target("of these with a hit after a change of state", 200, None, after, "higher"),
        Target("scripts that show something else", 0, None, len(scripts) - len(passed)),
        Target("entries of op_db, their in-place and out= forms: wrong", 0, None, wrong),
        Target("entries of op_db whose second call hits", 0.9, None, share(opinfo["forms"]["call"]), "higher"),
        Target("entries of op_db not compared by value", 20, None, len(opinfo["unrepeatable"])),
        Target("public callables as the target: wrong", 0, None, wrong_callables),
        Target("models in eval with 95 % of their ATen calls in programs", 6, None, len(models), "higher"),
    ]


def document(parts: dict[str, Any], measured_on: dict[str, Any]) -> dict[str, Any]:
    taken = {name: parts[name]["found"] for name in PARTS}
    sheets = [script_sheet(taken["scripts"]), *peer_sheets(taken["scripts"], taken["peers"])]
    sheets += [*opinfo_sheets(taken["opinfo"]), callable_sheet(taken["callables"]), model_sheet(taken["models"])]
    return {
        "schema": harness.SCHEMA,
        "name": "correctness",
        "title": "Correctness",
        "question": (__doc__ or "").partition("\n")[0],
        "quick": False,
        "machine": measured_on,
        "targets": [asdict(target) for target in targets(taken)],
        "tables": [asdict(sheet) for sheet in sheets],
        "samples": parts,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="what to take anew, of " + ", ".join(PARTS))
    parser.add_argument(
        "--out", type=Path, default=PATH, help="the file to write; the other parts are from the last run"
    )
    parser.add_argument("--peer-minutes", type=float, default=10.0, help="at most this long for each of the peers")
    given = parser.parse_args()
    wanted = given.parts.split(",") if given.parts else []
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    parts = json.loads(PATH.read_text())["samples"] if PATH.exists() else {}
    if missing := [name for name in PARTS if name not in wanted and name not in parts]:
        parser.error(f"{PATH.name} lacks {', '.join(missing)}: take them too")
    sys.path.insert(0, str(HELPERS))
    with tempfile.TemporaryDirectory(prefix="fastjit-correctness-", ignore_cleanup_errors=True) as caches:
        harness.isolate_caches(caches)
        os.environ["PYTHONPATH"] = f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        described = machine.describe()
        for name in wanted:
            print(f"correctness: {name}", file=sys.stderr, flush=True)
            parts[name] = {"date": described["date"], "found": TAKE[name](given)}
        found = document(parts, described)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    harness.show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
