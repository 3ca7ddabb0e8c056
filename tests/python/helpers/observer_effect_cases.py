"""Effects on objects that existed before the call: what is noted of each, or the state that it leaves behind."""

from __future__ import annotations

from typing import NamedTuple

from observer_cases import BOX, NET
from observer_tools import Module

SETATTR = Module.__setattr__.__code__.co_firstlineno + 2
NONLOCAL = """def mk():
  n, other = 0, None
  def g(x):
    nonlocal n, other
    {}
    return x
  return g
f = mk()"""
SLOTS = "class S:\n  __slots__ = ('a',)\ns = S()\ns.a = 1\ndef f(x):\n  {}\n  return x"
PROPERTY = """class P:
  @property
  def a(self): return self._a
  @a.setter
  def a(self, value): self._a = value
p = P()
def f(x):
  p.a = 4
  return x"""


class Effect(NamedTuple):
    name: str
    source: str  # with f(x)
    effects: list[str]
    state: str = ""  # what is read and written; then the facts fail at once


EFFECTS = [
    Effect("global", "n = 0\ndef f(x):\n  global n\n  n = 1\n  return x", ["global n = 1 (model.py:4)"]),
    Effect("global tensor", "n = 0\ndef f(x):\n  global n\n  n = x\n  return n", ["global n = Tensor (model.py:4)"]),
    Effect("global counter", "n = 0\ndef f(x):\n  global n\n  n += 1\n  return x", ["global n += 1 (model.py:4)"]),
    Effect("spelt out", "n = 0\ndef f(x):\n  global n\n  n = n - 2\n  return x", ["global n += -2 (model.py:4)"]),
    Effect(
        "a local added",
        "n = 0\ndef f(x):\n  global n\n  k = 3\n  n += k\n  return x",
        ["global n += 3 (model.py:5)"],
    ),
    Effect(
        "a counter that is read",
        "n = 0\ndef f(x):\n  global n\n  n += 1\n  return x * n",
        ["global n += 1 (model.py:4)"],
        "global n at model.py:4",
    ),
    Effect(
        "a counter that was read",
        "n = 0\ndef f(x):\n  global n\n  x = x * n\n  n += 1\n  return x",
        ["global n = 1 (model.py:5)"],
        "global n at model.py:4",
    ),
    Effect(
        "a sum that is kept",
        "n = 0\ndef f(x):\n  global n\n  k = n = n + 1\n  return x * k",
        ["global n = 1 (model.py:4)"],
        "global n at model.py:4",
    ),
    Effect(
        "a sum for another place",
        "n, m = 0, 0\ndef f(x):\n  global m\n  m = n + 1\n  return x",
        ["global m = 1 (model.py:4)"],
    ),
    Effect("nonlocal", NONLOCAL.format("other = x"), ["nonlocal other = Tensor (model.py:5)"]),
    Effect("nonlocal counter", NONLOCAL.format("n += 1"), ["nonlocal n += 1 (model.py:5)"]),
    Effect(
        "a nonlocal counter that is read",
        NONLOCAL.format("n += 1; x = x * n"),
        ["nonlocal n += 1 (model.py:5)"],
        "cell n at model.py:5",
    ),
    Effect("attribute", f"{BOX}def f(x):\n  box.v = 1\n  return x", ["box.v = 1 (model.py:6)"]),
    Effect("attribute counter", f"{BOX}def f(x):\n  box.v += 1\n  return x", ["box.v += 1 (model.py:6)"]),
    Effect(
        "counter in a loop",
        f"{BOX}def f(x):\n  for i in range(2): box.v = box.v + 1\n  return x",
        ["box.v += 1 (model.py:6)", "box.v += 1 (model.py:6)"],
    ),
    Effect(
        "the last store of two",
        f"{BOX}def f(x):\n  box.v = 1\n  box.v = x\n  return box.v",
        ["box.v = Tensor (model.py:7)"],
    ),
    Effect(
        "a flag",
        f"{BOX}def f(x):\n  if box.v: box.v = 0\n  return x",
        ["box.v = 0 (model.py:6)"],
        "box.v at model.py:6",
    ),
    Effect("the same value", f"{BOX}def f(x):\n  if box.v: box.v = 2\n  return x", []),
    Effect("by setattr", f"{BOX}def f(x):\n  setattr(box, 'v', 1)\n  return x", ["box.v = 1 (model.py:6)"]),
    Effect("module", f"{NET}def f(x):\n  net.scale = 1\n  return x", [f"net.scale = 1 (observer_tools.py:{SETATTR})"]),
    Effect(
        "counter of a Python module",
        "import types\nm = types.ModuleType('m'); m.n = 0\ndef f(x):\n  m.n += 1\n  return x",
        ["m.n += 1 (model.py:4)"],
    ),
    Effect("slot", SLOTS.format("s.a = x"), ["s.a = Tensor (model.py:6)"]),
    Effect("slot counter", SLOTS.format("s.a += 1"), ["s.a += 1 (model.py:6)"]),
    Effect("property", PROPERTY, ["p._a = 4 (model.py:5)"]),
    Effect("item", "D = {}\ndef f(x):\n  D['k'] = x\n  return D['k']", ["D['k'] = Tensor (model.py:3)"]),
    Effect("item counter", "D = {'k': 1}\ndef f(x):\n  D['k'] += 1\n  return x", ["D['k'] += 1 (model.py:3)"]),
    Effect(
        "item counter spelt out",
        "D = {'k': 1.0}\ndef f(x):\n  D['k'] = D['k'] + 1.5\n  return x",
        ["D['k'] += 1.5 (model.py:3)"],
    ),
    Effect(
        "length before an item",
        "D = {'k': 1}\ndef f(x):\n  n = len(D)\n  D['z'] = 2\n  return x * n",
        ["D['z'] = 2 (model.py:4)"],
        "D at model.py:3",
    ),
    Effect(
        "items of a list",
        "L = [1, 2]\ndef f(x):\n  L[0] = 5\n  L[-1] = x\n  return x",
        ["L[0] = 5 (model.py:3)", "L[1] = Tensor (model.py:4)"],
    ),
    Effect("append", "L = []\ndef f(x):\n  L.append(x)\n  return x", ["L.append(Tensor) (model.py:3)"]),
    Effect(
        "length before an append",
        "L = []\ndef f(x):\n  L.append(len(L))\n  return x",
        ["L.append(0) (model.py:3)"],
        "L at model.py:3",
    ),
    Effect(
        "a list that was walked",
        "L = [1]\ndef f(x):\n  for v in L: x = x * v\n  L[0] = 2\n  return x",
        ["L[0] = 2 (model.py:4)"],
        "L[0] at model.py:3",
    ),
    Effect("print", "def f(x):\n  print('a', 2, sep='')\n  return x", ["print('a', 2, sep='') (model.py:2)"]),
    Effect("print of a tuple", "def f(x):\n  print((1, 'b'))\n  return x", ["print((1, 'b')) (model.py:2)"]),
    Effect(
        "cache that is filled",
        "class C: pass\nc = C(); c.h = None\ndef f(x):\n  if c.h is None: c.h = x + x\n  return c.h",
        ["c.h = datetime.timedelta (model.py:4)"],
        "c.h at model.py:4",
    ),
    Effect(
        "hidden state",
        "class C: pass\nc = C(); c.h = T\ndef f(x):\n  c.h = c.h + x\n  return c.h",
        ["c.h = datetime.timedelta (model.py:4)"],
        "c.h at model.py:4",
    ),
    Effect(
        "a container that was read",
        "D = {'k': [1]}\ndef f(x):\n  y = x * D['k'][0]\n  D['k'] = [2]\n  return y",
        ["D['k'] = list (model.py:4)"],
        "D['k'] at model.py:3",
    ),
]
