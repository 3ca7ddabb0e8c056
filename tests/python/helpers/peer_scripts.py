"""The scripts under fastjit and under other compilers of torch: do they show what eager shows?

fastjit is held against everything that script_tools compares and against what each script declares to have run. The
others are asked for less: results within their own tolerance, which values are one object or share memory, arguments,
watched state, what was printed, and whether an error was raised. Every script runs in a process with a time limit:

    python tests/python/helpers/peer_scripts.py PEER SCRIPT...        one line of JSON a script
"""

from __future__ import annotations

import copy
import json
import queue
import re
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

import script_tools
from child_lines import lines_of
from fastjit import fastjit
from script_tools import SCRIPTS, Script, World

MARK = "SCRIPT "
# What a script shows that is no promise of the other compilers: versions, sizes of storages, which views are views.
_OURS = re.compile(r" (version|bytes|view|offset|leaf)=\S+")
_TYPE = re.compile(r"(#\d+) \S+$")


class Traced:
    """A function that torch.jit.trace traces with the arguments of its first call."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.__dict__.update(fn=fn, traced=None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.traced is None:
            example = copy.deepcopy((args, kwargs))  # a trace writes to its arguments
            self.__dict__["traced"] = torch.jit.trace(
                self.fn, example[0], example_kwarg_inputs=example[1] or None, check_trace=False
            )
        return self.traced(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fn, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.fn, name, value)


def compiled(backend: str) -> Callable[..., Any]:
    def decorate(fn: Any) -> Any:
        if not isinstance(fn, torch.nn.Module):
            return torch.compile(fn, backend=backend)
        fn.compile(backend=backend)
        return fn

    return decorate


PEERS: dict[str, Callable[..., Any]] = {
    "fastjit": fastjit,
    "torch.compile, backend=eager": compiled("eager"),
    "torch.compile, Inductor": compiled("inductor"),
    "torch.jit.trace": Traced,
}


def shown(text: list[str]) -> list[str]:
    """The lines of a form without what only fastjit promises."""
    lines = [_OURS.sub("", line) for line in text]
    return [line if line.startswith("result") else _TYPE.sub(r"\1", line) for line in lines]


def difference(script: Script, peer: World, eager: World) -> str:
    if len(peer.log) != len(eager.log):
        return f"{len(peer.log)} calls, {len(eager.log)} in eager"
    for number, (p, e) in enumerate(zip(peer.log, eager.log, strict=True), 1):
        if bool(p.error) != bool(e.error):
            return f"call {number} raised {p.error}" if p.error else f"call {number} did not raise {e.error}"
        if p.printed != e.printed:
            return f"call {number} printed {p.printed!r}, eager {e.printed!r}"
        for ours, theirs in zip(shown(p.form.text), shown(e.form.text), strict=False):
            if ours != theirs:
                return f"call {number}: {ours}, in eager {theirs}"
        if len(p.form.text) != len(e.form.text):
            return f"call {number}: more or fewer values than eager"
        for got, want in zip(p.form.contents, e.form.contents, strict=True):
            try:
                tolerance = {"rtol": script.rtol, "atol": script.rtol} if script.rtol else {}
                torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
            except AssertionError as wrong:
                return f"call {number}: " + str(wrong).splitlines()[0]
    return ""


def judge(peer: str, script: Script) -> tuple[str, str]:
    """("passed", ""), ("wrong", what differs) or ("raised", an error that eager does not raise)."""
    if peer == "fastjit":
        try:
            world = script_tools.play(script)
        except AssertionError as wrong:
            return "wrong", str(wrong).splitlines()[0] if str(wrong) else "differs"
        return "passed", "hit after a change" if world.hits_after_change else ""
    worlds = []
    for decorate in (None, PEERS[peer]):
        torch.manual_seed(0)
        worlds.append(World(decorate))
        script.play(worlds[-1])
    found = difference(script, worlds[1], worlds[0])
    raised = re.match(r"call \d+ raised", found)
    return ("raised" if raised else "wrong" if found else "passed"), found


def child(peer: str, names: list[str]) -> None:
    script_tools.load()
    warnings.simplefilter("ignore")
    for name in names:
        print(f"{MARK}{json.dumps([name, 'began', ''])}", flush=True)
        torch._dynamo.reset() if "compile" in peer else None
        try:
            with torch.no_grad():
                outcome = judge(peer, SCRIPTS[name])
        except Exception as error:
            outcome = ("raised", f"{type(error).__name__}: {error}")
        print(f"{MARK}{json.dumps([name, *outcome])}", flush=True)


def run(peer: str, names: list[str], script_s: float = 60.0, total_s: float = 600.0) -> dict[str, list[str]]:
    """Script -> [outcome, why], of those that the time allowed; a script that ends its process or hangs has failed."""
    found: dict[str, list[str]] = {}
    left, until = list(names), time.monotonic() + total_s
    while left and time.monotonic() < until:
        command = [sys.executable, __file__, peer, *left]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        current = left[0]
        why = "its process ended"
        try:
            for line in lines_of(process, script_s):
                if MARK not in line:
                    continue
                current, *said = json.loads(line.partition(MARK)[2])
                if said[0] != "began":
                    found[current] = said
                if time.monotonic() > until:
                    return found
        except queue.Empty:
            why = f"longer than {script_s:g} s"
        finally:
            process.kill()
            process.wait()
        left = [name for name in left if name not in found]
        if current in left:
            found[current] = ["raised", why]
            left.remove(current)
    return found


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2:])
