"""torch.compile(f, backend="fastjit"): results as eager's, and what ran as programs."""

from __future__ import annotations

import copy
import importlib.metadata
import linecache
import re
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import fastjit
from fastjit.torch_compile import programs
from helpers import assert_same
from script_tools import _module_class_kept


@pytest.fixture(autouse=True)
def _alone():
    """Dynamo forgets, so that programs() holds what the test makes; a fallback that warns fails the test."""
    torch._dynamo.reset()
    with _module_class_kept(), warnings.catch_warnings():
        warnings.simplefilter("error", fastjit.FastJITWarning)
        yield
    torch._dynamo.reset()


def compiled(fn, **given):
    fastjit.torch_compile._made.clear()
    return torch.compile(fn, backend="fastjit", **given)


def ran() -> dict[str, tuple[int, int]]:
    """Name of a program -> calls and hits; of several with one name, the sums."""
    found: dict[str, tuple[int, int]] = {}
    for program in programs():
        stats, (calls, hits) = program.stats(), found.get(program._name, (0, 0))
        found[program._name] = (calls + stats.calls, hits + stats.hits)
    return found


def check(fn, calls, **given):
    """Each call gives what eager gives, and leaves its arguments as eager leaves them."""
    fast = compiled(fn, **given)
    for args in calls:
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        assert_same(fast(*mine), fn(*theirs))
        assert_same(mine, theirs)
    return ran()


def gelu_bias(x, w, b):
    return nn.functional.gelu(x @ w + b)


def squares(*sizes: int):
    return [(torch.randn(n, 4),) for n in sizes]


# -- the entry point and the options


def test_the_entry_point_is_the_backend():
    (point,) = importlib.metadata.entry_points(group="torch_dynamo_backends", name="fastjit")
    assert point.load() is fastjit.torch_compile.backend
    assert "fastjit" in torch._dynamo.list_backends()


