"""Item 5: compiled functions that call compiled functions, and what their lives are made of."""

from __future__ import annotations

import contextvars
import copy
import functools
import gc
import os
import pickle
import signal
import threading
import weakref

import torch

import fastjit
from script_tools import World, script


def _affine(x):
    return (x * 2 + 1).relu()


@script(5)
def nested_function_is_part_of_the_program(w: World) -> None:
    g = w.source("k = 2.0\ndef inner(x, a=1.0): return x * k + a\ndef outer(x): return inner(x) - inner(x, a=3.0)\n")
    g["inner"] = w.jit(g["inner"])
    outer, x = w.jit(g["outer"]), torch.arange(4.0)
    w.learn(outer, x)
    g["k"] = 5.0
    w.change("what the inner function reads")
    w.learn(outer, x)
    g["k"] = 2.0
    w.change("k back")
    w.call("hit", outer, x)


@script(5)
def inner_function_replaced(w: World) -> None:
    g = w.source("def inner(x): return x * 2\ndef outer(x): return inner(x) + 1\n")
    first = g["inner"] = w.jit(g["inner"])
    outer, x = w.jit(g["outer"]), torch.arange(4.0)
    w.learn(outer, x)
    g["inner"] = fastjit.fastjit(lambda x: x * 3) if w.fast else (lambda x: x * 3)
    w.change("another inner function, compiled too")
    w.learn(outer, x)
    g["inner"] = lambda x: x * 4
    w.change("a plain one")
    w.learn(outer, x)
    g["inner"] = first
    w.change("the first one")
    w.call("hit", outer, x)


@script(5)
def mutual_recursion(w: World) -> None:
    g = w.source(
        "def even(x, n): return x if n == 0 else odd(x + 1, n - 1)\n"
        "def odd(x, n): return -x if n == 0 else even(x * 2, n - 1)\n"
    )
    even, odd = w.jit(g["even"]), w.jit(g["odd"])
    g["even"], g["odd"] = even, odd
    x = torch.arange(4.0)
    w.call("new", even, x, 5, of=even)
    w.call("hit", even, x, 5, of=even)
    w.change("the depth")
    w.call("new", even, x, 4, of=even)
    w.call("new", odd, x, 2, of=odd)
    w.call("hit", odd, x, 2, of=odd)
    w.call("hit", even, x, 5, of=even)


@script(5)
def inner_runs_eagerly_and_so_does_outer(w: World) -> None:
    inner = w.jit(lambda x: x * float(len({id(x)})))
    outer = w.jit(lambda x: inner(x) + 1)
    x = torch.arange(4.0)
    w.call("read of an address by id", outer, x)
    w.change("nothing")
    w.call("read of an address by id", outer, x)
    g = w.jit(_affine)
    w.learn(g, x)


@script(5)
def nested_write_to_argument(w: World) -> None:
    g = w.source(
        "def bump(t): return t.add_(1)\ndef outer(x):\n    v = x[1:]\n    bump(v)\n    return bump(v) is v, x * 2\n"
    )
    g["bump"] = w.jit(g["bump"])
    outer, x = w.jit(g["outer"]), torch.arange(4.0)
    w.call("new", outer, x)
    w.change("x")
    w.call("hit", outer, x)


@script(5)
def compiled_module_inside_compiled_function(w: World) -> None:
    m = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten(0))
    if w.fast:
        fastjit.fastjit(m)
        fastjit.fastjit(m[0])
    f, x = w.jit(lambda x: m(x) * 2), torch.arange(-2.0, 2.0).view(2, 2)
    w.learn(f, x)
    handle = m[0].register_forward_hook(lambda mod, args, out: out + 10)
    w.change("a hook on the inner module")
    w.learn(f, x)
    handle.remove()
    w.change("no hook")
    w.call("hit", f, x)
    w.watch(alone=m(x))
    w.change("the module by itself")
    w.call("hit", f, x)


@script(5)
def compiled_method_calls_compiled_method(w: World) -> None:
    class Model:
        def __init__(self):
            self.k = 2.0

        def part(self, x):
            return x * self.k

        def run(self, x):
            return self.part(x) + Model.part(self, x)

    Model.part = w.jit(Model.part)
    Model.run = w.jit(Model.run)
    run = Model.__dict__["run"]
    m, x = Model(), torch.arange(4.0)
    w.learn(m.run, x, of=run)
    m.k = 3.0
    w.change("attribute")
    w.learn(m.run, x, of=run)
    m.part = lambda x: x - 1
    w.change("the method, on the instance")
    w.learn(m.run, x, of=run)
    del m.part
    w.change("the method of the class again")
    w.call("hit", m.run, x, of=run)


