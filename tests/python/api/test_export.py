"""f.export(): the library gives eager's results to C and Fortran, needs libc only, and says what is wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import fastjit
from exported import Library, check, exported, refused
from fastjit._load import extension as _C

pytestmark = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler")


def mlp(*widths, dtype=torch.float32):
    layers = []
    for i in range(len(widths) - 1):
        layers += [nn.Linear(widths[i], widths[i + 1], dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("isa", ["avx2", None])
def test_a_chain_of_operations(tmp_path, isa):
    check(tmp_path, lambda x, y: torch.sigmoid(x * 2 + y) - y, torch.randn(33, 65), torch.randn(65), isa=isa)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_reductions(tmp_path, dtype):
    check(tmp_path, lambda x: torch.softmax(x, -1) + x.mean(0), torch.randn(40, 100).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 7, 512])
def test_a_model_with_parameters(tmp_path, dtype, rows):
    torch.manual_seed(0)
    check(tmp_path, mlp(42, 256, 256, 64, dtype=dtype), torch.randn(rows, 42, dtype=dtype))


def test_column_major_arrays_are_taken_as_they_lie(tmp_path):
    x, y = torch.randn(30, 20, dtype=torch.float64).t(), torch.randn(20, 30, dtype=torch.float64)
    check(tmp_path, lambda x, y: torch.exp(x) * y, x, y)


def test_fortran_order(tmp_path):
    torch.manual_seed(0)
    model, x = mlp(6, 32, 5, dtype=torch.float64), torch.randn(50, 6, dtype=torch.float64)
    library = exported(tmp_path, model, x, order="fortran")
    result = torch.empty(5, 50, dtype=torch.float64).t()
    library.run([x.t().contiguous().t()], [result])
    torch.testing.assert_close(result, model(x).detach())
    assert "result has another stride" in library.error(library.code([x.t().contiguous().t()], [result.contiguous()]))
    assert "'input' has another stride" in library.error(library.code([x], [result]))


def test_a_result_that_lies_column_major_is_not_copied():
    def f(x):
        y = x * 2
        y[3, 5] = 1.0
        return y

    x = torch.randn(20, 30, dtype=torch.float64).t()
    compiled = fastjit.fastjit(f)
    compiled.warmup(x)
    program = _C.export_program(compiled, (x,), {}, "avx2", True, "k")
    assert len(program["steps"]) == 2 and program["arena"] == 0  # the product, the one element


def test_a_section(tmp_path):
    check(tmp_path, lambda x: x * 3 + 1, torch.randn(40, 60)[4:30:2, 3:50:3])


def test_two_results(tmp_path):
    check(tmp_path, lambda x: (x.sin(), x.amax(1)), torch.randn(20, 30))


def test_an_argument_written_in_place(tmp_path):
    def f(state, x):
        state.mul_(0.5).add_(x)
        return state.sum()

    state, x = torch.randn(100), torch.randn(100)
    mine, result, before = state.clone(), torch.empty(()), state.clone()
    library = exported(tmp_path, f, state, x)
    assert torch.equal(state, before)
    library.run([mine, x], [result])
    torch.testing.assert_close(result, f(state, x))
    torch.testing.assert_close(mine, state)


def test_a_result_that_is_an_argument_is_no_array_more(tmp_path):
    x = torch.ones(10)
    exported(tmp_path, lambda x: x.add_(1), x).run([x], [])
    assert torch.equal(x, torch.full((10,), 2.0))


def test_a_loop(tmp_path):
    torch.manual_seed(0)
    w = torch.randn(16, 16, dtype=torch.float64) / 8

    def f(x, h):
        out = []
        for t in range(50):
            h = torch.tanh(x[t] + h @ w)
            out.append(h)
        return torch.stack(out), h

    args = torch.randn(50, 8, 16, dtype=torch.float64), torch.zeros(8, 16, dtype=torch.float64)
    check(tmp_path, f, *args)
    compiled = fastjit.fastjit(f)
    compiled.warmup(*args)
    program = _C.export_program(compiled, args, {}, "avx2", False, "k")
    assert [step["trip"] for step in program["steps"]] == [50]


def test_a_loop_inside_a_kernel(tmp_path):
    def f(x, a):
        h, out = torch.zeros(16), []
        for t in range(100):
            h = h * a + x[t]
            out.append(h)
        return torch.stack(out), h

    args = torch.randn(100, 16), torch.rand(16)
    check(tmp_path, f, *args)
    compiled = fastjit.fastjit(f)
    compiled.warmup(*args)
    assert " rounds 100" in compiled.inspect("plan"), compiled.inspect("plan")


def test_numbers_are_arguments(tmp_path):
    f = lambda x, dt: x + dt * x  # noqa: E731
    library = exported(tmp_path, f, torch.ones(10, dtype=torch.float64), 0.5)
    x, result = torch.randn(10, dtype=torch.float64), torch.empty(10, dtype=torch.float64)
    library.run([x, torch.tensor(0.25, dtype=torch.float64)], [result])
    torch.testing.assert_close(result, f(x, 0.25))


def test_numbers_that_python_computes_with_are_constants(tmp_path):
    f = lambda x, dt: x * (1 - dt) if dt > 0 else x  # noqa: E731
    library = exported(tmp_path, f, torch.ones(10), 0.5)
    result = torch.empty(10)
    library.run([torch.ones(10)], [result])
    assert torch.equal(result, torch.full((10,), 0.5))


def test_own_numbers_of_an_object_are_constants(tmp_path):
    class Model(nn.Module):
        scale = 3.0

        def forward(self, x):
            return x * self.scale

    check(tmp_path, Model(), torch.randn(10))


def test_nested_arguments_and_one_that_no_kernel_reads(tmp_path):
    library = exported(tmp_path, lambda pair, unused: pair[0] - pair[1], (torch.ones(4), torch.ones(4)), torch.ones(2))
    [result] = library.run([torch.full((4,), 5.0), torch.full((4,), 3.0), torch.ones(2)], [torch.empty(4)])
    assert torch.equal(result, torch.full((4,), 2.0))
    assert "'pair[1]' has another size" in library.error(
        library.code([torch.ones(4), torch.ones(3), torch.ones(2)], [result])
    )


def test_sizes_that_vary_are_those_of_the_call(tmp_path):
    f = fastjit.fastjit(lambda x: torch.softmax(x, -1) * x.shape[0])
    for n in (5, 6, 7, 8):
        f(torch.randn(n, 10))
    x = torch.randn(9, 10)
    library = Library(f.export(tmp_path / "any", x))
    [result] = library.run([x], [torch.empty(9, 10)])
    torch.testing.assert_close(result, f.eager(x))
    assert library.code([torch.randn(8, 10)], [torch.empty(8, 10)]) != 0


def test_wrong_arrays_are_named(tmp_path):
    library = exported(tmp_path, lambda x, y: x + y, torch.ones(4, 6), torch.ones(4, 6))
    good, result = torch.ones(4, 6), torch.empty(4, 6)

    def said(x, y, out):
        return library.error(library.code([x, y], [out]))

    assert said(good, torch.ones(4, 5), result).startswith(
        "argument 'y' has another size; the library was made for f32[4"
    )
    assert said(good.double(), good, result).startswith("argument 'x' has another kind")
    assert said(good[0], good, result).startswith("argument 'x' has another rank")
    assert said(torch.ones(6, 4).t(), good, result).startswith("argument 'x' has another stride")
    assert said(good, good, torch.empty(5, 6)).startswith("result has another size")
    assert library.error(0) == "no error"
    assert library.error(99999) == "no error of this model"


def test_a_decision_by_a_value_is_named(tmp_path):
    assert "decides by it" in refused(tmp_path, lambda x: x + 1 if x.sum() > 0 else x, torch.ones(5))


def test_an_effect_on_python_is_named(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(4))

        def forward(self, x):
            self.state.add_(x)
            return self.state * 2

    assert "writes to the tensor" in refused(tmp_path, Model(), torch.ones(4))


def test_a_view_of_an_argument_is_named(tmp_path):
    assert "clone()" in refused(tmp_path, lambda x: x[1:], torch.ones(4))


def test_wrong_options(tmp_path):
    f = fastjit.fastjit(lambda x: x + 1)
    with pytest.raises(ValueError, match="unknown isa 'sse'"):
        f.export(tmp_path / "f", torch.ones(3), isa="sse")
    with pytest.raises(ValueError, match="unknown order 'C'"):
        f.export(tmp_path / "f", torch.ones(3), order="C")
    with pytest.raises(ValueError, match="'2f' is no name"):
        f.export(tmp_path / "2f", torch.ones(3))
    with pytest.raises(ValueError, match="at most 39 letters"):
        f.export(tmp_path / ("f" * 41), torch.ones(3))
    with pytest.raises(ValueError, match="'fj' is the name of what every library declares"):
        f.export(tmp_path / "fj", torch.ones(3))


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(RuntimeError, match="export needs a C compiler"):
        fastjit.fastjit(lambda x: x + 1).export(tmp_path / "f", torch.ones(3))


def test_only_libc_is_needed(tmp_path):
    path = fastjit.of(fastjit.fastjit(mlp(8, 16, 4))).export(tmp_path / "plain", torch.randn(3, 8))
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", needed) in ([], ["libc.so.6"])
    symbols = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    assert sorted(line.split()[-1] for line in symbols.splitlines()) == [
        "plain_error", "plain_info", "plain_run", "plain_scratch",
    ]  # fmt: skip


def test_two_libraries_in_one_process(tmp_path):
    one = check(tmp_path, lambda x: x * 2, torch.randn(100), name="one")
    two = check(tmp_path, lambda x: x * 3, torch.randn(100), name="two")
    x = torch.ones(100)
    assert float(one.run([x], [torch.empty(100)])[0][0]) == 2.0
    assert float(two.run([x], [torch.empty(100)])[0][0]) == 3.0


C_PROGRAM = """
    #include <stdio.h>
    #include <stdlib.h>
    #include "one.h"
    #include "two.h"
    int main(void) {
      double x[6] = {1, 2, 3, 4, 5, 6}, y[6];
      fj_array in = fj_of(&one_info.in[0], x), out = fj_of(&one_info.out[0], y);
      void* scratch = malloc(one_scratch() > two_scratch() ? one_scratch() : two_scratch());
      int code = one_run(&in, &out, scratch);
      if (!code) code = two_run(&out, &in, scratch);
      if (code) return puts(one_error(code)), 1;
      printf("%g %g\\n", y[5], x[5]);
      in.size[0] = 3;
      puts(one_error(one_run(&in, &out, scratch)));
      return 0;
    }
