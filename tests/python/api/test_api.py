"""The decorator: what it accepts, what it keeps, what it says."""

from __future__ import annotations

import abc
import copy
import functools
import inspect
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastjit as package
from fastjit import fastjit, of
from fastjit.testing import assert_no_recompile
from helpers import assert_same, check


def gelu_chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A chain."""
    return F.gelu(x * y + 1) * x


@fastjit
def decorated(x):
    return x * 2


def plain(x):
    return x * 2


class Holder:
    @fastjit
    def method(self, x):
        return x * 2


def test_pickled_by_name_or_as_what_it_wraps():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert pickle.loads(pickle.dumps(Holder.method)) is Holder.method
    twin = pickle.loads(pickle.dumps(fastjit(pure=True, name="twin")(plain)))
    assert twin.__wrapped__ is plain and twin._options == {"pure": True, "name": "twin"}


def test_repr_names_the_function_or_the_class_of_the_module():
    assert repr(decorated) == "<fastjit function test_api.decorated>"
    assert repr(of(fastjit(nn.Linear(2, 2)))) == "<fastjit function Linear>"


def test_two_calls_one_kernel():
    x, y = torch.randn(64, 32), torch.randn(64, 32)
    fast = check(gelu_chain, x, y, kernels=1, steps=1)
    assert fast.stats().compiles + fast.stats().disk_hits + fast.stats().memory_hits == 1


def test_jit_is_the_same_object():
    assert package.jit is package.fastjit


def test_keeps_what_the_function_was():
    fast = fastjit(gelu_chain)
    assert fast.__name__ == "gelu_chain"
    assert fast.__doc__ == "A chain."
    assert fast.__wrapped__ is gelu_chain
    assert inspect.signature(fast) == inspect.signature(gelu_chain)
    assert "gelu_chain" in repr(fast)


def marked(f):
    f.mark, f.stats = 5, "a name of FastFunction"
    return f


def test_keeps_what_decorators_set_on_the_function():
    @marked
    def g(x):
        return x * g.mark

    plain_g = g
    g = fastjit(pure=True)(g)
    assert g.mark == 5 and plain_g.stats and g.stats().calls == 0
    x = torch.randn(3)
    for _ in range(3):
        assert_same(g(x), x * 5)
    assert g.stats().hits == 2
    g.later = "set on what fastjit returned"
    again = fastjit(name="again")(g)
    assert (again.mark, again.later, again._options) == (5, g.later, {"pure": True, "name": "again"})
    assert again.__wrapped__ is plain_g

    class Abstract(abc.ABC):
        @fastjit
        @abc.abstractmethod
        def f(self, x): ...

    with pytest.raises(TypeError, match="abstract"):
        Abstract()

    class Method:
        @fastjit
        @marked
        def f(self, x):
            return x * self.f.mark

    method = Method()
    for _ in range(3):
        assert_same(method.f(x), x * 5)


def test_kwargs_and_nested_arguments():
    def f(x, *, pair, table, scale=None):
        return {"a": x + pair[0], "b": [table["w"] * pair[1], None], "c": (x,)}

    x = torch.randn(5)
    pair, table = (torch.randn(5), torch.randn(5)), {"w": torch.randn(5)}
    fast = fastjit(f)
    for _ in range(2):
        assert_same(fast(x, pair=pair, table=table), f(x, pair=pair, table=table))
    assert fast.stats().hits == 1
    out = fast(x, pair=pair, table=table)
    assert out["c"][0] is x


def test_methods():
    class Model:
        @fastjit(pure=True)
        def f(self, x):
            return x.sin() + 1

    a = Model()
    x = torch.randn(7)
    for _ in range(3):
        assert_same(a.f(x), x.sin() + 1)
    assert Model.f.stats().hits == 2


def test_modules_come_back_as_themselves():
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    names = list(net.state_dict())
    assert fastjit(net) is net
    assert list(net.state_dict()) == names
    x = torch.randn(3, 8)
    expected = net.forward(x)
    for _ in range(3):
        assert_same(net(x), expected)
    assert of(net).stats().hits == 2, of(net).stats()
    holder = nn.Module()
    holder.inner = net
    assert [n for n, _ in holder.named_parameters()] == [f"inner.{n}" for n in names]
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert_same(twin(x), expected)
    net.to(torch.float64)
    assert_same(net(x.double()), net.forward(x.double()))


def test_a_changed_weight_is_seen():
    net = fastjit(nn.Linear(4, 4))
    x = torch.randn(2, 4)
    net(x), net(x)
    net.weight.data.mul_(2)
    assert_same(net(x), F.linear(x, net.weight, net.bias))
    net.weight = nn.Parameter(torch.randn(4, 4))
    for _ in range(3):
        assert_same(net(x), F.linear(x, net.weight, net.bias))


def test_unknown_options_and_kinds():
    with pytest.raises(TypeError, match=r"unknown option 'numeric'; did you mean 'numerics'\?"):
        fastjit(numeric="fast")
    with pytest.raises(TypeError, match="option 'numerics' must be 'eager' or 'accurate' or 'fast', not 'exact'"):
        fastjit(numerics="exact")
    with pytest.raises(TypeError, match=r"option 'max_variants' must be a positive int below 2\*\*32, not 0"):
        fastjit(max_variants=0)
    with pytest.raises(TypeError, match="option 'max_variants' must be a positive int below"):
        fastjit(max_variants=1 << 32)
    with pytest.raises(TypeError, match="option 'dynamic' must be bool or dict or NoneType, not 'x'"):
        fastjit(dynamic="x")
    with pytest.raises(TypeError, match=r"must give dims of parameters, as in \{'x': 0, .*, not 'x': 'rows'"):
        fastjit(dynamic={"x": "rows"})
    with pytest.raises(TypeError, match="option 'dynamic' names 'z'; the parameters are x, y"):
        fastjit(lambda x, y: x + y, dynamic={"z": 0})
    with pytest.raises(TypeError, match=r"option 'name' must be str or NoneType, not '\\ud800'"):
        fastjit(name="\ud800")
    with pytest.raises(TypeError, match="option 'cache' must be"):
        fastjit(cache=torch.ones(2))
    assert repr(fastjit(name="a\0b")(lambda x: x)) == "<fastjit function a\0b>"
    with pytest.raises(TypeError, match=r"fastjit cannot compile the class .*Linear"):
        fastjit(nn.Linear)

    def generator():
        yield 1

    async def coroutine():
        return 1

    with pytest.raises(TypeError, match="fastjit cannot compile the generator function"):
        fastjit(generator)
    with pytest.raises(TypeError, match="fastjit cannot compile the coroutine function"):
        fastjit(coroutine)
    with pytest.raises(TypeError, match=r"fastjit cannot compile the coroutine function functools\.partial"):
        fastjit(functools.partial(coroutine))
    for target in (3, None):
        with pytest.raises(TypeError, match="needs something callable"):
            fastjit(target)
    with pytest.raises(TypeError, match=r"not a Linear; give of\(module\)"), assert_no_recompile(nn.Linear(1, 1)):
        pass
    with pytest.raises(TypeError, match="was not given to fastjit"):
        of(nn.Linear(1, 1))


def test_what_was_made_of_a_function_is_its_own_compiled_form():
    fast = fastjit(lambda x: x + 1)
    assert of(fast) is fast


def test_explain_and_variants_and_clear():
    fast = fastjit(gelu_chain)
    x = torch.randn(4)
    assert fast.explain(x, x).startswith("a new variant: the function has not been recorded")
    fast(x, torch.randn(4)), fast(x, torch.randn(4))
    assert fast.explain(x, torch.randn(4)) == "a hit: f32[4], f32[4]"
    assert fast.explain(x, torch.randn(4).double()) == "a new variant: argument 1 was f32[4], is f64[4]"
    assert [v.signature for v in fast.variants()] == ["f32[4], f32[4]"]
    fast.clear()
    assert fast.variants() == []


def test_explain_names_the_argument():
    fast = fastjit(lambda pair, y, *, z=None, w=None: pair[0] * pair[1] + y)
    a, b, c, d = (torch.ones(3) for _ in range(4))
    fast((a, b), c, z=d)
    assert fast.explain((a, b), c.double(), z=d) == "a new variant: argument 1 was f32[3], is f64[3]"
    assert fast.explain((a, b), c, z=d.double()) == "a new variant: argument 'z' was f32[3], is f64[3]"
    assert fast.explain((a, b.double()), c, z=d) == "a new variant: something in argument 0 was f32[3], is f64[3]"
    assert fast.explain([a, b], c, z=d) == "a new variant: argument 0 was a tuple of 2, is a list of 2"
    assert fast.explain((a, b), c, w=d) == "a new variant: an argument or the name of a keyword differs"
    assert fast.explain((a, b), c) == "a new variant: the number of arguments differs"
    twins = fastjit(lambda x, y: x * y)
    twins(a, a)
    assert twins.explain(a, b) == "a new variant: two arguments were the same tensor, and are not now"


def test_a_new_batch_size_compiles_nothing():
    fast = fastjit(gelu_chain)
    for n in (8, 8, 16, 16, 16):
        x = torch.randn(n, 32)
        assert_same(fast(x, x.clone()), gelu_chain(x, x.clone()))
    stats = fast.stats()
    assert stats.hits == 3
    assert stats.compiles + stats.disk_hits <= 1
    assert stats.memory_hits >= 1


def test_scalars_are_values_or_kernel_arguments():
    def f(x, a):
        return x * a + 2.0

    fast = fastjit(f)
    x = torch.randn(8)
    for a in (2.0, 3.5, 0.0, -0.0, float("nan"), float("inf")):
        assert_same(fast(x, a), f(x, a))
    assert fast.stats().misses == 1, fast.inspect("guards")

    def branch(x, a):
        return x * a if a > 1 else x - a

    fast = fastjit(branch)
    for a in (2.0, 0.5, 2.0, 0.5, 3.0):
        assert_same(fast(x, a), branch(x, a))


def test_first_failed_call_caches_nothing():
    calls = []

    def f(x):
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")
        return x + 1

    fast = fastjit(on_unsupported="eager")(f)
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="once"):
        fast(x)
    assert fast.variants() == []
    assert_same(fast(x), x + 1)


def test_the_pool_is_reused():
    from fastjit import _C

    fast = fastjit(lambda x: x + 1)
    x = torch.randn(1 << 20)
    fast(x)
    for _ in range(5):
        fast(x)
    before = _C.pool_stats()["reuses"]
    fast(x)
    assert _C.pool_stats()["reuses"] == before + 1
    out = fast(x)
    out.resize_(2 << 20)
    assert_same(out[: 1 << 20], x + 1)


def test_small_outputs_outlive_their_thread():
    fast = fastjit(lambda x: x + 1)
    x = torch.randn(16)
    fast(x), fast(x)
    kept = []

    def work():
        with torch.no_grad():
            kept.extend(fast(x) for _ in range(100))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for out in kept:
        assert_same(out, x + 1)
    kept.clear()
    assert fast.stats().fallbacks == {}


UNSUPPORTED = {
    "COO": lambda x: x.to_sparse(),
    "CSR": lambda x: x.to_sparse_csr(),
    "CSC": lambda x: x.to_sparse_csc(),
    "BSR": lambda x: x.to_sparse_bsr((2, 2)),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:2]]),
    "oneDNN": lambda x: x.to_mkldnn(),
    "meta": lambda x: x.to("meta"),
    "conjugate": lambda x: x.to(torch.complex64).conj(),
    "negative": lambda x: x.to(torch.complex64).conj().imag,
}


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("kind", UNSUPPORTED)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta) (stage|state):UserWarning")
def test_a_tensor_that_no_kernel_reads_runs_eagerly(kind, pure):
    given = UNSUPPORTED[kind](torch.eye(4))
    fast = fastjit(pure=pure, on_unsupported="eager")(lambda a, b: (a, b + 1))
    for call in range(3):
        same, plus = fast(given, torch.ones(3))
        assert same is given and torch.equal(plus, torch.full((3,), 2.0))
        assert fast.stats().hits == 0 and sum(fast.stats().fallbacks.values()) == call + 1
    assert "argument 'a' is not supported" in next(iter(fast.stats().fallbacks))
