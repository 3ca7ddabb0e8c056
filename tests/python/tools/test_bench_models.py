"""`fastjit bench --model`: names, refusals, the table; and what benchmarks/models.py makes of its measurements.

The libraries are stood in for by a package of a few lines, so that the tests need none of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench_tools import MACHINE
from fastjit._bench import models, table
from fastjit._bench.errors import BenchError
from fastjit._bench.load import load_case
from fastjit._bench.result import Result, Row
from fastjit.bench_cli import main

pytestmark = pytest.mark.usefixtures("own_caches")
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
FAKE = """
import torch

NAMES = ["tiny_net_patch4", "tiny_net_patch8", "reader"]

def list_models():
    return NAMES

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.mix = torch.nn.Linear(width, width)
        self.pretrained_cfg = {"input_size": (3, 8, width)}
    def forward(self, x):
        return torch.sigmoid(self.mix(self.norm(x))) * x

class Reader(Net):
    seen = []
    def forward(self, x):
        Reader.seen.append(len(Reader.seen))
        return super().forward(x) * len(str(Reader.seen[-1]))

def create_model(name, pretrained=True, width=8):
    assert not pretrained
    return (Reader if name == "reader" else Net)(width)
"""
QUICK = ["--rounds", "3", "--min-time", "0", "--threads", "1"]


@pytest.fixture
def fake_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timm of three models, for this process and for those that it starts."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "timm.py").write_text(FAKE)
    for name in [known for known in sys.modules if known.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    yield
    sys.modules.pop("timm", None)
    sys.modules.pop(Path(models.CASE_FILE).stem, None)


@pytest.fixture(autouse=True)
def _threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_model_has_a_table_of_first_and_later_calls(fake_timm: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model", "timm:tiny_net_patch4", "--variants", "fastjit", *QUICK]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "timm:tiny_net_patch4 (batch=1)"
    for column in ("first cold", "first warm", "median [25 %, 75 %]", "speed over eager [95 %]", "kernels/steps"):
        assert column in printed[1]
    assert [line.split()[0] for line in printed[3:5]] == ["eager", "fastjit"]
    assert not any("ran eagerly" in line for line in printed)


def test_as_json_and_at_several_batches(fake_timm: None, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--variants", "jit,fastjit", "--batch", "1,3", "--json", "--no-first", "--config", "width=16", *QUICK]
    assert main(["bench", "--model", "timm:tiny_net_patch4", *options]) == 0
    one, three = json.loads(capsys.readouterr().out)["results"]
    assert (one["values"], three["values"]) == ({"batch": 1}, {"batch": 3})
    weights = 2 * 16 + 16 * 16 + 16
    assert [found["traffic_bytes"] for found in (one, three)] == [4 * (weights + 2 * n * 3 * 8 * 16) for n in (1, 3)]
    for found in (one, three):
        rows = {row["name"]: row for row in found["rows"]}
        assert set(rows) == {"eager", "torch.jit.trace", "fastjit"}
        assert all(row["status"] == "ok" for row in rows.values())
        assert rows["fastjit"]["ran_eagerly"] is False and rows["fastjit"]["kernels"] >= 1


def test_a_model_that_runs_eagerly_is_no_winner(fake_timm: None, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--variants", "fastjit", "--no-first", "--json", *QUICK]
    assert main(["bench", "--model", "timm:reader", *options]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    row = next(row for row in found["rows"] if row["name"] == "fastjit")
    assert row["ran_eagerly"] is True and row["note"].startswith("ran eagerly: ")
    assert found["verdict"].startswith("fastjit ran no timed call as a program, so its ")
    assert found["verdict"].endswith(f"a call are eager's: {row['note']}.")


def test_the_same_weights_in_each_process(fake_timm: None, tmp_path: Path) -> None:
    spec = models.ModelSpec("timm:tiny_net_patch4", batch=2)
    case = load_case(models.write_case(spec, str(tmp_path)))
    assert case.args[0].shape == (2, 3, 8, 8) and not case.fn.training  # type: ignore[attr-defined]
    torch.rand(7)
    again = models.make(spec)
    for mine, other in zip(case.fn.parameters(), again.module.parameters(), strict=True):  # type: ignore[attr-defined]
        assert torch.equal(mine, other)
    assert torch.equal(case.args[0], again.inputs(2)[0])


def test_no_weight_is_zero_and_batch_norm_has_statistics() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    torch.nn.init.zeros_(net[2].weight)
    models._enliven(models.Made(net, models._images(3, 4, 4)))
    assert all(weight.unique().numel() > 1 for weight in net.parameters())
    x = net[0](models._images(3, 4, 4)(2)[0])
    torch.testing.assert_close(net[1].running_mean, x.mean((0, 2, 3)))
    assert net.eval()(models._images(3, 4, 4)(1)[0]).abs().max() > 1e-2


MODEL = ["--model", "timm:tiny_net_patch4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--model", "resnet50"],
            "--model resnet50: which library? Write one of timm:vit_tiny_patch16_224, torchvision:",
        ),
        (["--model", "keras:vgg"], "--model keras:vgg: which library?"),
        (["--model", "timm:"], "--model timm:: which library?"),
        (
            ["--model", "timm:tiny_nett"],
            "timm has no model 'tiny_nett' that is run here; close to it are tiny_net_patch4, tiny_net_patch8",
        ),
        (["--model", "timm:zzz"], "has no model 'zzz' that is run here; a name that it has is vit_tiny_patch16_224"),
        ([*MODEL, "--batch", "0"], "--batch 0: give at least 1, or several as in --batch 1,8"),
        ([*MODEL, "--batch", "two"], "--batch two: give at least 1"),
        ([*MODEL, "--image-size", "0"], "--image-size 0: give at least 1"),
        ([*MODEL, "--length", "8"], "--length 8: timm:tiny_net_patch4 takes images; give --image-size"),
        ([*MODEL, "--config", "width"], "write --config num_hidden_layers=4,hidden_size=128"),
        ([*MODEL, "--config", "depth=2"], "--model timm:tiny_net_patch4 could not be made: TypeError: "),
        ([*MODEL, "case.py::f"], "'case.py::f' is left over"),
        ([*MODEL, "--args", "1"], "--args belongs to FILE.py::fn; a model has --batch"),
        ([*MODEL, "-s", "import torch"], "-s belongs to FILE.py::fn; a model has --batch"),
        (["case.py::f", "--batch", "8"], "--batch belongs to --model LIBRARY:NAME"),
        (["pass", "--image-size", "8"], "--image-size belongs to --model LIBRARY:NAME"),
    ],
)
def test_refusals_name_the_argument(
    arguments: list[str], words: str, fake_timm: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1 and captured.out == ""


@pytest.mark.parametrize("library", list(models.SOURCES))
def test_a_missing_library_says_what_to_type(
    library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert main(["bench", "--model", f"{library}:any"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fastjit bench: --model {library}:any needs {library}, which does not import (")
    assert "; type: pip install " in said and ("--no-deps" in said) == (library != "transformers")


def test_configurations() -> None:
    assert models.parse_config("a=1, b=x,c=True") == {"a": 1, "b": "x", "c": True}
    assert models.parse_config(None) == {}
    with pytest.raises(BenchError, match="write --config"):
        models.parse_config("a=1,=2")


def test_transformers_models_are_made_from_their_configuration() -> None:
    pytest.importorskip("transformers", reason="the models come from the package transformers")
    small = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
    made = models.make(models.ModelSpec("transformers:gpt2", length=6, config=small))
    (ids,) = made.inputs(2)
    with torch.no_grad():
        results = made.module(ids)
    assert ids.shape == (2, 6) and type(results) is tuple and results[0].shape == (2, 6, 32)
    encoder = {"vocab_size": 50, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    made = models.make(models.ModelSpec("transformers:t5", length=6, config=encoder))
    assert type(made.module).__name__ == "T5Stack" and made.module(*made.inputs(1))[0].shape == (1, 6, 32)
    with pytest.raises(BenchError, match=r"has 6\.\d billion parameters by default, too many .*make it smaller"):
        models.make(models.ModelSpec("transformers:llama"))
    with pytest.raises(BenchError, match="--image-size 8: transformers:gpt2 takes tokens; give --length"):
        models.make(models.ModelSpec("transformers:gpt2", image_size=8, config=small))


def test_a_model_of_timm() -> None:
    """In a process of its own: a timm that was imported stays imported."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    program = """
