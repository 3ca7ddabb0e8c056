"""CUDA kernels without a GPU: each is compiled by NVRTC, and the same source runs on the host against eager.

FASTJIT_CUDA_FULL=1 (`make test-cuda-full`) takes every op, dtype and layout, and every architecture.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import cuda_host
from cuda_cases import cases, compare
from fastjit import _nvrtc, fastjit
from fastjit._load import extension
from helpers import clone_args

FULL = os.environ.get("FASTJIT_CUDA_FULL", "") not in ("", "0")
ROOT = Path(__file__).parents[3]


class Captured:
    """Every case captured, and its distinct kernels."""

    def __init__(self) -> None:
        self.cases = cases(full=FULL)
        self.functions: list[Any] = []
        self.uses: list[list[int]] = []  # per case: its kernels
        self.kernels: list[dict[str, Any]] = []
        number: dict[str, int] = {}
        torch.set_num_threads(1)
        for case in self.cases:
            function = fastjit(pure=case.pure)(case.function)
            function(*clone_args(case.args))
            assert function.stats().fallbacks == {}, (case.name, function.stats().fallbacks)
            uses = []
            for kernel in extension.cuda_kernels(function, 0):
                if kernel["source"] not in number:
                    number[kernel["source"]] = len(self.kernels)
                    self.kernels.append(kernel)
                uses.append(number[kernel["source"]])
            self.functions.append(function)
            self.uses.append(uses)

    @property
    def sources(self) -> list[str]:
        return [kernel["source"] for kernel in self.kernels]


@pytest.fixture(scope="module")
def captured():
    threads = torch.get_num_threads()
    with torch.no_grad():
        yield Captured()
    torch.set_num_threads(threads)


def test_the_list_holds_every_op_twice_and_is_short_enough(captured: Captured) -> None:
    ops: Counter[str] = Counter()
    for kernel in captured.kernels:
        ops.update(set(re.findall(r"= ([a-z0-9_]+)(?:\.\w+)? %", kernel["plan"])))
    table = (ROOT / "jit/ir/op.def").read_text()
    pointwise = re.findall(r'OP\(\w+, "(\w+)", [123], \w+, [^)]*Pointwise', table)
    assert {op: ops[op] for op in pointwise if ops[op] < 2} == {}
    if not FULL:
        assert len(captured.kernels) <= 300


def test_nvrtc_compiles_every_kernel(captured: Captured) -> None:
    assert _nvrtc.problem() == ""
    made = cuda_host.nvrtc_all(captured.sources, every_architecture=FULL)
    for (number, sm), result in made.items():
        assert result["cubin"][:4] == b"\x7fELF", captured.sources[number]
        assert f".target sm_{sm}" in result["ptx"]
        assert result["ms"] > 0


def test_the_source_means_what_eager_does(captured: Captured, tmp_path: Path) -> None:
    addresses = cuda_host.host_all(captured.kernels, tmp_path, 48 if FULL else cuda_host.UNITS)
    wrong = []
    for case, function, uses in zip(captured.cases, captured.functions, captured.uses, strict=True):
        extension.replace_kernels(function, 0, [addresses[use] for use in uses])
        args, expected_args = clone_args(case.args), clone_args(case.args)
        expected = case.function(*expected_args)
        got = function(*args)
        assert (function.stats().hits, function.stats().fallbacks) == (1, {}), case.name
        try:
            compare(case, got, expected)
        except AssertionError as error:
            wrong.append(f"{case.name}: {error}")
    assert not wrong, f"{len(wrong)} of {len(captured.cases)} cases\n" + "\n".join(wrong[:20])


def row_softmax() -> tuple[Any, tuple[torch.Tensor, ...]]:
    function = fastjit(pure=True)(lambda x: torch.softmax(torch.tanh(x) * 2, -1))
    args = (torch.randn(6, 70),)
    function(*args)
    return function, args


def test_the_shim_sees_a_missing_barrier(tmp_path: Path) -> None:
    function, args = row_softmax()
    kernel = extension.cuda_kernels(function, 0)[0]
    assert kernel["source"].count("__syncthreads();") == 2
    # The second one only keeps a later merge from overwriting what is still read.
    broken = kernel["source"].replace("__syncthreads();", "", 1)
    extension.replace_kernels(function, 0, cuda_host.host_all([{**kernel, "source": broken}], tmp_path))
    assert not torch.allclose(function(*args), torch.softmax(torch.tanh(args[0]) * 2, -1))


def test_inspect_shows_source_and_ptx_of_a_cpu_function() -> None:
    function, _ = row_softmax()
    source = function.inspect("cuda")
    for part in ("__launch_bounds__(256)", "tanhf(", "const Params p", "fj_block_merge(", "// f32"):
        assert part in source
    assert "\nfj_tanh_mul_max_sub_exp_sum_etc_f32(const Params p)" in source
    assert ".entry fj_tanh_mul_max_sub_exp_sum_etc_f32" in function.inspect("ptx")
    with pytest.raises(LookupError, match="no variant 3"):
        function.inspect("cuda", variant=3)


def test_cubins_are_cached_by_source_options_and_version(tmp_path: Path) -> None:
    assert _nvrtc.problem() == ""
    function, _ = row_softmax()
    keys = set()
    for sm in cuda_host.ARCHITECTURES:
        key, source = extension.cuda_cached(function, 0, 0, sm)
        assert source in ("compiled", "disk")
        assert extension.cuda_cached(function, 0, 0, sm) == (key, "memory")
        keys.add(key)
    assert len(keys) == 3
    extension.clear_memory()
    key, source = extension.cuda_cached(function, 0, 0, 90)
    assert source == "disk"
    entries = {path.stem: path for path in Path(os.environ["FASTJIT_CACHE_DIR"]).rglob("*.fj")}
    entries[key].write_bytes(entries[key].read_bytes()[:-40])  # damaged: compiled again
    extension.clear_memory()
    assert extension.cuda_cached(function, 0, 0, 90) == (key, "compiled")


def test_equal_sources_give_equal_cubins_in_every_process() -> None:
    assert _nvrtc.problem() == ""
    function, _ = row_softmax()
    source = function.inspect("cuda")
    here = extension.nvrtc_compile(source, 90)["cubin"]
    script = (
        "import sys, hashlib; from fastjit import _nvrtc; from fastjit._load import extension as e; _nvrtc.problem(); "
        "print(hashlib.sha256(e.nvrtc_compile(sys.stdin.read(), 90)['cubin']).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=source, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == hashlib.sha256(here).hexdigest()


def test_failures_say_what_is_wrong() -> None:
    assert _nvrtc.problem() == ""
    with pytest.raises(RuntimeError, match=r'NVRTC refuses the kernel: .*\n.*identifier "oops" is undefined'):
        extension.nvrtc_compile("__global__ void k() { oops; }", 90)
    with pytest.raises(RuntimeError, match="NVRTC refuses the kernel"):
        extension.nvrtc_compile("__global__ void k() {}", 1)
    if not torch.cuda.is_available():
        assert "CUDA driver" in extension.cuda_problem()
    with pytest.raises(TypeError, match="a fastjit function is needed"):
        extension.cuda_kernels(len, 0)
