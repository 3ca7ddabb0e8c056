"""The read observer without torch: read patterns, each with its facts or the sentence that makes it unsound."""

import dis
import gc
import opcode
import os
import sys
import threading
import types
import weakref
from pathlib import Path

import pytest

from observer_cases import NET, SOUND
from observer_container_cases import CONTAINERS, KEPT
from observer_function_cases import FUNCTIONS
from observer_shape_cases import SHAPES
from observer_tools import Module, Tensor, build, load, observe, program
from observer_unsound_cases import SCALARS, UNSOUND

VERSION = sys.version_info[:2]
pytestmark = pytest.mark.skipif(
    not (3, 11) <= VERSION < (3, 14), reason="the read observer is for CPython 3.11, 3.12 and 3.13"
)
PATTERNS = [*SOUND, *CONTAINERS, *SHAPES, *FUNCTIONS]


@pytest.fixture(scope="session")
def ext():
    built = os.environ.get("FASTJIT_OBSERVER_LIBRARY")  # see test_observer_versions.py
    return load(Path(built) if built else build())


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
    module = program("L = {1}\ndef f(x, a): return x * a * len(L)")
    assert observe(ext, module.f, module.T, number, scalars=(number,)).symbolic == [False]


def all_code(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from all_code(constant)


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


def test_tracer_active(ext):
    module = program("def f(x): return x")
    assert not ext.tracer_active()
    sys.setprofile(lambda *a: None)
    try:
        assert ext.tracer_active()
        assert ext.observe(None, (), module.f, (1,), None) is None
    finally:
        sys.setprofile(None)
    events = []
    tracer = lambda frame, event, arg: events.append(event)  # noqa: E731
    sys.settrace(tracer)
    try:
        assert ext.observe(None, (), module.f, (1,), None) is None
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert observe(ext, module.f, module.T).unsound == ""


def test_tracer_and_garbage_collector_are_restored(ext):
    module = program(
        "import gc\ndef f(x): return x\ndef bad(x): raise KeyError(x)\ndef g(x): return x if gc.isenabled() else -x"
    )
    assert gc.isenabled()
    for function in (module.f, module.bad, module.g):
        observe(ext, function, module.T)
        assert gc.isenabled() and sys.gettrace() is None and not ext.tracer_active()
    assert observe(ext, module.g, module.T).result == -module.T  # off while recording
    gc.disable()
    try:
        observe(ext, module.f, module.T)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_is_the_functions_own(ext):
    module = program("def f(x): return x * missing")
    seen = observe(ext, module.f, module.T)
    assert isinstance(seen.error, NameError)
    assert seen.unsound == "NameError raised at model.py:1"


def test_a_trace_function_set_inside_stays(ext):
    module = program("import sys\ndef t(*a): return None\ndef f(x):\n  sys.settrace(t)\n  return x")
    try:
        assert observe(ext, module.f, module.T).unsound == "call of settrace at model.py:4"
        assert sys.gettrace() is module.t
    finally:
        sys.settrace(None)


def test_facts_hold_nothing_alive(ext):
    module = program(NET + "W = Tensor(seconds=7)\ndef f(x): return net(x) + W")
    seen = observe(ext, module.f, module.T)
    refs = [
        weakref.ref(o) for o in (module.net, module.net.fc1, module.net.fc1.weight, module.W, module.f, module.Linear)
    ]
    facts = seen.facts
    assert facts.check()
    seen = None
    for name in ("net", "W", "f", "Net", "Linear"):
        delattr(module, name)
    gc.collect()
    assert [r() for r in refs] == [None] * len(refs)
    assert not facts.check()
    assert facts.first_failure()


def test_dead_referent_with_reused_address_fails(ext):
    module = program("class C(Module):\n  K = 2\nobj = C()\ndef f(x): return x * obj.K")
    seen = observe(ext, module.f, module.T)
    for _ in range(200):
        module.obj = None
        module.obj = module.C()
        assert not seen.facts.check()


def test_cell_value_with_reused_address_fails(ext):
    module = program("def mk(w):\n  return lambda x: x + w\nf = mk(Tensor(seconds=2))")
    seen = observe(ext, module.f, module.T)
    seen = seen._replace(tensors=[])
    assert seen.facts.check()
    for _ in range(200):
        module.f.__closure__[0].cell_contents = None
        module.f.__closure__[0].cell_contents = Tensor(seconds=3)
        assert not seen.facts.check()


def test_a_thousand_observations_leak_nothing(ext):
    module = program(NET + "SCALE = 2.0\ndef f(x): return net(x) * SCALE + [x for _ in (1, 2)][0]")
    observe(ext, module.f, module.T)
    gc.collect()
    before, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    references = [
        sys.getrefcount(o) for o in (module.net, module.T, module.f, module.net.fc1, Tensor, Module, None.__class__)
    ]
    for _ in range(1000):
        observe(ext, module.f, module.T)
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert sys.getallocatedblocks() - blocks < 500
    after = [
        sys.getrefcount(o) for o in (module.net, module.T, module.f, module.net.fc1, Tensor, Module, None.__class__)
    ]
    assert after == references


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


def test_another_thread_is_not_observed(ext):
    module = program("SCALE = 2\ndef f(x):\n  for _ in range(2000): x = x + x - x\n  return x * SCALE")
    stop, counted = threading.Event(), []

    def count():
        n = 0
        while not stop.is_set():
            n += len([i for i in range(10)])
        counted.append(n)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(5):
            seen = observe(ext, module.f, module.T)
            assert seen.unsound == "" and seen.facts.check()
    finally:
        stop.set()
        thread.join()
    assert counted[0] > 0


def test_two_threads_observe_at_once(ext):
    module = program("SCALE = 2\ndef f(x):\n  for _ in range(500): x = x + x - x\n  return x * SCALE")
    results = []

    def run_some():
        for _ in range(10):
            seen = observe(ext, module.f, module.T)
            results.append((seen.unsound, seen.facts.check(), len(seen.facts.describe())))

    threads = [threading.Thread(target=run_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40 and len(set(results)) == 1 and results[0][:2] == ("", True)


@pytest.mark.skipif(VERSION < (3, 12), reason="sys.monitoring came with 3.12")
class TestMonitoring:
    def test_a_tool_stays_and_keeps_the_observer_away(self, ext):
        monitoring, lines = sys.monitoring, []
        module = program("def f(x):\n  return x")
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "a test")
        monitoring.register_callback(
            monitoring.COVERAGE_ID, monitoring.events.LINE, lambda code, line: lines.append(line)
        )
        try:
            assert ext.observe(None, (), module.f, (1,), None) is None  # it may watch single functions
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
            assert ext.tracer_active()
            assert ext.observe(None, (), module.f, (1,), None) is None
            lines.clear()
            module.f(1)
            assert 2 in lines
        finally:
            monitoring.set_events(monitoring.COVERAGE_ID, 0)
            monitoring.free_tool_id(monitoring.COVERAGE_ID)
        assert not ext.tracer_active()
        assert observe(ext, module.f, module.T).unsound == ""

    def test_nothing_is_left_behind(self, ext):
        module = program("def f(x): return x\ndef bad(x): raise KeyError(x)\ndef unsound(x): return open\n")
        for function in (module.f, module.bad, module.unsound):
            observe(ext, function, module.T)
            assert [sys.monitoring.get_tool(i) for i in range(6)] == [None] * 6
            names = {i.opname for i in dis.get_instructions(function, adaptive=True)}
            function(module.T) if function is not module.bad else None
            names = {i.opname for i in dis.get_instructions(function, adaptive=True)}
            if function is not module.bad:
                assert not any(name.startswith("INSTRUMENTED") for name in names)

    def test_stack_depths_of_the_standard_library(self, ext):
        import argparse
        import asyncio.tasks
        import dataclasses
        import inspect
        import typing

        unknown = checked = 0
        for module in (argparse, asyncio.tasks, dataclasses, inspect, typing, dis, types, threading):
            source = Path(module.__file__)
            for code in all_code(compile(source.read_text(), source.name, "exec")):
                depths = ext.stack_depths(code)
                assert max(depths) <= code.co_stacksize
                starts = [i.offset // 2 for i in dis.get_instructions(code)]
                first = next((i.offset // 2 for i in dis.get_instructions(code) if i.opname == "RESUME"), len(depths))
                unknown += sum(depths[i] < 0 for i in starts if i >= first)
                checked += len(starts)
        assert checked > 20_000 and unknown == 0
