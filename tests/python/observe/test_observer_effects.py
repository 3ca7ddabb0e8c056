"""The read observer without torch: effects that are noted, and what they make of the facts."""

from __future__ import annotations

import io
import sys
import types

import pytest

from observer_effect_cases import EFFECTS
from observer_tools import built, observe, program, supported

pytestmark = supported


@pytest.fixture(scope="session")
def ext():
    return built()


@pytest.mark.parametrize("case", EFFECTS, ids=lambda c: c.name)
def test_effect_is_noted(ext, case, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    module = program(case.source)
    seen = observe(ext, module.f, module.T)
    assert (seen.unsound, seen.effects, seen.state) == ("", case.effects, case.state)
    if not case.state:
        assert seen.facts.check() and seen.facts.first_failure() == ""
        assert [fact for fact, how in seen.facts.mutate() if how in ("missed", "stuck")] == []
    elif seen.facts:
        assert not seen.facts.check()


def stream_of_python() -> io.TextIOBase:
    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            return super().write(text)

    return Stream()


def stream_with_its_own_write() -> object:
    class Stream(io.StringIO):
        pass

    stream = Stream()
    stream.write = types.MethodType(lambda self, text: 0, stream)
    return stream


@pytest.mark.parametrize("make", [stream_of_python, stream_with_its_own_write])
def test_print_to_python_code_is_unsound(ext, make, monkeypatch):
    monkeypatch.setattr(sys, "stdout", make())
    module = program("def f(x):\n  print('a')\n  return x")
    seen = observe(ext, module.f, module.T)
    assert seen.unsound == "side effect: print at model.py:2"


UNSOUND = {
    "print(x)": "side effect: print",
    "print('a', file=out)": "side effect: print",
    "print(*['a'], **dict(sep='b'))": "side effect: print",
    "del D['k']": "deletion of item of dict",
    "D.update(a=1)": "change of dict by dict.update",
    "D.setdefault('a', 1)": "state: what D keeps is filled",
    "L.extend([1])": "change of list by list.extend",
    "L.insert(0, 1)": "change of list by list.insert",
    "L.pop()": "change of list by list.pop",
    "del L[0]": "deletion of item of list",
    "S.add(2)": "state: what is in S is filled",
    "S.remove(1)": "change of set by set.remove",
    "C.a = 5": "store to class",
    "C.a += 1": "store to class",
    "del c.a": "deletion of C.a",
    "f.a = 1": "store to function.a",
    "D['a'] = 1; x = x * len(D)": "the call itself changes D",
    "D['a'] = 1; x = x * sum(D.values())": "the call itself changes D",
    "L.append(1); x = x * len(L)": "the call itself changes L",
    "L.append(1); x = x * sum(L)": "the call itself changes L",
    "L.append(1); x = x * L[1]": "the call itself changes L",
}


@pytest.mark.parametrize("statement", UNSOUND)
def test_every_other_effect_is_unsound(ext, statement):
    source = "import sys\nout = sys.stderr\nD, L, S = {'k': 1}, [1], {1}\nclass C: a = 1\nc = C(); c.a = 1\n"
    module = program(source + f"def f(x):\n  {statement}\n  return x")
    seen = observe(ext, module.f, module.T)
    assert UNSOUND[statement] in seen.unsound


def test_a_counter_holds_for_every_number_of_its_type(ext):
    module = program("n = 0\ndef f(x):\n  global n\n  n += 1\n  return x")
    facts = observe(ext, module.f, module.T).facts
    for n in (1, -5, 10**30):
        module.n = n
        assert facts.check()
    for n, text in ((1.0, "1.0"), (True, "True"), ("a", "'a'"), (int, "type")):
        module.n = n
        assert not facts.check()
        assert facts.first_failure() == f"global n was of type int, is {text} (model.py:4)"
