"""A loop over the elements of an array: exports it, builds elements.f90 with it, and times both.

`python elements.py [FOLDER]`; needs gfortran.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from fastjit import fastjit


@fastjit
def chain(x: torch.Tensor) -> torch.Tensor:
    y = torch.sqrt(x * x + 1.0) * 0.5 + x / 3.0
    y[3, 5] = 1.0
    return y


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="elements-"))
    chain.export(folder / "chain", torch.zeros(512, 512, dtype=torch.float64), order="fortran")
    here = Path(__file__).resolve().parent
    flags = ["gfortran", "-O3", "-march=native"]
    subprocess.run([*flags, "-c", str(here / "elements_loop.f90")], cwd=folder, check=True)
    sources = ["chain.f90", str(here / "elements.f90"), "elements_loop.o", "./chain.so"]
    subprocess.run([*flags, *sources, "-Wl,-rpath,$ORIGIN", "-o", "main"], cwd=folder, check=True)
    print(subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout, end="")


main()
