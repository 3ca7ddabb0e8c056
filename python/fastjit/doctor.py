"""``fastjit doctor``: what is present on this machine, and one tiny compile. Imports torch only for that compile."""

# ruff: noqa: PTH207
from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass

OK, FINDINGS = 0, 1
SCHEMA = "fastjit.doctor/1"
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "fuse.sshfs"}


@dataclass(frozen=True)
class Check:
    name: str
    state: str  # "ok", "absent" (works without it), "bad"
    text: str


def versions() -> dict[str, str]:
    """Versions as far as they can be told without importing torch."""
    from importlib import metadata, util

    from fastjit import __version__

    def installed(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "not installed"

    try:
        from fastjit._build_info import TORCH as built_with
    except ImportError:
        built_with = "unknown"
    extension = "" if util.find_spec("fastjit._C") else " (extension not built)"
    result = {"fastjit": __version__ + extension, "torch": f"{installed('torch')} (built with {built_with})"}
    result["LLVM"] = _llvm_version()
    result["Python"] = platform.python_version()
    return result


def _llvm_version() -> str:
    """From the build's notes, or from the extension when it is loaded anyway."""
    try:
        from fastjit import _build_info

        noted = getattr(_build_info, "LLVM", "")
    except ImportError:
        noted = ""
    extension = sys.modules.get("fastjit._C")
    asked = getattr(extension, "llvm_version", None)
    return noted or (asked() if callable(asked) else "") or "unknown (known once the extension is loaded)"


def _isa() -> Check:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as stream:
            flags = set(next((line for line in stream if line.startswith("flags")), "").split())
    except OSError:
        return Check("CPU", "absent", "/proc/cpuinfo cannot be read")
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags:
        return Check("CPU", "ok", "has avx512")
    if {"avx2", "fma", "f16c", "bmi2"} <= flags:
        return Check("CPU", "ok", "has avx2")
    return Check("CPU", "bad", "has neither avx2 (with fma, f16c, bmi2) nor avx512: functions run eagerly")


def _file_system(path: str) -> str:
    """Type of the mount that holds `path`, from /proc/mounts."""
    best, kind = "", ""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                parts = line.split(" ")
                point = parts[1].replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, parts[2]
    except (OSError, IndexError):
        return ""
    return kind


def _cache_folder() -> list[Check]:
    from fastjit import _cache

    location = _cache.locate()
    if not location.path:
        return [Check("cache folder", "bad", f"none: {location.problem}; kernels are kept in memory only")]
    path = _cache.printable(location.path)
    if not os.path.lexists(location.path):
        return [Check("cache folder", "ok", f"{path} (from {location.source}) is made at the first compile")]
    problem = _cache.folder_problem(location.path)
    if problem:
        return [Check("cache folder", "bad", f"{path} is refused: {problem}; kernels are kept in memory only")]
    checks = []
    if os.access(location.path, os.W_OK):
        checks.append(Check("cache folder", "ok", f"{path} (from {location.source}) is writable"))
    else:
        checks.append(Check("cache folder", "bad", f"{path} cannot be written: new kernels are kept in memory only"))
    kind = _file_system(os.path.realpath(location.path))
    if kind in _NETWORK:
        checks.append(
            Check("file system", "absent", f"{kind} is a network file system: processes may compile a kernel twice")
        )
    return checks


def _library(name: str, what: str) -> Check:
    import ctypes

    try:
        ctypes.CDLL(name)
    except OSError:
        return Check(what, "absent", f"{name} was not found")
    return Check(what, "ok", f"{name} opens")


def _nvrtc() -> Check:
    import glob

    patterns = [f"{folder}/nvidia/*/lib/libnvrtc.so*" for folder in sys.path if folder]
    found = [
        path for pattern in [*patterns, "/usr/local/cuda*/lib64/libnvrtc.so*"] for path in sorted(glob.glob(pattern))
    ]
    if found:
        return Check("NVRTC", "ok", found[0])
    return Check("NVRTC", "absent", "not found; for GPU kernels: pip install nvidia-cuda-nvrtc")


def _compile() -> Check:
    """x * y + 1 through the decorator, compared with eager."""
    import time

    try:
        import torch

        from fastjit import fastjit

        function = fastjit(cache="memory")(lambda x, y: x * y + 1)  # a check leaves nothing behind
        x, y = torch.arange(64.0), torch.full((64,), 2.0)
        with torch.no_grad():
            start = time.perf_counter()
            first = function(x, y)
            ms = 1e3 * (time.perf_counter() - start)
            second = function(x, y)
        if not (torch.equal(first, x * y + 1) and torch.equal(second, x * y + 1)):
            return Check("compile", "bad", "x * y + 1 gave a wrong result")
        return Check("compile", "ok", f"x * y + 1: first call {ms:.1f} ms, right twice")
    except Exception as error:  # whatever is wrong with the installation is what doctor is asked to say
        return Check("compile", "bad", f"{type(error).__name__}: {error}")


def checks(*, compile_check: bool = True) -> list[Check]:
    found = [_isa(), *_cache_folder(), _library("libcuda.so.1", "GPU driver"), _nvrtc()]
    return [*found, _compile()] if compile_check else found


def main(*, as_json: bool = False, compile_check: bool = True) -> int:
    """Prints the report; 1 when something is bad."""
    found = checks(compile_check=compile_check)
    known = versions()  # after the compile: the extension can then say which LLVM it has
    if as_json:
        import json

        print(json.dumps({"schema": SCHEMA, "versions": known, "checks": [asdict(check) for check in found]}, indent=2))
    else:
        for name, value in known.items():
            print(f"        {name:<13} {value}")
        for check in found:
            print(f"{check.state:<7} {check.name:<13} {check.text}")
    return FINDINGS if any(check.state == "bad" for check in found) else OK
