"""The operator recorder alone: what one watched call becomes, as graph text, and why a call is refused."""

import contextlib
import re
import threading

import pytest
import torch
import torch.nn.functional as F

from fastjit import _C


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def capture(fn, *args, **options):
    return _C.capture_debug(fn, *args, **options)


def ops(result):
    """The graph's nodes by name, extern ones by operator, constants and conversions left out."""
    assert result["unsound"] == ""
    names = []
    for line in result["graph"].splitlines():
        node = re.match(r"%\d+ = (\w+)", line)
        if node is None or node[1] in ("const", "convert", "input", "result"):
            continue
        names.append(re.search(r'"([^"]+)"', line)[1] if node[1] == "extern" else node[1])
    return names


def sample(*sizes):
    return torch.randn(*sizes or (4, 4))


# ---- one pure graph ------------------------------------------------------------------------------------------------


def test_multiply_add_is_one_pure_graph():
    result = capture(lambda x, y: x * y + 1, sample(), sample())
    assert ops(result) == ["mul", "add"]
    assert result["inputs"] == [("argument", 0), ("argument", 1)]
    assert result["calls"] == [] and result["stores"] == []


def test_lines_name_the_users_file():
    result = capture(lambda x: torch.exp(x), sample())
    assert re.search(r"test_capture\.py:\d+", result["lines"][-1])


def test_every_intermediate_is_itself_although_addresses_are_reused():
    def chain(x):
        for _ in range(60):
            x = x * 1.01 + 1
        return x

    result = capture(chain, sample(1000))
    assert ops(result) == ["mul", "add"] * 60


def test_the_same_work_twice_is_one_node_but_two_results():
    result = capture(lambda x: (x * 2, x * 2), sample())
    assert ops(result) == ["mul", "view"]
    assert len(set(result["outputs"])) == 2


def test_one_tensor_returned_twice_is_one_output():
    def fn(x):
        y = x + 1
        return [y, {"again": y, "argument": (x, None)}]

    first, second, argument = capture(fn, sample())["outputs"]
    assert first == second != argument == 0


def test_number_tensors_are_constants():
    result = capture(lambda x: x * torch.tensor(2.5), sample())
    assert ops(result) == ["mul"] and "2.5" in result["graph"]
    assert result["calls"] == []


# ---- masks ---------------------------------------------------------------------------------------------------------


def swish(x):
    a = 42 / 13
    y = x * (x + a) / (a + 3)
    y[x > 3] = x[x > 3]
    y[x < -3] = -1 / x[x < -3] ** 2
    return y


def test_masked_stores_are_selects():
    result = capture(swish, torch.linspace(-6, 6, 64))
    names = ops(result)
    assert names.count("where") == 2 and names.count("gt") == 1 and names.count("lt") == 1
    assert result["calls"] == []


def test_masked_store_of_a_number_into_an_argument():
    def fn(x):
        x[x > 0] = 5.5

    result = capture(fn, sample())
    assert "where" in ops(result)
    assert len(result["stores"]) == 1 and result["stores"][0][2] == 1


def sum_of_masked(x):
    return x[x > 0].sum()


def masked_itself(x):
    return x[x > 0]


def length_of_masked(x):
    z = x[x > 0]
    x[x > 0] = z / z.shape[0]
    return x


def two_masks(x):
    x[x > 0] = x[x > 1][:1] * 2
    return x


def masked_by_another(x, y):
    z = x[y > 0]
    y[x > 0] = z
    return y


def product_of_masked(x):
    return x[x > 0].prod()


OTHER_USES = {
    product_of_masked: ["gt", "aten::index.Tensor", "aten::prod"],
    masked_itself: ["gt", "aten::index.Tensor"],
    length_of_masked: [
        "aten::gt.Scalar",
        "aten::index.Tensor",
        "aten::div.Tensor",
        "aten::gt.Scalar",
        "aten::index_put_",
    ],
}


