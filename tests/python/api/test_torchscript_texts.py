"""fastjit of TorchScript that works on texts, warns, fails after changes of its own, or stands in torch's layers."""

import copy
import math
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

import fastjit
from fastjit import fastjit as jit
from fastjit.testing import assert_no_recompile
from script_cases import same

r = torch.randn


def twice(f, scripted, make, hits=1):
    """The same results for new arguments, `hits` of three calls from programs."""
    for _ in range(3):
        args = make()
        expected = scripted(*copy.deepcopy(args))
        same(expected, f(*args))
    assert f.stats().hits >= hits and f.stats().fallbacks == {}


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if bool(x.sum() > 1000.0):
            return x * 2
        return -x


def test_a_loop_over_sizes_between_programs_makes_its_own_numbers():
    scripted = torch.jit.script(Normed().train())
    other = copy.deepcopy(scripted)
    f = jit(scripted)
    twice(f, other, lambda: (r(5, 4),), hits=2)
    same(dict(other.named_buffers()), dict(scripted.named_buffers()))


def steps(x: Tensor) -> Tensor:
    while bool(x.sum() < 100.0):
        x = x + 1
    return x


def test_what_decides_by_data_is_asked_as_any_function():
    f = jit(torch.jit.script(steps))
    f(torch.ones(3)), f(torch.ones(3))
    assert fastjit.of(f) is f and fastjit.of(f).stats().hits == 1
    with assert_no_recompile(f):
        f(torch.zeros(3))


def lengths(x: Tensor, text: str, texts: list[str]) -> Tensor:
    for item in texts:
        x = x + len(item)
    return x * len(text)


def test_texts_are_counted_in_bytes():
    scripted = torch.jit.script(lengths)
    f, x = jit(scripted, on_unsupported="eager"), torch.ones(2)
    for text, texts in (("ab", ["c"]), ("\u00e9", ["c"]), ("ab", ["\u65e5\u672c"]), ("ab", ["c"])):
        same(scripted(x, text, texts), f(x, text, texts))
    assert f.stats().hits == 1


def grown(x: Tensor, counts: list[int], found: dict[str, int], a: int) -> Tensor:
    counts.append(1)
    found["c"] = 1
    x = x + len(counts) + len(found)
    return x + a * a  # wraps around in TorchScript only


def test_what_the_call_changed_of_its_own_copies_is_not_seen_by_the_interpreter():
    scripted = torch.jit.script(grown)
    f, x = jit(scripted, on_unsupported="eager"), torch.zeros(1, dtype=torch.int64)
    for a in (2**40, 3, 2**40, 3):
        same(scripted(x, [1], {"a": 1}, a), f(x, [1], {"a": 1}, a))
    assert f.stats().hits == 1


def picked(x: Tensor, *, k: int) -> Tensor:
    return x[k]


def test_errors_of_calls_with_keywords_only():
    scripted = torch.jit.script(picked)
    f = jit(scripted)
    for k in (0, 7):
        try:
            expected = scripted(r(3), k=k)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                f(r(3), k=k)
            assert str(raised.value) == str(error)
        else:
            assert f(r(3), k=k).shape == expected.shape


def scaled(x: Tensor, k: int = 2) -> Tensor:
    return x * k


WRONG = {
    "none": ((), {}),
    "too many": ((torch.ones(2), 1, 2), {}),
    "an unknown one": ((torch.ones(2),), {"z": 1}),
    "one twice": ((torch.ones(2), 1), {"k": 2}),
    "another type": ((torch.ones(2), "a"), {}),
}


@pytest.mark.parametrize("function", [scaled, steps])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_the_interpreters_to_refuse(function, name):
    scripted = torch.jit.script(function)
    f, (args, kwargs) = jit(scripted, on_unsupported="eager"), WRONG[name]
    for _ in range(2):
        with pytest.raises(RuntimeError) as expected:
            scripted(*args, **kwargs)
        with pytest.raises(RuntimeError) as raised:
            f(*args, **kwargs)
        assert str(raised.value) == str(expected.value)


def test_a_call_that_is_handed_over_says_why(recwarn, monkeypatch):
    used = sys.modules.get("torch.testing._internal.common_utils")  # its import wraps calls of TorchScript in Python
    if used:
        monkeypatch.setattr(torch._C.ScriptFunction, "__call__", used.func_call)
    scripted = torch.jit.script(scaled)
    f = jit(scripted)
    for _ in range(2):
        same(scripted(torch.ones(2), True), f(torch.ones(2), True))
    (said,) = [str(w.message) for w in recwarn.list if w.category is fastjit.FastJITWarning]
    assert "the interpreter takes what TorchScript converts (a bool or a dtype for an int)" in said


def texts(x: Tensor, s: str, t: str) -> tuple[Tensor, int, bool, bool, bool, int, str]:
    return x + len(s), s.find(t), s.startswith(t), s.endswith(t), t in s, len(s[1:]), f"{s.upper()}-{len(t)}"


@pytest.mark.parametrize("s", ["", "a", "bab"])
@pytest.mark.parametrize("t", ["", "a", "ab"])
def test_operators_on_texts(s, t):
    scripted = torch.jit.script(texts)
    twice(jit(scripted), scripted, lambda: (r(2), s, t), hits=2)


