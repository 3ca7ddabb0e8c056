"""Compiles CUDA kernels twice: by NVRTC, and as C++ over tests/cuda/host_shim.h into functions for the engine."""

from __future__ import annotations

import ctypes
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastjit._load import extension

SHIM = Path(__file__).parents[2] / "cuda" / "host_shim.h"
ARCHITECTURES = (80, 90, 100)
UNITS = 12
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w")


def nvrtc_all(sources: list[str], *, every_architecture: bool = False) -> dict[tuple[int, int], dict[str, Any]]:
    """(source, sm) -> what NVRTC made; each source for one architecture in turn, or for every one."""
    jobs = [
        (i, sm)
        for i in range(len(sources))
        for sm in (ARCHITECTURES if every_architecture else (ARCHITECTURES[i % len(ARCHITECTURES)],))
    ]
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda job: extension.nvrtc_compile(sources[job[0]], job[1]), jobs)
        return dict(zip(jobs, made, strict=True))


def unit_text(kernels: list[tuple[int, dict[str, Any]]]) -> str:
    """A translation unit: each kernel in a namespace of its own, and a function with the engine's ABI that runs it."""
    out = [f'#include "{SHIM}"\n']
    for number, kernel in kernels:
        strides, divided = (", ".join(map(str, kernel[key])) for key in ("strides", "divided"))
        layout = (
            f"{{{kernel['operands']}, {kernel['rank']}, {{{divided}}}, {{{strides}}}, "
            f"{kernel['scalars']}, {kernel['scratch']}, {str(kernel['blocks']).lower()}, {kernel['kept']}}}"
        )
        entry, name = kernel["name"], f"{kernel['name']}_{number}"
        out.append(
            f"namespace k{number} {{\n#define {entry} {name}\n{kernel['source']}\n#undef {entry}\n"
            f'extern "C" void host_{number}(const shim::KernelArgs* args, int64_t begin, int64_t) {{\n'
            f"  static const shim::Layout layout{layout};\n"
            f"  if (begin == 0) shim::launch<Params, {name}>(layout, args);\n}}\n}}\n"
        )
    return "".join(out)


def host_all(kernels: list[dict[str, Any]], folder: Path, units: int = UNITS) -> list[int]:
    """Addresses of functions that run the kernels on the host."""
    numbered = list(enumerate(kernels))
    parts = [numbered[i::units] for i in range(min(units, len(kernels)))]

    def build(part: int) -> ctypes.CDLL:
        source, library = folder / f"unit{part}.cpp", folder / f"unit{part}.so"
        source.write_text(unit_text(parts[part]))
        done = subprocess.run(["g++", *FLAGS, str(source), "-o", str(library)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(library))

    with ThreadPoolExecutor(2) as pool:
        libraries = list(pool.map(build, range(len(parts))))
    addresses = [0] * len(kernels)
    for part, library in zip(parts, libraries, strict=True):
        for number, _ in part:
            addresses[number] = ctypes.cast(getattr(library, f"host_{number}"), ctypes.c_void_p).value or 0
    return addresses
