"""Steps of torch's in an exported model: their tables, and how the library finds libtorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from fastjit._export._model import Model, Refused
from fastjit._export._text import braces, quoted, table

NOT_MADE = 0xFFFFFFFF
_KINDS = ("none", "bits", "scalar", "tensor", "undefined", "text", "some", "list")
_TODO = ("run", "call", "free")

_TYPES = f"""
#define FJ_NOT_MADE UINT32_MAX
enum {{ {", ".join(f"FJ_{kind.upper()}" for kind in _KINDS)} }};
enum {{ {", ".join(f"FJ_{what.upper()}" for what in _TODO)} }};
typedef struct {{ uint32_t kind; uint64_t value; }} fj_argument; /* a list or a FJ_SOME is followed by what it holds */
typedef struct {{
  uint32_t made, is_part; /* what torch made, or a part of it: `place.offset` elements further; else at `place` */
  fj_place place;
  int32_t dtype;
  uint32_t rank, sizes, strides;
}} fj_operand;
typedef struct {{ uint32_t made, form; }} fj_result; /* form: an operand of its type, sizes and strides */
typedef struct {{
  const char *name, *overload, *title;
  uint32_t arguments, argument_count, operands, operand_count, results, result_count, gives_list, is_new;
}} fj_call;
typedef struct {{ uint32_t what, which; }} fj_todo;
typedef struct {{ uint32_t made, operand, call; }} fj_copied;
"""


def flags() -> list[str]:
    """What links against the libtorch of this process, and finds it there again."""
    folder = str(Path(torch.__file__).parent / "lib")
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", "-ltorch_cpu"]


class Calls:
    """The steps in their order, with the calls of torch among them as rows."""

    def __init__(self, model: Model, run: Callable[[Iterable[int]], int]) -> None:
        self._model = model
        self._run = run  # gives equal numbers one place in the driver's list
        self._makers: dict[int, int] = {}  # slot -> the call that fills it
        self.arguments: list[tuple[str, str]] = []
        self.operands: list[str] = []
        self.results: list[tuple[int, int]] = []
        self.texts: list[str] = []
        self.calls: list[str] = []
        self.stack = 1
        self.todo: list[tuple[str, int]] = []
        kernels = 0
        for step in model.program["steps"]:
            if "call" in step:
                self.todo.append(("FJ_CALL", len(self.calls)))
                self.calls.append(self._call(step["call"]))
            if step["launches"]:
                self.todo.append(("FJ_RUN", kernels))
                kernels += 1
            if model.frees(step):
                self.todo.append(("FJ_FREE", model.made[step["free"]]))
        outputs = len(model.inputs)
        self.copies = [  # to results
            (model.made[slot], self._add_operand(slot, place=(outputs + at, 0)), self._makers[slot])
            for slot, at in model.given
        ]

    def _add_operand(self, slot_id: int, dtype: int | None = None, place: tuple[int, int] | None = None) -> int:
        """The tensor in the slot, or one of its form at another place."""
        slot_id = self._model.resolved(slot_id)
        slot = self._model.program["slots"][slot_id]
        made, is_part, at = NOT_MADE, 0, place or (0, 0)
        if place is None:
            root, elements = self._model.within(slot_id)
            is_part = int(root != slot_id)
            made, at = self._model.made.get(root, NOT_MADE), (0, elements)
            if made == NOT_MADE:
                is_part, at = 0, self._model.place(slot_id, 0)
        dtype = slot["type"] if dtype is None else dtype
        if dtype < 0 and made == NOT_MADE:
            raise Refused("a step of torch's reads numbers of a type that no kernel writes")
        return self._row(made, is_part, at, dtype, slot["sizes"], slot["strides"])

    def _row(
        self, made: int, is_part: int, place: tuple[int, int], dtype: int, sizes: list[int], strides: list[int]
    ) -> int:
        numbers = f"{len(sizes)}, {self._run(sizes)}, {self._run(strides)}"
        self.operands.append(f"{{{made}u, {is_part}, {{{place[0]}, {place[1]}}}, {dtype}, {numbers}}}")
        return len(self.operands) - 1

    def _add_argument(self, row: tuple[Any, ...], operands: list[int]) -> None:
        kind, *held = row
        value = 0
        if kind in ("bits", "scalar"):
            value = held[0]
        elif kind == "tensor":
            value = operands[held[0]]
        elif kind == "constant":  # a number as a tensor
            kind, value = "tensor", self._row(NOT_MADE, 0, self._model.add_data(held[0]), held[1], [], [])
        elif kind == "text":
            value = len(self.texts)
            self.texts.append(held[0])
        elif kind == "list":
            value = len(held[0])
        self.arguments.append((f"FJ_{kind.upper()}", f"UINT64_C({value})"))
        for inner in held[0] if kind == "list" else held if kind == "some" else ():
            self._add_argument(inner, operands)

    def _result(self, slot_id: int, dtype: int) -> tuple[int, int]:
        if slot_id < 0:
            return NOT_MADE, NOT_MADE
        if slot_id not in self._model.made:  # a place of the program's own
            return NOT_MADE, self._add_operand(slot_id)
        self._makers[slot_id] = len(self.calls)
        return self._model.made[slot_id], self._add_operand(slot_id, dtype, (0, 0))

    def _call(self, call: dict[str, Any]) -> str:
        first, argument, result = len(self.operands), len(self.arguments), len(self.results)
        operands = [self._add_operand(slot) if slot >= 0 else NOT_MADE for slot in call["operands"]]
        count = len(self.operands) - first
        for row in call["arguments"]:
            self._add_argument(row, operands)
        self.results += map(self._result, call["results"], call["types"])
        self.stack = max(self.stack, len(call["arguments"]), len(call["results"]))
        names = ", ".join(quoted(call[key]) for key in ("operator", "overload", "name"))
        lists = (argument, len(call["arguments"]), first, count, result, len(call["results"]))
        numbers = ", ".join(map(str, (*lists, int(call["gives_list"]), int(call["is_new"]))))
        return f"{{{names}, {numbers}}}"


def tables(model: Model, run: Callable[[Iterable[int]], int], first_code: int) -> str:
    """What torch.c reads; nothing where torch has no step."""
    if not model.has_calls:
        return ""
    calls = Calls(model, run)
    values = {
        "FJ_FIRST_CALL_CODE": first_code,
        "FJ_TORCH_ABI": f"UINT64_C({model.program['torch_abi']})",
        "FJ_FIRST_MADE": len(model.inputs) + len(model.outputs) + 2,
        "FJ_MADE": len(model.made),
        "FJ_STACK": calls.stack,
        "FJ_TODO": len(calls.todo),
        "FJ_COPIES": len(calls.copies),
    }
    parts = [
        "".join(f"#define {key} {value}\n" for key, value in values.items()) + _TYPES,
        table("fj_argument", "fj_arguments", map(braces, calls.arguments), empty="{0}"),
        table("fj_operand", "fj_operands", calls.operands, empty="{0}"),
        table("fj_result", "fj_results", [f"{{{made}u, {form}u}}" for made, form in calls.results], empty="{0}"),
        table("fj_call", "fj_calls", calls.calls),
        table("fj_todo", "fj_todos", map(braces, calls.todo)),
        table("fj_copied", "fj_copies", map(braces, calls.copies), empty="{0}"),
        table("char* const", "fj_texts", map(quoted, calls.texts), empty='""'),
    ]
    return "\n".join(parts)
