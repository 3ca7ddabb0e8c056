"""The Fortran module of an exported model, as source: compilers do not read one another's modules."""

from __future__ import annotations

import re

from fastjit._export._model import KINDS, Array, Model

_TYPES = {
    "f32": "real(c_float)",
    "f64": "real(c_double)",
    "f16": "integer(c_int16_t)",
    "bf16": "integer(c_int16_t)",
    "i8": "integer(c_int8_t)",
    "i16": "integer(c_int16_t)",
    "i32": "integer(c_int32_t)",
    "i64": "integer(c_int64_t)",
    "u8": "integer(c_int8_t)",
    "bool": "logical(c_bool)",
}
_BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "bool": 1}
_TAKEN = {"scratch", "stat", "fj_in", "fj_out"}
_LONGEST = 40  # of a name; Fortran allows 63

_HEAD = """! {title}, exported by fastjit. Made anew by each export: do not edit.
!
!   integer(c_int64_t), allocatable :: scratch(:)     ! each thread needs its own
!   allocate(scratch({name}_scratch_words()))
!   call {name}_run({example}, scratch, stat)
!   if (stat /= 0) print *, {name}_message(stat)
!
! Arrays have the order of indices that they have in Python: x(i,j) is x[i-1,j-1]. {name}_run_reversed takes them the
! other way round: x(j,i) is x[i-1,j-1], as arrays lie that are row-major in Python.
module {name}
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: {name}_run, {name}_run_reversed, {name}_scratch_words, {name}_message

  type, bind(c) :: fj_array
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: kind = 0, rank = 0
    integer(c_int64_t) :: sizes(8) = 0, strides(8) = 0
  end type

  interface
    integer(c_int) function fj_run(in, out, scratch) bind(c, name="{name}_run")
      import :: c_int, c_ptr, fj_array
      type(fj_array), intent(in) :: in(*), out(*)
      type(c_ptr), value :: scratch
    end function
    integer(c_size_t) function fj_scratch() bind(c, name="{name}_scratch")
      import :: c_size_t
    end function
    type(c_ptr) function fj_error(code) bind(c, name="{name}_error")
      import :: c_int, c_ptr
      integer(c_int), value :: code
    end function
  end interface

contains

  integer(c_size_t) function {name}_scratch_words() result(words)
    words = (fj_scratch() + 7) / 8
  end function

  function {name}_message(stat) result(text)
    integer(c_int), intent(in) :: stat
    character(:), allocatable :: text
    character(kind=c_char), pointer :: chars(:)
    integer :: i
    call c_f_pointer(fj_error(stat), chars, [4096])
    text = ""
    do i = 1, size(chars)
      if (chars(i) == c_null_char) exit
      text = text // chars(i)
    end do
  end function

  ! Elements between two neighbours.
  integer(c_int64_t) function fj_apart(a, b, bytes) result(elements)
    type(c_ptr), intent(in) :: a, b
    integer, intent(in) :: bytes
    elements = (transfer(b, 0_c_intptr_t) - transfer(a, 0_c_intptr_t)) / bytes
  end function
"""


def names_of(arrays: list[Array]) -> list[str]:
    """Names that Fortran takes, which knows no upper case; each once."""
    names: list[str] = []
    for array in arrays:
        base = re.sub(r"\W", "_", array.name, flags=re.ASCII).strip("_").lower()[:_LONGEST]
        base = base if base[:1].isalpha() else f"a_{base}"
        name, count = base, 2
        while name in names or name in _TAKEN:
            name, count = f"{base}_{count}", count + 1
        names.append(name)
    return names


def _fill(array: Array, name: str, place: str, is_reversed: bool) -> list[str]:
    """Statements that describe the array to C."""
    rank = len(array.sizes)
    lines = [f"{place}%kind = {KINDS.index(array.kind) + 1}", f"{place}%rank = {rank}"]
    if rank == 0:
        return [*lines, f"{place}%data = c_loc({name})"]
    first = ["1"] * rank
    at_first = f"c_loc({name}({','.join(first)}))"
    inside = [f"  {place}%data = {at_first}"]
    for dim in range(rank):
        to = rank - dim if is_reversed else dim + 1
        lines.append(f"{place}%sizes({to}) = size({name}, {dim + 1}, c_int64_t)")
        next_one = ",".join("2" if d == dim else "1" for d in range(rank))
        inside += [
            f"  if (size({name}, {dim + 1}) > 1) {place}%strides({to}) = fj_apart( &",
            f"    {at_first}, c_loc({name}({next_one})), {_BYTES[array.kind]})",
        ]
    return [*lines, f"if (size({name}, kind=c_int64_t) > 0) then", *inside, "end if"]


def _procedure(name: str, model: Model, names: list[str], is_reversed: bool) -> list[str]:
    procedure = f"{name}_run" + ("_reversed" if is_reversed else "")
    arrays = model.inputs + model.outputs
    lines = [f"subroutine {procedure}( &", *(f"    {given}, &" for given in names), "    scratch, stat)"]
    for i, (array, given) in enumerate(zip(arrays, names, strict=True)):
        intent = "in" if i < len(model.inputs) and not array.written else "inout"
        shape = f"({','.join([':'] * len(array.sizes))})" if array.sizes else ""
        lines.append(f"  {_TYPES[array.kind]}, intent({intent}), target :: {given}{shape} ! {array.text()}")
    lines += [
        "  integer(c_int64_t), intent(inout), target, contiguous :: scratch(:)",
        "  integer(c_int), intent(out) :: stat",
        f"  type(fj_array) :: fj_in({max(len(model.inputs), 1)}), fj_out({max(len(model.outputs), 1)})",
        "  stat = 2",
        f"  if (size(scratch, kind=c_size_t) < {name}_scratch_words()) return",
    ]
    for i, (array, given) in enumerate(zip(arrays, names, strict=True)):
        inputs = len(model.inputs)
        place = f"fj_in({i + 1})" if i < inputs else f"fj_out({i - inputs + 1})"
        lines += [f"  {line}" for line in _fill(array, given, place, is_reversed)]
    return [*lines, "  stat = fj_run(fj_in, fj_out, c_loc(scratch(1)))", "end subroutine"]


def module(name: str, model: Model, title: str) -> str:
    """The source of the module."""
    names = names_of(model.inputs + model.outputs)
    example = ", ".join(names)
    text = _HEAD.format(name=name, title=title, example=example if len(example) < 80 else "...")
    for is_reversed in (False, True):
        text += "\n" + "".join(f"  {line}\n" for line in _procedure(name, model, names, is_reversed))
    return text + "end module\n"
