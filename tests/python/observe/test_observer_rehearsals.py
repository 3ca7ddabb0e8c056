"""The read observer without torch: code that will run again is stopped before it does what that run would find."""

from __future__ import annotations

import pytest

from observer_tools import built, program, supported

pytestmark = supported

SOURCE = """
import math, sys, warnings
COUNT, ITEMS, BOX = 0, [], {{"n": 0}}
class Thing: n = 0
thing = Thing()
def apply(ctx):
    {body}
def entry(run, function):
    return run(function)
"""
HARMLESS = {
    "computing": "return math.sin(2.0) + len([1, 2])",
    "containers of its own": "out = [None]; out[0] = 1; out.append(2); return {'a': out}",
    "objects of its own": "made = Thing(); made.n = 3; return made.n",
    "reads": "return (COUNT, BOX['n'], thing.n)",
}
STOPPED = {
    "global": ("global COUNT; COUNT += 1", "store to global COUNT"),
    "list": ("ITEMS.append(1)", "ITEMS"),
    "dict": ("BOX['n'] = 1", "store to BOX['n']"),
    "attribute": ("thing.n = 1", "store to Thing.n"),
    "its own context": ("ctx.n = 1", "store to function.n"),
    "print": ("print('again')", "print()"),
    "swallowed": ("\n    try: BOX['n'] = 1\n    except BaseException: pass\n    BOX['n'] = 2", "store to BOX['n']"),
}


@pytest.fixture(scope="session")
def ext():
    return built()


@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_what_leaves_nothing_runs(ext, body):
    module = program(SOURCE.format(body=body))
    assert ext.rehearse(module.entry, module.apply) == (None, "")


@pytest.mark.parametrize(("body", "reason"), STOPPED.values(), ids=STOPPED)
def test_what_leaves_something_is_stopped_before(ext, body, reason, capsys):
    module = program(SOURCE.format(body=body))
    error, unsound = ext.rehearse(module.entry, module.apply)
    assert isinstance(error, RuntimeError) and "stopped by fastjit" in str(error)
    assert reason in unsound, unsound
    assert (module.COUNT, module.ITEMS, module.BOX, module.thing.n) == (0, [], {"n": 0}, 0)
    assert not hasattr(module.apply, "n") and capsys.readouterr().out == ""
