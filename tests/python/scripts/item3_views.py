"""Item 3: views, slices and aliases, one script a pattern that breaks tracers of in-place code."""

from __future__ import annotations

import torch

from script_tools import World, script


@script(3)
def same_local_returned_twice(w: World) -> None:
    def f(x):
        y = x + 1
        return y, [y, {"y": y}], y.view(-1)

    f, x = w.jit(f), torch.arange(4.0).view(2, 2)
    w.call("new", f, x)
    x.add_(1)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def base_written_then_old_view_read(w: World) -> None:
    def f(x):
        y = x.clone()
        old = y[1]
        kept = old * 1
        y.mul_(3)
        old_after = old + 0
        old.add_(1)
        return kept, old_after, y.sum(1), old

    f, x = w.jit(f), torch.arange(6.0).view(3, 2)
    w.call("new", f, x)
    x.neg_()
    w.change("x")
    w.call("hit", f, x)


@script(3)
def permuted_sliced_selected_view_written(w: World) -> None:
    def f(x):
        x.permute(2, 0, 1)[1:, :, ::2][0].t()[1] = 7.0
        return x * 1

    f, x = w.jit(f), torch.arange(24.0).view(2, 3, 4)
    w.call("new", f, x)
    x.fill_(-1)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def even_places_from_odd_places(w: World) -> None:
    def f(a):
        a[0::2] = a[1::2] * 2
        a[1::2] = a[0::2] + a[1::2]
        a[..., ::2].clamp_(0, 5)
        a[..., 1::2].clamp_(1, 3)
        return a

    f, a = w.jit(f), torch.arange(6.0)
    w.call("new", f, a)
    w.change("a")
    w.call("hit", f, a)


@script(3)
def slice_bounds_of_every_kind(w: World) -> None:
    def f(x):
        x[-2:] = 1.0
        x[:-3] += 2
        x[-1] = x[-3] * 3
        x[5:99] = -1.0
        x[3:3] = 8.0
        x[::100] = 4.0
        x[-100:1] *= 2
        return x[-100:100], x[4:2], x[None, ..., -2]

    f, x = w.jit(f), torch.arange(7.0)
    w.call("new", f, x)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def float_stored_into_int(w: World) -> None:
    def f(x, y, m):
        x[0] = y[0]
        x[1:].copy_(y[1:])
        m[:] = y
        return x + 1, m

    f, x, m = w.jit(f), torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)
    w.call("new", f, x, torch.tensor([1.7, -2.5, 0.0]), m)
    w.change("values")
    w.call("hit", f, x, torch.tensor([0.2, 2.9, -0.0]), m)


@script(3)
def token_buffer_of_ints(w: World) -> None:
    def f(logits, out):
        for i in range(3):
            out[i] = logits[i].argmax(-1)
        return out

    f, out = w.jit(f), torch.zeros(3, 2, dtype=torch.int64)
    w.call("new", f, torch.arange(24.0).view(3, 2, 4), out)
    w.change("logits")
    w.call("hit", f, -torch.arange(24.0).view(3, 2, 4), out)


@script(3)
def write_under_one_branch_only(w: World) -> None:
    g = w.source(
        "flag = True\n"
        "def f(x):\n    y = x * 2\n    v = y[1:]\n    if flag:\n        v.add_(10)\n    return y, v.sum()\n"
    )
    f, x = w.jit(g["f"]), torch.arange(4.0)
    w.learn(f, x)
    g["flag"] = False
    w.change("flag")
    w.learn(f, x)
    g["flag"] = True
    w.change("flag back")
    w.call("hit", f, x)


@script(3)
def branch_in_loop_and_loop_in_branch(w: World) -> None:
    g = w.source(
        "plan = [1, 0, 2]\n"
        "def f(x):\n"
        "    y = x.clone()\n"
        "    for k in plan:\n"
        "        if k == 0:\n            continue\n"
        "        for i in range(k):\n            y[i] += x[k] * y[-1]\n"
        "    return y\n"
    )
    f, x = w.jit(g["f"]), torch.arange(4.0) + 1
    w.learn(f, x)
    g["plan"][1] = 1
    w.change("an item of the plan")
    w.learn(f, x)
    g["plan"].clear()
    w.change("no iteration at all")
    w.learn(f, x)
    g["plan"].extend([1, 0, 2])
    w.change("the first plan again")
    w.call("hit", f, x)


