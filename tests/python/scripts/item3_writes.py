"""Item 3: writes to arguments, through views and aliases, and outputs that are inputs or views of them."""

from __future__ import annotations

import torch

from script_tools import World, script


@script(3)
def in_place_on_argument(w: World) -> None:
    def f(x):
        x.mul_(2).add_(1)
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    for _ in range(3):
        w.change("x, by the call itself")
        w.call("hit", f, x)


@script(3)
def same_argument_twice(w: World) -> None:
    def f(x, y):
        x.add_(1)
        return x + y

    f, x, y = w.jit(f), torch.arange(4.0), torch.ones(4)
    w.learn(f, x, y)
    w.change("x is y")
    w.call("a written tensor shares memory", f, x, x)
    w.call("a written tensor shares memory", f, x, x)
    w.call("hit", f, y, x)


@script(3)
def overlapping_arguments(w: World) -> None:
    def f(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y

    base = torch.arange(8.0)
    w.watch(base=base)
    f = w.jit(f)
    w.learn(f, base[:4], base[4:])
    w.change("they overlap")
    w.call("a written tensor shares memory", f, base[:4], base[2:6])
    w.call("a written tensor shares memory", f, base[:4], base[2:6])
    w.call("hit", f, base[:4], base[4:])


@script(3)
def write_through_view_of_view(w: World) -> None:
    def f(x):
        x[1:].t()[0].mul_(3)
        return x.sum(0)

    f, x = w.jit(f), torch.arange(12.0).view(3, 4)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def output_is_input(w: World) -> None:
    def f(x, y):
        return x, y + 1, x

    f, x, y = w.jit(f), torch.arange(4.0), torch.ones(4)
    w.call("new", f, x, y)
    w.change("arguments swapped")
    w.call("hit", f, y, x)


@script(3)
def output_is_view_of_input(w: World) -> None:
    def f(x):
        v = x[1:, ::2]
        return v, v.t(), x.view(-1), x.unsqueeze(0).expand(2, 3, 4)

    f, x = w.jit(f), torch.arange(12.0).view(3, 4)
    outs = w.learn(f, x)
    outs[0].fill_(7)
    w.change("x through a view that was returned")
    w.call("hit", f, x)


@script(3)
def outputs_view_each_other(w: World) -> None:
    def f(x):
        y = x + 1
        a, b = y.chunk(2)
        b.mul_(2)
        return y, a, b, y[0]

    f, x = w.jit(f), torch.arange(8.0).view(4, 2)
    w.call("new", f, x)
    w.change("nothing")
    w.call("hit", f, x)


@script(3)
def overlapping_copy_of_itself(w: World) -> None:
    def f(x):
        x[1:].copy_(x[:-1].clone())
        return x

    f, x = w.jit(f), torch.arange(6.0)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def overlapping_add_raises(w: World) -> None:
    def f(x):
        x[1:].add_(x[:-1])
        return x

    f, x = w.jit(f), torch.arange(6.0)
    w.call("raised", f, x)
    w.call("raised", f, x)


@script(3)
def transposed_onto_itself(w: World) -> None:
    def f(x):
        x.add_(x.t().clone())
        return x

    f, x = w.jit(f), torch.arange(9.0).view(3, 3)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def expanded_destination_raises(w: World) -> None:
    def f(x):
        return x.add_(1)

    f = w.jit(f)
    w.learn(f, torch.ones(3, 4))
    w.change("an expanded tensor")
    w.call("raised", f, torch.ones(1, 4).expand(3, 4))
    w.call("hit", f, torch.ones(3, 4))


@script(3)
def casting_write(w: World) -> None:
    def f(x, y):
        x.copy_(y)
        x += y.to(torch.float16)
        return x

    f = w.jit(f)
    w.call("new", f, torch.zeros(3), torch.tensor([0.1, 1000.5, -2], dtype=torch.float64))
    w.change("values")
    w.call("hit", f, torch.zeros(3), torch.tensor([0.2, 7, -2], dtype=torch.float64))


@script(3)
def int_write_of_float_raises(w: World) -> None:
    def f(x, y):
        x += y
        return x

    f = w.jit(f)
    w.call("new", f, torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.int32))
    w.change("float addend")
    w.call("raised", f, torch.zeros(3, dtype=torch.int64), torch.ones(3))
    w.call("hit", f, torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.int32))