@script(5)
def pure_function_inside(w: World) -> None:
    g = w.source("k = 2.0\ndef inner(x): return x * k\ndef outer(x): return inner(x) + 1\n")
    if w.fast:
        g["inner"] = fastjit.fastjit(pure=True)(g["inner"])
    outer, x = w.jit(g["outer"]), torch.arange(4.0)
    w.learn(outer, x)
    g["k"] = 3.0
    w.change("k, which the outer function's recording watched")
    w.learn(outer, x)


@script(5)
def two_wrappers_of_one_function(w: World) -> None:
    g = w.source("k = 2.0\ndef f(x): return x * k\n")
    a, b, x = w.jit(g["f"]), w.jit(g["f"]), torch.arange(4.0)
    w.learn(a, x)
    w.learn(b, x)
    g["k"] = 3.0
    w.change("k")
    w.call("new", a, x)
    w.call("new", b, x)
    w.call("hit", a, x)
    w.call("hit", b, x)


@script(5)
def closures_made_in_a_loop(w: World) -> None:
    x, fs = torch.arange(4.0), []
    for k in (1.0, 2.0, 3.0):

        def f(x, k=k):
            return x * k + len(fs)

        fs.append(w.jit(f))
    for f in fs:
        w.learn(f, x)
    fs.append(None)
    w.change("the list that all of them read")
    for f in fs[:3]:
        w.learn(f, x)