def numbers(x: Tensor, a: float, n: int) -> tuple[Tensor, float, float, bool, bool, bool]:
    return x * a, a**0.5, n ** (-0.5), math.isnan(a), math.isinf(a), math.isfinite(a)


@pytest.mark.parametrize("a", [2.25, 0.0, math.inf, -math.inf])
def test_functions_of_numbers(a):
    scripted = torch.jit.script(numbers)
    twice(jit(scripted), scripted, lambda: (r(2), a, 7), hits=2)


def ordered(x: Tensor, a: float, b: float) -> tuple[Tensor, str, str]:
    return x + max(a, b), "nan" if math.isnan(max(a, b)) else "", "nan" if math.isnan(min(a, b)) else ""


@pytest.mark.parametrize("a", [math.nan, 2.0])
@pytest.mark.parametrize("b", [math.nan, 2.0, -3.0])
def test_the_larger_of_two_numbers(a, b):
    scripted = torch.jit.script(ordered)
    f, x = jit(scripted, on_unsupported="eager"), torch.ones(2)
    for _ in range(3):
        expected, found = scripted(x, a, b), f(x, a, b)
        assert expected[1:] == found[1:]
        torch.testing.assert_close(found[0], expected[0], equal_nan=True)
    assert f.stats().hits == 2


def gathered(x: Tensor, xs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    ys = xs
    xs += [x, x * 2]
    ys[0] = ys[-1] + 1
    return torch.stack(ys), xs


def test_lists_that_grow_by_others():
    scripted = torch.jit.script(gathered)
    twice(jit(scripted), scripted, lambda: (r(2), [r(2)]), hits=2)


def powers(a: float, b: float, x: Tensor) -> tuple[Tensor, float]:
    return x + 1, a**b


@pytest.mark.parametrize("b", [0.5, -3.0, 3.0, 2000.0, math.inf])
@pytest.mark.parametrize("a", [-8.0, 0.0, 1e200, -1e200, -math.inf])
def test_powers_are_those_of_c(a, b):
    scripted = torch.jit.script(powers)
    f, x = jit(scripted, on_unsupported="eager"), torch.ones(1)
    for _ in range(2):
        try:
            expected = scripted(a, b, x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                f(a, b, x)
            assert str(raised.value) == str(error)
        else:
            assert repr(f(a, b, x)) == repr(expected)


def looked_up(x: Tensor, d: dict[str, Tensor], key: str) -> tuple[Tensor, dict[str, Tensor], int]:
    found = d.get(key)
    other = d.get("z", x)
    if len(d) > 1:
        del d["c"]
    return (x if found is None else found) + other, d, sum([len(d), 2])


@pytest.mark.parametrize("key", ["a", "b"])
def test_dictionaries(key):
    scripted = torch.jit.script(looked_up)
    twice(jit(scripted), scripted, lambda: (r(2), {"a": r(2), "c": r(2)}, key), hits=2)


def warns(x: Tensor, k: int, name: str) -> Tensor:
    x.add_(1)
    if k > 1:
        warnings.warn(f"{name} is {k}", stacklevel=2)
    return x * 2


def test_warnings_are_the_interpreters():
    scripted = torch.jit.script(warns)
    f = jit(scripted, on_unsupported="eager")
    for k in (3, 3, 1, 1):
        seen = []
        for call in (scripted, f):
            with warnings.catch_warnings(record=True) as shown:
                warnings.simplefilter("always")
                same(torch.full((2,), 4.0), call(torch.ones(2), k, "k"))
            seen.append([(str(w.message), w.category, w.filename, w.lineno) for w in shown])
        assert seen[0] == seen[1] and len(seen[0]) == (k > 1)
    assert f.stats().hits == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in (scripted, f):
            with pytest.raises(UserWarning, match="k is 3"):
                call(torch.ones(2), 3, "k")


def test_layers_of_attention_are_programs(recwarn):
    attention = torch.jit.script(nn.MultiheadAttention(8, 2).eval())
    x = r(3, 2, 8)
    twice(jit(attention), attention, lambda: (x, r(5, 2, 8), r(5, 2, 8)[:5]), hits=2)
    layer = torch.jit.script(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval())
    twice(jit(layer), layer, lambda: (r(2, 3, 8),), hits=2)
    assert not [w for w in recwarn.list if w.category is SyntaxWarning]


def counted(x: Tensor, k: int) -> Tensor:
    return x * len(["a", "bé"][k])


class Named(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return x * len(self.name)


@pytest.mark.parametrize(
    ("scripted", "args", "why"),
    [
        (torch.jit.script(counted), (1,), "a text of other characters than ASCII at"),
        (torch.jit.script(Named("é")), (), "the text 'name', which another may replace;"),
    ],
    ids=["constant", "attribute"],
)
def test_texts_whose_bytes_count_are_the_interpreters(scripted, args, why):
    with pytest.warns(fastjit.FastJITWarning, match=why):
        f = jit(scripted)
        same(scripted(torch.ones(2), *args), f(torch.ones(2), *args))
    assert list(f.stats().fallbacks) != []


def asserted(x: Tensor) -> Tensor:
    assert x.shape[0] > 1, "größer als eins"
    return x * 2


def test_messages_may_have_any_characters():
    twice(jit(torch.jit.script(asserted)), torch.jit.script(asserted), lambda: (r(3),))
