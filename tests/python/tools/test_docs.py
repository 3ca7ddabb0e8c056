"""Pages that are written from the code are what the code says; links lead somewhere; examples run and are hits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastjit import fastjit

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


def test_settings_are_those_of_the_code() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "run python docs/generate.py"


def test_every_variable_in_the_sources_has_a_row() -> None:
    known = set(re.findall(r'"(FASTJIT_\w+)"', (ROOT / "jit/support/settings.def").read_text()))
    sources = [p for folder in ("jit", "src", "python") for p in (ROOT / folder).rglob("*")]
    used = {
        name
        for path in sources
        if path.suffix in {".cpp", ".h", ".py"}
        for name in re.findall(r'"(FASTJIT_[A-Z_]+)"', path.read_text())
    }
    assert {"FASTJIT_CACHE_DIR", "FASTJIT_DISABLE"} <= used <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing


def test_python_in_the_pages_compiles() -> None:
    blocks = [
        (page, block) for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert len({page for page, _ in blocks}) >= 3
    for page, block in blocks:
        compile(block, str(page), "exec")


def test_the_first_lines_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.findall(r"```python\n(.*?)```", PAGES[0].read_text(), re.DOTALL)[0]
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert "hits=1" in capsys.readouterr().out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_is_a_hit(example: Path, tmp_path: Path) -> None:
    environment = os.environ | {"FASTJIT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-W", "error", example], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    hits = [int(n) for n in re.findall(r"hits (\d+)", done.stdout)]
    assert hits and hits[0] > 0, done.stdout
    assert not re.search(r"fallbacks \{[^}]", done.stdout), done.stdout


@pytest.mark.parametrize(("page", "before"), [("README.md", "## Two commands"), ("docs/quickstart.md", "## A module")])
def test_newcomers_read_early_what_same_results_means(page: str, before: str) -> None:
    text = (ROOT / page).read_text().partition(before)[0]
    assert "rounding" in text and "last bits" in text and "numerics.md)" in text


def test_same_results_are_the_same_up_to_rounding() -> None:
    x = torch.linspace(-4, 4, 1001)
    near, exact = fastjit(lambda x: torch.sin(x) * 2 + 1), fastjit(lambda x: (x * 2 + 1) / 3)
    first, later = (near(x), exact(x)), (near(x), exact(x))
    assert near.stats().hits == exact.stats().hits == 1
    assert torch.equal(first[1], later[1])
    torch.testing.assert_close(first[0], later[0], rtol=0, atol=8 * torch.finfo(torch.float32).eps)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


def test_the_page_of_numerics_is_that_of_the_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "reference")
    import numerics_table

    assert (ROOT / "docs" / "numerics.md").read_text() == numerics_table.page(), (
        "run python tests/reference/numerics_table.py"
    )
