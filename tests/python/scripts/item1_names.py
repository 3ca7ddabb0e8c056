"""Item 1: names and containers that a function reads: globals, builtins, cells, defaults, subscripts, iteration."""

from __future__ import annotations

import torch

from script_tools import World, script


@script(1)
def global_number_changes(w: World) -> None:
    g = w.source("K = 2.0\ndef f(x): return x * K + 1\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["K"] = 5.0
    w.change("global K")
    w.learn(f, x)
    g["K"] = 2.0
    w.change("global K back")
    w.call("hit", f, x)


@script(1)
def unread_global_changes(w: World) -> None:
    g = w.source("K = 2.0\nother = 0\ndef f(x): return x * K\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.call("new", f, x)
    for g["other"] in range(4):
        w.change("a global that is not read")
        w.call("hit", f, x)


@script(1)
def global_deleted(w: World) -> None:
    g = w.source("K = 2.0\ndef f(x): return x * K\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    del g["K"]
    w.change("global deleted")
    w.call("raised", f, x)
    g["K"] = 2.0
    w.change("global back")
    w.call("hit", f, x)


@script(1)
def builtin_shadowed_by_global(w: World) -> None:
    g = w.source("def f(x): return x * abs(-3)\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["abs"] = lambda v: 10
    w.change("a global abs")
    w.learn(f, x)
    del g["abs"]
    w.change("abs is the builtin again")
    w.call("hit", f, x)


@script(1)
def helper_function_redefined(w: World) -> None:
    g = w.source("def h(x): return x + 1\ndef f(x): return h(x) * 2\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    exec("def h(x): return x - 1", g)
    w.change("h defined anew")
    w.learn(f, x)


@script(1)
def helper_code_swapped(w: World) -> None:
    g = w.source("def h(x): return x + 1\ndef f(x): return h(x) * 2\ndef h2(x): return x - 1\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["h"].__code__ = g["h2"].__code__
    w.change("h.__code__")
    w.learn(f, x)


@script(1)
def own_code_swapped(w: World) -> None:
    g = w.source("def f(x): return x + 1\ndef f2(x): return x - 1\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["f"].__code__ = g["f2"].__code__
    w.change("f.__code__")
    w.learn(f, x)


@script(1)
def cell_rebound(w: World) -> None:
    def make():
        k = 2.0

        def f(x):
            return x * k

        def put(value):
            nonlocal k
            k = value

        return f, put

    f, put = make()
    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    put(3.0)
    w.change("cell k")
    w.learn(f, x)
    put(torch.tensor(4.0))
    w.change("cell k is a tensor")
    w.learn(f, x)


@script(1)
def default_of_own_function_changes(w: World) -> None:
    def f(x, k=2.0, *, j=1.0):
        return x * k + j

    fast, x = w.jit(f), torch.arange(4.0)
    w.learn(fast, x)
    f.__defaults__ = (7.0,)
    w.change("__defaults__")
    w.learn(fast, x)
    f.__kwdefaults__ = {"j": 9.0}
    w.change("__kwdefaults__")
    w.learn(fast, x)


@script(1)
def default_of_helper_changes(w: World) -> None:
    g = w.source("def h(x, k=2.0): return x * k\ndef f(x): return h(x)\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["h"].__defaults__ = (3.0,)
    w.change("h.__defaults__")
    w.learn(f, x)


@script(1)
def nested_subscript(w: World) -> None:
    config = {"k": [1.0, 2.0], "other": 1}

    def f(x):
        return x * config["k"][1]

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    config["other"] = 2
    config["fresh"] = 3
    w.change("other keys")
    w.call("hit", f, x)
    config["k"][0] = 50.0
    w.change("other index")
    w.call("hit", f, x)
    config["k"][1] = 5.0
    w.change("config['k'][1]")
    w.learn(f, x)
    config["k"] = (0.0, 2.0)
    w.change("a tuple instead of a list")
    w.learn(f, x)


@script(1)
def list_iteration(w: World) -> None:
    scales = [1.0, 2.0]

    def f(x):
        for s in scales:
            x = x * s + 1
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(scales=scales)
    w.learn(f, x)
    scales.append(3.0)
    w.change("append")
    w.call("new", f, x)
    scales.pop()
    w.change("pop")
    w.call("hit", f, x)
    scales.clear()
    w.change("clear")
    w.learn(f, x)


@script(1)
def dict_iteration_order(w: World) -> None:
    table = {"a": 2.0, "b": 3.0}

    def f(x):
        for name, value in table.items():
            x = x * value + len(name)
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    table["a"] = table.pop("a")
    w.change("order of keys")
    w.call("new", f, x)
    table["b"] = table.pop("b")
    w.change("order back")
    w.call("hit", f, x)


@script(1)
def len_of_list(w: World) -> None:
    items = [object(), object()]

    def f(x):
        return x * len(items)

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    items[0] = None
    w.change("an item, not the length")
    w.call("hit", f, x)
    items.append(1)
    w.change("length")
    w.learn(f, x)


@script(1)
def membership(w: World) -> None:
    names = {"relu"}

    def f(x):
        return x.relu() if "relu" in names else x.neg()

    f, x = w.jit(f), torch.arange(-2.0, 2.0)
    w.learn(f, x)
    names.discard("relu")
    w.change("set without the name")
    w.learn(f, x)
    names.add("gelu")
    w.change("another name")
    w.call("hit", f, x)
    names.add("relu")
    w.change("set with the name")
    w.call("hit", f, x)


@script(1)
def membership_in_a_set_of_its_own_class(w: World) -> None:
    class Names(set):
        pass

    names = Names({"relu"})

    def f(x):
        return x.relu() if "relu" in names else x.neg()

    f, x = w.jit(f), torch.arange(-2.0, 2.0)
    w.call("__contains__ of Names", f, x)
    names.discard("relu")
    w.change("set without the name")
    w.call("__contains__ of Names", f, x)


@script(1)
def set_that_is_walked(w: World) -> None:
    scales = {2.0}

    def f(x):
        for scale in scales:
            x = x * scale
        return x - len(scales) if scales else x

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    scales.add(3.0)
    w.change("a member more")
    w.learn(f, x)
    scales.clear()
    w.change("no member")
    w.learn(f, x)
    scales.add(2.0)
    w.change("as it was")
    w.call("hit", f, x)


@script(1)
def set_that_the_call_adds_to(w: World) -> None:
    seen = {"relu"}

    def f(x, name):
        seen.add(name)
        return x.relu() * len(seen)

    f, x = w.jit(f), torch.arange(-2.0, 2.0)
    w.watch(seen=seen)
    w.learn(f, x, "relu")
    w.change("a name that is not there: the call is interrupted, and its own member is seen")
    w.call("interrupted", f, x, "gelu")
    w.learn(f, x, "gelu")
    w.call("new", f, x, "relu")
    w.call("hit", f, x, "gelu")


@script(1)
def truth_of_container(w: World) -> None:
    items: list[int] = []

    def f(x):
        return x + 1 if items else x - 1

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    items.append(1)
    w.change("not empty")
    w.call("new", f, x)
    items.append(2)
    w.change("still not empty")
    w.call("hit", f, x)


@script(1)
def comparison_of_lists(w: World) -> None:
    a, b = [1, 2], [1, 2]

    def f(x):
        return x + 1 if a == b else x - 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    b[1] = 3
    w.change("b differs")
    w.call("new", f, x)
    a[1] = 3
    w.change("equal again")
    w.call(("new",), f, x)
    w.call("hit", f, x)


@script(1)
def dict_get_with_default(w: World) -> None:
    config: dict[str, float] = {}

    def f(x):
        return x * config.get("scale", 2.0)

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    config["other"] = 1.0
    w.change("another key")
    w.call("hit", f, x)
    config["scale"] = 7.0
    w.change("the key")
    w.learn(f, x)


@script(1)
def zero_signs_and_types_of_numbers(w: World) -> None:
    g = w.source("K = 0.0\ndef f(x): return x * K\n")
    f, x = w.jit(g["f"]), torch.arange(1.0, 4.0)
    w.call("new", f, x)
    g["K"] = -0.0
    w.change("0.0 to -0.0")
    w.learn(f, x)
    for value, expected in ((0, "new"), (False, "new"), (1, "hit"), (True, "new"), (1.0, "new"), (-0.0, "hit")):
        g["K"] = value
        w.change(f"K = {value!r}")
        w.call(expected, f, torch.arange(1, 4))
        w.call("hit", f, torch.arange(1, 4))


@script(1)
def nan_global(w: World) -> None:
    g = w.source("K = float('nan')\ndef f(x): return x * K\n")
    f, x = w.jit(g["f"]), torch.arange(1.0, 4.0)
    w.learn(f, x)
    g["K"] = 1.0
    w.change("no NaN")
    w.learn(f, x)


@script(1)
def star_arguments(w: World) -> None:
    def f(*xs, scale=1.0, **more):
        out = xs[0] * scale
        for x in xs[1:]:
            out = out + x
        return out - more.get("bias", 0.0)

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    w.call("new", f, x, x)
    w.change("other arguments")
    w.call("hit", f, x)
    w.call("new", f, x, scale=2.0)
    w.call("new", f, x, scale=2.0, bias=x)
    w.call("new", f, x, bias=x, scale=2.0)  # `more` and its order can be seen
    w.call("hit", f, x, scale=2.0, bias=x)


@script(1)
def global_tensor_replaced(w: World) -> None:
    g = w.source("W = torch.arange(4.0)\ndef f(x): return x * W\n")
    f, x = w.jit(g["f"]), torch.ones(4)
    w.learn(f, x)
    g["W"].add_(10)
    w.change("written in place")
    w.call("hit", f, x)
    g["W"] = torch.full((4,), 3.0)
    w.change("another tensor of the same form")
    w.learn(f, x)
    g["W"] = torch.full((1,), 3.0)
    w.change("another shape")
    w.learn(f, x)


@script(1)
def module_attribute_of_math(w: World) -> None:
    g = w.source("import math\ndef f(x): return x * math.sqrt(K)\nK = 4.0\n")
    f, x = w.jit(g["f"]), torch.ones(4)
    w.learn(f, x)
    g["K"] = 9.0
    w.change("K under sqrt")
    w.learn(f, x)


@script(1)
def import_inside(w: World) -> None:
    g = w.source("def f(x):\n    import math\n    return x * math.pi\n")
    f, x = w.jit(g["f"]), torch.ones(4)
    w.learn(f, x)


@script(1)
def enum_and_string_keys(w: World) -> None:
    g = w.source(
        "import enum\nclass Kind(enum.Enum):\n    UP = 1\n    DOWN = 2\nkind = Kind.UP\n"
        "def f(x): return x + 1 if kind is Kind.UP else x - 1\n"
    )
    f, x = w.jit(g["f"]), torch.ones(4)
    w.learn(f, x)
    g["kind"] = g["Kind"].DOWN
    w.change("kind")
    w.call("new", f, x)
    g["kind"] = g["Kind"].UP
    w.change("kind back")
    w.call("hit", f, x)
