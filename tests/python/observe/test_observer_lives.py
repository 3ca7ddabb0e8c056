"""The read observer beside the rest of the interpreter: tracers, threads, garbage collector, errors, lifetimes."""

import argparse
import asyncio.tasks
import dataclasses
import dis
import gc
import inspect
import subprocess
import sys
import threading
import types
import typing
import weakref
from pathlib import Path

import pytest

from observer_cases import NET
from observer_tools import HELPERS, Module, Tensor, all_code, built, observe, program, supported

pytestmark = supported


@pytest.fixture(scope="session")
def ext():
    return built()


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
    # It gives up at isenabled(). On 3.11 the rest of the call may be recorded in parts: the collector is on by then.
    off = sys.version_info >= (3, 12)
    assert observe(ext, module.g, module.T).result == (-module.T if off else module.T)
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


HOOKED = """
import sys, threading, time
from observer_tools import built, observe, program

ext, seen = built(), []
module = program("def f(x): return x + x")
sys.addaudithook(lambda event, _: time.sleep(0.002) if event.startswith("sys.monitoring") else None)


def run_some():
    for _ in range(10):
        seen.append(observe(ext, module.f, module.T).unsound)


threads = [threading.Thread(target=run_some) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert seen == [""] * 40, seen
"""


def test_threads_take_turns_where_an_audit_hook_lets_others_run():
    """Setting the tool up and taking it down calls audit hooks; a thread that began meanwhile was not observed."""
    subprocess.run([sys.executable, "-c", HOOKED], cwd=HELPERS, check=True)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
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
            assert ext.tracer_active()  # as long as the tool has its id
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

    if sys.version_info < (3, 14):  # which saves how deep the stack is

        def test_stack_depths_of_the_standard_library(self, ext):
            unknown = checked = 0
            for module in (argparse, asyncio.tasks, dataclasses, inspect, typing, dis, types, threading):
                source = Path(module.__file__)
                for code in all_code(compile(source.read_text(), source.name, "exec")):
                    depths = ext.stack_depths(code)
                    assert max(depths) <= code.co_stacksize
                    starts = [i.offset // 2 for i in dis.get_instructions(code)]
                    first = next(
                        (i.offset // 2 for i in dis.get_instructions(code) if i.opname == "RESUME"), len(depths)
                    )
                    unknown += sum(depths[i] < 0 for i in starts if i >= first)
                    checked += len(starts)
            assert checked > 20_000 and unknown == 0

    @pytest.mark.parametrize("line", ["def g[T](y: T) -> T: return y", "type A = int"])
    def test_type_parameters_are_unsound(self, ext, line):
        module = program(f"def f(x):\n  {line}\n  return x")
        assert observe(ext, module.f, module.T).unsound == "instruction CALL_INTRINSIC_1 at model.py:2"
