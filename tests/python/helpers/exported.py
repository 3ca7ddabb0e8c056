"""Exported libraries, called from Python as C calls them."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import nn

import fastjit

KINDS = {
    torch.float32: 1,
    torch.float64: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.int32: 7,
    torch.int64: 8,
    torch.bool: 10,
}


class FjArray(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int64 * 8),
        ("stride", ctypes.c_int64 * 8),
    ]

    @classmethod
    def of(cls, tensor):
        array = cls(tensor.data_ptr(), KINDS[tensor.dtype], tensor.dim())
        array.size[: tensor.dim()] = list(tensor.shape)
        array.stride[: tensor.dim()] = list(tensor.stride())
        return array


class Library:
    def __init__(self, path):
        self.name = path.stem
        lib = ctypes.CDLL(str(path))
        self._run, self._error = lib[f"{self.name}_run"], lib[f"{self.name}_error"]
        self._error.restype = ctypes.c_char_p
        size = lib[f"{self.name}_scratch"]
        size.restype = ctypes.c_size_t
        self.scratch = ctypes.create_string_buffer(size())

    def code(self, inputs, outputs):
        given = [(FjArray * max(len(all_), 1))(*map(FjArray.of, all_)) for all_ in (inputs, outputs)]
        return self._run(*given, self.scratch)

    def run(self, inputs, outputs):
        code = self.code(inputs, outputs)
        assert code == 0, self.error(code)
        return outputs

    def error(self, code):
        return self._error(code).decode()


def exported(tmp_path, f, *args, name="model", **options):
    function = fastjit.of(fastjit.fastjit(f)) if isinstance(f, nn.Module) else fastjit.fastjit(f)
    return Library(function.export(tmp_path / name, *args, **options))


def check(tmp_path, f, *args, **options):
    """The library gives what eager gives, twice."""
    with torch.no_grad():
        expected = f(*args)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    library = exported(tmp_path, f, *args, **options)
    arrays = [torch.tensor(a, dtype=torch.float64) if isinstance(a, float) else a for a in args]
    for _ in range(2):
        results = [torch.full_like(e, 7) for e in expected]
        library.run(arrays, results)
        for result, want in zip(results, expected, strict=True):
            torch.testing.assert_close(result, want)
    return library


def refused(tmp_path, f, *args):
    with pytest.raises(ValueError) as info:
        exported(tmp_path, f, *args)
    assert not list(tmp_path.iterdir())
    return str(info.value)
