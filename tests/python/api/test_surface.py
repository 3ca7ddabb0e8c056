"""What a user sees of fastjit before the first call: options, signature, types, and how stats() are shown."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pydoc
import re
import typing

import pytest
import torch
from torch import nn

from fastjit import _C, FastFunction, fastjit, of
from fastjit.api import OPTIONS, Numerics, Stats
from helpers import since


def plain(x):
    return x * 2


@fastjit
def decorated(x):
    return x * 2


class Holder:
    @fastjit
    def method(self, x):
        return x * 2


# Option of torch.compile -> what is said of it.
TORCH_COMPILE = {
    "mode": "leave it out: there is one mode; numerics='fast' allows faster arithmetic with larger errors",
    "fullgraph": "say on_unsupported='error' instead: a call that cannot be one program then raises",
    "backend": "leave it out: FastJIT is the compiler (from the other side, torch.compile takes backend='fastjit')",
    "options": f"give each option as a keyword of its own: {', '.join(OPTIONS)}",
    "recompile_limit": "say max_variants= instead: how many signatures are kept",
    "isolate_recompiles": "leave it out: each function has its own variants",
    "shapes_spec": "leave it out: a size is any size from its second value on; dynamic= says which are at once",
    "dynamic_shapes": "leave it out: a size is any size from its second value on; dynamic= says which are at once",
    "disable": "set FASTJIT_DISABLE=1, or call it within fastjit.stance('eager')",
}


def test_each_option_of_torch_compile_has_an_answer():
    own = set(inspect.signature(torch.compile).parameters) - {"model", "name", "dynamic"}  # which FastJIT has, too
    assert own == set(TORCH_COMPILE) - ({"shapes_spec"} if since(2, 14) else {"dynamic_shapes"})
    for option, instead in TORCH_COMPILE.items():
        with pytest.raises(TypeError) as refused:
            fastjit(plain, **{option: True})
        assert str(refused.value) == f"option {option!r} is torch.compile's; {instead}"


def test_the_signature_and_its_overloads_are_the_table_of_options():
    for shown in (inspect.signature(fastjit), *map(inspect.signature, typing.get_overloads(fastjit))):
        options = {p.name: p.default for p in shown.parameters.values() if p.kind is p.KEYWORD_ONLY}
        assert options == {name: default for name, (default, _) in OPTIONS.items()}
        assert all(p.annotation is not p.empty for p in shown.parameters.values() if p.kind is p.KEYWORD_ONLY)
    text = " ".join(pydoc.plain(pydoc.render_doc(fastjit)).split()).replace("( ", "(")  # 3.13: a line each
    assert "fastjit(target=..., /, *, name: str | None = None, pure: bool = False, " in text


def test_checkers_of_types_know_the_numerics():
    assert typing.get_args(Numerics) == _C.numerics and OPTIONS["numerics"] == (_C.numerics[0], _C.numerics)


def test_what_fastjit_returns_is_a_fast_function():
    bound = of(fastjit(nn.Linear(2, 2)))
    for fast in (decorated, Holder.method, fastjit(pure=True)(plain), bound, fastjit(decorated)):
        assert isinstance(fast, FastFunction) and issubclass(type(fast), FastFunction)
    assert not isinstance(plain, FastFunction) and not isinstance(fastjit(nn.Linear(2, 2)), FastFunction)


def test_stats_are_shown_on_lines_that_fit():
    stats = Stats(
        calls=1234567, hits=1234560, misses=4, compiles=1, memory_hits=2, disk_hits=3, kernels=1, steps=2, variants=1,
        compile_ms=12.3456, record_ms=0.5, verified=0, mismatches=0, operators=40, parts={},
        fallbacks={"argument 'x' requires grad": 2, "tracer active": 1},
    )  # fmt: skip
    assert (
        repr(stats)
        == str(stats)
        == """\
Stats(calls=1234567, hits=1234560, misses=4, variants=1, kernels=1, steps=2,
      compiles=1, memory_hits=2, disk_hits=3, compile_ms=12.35, record_ms=0.50,
      verified=0, mismatches=0, operators=40,
      fallbacks={"argument 'x' requires grad": 2,
        'tracer active': 1},
      parts={})"""
    )
    assert eval(repr(stats)) == dataclasses.replace(stats, compile_ms=12.35)
    named = [field.name for field in dataclasses.fields(Stats)]
    assert sorted(re.findall(r"\b(\w+)=", repr(stats))) == sorted(named)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_of_a_module_are_plain_and_of_says_so(copied):
    twin = copied(fastjit(nn.Linear(2, 2)))
    said = "Linear was not given to fastjit, or is a copy: copying and pickling a module leave out its compiled form"
    with pytest.raises(TypeError, match=said):
        of(twin)
    x = torch.ones(1, 2)
    fastjit(twin)(x), twin(x)
    assert of(twin).stats().hits == 1