@script(5)
def cleared_between_calls(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    if w.fast:
        f.clear()
    w.change("variants forgotten")
    w.learn(f, x)


@script(5)
def number_of_variants_is_bounded(w: World) -> None:
    f = w.jit(lambda x, n: x * 2 if str(n) > "0" else x + n)
    if w.fast:
        f = w.current = fastjit.fastjit(max_variants=2)(f.__wrapped__)
    x = torch.arange(4.0)
    w.learn(f, x, 1)
    w.learn(f, x, 2)
    w.change("a third value")
    w.call("variant limit (2) reached: n took 3 values", f, x, 3)
    w.call("hit", f, x, 1)
    w.call("variant limit (2) reached: n took 3 values", f, x, -1)
    w.call("hit", f, x, 2)
    w.change("a value that comes again")
    w.call("hit", f, x, 2)
    w.call("variant limit (2) reached: n took 3 values", f, x, 3)
    w.call("again", f, x, 3)
    w.call("hit", f, x, 3)
    w.call("hit", f, x, 2)


@script(5)
def stances_around(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    w.learn(f, x)
    with fastjit.stance("eager"):
        w.change("stance: eager")
        w.call("stance is eager", f, x)
    with fastjit.stance("error_on_compile"):
        w.change("stance: error_on_compile")
        w.call("hit", f, x)
    w.call("hit", f, x)


@script(5)
def grad_mode_belongs_to_the_thread(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    p = torch.arange(4.0, requires_grad=True)
    w.learn(f, x)
    out: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: out.append(f(p)))
    with torch.enable_grad():  # of this thread; a new one has a mode of its own
        thread.start()
        thread.join()
    w.watch(out=out)
    w.change("a thread with grad mode")
    w.call("hit", f, x)


@script(5)
def context_variable_belongs_to_the_thread(w: World) -> None:
    var = contextvars.ContextVar("scale", default=2.0)
    f, x = w.jit(lambda x: x * var.get()), torch.arange(4.0)
    w.learn(f, x)
    out: list[torch.Tensor] = []

    def run():
        with torch.no_grad():
            var.set(3.0)
            out.extend([f(x), f(x)])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    w.watch(out=out)
    w.change("a thread with a value of its own")
    w.call("hit", f, x)
    contextvars.copy_context().run(lambda: (var.set(5.0), out.append(f(x))))
    w.change("a context with a value of its own")
    w.call("hit", f, x)


@script(5)
def threads_write_to_tensors_of_their_own(w: World) -> None:
    f = w.jit(lambda x: x.add_(1).mul_(2))
    w.learn(f, torch.zeros(64))
    tensors = [torch.full((64,), float(n)) for n in range(4)]

    def run(x):
        with torch.no_grad():
            for _ in range(10):
                f(x)

    threads = [threading.Thread(target=run, args=(x,)) for x in tensors]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    w.watch(tensors=tensors)
    w.change("four threads")
    w.call("hit", f, tensors[0])


@script(5)
def error_in_a_thread(w: World) -> None:
    g = w.source("bad = False\ndef f(x):\n    if bad: raise KeyError('bad')\n    return x * 2\n")
    f, x, errors = w.jit(g["f"]), torch.arange(4.0), []
    w.learn(f, x)
    g["bad"] = True

    def run():
        try:
            torch.no_grad()(f)(x)
        except KeyError as e:
            errors.append(str(e))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    w.watch(errors=errors)
    g["bad"] = False
    w.change("a thread saw an error")
    w.call("hit", f, x)


@script(5)
def fork_before_first_use(w: World) -> None:
    f, x = w.jit(_affine), torch.arange(4.0)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            os.write(write, repr([f(x + i).tolist() for i in range(3)]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        w.watch(child=pipe.read())
    os.waitpid(pid, 0)
    w.change("a child used the function first")
    w.learn(f, x)


@script(5)
def finaliser_runs_the_function(w: World) -> None:
    f, x, out = w.jit(_affine), torch.arange(4.0), []
    w.learn(f, x)

    class Last:
        def __del__(self):
            out.append(f(x + 1))

    last = Last()
    last.me = last
    del last
    gc.collect()
    w.watch(out=out)
    w.change("a finaliser called the function")
    w.call("hit", f, x)


@script(5)
def object_dies_during_the_call(w: World) -> None:
    g = w.source("def f(x, box):\n    box.pop()\n    return x * 2\n")
    died = []

    class Noisy:
        def __del__(self):
            died.append(1)

    f, x = w.jit(g["f"]), torch.arange(4.0)
    first = f(x, [Noisy()])
    second = f(x, [Noisy()])
    w.watch(first=first, second=second, died=died)
    w.change("objects died inside")
    h = w.jit(_affine)
    w.learn(h, x)


@script(5)
def signal_handler_during_calls(w: World) -> None:
    f, x, seen = w.jit(_affine), torch.arange(4.0), []
    kept = signal.signal(signal.SIGUSR1, lambda *a: seen.append(f(x + 1)))
    try:
        w.learn(f, x)
        os.kill(os.getpid(), signal.SIGUSR1)
        w.watch(seen=seen)
        w.change("a signal handler called the function")
        w.call("hit", f, x)
    finally:
        signal.signal(signal.SIGUSR1, kept)


@script(5)
def code_object_dies_with_its_function(w: World) -> None:
    g = w.source("def h(x): return x * 2\ndef f(x): return h(x)\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    for k in (3, 4, 5):
        w.learn(f, x)
        gone = weakref.ref(g["h"])
        exec(f"def h(x): return x * {k}\n", g)
        gc.collect()
        w.watch(gone=gone() is None)
        w.change(f"h defined again, the old one is gone ({k})")
    w.learn(f, x)


@script(5)
def copied_and_pickled_methods(w: World) -> None:
    f = w.jit(_affine)
    x = torch.arange(4.0)
    w.learn(f, x)
    w.watch(copies=(copy.copy(f) is f, copy.deepcopy(f) is f, copy.deepcopy([f, f])[1] is f))
    w.change("copied")
    w.call("hit", f, x)


@script(5)
def module_given_to_fastjit_is_copied(w: World) -> None:
    m = torch.nn.Linear(2, 2)
    if w.fast:
        fastjit.fastjit(m)
        w.current = fastjit.of(m)
    x = torch.ones(1, 2)
    w.learn(m, x, of=w.current)
    other = copy.deepcopy(m)
    other.weight.data.fill_(7.0)
    other.bias.data.fill_(1.0)
    back = pickle.loads(pickle.dumps(m))
    w.watch(other=other(x), again=other(x), back=back(x), state=list(m.state_dict()))
    w.change("deep copies with parameters of their own")
    w.call("hit", m, x, of=w.current)


@script(5)
def partial_of_a_compiled_function(w: World) -> None:
    f, x = w.jit(lambda x, k, *, b: x * k + b), torch.arange(4.0)
    p = functools.partial(f, k=2.0, b=1.5)
    w.learn(p, x, of=f)
    with_more = functools.partial(p, b=5.0)
    w.change("another number")
    w.call("hit", with_more, x, of=f)
    w.change("another type")
    w.learn(functools.partial(p, k=True), x, of=f)


@script(5)
def wrapped_by_another_decorator(w: World) -> None:
    calls = []

    def counted(fn):
        @functools.wraps(fn)
        def run(*args):
            calls.append(1)
            return fn(*args)

        return run

    f, x = w.jit(_affine), torch.arange(4.0)
    g = counted(f)
    w.watch(calls=calls, name=g.__name__, doc=g.__doc__)
    w.call("new", g, x, of=f)
    w.change("the decorator's own list")
    w.call("hit", g, x, of=f)


@script(5)
def class_and_static_methods_compiled(w: World) -> None:
    class Tools:
        k = 2.0

        def scaled(cls, x):
            return x * cls.k

        def plain(x):
            return x + 1

    scaled, plain = w.jit(Tools.scaled), w.jit(Tools.plain)
    Tools.scaled, Tools.plain = classmethod(scaled), staticmethod(plain)
    x = torch.arange(4.0)
    w.learn(Tools.scaled, x, of=scaled)
    w.learn(Tools.plain, x, of=plain)
    Tools.k = 3.0
    w.change("class attribute")
    w.learn(Tools.scaled, x, of=scaled)
    w.call("hit", Tools().plain, x, of=plain)
