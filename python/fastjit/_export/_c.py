"""The C of an exported model: its header, and the driver with its tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastjit._export import _torch
from fastjit._export._model import KINDS, Array, Model
from fastjit._export._text import braces, quoted, table

FOLDER = Path(__file__).parent
CODES = 8  # of an array; FJ_WRONG_KIND and so on count from its first one
REASONS = ("kind", "rank", "size", "stride", "data")
_NO_ISA, _NO_SCRATCH = 1, 2

_TYPES = """
typedef struct { uint32_t base; int64_t offset; } fj_place;
typedef struct { uint32_t pointer; int64_t bytes; } fj_walk;
typedef struct { uint32_t scalar, input; } fj_given;
typedef struct {
  uint32_t kernel, operand_count, sizes, strides, scalars, scalar_count;
  int64_t block, units, scratch_stride;
} fj_launch;
typedef struct {
  int64_t trip;
  uint32_t first, count, places, place_count, walks, walk_count, jumps, jump_count, table;
} fj_step;
typedef void fj_kernel(const void*, int64_t, int64_t);
"""


def _spec(array: Array) -> str:
    sizes, strides = braces(array.sizes or (0,)), braces(array.strides or (0,))
    return braces(
        [quoted(array.name), f"FJ_{array.kind.upper()}", len(array.sizes), sizes, strides, int(array.written)]
    )


class Tables:
    """The steps of a program as rows; numbers of all of them stand in one list, equal runs of them once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.numbers: list[int] = []
        self.places: list[tuple[int, int]] = []
        self.walks: list[tuple[int, int]] = []
        self.launches: list[str] = []
        self.steps: list[str] = []
        self.pointers = 0
        self._known: dict[tuple[int, ...], int] = {}
        for step in model.program["steps"]:
            if step["launches"]:
                self._add(step)

    def run(self, values: Iterable[int]) -> int:
        key = tuple(values)
        if key not in self._known:
            self._known[key] = len(self.numbers)
            self.numbers += key
        return self._known[key]

    def _launch(self, launch: dict[str, Any]) -> str:
        lists = (launch["kernel"], len(launch["operands"]), self.run(launch["sizes"]), self.run(launch["strides"]))
        scalars = (self.run(launch["scalars"]), len(launch["scalars"]))
        return braces((*lists, *scalars, launch["block"], launch["units"], launch["scratch_stride"]))

    def _add(self, step: dict[str, Any]) -> None:
        launches, slots = step["launches"], self.model.program["slots"]
        first, places, walks = len(self.launches), len(self.places), len(self.walks)
        starts = [0]
        for launch in launches:
            self.launches.append(self._launch(launch))
            pairs = zip(launch["operands"], launch["offsets"], strict=True)
            self.places += [self.model.place(slot, offset) for slot, offset in pairs]
            starts.append(starts[-1] + len(launch["operands"]))
        for of, operand, delta in step["walks"]:
            item = slots[launches[of]["operands"][operand]]["item"]
            self.walks.append((starts[of] + operand, delta * item))
        jumps = self.run(starts[of] + operand for of, operand in step["jumps"])
        table = len(self.places) + len(step["jumps"])  # the first round's are with the launches
        self.places += [self.model.place(slot, offset) for slot, offset in step["places"]]
        self.pointers = max(self.pointers, starts[-1])
        what = (step["trip"], first, len(launches), places, starts[-1], walks, len(step["walks"]))
        self.steps.append(braces((*what, jumps, len(step["jumps"]), table if step["jumps"] else 0)))


def _errors(model: Model, isa: str) -> list[str]:
    """By code; those of steps of torch's stand last."""
    texts = ["no error", f"this CPU has no {isa.upper()}, which the library was made for", "scratch is null"]
    texts += [""] * (CODES - len(texts))
    arrays = [("argument", array) for array in model.inputs] + [("result", array) for array in model.outputs]
    for role, array in arrays:
        name = f"{role} '{array.name}'" if role == "argument" else array.name
        made = f"; the library was made for {array.text()}"
        texts += [f"{name} has another {reason}{made}" for reason in REASONS[:-1]] + [f"{name} has no data"]
        texts += [""] * (CODES - len(REASONS))
    texts += [f"{step['call']['name']} failed in torch" for step in model.program["steps"] if "call" in step]
    return [quoted(text) if text else "0" for text in texts]