@pytest.mark.parametrize("fn", OTHER_USES, ids=lambda fn: fn.__name__)
def test_other_uses_of_masked_values_run_in_torch(fn):
    """The values are as many as data says: torch makes them and computes with them."""
    guards = ("aten::_shape_as_tensor", "min", "few at ", "z at ")  # on whether there are none, one or more; on a size
    made = [name for name in ops(capture(fn, sample())) if not name.startswith(guards)]
    assert made == OTHER_USES[fn]


def test_sums_of_masked_values_are_masked_sums():
    assert ops(capture(sum_of_masked, sample())) == ["gt", "where", "reduce"]
    mean = ops(capture(lambda x: (x * 2)[x[:, 0] > 0].mean(), sample().reshape(-1, 1).repeat(1, 3)))
    assert "aten::index.Tensor" not in mean and mean.count("reduce") == 2


def test_a_store_by_another_mask_runs_in_torch():
    x = torch.tensor([1.0, -1.0, 2.0])
    y = torch.tensor([-3.0, 4.0, 5.0])
    result = capture(masked_by_another, x, y)
    assert [name for name in ops(result) if "index" in name] == ["aten::index.Tensor", "aten::index_put_"]
    assert "where" not in ops(result)


def test_a_list_as_long_as_data_is_refused():
    for fn in (lambda x: x[x > 0].split(2), lambda x: x[x > 0].unbind(), lambda x: [v * 2 for v in x[x > 0]]):
        unsound = capture(fn, sample())["unsound"]
        assert re.search(r"result of aten::\w+ depends on data at test_capture\.py:\d+", unsound), unsound


# ---- mutation and views --------------------------------------------------------------------------------------------


def test_in_place_on_an_argument_is_a_store():
    def fn(x):
        x.add_(1).mul_(2)
        return x

    result = capture(fn, sample())
    assert ops(result) == ["add", "mul"]
    assert [store[2] for store in result["stores"]] == [2]
    assert result["outputs"] == [0]


def test_in_place_on_a_local_is_a_new_value():
    def fn(x):
        y = x * 2
        y += 1
        y.zero_()
        y.copy_(x)
        return y

    result = capture(fn, sample())
    assert result["calls"] == [] and result["stores"] == []


def test_write_through_a_view_of_an_argument_updates_its_value():
    def fn(x):
        x[0].mul_(2)
        return x

    assert ops(capture(fn, sample())) == ["view", "mul", "update"]


def test_write_through_a_view_that_no_kernel_expresses_runs_in_torch():
    def fn(x):
        x.as_strided((2,), (5,)).mul_(2)
        return x

    assert ops(capture(fn, sample())) == ["aten::as_strided", "aten::mul_.Tensor"]


def test_write_under_a_live_view_is_seen_through_it():
    def fn(x):
        y = x * 2
        view = y.t()
        y.add_(1)
        return view

    names = ops(capture(fn, sample()))
    assert [name for name in names if name != "view"] == ["mul", "add", "aten::t"]


def test_a_written_view_that_is_returned_stays_a_view():
    def fn(x):
        y = (x * 2)[:, ::2]
        y.add_(1)
        return y

    names = ops(capture(fn, sample()))
    assert [name for name in names if name != "view"] == ["mul", "add", "update", "aten::slice.Tensor"]


def test_reads_after_the_last_write_are_fused_again():
    def fn(x):
        y = x * 2
        y.as_strided((4,), (5,)).fill_(5)
        return (y + 1) * 2

    names = ops(capture(fn, sample()))
    made = ["mul", "view", "aten::alias"]  # by a kernel, in memory of its own
    assert names == [*made, "aten::as_strided", "aten::fill_.Scalar", "aten::alias", "add", "mul"]


def test_reads_before_the_last_write_are_not_fused():
    def fn(x):
        y = x * 2
        y.as_strided((4,), (5,)).fill_(5)
        z = y + 1
        y.as_strided((4,), (5,)).fill_(6)
        return z + y

    names = ops(capture(fn, sample()))
    assert "aten::add.Tensor" in names and names[-1] == "add"


