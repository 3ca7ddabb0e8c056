"""Item 1: effects on Python objects that existed before the call are made again by a hit, in order."""

from __future__ import annotations

import dataclasses
import threading
import types

import torch

from script_tools import World, script


class Plain:
    """An object with the attributes it is made with."""

    def __init__(self, **values):
        self.__dict__.update(values)


@script(1)
def effect_global_counter(w: World) -> None:
    m = w.source("n = 0\nscale = 2.0\ndef f(x):\n    global n\n    n += 1\n    return x * scale\n")
    f, x = w.jit(m["f"]), torch.arange(4.0)
    for expected in ("new", "hit", "hit"):
        w.call(expected, f, x)
        w.watch(n=m["n"])
    m["n"] = 100
    w.change("counter set from outside")
    w.call("hit", f, x)
    w.watch(n=m["n"])
    m["n"] = 0.5
    w.change("a float now")
    w.call("new", f, x)
    w.watch(n=m["n"])
    m["scale"] = 3.0
    w.change("what the function reads")
    w.call("new", f, x)
    w.call("hit", f, x)
    w.watch(n=m["n"])
    w.call("hit", f, x)


@script(1)
def effect_global_value(w: World) -> None:
    m = w.source("last = None\nk = 2.0\ndef f(x):\n    global last\n    last = x * k\n    return last + 1\n")
    f = w.jit(m["f"])
    for expected, scale in (("new", 1.0), ("hit", 2.0), ("hit", 3.0)):
        w.call(expected, f, torch.arange(4.0) * scale)
        w.watch(last=m["last"])
    m["last"] = "something else"
    w.change("the global that is stored to")
    w.call("hit", f, torch.arange(4.0))
    w.watch(last=m["last"])
    w.call("hit", f, torch.arange(4.0))


@script(1)
def effect_attribute_counter(w: World) -> None:
    state = Plain(calls=0, scale=2.0)

    def f(x):
        state.calls += 1
        return x * state.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x)
    w.call("hit", f, x)
    state.calls = -7
    w.change("counter")
    w.call("hit", f, x)
    state.scale = 3.0
    w.change("scale")
    w.call("new", f, x)
    w.call("hit", f, x)
    state.calls = True
    w.change("a bool is no counter")
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def effect_counter_in_a_loop(w: World) -> None:
    state = Plain(calls=0, total=1.5)

    def f(x, n):
        for _ in range(n):
            state.calls = state.calls + 1
            state.total -= 0.25
            x = x + 1
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x, 3)
    w.call("hit", f, x, 3)
    state.total = 1e300
    w.change("the sum rounds otherwise")
    w.call("hit", f, x, 3)
    w.call("new", f, x, 1)
    w.call("hit", f, x, 1)
    w.call("hit", f, x, 3)


@script(1)
def effect_counter_that_is_used(w: World) -> None:
    state = Plain(step=0)

    def f(x):
        state.step += 1
        return x * state.step

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    for expected in ("new", "new", "hit"):
        w.call(expected, f, x)
    state.step = 0
    w.change("back to the start")
    w.call("hit", f, x)
    w.call("hit", f, x)


@script(1)
def effect_dictionary(w: World) -> None:
    table = {"n": 0, "other": 1}

    def f(x):
        table["n"] += 1
        table["last"] = x * 2
        table[3] = "three"
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(table=table)
    w.call("new", f, x)
    w.call("hit", f, x)
    table["other"] = 2
    w.change("another key")
    w.call("hit", f, x)
    del table["last"]
    w.change("a key that is stored to")
    w.call("hit", f, x)
    table["n"] = 10
    w.change("the counter")
    w.call("hit", f, x)


@script(1)
def effect_list_append(w: World) -> None:
    log = []

    def f(x):
        y = x * 2
        log.append(y)
        log.append("done")
        return y

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(log=log)
    w.call("new", f, x)
    w.call("hit", f, x)
    log.clear()
    w.change("cleared")
    w.call("hit", f, x)
    w.call("hit", f, x + 1)


@script(1)
def effect_list_item(w: World) -> None:
    slots = [0, 1, 2]

    def f(x):
        slots[0] = x + 1
        slots[-1] = "z"
        return x * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(slots=slots)
    w.call("new", f, x)
    w.call("hit", f, x)
    slots[1] = 5
    w.change("another item")
    w.call("hit", f, x)
    slots.append(9)
    w.change("longer")
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def effect_nonlocal(w: World) -> None:
    def make():
        count, last = 0, None

        def g(x):
            nonlocal count, last
            count += 1
            last = (x * 2, "second")
            return last[0]

        return g, lambda: (count, last)

    g, state = make()
    g = w.jit(g)
    for expected, start in (("new", 0.0), ("hit", 1.0), ("hit", 2.0)):
        w.call(expected, g, torch.arange(4.0) + start)
        w.watch(state=state())
    w.change("nothing")
    w.call("hit", g, torch.arange(4.0))


