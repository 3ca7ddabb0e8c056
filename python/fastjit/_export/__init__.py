"""The program of one call as a library for C and Fortran, which needs no Python."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map_only

from fastjit._export import _c, _fortran, _torch
from fastjit._export._model import Model
from fastjit._load import extension as _C

Isa = Literal["avx2", "avx512"]
Order = Literal["keep", "fortran"]
_LONGEST_NAME = 40
_FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-fvisibility=hidden", "-Wl,-z,noexecstack", "-Wl,-z,defs")


def export(
    function: Any,
    path: str | os.PathLike[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    isa: Isa | None,
    order: Order,
) -> Path:
    """See FastFunction.export."""
    if isa not in (None, "avx2", "avx512"):
        raise ValueError(f"unknown isa {isa!r}; choose 'avx2' or 'avx512'")
    if order not in ("keep", "fortran"):
        raise ValueError(f"unknown order {order!r}; choose 'keep' or 'fortran'")
    library = Path(path).with_suffix(".so")
    name = library.stem
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or len(name) > _LONGEST_NAME:
        ways = f"use a letter and at most {_LONGEST_NAME - 1} letters, digits and underscores after it"
        raise ValueError(f"{name!r} is no name for functions of C and Fortran; {ways}")
    if name.lower() == "fj":  # fj_info is a type of every header
        raise ValueError(f"{name!r} is the name of what every library declares; use another one")
    compiler = _compiler()
    level: str = isa or _C.host_isa()
    with torch.no_grad():
        copies = _Copies(order)
        args, kwargs = copies.of(args), copies.of(kwargs)
        _make_hit(function, args, kwargs)
        try:
            program = _C.export_program(function, args, kwargs, level, order == "fortran", f"{name}_kernel")
            _name_by_forward(function, program["arguments"])
            model = Model(program)
        except ValueError as error:
            raise ValueError(f"{function._name} cannot be exported: {error}") from None
    _write(library, name, model, level, f"{function._name}{_signature(model)}", compiler)
    return library


def _name_by_forward(function: Any, arguments: list[dict[str, Any]]) -> None:
    """A module's parameters are those of its forward(); the call that FastJIT sees takes any."""
    module = getattr(function.__wrapped__, "__self__", None)
    if not isinstance(module, torch.nn.Module) or function.__wrapped__.__name__ != "_call_impl":
        return
    names = list(inspect.signature(module.forward).parameters)
    for row in arguments:
        match = re.match(r"arg(\d+)", row["name"])
        if match and int(match[1]) < len(names):
            row["name"] = names[int(match[1])] + row["name"][match.end() :]


def _signature(model: Model) -> str:
    return "(" + ", ".join(array.name for array in model.inputs) + ")"


def _compiler() -> str:
    """The C compiler of the system."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise RuntimeError(
        "export needs a C compiler, and there is no cc, gcc or clang on the PATH; install one, or set CC"
    )


class _Copies:
    """The arguments with tensors of their own, which lie as those given do or as Fortran's arrays; a call may write to
    them."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._made: dict[int, torch.Tensor] = {}

    def of(self, values: Any) -> Any:
        return tree_map_only(torch.Tensor, self._copy, values)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._made:
            self._made[id(tensor)] = self._new(tensor.detach())
        return self._made[id(tensor)]

    def _new(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor
        if self._order == "fortran":
            dims = tuple(reversed(range(tensor.dim())))
            return tensor.permute(dims).clone(memory_format=torch.contiguous_format).permute(dims)
        strides = [(s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]
        reach = 1
        for stride, size in sorted(strides):
            if stride < reach:  # elements share memory
                return tensor
            reach = stride * (size - 1) + reach
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def _make_hit(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """So that the program that runs for these arguments is known, and was used last."""
    function._expect()
    for _ in range(4):
        hits = function._stats()["hits"]
        function(*args, **kwargs)
        if function._stats()["hits"] > hits:
            return
        function._wait()


def _write(library: Path, name: str, model: Model, isa: str, title: str, compiler: str) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    driver, header = _c.driver(name, model, isa), _c.header(name, model, isa, title)
    with tempfile.TemporaryDirectory(prefix="fastjit-export-") as folder:
        at = Path(folder)
        objects = []
        for i, kernel in enumerate(model.program["kernels"]):
            objects.append(f"kernel{i}.o")
            (at / objects[-1]).write_bytes(kernel["object"])
        (at / f"{name}.h").write_text(header)
        (at / "driver.c").write_text(driver)
        (at / "data.bin").write_bytes(model.data)
        (at / "data.S").write_text(_c.assembler("data.bin"))
        (at / "exports").write_text(
            f"{{ global: {name}_run; {name}_scratch; {name}_error; {name}_info; local: *; }};\n"
        )
        script = "-Wl,--version-script=exports"
        command = [compiler, *_FLAGS, script, f"-Wl,-soname,{name}.so", "-o", "made.so", "driver.c", "data.S", *objects]
        command += _torch.flags() if model.has_calls else []
        done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{compiler} could not make {library.name}: {done.stderr.strip()[-2000:]}")
        shutil.copyfile(at / "made.so", library.with_suffix(".so.new"))
    library.with_suffix(".so.new").chmod(0o755)
    library.with_suffix(".so.new").replace(library)
    library.with_suffix(".h").write_text(header)
    library.with_suffix(".f90").write_text(_fortran.module(name, model, title))