def test_overlapping_arguments_run_in_torch():
    base = torch.arange(8.0)

    def fn(x, y):
        x.mul_(2)
        return x + y

    assert "aten::mul_.Tensor" in ops(capture(fn, base[:4], base[2:6]))
    assert ops(capture(fn, base[:4], base[4:])) == ["mul", "add"]


def test_overlap_of_two_storages_is_seen():
    base = torch.arange(8.0)
    other = torch.from_numpy(base.numpy())

    def fn(x, y):
        x.mul_(2)
        return x + y

    assert ops(capture(fn, base, other))[0] == "aten::mul_.Tensor"


def test_results_that_are_views_are_made_by_the_view_operator():
    def fn(x, y):
        z = x + y
        return z, z.t(), x.t()

    result = capture(fn, sample(), sample())
    assert [call["op"] for call in result["calls"]] == ["aten::t", "aten::t"]


def test_views_of_equal_results_do_not_share_memory():
    result = capture(lambda x: ((x * 2).t(), (x * 2.0).t()), sample())
    assert [call["op"] for call in result["calls"]].count("aten::clone") == 2
    shared = capture(lambda x: (x * 2).split(2), sample())
    assert [call["op"] for call in shared["calls"]] == ["aten::split.Tensor"]


def test_a_view_of_a_written_argument_aliases_the_argument():
    def fn(x):
        x.add_(1)
        return x.t()

    result = capture(fn, sample())
    extern = next(line for line in result["graph"].splitlines() if '"aten::t"' in line)
    assert "extern f32[] %0 " in extern


def test_a_copy_of_an_argument_is_a_tensor_of_its_own():
    def fn(x):
        y = x.clone()
        x.add_(1)
        return y

    result = capture(fn, sample())
    assert result["outputs"] != [0] and len(result["stores"]) == 1


def test_calls_that_return_their_argument_are_nothing():
    result = capture(lambda x: (x.contiguous(), x.to(torch.float32)), sample())
    assert ops(result) == [] and result["outputs"] == [0, 0]


def test_torchs_calls_get_real_views():
    result = capture(lambda x, y: torch.mm(x.t(), y) * 100 + 10, sample(), sample())
    assert [call["op"] for call in result["calls"]] == ["aten::mm"], "a product reads a view of an input without a call"
    assert re.search(r"contract f32\S* .*kind=mm", result["graph"])
    result = capture(lambda x, y: torch.cumsum(x.t(), 0) + y.t(), sample(), sample())
    assert [call["op"] for call in result["calls"]] == ["aten::t", "aten::cumsum"]


def test_out_variants_and_lists_run_in_torch():
    def fn(x, y):
        torch.atan(x, out=y)
        return torch.cartesian_prod(x[0], y[0]) * 2

    result = capture(fn, sample(), sample())
    names = ops(result)
    assert names[0] == "aten::atan.out" and "aten::cartesian_prod" in names
    product = next(call for call in result["calls"] if call["op"] == "aten::cartesian_prod")
    assert product["holes"] == [(0, 0), (0, 1)]


def test_operators_on_lists_are_entered():
    def fn(x, y):
        torch._foreach_addcmul_([x, y], [x, y], [y, x], value=2)
        return x

    result = capture(fn, sample(), sample())
    assert ops(result) == ["mul", "fma", "mul", "fma"] and result["calls"] == []
    assert [store[0] for store in result["stores"]] == [0, 1]

    def out(x, y):
        torch.atan(x, out=y)
        torch._foreach_add_([x, y], 1)
        return x * y

    assert ops(capture(out, sample(), sample())) == ["aten::atan.out", "add", "aten::add_.Scalar", "aten::alias", "mul"]


# ---- effects -------------------------------------------------------------------------------------------------------


