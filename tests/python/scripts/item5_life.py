"""Item 5: recursion, threads, fork, pickling, methods and the life of functions and what they name."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import threading
import weakref

import torch

from fastjit import fastjit
from script_tools import World, script


def _affine(x):
    return (x * 2 + 1).relu()


@script(5)
def recursion(w: World) -> None:
    g = w.source("k = 1.0\ndef f(x, n):\n    return x if n == 0 else f(x + k, n - 1) * 2\n")
    f = g["f"] = w.jit(g["f"])
    x = torch.arange(4.0)
    w.learn(f, x, 3)
    w.change("the depth")
    w.learn(f, x, 2)
    w.learn(f, x, 0)
    g["k"] = 2.0
    w.change("k")
    w.learn(f, x, 3)
    g["k"] = 1.0
    w.change("k back")
    w.call("hit", f, x, 2)


@script(5)
def one_calls_another(w: World) -> None:
    inner = w.jit(lambda x: x * 2)
    outer = w.jit(lambda x: inner(x) + 1)
    x = torch.arange(4.0)
    w.learn(outer, x)
    w.change("inner is called by itself")
    w.learn(inner, x)
    w.call("hit", outer, x)


@script(5)
def reentrance_through_hook(w: World) -> None:
    m = torch.nn.ReLU()
    box = []

    def f(x):
        return m(x) + 1

    f, x = w.jit(f), torch.arange(-2.0, 2.0)
    w.learn(f, x)

    def hook(mod, args, out):
        if not box:
            box.append(1)
            try:
                return f(out * 2)
            finally:
                box.clear()
        return out

    m.register_forward_hook(hook)
    w.change("a hook that calls the function")
    first = f(x)
    w.watch(first=first, second=f(x), third=f(x))
    m._forward_hooks.clear()
    w.change("no hook")
    w.call("hit", f, x)


@script(5)
def error_inside_then_hit(w: World) -> None:
    g = w.source("bad = False\ndef f(x):\n    if bad: raise ValueError(f'bad {bad}')\n    return x * 2\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.call("new", f, x)
    g["bad"] = 1
    w.change("raises")
    w.call("raised", f, x)
    w.call("raised", f, x)
    g["bad"] = False
    w.change("raises no more")
    w.call("hit", f, x)


@script(5)
def threads_with_different_shapes(w: World) -> None:
    f = w.jit(_affine)
    w.call("new", f, torch.arange(4.0))
    results: dict[int, list[torch.Tensor]] = {}
    start = threading.Barrier(4)

    def run(n):
        with torch.no_grad():
            x = torch.arange(float(n)) - 2
            start.wait()
            results[n] = [f(x + i) for i in range(20)]

    threads = [threading.Thread(target=run, args=(n,)) for n in (3, 4, 5, 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    w.watch(results={n: results[n] for n in sorted(results)})
    w.change("four threads with sizes of their own")
    w.call("hit", f, torch.arange(4.0))
    w.call("hit", f, torch.arange(5.0))


@script(5)
def threads_change_state_between(w: World) -> None:
    g = w.source("K = 1.0\ndef f(x): return x * K\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.call("new", f, x)
    out = []
    for k in (2.0, 1.0, 2.0):
        g["K"] = k
        t = threading.Thread(target=lambda: out.append(torch.no_grad()(f)(x)))
        t.start()
        t.join()
    w.watch(out=out)
    w.change("K, seen by threads")
    w.call("hit", f, x)


@script(5)
def fork_after_first_use(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            os.write(
                write, repr((f(x).tolist(), f(torch.arange(5.0)).tolist(), f(torch.arange(5.0)).tolist())).encode()
            )
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        w.watch(child=pipe.read())
    os.waitpid(pid, 0)
    w.change("a child ran the function")
    w.call("hit", f, x)


@script(5)
def deepcopy_of_holder(w: World) -> None:
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.full((4,), 2.0))
            self.act = w.jit(_affine)

        def forward(self, x):
            return self.act(x * self.scale)

    m, x = Model(), torch.arange(4.0)
    w.learn(m, x)
    other = copy.deepcopy(m)
    other.scale.data.fill_(5.0)
    w.watch(other=other(x))
    w.change("a deep copy ran")
    w.call("hit", m, x)


picklable = fastjit(_affine)


@script(5)
def pickled_by_name(w: World) -> None:
    global picklable
    kept = picklable
    picklable = w.jit(kept.__wrapped__)
    try:
        x = torch.arange(4.0)
        w.call("new", picklable, x)
        back = pickle.loads(pickle.dumps(picklable)) if w.fast else picklable
        w.watch(out=back(x))
        w.change("pickled and loaded")
        w.call("hit", picklable, x)
    except (pickle.PicklingError, TypeError) as e:
        raise AssertionError(str(e)) from e
    finally:
        picklable = kept


@script(5)
def method_of_two_instances(w: World) -> None:
    class Scaler:
        def __init__(self, k):
            self.k = k

        def run(self, x):
            return x * self.k

    Scaler.run = w.jit(Scaler.run)
    f = Scaler.__dict__["run"]
    a, b, x = Scaler(2.0), Scaler(3.0), torch.arange(4.0)
    w.learn(a.run, x, of=f)
    w.change("another instance")
    w.learn(b.run, x, of=f)
    w.call("hit", a.run, x, of=f)
    a.k = 4.0
    w.change("attribute of the instance")
    w.call("new", a.run, x, of=f)
    w.call("hit", b.run, x, of=f)


@script(5)
def instances_are_not_kept(w: World) -> None:
    class Scaler:
        def __init__(self, k):
            self.k = k

        def run(self, x):
            return x * self.k

    Scaler.run = w.jit(Scaler.run)
    f = Scaler.__dict__["run"]
    x = torch.arange(4.0)
    a = Scaler(2.0)
    gone = weakref.ref(a)
    w.call("new", a.run, x, of=f)
    w.log[-1].form.keep.clear()
    del a
    gc.collect()
    w.watch(gone=gone() is None)
    w.change("the instance died")
    w.call("again", Scaler(2.0).run, x, of=f)


@script(5)
def model_is_not_kept(w: World) -> None:
    g = w.source("def f(x): return m(x)\n")
    g["m"] = torch.nn.ReLU()
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    gone = weakref.ref(g["m"])
    g["m"] = torch.nn.Tanh()
    gc.collect()
    w.watch(gone=gone() is None)
    w.change("the model died")
    w.learn(f, x)


@script(5)
def new_object_at_the_old_address(w: World) -> None:
    class Config:
        def __init__(self, k):
            self.k = k

    g = w.source("def f(x): return x * c.k\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    for k in (2.0, 3.0, 4.0, 5.0):
        g.pop("c", None)
        gc.collect()
        g["c"] = Config(k)
        w.change("a new object, maybe where the old one was")
        w.learn(f, x)


@script(5)
def redefined_in_a_notebook(w: World) -> None:
    g = w.source("def f(x): return x * 2\n")
    first, x = w.jit(g["f"]), torch.arange(4.0)
    w.call("new", first, x)
    exec("def f(x): return x * 3\n", g)
    second = w.jit(g["f"])
    w.change("cell run again")
    w.learn(second, x)
    w.call("hit", first, x)


@script(5)
def called_from_generator(w: World) -> None:
    f = w.jit(_affine)
    x = torch.arange(4.0)

    def steps():
        y = x
        while True:
            y = f(y) * 0.5
            yield y

    it = steps()
    w.learn(lambda: next(it))
    w.change("two generators take turns")
    other = steps()
    w.call("hit", lambda: next(other))
    w.call("hit", lambda: next(it))


@script(5)
def generator_inside(w: World) -> None:
    def f(x):
        return sum(x * k for k in (1.0, 2.0, 3.0))

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    w.change("nothing")
    w.call("hit", f, x)


@script(5)
def generator_kept_between_calls(w: World) -> None:
    def count():
        n = 0.0
        while True:
            n += 1
            yield n

    it = count()

    def f(x):
        return x * next(it)

    f, x = w.jit(f), torch.arange(4.0)
    for _ in range(3):
        w.call("generator", f, x)
        w.change("where the generator stands")


@script(5)
def async_tasks(w: World) -> None:
    f = w.jit(_affine)

    async def task(n):
        out = []
        for i in range(3):
            out.append(f(torch.arange(float(n)) + i))
            await asyncio.sleep(0)
        return out

    async def both():
        return await asyncio.gather(task(3), task(4))

    w.call("new", f, torch.arange(4.0))
    w.watch(out=asyncio.run(both()))
    w.change("two tasks took turns")
    w.call("hit", f, torch.arange(4.0))
    w.call("hit", f, torch.arange(3.0))


@script(5)
def partial_and_callable_object(w: World) -> None:
    import functools

    class Call:
        def __init__(self):
            self.k = 2.0

        def __call__(self, x):
            return x * self.k

    c, x = Call(), torch.arange(4.0)
    f = w.jit(c)
    w.call("new", f, x)
    c.k = 3.0
    w.change("attribute of the callable")
    w.learn(f, x)
    g = w.jit(functools.partial(lambda x, k: x * k, k=4.0))
    w.learn(g, x)


@script(5)
def result_changed_by_caller(w: World) -> None:
    f, x = w.jit(lambda x: [x * 2, {"a": x + 1}]), torch.arange(4.0)
    out = w.learn(f, x)
    out[0].fill_(-1)
    out[1]["b"] = 3
    out.append(None)
    w.change("the caller wrote to the result")
    w.call("hit", f, x)


@script(5)
def argument_freed_after_call(w: World) -> None:
    f = w.jit(_affine)
    w.call("new", f, torch.arange(1000.0))
    for i in range(4):
        w.change("tensors come and go")
        w.call("hit", f, torch.full((1000,), float(i)))


@script(5)
def subclass_overrides_method(w: World) -> None:
    class Base:
        def part(self, x):
            return x + 1

        def run(self, x):
            return self.part(x) * 2

    class Derived(Base):
        def part(self, x):
            return super().part(x) - 5

    Base.run = w.jit(Base.run)
    f = Base.__dict__["run"]
    base, derived, x = Base(), Derived(), torch.arange(4.0)
    w.call("new", base.run, x, of=f)
    w.change("an object of a derived class")
    w.learn(derived.run, x, of=f)
    w.call("hit", base.run, x, of=f)
    del Derived.part
    w.change("the override is deleted")
    w.learn(derived.run, x, of=f)
