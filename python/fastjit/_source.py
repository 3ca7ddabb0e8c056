"""The captured program as runnable Python: one line a node, over plain torch."""

from __future__ import annotations

import re
from typing import Any

_DTYPES = {
    "f32": "torch.float32", "f64": "torch.float64", "f16": "torch.float16", "bf16": "torch.bfloat16",
    "i8": "torch.int8", "i16": "torch.int16",
    "i32": "torch.int32", "i64": "torch.int64", "u8": "torch.uint8", "bool": "torch.bool",
}  # fmt: skip

# IR op -> expression over {0}, {1}, {2}; ops that are torch functions of the same name stand in _SAME.
_SAME = """
    add sub mul neg abs sqrt rsqrt floor ceil trunc round copysign exp exp2 expm1 log log2 log10 log1p sin cos tan
    asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid pow atan2 hypot eq ne lt le gt ge
    signbit where remainder fmod fmin fmax
""".split()
_FORMS = {name: f"torch.{name}({{args}})" for name in _SAME} | {
    "div": "torch.div({args}, rounding_mode={trunc})",
    "floordiv": "torch.div({args}, rounding_mode='floor')",
    "min": "torch.minimum({args})",
    "max": "torch.maximum({args})",
    "fma": "torch.addcmul({2}, {0}, {1})",
    "and": "torch.bitwise_and({args})",
    "or": "torch.bitwise_or({args})",
    "xor": "torch.bitwise_xor({args})",
    "not": "torch.bitwise_not({args})",
    "shl": "torch.bitwise_left_shift({args})",
    "shr": "torch.bitwise_right_shift({args})",
}
_REDUCE = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin", "any": "any", "all": "all"}

# Each stands above the program where the program calls it, or another one that stands above.
_HELPERS = {
    "places": '''
def places(sizes, rows):
    """Indices offset + sum(coef * i[dim]) for all i below sizes, one row (offset, [(dim, coef), ...]) per dimension."""
    index = []
    for offset, terms in rows:
        at = torch.full([1] * len(sizes), offset, dtype=torch.int64)
        for dim, coef in terms:
            shape = [1] * len(sizes)
            shape[dim] = sizes[dim]
            at = at + coef * torch.arange(sizes[dim]).reshape(shape)
        index.append(at.expand(sizes))
    return tuple(index)
''',
    "view": '''
def view(x, sizes, rows):
    """out[i] = x at the place of i."""
    return x[places(sizes, rows)] if rows else x.expand(sizes)
''',
    "update": '''
def update(x, value, rows):
    """x, but the place of i holds value[i]."""
    return x.index_put(places(value.shape, rows), value) if rows else value.reshape(())
''',
    "strided": '''
def strided(x, strides):
    """x in memory with these strides."""
    out = torch.empty_strided(x.shape, strides, dtype=x.dtype)
    return out.copy_(x)
''',
}

_NODE = re.compile(r"%(\d+) = (\w+) (\w+)\[([-\d,]*)\](?:\(([-\d,]*)\))?((?: (?:%\d+|-(?= |$)))*)(.*)")


def _ints(text: str | None) -> list[int]:
    return [int(x) for x in text.split(",")] if text else []


def _map_rows(text: str) -> list[tuple[int, list[tuple[int, int]]]]:
    rows = []
    body = text[text.index("{") + 1 : text.rindex("}")]
    for row in body.split(";") if body else []:
        offset, *terms = row.split("+")
        rows.append((int(offset), [(int(d), int(c)) for c, d in (t.split("*d") for t in terms)]))
    return rows


def _constant(dtype: str, text: str) -> str:
    value = text.split()[0]
    if dtype in ("f32", "f64", "f16", "bf16"):
        value = f"float({value!r})"
    return f"torch.tensor({value}, dtype={_DTYPES[dtype]})"


def _reduce(operand: str, dtype: str, rest: str) -> str:
    kind, dims_text = rest.split()[:2]
    dims = _ints(dims_text.removeprefix("dims="))
    if kind in ("argmax", "argmin"):
        return f"{operand}.{kind}({dims[0]})" if len(dims) == 1 else f"{operand}.{kind}()"
    if kind == "prod":
        for dim in reversed(dims):
            operand = f"{operand}.prod({dim})"
        return operand
    if not dims:
        return operand
    extra = f", dtype={_DTYPES[dtype]}" if kind == "sum" else ""
    return f"{operand}.{_REDUCE[kind]}({dims}{extra})"


def _on(steps: dict[str, Any]) -> str:
    return "" if steps["device"] == "cpu" else f", device={steps['device']!r}"


