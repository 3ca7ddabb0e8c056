"""2,000 functions compiled and dropped leave nothing behind (`make soak`: 100,000)."""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch

from fastjit import fastjit

SOAK = Path(__file__).parents[2] / "soak" / "soak.py"


def test_2000_functions_leave_nothing_behind(tmp_path):
    env = {**os.environ, "FASTJIT_CACHE_DIR": str(tmp_path), "FASTJIT_CACHE_MAX_ENTRIES": "64"}
    command = [sys.executable, str(SOAK), "--warmup", "800", "--cycles", "1200"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["over"] == []


class _Owner:
    def __init__(self):
        self.v = 2.0


def _class_in_result():
    class Out:
        def __init__(self, a):
            self.a = a

    Out.f = fastjit(lambda x: Out(x + 1))
    return Out, (Out.f,)


def _tuple_in_closure():
    owner = _Owner()
    pair = (owner, 1)
    owner.f = fastjit(lambda x: x * pair[0].v)
    return owner, (owner.f,)


def _argument_without_weak_references():
    owner = types.SimpleNamespace()
    owner.f = fastjit(lambda x, s: x * 2)
    return owner.f, (owner.f, owner)


def _partial():
    owner = _Owner()
    part = functools.partial(lambda owner, x: x * owner.v, owner)
    owner.f = fastjit(lambda x: part(x))
    return owner, (owner.f,)


@pytest.mark.parametrize("make", [_class_in_result, _tuple_in_closure, _argument_without_weak_references, _partial])
def test_cycles_through_what_a_program_holds_are_collected(make):
    kept, (f, *more) = make()
    x = torch.ones(3)
    f(x, *more)
    f(x, *more)
    assert f.stats().hits == 1
    alive = weakref.ref(kept)
    del kept, f, more
    gc.collect()
    assert alive() is None