"""


def test_a_program_in_c(tmp_path):
    x = torch.ones(2, 3, dtype=torch.float64)
    fastjit.fastjit(lambda x: x * 2).export(tmp_path / "one", x)
    fastjit.fastjit(lambda x: x + 1).export(tmp_path / "two.so", x)
    (tmp_path / "main.c").write_text(textwrap.dedent(C_PROGRAM))
    command = [
        "cc",
        "-Wall",
        "-Wextra",
        "-Werror",
        "main.c",
        "./one.so",
        "./two.so",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        "main",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    lines = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "12 13"
    assert lines[1] == "argument 'x' has another size; the library was made for f64[2,3] with strides 3,1"


FORTRAN_PROGRAM = """
    program main
      use, intrinsic :: iso_c_binding
      use step
      implicit none
      real(c_double), target :: x(4,3), y(4,3), wide(8,6), rows(3,4), out(3,4)
      integer(c_int64_t), allocatable :: scratch(:)
      integer(c_int) :: stat
      integer :: i, j
      allocate(scratch(step_scratch_words()))
      x = reshape([((real(i + 10 * j, c_double), i = 1, 4), j = 1, 3)], [4, 3])
      call step_run(x, 0.5d0, y, scratch, stat)
      print *, stat, abs(y(4,3) - 0.5d0 * 34), abs(y(2,1) - 0.5d0 * 12)
      wide = 0
      wide(1:4, 1:3) = x
      call step_run(wide(1:4, 1:3), 0.5d0, y, scratch, stat)
      print *, step_message(stat)
      call step_run(x(1:3,:), 0.5d0, y, scratch, stat)
      print *, step_message(stat)
      call step_run(x, 0.5d0, y, scratch(1:1), stat)
      print *, step_message(stat)
      rows = transpose(x)
      call step_run_reversed(rows, 0.5d0, out, scratch, stat)
      print *, step_message(stat)
    end program
