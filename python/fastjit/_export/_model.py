"""A program as the driver's tables have it: arrays, places of operands in them, numbers."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import torch

ALIGN = 64
MOST_DIMS = 8
KINDS = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "bool")  # from 1 on: FJ_F32, …
_TEXTS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}

Place = tuple[int, int]  # base, bytes


class Refused(ValueError):
    """Why a program cannot be exported."""


@dataclasses.dataclass(frozen=True)
class Array:
    """What the library takes as one array, or as a number (of rank 0)."""

    name: str
    kind: str
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    written: bool = False

    def text(self) -> str:
        """ "f64[8192,42] with strides 1,8192"."""
        if not self.sizes:
            return f"{self.kind}, one number"
        return f"{self.kind}[{','.join(map(str, self.sizes))}] with strides {','.join(map(str, self.strides))}"


def _round(value: int) -> int:
    return -(-value // ALIGN) * ALIGN


def _bytes(slot: dict[str, Any]) -> int:
    if 0 in slot["sizes"]:
        return 0
    last = sum((n - 1) * s for n, s in zip(slot["sizes"], slot["strides"], strict=True))
    return int((last + 1) * slot["item"])


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """The memory between the first and the last element."""
    if not tensor.numel():
        return b""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return ctypes.string_at(tensor.data_ptr(), (last + 1) * tensor.element_size())


class Model:
    """Lays out what `_C.export_program` gave."""

    def __init__(self, program: dict[str, Any]) -> None:
        self.program = program
        self.inputs: list[Array] = []
        self.outputs: list[Array] = []
        self.given_scalars: list[tuple[int, int]] = []  # scalar, input
        self.data = bytearray()
        self._tensors: dict[int, int] = {}  # input of the program -> argument
        self._places: dict[int, Place] = {}  # slot -> where it begins
        self._scratch = _round(program["arena"])
        self._read_arguments()
        self._read_outputs()
        self.keep_at = _round(self._lay_out())
        self.scratch = self.keep_at + max((launch["scratch"] for launch in self._launches()), default=0)

    def _launches(self) -> list[dict[str, Any]]:
        return [launch for step in self.program["steps"] for launch in step["launches"]]

    def _read_arguments(self) -> None:
        for row in self.program["arguments"]:
            at = len(self.inputs)
            if "is_float" in row:
                self.inputs.append(Array(row["name"], "f64" if row["is_float"] else "i64"))
                self.given_scalars += [(scalar, at) for scalar in row["scalars"]]
                continue
            tensor: torch.Tensor = row["tensor"]
            if row["input"] >= 0:
                self._tensors[row["input"]] = at
            self.inputs.append(
                Array(
                    row["name"],
                    _kind(_TEXTS.get(tensor.dtype, str(tensor.dtype)), row["name"]),
                    _dims(tuple(tensor.shape), row["name"]),
                    tuple(tensor.stride()),
                    row["input"] in self.program["written"],
                )
            )

    def _read_outputs(self) -> None:
        """Results that are arguments, or the same tensor as an earlier result, are no arrays of their own."""
        slots, many = self.program["slots"], len(self.program["outputs"]) > 1
        for i, slot_id in enumerate(self.program["outputs"]):
            slot, name = slots[slot_id], f"result{i}" if many else "result"
            if slot_id in self._places:
                continue
            if slot["kind"] == "input":
                if slot["index"] not in self._tensors:
                    raise Refused(f"{name} is a tensor that the function found, no argument; return a clone() of it")
                continue
            if slot["kind"] != "tensor":
                raise Refused(f"{name} is a view of another tensor; return that tensor, or a clone()")
            self._places[slot_id] = (len(self.inputs) + len(self.outputs), 0)
            kind, sizes = _kind(slot["dtype"], name), _dims(tuple(slot["sizes"]), name)
            self.outputs.append(Array(name, kind, sizes, tuple(slot["strides"])))

    def _lay_out(self) -> int:
        """Memory for tensors that nobody gets; the end of it."""
        for i, slot in enumerate(self.program["slots"]):
            if slot["kind"] == "tensor" and i not in self._places:
                self._places[i] = (len(self.inputs) + len(self.outputs), self._scratch)
                self._scratch += _round(_bytes(slot))
        return self._scratch

    def _captured(self, index: int) -> Place:
        tensor = self.program["captured"][index]
        at = len(self.data)
        self.data += _bytes_of(tensor)
        self.data += bytes(_round(len(self.data)) - len(self.data))
        return (len(self.inputs) + len(self.outputs) + 1, at)

    def place(self, slot_id: int, elements: int) -> Place:
        """Where that element of the slot lies."""
        slot = self.program["slots"][slot_id]
        if slot_id not in self._places:
            self._places[slot_id] = self._find(slot)
        base, offset = self._places[slot_id]
        return base, offset + elements * slot["item"]

    def _find(self, slot: dict[str, Any]) -> Place:
        if slot["kind"] == "input":
            index = slot["index"]
            return (self._tensors[index], 0) if index in self._tensors else self._captured(index)
        if slot["kind"] == "temp":
            return (len(self.inputs) + len(self.outputs), slot["offset"])
        if slot["kind"] == "alias":
            base, offset = self.place(slot["base"], 0)
            return base, offset + slot["offset"] * slot["item"]
        raise Refused("it has a tensor that a step of torch's makes")


def _kind(text: str, name: str) -> str:
    if text not in KINDS:
        raise Refused(f"{name} is a tensor of {text}, which no kernel computes with; pass its parts as real tensors")
    return text


def _dims(sizes: tuple[int, ...], name: str) -> tuple[int, ...]:
    if len(sizes) > MOST_DIMS:
        raise Refused(f"{name} has {len(sizes)} dims; an array has {MOST_DIMS} at most")
    return sizes
