"""inspect(): legends, names of kernels, boxes of kernels, and nothing said twice."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch.nn import functional as F

from fastjit import fastjit


def called(fn, *args):
    fast = fastjit(fn)
    fast(*args)
    fast(*args)
    assert fast.stats().hits == 1, fast.stats()
    return fast


NAMES = {
    "fj_mul_add_f32": (lambda x: x * 2 + 1, (torch.randn(9),)),
    "fj_mul_add_erf_f32": (lambda x, y: F.gelu(x * y + 1) * x, (torch.randn(9), torch.randn(9))),
    "fj_max_sub_exp_sum_div_f32": (lambda x: torch.softmax(x, -1), (torch.randn(5, 9),)),
    "fj_add_i64": (lambda x: x + 1, (torch.arange(9),)),
    "fj_lt_bool": (lambda x: x < 1, (torch.randn(9),)),
    "fj_convert_f64": (lambda x: x.double(), (torch.randn(9),)),
    "fj_copy_f32": (lambda x: x.t().contiguous(), (torch.randn(5, 9),)),
    "fj_sin_cos_exp_tan_tanh_abs_etc_f32": (
        lambda x: x.sin().cos().exp().tan().tanh().abs().sqrt().log(),
        (torch.randn(9),),
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_kernels_have_names_that_say_what_they_do(name):
    fn, args = NAMES[name]
    fast = called(fn, *args)
    assert fast.stats().kernels == 1
    assert f"\nkernel 0 is {name}:\n" in fast.inspect("plan")
    assert f"define void @{name}(" in fast.inspect("llvm")
    assert f"\n{name}:" in fast.inspect("asm")
    assert f"\n{name}(const Params p)" in fast.inspect("cuda")
    assert f'label="kernel 0 {name}";' in fast.inspect("dot")


def test_equal_plans_share_a_kernel_whatever_the_functions_are_called():
    first = called(lambda a: torch.hypot(a, a) * 1.25, torch.randn(9))
    second = called(lambda other: torch.hypot(other, other) * 1.25, torch.randn(9))
    assert first.stats().compiles + first.stats().disk_hits + first.stats().memory_hits == 1
    assert second.stats().memory_hits == 1 and second.variants()[0].keys == first.variants()[0].keys


def test_kernels_of_one_name_are_two_kernels():
    def f(x, y):
        return torch.mm(x * 2 + 1, (y.t() * 2 + 1).contiguous()) * 2 + 1

    x, y = torch.randn(170, 60), torch.randn(170, 60)
    fast = called(f, x, y)
    names = re.findall(r"\nkernel \d+ is (\w+):", fast.inspect("plan"))
    assert len(names) == fast.stats().kernels > 1 and set(names) == {"fj_mul_add_f32"}
    torch.testing.assert_close(fast(x, y), f(x, y), rtol=0, atol=0)


def deep(x):
    for _ in range(9):
        x = torch.softmax(x + x.sum(0), -1)
    return x


PLANS = {
    "chain": (lambda x: x * 2 + 1, (torch.randn(4, 4),), {"input I:", "grain:", "block:", "kernel K", "vec:", "row:"}),
    "softmax": (lambda x: torch.softmax(x * 2, -1), (torch.randn(5, 9),), {"elem:", "row:", "keep k, recall k:"}),
    "product": (lambda x: torch.relu(x @ x), (torch.randn(130, 130),), {"product KIND C", "kernel K", "tensor:"}),
    "extern": (lambda x: torch.cumsum(x, 0) + 1, (torch.randn(9),), {"extern C (slots)"}),
    "loop": (deep, (torch.randn(4, 9),), {"loop N:", "kernel K", "temp at B:"}),
    "number": (lambda x, c: x * c, (torch.randn(9), 2.5), {"scalars:"}),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_begins_with_what_its_words_mean(name):
    fn, args, expected = PLANS[name]
    plan = called(fn, *args).inspect("plan")
    legend, _, program = plan.partition("\n\n")
    assert all(line.startswith("# ") for line in legend.splitlines())
    assert {words for words in expected if words not in legend} == set()
    for word, meaning in {
        "units": "units:",
        "grain": "grain:",
        "block": "block:",
        "free": "free S",
        "tile": "tile:",
    }.items():
        assert (f" {word} " in program or f"\n{word} " in program) == (meaning in legend), word


def test_a_loop_is_drawn_round_by_round():
    fast = called(deep, torch.randn(4, 9))
    assert "\nloop " in fast.inspect("plan")
    assert fast.inspect("dot").count('label="kernel ') == fast.stats().kernels


def test_an_unchanged_graph_is_printed_once():
    steps = called(lambda x: x * 2 + 1, torch.randn(4)).inspect("passes")
    assert [step.changed for step in steps] == [True] + [a.graph != b.graph for a, b in itertools.pairwise(steps)]
    assert not all(step.changed for step in steps)
    printed = "\n".join(map(str, steps))
    assert printed.count("return %") == sum(step.changed for step in steps) < len(steps)
    assert re.search(r"<(fold|dead): \d+ nodes, [\d.]+ ms, unchanged>", printed)
    assert all(step.graph.count("return %") == 1 for step in steps)


def test_the_picture_has_a_box_for_each_launch_and_no_bits():
    def two(x, y):
        return torch.softmax(x * 2 + 1, -1), torch.mm(x, y).sigmoid()

    fast = called(two, torch.randn(130, 140), torch.randn(140, 150))
    dot = fast.inspect("dot")
    assert "bits=" not in dot and dot.count("subgraph cluster") == fast.stats().kernels
    boxes = re.findall(r"subgraph cluster\d+ \{\n +label=\"(.*?)\";\n([^}]*)\}", dot)
    assert {label.split()[-1] for label, _ in boxes} >= {"fj_sigmoid_f32"}
    inside = [node for _, nodes in boxes for node in re.findall(r"n\d+", nodes)]
    assert len(inside) == len(set(inside))
    outside = {"input", "contract", "extern", "result"}
    for node, label in re.findall(r"^  (n\d+) \[label=\"(.*?)(?<!\\)\"", dot, flags=re.MULTILINE):
        assert (node in inside) == (label.split()[0] not in outside), label


def test_the_picture_shows_what_is_written_and_long_sums():
    def f(x):
        x.mul_(2)
        return x.sum()

    dot = called(f, torch.randn(70000, 3)).inspect("dot")
    assert "written to x" in dot and dot.count("reduce sum") == 2 and dot.count("subgraph cluster") >= 2


def test_the_source_holds_only_what_it_uses():
    plain = called(lambda x: x * 2 + 1, torch.randn(4)).inspect("source")
    assert plain.startswith("import torch\n\n\ndef program(") and "def view" not in plain and "inf" not in plain
    views = called(lambda x: x[1:] * 2, torch.randn(4, 4)).inspect("source")
    assert "def view(" in views and "def strided(" not in views
    infinite = called(lambda x: torch.cumsum(x.clamp(max=float("inf")), 0).fill_(float("inf")), torch.randn(4))
    source = infinite.inspect("source")
    assert ("from math import inf\n" in source) == bool(re.search(r"[(, ]inf\b", source.partition("def program")[2]))


def test_the_source_has_no_dead_values():
    for fn in (lambda x: F.gelu(x * 2 + 1), lambda x: torch.softmax(x, -1), lambda x: torch.cumsum(x * 3, 0) + 1):
        body = called(fn, torch.randn(4, 4)).inspect("source").partition("def program")[2]
        values = re.findall(r"^    (v\d+) = (?!inputs|scalars)", body, flags=re.MULTILINE)
        assert values
        for value in values:
            assert len(re.findall(rf"\b{value}\b", body)) > 1, (value, body)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_what_follows_a_convolution_runs_in_its_memory(dims, last):
    if last and dims == 1:
        pytest.skip("channels_last needs 4 or 5 dims")
    torch.manual_seed(0)
    conv = getattr(torch.nn, f"Conv{dims}d")(8, 16, 3, groups=2).eval()  # torch's, however small
    norm = getattr(torch.nn, f"BatchNorm{dims}d")(16).eval()
    x = torch.randn(2, 8, *[7] * dims)
    if last:
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
        conv, x = conv.to(memory_format=layout), x.to(memory_format=layout)
    with torch.no_grad():
        fast = called(lambda x: torch.relu(norm(conv(x))), x)
        given, expected = fast(x), fast.eager(x)
        plan = fast.inspect("plan")
    assert given.stride() == expected.stride()
    torch.testing.assert_close(given, expected, rtol=1e-6, atol=1e-6)
    assert fast.stats().hits >= 1
    made = re.search(r"\nproduct convolution \d+ \(.*\) -> (s\d+)\n {4}kernel \d+ \((s\d+) ", plan)
    assert made and made[1] == made[2] and f"\noutputs {made[1]}\n" in plan, plan


def test_a_convolution_whose_result_is_wanted_itself_keeps_it():
    conv = torch.nn.Conv2d(3, 4, 3)
    x = torch.randn(1, 3, 6, 6)
    w = torch.randn(4, 4)

    def f(x):
        y = conv(x)
        view = y[:, 1]
        z = torch.relu(y) * 2
        y += 1
        return y, view, z, z.mean((0, 1)) @ w

    with torch.no_grad():
        fast = called(f, x)
        for got, want in zip(fast(x), fast.eager(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        y, view, *_ = fast(x)
        assert fast.stats().hits >= 2
        assert view.data_ptr() == y[:, 1].data_ptr()
        view.zero_()
        assert not y[:, 1].any()