def test_neither_the_import_nor_the_decorator_loads_dynamo():
    code = """
import sys, torch, fastjit
f = fastjit.fastjit(lambda x: x * 2)
with torch.no_grad():
    f(torch.ones(3)), f(torch.ones(3))
assert f.stats().hits == 1 and "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": {"numrics": "fast"}}, "unknown option 'numrics'; did you mean 'numerics'?"),
        ({"options": {"numerics": "quick"}}, "numerics"),
        ({"mode": "max-autotune"}, "mode= of torch.compile is not for the backend 'fastjit'; leave it out"),
    ],
)
def test_an_option_that_does_not_exist_is_named(given, said):
    with pytest.raises(Exception, match=said.replace("?", r"\?")):
        compiled(gelu_bias, **given)(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2))


def test_options_reach_the_programs():
    fast = compiled(lambda x: x.sin() * 2, options={"verify": True, "name": "doubled sine"})
    for _ in range(3):
        fast(torch.ones(4))
    (program,) = programs()
    assert (program._name, program.stats().hits, program.stats().verified) == ("doubled sine", 2, 2)


# -- without gradients


def test_calls_after_the_first_are_hits():
    args = torch.randn(64, 32), torch.randn(32, 16), torch.randn(16)
    assert check(gelu_bias, [args] * 4) == {"gelu_bias": (4, 3)}


def test_a_module_reads_its_parameters_at_each_call():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    fast = compiled(model)
    for _ in range(4):
        x = torch.randn(3, 4)
        assert_same(fast(x), model(x))
        model[0].weight.mul_(1.5)
    assert list(ran().values()) == [(4, 3)]


def twice_as_long(x):
    return (x * 2).reshape(-1, x.size(0) * 2) + x.size(0), x.size(0)


def test_any_size_is_one_program_once_a_size_has_changed():
    check(twice_as_long, squares(5, 6, 7, 8, 3, 9, 12))
    assert all(p.stats().hits == p.stats().calls - 1 for p in programs()) and len(programs()) <= 3


def test_any_size_is_one_program_where_sizes_are_dynamic_from_the_start():
    check(twice_as_long, squares(5, 6, 7, 8, 3, 9), dynamic=True)
    assert all(p.stats().hits == p.stats().calls - 1 for p in programs()) and len(programs()) <= 2


def test_sizes_of_zero_and_one_are_right():
    check(twice_as_long, squares(4, 1, 6, 1, 7, 2, 3))


def test_a_number_that_changes_is_a_parameter():
    (counts,) = check(lambda x, s: x * s + 1, [(torch.ones(3), 1.5 + i) for i in range(6)]).values()
    assert counts == (6, 4)  # one for the first value, one for any


def write_and_return_views(x, y):
    x.add_(1)
    part = x[1:]
    part.mul_(2)
    return part, x, y.t()


def test_writes_and_aliases_are_eagers():
    fast = compiled(write_and_return_views)
    for _ in range(4):
        x, y = torch.randn(4, 4), torch.randn(2, 3)
        expected = write_and_return_views(x.clone(), y)
        part, same, turned = fast(x, y)
        assert_same((part, same, turned), expected)
        assert same is x and part.data_ptr() == x[1:].data_ptr() and turned.data_ptr() == y.data_ptr()
    assert ran() == {"write_and_return_views": (4, 3)}


def modes(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    with torch.enable_grad():
        y = y + 1
    return torch.vmap(lambda row: row.float().sin().sum())(y) * 3


def test_modes_and_vmap_inside_a_graph():
    assert check(modes, squares(4, 4, 4)) == {"modes": (3, 2)}


def broken(x):
    y = x.sin() * 2
    print("between")
    return y.cos() + 1


def test_both_sides_of_a_graph_break_are_programs(capsys):
    assert list(check(broken, squares(4, 4, 4)).values()) == [(3, 2), (3, 2)]
    assert capsys.readouterr().out == "between\n" * 6


def looked_up(x):
    rows = x.long()[:, 0]
    return x[rows] * 2


def test_an_error_is_torchs_and_shows_the_users_line():
    fast = compiled(looked_up)
    fast(torch.zeros(3, 3)), fast(torch.zeros(3, 3))
    with pytest.raises(IndexError, match="index 7 is out of bounds") as error:
        fast(torch.full((3, 3), 7.0))
    (last,) = traceback.extract_tb(error.value.__traceback__)[-1:]
    assert (last.filename, last.name, last.line) == (__file__, "looked_up", "return x[rows] * 2")
    assert ran() == {"looked_up": (3, 1)}


def helper(x):
    return x.sin() * 2


def helped(x):
    y = x + 1
    return helper(y).exp()


def lines_of(program) -> set[str]:
    """The source lines that the graph of a program names as the places of its operators."""
    found = re.findall(r'"([^"]+):(\d+)"$', program.inspect("ir"), re.MULTILINE)
    return {linecache.getline(file, int(line)).strip() for file, line in found}


@pytest.mark.parametrize("needs_grad", [False, True])
def test_programs_know_the_users_lines(needs_grad):
    fast = compiled(helped)
    with torch.set_grad_enabled(needs_grad):
        for _ in range(3):
            out = fast(torch.ones(3, requires_grad=needs_grad))
            if needs_grad:
                out.sum().backward()
    for program in programs():
        assert "return x.sin() * 2" in lines_of(program)


def tangent(x):
    return torch.func.jvp(torch.sin, (x + 1,), (x,))[1] * 2


def test_a_fallback_is_said_once_with_the_users_place():
    fast, x = compiled(tangent), torch.ones(3)
    line = tangent.__code__.co_firstlineno + 1
    with pytest.warns(fastjit.FastJITWarning, match="fastjit: tangent ran eagerly because ") as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(fast(x), tangent(x))
    (only,) = [warning for warning in seen if warning.category is fastjit.FastJITWarning]
    assert f" at {Path(__file__).name}:{line}" in str(only.message)
    assert ran() == {"tangent": (3, 0)}


def nothing_to_run(x):
    return x, x.size(0)


def test_a_graph_without_operators_says_nothing():
    assert check(nothing_to_run, squares(4, 5, 6)) == {}


# -- control flow


def chosen(x):
    y = x * 2
    z = torch.cond(y.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() + 1, (y,))
    return z * 3 + y


def test_both_branches_of_cond_are_programs():
    up, down = torch.ones(3, 3), -torch.ones(3, 3)
    assert check(chosen, [(up,), (down,)] * 3) == {
        "chosen, part 0": (6, 5),
        "chosen, part 2": (6, 5),
        "chosen, cond_true_0": (3, 2),
        "chosen, cond_false_0": (3, 2),
    }


def counted(x):
    steps, y = while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.1 + 1), (torch.tensor(0), x))
    return y + steps


def test_the_body_and_the_condition_of_while_loop_are_programs():
    found = check(counted, squares(4, 4, 4))
    assert found["counted, body_fn_0"] == (15, 14) and found["counted, cond_fn_0"] == (18, 17)


def scanned(x):
    last, all_of = scan(lambda carry, row: (carry * 0.9 + row, carry.sin() + row), torch.zeros(4), x)
    return last, all_of * 2


def test_the_step_of_scan_is_a_program():
    found = check(scanned, squares(5, 5, 5))
    assert found["scanned, scan_combine_fn_0"] == (15, 14)


def nested(x):
    def outer(y):
        return torch.cond(y.max() > 2, lambda y: y * 2, lambda y: y.exp(), (y,)) + 1

    return torch.cond(x.sum() > 0, outer, lambda y: y - 1, (x,)) * 2


def test_control_flow_in_a_branch():
    calls = [(torch.full((2, 2), value),) for value in (1.0, 3.0, -1.0)] * 2
    found = check(nested, calls)
    inner = [counts for name, counts in found.items() if name.count("cond_") == 2]
    assert inner == [(2, 1), (2, 1)]


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() * 2 + 1


def repeated(x):
    return region(region(region(x))) + 1


def test_equal_regions_are_one_program():
    found = check(repeated, squares(4, 4, 4))
    (body,) = [counts for name, counts in found.items() if "subgraph" in name]
    assert body == (9, 8)


# -- with gradients


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * grad  # not the derivative, so that it shows who calculated it


class Squares(nn.Sequential):
    def forward(self, x):
        return Square.apply(super().forward(x)).sin()


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)

    def forward(self, xs):
        h = c = torch.zeros(xs.size(1), 8)
        for x in xs:
            h, c = self.cell(x, (h, c))
        return h


class Branches(nn.Sequential):
    def forward(self, x):
        y = super().forward(x)
        return torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() + 1, (y,)) * 2


class Casts(nn.Sequential):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


MODELS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)), (8, 4)),
    "norms": (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Softmax(-1)), (8, 4)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU()), (4, 3, 8, 8)),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 4)), (8, 4)),
    "LSTM cell": (Cell, (5, 3, 4)),
    "autograd.Function": (lambda: Squares(nn.Linear(4, 4)), (8, 4)),
    "autocast": (lambda: Casts(nn.Linear(4, 16), nn.ReLU()), (8, 4)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
}


def train(model, run, x) -> list:
    """One step: the result, gradients and buffers after it."""
    torch.manual_seed(1)
    model.zero_grad()
    out = run(x)
    out.square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    grads = [parameter.grad for parameter in model.parameters()]
    return [out.detach(), *grads, *copy.deepcopy(list(model.buffers()))]


@pytest.mark.parametrize("which", MODELS)
@torch.enable_grad()
def test_training_steps(which):
    make, shape = MODELS[which]
    model = make().train()
    twin = copy.deepcopy(model)
    fast = compiled(twin)
    for _ in range(4):
        x = torch.randn(shape)
        for mine, theirs in zip(train(twin, fast, x), train(model, model, x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    forward, backward = programs()
    assert forward._name.endswith("forward") and backward._name.endswith("backward")
    # The first call of a forward graph runs below a mode of torch's own, which looks at custom operators.
    assert (forward.stats().calls, forward.stats().hits) == (4, 2)
    assert (backward.stats().calls, backward.stats().hits, backward.stats().fallbacks) == (4, 3, {})


@torch.enable_grad()
def test_training_through_cond():
    model = Branches(nn.Linear(4, 4))
    twin = copy.deepcopy(model)
    fast = compiled(twin)
    for _ in range(3):
        for sign in (1, -1):
            x = torch.rand(3, 4) * sign
            assert_same(train(twin, fast, x), train(model, model, x))
    branches = [counts for name, counts in ran().items() if "true" in name or "false" in name]
    assert branches == [(3, 2)] * 4


@torch.enable_grad()
def test_training_through_scan():
    def fn(x, w):
        return scan(lambda h, row: ((h @ w + row).tanh(), h.sin()), torch.zeros(4), x)[1]

    fast = compiled(fn)
    for _ in range(3):
        x = torch.randn(5, 4)
        (w,) = leaves((4, 4))
        twin = w.detach().clone().requires_grad_()
        h, rows = torch.zeros(4), []
        for row in x:
            rows.append(h.sin())
            h = (h @ twin + row).tanh()
        fast(x, w).sum().backward(), torch.stack(rows).sum().backward()
        torch.testing.assert_close(w.grad, twin.grad)
    bodies = [counts for name, counts in ran().items() if "combine" in name]
    assert bodies == [(15, 14), (15, 14)]


@torch.enable_grad()
def test_checkpoints():
    layer = nn.Linear(4, 4)

    def fn(x):
        return checkpoint(lambda x: layer(x).sin().exp(), x, use_reentrant=False) * 2

    agree(fn, lambda out, _: out.sum().backward(), (3, 4))


@torch.enable_grad()
def test_training_at_sizes_that_vary():
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    twin = copy.deepcopy(model)
    fast = compiled(twin)
    for size in (5, 6, 7, 8, 3, 9):
        x = torch.randn(size, 4)
        for mine, theirs in zip(train(twin, fast, x), train(model, model, x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert [program.stats().hits for program in programs()] == [0, 0, 3, 4]


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def agree(fn, use, *shapes, hits=(2, 3)):
    """`use(results, leaves)` takes gradients; those of compiled and of eager calls agree, None included."""
    fast = compiled(fn)
    for _ in range(4):
        mine = leaves(*shapes)
        theirs = [leaf.detach().clone().requires_grad_() for leaf in mine]
        use(fast(*mine), mine), use(fn(*theirs), theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert (a.grad is None) == (b.grad is None)
            if b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)
    assert tuple(program.stats().hits for program in programs()) == hits


@torch.enable_grad()
def test_a_result_that_the_loss_does_not_use():
    agree(lambda x, w: ((x @ w).sin(), x.exp()), lambda out, _: out[0].sum().backward(), (3, 3), (3, 3))


@torch.enable_grad()
def test_an_input_that_no_result_depends_on_has_no_gradient():
    agree(lambda x, w: (x * 2).sin() + w.detach(), lambda out, _: out.sum().backward(), (3,), (3,))


@torch.enable_grad()
def test_backward_twice_with_retain_graph():
    def use(out, _):
        out.sum().backward(retain_graph=True)
        out.square().sum().backward()

    agree(lambda x: x.exp() * x.sin(), use, (3, 3), hits=(2, 7))


@torch.enable_grad()
def test_complex_numbers():
    fixed = torch.randn(3, 3, dtype=torch.complex64)
    agree(lambda x: ((x + 1j) @ fixed).abs().sin(), lambda out, _: out.sum().backward(), (3, 3))


@torch.enable_grad()
def test_two_calls_before_a_backward():
    fast, eager = compiled(lambda x: (x * 2).sin()), lambda x: (x * 2).sin()
    for _ in range(4):
        x = torch.randn(4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        (fast(x) * fast(fast(x))).sum().backward()
        (eager(y) * eager(eager(y))).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert [program.stats().hits for program in programs()] == [10, 11]


@torch.enable_grad()
def test_a_saved_tensor_that_is_written_raises():
    fast = compiled(lambda x, w: (x @ w).exp())
    for _ in range(3):
        x, w = leaves((3, 3), (3, 3))
        out = fast(x * 1, w)
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    assert programs()[0].stats().hits == 1


@torch.enable_grad()
def test_an_argument_that_is_written_has_a_history():
    def fn(x, w):
        x.add_(w)
        return x.sin(), x[0]

    def use(out, _):
        (out[0].sum() + out[1].sum()).backward()

    fast = compiled(lambda x, w: fn(x, w))
    for _ in range(4):
        base, w = leaves((3, 3), (3, 3))
        twins = [leaf.detach().clone().requires_grad_() for leaf in (base, w)]
        x, y = base * 1, twins[0] * 1
        use(fast(x, w), None), use(fn(y, twins[1]), None)
        assert x.grad_fn is not None
        torch.testing.assert_close([x, base.grad, w.grad], [y, *(t.grad for t in twins)])
    assert [program.stats().hits for program in programs()] == [2, 3]


@torch.enable_grad()
def test_results_that_are_views_of_each_other_and_of_an_argument():
    def fn(x):
        y = x.exp()
        return y, y.t(), x[0], y.t().t()

    def use(out, _):
        assert out[1].data_ptr() == out[0].data_ptr() == out[3].data_ptr()
        sum(part.square().sum() for part in out).backward()

    agree(fn, use, (3, 3))


@torch.enable_grad()
def test_dropout_draws_what_eager_draws():
    fast = compiled(lambda x: nn.functional.dropout(x, 0.5) * 2)
    for seed in range(4):
        x = torch.ones(64, requires_grad=True)
        torch.manual_seed(seed)
        mine, after = fast(x), torch.rand(1)
        torch.manual_seed(seed)
        assert_same((mine.detach(), after), (nn.functional.dropout(x, 0.5).detach() * 2, torch.rand(1)))
    assert programs()[0].stats().hits == 2


@torch.enable_grad()
def test_without_an_input_that_requires_grad_the_graph_runs_as_it_is():
    assert check(gelu_bias, [(torch.randn(3, 3), torch.randn(3, 3), torch.randn(3))] * 3) == {"gelu_bias": (3, 2)}