@script(3)
def view_chosen_by_condition_then_written(w: World) -> None:
    def f(x, n):
        y = x + 0
        v = y[0] if n % 2 else y[:, 1]
        v.mul_(5)
        return y

    f, x = w.jit(f), torch.arange(9.0).view(3, 3)
    w.learn(f, x, 1)
    w.change("n")
    w.learn(f, x, 2)
    w.call("hit", f, x, 1)


@script(3)
def base_rebound_while_view_lives(w: World) -> None:
    def f(x):
        base = x.clone()
        v = base[0]
        base = base * 100  # a new tensor: v still looks into the old one
        v.add_(1)
        return base, v, v._base is None

    f, x = w.jit(f), torch.arange(4.0).view(2, 2)
    w.call("read of Tensor._base", f, x)
    w.change("nothing")

    def g(x):
        base = x.clone()
        v = base[0]
        kept = base
        base = base * 100
        v.add_(1)
        return base, v, kept

    g = w.jit(g)
    w.call("new", g, x)
    x.add_(1)
    w.change("x")
    w.call("hit", g, x)


@script(3)
def written_after_it_was_appended(w: World) -> None:
    def f(x):
        parts = []
        y = x * 1
        for i in range(3):
            parts.append(y)
            parts.append(y[i])
            y.add_(i)
        parts[1].mul_(-1)
        return parts, torch.stack(parts[1::2])

    f, x = w.jit(f), torch.arange(3.0)
    w.call("new", f, x)
    x.add_(1)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def helper_writes_to_what_it_gets(w: World) -> None:
    g = w.source(
        "step = 1.0\n"
        "def bump(t, out):\n    t += step\n    out[0].copy_(t[-1])\n"
        "def f(x, o):\n    v = x[1:]\n    bump(v, [o])\n    return v * 2\n"
    )
    f, x, o = w.jit(g["f"]), torch.arange(4.0), torch.zeros(())
    w.learn(f, x, o)
    g["step"] = 2.0
    w.change("what the helper adds")
    w.learn(f, x, o)


@script(3)
def rows_swapped(w: World) -> None:
    def f(x, i, j):
        x[i], x[j] = x[j].clone(), x[i].clone()
        x[0], x[1] = x[1], x[0]  # without copies: both rows become the old row 1
        return x

    f, x = w.jit(f), torch.arange(6.0).view(3, 2)
    w.call("new", f, x, 0, 2)
    w.change("x")
    w.call("hit", f, x, 0, 2)
    w.change("i and j")
    w.learn(f, x, 1, 2)


@script(3)
def slice_from_overlapping_slice(w: World) -> None:
    def f(x):
        x[1:] = x[:-1]
        return x

    f = w.jit(f)
    w.call("raised", f, torch.arange(6.0))
    w.change("nothing")
    w.call("raised", f, torch.arange(6.0))


@script(3)
def augmented_and_plain_assignment(w: World) -> None:
    def f(x, y):
        kept = x
        x += y  # writes to the argument
        x = x + y  # does not
        x += y  # writes to the new tensor
        return kept, x

    f, x, y = w.jit(f), torch.arange(4.0), torch.ones(4)
    w.call("new", f, x, y)
    w.change("x")
    w.call("hit", f, x, y)


@script(3)
def reshape_is_view_or_copy(w: World) -> None:
    def f(x):
        x.reshape(-1).add_(1)
        x.flatten()[0].mul_(5)
        x.contiguous().zero_()
        return x * 1

    f = w.jit(f)
    w.call("new", f, torch.arange(6.0).view(2, 3))
    w.call("hit", f, torch.arange(6.0).view(2, 3))
    w.change("strides")
    w.call("new", f, torch.arange(6.0).view(2, 3).t())
    w.call("hit", f, torch.arange(6.0).view(2, 3).t())


@script(3)
def in_place_never_broadcasts_itself(w: World) -> None:
    def f(x, y):
        return x.add_(y)

    f = w.jit(f)
    w.learn(f, torch.zeros(3), torch.ones(1))
    w.change("an addend larger than the destination")
    w.call("raised", f, torch.zeros(3), torch.ones(2, 3))
    w.call("hit", f, torch.zeros(3), torch.ones(1))


