"""Programs launched through the CUDA driver, without a GPU: torch is given a stand-in for the device, the driver and
NVRTC are stand-ins that compile each kernel's source for the host and run it. See fake_cuda.py for the checks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="the stand-in takes CUDA's place in a torch without CUDA; see tests/gpu"
)

HELPERS = Path(__file__).parents[1] / "helpers"
CUDA = Path(__file__).parents[2] / "cuda"
SOURCES = [(HELPERS / name).read_text() for name in ("fake_cuda.py", "fake_cuda_training.py")]
CHECKS = [check for text in SOURCES for check in re.findall(r"^def (check_\w+)", text, re.MULTILINE)]

KERNEL_FLAGS = ("-std=c++17", "-O0", "-fPIC", "-ffp-contract=off", "-fno-gnu-unique", "-w")


def build(source: Path, library: Path, *flags: str) -> Path:
    compiler = [ccache, "g++"] if (ccache := shutil.which("ccache")) else ["g++"]
    made = library.with_suffix(".o")
    includes = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    subprocess.run(
        [*compiler, "-std=c++20", "-O0", "-fPIC", "-DNDEBUG", "-w", *includes, *flags, "-c", str(source), "-o", made],
        check=True,
    )
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()]
    found = [f"-Wl,-rpath,{folder}" for folder in cpp_extension.library_paths()]
    subprocess.run(["g++", "-shared", made, "-o", library, *libraries, *found, "-lc10", "-ltorch_cpu"], check=True)
    return library


class FakeCuda:
    def __init__(self, folder: Path) -> None:
        self.device = build(CUDA / "fake_device.cpp", folder / "libdevice.so")
        shim = Path(shutil.copy(CUDA / "host_shim.h", folder))
        subprocess.run(["g++", *KERNEL_FLAGS, "-x", "c++-header", shim, "-o", f"{shim}.gch"], check=True)
        flags = (f'-DSHIM="{shim}"', f'-DFLAGS="{" ".join(KERNEL_FLAGS)}"')
        self.driver = build(CUDA / "fake_driver.cpp", folder / "libdriver.so", *flags)

    def run(self, *names: str, driver: bool = True, cache: Path | None = None) -> Any:
        done = subprocess.run(
            [sys.executable, "fake_cuda.py", str(self.device), str(self.driver) if driver else "", *names],
            cwd=HELPERS,
            env={
                **os.environ,
                "FASTJIT_CACHE_DIR": str(cache or os.environ["FASTJIT_CACHE_DIR"]),
                "LD_PRELOAD": str(self.device),  # torch asks once, when it is imported, whether there is an accelerator
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    return FakeCuda(tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture(scope="module")
def results(fake: FakeCuda) -> dict[str, str]:
    return fake.run(*CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_on_the_stand_in(results: dict[str, str], check: str) -> None:
    assert not results[check], results[check]


def test_a_second_process_compiles_nothing(fake: FakeCuda, tmp_path: Path) -> None:
    assert fake.run("cache_counts", cache=tmp_path) == {"compiles": 1, "disk_hits": 0, "nvrtc": 1}
    assert fake.run("cache_counts", cache=tmp_path) == {"compiles": 0, "disk_hits": 1, "nvrtc": 0}


def test_without_nvrtc(fake: FakeCuda) -> None:
    reason, said = fake.run("no_nvrtc")
    assert reason.startswith("argument 'x' is on cuda:0 but NVRTC was not found")
    assert said.endswith("; 'python -m fastjit docs limits' says what CUDA tensors need")


def test_without_a_driver(fake: FakeCuda) -> None:
    reason, _ = fake.run("no_driver", driver=False)
    assert reason.startswith("argument 'x' is on cuda:0 but there is no CUDA driver (libcuda.so.1")
