"""Item 1: functions as objects, partials, enums, signatures, and what code sets on one tensor."""

from __future__ import annotations

import torch

from script_tools import World, script


@script(1)
def attribute_set_on_an_argument(w: World) -> None:
    g = w.source("def f(x): return x + 1 if hasattr(x, 'note') else x - 1\n")
    f, x, y = w.jit(g["f"]), torch.arange(4.0), torch.ones(4)
    w.learn(f, x)
    y.note = 2
    w.change("an attribute of another argument")
    w.call("read of Tensor.note", f, y)
    w.call("hit", f, x)
    x.note = 1
    w.change("an attribute of the argument")
    w.call("read of Tensor.note", f, x)
    del y.note
    w.change("no attribute any more")
    w.call("hit", f, y)


@script(1)
def attribute_set_on_a_parameter(w: World) -> None:
    g = w.source("def f(x): return x + W if getattr(W, 'plus', True) else x - W\n")
    g["W"] = torch.ones(4)
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["W"].plus = False
    w.change("an attribute of the global tensor")
    w.learn(f, x)
    g["W"].note = 1
    w.change("another attribute of it")
    w.call("hit", f, x)
    del g["W"].plus
    w.change("no attribute any more")
    w.call("hit", f, x)


@script(1)
def chunk_function_by_signature(w: World) -> None:
    g = w.source(
        "import inspect\n"
        "class Layer(torch.nn.Module):\n"
        "  def chunk(self, x): return x * 2\n"
        "  def forward(self, x):\n"
        "    return self.chunk(x) if len(inspect.signature(self.chunk).parameters) == 1 else self.chunk(x, x)\n"
        "def two(self, x, y): return x * y\n"
        "layer = Layer()\n"
        "def f(x): return layer(x)\n"
    )
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["other"] = 1
    w.change("a global that is not read")
    w.call("hit", f, x)
    g["Layer"].chunk = g["two"]
    w.change("a method with another signature")
    w.learn(f, x)


@script(1)
def partial_with_other_keywords(w: World) -> None:
    g = w.source("import functools\ndef g(x, k, b): return x * k + b\np = functools.partial(g, b=1.0)\n")
    exec("def f(x): return functools.partial(p, k=3)(x)", g)
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["p"].keywords["b"] = 2.0
    w.change("a keyword of the partial")
    w.learn(f, x)
    g["p"].keywords["b"] = 1.0
    w.change("the keyword back")
    w.call("hit", f, x)


@script(1)
def enum_member_in_a_global(w: World) -> None:
    g = w.source(
        "import enum\nclass Mode(enum.IntEnum):\n  OFF = 0\n  ON = 1\nmode = Mode.OFF\n"
        "def f(x): return x * 2 if mode in (Mode.ON,) else x + 2\n"
    )
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["mode"] = g["Mode"].ON
    w.change("the member")
    w.learn(f, x)
    g["mode"] = g["Mode"].OFF
    w.change("the member back")
    w.call("hit", f, x)


@script(1)
def attribute_that_appears(w: World) -> None:
    g = w.source(
        "class Box: pass\nbox = Box()\ndef f(x):\n  try: return x * box.k\n  except AttributeError: return x + 1\n"
    )
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["box"].k = 3.0
    w.change("the attribute is there")
    w.learn(f, x)
    del g["box"].k
    w.change("it is gone")
    w.call("hit", f, x)


@script(1)
def name_and_notes_of_a_function(w: World) -> None:
    g = w.source(
        "def g(x): return x\ng.scale = 2.0\ndef f(x): return x * g.scale if g.__name__ == 'g' else x * -g.scale\n"
    )
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["g"].other = 1
    w.change("another attribute of the function")
    w.call("hit", f, x)
    g["g"].scale = 3.0
    w.change("the attribute")
    w.learn(f, x)
    g["g"].__name__ = "h"
    w.change("the name")
    w.learn(f, x)


@script(1)
def cache_key_by_id(w: World) -> None:
    g = w.source("class Key: pass\nkey = Key()\ntable = {id(key): 2.0}\ndef f(x): return x * table.get(id(key), 5.0)\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["table"][id(g["key"])] = 3.0
    w.change("what is kept for the object")
    w.learn(f, x)
    g["old"], g["key"] = g["key"], g["Key"]()
    w.change("another object")
    w.learn(f, x)


@script(1)
def cache_grown_from_nothing(w: World) -> None:
    g = w.source(
        "class Layer: pass\n"
        "class Cache:\n"
        "  def __init__(self): self.kind, self.layers = Layer, [Layer(), Layer()]\n"
        "  def __iter__(self):\n"
        "    for layer in self.layers: yield layer\n"
        "K = 2.0\n"
        "def f(x):\n"
        "  cache = Cache()\n"
        "  for layer in cache:\n"
        "    layer.keys = torch.cat([torch.tensor([], dtype=x.dtype), x * K], dim=-2)\n"
        "  return cache\n"
    )
    f, x = w.jit(g["f"]), torch.arange(8.0).view(2, 4)
    w.learn(f, x)
    g["K"] = 3.0
    w.change("a global")
    w.learn(f, x)
    g["K"] = 2.0
    w.change("the global back")
    w.call("hit", f, x)
