"""Item 1: objects that a function reads: attributes of instances, classes and modules, and hooks."""

from __future__ import annotations

import dataclasses
import types

import torch

from script_tools import World, script


class Plain:
    """An object with the attributes it is made with."""

    def __init__(self, **values):
        self.__dict__.update(values)


@script(1)
def instance_attribute(w: World) -> None:
    cfg = Plain(scale=2.0, other=1)

    def f(x):
        return x * cfg.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    cfg.other = 5
    w.change("another attribute")
    w.call("hit", f, x)
    cfg.scale = 3.0
    w.change("the attribute")
    w.call("new", f, x)
    cfg.scale = 2.0
    w.change("and back")
    w.call("hit", f, x)


@script(1)
def simple_namespace(w: World) -> None:
    cfg = types.SimpleNamespace(scale=2.0)

    def f(x):
        return x * cfg.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    cfg.scale = 3.0
    w.change("attribute")
    w.learn(f, x)
    cfg.other = 1
    w.change("another attribute")
    w.call("hit", f, x)
    cfg.scale = 2.0
    w.change("and back")
    w.call("hit", f, x)
    del cfg.scale
    w.change("no such attribute: eager's own error")
    w.call("raised", f, x)


@script(1)
def class_attribute_shadowed(w: World) -> None:
    class Config:
        scale = 2.0

    cfg = Config()

    def f(x):
        return x * cfg.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    Config.scale = 3.0
    w.change("class attribute")
    w.call("new", f, x)
    cfg.scale = 4.0
    w.change("instance attribute over it")
    w.learn(f, x)
    del cfg.scale
    w.change("instance attribute deleted")
    w.call("hit", f, x)


@script(1)
def property_read(w: World) -> None:
    class Config:
        def __init__(self):
            self.base = 2.0

        @property
        def scale(self):
            return self.base + 1

    cfg = Config()

    def f(x):
        return x * cfg.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    cfg.base = 5.0
    w.change("what the property reads")
    w.learn(f, x)
    Config.scale = property(lambda self: 100.0)
    w.change("another property")
    w.learn(f, x)


@script(1)
def slots_read(w: World) -> None:
    class Config:
        __slots__ = ("scale",)

    cfg = Config()
    cfg.scale = 2.0

    def f(x):
        return x * cfg.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    cfg.scale = 3.0
    w.change("slot")
    w.call("new", f, x)
    cfg.scale = 2.0
    w.change("slot back")
    w.call("hit", f, x)


@script(1)
def getattr_hook(w: World) -> None:
    class Config:
        def __init__(self):
            self.table = {"scale": 2.0}

        def __getattr__(self, name):
            return self.table[name]

    cfg = Config()

    def f(x):
        return x * cfg.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    cfg.table["scale"] = 3.0
    w.change("what __getattr__ reads")
    w.learn(f, x)
    cfg.scale = 9.0
    w.change("an attribute before __getattr__")
    w.learn(f, x)


@script(1)
def getattr_with_default(w: World) -> None:
    cfg = Plain()

    def f(x):
        return x * getattr(cfg, "scale", 2.0)

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    cfg.other = 1
    w.change("another attribute")
    w.call("hit", f, x)
    cfg.scale = 3.0
    w.change("the attribute")
    w.learn(f, x)


@script(1)
def hasattr_read(w: World) -> None:
    cfg = Plain()

    def f(x):
        return x + 1 if hasattr(cfg, "up") else x - 1

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    cfg.up = True
    w.change("attribute there")
    w.call("new", f, x)
    cfg.up = None
    w.change("another value")
    w.call("new", f, x)
    del cfg.up
    w.change("attribute gone")
    w.call("hit", f, x)


@script(1)
def isinstance_after_class_change(w: World) -> None:
    class A:
        pass

    class B(A):
        pass

    class C:
        pass

    obj = B()
    assert not hasattr(obj, "nothing") and not hasattr(C(), "nothing")  # gives the classes their version tags

    def f(x):
        return x + 1 if isinstance(obj, A) else x - 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    obj.__class__ = C
    w.change("class of the object")
    w.call("new", f, x)
    obj.__class__ = B
    w.change("class back")
    w.call("hit", f, x)


@script(1)
def method_monkeypatched(w: World) -> None:
    class Scaler:
        def run(self, x):
            return x * 2

    s = Scaler()

    def f(x):
        return s.run(x)

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    Scaler.run = lambda self, x: x * 3
    w.change("method of the class")
    w.learn(f, x)
    s.run = lambda x: x * 4
    w.change("method of the instance")
    w.learn(f, x)


@script(1)
def base_class_gains_attribute(w: World) -> None:
    class Base:
        scale = 2.0

    class Middle(Base):
        pass

    obj = Middle()

    def f(x):
        return x * obj.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    Middle.scale = 3.0
    w.change("a class nearer in the order")
    w.learn(f, x)


@script(1)
def class_bases_change(w: World) -> None:
    class One:
        scale = 2.0

    class Two:
        scale = 5.0

    class Config(One):
        pass

    cfg = Config()

    def f(x):
        return x * cfg.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    Config.__bases__ = (Two,)
    w.change("__bases__")
    w.learn(f, x)