@script(1)
def effect_slots_and_property(w: World) -> None:
    class Config:
        __slots__ = ("_seen", "count", "scale")

        @property
        def seen(self):
            return self._seen

        @seen.setter
        def seen(self, value):
            self._seen = value

    cfg = Config()
    cfg.count, cfg.scale, cfg.seen = 0, 2.0, None

    def f(x):
        cfg.count += 1
        cfg.seen = x * cfg.scale
        return cfg.seen + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(cfg=cfg)
    w.call("new", f, x)
    w.call("hit", f, x)
    cfg.count = 40
    w.change("the counter in a slot")
    w.call("hit", f, x)
    cfg.scale = 3.0
    w.change("what is read")
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def effect_module_attribute(w: World) -> None:
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)
            self.calls = 0
            self.hidden = None

        def forward(self, x):
            self.calls += 1
            self.hidden = self.fc(x)
            return torch.relu(self.hidden)

    net, seen = Net(), Plain()
    f = w.jit(lambda x: net(x))
    w.watch(net=net, seen=seen)
    with torch.no_grad():
        for expected in ("new", "hit", "hit"):
            w.call(expected, f, torch.ones(2, 4))
            seen.calls, seen.hidden = net.calls, net.hidden.clone()
        net.calls = 100
        w.change("the counter")
        w.call("hit", f, torch.ones(2, 4))
        seen.calls, seen.hidden = net.calls, net.hidden.clone()
        net.fc.weight.data.mul_(2)
        w.change("a weight")
        w.call("hit", f, torch.ones(2, 4))
        seen.calls, seen.hidden = net.calls, net.hidden.clone()
        w.call("hit", f, torch.ones(2, 4))


@script(1)
def effect_setattr(w: World) -> None:
    state = Plain(scale=2.0)

    def f(x, name):
        setattr(state, name, x * state.scale)
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x, "a")
    w.call("hit", f, x, "a")
    del state.a
    w.change("the attribute that is stored to")
    w.call("hit", f, x, "a")
    w.call("new", f, x, "b")
    w.call("hit", f, x, "b")


@script(1)
def effect_own_setattr(w: World) -> None:
    class Logged:
        def __init__(self):
            object.__setattr__(self, "log", [])

        def __setattr__(self, name, value):
            self.log.append(name)
            object.__setattr__(self, name, value)

    state = Logged()

    def f(x):
        state.last = x * 2
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x)
    w.call("hit", f, x)
    Logged.__setattr__ = object.__setattr__
    w.change("the class's __setattr__")
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def effect_print(w: World) -> None:
    state = Plain(name="a")

    def f(x):
        print("start", state.name, 1.5, None, (1, "two"))
        y = x * 2
        print(f"shape {tuple(y.shape)}", end="!\n")
        print("x", "y", sep="-", flush=True)
        return y

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    w.call("hit", f, x)
    state.name = "b"
    w.change("what is printed")
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def effect_print_to_python(w: World) -> None:
    class Stream:
        def __init__(self):
            self.parts = []

        def write(self, text):
            self.parts.append(text)

    def f(x, stream):
        print("hello", file=stream)
        return x + 1

    stream, x = Stream(), torch.arange(4.0)
    f = w.jit(f)
    w.watch(stream=stream)
    w.call("side effect: print", f, x, stream)
    w.call("side effect: print", f, x, stream)


@script(1)
def effect_order(w: World) -> None:
    log = []
    state = Plain(a=0, log=log)

    def f(x):
        state.a = 1
        log.append("first")
        state.b = x * 2
        state.a = 2
        log.append(state.a)
        state.b = state.b + 1
        log.append(state.b)
        del x
        return state.b

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x)
    w.call("hit", f, x)
    del state.b
    w.change("the order of attributes")
    w.call("hit", f, x)


@script(1)
def effect_same_tensor_returned_and_stored(w: World) -> None:
    state, log = Plain(), []

    def f(x):
        y = x * 2
        pair = [y, y.t()]
        state.y, state.pair = y, pair
        log.append(pair)
        return {"y": y, "pair": pair}

    f, x = w.jit(f), torch.arange(6.0).view(2, 3)
    w.watch(state=state, log=log)
    w.call("new", f, x)
    w.call("hit", f, x)
    log.clear()
    w.change("cleared")
    w.call("hit", f, x)


