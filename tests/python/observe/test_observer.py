"""The read observer without torch: read patterns, each with its facts or the sentence that makes it unsound."""

import dis
import opcode

import pytest

from observer_cases import NET, SOUND
from observer_container_cases import CONTAINERS, KEPT
from observer_function_cases import FUNCTIONS
from observer_set_cases import SETS
from observer_shape_cases import SHAPES
from observer_tools import all_code, built, observe, program, supported
from observer_unsound_cases import SCALARS, UNSOUND

pytestmark = supported
PATTERNS = [*SOUND, *CONTAINERS, *SETS, *SHAPES, *FUNCTIONS]


@pytest.fixture(scope="session")
def ext():
    return built()


def run(ext, case):
    module = program(case.source)
    return module, observe(ext, module.f, *eval(case.args, module.__dict__))


@pytest.mark.parametrize("case", PATTERNS, ids=lambda c: c.name)
def test_read_is_a_fact(ext, case):
    module, seen = run(ext, case)
    assert seen.unsound == ""
    assert seen.error is None
    lines = seen.facts.describe()
    for fact in case.facts:
        assert any(fact in line for line in lines), (fact, lines)
    assert {name for name, _ in seen.tensors} >= set(case.tensors)
    assert seen.facts.check() and seen.facts.first_failure() == ""
    if case.change:
        exec(case.change, module.__dict__)
        assert not seen.facts.check()
        assert case.failure in seen.facts.first_failure()


@pytest.mark.parametrize("case", PATTERNS, ids=lambda c: c.name)
def test_every_fact_is_seen_to_change(ext, case):
    _, seen = run(ext, case)
    tried = seen.facts.mutate()
    assert [fact for fact, outcome in tried if outcome in ("missed", "stuck")] == []
    assert sum(outcome == "noticed" for _, outcome in tried) >= 3
    assert seen.facts.check()


@pytest.mark.parametrize("what", KEPT)
def test_change_beside_what_was_read_is_no_miss(ext, what):
    source, change = KEPT[what]
    module = program(source)
    seen = observe(ext, module.f, module.T)
    assert seen.unsound == ""
    for _ in range(3):
        exec(change, module.__dict__)
        assert seen.facts.check(), seen.facts.first_failure()


@pytest.mark.parametrize("case", UNSOUND, ids=lambda c: c.name)
def test_read_outside_the_list_is_unsound(ext, case):
    _, seen = run(ext, case)
    assert seen.unsound == case.sentence


@pytest.mark.parametrize(("source", "symbolic"), SCALARS)
def test_scalar_stays_symbolic_while_only_moved(ext, source, symbolic):
    number = float("2.5")
    module = program(source)
    seen = observe(ext, module.f, module.T, number, scalars=(number,))
    assert seen.unsound == ""
    assert seen.symbolic == [symbolic]


def test_an_unsound_call_has_no_symbolic_scalar(ext):
    number = float("2.5")
    module = program("import time\ndef f(x, a): return x * a * time.time()")
    assert observe(ext, module.f, module.T, number, scalars=(number,)).symbolic == [False]


def test_every_opcode_has_a_row(ext):
    real = {name: op for name, op in opcode.opmap.items() if op < 256 and not name.startswith("INSTRUMENTED_")}
    assert {name: op for name, (op, _) in ext.opcode_rows().items()} == real


