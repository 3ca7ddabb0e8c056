"""Item 2: values that Python reads out of tensors, by type and by the way they are read."""

from __future__ import annotations

import torch

from script_tools import World, script


def _by_type(w: World, values: list[torch.Tensor]) -> None:
    def f(x, v):
        b = v.item()
        return x * b if str(b) < "200" else x + b

    f, x = w.jit(f), torch.arange(4.0)
    for v in values:
        w.change("value or type")
        w.learn(f, x, v)
    w.change("back")
    for v in values:
        w.call("hit", f, x + 1, v)


@script(2)
def items_of_float_types(w: World) -> None:
    _by_type(w, [torch.tensor(v, dtype=d) for d in (torch.float32, torch.float64) for v in (1.5, -0.0, 0.0, 0.1)])


@script(2)
def items_of_half_types(w: World) -> None:
    _by_type(w, [torch.tensor(v, dtype=d) for d in (torch.float16, torch.bfloat16) for v in (1.5, 0.1, 300.0)])


@script(2)
def items_of_integer_types(w: World) -> None:
    dtypes = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    _by_type(w, [torch.tensor(v, dtype=d) for d in dtypes for v in (1, 100)])


@script(2)
def items_of_bool(w: World) -> None:
    _by_type(w, [torch.tensor(True), torch.tensor(False)])


@script(2)
def types_that_no_kernel_knows(w: World) -> None:
    def f(x, t):
        return x * 2 if t else x - t.item()

    f, x = w.jit(f), torch.arange(4.0)
    w.call("value of a tensor left tensor land: aten::is_nonzero", f, x, torch.tensor(0, dtype=torch.uint16))
    w.change("value")
    w.call("value of a tensor left tensor land: aten::is_nonzero", f, x, torch.tensor(5, dtype=torch.uint16))
    w.change("type")
    w.call("value of a tensor left tensor land: aten::is_nonzero", f, x, torch.tensor(1j))


@script(2)
def items_that_are_not_finite(w: World) -> None:
    _by_type(w, [torch.tensor(float(v)) for v in ("nan", "inf", "-inf")])


@script(2)
def nan_in_a_comparison(w: World) -> None:
    def f(x):
        if x.max() > 2:
            return x + 1
        if x.max() <= 2:
            return x - 1
        return torch.nan_to_num(x)

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("smaller")
    w.learn(f, x / 2)
    w.change("NaN")
    w.learn(f, x / 0)
    w.change("back")
    w.call("hit", f, x)
    w.call("hit", f, x / 0)


@script(2)
def truth_of_elements(w: World) -> None:
    def f(x, t):
        return x * 2 if t else x * 3

    f, x = w.jit(f), torch.arange(4.0)
    for true, false in ((1.5, 0.0), (7, 0), (True, False)):
        w.change("type")
        w.learn(f, x, torch.tensor(true))
        w.change("truth")
        w.learn(f, x, torch.tensor(false))
        w.call("hit", f, x + 1, torch.tensor(true))
    w.change("NaN and minus zero")
    w.call("hit", f, x, torch.tensor(float("nan")))
    w.call("hit", f, x, torch.tensor(-0.0))
    w.change("half")
    w.learn(f, x, torch.tensor(6e-8, dtype=torch.float16))


@script(2)
def truth_of_one_element_with_dimensions(w: World) -> None:
    def f(x, t):
        return x * 2 if t[0] else x + t.item()

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.tensor([[2.0]]))
    w.change("value")
    w.learn(f, x, torch.tensor([[0.0]]))
    w.change("back")
    w.call("hit", f, x, torch.tensor([[3.0]]))


@script(2)
def tolist_of_a_small_tensor(w: World) -> None:
    def f(x, sizes):
        rows = sizes.tolist()
        return [part * i for i, part in enumerate(x.split(rows))], rows

    f, x = w.jit(f), torch.arange(6.0)
    w.learn(f, x, torch.tensor([1, 2, 3]))
    w.change("the sizes")
    w.learn(f, x, torch.tensor([3, 2, 1]))
    w.change("back")
    w.call("hit", f, x + 1, torch.tensor([1, 2, 3]))


@script(2)
def tolist_with_two_dimensions(w: World) -> None:
    def f(x, table):
        for a, b in table.t().tolist():
            x = x * a + b
        return x

    f, x = w.jit(f), torch.arange(3.0)
    table = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    w.learn(f, x, table)
    w.change("an element")
    w.learn(f, x, table + torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    w.change("back")
    w.call("hit", f, x + 1, table.clone())


@script(2)
def tolist_of_a_large_tensor(w: World) -> None:
    def f(x):
        return x + sum(x.tolist())

    f = w.jit(f)
    w.call("65 elements of type Float by tolist", f, torch.ones(65))
    w.change("size")
    w.call("an earlier recording was unsound", f, torch.ones(64))


@script(2)
def float_and_int_of_tensors(w: World) -> None:
    def f(x, s, n):
        return x * float(s) + int(n)

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.tensor(0.5), torch.tensor(3))
    w.change("the float, which only feeds arithmetic")
    w.call("hit", f, x, torch.tensor(0.25), torch.tensor(3))
    w.change("the int")
    w.learn(f, x, torch.tensor(0.25), torch.tensor(-3))
    w.change("back")
    w.call("hit", f, x, torch.tensor(0.5), torch.tensor(3))