"""


@pytest.mark.skipif(not shutil.which("gfortran"), reason="no gfortran")
def test_a_program_in_fortran(tmp_path):
    f = fastjit.fastjit(lambda x, scale: x * scale)
    f.export(tmp_path / "step", torch.ones(4, 3, dtype=torch.float64), 2.0, order="fortran")
    (tmp_path / "main.f90").write_text(textwrap.dedent(FORTRAN_PROGRAM))
    command = ["gfortran", "-Wall", "-std=f2018", "-fcheck=all", "step.f90", "main.f90", "./step.so", "-o", "main"]
    subprocess.run([*command, "-Wl,-rpath,$ORIGIN"], cwd=tmp_path, check=True)
    lines = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [float(value) for value in lines[0].split()] == [0.0, 0.0, 0.0]
    assert "argument 'x' has another stride" in lines[1]
    assert "argument 'x' has another size" in lines[2]
    assert "scratch" in lines[3]
    assert "argument 'x' has another stride" in lines[4]


@pytest.mark.skipif(not shutil.which("gfortran"), reason="no gfortran")
def test_sections_and_reversed_arrays_in_fortran(tmp_path):
    program = """
        program main
          use, intrinsic :: iso_c_binding
          use sect
          implicit none
          real(c_float), target :: wide(12,5), y(5,3)
          integer(c_int64_t), allocatable :: scratch(:)
          integer(c_int) :: stat
          integer :: i, j
          allocate(scratch(sect_scratch_words()))
          wide = reshape([((real(i + 100 * j), i = 1, 12), j = 1, 5)], [12, 5])
          call sect_run_reversed(wide(2:10:4, :), y, scratch, stat)
          print *, stat, y(2,3), 2 * wide(10,2)
        end program
    """
    x = torch.randn(5, 12)[:, 1:10:4]
    fastjit.fastjit(lambda x: (x * 2).t().contiguous()).export(tmp_path / "sect", x)
    (tmp_path / "main.f90").write_text(textwrap.dedent(program))
    command = ["gfortran", "-Wall", "sect.f90", "main.f90", "./sect.so", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    said = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert int(said[0]) == 0
    assert said[1] == said[2]


def test_it_runs_without_python_or_torch(tmp_path):
    """The library is loaded where torch is not."""
    path = fastjit.fastjit(lambda x: x.cos()).export(tmp_path / "alone", torch.ones(3))
    code = f"import ctypes, sys; ctypes.CDLL({str(path)!r}).alone_run; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