@script(3)
def broadcasting_write(w: World) -> None:
    def f(x, row):
        x[:, 1:] = row
        x[0] = 5
        return x * 2

    f, x = w.jit(f), torch.zeros(3, 4)
    w.call("new", f, x, torch.arange(3.0))
    x.fill_(9)
    w.change("x")
    w.call("hit", f, x, torch.arange(3.0) + 1)


@script(3)
def index_put_with_duplicates(w: World) -> None:
    def f(x, i, v):
        x.index_put_((i,), v, accumulate=True)
        return x + 1

    f, x = w.jit(f), torch.zeros(4)
    w.call("new", f, x, torch.tensor([1, 1, 3]), torch.ones(3))
    w.change("indices")
    w.call("hit", f, x, torch.tensor([0, 0, 0]), torch.ones(3))


@script(3)
def masked_assignment(w: World) -> None:
    def f(x):
        x[x > 1] = 0.0
        return x * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    x.copy_(torch.tensor([5.0, 0.0, 7.0, 1.0]))
    w.change("which elements are masked")
    w.call("hit", f, x)


@script(3)
def index_out_of_range_on_hit(w: World) -> None:
    def f(x, i):
        return x[i] * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x, torch.tensor([1, 2]))
    w.call("hit", f, x, torch.tensor([3, -1]))


@script(3)
def out_argument(w: World) -> None:
    def f(x, y, o):
        return torch.add(x, y, out=o)

    f, x, o = w.jit(f), torch.arange(4.0), torch.zeros(4)
    w.call("new", f, x, x, o)
    w.change("o")
    w.call("hit", f, x, x, o)
    w.change("out is an input")
    w.call("a written tensor shares memory", f, x, x, x)
    w.call("hit", f, x, x, o)


@script(3, rtol=1e-6)
def batch_norm_in_train_mode(w: World) -> None:
    m = torch.nn.BatchNorm1d(4).train()

    def f(x):
        return m(x)

    f, x = w.jit(f), torch.randn(8, 4)
    w.watch(m=m)
    w.call("new", f, x)
    w.change("running statistics")
    w.call("hit", f, x)
    m.momentum = 0.5
    w.change("momentum")
    w.call("new", f, x)
    m.eval()
    w.change("eval")
    w.learn(f, x)
    m.reset_running_stats()
    w.change("statistics reset")
    w.call("hit", f, x)


@script(3, rtol=1e-6)
def load_state_dict_is_seen(w: World) -> None:
    m, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def f(x):
        return m(x)

    f, x = w.jit(f), torch.randn(2, 4)
    w.watch(m=m)
    w.learn(f, x)
    m.load_state_dict(other.state_dict())
    w.change("load_state_dict")
    w.call("hit", f, x)
    m.load_state_dict(torch.nn.Linear(4, 4).state_dict(), assign=True)
    w.change("load_state_dict(assign=True)")
    w.learn(f, x)


@script(3, rtol=1e-6)
def parameter_replaced(w: World) -> None:
    m = torch.nn.Linear(4, 4)

    def f(x):
        return m(x).relu()

    f, x = w.jit(f), torch.randn(2, 4)
    w.call("new", f, x)
    m.weight = torch.nn.Parameter(torch.randn(4, 4))
    w.change("parameter replaced")
    w.learn(f, x)