import json, torch
from fastjit._bench import models
made = models.make(models.ModelSpec("timm:vit_tiny_patch16_224", image_size=32, config={"depth": 2}))
with torch.no_grad():
    print(json.dumps([list(x.shape) for x in (*made.inputs(3), made.module(*made.inputs(3)))]))
"""
    import subprocess

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[3, 3, 32, 32], [3, 1000]]


def test_an_eager_row_is_said_in_the_verdict() -> None:
    rows = [Row("eager", samples=[2e-3] * 5), Row("fastjit", samples=[1e-3] * 5, eager=True)]
    result = Result("case", rows, "eager", MACHINE)
    assert result.verdict() == "fastjit ran no timed call as a program, so its 1.00 ms a call are eager's."
    rows[1].eager = False
    assert "times as fast" in result.verdict()


# benchmarks/models.py


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/models.py with its tables and its list of models, as `tables` and `zoo`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("bench_models", BENCHMARKS / "models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stats(calls: int = 4, hits: int = 3, **more: Any) -> dict[str, Any]:
    found = {"calls": calls, "hits": hits, "misses": 1, "fallbacks": {}, "compiles": 5, "kernels": 7, "steps": 9}
    return {**found, "record_ms": 30.0, **more}


def firsts(**more: Any) -> dict[str, Any]:
    found = {"first_s": 0.2, "eager_s": 0.02, "full_first_s": 0.08, "full_eager_s": 0.02, "stats": stats()}
    return {**found, "compile": {"over_limit_s": 60.0}, **more}


def steady_row(name: str, seconds: float, **more: Any) -> dict[str, Any]:
    found = {"name": name, "status": "ok", "median_s": seconds, "note": None, "ran_eagerly": False}
    return {**found, "kernels": 7, "steps": 9, **more}


def test_the_20_models(bench: Any) -> None:
    assert len({model.short for model in bench.zoo.MODELS}) == len({model.name for model in bench.zoo.MODELS}) == 20
    assert all(10 <= model.layers <= 60 for model in bench.zoo.MODELS)
    assert {model.spec().parts[0] for model in bench.zoo.MODELS} == set(models.SOURCES)


def test_a_model_that_ran_eagerly_is_in_no_figure(bench: Any) -> None:
    vit, bert = (next(m for m in bench.zoo.MODELS if m.short == short) for short in ("vit_tiny", "bert"))
    eager = stats(hits=0, fallbacks={"it reads a clock": 3})
    slow = steady_row("eager", 0.02)
    found = {
        "vit_tiny": {
            "first": firsts(),
            "steady 1": {
                "rows": [slow, steady_row("torch.compile", 0.015), steady_row("fastjit", 0.01)],
                "over": {"eager": [1.9, 2.0, 2.1], "torch.compile": [1.4, 1.5, 1.6]},
                "left_out": {},
            },
            "memory": {
                "eager": {"peak_bytes": 1000, "kept_bytes": 10, "stats": None},
                "fastjit": {"peak_bytes": 700, "kept_bytes": 300, "stats": stats()},
            },
        },
        "bert": {
            "first": firsts(first_s=0.001, stats=eager),
            "steady 1": {
                "rows": [slow, steady_row("fastjit", 0.001, ran_eagerly=True, note="ran eagerly: it reads a clock")],
                "over": {"eager": [20.0, 20.0, 20.0]},
                "left_out": {"torch.compile": "its first call was not done after 60 s"},
            },
            "memory": {
                "eager": {"peak_bytes": 1000, "kept_bytes": 10, "stats": None},
                "fastjit": {"peak_bytes": 1, "kept_bytes": 1, "stats": eager},
            },
        },
    }
    outcome = bench.tables.outcome([vit, bert], found)
    figures = {target.what: target for target in outcome.targets}
    of_20 = figures["of 20 models, those whose later calls are hits"]
    assert (of_20.measured, of_20.detail) == (1, "eagerly or not at all: bert")
    longest = figures["first call of a model over eager, empty cache, longest"]
    assert longest.measured == pytest.approx(0.18) and longest.detail == "vit_tiny; 0 of 1 beyond 0.5 s"
    assert figures["first call of a model over eager, empty cache, median"].detail == (
        "of the 1 of 2 that ran as programs"
    )
    assert figures["the same over torch.compile's, largest"].measured == pytest.approx(0.18 / 60)
    full = figures["first call with a full cache over twice eager's call and 30 ms, largest"]
    assert full.measured == pytest.approx(0.08 / 0.07) and not full.reaches(full.must)
    assert figures["recording alone over eager, vit_tiny"].measured == pytest.approx(0.01)
    assert figures["recording alone over eager, gpt2"].measured is None
    assert figures["a call of a model, times as fast as the best peer, least"].measured == 1.5
    assert figures["peak memory of a model's call over eager's, largest"].measured == 0.7
    shown = {sheet.title: table.align(sheet.columns, sheet.rows) for sheet in outcome.sheets}
    assert "eager: it reads a clock" in shown["First calls, batch 1, best of fresh processes"]
    assert "over 60.0 s" in shown["First calls, batch 1, best of fresh processes"].replace("over 60 s", "over 60.0 s")
    assert "1.00 ms (ran eagerly)" in shown["Later calls"] and "was not done after 60 s" in shown["Later calls"]


def test_convolutions_are_held_against_eager_and_jit(bench: Any) -> None:
    resnet = next(model for model in bench.zoo.MODELS if model.short == "resnet50")
    found = {
        "rows": [steady_row("fastjit", 0.01)],
        "over": {"eager": [1.2, 1.3, 1.4], "torch.jit.trace": [1.0, 1.1, 1.2], "torch.compile": [0.5, 0.6, 0.7]},
    }
    assert bench.tables.over_best(resnet, found)[0] == "torch.jit.trace"


def test_48_blocks_over_4(bench: Any) -> None:
    found = {
        f"resnet block, {count} layers": {"deep": {"first_s": 1.0, "eager_s": 0.1, "stats": stats(compiles=compiles)}}
        for count, compiles in ((4, 10), (48, 40))
    }
    found["800 Linear(4, 4)"] = {"deep": {"error": "out of memory"}}
    figures = {target.what: target for target in bench.tables.targets([], found)}
    blocks = figures["kernels compiled for 48 resnet blocks over those for 4"]
    assert (blocks.measured, blocks.detail, blocks.reaches(blocks.must)) == (4.0, "40 over 10", False)
    linears = figures["first call over eager, 800 Linear(4, 4)"]
    assert (linears.measured, linears.detail) == (None, "out of memory")


def test_deep_programs_and_blocks_are_cases(bench: Any) -> None:
    for name in bench.zoo.DEEP.values():
        assert callable(load_case(bench.zoo.deep_case(name)).fn)
    for kind in bench.zoo.BLOCKS:
        case = load_case(bench.zoo.block_case(kind, 2))
        assert len(case.fn) == 2 and case.fn(*case.args).shape == case.args[0].shape  # type: ignore[arg-type]
    with pytest.raises(BenchError, match="has no 'lstm_2'"):
        load_case(bench.zoo.block_case("lstm", 2))


def test_a_run_that_was_cut_off_goes_on(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    import _harness
    from fastjit._bench.progress import Progress

    options = _harness.Options(True, 3, Progress(False), "", argparse.Namespace())
    path = tmp_path / "kept.json"
    taken = []

    def measure() -> dict[str, Any]:
        taken.append(1)
        return firsts()

    kept = bench.Kept(path)
    assert kept.measure("vit_tiny", "first", measure, options) == firsts()

    def late() -> dict[str, Any]:
        raise bench.subprocess.TimeoutExpired("python", 60)

    assert kept.measure("bert", "first", late, options) == {"error": "not done after 60 s"}
    again = bench.Kept(path)
    assert again.measure("vit_tiny", "first", measure, options) == firsts() and len(taken) == 1
    assert again.measure("bert", "first", measure, options) == firsts() and len(taken) == 2  # an error is tried again
    document = json.loads(path.read_text())
    document["taken_with"]["torch"] = "1.0"
    path.write_text(json.dumps(document))
    with pytest.raises(SystemExit, match="taken with another machine or build; remove it or name another"):
        bench.Kept(path)
    assert "vit_tiny  first  180 ms over eager, program" in capsys.readouterr().err