def test_running_statistics_are_written():
    norm = torch.nn.BatchNorm1d(4)
    tensors = [norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked]
    result = capture(lambda x: norm(x) * 2, sample(), captured=tensors)
    assert "written=3,4" in result["graph"]
    assert len(result["stores"]) == 1  # num_batches_tracked


def test_random_calls_are_never_merged():
    result = capture(lambda x: torch.rand_like(x) + torch.rand_like(x), sample())
    assert ops(result) == ["aten::rand_like", "aten::rand_like", "add"]


def test_other_operators_of_the_same_kind_are_externs():
    result = capture(lambda x: torch.cumsum(x, 0).sort()[0] + 1, sample())
    names = ops(result)
    assert names[-1] == "add" and any(name.startswith("aten::sort") for name in names)


# ---- refusals ------------------------------------------------------------------------------------------------------


def unknown_tensor(x):
    return x * HIDDEN


def set_data(x):
    x.data = torch.ones(4, 4)
    return x * 2


def through_data(x):
    x.data.add_(1)
    return x * 2


def swallowed_error(x):
    with contextlib.suppress(RuntimeError):
        x.view(3)
    return x + 1


def branch(x):
    return x if x.sum() > 0 else -x


HIDDEN = torch.ones(4, 4)

REFUSALS = {
    "tolist": (lambda x: (x.tolist(), x + 1)[1], "left tensor land"),
    "numpy": (lambda x: (x.numpy(), x + 1)[1], "left tensor land"),
    "nonzero": (lambda x: x.nonzero().unbind(), r"result of aten::nonzero depends on data at test_capture\.py:\d+"),
    "where": (lambda x: torch.where(x > 0)[0].split(2), "result of aten::where depends on data"),
    "unique": (lambda x: torch.unique(x).unbind(), "depends on data"),
    "masked_select": (lambda x: x.masked_select(x > 0).chunk(9), "result of aten::chunk depends on data"),
    "tensor_split": (lambda x: x.tensor_split((x[:2, 0] > 9).long()), "result of aten::tensor_split depends on data"),
    "one_hot": (lambda x: F.one_hot((x > 0).long()).unbind(-1), "result of aten::one_hot depends on data"),
    "bincount": (
        lambda x: torch.bincount((x > 0).long().view(-1)).unbind(),
        "result of aten::bincount depends on data",
    ),
    "unknown": (unknown_tensor, r"a tensor of unknown origin was used by aten::mul at test_capture\.py:\d+"),
    "data": (through_data, "unknown origin"),
    "set_data": (set_data, "memory of a tensor was replaced|metadata|memory of"),
    "resize": (lambda x: (x + 1).resize_(2, 2), "memory of a tensor was replaced: aten::resize_"),
    "unsqueeze_": (lambda x: (x + 1).unsqueeze_(0), "shape of a tensor was changed in place: aten::unsqueeze_"),
    "constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), r"constant tensor made at test_capture\.py:\d+"),
    "conjugate": (lambda x: torch.fft.fft(x).conj(), "is a lazy conjugate"),
    "sparse": (lambda x: x.to_sparse(), "is not strided|depends on data"),
    "meta": (lambda x: x.to("meta"), "is on meta"),
    "error": (swallowed_error, r"an operator raised an exception: aten::view at test_capture\.py:\d+"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_why_and_where(name):
    fn, why = REFUSALS[name]
    result = capture(fn, sample())
    assert result["unsound"] != "" and re.search(why, result["unsound"]), result["unsound"]
    assert result["graph"] == ""


READS = {
    "item": (lambda x: x * x.sum().item(), "item"),
    "bool": (branch, "bool"),
    "equal": (lambda x: (torch.equal(x, x), x)[1], "equal"),
    "allclose": (lambda x: (torch.allclose(x, x), x)[1], "allclose"),
}


@pytest.mark.parametrize("name", READS)
def test_values_that_python_reads_are_guards(name):
    fn, verb = READS[name]
    result = capture(fn, sample())
    assert result["unsound"] == ""
    assert [re.sub(r"\d+$", "", label) for label, _ in result["values"]] == [f"{verb} at test_capture.py:"]
    assert f'"{result["values"][0][0]}" kind=guard call=0 outputs=0' in result["graph"]


DATA_SIZES = {
    "nonzero": (lambda x: x.nonzero(), ["aten::nonzero"]),
    "where": (lambda x: torch.where(x > 0), ["gt", "aten::where"]),
    "unique": (lambda x: torch.unique(x), ["aten::_unique2"]),
    "masked_select": (lambda x: x.masked_select(x > 0), ["gt", "aten::masked_select"]),
    "one_hot": (lambda x: F.one_hot((x > 0).long()), ["gt", "aten::one_hot"]),
}


@pytest.mark.parametrize("name", DATA_SIZES)
def test_sizes_that_depend_on_data_are_torchs_steps(name):
    fn, steps = DATA_SIZES[name]
    result = capture(fn, sample())
    assert ops(result)[: len(steps)] == steps
    # Besides guards on whether there are none, one or more: torch's C++ may look at that.
    assert result["values"] and all(label.startswith("few at test_capture.py:") for label, _ in result["values"])
    assert set(ops(result)[len(steps) :]) <= {
        "aten::_shape_as_tensor",
        "min",
        *(label for label, _ in result["values"]),
    }


def test_gradients_are_refused_by_name():
    weight = torch.nn.Parameter(sample())
    with torch.enable_grad():
        result = capture(lambda x: x * weight, sample(), captured=[weight])
    assert result["unsound"] == "a result requires grad"
    assert ops(capture(lambda x: x * weight, sample(), captured=[weight])) == ["mul"]


def test_unknown_tensors_can_be_adopted():
    result = capture(unknown_tensor, sample(), adopt=True)
    assert ops(result) == ["mul"] and result["inputs"] == [("argument", 0), ("captured", 0)]


def test_operators_on_another_thread_are_refused():
    @torch.jit.script
    def work(x):
        future = torch.jit.fork(torch.exp, x)
        return torch.jit.wait(future) + 1

    assert capture(work, sample())["unsound"] != ""


def test_a_plain_python_thread_is_not_this_calls_business():
    def fn(x):
        thread = threading.Thread(target=lambda: torch.exp(HIDDEN))
        thread.start()
        thread.join()
        return x + 1

    assert ops(capture(fn, sample())) == ["add"]


def test_an_error_of_the_function_is_its_own_and_recording_ends():
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        capture(lambda x: x.view(3), sample())
    assert ops(capture(lambda x: x + 1, sample())) == ["add"]


def test_recording_keeps_no_intermediate_alive():
    alive = []

    def fn(x):
        import weakref

        y = x * 2
        alive.append(weakref.ref(y))
        z = y + 1
        del y
        assert alive[0]() is None
        return z

    assert ops(capture(fn, sample(1000))) == ["mul", "add"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_graph_of_a_masked_store_does_not_depend_on_the_count(count):
    x = torch.full((8,), 1.0)
    x[:count] = 5.0
    x[4 : 4 + count] = -5.0
    result = capture(swish, x)
    assert ops(result).count("where") == 2 and result["calls"] == []


def test_masked_work_on_a_view_of_an_argument_updates_its_value():
    def one_mask(x):
        row = x[0]
        m = row > 0
        row[m] = row[m] * 2
        return x

    names = ops(capture(one_mask, sample()))
    assert names.count("where") == 1 and names[-1] == "update" and "aten::index.Tensor" not in names

    def own_masks(x):
        row = x[0]
        row[row > 0] = row[row > 0] * 2
        return x

    names = ops(capture(own_masks, sample()))
    assert names.count("where") == 1 and names[-1] == "update" and "aten::index.Tensor" not in names
