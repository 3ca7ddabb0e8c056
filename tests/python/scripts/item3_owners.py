"""Item 3: out=, storages that are resized, set and swapped, and tensors that belong to modules."""

from __future__ import annotations

import warnings

import torch

from script_tools import World, script


@script(3)
def out_is_resized(w: World) -> None:
    def f(x, o):
        return torch.mul(x, 2, out=o)

    f, x = w.jit(f), torch.arange(4.0)
    o = torch.zeros(4)
    w.learn(f, x, o)
    w.change("an empty destination")
    empty = torch.empty(0)
    first = f(x, empty)
    w.watch(first=first, same=first is empty)
    w.call("hit", f, x, o)
    w.call("hit", f, x, empty)


@script(3)
def out_of_other_types(w: World) -> None:
    def f(x, o):
        torch.add(x, 1, out=o)
        return o * 2

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.zeros(4))
    w.change("a destination of type f64")
    w.learn(f, x, torch.zeros(4, dtype=torch.float64))
    w.change("a destination that cannot hold it")
    w.call("raised", f, x, torch.zeros(4, dtype=torch.int32))
    w.call("hit", f, x, torch.zeros(4))


@script(3)
def out_is_a_view(w: World) -> None:
    def f(x, o):
        torch.add(x, 1, out=o[::2])
        torch.neg(x, out=o[1::2])
        return o

    f, x, o = w.jit(f), torch.arange(3.0), torch.zeros(6)
    w.learn(f, x, o)
    x.add_(1)
    w.change("x")
    w.call("hit", f, x, o)


@script(3)
def out_of_two_tensors(w: World) -> None:
    def f(x, v, i):
        return torch.max(x, 1, out=(v, i))

    f, x, v, i = w.jit(f), torch.arange(6.0).view(2, 3), torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    w.learn(f, x, v, i)
    w.change("x")
    w.call("hit", f, -x, v, i)


@script(3, rtol=1e-6)
def cumulative_average_of_batch_norm(w: World) -> None:
    m = torch.nn.BatchNorm1d(3, momentum=None).train()
    f, x = w.jit(lambda x: m(x)), torch.randn(8, 3)
    w.watch(m=m)
    for _ in range(3):  # each factor is another value
        w.call("new", f, x)
        w.change("the number of batches, a float of which is the factor")
    m.reset_running_stats()
    w.change("back to the first batch")
    w.call("hit", f, x)


@script(3, rtol=1e-6)
def batch_norm_in_a_module_of_its_own(w: World) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU()).train()
    f, x = w.jit(lambda x: m(x)), torch.randn(8, 3)
    w.watch(m=m)
    w.learn(f, x)
    m[1].running_mean.add_(5)
    w.change("a buffer, in place")
    w.call("hit", f, x)
    m[1].track_running_stats = False
    w.change("statistics are tracked no more")
    w.learn(f, x)
    m[1].track_running_stats = True
    w.change("statistics are tracked again")
    w.call("hit", f, x)


@script(3)
def resized_inside(w: World) -> None:
    def f(x, n):
        y = x.clone()
        y.resize_(n)
        x.resize_(2)
        return y[:2] + x

    f = w.jit(f)
    before = torch.arange(4.0)
    first = f(before, 3)
    second = f(torch.arange(4.0), 3)
    w.watch(before=before, first=first, second=second)
    w.change("resize_ inside ran twice")
    g, x = w.jit(lambda x: x * 2), torch.arange(4.0)
    w.learn(g, x)
    x.resize_(2).resize_(4)
    w.change("resized and back")
    w.call("hit", g, x)


@script(3)
def data_replaced_inside(w: World) -> None:
    def f(x, y):
        x.data = y * 2
        return x + 1

    f, x, y = w.jit(f), torch.arange(4.0), torch.ones(4)
    w.call("Tensor.data", f, x, y)
    w.change("x")
    w.call("Tensor.data", f, x, y)


@script(3)
def data_written_inside(w: World) -> None:
    def f(x):
        x.data.mul_(2)
        return x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def storage_swapped_between_calls(w: World) -> None:
    f, x, y = w.jit(lambda x: x.mul_(2)), torch.arange(4.0), torch.ones(4)
    w.learn(f, x)
    x.set_(y)
    w.change("x looks into y's storage")
    w.watch(x=x, y=y)
    w.call("hit", f, x)
    x.set_(y.untyped_storage(), 1, (2,), (2,))
    w.change("every second element of it")
    w.learn(f, x)


