"""Item 1: reads that are easily missed: descriptors, metaclasses, wrappers, containers, arguments."""

from __future__ import annotations

import collections
import contextvars
import functools
import types

import torch

from script_tools import World, script


@script(1)
def descriptor_of_a_class(w: World) -> None:
    class Scale:
        def __init__(self):
            self.k = 2.0

        def __get__(self, obj, cls):
            return self.k

    scale = Scale()
    cfg = type("Config", (), {"scale": scale})()
    f, x = w.jit(lambda x: x * cfg.scale), torch.arange(4.0)
    w.learn(f, x)
    scale.k = 3.0
    w.change("what the descriptor reads")
    w.learn(f, x)


@script(1)
def metaclass_attribute(w: World) -> None:
    class Meta(type):
        scale = 2.0

    class Config(metaclass=Meta):
        pass

    f, x = w.jit(lambda x: x * Config.scale), torch.arange(4.0)
    w.learn(f, x)
    Meta.scale = 3.0
    w.change("attribute of the metaclass")
    w.learn(f, x)
    Config.scale = 4.0
    w.change("attribute of the class")
    w.learn(f, x)


@script(1)
def wrapped_helper(w: World) -> None:
    def twice(fn):
        @functools.wraps(fn)
        def run(x):
            return fn(fn(x))

        return run

    k = [1.0]

    @twice
    def h(x):
        return x * 2 + k[0]

    f, x = w.jit(lambda x: h(x)), torch.arange(4.0)
    w.learn(f, x)
    k[0] = 4.0
    w.change("what the wrapped function reads")
    w.learn(f, x)


@script(1)
def ordered_dict(w: World) -> None:
    d = collections.OrderedDict(a=1.0, b=2.0)

    def f(x):
        for v in d.values():
            x = x * v + 1
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    d.move_to_end("a")
    w.change("move_to_end, which changes no version tag")
    w.learn(f, x)
    d.move_to_end("b")
    w.change("the first order again")
    w.call("hit", f, x)


@script(1)
def string_formatting_of_state(w: World) -> None:
    g = w.source("name = 'up'\ndef f(x): return x + 1 if f'go-{name}' == 'go-up' else x - 1\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["name"] = "down"
    w.change("name")
    w.learn(f, x)


@script(1)
def context_variable(w: World) -> None:
    var = contextvars.ContextVar("scale", default=2.0)
    f, x = w.jit(lambda x: x * var.get()), torch.arange(4.0)
    w.learn(f, x)
    token = var.set(3.0)
    w.change("context variable")
    w.learn(f, x)
    var.reset(token)
    w.change("reset")
    w.call("hit", f, x)


@script(1)
def module_object_attribute(w: World) -> None:
    mod = types.ModuleType("settings")
    mod.scale = 2.0
    f, x = w.jit(lambda x: x * mod.scale), torch.arange(4.0)
    w.call("new", f, x)
    mod.other = 1
    w.change("another name")
    w.call("hit", f, x)
    mod.scale = 3.0
    w.change("the name")
    w.learn(f, x)


@script(1)
def tensor_attribute_read(w: World) -> None:
    def f(x):
        return x * x.tag

    f, x = w.jit(f), torch.arange(4.0)
    for x.tag in (2.0, 3.0):
        w.change("an attribute on the tensor")
        w.call("read of Tensor.tag", f, x)


@script(1)
def shape_decides(w: World) -> None:
    def f(x):
        return x * 2 if x.shape[0] > 3 else x - 1

    f = w.jit(f)
    w.learn(f, torch.arange(4.0))
    w.change("size")
    w.learn(f, torch.arange(3.0))
    w.call("hit", f, torch.arange(4.0))


@script(1)
def stride_and_contiguity_decide(w: World) -> None:
    def f(x):
        return x * 2 if x.is_contiguous() else x.t() - 1

    f, x = w.jit(f), torch.arange(9.0).view(3, 3)
    w.call("new", f, x)
    w.change("transposed")
    w.learn(f, x.t())
    w.call("hit", f, x)


@script(1)
def dtype_decides(w: World) -> None:
    def f(x):
        return x * 2 if x.dtype.is_floating_point else x - 1

    f, x = w.jit(f), torch.arange(4)
    w.call("new", f, x)
    w.change("dtype")
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8):
        w.learn(f, x.to(dtype))
    w.call("hit", f, x)


@script(1)
def number_argument_that_decides(w: World) -> None:
    def f(x, n):
        return x * n if n > 2 else x - n

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, 3)
    w.change("n")
    w.learn(f, x, 1)
    w.call("hit", f, x, 3)


