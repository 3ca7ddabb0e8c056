"""Measures for which functions eager itself differs from CPU to CPU: eager_by_cpu.json, for docs/numerics.md.

Runs eager with each level of torch's own kernels (ATEN_CPU_CAPABILITY), of MKL (MKL_ENABLE_INSTRUCTIONS) and of oneDNN
(ONEDNN_MAX_CPU_ISA) that this CPU has, each in a process of its own, on the same values; the errors are against mpmath.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch

HERE = Path(__file__).parent
COUNT, EXACT = 1 << 16, 1500  # values that are compared, and of these the ones whose error is measured
NATIVE = "native"
LEVELS = {
    NATIVE: {},
    "torch avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "torch default": {"ATEN_CPU_CAPABILITY": "default"},
    "MKL AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL SSE4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "oneDNN AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
}
TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv "
)
UNARY += "sigmoid sqrt rsqrt reciprocal"
mp = mpmath.mp


def gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {name: getattr(torch, name) for name in UNARY.split()}
FUNCTIONS |= {
    "pow(x, 0.5)": lambda x: x.pow(0.5),
    "pow(x, -0.5)": lambda x: x.pow(-0.5),
    "pow(x, 2.5)": lambda x: x.pow(2.5),
    "pow(x, y)": lambda x: x.abs().pow(x.roll(1)),
    "atan2(x, y)": lambda x: torch.atan2(x, x.roll(1)),
    "gelu": gelu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "addcmul": lambda x: torch.addcmul(x, x.roll(1), x, value=0.3),
    "lerp": lambda x: torch.lerp(x, x.roll(1), 0.3),
    "add with alpha": lambda x: torch.add(x, x.roll(1), alpha=0.3),
    "softmax": lambda x: x.view(-1, 96).softmax(-1),
    "log_softmax": lambda x: x.view(-1, 96).log_softmax(-1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x.view(-1, 96), (96,)),
    "sum of 96": lambda x: x.view(-1, 96).sum(-1),
    "logsumexp": lambda x: x.view(-1, 96).logsumexp(-1),
    "matmul": lambda x: x[: 96 * 96].view(96, 96) @ x[-96 * 96 :].view(96, 96),
}
REFERENCES: dict[str, Callable[[Any], Any]] = {
    "exp": mp.exp, "exp2": lambda x: mp.power(2, x), "expm1": mp.expm1, "log": mp.log, "log1p": lambda x: mp.log(1 + x),
    "log2": lambda x: mp.log(x, 2), "log10": lambda x: mp.log(x, 10), "sin": mp.sin, "cos": mp.cos, "tan": mp.tan,
    "asin": mp.asin, "acos": mp.acos, "atan": mp.atan, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh,
    "asinh": mp.asinh, "acosh": mp.acosh, "atanh": mp.atanh, "erf": mp.erf, "erfc": mp.erfc, "erfinv": mp.erfinv,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)), "sqrt": mp.sqrt, "rsqrt": lambda x: 1 / mp.sqrt(x),
    "reciprocal": lambda x: 1 / x, "pow(x, 0.5)": mp.sqrt, "pow(x, -0.5)": lambda x: 1 / mp.sqrt(x),
    "pow(x, 2.5)": lambda x: mp.power(x, 2.5),
}  # fmt: skip


def values(dtype: torch.dtype) -> torch.Tensor:
    """Around 0, over forty powers of two, and in (-1, 1): as many as divide into rows of 96."""
    generator = torch.Generator().manual_seed(11)
    normal = torch.randn(COUNT, generator=generator, dtype=torch.float64)
    spread = normal * torch.exp2(torch.randint(-20, 20, (COUNT,), generator=generator).double())
    inside = torch.rand(COUNT, generator=generator, dtype=torch.float64) * 2 - 1
    return torch.stack([inside, 3 * normal, spread], 1).flatten()[: COUNT // 96 * 96].to(dtype)


def measure(path: str) -> None:
    """One level: what every function gives in every type."""
    torch.set_num_threads(1)
    results = {}
    with torch.no_grad():
        for kind, dtype in TYPES.items():
            for name, function in FUNCTIONS.items():
                results[f"{name}|{kind}"] = function(values(dtype)).double().numpy()
    np.savez(path, **results)


def run_all() -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for level, settings in LEVELS.items():
            path = f"{folder}/{level}.npz"
            subprocess.run([sys.executable, __file__, "--measure", path], check=True, env={**os.environ, **settings})
            with np.load(path) as file:
                found[level] = dict(file)
    return found


def largest_error(name: str, kind: str, results: list[np.ndarray]) -> list[float]:
    """Units of the last place that each of `results` is off at most, over the first values; finite ones only."""
    mp.prec = 200
    info, worst = torch.finfo(TYPES[kind]), [0.0] * len(results)
    for i, x in enumerate(values(TYPES[kind])[:EXACT].tolist()):
        if not all(np.isfinite(r[i]) and r[i] != 0 for r in results):
            continue
        exact = REFERENCES[name](mp.mpf(x))
        if isinstance(exact, mpmath.mpc) or abs(exact) < info.tiny or abs(exact) > info.max:
            continue
        unit = mp.power(2, mp.floor(mp.log(abs(exact), 2))) * info.eps
        worst = [max(w, float(abs(mp.mpf(float(r[i])) - exact) / unit)) for w, r in zip(worst, results, strict=True)]
    return worst


def rows() -> list[dict[str, Any]]:
    found, table = run_all(), []
    for key, native in found[NATIVE].items():
        name, kind = key.split("|")
        differ = {}
        for level in LEVELS:
            other = found[level][key]
            differ[level] = float(np.mean(~((native == other) | (np.isnan(native) & np.isnan(other)))))
        del differ[NATIVE]
        if not any(differ.values()):
            continue
        row: dict[str, Any] = {"function": name, "type": kind, "differ": differ}
        if name in REFERENCES and kind in ("f32", "f64"):
            errors = largest_error(name, kind, [found[level][key] for level in LEVELS])
            row["errors"] = dict(zip(LEVELS, errors, strict=True))
        table.append(row)
    return table


def cpu() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{names[0].split(':')[1].strip()}, {torch.backends.cpu.get_cpu_capability()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", metavar="FILE", help="this process's level alone")
    path = parser.parse_args().measure
    if path:
        return measure(path)
    table = rows()
    same = sorted(set(FUNCTIONS) - {row["function"] for row in table})
    out = {"cpu": cpu(), "torch": torch.__version__, "levels": LEVELS, "count": len(values(torch.float32))}
    out |= {"exact": EXACT, "same": same, "rows": table}
    (HERE / "eager_by_cpu.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