@script(3)
def inference_tensor_written(w: World) -> None:
    with torch.inference_mode():
        x = torch.arange(4.0)
    f = w.jit(lambda x: x * 2 + 1)
    w.learn(f, x)
    with torch.inference_mode():
        x.add_(10)
        w.change("an inference tensor, written where no version counts")
    w.call("hit", f, x)
    with torch.inference_mode():
        w.learn(f, x)
    w.call("hit", f, x)


@script(3)
def inference_tensor_written_inside(w: World) -> None:
    def f(x):
        x[1:].mul_(3)
        return x + 0

    f = w.jit(f)
    with torch.inference_mode():
        x = torch.arange(4.0)
        w.call("new", f, x)
        w.change("x")
        w.call("hit", f, x)
    w.change("a plain tensor")
    plain = torch.arange(4.0)
    w.learn(f, plain)


@script(3)
def masked_and_duplicate_stores(w: World) -> None:
    def f(x, i, m, v):
        x[i] = v  # the last of the duplicates stays
        x[m] = -1.0
        x[0, 1] += 5
        return x

    f, x = w.jit(f), torch.zeros(4, 2)
    m = torch.tensor([False, True, False, False])
    w.call("new", f, x, torch.tensor([2, 2, 0]), m, torch.arange(6.0).view(3, 2))
    w.change("indices and mask")
    w.call("hit", f, x, torch.tensor([3, 3, 3]), ~m, torch.ones(3, 2))


@script(3)
def expanded_index_put(w: World) -> None:
    def f(x, i):
        x[i] = 1.0
        return x * 2

    f, i = w.jit(f), torch.tensor([0, 2])
    w.learn(f, torch.zeros(3, 2), i)
    w.change("an expanded tensor: eager warns, and writes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wide = torch.zeros(1, 2).expand(3, 2)
        w.watch(wide=wide, out=f(wide, i), again=f(wide, i))
    w.call("hit", f, torch.zeros(3, 2), i)


@script(3)
def leaf_that_requires_grad_is_written(w: World) -> None:
    def f(p):
        p.mul_(2)
        return p + 1

    f, p = w.jit(f), torch.arange(4.0, requires_grad=True)
    w.learn(f, p)
    with torch.enable_grad():
        w.change("grad mode: eager refuses the write")
        w.call("raised", f, p)
    w.call("hit", f, p)


@script(3)
def tied_parameters(w: World) -> None:
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.arange(4.0))
            self.b = self.a
            self.view = self.a.detach()[1:]

        def forward(self, x):
            return x * self.a + self.b, self.view + 1

    m, x = Tied(), torch.ones(4)
    f = w.jit(lambda x: m(x))
    w.learn(f, x)
    m.b.mul_(3)
    w.change("the shared parameter, in place")
    w.call("hit", f, x)
    m.b = torch.nn.Parameter(torch.zeros(4))
    w.change("untied")
    w.learn(f, x)
    m.b = m.a
    w.change("tied again")
    w.call("hit", f, x)


@script(3)
def argument_is_a_view_of_a_parameter(w: World) -> None:
    m = torch.nn.Linear(2, 2, bias=False)

    def f(x):
        x.mul_(0.5)
        return m(x.view(1, 2))

    f, x = w.jit(f), torch.ones(2)
    w.watch(m=m)
    w.learn(f, x)
    w.change("the argument is a row of the weight, and is written")
    w.call("a written tensor shares memory", f, m.weight.detach()[0])
    w.call("hit", f, x)


@script(3)
def whole_module_moved_to_another_type(w: World) -> None:
    m = torch.nn.LayerNorm(4)
    f, x = w.jit(lambda x: m(x)), torch.arange(8.0).view(2, 4)
    w.watch(m=m)
    w.learn(f, x)
    m.double()
    w.change("module.double()")
    w.learn(f, x.double())
    m.float()
    w.change("module.float()")
    w.call("hit", f, x)


@script(3)
def view_of_a_written_leaf(w: World) -> None:
    def f(x):
        x.add_(1)
        return x * 2, x[1:]

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("a leaf that requires grad: autograd compares the view's version with its base's")
    p = torch.arange(4.0, requires_grad=True)
    w.call("returns a view of it", f, p)
    w.call("returns a view of it", f, p)
    w.call("hit", f, x)
