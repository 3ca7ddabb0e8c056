"""f.export() of programs with steps of torch's: they run in libtorch, between the kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastjit
from exported import Library, check, exported, refused
from fastjit._load import extension as _C

pytestmark = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler")


def calls_of(f, *args):
    """The operators of torch's that the exported program has, and how many launches of kernels."""
    compiled = fastjit.of(fastjit.fastjit(f)) if isinstance(f, nn.Module) else fastjit.fastjit(f)
    compiled.warmup(*args)
    steps = _C.export_program(compiled, args, {}, "avx2", False, "k")["steps"]
    return [step["call"]["operator"] for step in steps if "call" in step], sum(len(s["launches"]) for s in steps)


def spd(n, dtype=torch.float64):
    return torch.randn(n, n, dtype=dtype) + n * torch.eye(n, dtype=dtype)


CASES = {
    "a list among kernels": (lambda x: torch.sort(x.sin())[0] * 2, ["aten::sort"], lambda: (torch.randn(20, 30),)),
    "two results of one call": (lambda x: torch.topk(x * 2, 3), ["aten::topk"], lambda: (torch.randn(5, 30),)),
    "linear algebra": (
        lambda a, b: torch.linalg.solve(a, b) + 1,
        ["aten::linalg_solve"],
        lambda: (spd(6), torch.randn(6, 2, dtype=torch.float64)),
    ),
    "halves": (lambda x: torch.cumsum(x, 0) * 2, ["aten::cumsum"], lambda: (torch.randn(20, 30).half(),)),
    "a list of tensors is given": (
        lambda x: [part * 2 for part in torch.gradient(x.sin())],
        ["aten::gradient"],
        lambda: (torch.rand(5, 7),),
    ),
    "a list of tensors is taken": (
        lambda x: torch.block_diag(x.sin(), x) + 1,
        ["aten::block_diag"],
        lambda: (torch.randn(5, 7),),
    ),
    "numbers of which no kernel knows": (
        lambda x: torch.fft.rfft(x * 2).abs() + 1,
        ["aten::fft_rfft", "aten::abs"],
        lambda: (torch.randn(5, 32),),
    ),
    "text": (lambda x: F.pad(x.sin(), (1, 1), mode="reflect") * 2, None, lambda: (torch.randn(2, 5),)),
    "attention, which draws nothing": (
        lambda q: F.scaled_dot_product_attention(q, q, q) * 2,
        ["aten::scaled_dot_product_attention"],
        lambda: (torch.randn(1, 2, 8, 16),),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_of_torch(tmp_path, case):
    f, operators, make = CASES[case]
    args = make()
    found, launches = calls_of(f, *args)
    assert launches, found
    assert found == operators if operators else len(found) >= 1, found
    check(tmp_path, f, *args)


def test_a_chain_of_convolutions(tmp_path):
    first, second = nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.Conv2d(8, 4, 3, stride=2, groups=2)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU()).eval()
    x = torch.randn(2, 4, 16, 16)
    found, launches = calls_of(model, x)
    assert len(found) == 2 and all("conv" in name for name in found), found
    assert launches >= 2
    check(tmp_path, model, x)


def test_convolutions_that_kernels_compute(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2), nn.ReLU()).eval()
    x = torch.randn(2, 3, 16, 16)
    assert calls_of(model, x)[0] == []
    check(tmp_path, model, x)


def test_a_state_that_torch_writes(tmp_path):
    def f(state, x):
        state[1:].cumsum_(0)
        return state.sin() + x

    state, x = torch.randn(4, 5), torch.randn(4, 5)
    library = exported(tmp_path, f, state, x)
    mine, result = state.clone(), torch.empty(4, 5)
    library.run([mine, x], [result])
    torch.testing.assert_close(result, f(state, x))
    assert torch.equal(mine, state)
    assert "aten::cumsum_" in calls_of(f, state, x)[0]


def test_a_result_that_torch_wrote_in_an_argument_is_no_array_more(tmp_path):
    f = lambda x: x.cumsum_(0)  # noqa: E731
    x = torch.randn(4, 5)
    mine = x.clone()
    exported(tmp_path, f, x).run([mine], [])
    assert torch.equal(mine, f(x))


def test_numbers_of_the_call_reach_torch(tmp_path):
    f = lambda x, p: torch.cdist(x, x * 2, p) * p  # noqa: E731
    x, result = torch.randn(8, 3), torch.empty(8, 8)
    function = fastjit.fastjit(f)
    for p in (1.5, 2.5, 3.5, 4.5):  # it differs from call to call
        function(x, p)
    library = Library(function.export(tmp_path / "dist", x, 1.5))
    for p in (1.5, 3.0):
        library.run([x, torch.tensor(p, dtype=torch.float64)], [result])
        torch.testing.assert_close(result, f(x, p))


def test_memory_ends_with_the_last_step_that_needs_it(tmp_path):
    def f(x):
        for _ in range(6):
            x = torch.sort(x.sin(), dim=0)[0] * 2
        return x

    x = torch.randn(64, 64)
    library = check(tmp_path, f, x)
    assert len(calls_of(f, x)[0]) == 6
    assert len(library.scratch) < 3 * x.nbytes