def _expression(
    op: str,
    dtype: str,
    sizes: list[int],
    strides: list[int] | None,
    args: list[str],
    rest: str,
    steps: dict[str, Any],
) -> str:
    if op in _FORMS:
        trunc = "None" if dtype in ("f32", "f64") else "'trunc'"
        return _FORMS[op].format(*args, args=", ".join(args), trunc=trunc)
    if op == "const":
        return _constant(dtype, rest)
    if op == "iota":
        dim = int(rest.split("dim=")[1].split()[0])
        shape = [sizes[k] if k == dim else 1 for k in range(len(sizes))]
        return f"torch.arange({sizes[dim]}{_on(steps)}).reshape({shape}).expand({sizes})"
    if op == "convert":
        return f"{args[0]}.to({_DTYPES[dtype]})"
    if op == "view":
        text = f"view({args[0]}, {sizes}, {_map_rows(rest)})"
        return f"strided({text}, {strides})" if strides is not None else text
    if op == "update":
        return f"update({args[0]}, {args[1]}, {_map_rows(rest)})"
    if op == "undef":
        return f"torch.zeros({sizes}, dtype={_DTYPES[dtype]}{_on(steps)})"
    if op == "reshape":
        return f"{args[0]}.reshape({sizes})"
    if op == "cat":
        return f"torch.cat([{', '.join(args)}], {int(rest.split('dim=')[1].split()[0])})"
    if op == "reduce":
        return _reduce(args[0], dtype, rest)
    if op == "contract":
        return str(steps["calls"][int(rest.split("call=")[1].split()[0])]["text"]).format(*args)
    if op == "extern" and " kind=number " in rest:
        number = steps["numbers"][int(rest.split("call=")[1].split()[0])].format(*args)
        return f"(torch.tensor({number}, dtype=torch.float64),)"
    if op == "extern":
        call = steps["calls"][int(rest.split("call=")[1].split()[0])]
        # A call gives a tuple of its tensors; lists count as their elements.
        text = call["text"].format(*args)
        return text if call["many"] else f"({text},)"
    if op == "result":
        return f"{args[0]}[{int(rest.split('which=')[1].split()[0])}]"
    raise ValueError(f"IR op {op!r} has no Python form")


def _dead(nodes: list[re.Match[str] | str]) -> set[str]:
    """Numbers of values that nothing reads: constants that were folded into calls, mostly."""
    read: set[str] = set()
    dead: set[str] = set()
    for node in reversed(nodes):
        if isinstance(node, str):
            read.update(re.findall(r"%(\d+)", node))
        elif node[2] in ("input", "scalar", "extern", "result") or node[1] in read:
            read.update(re.findall(r"%(\d+)", node[6]))
        else:
            dead.add(node[1])
    return dead


def _head(body: str, inputs: list[str], scalars: list[str]) -> str:
    """Imports and helpers that the body uses, and the head of the function."""
    numbers = [name for name in ("inf", "nan", "sqrt") if re.search(rf"(?<![\w.'\"]){name}\b", body)]
    imports = (f"from math import {', '.join(numbers)}\n\n" if numbers else "") + "import torch\n"
    used = [name for name in _HELPERS if re.search(rf"(?<![\w.]){name}\(", body)]
    if "view" in used or "update" in used:
        used = ["places", *used]
    helpers = "".join("\n" + _HELPERS[name] for name in used)
    what = f"inputs: tensors by name ({', '.join(inputs)}); scalars: numbers by name ({', '.join(scalars)})."
    return f'{imports}{helpers}\n\ndef program(inputs, scalars=None):\n    """{what}"""\n'


def from_ir(ir: str, steps: dict[str, Any]) -> str:
    """Python source of ``program(inputs, scalars)``, which takes tensors and numbers by name and gives the outputs.

    Args:
        ir: text of a graph.
        steps: "calls", per call of torch's {"text": expression with {0}, {1}, ... for its tensors, "many": it returns
            several}; "numbers", per number that Python computes the expression; "device", such as "cpu".
    """
    lines: list[str] = []
    inputs: list[str] = []
    scalars: list[str] = []
    nodes = [_NODE.fullmatch(line) or line for line in ir.splitlines()]
    dead = _dead(nodes)
    for node in nodes:
        if not isinstance(node, str):
            if node[1] in dead:
                continue
            number, op, dtype, sizes, strides, operands, rest = node.groups()
            rest, _, where = rest.partition(" @ ")
            note = f"  # {where.strip(chr(34))}" if where else ""
            if op == "extern" and " kind=guard " in rest:
                read_at = rest.strip().split('"')[1]
                lines.append(f"    # v{operands.strip()[1:]} is read: {read_at}; the program is for the value it had")
                continue
            args = ["None" if a == "-" else f"v{a[1:]}" for a in operands.split()]
            if op in ("input", "scalar"):
                names = inputs if op == "input" else scalars
                names.append(rest.strip().strip('"'))
                given = f"{op}s[{names[-1]!r}]"
                value = given if op == "input" else f"torch.tensor({given}, dtype={_DTYPES[dtype]})"
            else:
                value = _expression(
                    op, dtype, _ints(sizes), _ints(strides) if strides is not None else None, args, rest.strip(), steps
                )
            lines.append(f"    v{number} = {value}{note}")
        elif node.startswith("store"):
            _, target, value_of, _ = node.split()
            lines.append(f"    inputs[{inputs[int(target.removeprefix('input='))]!r}].copy_(v{value_of[1:]})")
        elif node.startswith("return"):
            lines.append(f"    return [{', '.join('v' + v[1:] for v in node.split()[1:])}]")
    body = "\n".join(lines) + "\n"
    return _head(body, inputs, scalars) + body