@script(1)
def number_argument_as_a_scalar(w: World) -> None:
    f, x = w.jit(lambda x, a: x * a), torch.arange(4.0)
    w.call("new", f, x, 2.0)
    for a in (3.0, -0.0, float("inf"), float("nan")):
        w.change(f"a = {a}")
        w.call("hit", f, x, a)
    w.call("hit", f, x, 1e-40)
    w.call("new", f, x, 2)
    w.call("new", f, x, True)
    w.call("new", f, x, False)


@script(1)
def dict_argument_of_tensors(w: World) -> None:
    def f(batch):
        return {k: v * 2 for k, v in batch.items()}

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, {"a": x, "b": x + 1})
    w.change("order of the keys")
    w.call("new", f, {"b": x, "a": x + 1})
    w.change("another key")
    w.call("new", f, {"a": x, "c": x + 1})
    w.call("hit", f, {"a": x, "b": x})


@script(1)
def value_of_a_tensor_decides(w: World) -> None:
    def f(x):
        return x * 2 if x.sum() > 3 else x - 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    x.zero_()
    w.change("values")
    w.learn(f, x)
    w.call("hit", f, x + 1)


@script(1)
def environment_variable(w: World) -> None:
    g = w.source("import os\ndef f(x): return x * float(os.environ.get('FJ_SCRIPT', '2'))\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["os"].environ["FJ_SCRIPT"] = "5"
    try:
        w.change("environment")
        w.learn(f, x)
    finally:
        del g["os"].environ["FJ_SCRIPT"]


@script(1)
def equality_of_user_objects(w: World) -> None:
    class Mode:
        def __init__(self, name):
            self.name = name

        def __eq__(self, other):
            return self.name == other.name

    a, b = Mode("x"), Mode("x")
    f, x = w.jit(lambda x: x + 1 if a == b else x - 1), torch.arange(4.0)
    w.learn(f, x)
    b.name = "y"
    w.change("name of b")
    w.learn(f, x)
    a.name = "y"
    w.change("name of a: equal again, by another name")
    w.learn(f, x)
    Mode.__eq__ = lambda self, other: self is other
    w.change("the comparison")
    w.learn(f, x)


@script(1)
def equality_of_dates(w: World) -> None:
    import datetime

    a, b = datetime.date(2020, 1, 1), datetime.date(2020, 1, 1)
    f, x = w.jit(lambda x: x + 1 if a == b else x - 1), torch.arange(4.0)
    w.call("comparison of datetime.date", f, x)
    b = datetime.date(2021, 1, 1)
    w.change("b")
    w.call("comparison of datetime.date", f, x)


@script(1)
def truth_of_user_object(w: World) -> None:
    class Flag:
        def __init__(self):
            self.on = True

        def __bool__(self):
            return self.on

    flag = Flag()
    f, x = w.jit(lambda x: x + 1 if flag else x - 1), torch.arange(4.0)
    w.learn(f, x)
    flag.on = False
    w.change("flag")
    w.call("new", f, x)
    flag.on = True
    w.change("flag back")
    w.call("hit", f, x)


@script(1)
def static_and_class_methods(w: World) -> None:
    class Tools:
        k = 2.0

        @staticmethod
        def one(x):
            return x + 1

        @classmethod
        def two(cls, x):
            return x * cls.k

    f, x = w.jit(lambda x: Tools.two(Tools.one(x))), torch.arange(4.0)
    w.learn(f, x)
    Tools.k = 3.0
    w.change("class attribute")
    w.call("new", f, x)
    Tools.one = staticmethod(lambda x: x - 1)
    w.change("static method")
    w.learn(f, x)


@script(1)
def comprehension_zip_enumerate(w: World) -> None:
    a, b = [1.0, 2.0], [3.0, 4.0]

    def f(x):
        parts = [x * p + q * i for i, (p, q) in enumerate(zip(a, b, strict=True))]
        return sum(parts) + max(a) + min(b)

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    a[0] = 9.0
    w.change("a[0]")
    w.call("new", f, x)
    a[0] = 1.0
    w.change("a[0] back")
    w.call("hit", f, x)


@script(1)
def metadata_of_a_tensor_that_no_operator_reads(w: World) -> None:
    m = torch.nn.Linear(2, 2)

    def f(x):
        return x * 2 if m.weight.requires_grad else x.to(m.bias.dtype) - m.weight.shape[0]

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    m.weight.requires_grad_(False)
    w.change("requires_grad")
    w.learn(f, x)
    m.bias.data = m.bias.data.double()
    w.change("type")
    w.learn(f, x)
    m.weight.data = torch.zeros(3, 2)
    w.change("size")
    w.learn(f, x)
    m.weight.data = torch.zeros(2, 2)
    w.change("size back")
    w.call("hit", f, x)