def test_every_opcode_that_may_run_is_in_a_pattern(ext):
    """Those that no compiled pattern can hold are named here."""
    used = {
        instruction.opname
        for case in PATTERNS
        for code in all_code(compile(case.source, case.name, "exec"))
        for instruction in dis.get_instructions(code)
    }
    effects = {"STORE_GLOBAL", "DELETE_GLOBAL", "DELETE_DEREF", "SETUP_ANNOTATIONS"}  # test_observer_effects.py
    fillers = {"CACHE", "NOP", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD"}
    may_run = {name for name, (_, may_run) in ext.opcode_rows().items() if may_run}
    assert may_run - used - effects - fillers == set()


def test_extended_arguments_are_seen(ext):
    names = [f"g{i}" for i in range(300)]
    lines = [f"{n} = {i}" for i, n in enumerate(names)]
    module = program("\n".join([*lines, "def f(x): return x * (" + " + ".join(names) + ")"]))
    seen = observe(ext, module.f, module.T)
    assert seen.unsound == ""
    assert sum("global g" in line for line in seen.facts.describe()) == 300
    for name in ("g0", "g255", "g256", "g299"):
        setattr(module, name, getattr(module, name) + 1)
        assert f"global {name} was" in seen.facts.first_failure()
        setattr(module, name, getattr(module, name) - 1)
        assert seen.facts.check()


def test_extended_attributes_are_seen(ext):
    names = [f"a{i}" for i in range(300)]
    setup = ["import types", "m = types.ModuleType('m')", *(f"m.{n} = {i}" for i, n in enumerate(names))]
    module = program("\n".join([*setup, "def f(x): return x * (" + " + ".join(f"m.{n}" for n in names) + ")"]))
    seen = observe(ext, module.f, module.T)
    assert sum(line.startswith("m.a") for line in seen.facts.describe()) == 300
    module.m.a299 = 7
    assert seen.facts.first_failure().startswith("m.a299 was 299, is 7 (model.py:")


def test_other_keys_of_a_dictionary_are_no_miss(ext):
    module = program("SCALE = 2\ndef f(x): return abs(2) * x * SCALE")
    seen = observe(ext, module.f, module.T)
    for module.i in range(100):
        assert seen.facts.check()
    for i in range(1000):  # the dictionary grows and is rebuilt
        setattr(module, f"key{i}", i)
        assert seen.facts.check()
    module.SCALE = int("2")
    assert seen.facts.check()
    module.SCALE = 3
    assert not seen.facts.check()
    module.SCALE = 2
    assert seen.facts.check()


def test_class_counter_is_no_miss(ext):
    module = program(NET + "def f(x): return net(x)")
    seen = observe(ext, module.f, module.T)
    for module.Linear.count in range(50):
        assert seen.facts.check()


def test_equal_large_numbers_and_strings_are_no_miss(ext):
    module = program("N = 10 ** 30\nS = 'ab c'\nP = (1.5, ('x', None))\ndef f(x): return x if (N, S, P) != () else -x")
    seen = observe(ext, module.f, module.T)
    module.N, module.S, module.P = int("1" + "0" * 30), "".join(["ab", " c"]), (float("1.5"), ("x", None))
    assert seen.facts.check()
    module.N += 1
    assert "global N was" in seen.facts.first_failure()


def test_a_value_that_the_call_changes_back_is_seen(ext):
    module = program("import sys\nSCALE = 2\ndef f(x):\n  return x * SCALE")
    watched = observe(ext, module.f, module.T)
    del module.SCALE
    assert "global SCALE was 2, is absent" in watched.facts.first_failure()


def test_attributes_that_an_object_holds_itself(ext):
    """3.13 keeps the values in the object: a store moves no version tag of its dictionary."""
    module = program(
        "class Box:\n  def __init__(self): self.v, self.w = 2, [3]\nbox = Box()\ndef f(x): return x * box.v"
    )
    seen = observe(ext, module.f, module.T)

    def change(value):
        module.box.v = value

    for _ in range(100):  # until the store is specialised
        change(2)
        assert seen.facts.check()
        change(3)
        assert seen.facts.first_failure() == "box.v was 2, is 3 (model.py:4)"
    change(int("2"))
    assert seen.facts.check()
    module.box.w = module.box.more = 1  # beside what was read
    assert seen.facts.check()
    attributes = vars(module.box)
    for i in range(50):  # the object's dictionary gets values of its own
        setattr(module.box, f"a{i}", i)
        assert seen.facts.check()
    change(3)
    assert not seen.facts.check()
    change(2)
    assert seen.facts.check()
    assert vars(module.box) is attributes
    del module.box.v
    assert not seen.facts.check()


def test_an_absent_attribute_that_an_object_gets(ext):
    source = "class Box:\n  v = 1\nbox, other = Box(), Box()\ndef f(x): return x * box.v"
    for change in ("box.v = 2", "vars(box)['v'] = 2", "setattr(box, 'v', 2)", "vars(box)[''.join(['', 'v'])] = 2"):
        module = program(source)
        seen = observe(ext, module.f, module.T)
        module.other.v = 3  # the name enters the keys that both share
        assert seen.facts.check()
        exec(change, module.__dict__)
        assert seen.facts.first_failure() == "box.v was absent, is 2 (model.py:4)"