@script(2)
def numbers_that_only_feed_arithmetic(w: World) -> None:
    def f(x, s):
        y = x / x.sum().item()
        return torch.clamp(y, max=s.item()).add_(x, alpha=float(s))

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.tensor(0.25))
    for value in (0.5, -0.0, float("inf"), float("nan"), 1e-40):
        w.change("the numbers")
        w.call("hit", f, x + 1, torch.tensor(value))
    w.change("types")
    w.learn(f, x.double(), torch.tensor(0.3, dtype=torch.float16))
    w.call("hit", f, x.double() + 1, torch.tensor(0.7, dtype=torch.float16))


@script(2)
def numbers_too_large_for_the_tensor(w: World) -> None:
    def f(x, s):
        return torch.add(x, 1, alpha=s.item())

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.tensor(0.25, dtype=torch.float64))
    w.change("a double in the float's range")
    w.learn(f, x, torch.tensor(0.5, dtype=torch.float64))
    w.change("out of range: eager raises")
    w.call("raised", f, x, torch.tensor(1e300, dtype=torch.float64))
    w.change("back")
    w.call("hit", f, x + 1, torch.tensor(0.5, dtype=torch.float64))


@script(2)
def a_number_that_lives_on(w: World) -> None:
    def f(x):
        total = x.sum().item()
        return x / total, total

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("contents")
    w.call("hit", f, x + 1)
    w.call("hit", f, x)


@script(2)
def argmax_as_an_index(w: World) -> None:
    def f(x, rows):
        best = x.argmax().item()
        return rows[best] * 2, x[x.argmin()]

    f, x, rows = w.jit(f), torch.tensor([1.0, 5.0, 2.0]), torch.arange(6.0).view(3, 2)
    w.learn(f, x, rows)
    x[2] = 9.0
    w.change("another maximum")
    w.learn(f, x, rows)
    x[2] = 7.0
    w.change("the same place")
    w.call("hit", f, x, rows)
    x[2] = 2.0
    w.change("back")
    w.call("hit", f, x, rows)


@script(2)
def equality_of_tensors(w: World) -> None:
    def f(x, y):
        if torch.equal(x, y):
            return x * 2
        return x + 1 if torch.allclose(x, y, atol=0.1) else y - x

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, x.clone())
    w.change("a little")
    w.learn(f, x, x + 0.05)
    w.change("much")
    w.learn(f, x, x + 1)
    w.change("back")
    w.call("hit", f, x * 3, x * 3)
    w.call("hit", f, x, x + 0.01)
    w.call("hit", f, x, x + 5)


@script(2)
def number_in_a_result(w: World) -> None:
    def f(x):
        n = (x > 1).sum().item()
        return {"count": n, "scaled": x * n}

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("count")
    w.learn(f, x * 0.5)
    w.change("back")
    w.call("hit", f, x)


@script(2)
def nothing_but_a_number(w: World) -> None:
    def f(x):
        return int((x > 1).sum())

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x)
    w.change("count")
    w.learn(f, x * 0.5)
    w.change("back")
    w.call("hit", f, x * 0.9)


@script(2)
def number_in_a_tensor(w: World) -> None:
    def f(x, v):
        return x * 2 if 3.0 in v else x + 1

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.tensor([1.0, 3.0]))
    w.change("contents")
    w.learn(f, x, torch.tensor([1.0, 2.0]))
    w.change("back")
    w.call("hit", f, x, torch.tensor([3.0, 2.0]))


@script(2)
def the_variant_limit(w: World) -> None:
    def f(x, t):
        b = t.item()
        return x * b

    f, x = w.jit(f), torch.arange(4.0)
    for value in range(8):
        w.call("new", f, x, torch.tensor(value))
    w.change("none of the eight came again")
    for value in range(8, 24):
        w.call("its last recordings served no second call: b at ", f, x, torch.tensor(value))
    w.call("new", f, x, torch.tensor(24))
    w.call("hit", f, x, torch.tensor(24))
    w.change("known values, and new ones that come again")
    for value in (*range(8), 24):
        w.call("hit", f, x + 1, torch.tensor(value))
    for value in range(30, 85):
        w.learn(f, x, torch.tensor(value))
    w.change("there is no room for one more")
    w.call("variant limit (64) reached: b at ", f, x, torch.tensor(90))
    w.call("again", f, x, torch.tensor(90))
    for value in (90, 84, 60, 24):
        w.call("hit", f, x + 1, torch.tensor(value))


@script(2)
def the_limit_of_values_on_a_path(w: World) -> None:
    def f(x, n):
        for _ in range(40):
            if n <= 0:
                return x
            x = x * 1.5
            n = n - 1
        return x

    f, x = w.jit(f), torch.arange(4.0)
    w.learn(f, x, torch.tensor(31))
    w.change("long paths that do not come again")
    w.call("new", f, x, torch.tensor(33))
    w.call("new", f, x, torch.tensor(34))
    w.change("so no more of them are recorded")
    f(x, torch.tensor(32))  # the two are dropped
    w.call("value limit (32) reached: bool at ", f, x, torch.tensor(35))
    w.change("back")
    w.call("hit", f, x + 1, torch.tensor(31))


@script(2)
def numpy_stays_outside(w: World) -> None:
    def f(x):
        return x * float(x.numpy().sum())

    f, x = w.jit(f), torch.arange(4.0)
    w.call("use of a tensor outside operators by TensorBase.numpy", f, x)
    w.change("contents")
    w.call("use of a tensor outside operators by TensorBase.numpy", f, x + 1)


@script(2)
def pure_functions_read_values(w: World) -> None:
    from fastjit import fastjit

    def f(x):
        return x * 2 if x.sum() > 0 else x - 1

    f = fastjit(pure=True)(f) if w.fast else f
    x = torch.arange(4.0)
    w.learn(f, x)
    w.change("sign")
    w.learn(f, -x)
    w.change("back")
    w.call("hit", f, x)
