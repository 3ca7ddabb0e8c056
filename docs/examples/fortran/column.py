"""A column model that a Fortran program steps in time: exports it, builds main.f90 with it, runs both and times them.

`python column.py [FOLDER]`; needs gfortran.
"""

import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import fastjit

COLUMNS, LEVELS, WIDTH, OUT = 8192, 42, 256, 64


class Column(nn.Module):
    """Fluxes of each column from its levels."""

    def __init__(self) -> None:
        super().__init__()
        widths = [LEVELS] + [WIDTH] * 5
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.last = nn.Linear(WIDTH, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="column-"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = fastjit.fastjit(Column().double().eval())
    x = torch.sin(torch.arange(COLUMNS)[:, None] + 0.1 * torch.arange(LEVELS)).double()
    start = time.perf_counter()
    fastjit.of(model).export(folder / "column", x, order="fortran")
    print(f"exported in {time.perf_counter() - start:.2f} s to {folder}")

    program = Path(__file__).with_name("main.f90").resolve()
    command = ["gfortran", "-O2", "column.f90", str(program), "./column.so", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    said = subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout
    print(said, end="")

    with torch.no_grad():
        times = []
        for _ in range(6):
            start = time.perf_counter()
            y = model(x)
            times.append(time.perf_counter() - start)
    print(f"Python:  first call {times[0] * 1e3:8.1f} ms, later {min(times[1:]) * 1e3:8.1f} ms, one thread")
    total = float(said.split("sum")[1].split()[0])
    assert abs(total - float(y.sum())) < 1e-6 * float(y.abs().sum()), (total, float(y.sum()))


main()