def test_an_error_of_torchs_is_a_code_with_its_words(tmp_path):
    library = exported(tmp_path, lambda x: torch.linalg.inv(x.sin()) + 1, spd(4))
    good, result = spd(4), torch.empty(4, 4, dtype=torch.float64).t()
    code = library.code([torch.zeros(4, 4, dtype=torch.float64)], [result])
    assert code != 0
    assert re.match(r"aten::linalg_inv at test_export_torch.py:\d+: .*is singular", library.error(code))
    library.run([good], [result])
    torch.testing.assert_close(result, torch.linalg.inv(good.sin()) + 1)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def one_thread():
    """Of torch's: several would wait for one another longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_calls_leave_nothing_behind(tmp_path, one_thread):
    """Operands, results, lists, text, numbers that may be none, and errors."""

    def f(x):
        padded = F.pad(torch.block_diag(x.sin(), x), (1, 1), mode="reflect")[:, 1:-1]
        return torch.linalg.inv(padded + 0)

    x, bad = spd(16), torch.zeros(16, 16, dtype=torch.float64)
    library = exported(tmp_path, f, x)
    result, before = torch.empty_like(f(x)), 0
    for rounds in (100, 4000):
        before = resident()
        for _ in range(rounds):
            assert library.code([x], [result]) == 0
        for _ in range(5):  # torch looks up names for the trace of each
            assert library.code([bad], [result]) != 0
    library.run([x], [result])
    torch.testing.assert_close(result, f(x))
    assert resident() - before < 4 << 20  # a tensor of 8 kB left behind each time would be 32 MB


def needed(path):
    said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def test_libtorch_is_needed_where_torch_has_a_step(tmp_path):
    sorts = fastjit.fastjit(lambda x: torch.sort(x)[0] + 1).export(tmp_path / "sorts", torch.randn(9))
    plain = fastjit.fastjit(lambda x: x + 1).export(tmp_path / "plain", torch.randn(9))
    assert "libtorch_cpu.so" in needed(sorts)
    assert not any("torch" in name or "c10" in name for name in needed(plain))


C_PROGRAM = """
    #include <stdio.h>
    #include <stdlib.h>
    #include "inv.h"
    int main(void) {
      double x[4] = {2, 0, 0, 4}, y[4];
      fj_array in = fj_of(&inv_info.in[0], x), out = fj_of(&inv_info.out[0], y);
      void* scratch = malloc(inv_scratch());
      for (int i = 0; i < 3; ++i) {
        int code = inv_run(&in, &out, scratch);
        if (code) return puts(inv_error(code)), 1;
      }
      printf("%g %g\\n", y[0], y[3]);
      x[0] = 0;
      puts(inv_error(inv_run(&in, &out, scratch)));
      return 0;
    }
"""


def built(folder, compiler, *files):
    command = [compiler, *files, "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    return subprocess.run(["./main"], cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_program_in_c(tmp_path):
    fastjit.fastjit(lambda x: torch.linalg.inv(x * 1) + 1).export(tmp_path / "inv", spd(2))
    (tmp_path / "main.c").write_text(textwrap.dedent(C_PROGRAM))
    lines = built(tmp_path, "cc", "-Wall", "-Werror", "main.c", "./inv.so")
    assert lines[0] == "1.5 1.25"
    assert re.match(r"aten::linalg_inv at test_export_torch.py:\d+: .*is singular", lines[1])


FORTRAN_PROGRAM = """
    program main
      use, intrinsic :: iso_c_binding
      use sorts
      implicit none
      real(c_double), target :: x(3,2), y(3,2)
      integer(c_int64_t), allocatable :: scratch(:)
      integer(c_int) :: stat
      allocate(scratch(sorts_scratch_words()))
      x = reshape([3d0, 1d0, 2d0, 9d0, 8d0, 7d0], [3, 2])
      call sorts_run(x, y, scratch, stat)
      print *, stat, y
    end program
"""


@pytest.mark.skipif(not shutil.which("gfortran"), reason="no gfortran")
def test_a_program_in_fortran(tmp_path):
    f = fastjit.fastjit(lambda x: torch.sort(x * 2, dim=0)[0] + 1)
    f.export(tmp_path / "sorts", torch.ones(3, 2, dtype=torch.float64), order="fortran")
    (tmp_path / "main.f90").write_text(textwrap.dedent(FORTRAN_PROGRAM))
    [line] = built(tmp_path, "gfortran", "-Wall", "sorts.f90", "main.f90", "./sorts.so")
    assert [float(value) for value in line.split()] == [0, 3, 5, 7, 15, 17, 19]


REFUSED = {
    "draws random numbers": lambda x: torch.bernoulli(x.sigmoid()) + 1,
    "takes a Scalar as 'min', which the C interface of libtorch cannot pass": lambda x: torch.histc(x, 4, -1, 1) + 1,
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_step_that_cannot_be_passed_is_named(tmp_path, why):
    said = refused(tmp_path, REFUSED[why], torch.randn(5, 5))
    assert why in said
    assert re.search(r"aten::\w+ at test_export_torch.py:\d+ ", said)
    assert said.endswith("; leave it to the caller, or write it with operators that kernels compute")


def test_a_tensor_that_torch_writes_and_nobody_gives_is_named(tmp_path):
    buffer = torch.zeros(4, 5)

    def f(x):
        buffer.cumsum_(0)
        return x + buffer

    assert "it writes to the tensor buffer, which is no argument" in refused(tmp_path, f, torch.randn(4, 5))


def test_a_size_that_depends_on_data_is_named(tmp_path):
    said = refused(tmp_path, lambda x: torch.nonzero(x), torch.randn(5, 5))
    assert re.search(r"an operator at test_export_torch.py:\d+ gives a tensor whose size depends on data", said)


def test_autocast_is_named(tmp_path):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast off" in refused(tmp_path, lambda x: torch.sort(x)[0] + 1, torch.randn(9))


def test_complex_results_are_named(tmp_path):
    assert "complex" in refused(tmp_path, lambda x: torch.fft.rfft(x), torch.randn(8))