@script(1)
def effect_and_writes_to_tensors(w: World) -> None:
    state = Plain(total=torch.zeros(4), calls=0, last=None)

    def f(x):
        state.total.add_(x)
        state.calls += 1
        x.mul_(2)
        state.last = x
        return state.total.sum()

    f = w.jit(f)
    x = torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x)
    w.call("hit", f, x)
    state.total.zero_()
    w.change("the tensor's contents")
    w.call("hit", f, torch.ones(4))
    state.total = torch.ones(4)
    w.change("another tensor")
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def effect_lazy_initialisation(w: World) -> None:
    state = Plain(cache=None)

    def f(x):
        if state.cache is None:
            state.cache = torch.full((4,), 3.0)
        return x * state.cache

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("passing", f, x)
    w.call("new", f, x)
    w.call("hit", f, x)
    state.cache = None
    w.change("emptied")
    w.call("passing", f, x)
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def effect_cache_by_key(w: World) -> None:
    cache = {}

    def f(x):
        key = tuple(x.shape)
        if key not in cache:
            cache[key] = torch.ones(key) * 2
        return x * cache[key]

    f = w.jit(f)
    w.watch(cache=cache)
    w.call("passing", f, torch.ones(4))
    w.call("new", f, torch.ones(4))
    w.call("hit", f, torch.ones(4))
    w.call("passing", f, torch.ones(5))
    w.call("new", f, torch.ones(5))
    w.call("hit", f, torch.ones(5))
    cache.clear()
    w.change("cleared")
    w.call("passing", f, torch.ones(4))
    w.call("new", f, torch.ones(4))


@script(1)
def effect_hidden_state(w: World) -> None:
    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.h = torch.zeros(4)

        def forward(self, x):
            self.h = (self.h + x) * 0.5
            return self.h

    cell, seen = Cell(), Plain()
    f = w.jit(lambda x: cell(x))
    w.watch(seen=seen)
    for expected in ("new", "hit", "hit"):
        w.call(expected, f, torch.ones(4))
        seen.h = cell.h
    w.change("its type")
    cell.h = cell.h.double()
    w.learn(f, torch.ones(4))
    seen.h = cell.h


@script(1)
def effect_flag(w: World) -> None:
    state = Plain(ready=False, scale=1.0)

    def f(x):
        if not state.ready:
            state.ready = True
            state.scale = 2.0
        return x * state.scale

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x)
    w.call("new", f, x)
    w.call("hit", f, x)
    state.ready, state.scale = False, 5.0
    w.change("the flag is down again")
    w.call("hit", f, x)
    w.call("hit", f, x)


@script(1)
def effect_cycle(w: World) -> None:
    state = Plain(turn=0)

    def f(x):
        state.turn = (state.turn + 1) % 3
        return x + state.turn

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    for expected in ("new", "new", "hit", "hit", "hit", "hit"):
        w.call(expected, f, x)
    state.turn = 1
    w.change("another turn")
    w.call("hit", f, x)


@script(1)
def effect_then_exception(w: World) -> None:
    state = Plain(calls=0, log=[])

    def f(x, y):
        state.calls += 1
        state.log.append("called")
        z = x @ y
        state.log.append("done")
        return z

    f = w.jit(f)
    w.watch(state=state)
    w.call("new", f, torch.ones(2, 3), torch.ones(3, 2))
    w.call("hit", f, torch.ones(2, 3), torch.ones(3, 2))
    w.call("new", f, torch.ones(2, 4), torch.ones(4, 2))
    w.call("raised", f, torch.ones(2, 3), torch.ones(2, 3))
    w.change("after an error")
    w.call("hit", f, torch.ones(2, 3), torch.ones(3, 2))


@script(1)
def effect_then_operator_that_raises(w: World) -> None:
    state = Plain(calls=0, last=None)

    def f(x, index):
        state.calls += 1
        state.last = x * 2
        return torch.index_select(x, 0, index)

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x, torch.tensor([1, 2]))
    w.call("hit", f, x, torch.tensor([0, 3]))
    w.change("an index out of range")
    w.call("an operator raised", f, x, torch.tensor([0, 9]))
    w.call("hit", f, x, torch.tensor([3, 3]))


@script(1)
def effect_on_an_object_that_is_replaced(w: World) -> None:
    m = w.source("box = None\ndef f(x):\n    box.last = x * 2\n    box.count += 1\n    return x + 1\n")
    m["box"] = first = Plain(count=0)
    f, x = w.jit(m["f"]), torch.arange(4.0)
    w.watch(first=first)
    w.call("new", f, x)
    w.call("hit", f, x)
    m["box"] = second = Plain(count=10)
    w.watch(second=second)
    w.change("another object")
    w.call("new", f, x)
    w.call("hit", f, x)
    m["box"] = first
    w.change("the first again")
    w.call("hit", f, x)


@script(1)
def effect_shared_counter(w: World) -> None:
    state = Plain(n=0)

    def f(x):
        state.n += 1
        return x * 2

    def g(x):
        state.n += 10
        return x * 3

    f, g, x = w.jit(f), w.jit(g), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x)
    w.call("new", g, x)
    w.change("each counts for the other")
    w.call("hit", f, x)
    w.call("hit", g, x)
    w.call("hit", f, x)