@script(3)
def empty_filled_piece_by_piece(w: World) -> None:
    def f(x):
        out = torch.empty(4)
        out[0] = x[3]
        out[1:3] = x[:2]
        out[3:].fill_(2)
        return out

    f, x = w.jit(f), torch.arange(4.0)
    w.call("new", f, x)
    x.add_(1)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def forty_writes_to_one_tensor(w: World) -> None:
    def f(x):
        y = torch.zeros(8, 5)
        for i in range(8):
            y[i] = x + i
        for i in range(5):
            for k in (0, 3, 6):
                y[k : k + 2, i] += y[7, i]
        return y

    f, x = w.jit(f), torch.arange(5.0)
    w.call("new", f, x)
    x.add_(1)
    w.change("x")
    w.call("hit", f, x)


@script(3)
def trip_count_from_a_shape(w: World) -> None:
    def f(x):
        state = torch.zeros(2)
        for t in range(x.shape[0]):
            state = torch.tanh(state * 0.5 + x[t])
        return state

    f = w.jit(f)
    w.learn(f, torch.ones(3, 2))
    w.change("one more row")
    w.learn(f, torch.ones(4, 2))
    w.change("no row")
    w.learn(f, torch.ones(0, 2))
    w.call("hit", f, torch.ones(3, 2))


@script(3)
def position_that_changes_per_call(w: World) -> None:
    def f(cache, x, pos):
        cache[:, pos] = x
        return cache[:, : pos + 1].sum(1)

    f, cache = w.jit(f), torch.zeros(2, 4)
    w.call("new", f, cache, torch.ones(2), 0)
    for pos in (1, 2):
        w.change("the position")
        w.call("new", f, cache, torch.ones(2), pos)
    w.call("hit", f, cache, torch.ones(2), 0)
    w.call("hit", f, cache, torch.full((2,), 5.0), 2)


@script(3)
def sizes_that_depend_on_data(w: World) -> None:
    def f(x):
        kept = x[x > 1]
        return kept * 2, kept.max()

    f = w.jit(f)
    w.learn(f, torch.arange(4.0))
    w.change("another count")
    w.call("hit", f, torch.arange(4.0) * 2)
    w.change("nothing is kept: eager's own error")
    w.call("raised", f, torch.zeros(4))
    w.call("hit", f, torch.arange(4.0))


@script(3)
def lists_as_long_as_data(w: World) -> None:
    def f(x):
        return [part * 2 for part in x[x > 1].split(2)]

    f = w.jit(f)
    w.call("depends on data", f, torch.arange(4.0))
    w.change("a longer list")
    w.call("depends on data", f, torch.arange(9.0))


@script(3)
def expanded_source_and_destination(w: World) -> None:
    def f(x, y):
        wide = x[:, None].expand(3, 4)
        z = wide + y
        z += wide
        return z, wide

    f, x = w.jit(f), torch.arange(3.0)
    w.learn(f, x, torch.ones(3, 4))
    w.change("an expanded argument")
    w.learn(f, x, torch.ones(1, 4).expand(3, 4))
    w.call("hit", f, x, torch.ones(3, 4))


@script(3)
def one_element_double_mixed_with_float(w: World) -> None:
    def f(x, lo):
        x.clamp_(min=lo[0])
        x *= torch.tensor(2.0, dtype=torch.float64)
        return torch.maximum(x, lo), x.double() - lo

    f, x = w.jit(f), torch.arange(-2.0, 2.0)
    w.learn(f, x, torch.tensor([-1.0], dtype=torch.float32))
    w.change("a lower bound of type f64")
    w.learn(f, x, torch.tensor([0.1], dtype=torch.float64))


@script(3)
def boolean_masks_written_and_combined(w: World) -> None:
    def f(x, keep):
        keep &= x > 0
        keep[0] |= x[0] < 0
        x.masked_fill_(~keep, -1.0)
        x[keep & (x > 2)] *= 3
        return x, keep.sum()

    f, x, keep = w.jit(f), torch.arange(-2.0, 4.0), torch.ones(6, dtype=torch.bool)
    w.learn(f, x, keep)
    keep.fill_(True)
    w.change("the mask")
    w.call("hit", f, torch.arange(6.0).neg(), keep)