def _defines(name: str, model: Model, tables: Tables, isa: str) -> str:
    values = {
        "FJ_NAME(what)": f"{name}_##what",
        "FJ_API": '__attribute__((visibility("default")))',
        "FJ_ISA": 512 if isa == "avx512" else 2,
        "FJ_NO_ISA": _NO_ISA,
        "FJ_NO_SCRATCH": _NO_SCRATCH,
        "FJ_CODES": CODES,
        **{f"FJ_{'NO_DATA' if r == 'data' else 'WRONG_' + r.upper()}": i for i, r in enumerate(REASONS)},
        "FJ_INPUTS": len(model.inputs),
        "FJ_OUTPUTS": len(model.outputs),
        "FJ_POINTERS": tables.pointers,
        "FJ_SCALARS": len(model.program["scalars"]),
        "FJ_GIVEN_SCALARS": len(model.given_scalars),
        "FJ_STEPS": len(tables.steps),
        "FJ_SCRATCH": model.scratch,
        "FJ_KEEP_AT": model.keep_at,
        "FJ_BASES": len(model.inputs) + len(model.outputs) + 2 + len(model.made),
    }
    return "".join(f"#define {key} {value}\n" for key, value in values.items())


def driver(name: str, model: Model, isa: str) -> str:
    """The C file that runs the kernels."""
    tables, kernels = Tables(model), model.program["kernels"]
    torch_tables = _torch.tables(model, tables.run, CODES * (len(model.inputs) + len(model.outputs) + 1))
    bits = [f"UINT64_C({value})" for value in model.program["scalars"]]
    parts = [
        f'#include <stdio.h>\n#include <string.h>\n\n#include "{name}.h"\n\n'
        + _defines(name, model, tables, isa)
        + _TYPES,
        "".join(f"fj_kernel {kernel['symbol']}; /* {kernel['name']} */\n" for kernel in kernels),
        "static fj_kernel* const fj_kernels[] = " + braces([kernel["symbol"] for kernel in kernels] or ["0"]) + ";\n",
        "extern const char fj_data[];\n",
        table("fj_spec", "fj_in", map(_spec, model.inputs), empty="{0}"),
        table("fj_spec", "fj_out", map(_spec, model.outputs)).replace("  0,", "  {0},"),
        table("int64_t", "fj_numbers", map(str, tables.numbers)),
        table("uint64_t", "fj_scalars", bits),
        table("fj_given", "fj_given_scalars", map(braces, model.given_scalars)).replace("  0,", "  {0},"),
        table("fj_place", "fj_places", map(braces, tables.places)).replace("  0,", "  {0},"),
        table("fj_walk", "fj_walks", map(braces, tables.walks)).replace("  0,", "  {0},"),
        table("fj_launch", "fj_launches", tables.launches, empty="{0}"),
        table("fj_step", "fj_steps", tables.steps, empty="{0}"),
        table("char* const", "fj_errors", _errors(model, isa)),
        torch_tables,
        *((FOLDER / part).read_text() for part in ("kernels.c", *(["torch.c"] if model.has_calls else []), "run.c")),
        f'\nFJ_API const fj_info {name}_info = {{1, "{isa}", FJ_INPUTS, FJ_OUTPUTS, fj_in, fj_out}};\n',
    ]
    return "\n".join(parts)


def assembler(data_file: str) -> str:
    """The data of the tensors that are no arguments, read-only."""
    lines = [".section .rodata", ".balign 64", ".globl fj_data", ".hidden fj_data", "fj_data:"]
    return "\n".join([*lines, f'.incbin "{data_file}"', ".byte 0", '.section .note.GNU-stack,"",@progbits', ""])


def _rows(arrays: list[Array], what: str) -> list[str]:
    return [
        f"   {what}[{i}]  {array.name}: {array.text()}{', written' if array.written else ''}"
        for i, array in enumerate(arrays)
    ]


def header(name: str, model: Model, isa: str, title: str) -> str:
    """What a C program includes."""
    comment = [
        f"/* {title}, exported by fastjit for CPUs with {isa.upper()}.",
        *_rows(model.inputs, "in "),
        *_rows(model.outputs, "out"),
        "   No array that is written may share memory with another one. */",
    ]
    body = f"""
#ifdef __cplusplus
extern "C" {{
#endif
/* 0, or a code that {name}_error() explains. `scratch`: {name}_scratch() bytes, of which each thread needs its own. */
int {name}_run(const fj_array* in, const fj_array* out, void* scratch);
size_t {name}_scratch(void);
const char* {name}_error(int code);
extern const fj_info {name}_info;
#ifdef __cplusplus
}}
#endif
#endif
"""
    guard = f"{name.upper()}_FASTJIT_H"
    shared = (FOLDER / "array.h").read_text()
    return f"#ifndef {guard}\n#define {guard}\n" + "\n".join(comment) + "\n" + shared + body


assert len(KINDS) == 10, "array.h has a number for each kind"