@script(1)
def effect_stores_an_argument(w: World) -> None:
    state = Plain(seen=None)

    def f(x, scale):  # any scale hits
        state.seen = x
        state.scale = scale
        return x * scale

    f = w.jit(f)
    w.watch(state=state)
    w.call("new", f, torch.arange(4.0), 2.5)
    w.call("hit", f, torch.ones(4), 2.5)
    w.change("nothing")
    w.call("hit", f, torch.ones(4), 7.5)


@script(1)
def effect_stores_what_lives_elsewhere(w: World) -> None:
    state, table = Plain(seen=None), [1.0]

    def f(x):
        state.seen = table
        return x * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state, table=table)
    w.call("new", f, x)
    state.seen = None
    w.call("hit", f, x)
    table.append(2.0)
    w.change("its items, which nobody read")
    w.call("hit", f, x)


@script(1)
def effect_stores_a_new_instance(w: World) -> None:
    @dataclasses.dataclass
    class Record:
        loss: torch.Tensor
        step: int

    state = Plain(history=[], last=None)

    def f(x):
        record = Record(x.sum(), 1)
        state.history.append(record)
        state.last = record
        return record.loss

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x)
    w.call("hit", f, x)
    state.history.clear()
    w.change("cleared")
    w.call("hit", f, x + 1)


@script(1)
def effect_on_another_thread(w: World) -> None:
    state = Plain(n=0, log=[])

    def f(x):
        state.n += 1
        state.log.append(x * 2)
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    with torch.no_grad():
        w.call("new", f, x)

    def threaded(x):
        out = []
        thread = threading.Thread(target=lambda: out.append(torch.no_grad()(f)(x)))
        thread.start()
        thread.join()
        return out[0]

    w.call("hit", threaded, x, of=f)
    state.n = 5
    w.change("the counter")
    w.call("hit", threaded, x, of=f)


@script(1)
def effect_reads_its_own_store(w: World) -> None:
    state = Plain(config=Plain(k=1.0), mode="a")

    def f(x):
        state.mode = "b"
        state.y = x * 2
        if state.mode == "b" and hasattr(state, "y"):
            return state.y + 1
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(state=state)
    w.call("new", f, x)
    w.call("hit", f, x)
    state.mode, state.y = "c", 5
    w.change("what is stored to")
    w.call("hit", f, x)


@script(1)
def effect_list_that_is_read(w: World) -> None:
    log = [0]

    def f(x):
        log.append(len(log))
        return x * 2

    def g(x):
        log.append("again")
        return x * len(log)

    f, g, x = w.jit(f), w.jit(g), torch.arange(4.0)
    w.watch(log=log)
    for expected in ("passing", "passing", "state: log at", "state: log at"):
        w.call(expected, f, x, of=f)
    w.call("the call itself changes log", g, x, of=g)


@script(1)
def effect_items_before_an_append(w: World) -> None:
    scales = [2.0, 3.0]

    def f(x):
        y = x * scales[0]
        scales.append(1.0)
        return y + scales[1]

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(scales=scales)
    w.call("new", f, x)
    w.call("hit", f, x)
    scales[0] = 5.0
    w.change("an item that is read")
    w.call("new", f, x)
    w.call("hit", f, x)


@script(1)
def effect_class_attribute_stays_eager(w: World) -> None:
    class Counter:
        n = 0

    def f(x):
        Counter.n += 1
        return x * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(counter=Counter)
    w.call("store to class Counter.n", f, x)
    w.call("store to class Counter.n", f, x)


@script(1)
def effect_class_attribute_that_is_put_back(w: World) -> None:
    class Mode:
        on, scale = False, 2.0

    def f(x):
        before, Mode.on = Mode.on, True
        try:
            return x * (Mode.scale if Mode.on else 0.0)
        finally:
            Mode.on = before

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(mode=Mode)
    w.learn(f, x)
    Mode.scale = 3.0
    w.change("an attribute of the class")
    w.learn(f, x)
    Mode.on = True
    w.change("what is put back")
    w.learn(f, x)


@script(1)
def effect_module_buffer(w: World) -> None:
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.seen = x * 2
            self.mean.mul_(0.5).add_(x)
            return x + self.mean

    net = Net()
    f = w.jit(lambda x: net(x))
    w.watch(net=net)
    for ran in ("new", "hit", "hit"):
        w.call(ran, f, torch.ones(4))


@script(1)
def effect_global_in_another_module(w: World) -> None:
    other = types.ModuleType("other")
    other.last, other.scale = None, 2.0

    def f(x):
        other.last = x * other.scale
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.watch(other=other.__dict__)
    w.call("new", f, x)
    w.call("hit", f, x)
    other.last = "something else"
    w.change("the attribute that is stored to")
    w.call("hit", f, x)
