"""``fastjit cache`` on fabricated folders: every verb, its JSON, its exit code, and what damaged entries do."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cache_tools import make, path_of
from fastjit import _build_info, _cache, cache, cli

ROOT = Path(__file__).resolve().parents[3]
ENTRY_FIELDS = ["key", "function", "signature", "target", "bytes", "loads", "compile_ms", "created", "last_used"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("FASTJIT_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def filled(root: Path) -> tuple[Path, dict[str, str]]:
    keys = {
        "model.gelu": make(root, "model.gelu", compile_ms=140.0, object_bytes=5000),
        "model.softmax": make(root, "model.softmax", target="cpu-avx512", age=40 * 86400),
        "other.gelu": make(root, "other.gelu", object_bytes=100, age=3600),
    }
    now = int(time.time())
    lines = [
        f"load {keys['model.gelu']} 3 {now}",
        f"compile {keys['model.gelu']} 1 {now}",
        "fault checksum 2 1",
        "torn li",
    ]
    (root / "stats").write_text("\n".join(lines))
    return root, keys


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["cache", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code, out, _ = run(capsys, *arguments, "--json")
    data = json.loads(out)
    assert data["schema"] == "fastjit.cache/1"
    return code, data


def test_dir_and_info(filled, capsys) -> None:
    root, _ = filled
    assert run(capsys, "dir") == (0, f"{root}\n", "")
    code, data = run_json(capsys, "info")
    assert code == 0 and data["path"] == str(root) and data["entries"] == 3 and data["format"] == 1
    assert data["by_target"] == {"cpu-avx2": 2, "cpu-avx512": 1}
    assert data["settings"][0] == {"name": "FASTJIT_CACHE_DIR", "value": str(root), "source": "FASTJIT_CACHE_DIR"}
    code, out, _ = run(capsys, "info")
    assert code == 0 and "3 of 16384" in out


@pytest.mark.parametrize(
    "damage",
    [b"load \xff\xfe 1 5", b"load " + b"ab" * 16 + b" " + b"9" * 5000 + b" 5", b"fault io-error 1 " + b"9" * 400],
)
@pytest.mark.parametrize("verb", [["ls"], ["info"], ["stats"], ["prune", "-y"]], ids=lambda verb: verb[0])
def test_damaged_lines_of_the_log_are_skipped(filled, capsys, verb, damage) -> None:
    root, keys = filled
    log = root / "stats"
    log.write_bytes(damage + b"\n" + log.read_bytes())
    code, out, err = run(capsys, *verb)
    assert (code, err) == (0, "") and out
    _, data = run_json(capsys, "ls", "gelu", "--filter", "loads=3")
    assert [entry["key"] for entry in data["entries"]] == [keys["model.gelu"]]


def test_prune_where_the_log_cannot_be_written(filled, capsys, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_cache, "write_log", full)
    code, out, err = run(capsys, "prune", "-y", "--unused")
    assert (code, err) == (0, "") and "(2 entries)" in out


def test_ls_json_has_the_promised_fields(filled, capsys) -> None:
    _, keys = filled
    code, data = run_json(capsys, "ls")
    assert code == 0 and len(data["entries"]) == 3
    entry = data["entries"][0]
    assert list(entry) == ENTRY_FIELDS
    assert entry["key"] == keys["model.gelu"] and entry["loads"] == 3 and entry["compile_ms"] == 140.0
    assert entry["function"] == "model.gelu" and abs(entry["last_used"] - time.time()) < 100


def test_ls_table_csv_quiet(filled, capsys) -> None:
    _, keys = filled
    _, out, _ = run(capsys, "ls")
    assert out.splitlines()[0].split() == [
        "KEY",
        "FUNCTION",
        "SIGNATURE",
        "TARGET",
        "SIZE",
        "LOADS",
        "SAVED",
        "COMPILE",
        "LAST",
        "USED",
    ]
    assert re.search(r"model\.gelu .* 3 +420 ms +140 ms +just now", out)
    assert out.splitlines()[-1].startswith("3 entries, ") and out.splitlines()[-1].endswith("; 2 never loaded")
    _, out, _ = run(capsys, "ls", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ENTRY_FIELDS and len(rows) == 3
    assert run(capsys, "ls", "-q", "model.softmax")[1] == keys["model.softmax"] + "\n"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["gelu"], ["model.gelu", "other.gelu"]),
        (["model.*"], ["model.gelu", "model.softmax"]),
        (["--filter", "size>4K"], ["model.gelu"]),
        (["--filter", "age>30d"], ["model.softmax"]),
        (["--filter", "loads=0,target=cpu-avx2"], ["other.gelu"]),
        (["--filter", "arch=avx512"], ["model.softmax"]),
        (["--filter", "device!=cpu"], []),
        (["--sort", "size:desc", "--limit", "2"], ["model.gelu", "model.softmax"]),
        (["--sort", "size"], ["other.gelu", "model.softmax", "model.gelu"]),
    ],
)
def test_ls_chooses(filled, capsys, arguments, names) -> None:
    _, data = run_json(capsys, "ls", *arguments)
    found = [entry["function"] for entry in data["entries"]]
    assert found == names if "--sort" in arguments else sorted(found) == sorted(names)


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "--filter", "colour=red"],
        ["ls", "--sort", "colour"],
        ["ls", "--filter", "size>many"],
        ["show", "12345"],
        ["show", "zzzzzzz"],
        ["show", "0123456789abcdef"],
    ],
)
def test_usage_errors_exit_2(filled, capsys, arguments) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == "" and err.startswith("fastjit: ")


def test_parser_errors_exit_2(filled, capsys) -> None:
    for arguments in (["nonsense"], [], ["prune", "--keep-size", "much"], ["prune", "--older-than", "5"], ["show"]):
        with pytest.raises(SystemExit) as raised:
            cli.main(["cache", *arguments])
        assert raised.value.code == 2


def test_show(filled, capsys) -> None:
    _, keys = filled
    key = keys["model.gelu"]
    code, out, _ = run(capsys, "show", key[:8])
    assert code == 0 and key in out and "140 ms" in out
    assert run(capsys, "show", key, "--ir")[1] == "%0 = input f32\n"
    for part in ("--source", "--llvm"):
        assert run(capsys, "show", key, part)[1] == "define void @fj_mul_f32()\n"
    code, _, err = run(capsys, "show", key, "--cuda")
    assert code == 1 and "no cuda: the entry holds none; --llvm shows its source" in err
    assert "plan:\n  plan model.gelu\n" in run(capsys, "show", key, "--key")[1]
    assert "signature: f32[*,1024]\n" in run(capsys, "show", key, "--meta")[1]
    _, data = run_json(capsys, "show", key)
    assert data["key"]["llvm"] == "22.1.8" and data["object_bytes"] == 5000 and list(data["entry"]) == ENTRY_FIELDS
    code, _, err = run(capsys, "show", key, "--asm")
    assert code == 1 and "no assembly" in err  # these objects are random bytes


def test_show_says_where_the_source_is_that_an_entry_does_not_hold(root, capsys) -> None:
    key = make(root, "f", source="")
    for part in ("--source", "--llvm"):
        code, out, err = run(capsys, "show", key, part)
        assert code == 1 and out == ""
        assert 'entries for a CPU hold no LLVM IR; inspect("llvm") of the function makes it' in err


def test_why_names_the_fields_that_differ(root, capsys) -> None:
    a = make(root, "f", plan="plan\nload 0 unit\nstore 1")
    b = make(root, "f", plan="plan\nload 0 any\nstore 1", target="cpu-avx512")
    code, data = run_json(capsys, "why", a, b)
    assert code == 1
    assert data["differences"] == [
        {"field": "target", "first": "cpu-avx2", "second": "cpu-avx512"},
        {"field": "plan:2", "first": "load 0 unit", "second": "load 0 any"},
    ]
    assert run(capsys, "why", a, a)[:2] == (0, "the keys are equal\n")


def test_why_shows_what_stands_in_one_key_only(root, capsys) -> None:
    a = make(root, "f", plan="plan\nload 0\nadd\nstore 1")
    b = make(root, "f", plan="plan\nload 0\nload 1\nadd\nmul\nstore 2")
    assert run_json(capsys, "why", a, b)[1]["differences"] == [
        {"field": "plan:3", "first": "", "second": "load 1"},
        {"field": "plan:4", "first": "store 1", "second": "mul\nstore 2"},
    ]
    code, out, _ = run(capsys, "why", a, b)
    assert code == 1 and out.startswith("plan:3:\n  - (absent)\n  + load 1\n")


def test_why_last_miss(root, capsys) -> None:
    make(root, "model.f", plan="plan\nload 0 unit\nlog 1\nexp 2\nstore 1", age=300)
    near = make(root, "model.f", plan="plan\nload 0 unit\nexp 1\nstore 1", age=200)
    make(root, "model.g", plan="plan\nload 0 any\nexp 1\nstore 2", age=100)
    last = make(root, "model.f", plan="plan\nload 0 any\nexp 1\nstore 1", age=50)
    code, data = run_json(capsys, "why", "--last-miss")
    assert code == 1 and data["entry"]["key"] == last and data["nearest"]["key"] == near
    assert data["differences"] == [{"field": "plan:2", "first": "load 0 unit", "second": "load 0 any"}]
    code, out, _ = run(capsys, "why", "--last-miss", "model.f")
    assert code == 1 and f"compiled just now: {last[:8]} model.f(" in out and "  + load 0 any" in out
    # Only one entry of this function: the nearest of all others.
    code, data = run_json(capsys, "why", "--last-miss", "g")
    assert data["entry"]["function"] == "model.g" and data["nearest"]["key"] == near
    assert [item["field"] for item in data["differences"]] == ["plan:2", "plan:4"]


def test_why_last_miss_without_anything_to_compare(root, capsys) -> None:
    code, _, err = run(capsys, "why", "--last-miss")
    assert code == 2 and "nothing was compiled into this cache" in err
    make(root, "f")
    assert run(capsys, "why", "--last-miss", "g")[0] == 2
    code, out, _ = run(capsys, "why", "--last-miss")
    assert code == 0 and "no older entry is of its kind" in out
    assert run(capsys, "why", "012345")[0] == 2
    assert run(capsys, "why", "012345", "--last-miss", "f")[0] == 2


def test_stats_by(filled, capsys) -> None:
    data = run_json(capsys, "stats", "--by", "fn")[1]
    assert data["by"] == run_json(capsys, "stats", "--by", "function")[1]["by"] and len(data["by"]) == 3
    assert run_json(capsys, "stats", "--by", "target")[1]["by"]["cpu-avx512"]["entries"] == 1
    group = run_json(capsys, "stats", "--by", "device")[1]["by"]["cpu"]
    assert (group["entries"], group["loads"], group["saved_ms"]) == (3, 3, 420.0)
    assert run_json(capsys, "stats", "--by", "reason")[1]["by"] == {"checksum": {"count": 2, "last": 1.0}}
    out = run(capsys, "stats", "--by", "reason")[1]
    assert re.search(r"REASON +COUNT +LAST\nchecksum +2 +\d+ d ago", out)
    with pytest.raises(SystemExit):
        run(capsys, "stats", "--by", "colour")


def test_verify_deep_links_each_object(root, capsys) -> None:
    code = "import torch; from fastjit import fastjit; fastjit(lambda x: x * 2.125 + 0.5)(torch.randn(4))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert run_json(capsys, "verify", "--deep")[1] == {
        "schema": "fastjit.cache/1", "checked": 1, "bad": {}, "removed": []
    }  # fmt: skip
    key = make(root, "model.f", object_bytes=300)
    assert run(capsys, "verify")[0] == 0
    code, data = run_json(capsys, "verify", "--deep", "--fix")
    assert code == 1 and list(data["bad"]) == [key] == data["removed"] and data["bad"][key].startswith("refused (")
    assert [entry.key for entry in cache.ls().entries] != [key]


def test_stats(filled, capsys) -> None:
    root, _ = filled
    code, data = run_json(capsys, "stats", "--by", "function")
    assert code == 0 and (data["loads"], data["compiles"]) == (3, 1) and data["faults"] == {"checksum": 2}
    assert data["saved_ms"] == 420.0 and data["by"]["model.gelu"]["loads"] == 3
    _, out, _ = run(capsys, "stats")
    assert "3 / 4 (75.0 %)" in out and "checksum 2" in out
    assert run_json(capsys, "stats", "--since", "1d")[1]["faults"] == {}
    run(capsys, "stats", "--zero")
    assert run_json(capsys, "stats")[1]["loads"] == 0
    assert not list((root / "tmp").iterdir())


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "checksum":
        data[-40] ^= 1
    elif how == "truncated":
        del data[-10:]
    elif how == "malformed":
        data += b"more"
    elif how == "not-an-entry":
        data[0] ^= 1
    elif how == "foreign-version":
        data[8] = 9
    elif how == "unsafe-file":
        path.chmod(0o666)
    elif how == "key-mismatch":
        data[45] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "how", ["checksum", "truncated", "malformed", "not-an-entry", "foreign-version", "unsafe-file", "key-mismatch"]
)
def test_verify_finds_and_fixes(filled, capsys, how) -> None:
    root, keys = filled
    assert run_json(capsys, "verify") == (0, {"schema": "fastjit.cache/1", "checked": 3, "bad": {}, "removed": []})
    damage(path_of(root, keys["other.gelu"]), how)
    code, data = run_json(capsys, "verify")
    assert code == 1 and data["bad"] == {keys["other.gelu"]: how}
    assert run(capsys, "verify", keys["model.gelu"])[0] == 0
    if how != "checksum":
        code, out, err = run(capsys, "ls")
        assert code == 4 and how in err and "other.gelu" not in out
    assert run(capsys, "verify", "--fix")[0] == 1
    assert not path_of(root, keys["other.gelu"]).exists()
    assert run(capsys, "verify")[0] == 0


def test_every_truncation_is_found(root) -> None:
    key = make(root, "f", object_bytes=50)
    path = path_of(root, key)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert cache.verify().bad == {key: "truncated"}, size


def test_destructive_verbs_ask_or_need_yes(filled, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, _, err = run(capsys, "clear")
    assert code == 2 and "-y" in err and len(cache.ls().entries) == 3
    code, out, _ = run(capsys, "clear", "-n")
    assert code == 0 and "would free" in out and len(cache.ls().entries) == 3
    answers = io.StringIO("n\ny\n")
    answers.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", answers)
    assert run(capsys, "clear", "--fn", "gelu")[0] == 0 and len(cache.ls().entries) == 3
    assert run(capsys, "clear", "--fn", "gelu")[0] == 0
    assert [entry.function for entry in cache.ls().entries] == ["model.softmax"]
    code, data = run_json(capsys, "clear", "-y")
    assert code == 0 and len(data["removed"]) == 1 and cache.ls().entries == []


def test_rm_and_prune(filled, capsys) -> None:
    root, keys = filled
    (root / "usage").write_text("usage 3 9 9\n")
    assert run(capsys, "rm", keys["model.gelu"][:8], "-y")[0] == 0
    assert not path_of(root, keys["model.gelu"]).exists() and not (root / "usage").exists()
    assert run(capsys, "prune", "--older-than", "30d", "-y")[0] == 0
    assert [entry.function for entry in cache.ls().entries] == ["other.gelu"]
    assert "load" not in (root / "stats").read_text() and "fault checksum 2 1" in (root / "stats").read_text()
    assert run(capsys, "prune", "--unused", "-y")[0] == 0
    assert cache.ls().entries == []


def test_prune_by_size_keeps_the_last_used(filled, capsys) -> None:
    assert run(capsys, "prune", "--keep-size", "6K", "-y")[0] == 0
    assert [entry.function for entry in cache.ls().entries] == ["model.gelu", "other.gelu"]
    assert run(capsys, "prune", "--max-entries", "1", "-y")[0] == 0
    assert [entry.function for entry in cache.ls().entries] == ["model.gelu"]


def test_missing_and_refused_folders_exit_3(tmp_path, capsys, monkeypatch) -> None:
    for verb in ("ls", "stats", "verify", "prune", "clear"):
        assert run(capsys, verb, "--cache-dir", str(tmp_path / "none"))[0] == 3
    assert run(capsys, "info", "--cache-dir", str(tmp_path / "none"))[0] == 0
    tmp_path.chmod(0o777)
    code, _, err = run(capsys, "ls", "--cache-dir", str(tmp_path))
    assert code == 3 and "others may write" in err
    monkeypatch.setenv("FASTJIT_CACHE_DIR", "relative")
    code, _, err = run(capsys, "dir")
    assert code == 3 and "absolute" in err


def test_names_from_files_are_escaped(root, capsys) -> None:
    make(root, "evil\x1b[2J\nname")
    _, out, _ = run(capsys, "ls")
    assert "\x1b" not in out and "evil\\x1b[2J\\nname" in out


EVIL = "evil\x1b[2J\nname\x9b"


def test_what_programs_read_has_no_control_characters(root, capsys) -> None:
    make(root, EVIL)
    code, out, _ = run(capsys, "ls", "--csv")
    assert code == 0 and out.count("\n") == 2 and not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)
    assert next(iter(csv.DictReader(io.StringIO(out))))["function"] == "evil\\x1b[2J\\nname\\x9b"


@pytest.mark.parametrize(
    "arguments",
    [
        [EVIL],
        ["ls", "--filter", EVIL],
        ["ls", "--filter", f"size>{EVIL}"],
        ["ls", "--filter", f"function<{EVIL}"],
        ["ls", "--sort", EVIL],
        ["ls", "--limit", EVIL],
        ["ls", f"--{EVIL}"],
        ["prune", "--keep-size", EVIL],
        ["prune", "--older-than", EVIL],
        ["stats", "--by", EVIL],
        ["show", EVIL],
        ["why", "--last-miss", EVIL],
        ["ls", "--cache-dir", EVIL],
        ["dir", EVIL],
    ],
    ids=lambda arguments: " ".join(arguments[:2]).replace(EVIL, "…"),
)
def test_argument_errors_have_no_control_characters(root, capsys, arguments) -> None:
    make(root, "model.gelu")
    try:
        code = cli.main(["cache", *arguments])
    except SystemExit as left:
        code = left.code
    captured = capsys.readouterr()
    assert code in (2, 3) and captured.out == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", captured.err), captured.err
    assert captured.err.splitlines()[-1].startswith(("fastjit: ", "fastjit cache"))


def test_verify_says_what_it_does_not_prove(filled, capsys) -> None:
    said = " checked, 0 bad. This finds damage; it does not prove who wrote an entry\n"
    assert run(capsys, "verify") == (0, f"3{said}", "")


@pytest.mark.parametrize("empty", [True, False])
def test_a_folder_at_the_path_of_an_entry_can_be_removed(filled, capsys, empty) -> None:
    root, keys = filled
    path = path_of(root, keys["model.gelu"])
    path.unlink()
    path.mkdir()
    if not empty:
        (path / "file").write_text("of somebody")
    assert run_json(capsys, "verify")[1]["bad"] == {keys["model.gelu"]: "unsafe-file"}
    assert run(capsys, "verify", "--fix")[0] == 1 and not path.exists()
    assert run(capsys, "verify")[0] == 0


def test_defaults_are_those_of_the_engine() -> None:
    table = (ROOT / "jit/support/settings.def").read_text()
    defaults = dict(re.findall(r'SETTING\(\w+, "(\w+)", "([^"]*)"', table))
    assert defaults["FASTJIT_CACHE_MAX_BYTES"] == _build_info.CACHE_MAX_BYTES
    assert defaults["FASTJIT_CACHE_MAX_ENTRIES"] == _build_info.CACHE_MAX_ENTRIES


def test_sizes_are_those_of_the_engine(root, capsys, monkeypatch) -> None:
    table = (ROOT / "tests/cpp/entry_test.cpp").read_text().partition("kSizes[]")[2].partition("};")[0]
    rows = re.findall(r'\{"([^"]*)", (-?\d+)\}', table)
    assert len(rows) > 20
    for text, size in [*rows, ("9" * 400, "-1")]:
        monkeypatch.setenv("FASTJIT_CACHE_MAX_BYTES", text)
        wanted = size if size != "-1" else str(cache.parse_size(_build_info.CACHE_MAX_BYTES))
        assert cache.max_bytes().value == wanted, text
        with pytest.raises(ValueError, match="is not a size") if size == "-1" else contextlib.nullcontext():
            assert cache.parse_size(text) == int(size)
    monkeypatch.setenv("FASTJIT_CACHE_MAX_BYTES", "5Ki")
    assert "from default ('5Ki' is not a size such as 500M or 2GiB)" in run(capsys, "info")[1]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("fastjit cache ls | true", 0),
        ("fastjit doctor --no-compile | true", 0),
        ("fastjit --version | true", 0),
        ("fastjit --help | true", 0),
        ("fastjit cache clear <&-", 2),
        ("fastjit cache ls >&-", 0),
        ("PYTHONIOENCODING=ascii fastjit cache ls", 0),
    ],
)
def test_odd_streams_end_in_no_traceback(root, line, code) -> None:
    make(root, "f" * 50)
    command = line.replace("fastjit", f"{sys.executable} -m fastjit") + "; exit ${PIPESTATUS[0]}"
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == code and "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr


def test_the_command_imports_no_torch_and_lists_a_thousand(root) -> None:
    for i in range(1000):
        make(root, f"f{i}", object_bytes=16)
    code = (
        "import sys; from fastjit.cli import main; code = main(['cache', 'ls', '-q'])\n"
        "heavy = {'torch', 'rich', 'numpy', 'xxhash', 'fastjit._C'} & set(sys.modules)\n"
        "print(sorted(heavy), code, file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(_cache.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1000 and done.stderr == "[] 0\n"


def test_doctor_without_compile(root, capsys) -> None:
    assert cli.main(["doctor", "--json", "--no-compile"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "fastjit.doctor/1" and set(data["versions"]) == {"fastjit", "torch", "LLVM", "Python"}
    states = {check["name"]: check["state"] for check in data["checks"]}
    assert states["cache folder"] == "ok" and states["CPU"] == "ok"
    cli.main(["doctor", "--no-compile"])
    assert str(root) in capsys.readouterr().out
