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


def _slots_of(step: dict[str, Any]) -> list[int]:
    """The slots that a step touches."""
    slots = [slot for launch in step["launches"] for slot in launch["operands"]]
    slots += [slot for slot, _ in step["places"]]
    if "call" in step:
        slots += step["call"]["operands"] + step["call"]["results"]
    return [slot for slot in slots if slot >= 0]


def _gap(live: list[tuple[int, int, int]], begin: int, size: int) -> int:
    """The first place from `begin` on with so many bytes between what lives."""
    for at, taken, _ in sorted(live):
        if at - begin >= size:
            break
        begin = max(begin, at + taken)
    return begin


class Model:
    """Lays out what `_C.export_program` gave."""

    def __init__(self, program: dict[str, Any]) -> None:
        self.program = program
        self.inputs: list[Array] = []
        self.outputs: list[Array] = []
        self.given_scalars: list[tuple[int, int]] = []  # scalar, input
        self.made: dict[int, int] = {}  # slot that torch makes -> which of these
        self.given: list[tuple[int, int]] = []  # slot that torch makes, the output that it is copied to
        self.has_calls = any("call" in step for step in program["steps"])
        self.data = bytearray()
        self._tensors: dict[int, int] = {}  # input of the program -> argument
        self._places: dict[int, Place] = {}  # slot -> where it begins
        self._kept = self._find_kept()
        self._scratch = _round(program["arena"])
        self._read_arguments()
        self._read_outputs()
        self._count_made()
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
        for i, given in enumerate(self.program["outputs"]):
            slot_id = self.resolved(given)
            slot, name = slots[slot_id], f"result{i}" if many else "result"
            if slot_id in self._places or slot_id in dict(self.given):
                continue
            if slot["kind"] == "input":
                if slot["index"] not in self._tensors:
                    raise Refused(f"{name} is a tensor that the function found, no argument; return a clone() of it")
                continue
            if slot["kind"] not in ("tensor", "extern"):
                raise Refused(f"{name} is a view of another tensor; return that tensor, or a clone()")
            if slot["kind"] == "extern":
                self.given.append((slot_id, len(self.outputs)))
            else:
                self._places[slot_id] = (len(self.inputs) + len(self.outputs), 0)
            kind, sizes = _kind(slot["dtype"], name), _dims(tuple(slot["sizes"]), name)
            self.outputs.append(Array(name, kind, sizes, tuple(slot["strides"])))

    def _count_made(self) -> None:
        """What torch makes lies where a call finds it: behind all other bases. That are the results of its steps, but
        those that a kernel or the caller has a place for."""
        first, touched = len(self.inputs) + len(self.outputs) + 2, set(self._places)
        for step in self.program["steps"]:
            if "call" in step:
                for slot_id in {*step["call"]["results"]} - touched - {-1}:
                    self._places[slot_id] = (first + len(self.made), 0)
                    self.made[slot_id] = len(self.made)
            touched |= set(map(self._below, _slots_of(step)))

    def _lay_out(self) -> int:
        """Memory for tensors that nobody gets, each from the first step that has it to the last; the end of it."""
        slots, end = self.program["slots"], self._scratch
        live: list[tuple[int, int, int]] = []  # offset, bytes, slot
        for step in self.program["steps"]:
            for slot_id in map(self._below, _slots_of(step)):
                if slots[slot_id]["kind"] == "tensor" and slot_id not in self._places:
                    size = _round(_bytes(slots[slot_id]))
                    at = _gap(live, self._scratch, size)
                    live.append((at, size, slot_id))
                    end = max(end, at + size)
                    self._places[slot_id] = (len(self.inputs) + len(self.outputs), at)
            if "free" in step and step["free"] not in self._kept:
                live = [row for row in live if row[2] != step["free"]]
        return end

    def _find_kept(self) -> set[int]:
        """Slots in whose memory others lie that torch knows of: no step ends them."""
        calls = [step["call"] for step in self.program["steps"] if "call" in step]
        viewed = {self._below(slot) for call in calls if not call["is_new"] for slot in call["operands"] if slot >= 0}
        return viewed | {self._below(slot["same"]) for slot in self.program["slots"] if slot["same"] >= 0}

    def frees(self, step: dict[str, Any]) -> bool:
        """Whether the step ends a tensor that torch made."""
        return step.get("free") in self.made and step["free"] not in self._kept

    def resolved(self, slot_id: int) -> int:
        """The slot that is the same tensor, which an operator gave back."""
        while (same := self.program["slots"][slot_id]["same"]) >= 0:
            slot_id = same
        return slot_id

    def within(self, slot_id: int) -> tuple[int, int]:
        """The slot in whose memory it lies, as far as this program makes the view, and how many elements from there."""
        slot_id, elements = self.resolved(slot_id), 0
        while (slot := self.program["slots"][slot_id])["kind"] == "alias":
            slot_id, elements = self.resolved(slot["base"]), elements + slot["offset"]
        return slot_id, elements

    def _below(self, slot_id: int) -> int:
        return self.within(slot_id)[0]

    def add_data(self, tensor: torch.Tensor) -> Place:
        at = len(self.data)
        self.data += _bytes_of(tensor)
        self.data += bytes(_round(len(self.data)) - len(self.data))
        return (len(self.inputs) + len(self.outputs) + 1, at)

    def place(self, slot_id: int, elements: int) -> Place:
        """Where that element of the slot lies."""
        slot_id = self.resolved(slot_id)
        slot = self.program["slots"][slot_id]
        if slot_id not in self._places:
            self._places[slot_id] = self._find(slot_id)
        base, offset = self._places[slot_id]
        return base, offset + elements * slot["item"]

    def _find(self, slot_id: int) -> Place:
        slot = self.program["slots"][slot_id]
        if slot["kind"] == "input":
            index = slot["index"]
            return (
                (self._tensors[index], 0) if index in self._tensors else self.add_data(self.program["captured"][index])
            )
        if slot["kind"] == "temp":
            return (len(self.inputs) + len(self.outputs), slot["offset"])
        base, elements = self.within(slot_id)
        return self.place(base, elements)


def _kind(text: str, name: str) -> str:
    if text.startswith("raw"):
        text = "complex or other numbers"
    if text not in KINDS:
        raise Refused(f"{name} is a tensor of {text}, which no kernel computes with; pass its parts as real tensors")
    return text


def _dims(sizes: tuple[int, ...], name: str) -> tuple[int, ...]:
    if len(sizes) > MOST_DIMS:
        raise Refused(f"{name} has {len(sizes)} dims; an array has {MOST_DIMS} at most")
    return sizes