@script(1)
def dict_of_instance_read(w: World) -> None:
    cfg = Plain(scale=2.0)

    def f(x):
        return x * cfg.__dict__["scale"]

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    cfg.scale = 4.0
    w.change("attribute")
    w.call("new", f, x)
    cfg.__dict__ = {"scale": 6.0}
    w.change("a new __dict__")
    w.learn(f, x)


@script(1)
def dataclass_config(w: World) -> None:
    @dataclasses.dataclass
    class Config:
        scale: float = 2.0
        shifts: list = dataclasses.field(default_factory=lambda: [1.0])

    cfg = Config()

    def f(x, c):
        return x * c.scale + c.shifts[0]

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, cfg)
    cfg.shifts[0] = 4.0
    w.change("list inside an argument")
    w.learn(f, x, cfg)


@script(1)
def custom_len_and_getitem(w: World) -> None:
    class Bag:
        def __init__(self):
            self.items = [1.0, 2.0]

        def __len__(self):
            return len(self.items)

        def __getitem__(self, i):
            return self.items[i]

        def __contains__(self, v):
            return v in self.items

    bag = Bag()

    def f(x):
        return x * len(bag) + bag[1] + (1 if 2.0 in bag else 0)

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    bag.items[1] = 9.0
    w.change("item")
    w.call("new", f, x)
    bag.items.append(2.0)
    w.change("length")
    w.learn(f, x)


@script(1, rtol=1e-6)
def module_attribute_and_training(w: World) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.ReLU()).eval()
    f, x = w.jit(m.forward), torch.randn(2, 4)
    w.watch(m=m)
    w.learn(f, x)
    m[1].p = 0.1
    w.change("p of a dropout that does nothing in eval, but reads it")
    w.call("new", f, x)
    m[2] = torch.nn.Tanh()
    w.change("another layer")
    w.learn(f, x)


@script(1, rtol=1e-6)
def forward_hook_added_and_removed(w: World) -> None:
    m = torch.nn.Linear(4, 4)

    def f(x):
        return m(x)

    f, x = w.jit(f), torch.randn(2, 4)
    w.learn(f, x)
    handle = m.register_forward_hook(lambda mod, args, out: out * 2)
    w.change("forward hook")
    w.learn(f, x)
    handle.remove()
    w.change("hook removed")
    w.call("hit", f, x)
    handle = m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    w.change("forward pre-hook")
    w.learn(f, x)


@script(1, rtol=1e-6)
def hook_on_submodule_and_global_hook(w: World) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def f(x):
        return m(x)

    f, x = w.jit(f), torch.randn(2, 4)
    w.call("new", f, x)
    handle = m[1].register_forward_hook(lambda mod, args, out: out + 3)
    w.change("hook on a submodule")
    w.call("new", f, x)
    handle.remove()
    w.change("removed")
    w.call("hit", f, x)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda mod, args, out: out - 1)
    w.change("hook of every module")
    w.call("new", f, x)
    handle.remove()
    w.change("removed")
    w.call("hit", f, x)


@script(1, rtol=1e-6)
def layer_appended(w: World) -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])

    def f(x):
        for layer in layers:
            x = layer(x)
        return x

    f, x = w.jit(f), torch.randn(2, 4)
    w.learn(f, x)
    layers.append(torch.nn.Linear(4, 4))
    w.change("layer appended")
    w.learn(f, x)
    del layers[2]
    w.change("layer deleted, which makes the layers an OrderedDict")
    w.learn(f, x)


@script(1, rtol=1e-6)
def bias_removed(w: World) -> None:
    m = torch.nn.Linear(4, 4)

    def f(x):
        return m(x)

    f, x = w.jit(f), torch.randn(2, 4)
    w.learn(f, x)
    kept, m.bias = m.bias, None
    w.change("no bias")
    w.call("new", f, x)
    m.bias = kept
    w.change("bias back")
    w.call("hit", f, x)


@script(1, rtol=1e-6)
def forward_replaced_on_instance(w: World) -> None:
    m = torch.nn.Linear(4, 4)

    def f(x):
        return m(x)

    f, x = w.jit(f), torch.randn(2, 4)
    w.call("new", f, x)
    m.forward = lambda x: x * 2
    w.change("forward of the instance")
    w.learn(f, x)
    del m.forward
    w.change("forward of the class again")
    w.call("hit", f, x)


@script(1)
def functional_monkeypatched(w: World) -> None:
    def f(x):
        return torch.nn.functional.silu(x)

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    kept = torch.nn.functional.silu
    try:
        torch.nn.functional.silu = lambda x: x + 1
        w.change("torch.nn.functional.silu is another function")
        w.learn(f, x)
    finally:
        torch.nn.functional.silu = kept
    w.change("and is itself again")
    w.call("hit", f, x)


@script(1)
def print_of_a_constant_and_of_a_tensor(w: World) -> None:
    def f(x):
        print("called")
        return x + 1

    def g(x):
        print(x)
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    x.add_(1)
    w.change("x")
    w.call("hit", f, x)
    g = w.jit(g)
    w.call("print", g, x)
    w.call("print", g, x)


@script(1)
def counter_and_log(w: World) -> None:
    log: list[object] = []
    state = Plain(count=0, last=None)

    def f(x):
        log.append("f")
        state.count += 1
        state.last = x * 2
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(log=log, state=state)
    w.call("new", f, x)
    for _ in range(3):
        w.change("what the call itself wrote")
        w.call("hit", f, x)