@script(3, rtol=1e-6)
def data_swapped(w: World) -> None:
    m = torch.nn.Linear(4, 4)

    def f(x):
        return m(x).relu()

    f, x = w.jit(f), torch.randn(2, 4)
    w.watch(m=m)
    w.learn(f, x)
    m.weight.data = torch.randn(4, 4)
    w.change(".data swapped")
    w.call("hit", f, x)
    m.weight.data = torch.randn(4, 4).t()
    w.change(".data of other strides")
    w.learn(f, x)


@script(3, rtol=1e-6)
def writes_that_move_no_version(w: World) -> None:
    m = torch.nn.Linear(4, 4)

    def f(x):
        return m(x) * m.weight.sum()

    f, x = w.jit(f), torch.randn(2, 4)
    w.watch(m=m)
    w.call("new", f, x)
    m.weight.data -= 0.5
    w.change("p.data -= 0.5")
    w.call("hit", f, x)
    m.weight.detach().numpy()[0] = 3.0
    w.change("a write by numpy")
    w.call("hit", f, x)
    torch.from_dlpack(m.weight.detach())[1] = -1.0
    w.change("a write by DLPack")
    w.call("hit", f, x)


@script(3)
def numpy_backed_argument(w: World) -> None:
    import numpy as np

    a = np.arange(4, dtype=np.float32)
    x = torch.from_numpy(a)

    def f(x):
        return x * 2

    f = w.jit(f)
    w.call("new", f, x)
    a += 10
    w.change("numpy array")
    w.call("hit", f, x)


@script(3)
def resized_argument(w: World) -> None:
    def f(x):
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    x.resize_(2)
    w.change("resize_")
    w.learn(f, x)
    x.set_(torch.arange(6.0).view(2, 3).t())
    w.change("set_")
    w.learn(f, x)


@script(3)
def storage_freed(w: World) -> None:
    def f(x):
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    y = torch.arange(4.0)
    w.change("another storage")
    w.call("hit", f, y)
    w.call("hit", f, y[:])


@script(3)
def state_kept_in_global_tensor(w: World) -> None:
    g = w.source("state = torch.zeros(4)\ndef f(x):\n    state.add_(x)\n    return state * 2\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.watch(state=g["state"])
    w.call("new", f, x)
    for _ in range(2):
        w.change("state, by the call itself")
        w.call("hit", f, x)


@script(3)
def state_is_an_argument_too(w: World) -> None:
    g = w.source("state = torch.zeros(4)\ndef f(x):\n    state.add_(1)\n    return x * 2\n")
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.watch(state=g["state"])
    w.learn(f, x)
    w.change("the argument is the state")
    w.call("a written tensor shares memory", f, g["state"])
    w.change("the argument is a view of the state")
    w.call("a written tensor shares memory", f, g["state"][:])
    w.call("hit", f, x)


@script(3)
def list_of_tensors_written(w: World) -> None:
    def f(xs):
        for x in xs:
            x.add_(1)
        xs.append(xs[0] * 2)
        return xs[-1]

    f = w.jit(f)
    xs = [torch.zeros(3), torch.ones(3)]
    w.call("new", f, xs)
    w.change("a longer list")
    w.call("new", f, xs)
    w.call("hit", f, [torch.zeros(3), torch.ones(3)])


@script(3)
def write_then_error(w: World) -> None:
    def f(x, y):
        x.add_(1)
        return x.view(2, 2) @ y

    f, x = w.jit(f), torch.zeros(4)
    w.call("new", f, x, torch.ones(2, 2))
    w.change("y does not fit")
    w.call("raised", f, x, torch.ones(3, 2))
    w.call("hit", f, x, torch.ones(2, 2))


@script(3)
def buffer_reassigned_in_forward(w: World) -> None:
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen = self.seen + x
            return self.seen * 2

    m = Counter()

    def f(x):
        return m(x)

    f, x = w.jit(f), torch.ones(3)
    w.watch(m=m)
    for ran in ("new", "hit", "hit", "hit"):
        w.call(ran, f, x)
        w.change("the buffer")
