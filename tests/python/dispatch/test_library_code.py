"""What the code of libraries does on its way to torch: arrays of numpy, classes over tuple and str, enumerators,
deleted attributes, settings of the process. Each test also changes what the call read behind its back."""

from __future__ import annotations

import bisect
import copy
import enum
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import fastjit
from helpers import assert_same


class Watched:
    """A function under fastjit, each call of which must give eager's result."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.fast = fastjit.jit(fn)

    def call(self, *args: Any, hit: bool) -> Any:
        before = self.fast.stats().hits
        got = self.fast(*args)
        assert_same(got, self.fn(*args), exact=True)
        assert self.fast.stats().hits == before + hit, self.fast.stats()
        return got

    def settle(self, *args: Any, first: int = 1) -> Watched:
        """Call `first` (counted from 0) and the next are hits, and nothing ran eagerly for a reason."""
        for call in range(first + 2):
            self.call(*args, hit=call >= first)
        assert self.fast.stats().fallbacks == {}
        return self


X = torch.arange(12.0).reshape(3, 4)


class Indices:
    """Keeps arrays of numpy, as layers of normalizing flows do."""

    def __init__(self) -> None:
        self.lower = np.tril_indices(4, k=-1)
        self.rows = np.arange(6)[::2]  # not side by side
        self.mask = np.array([True, False, True, False])

    def fill(self, entries: Tensor) -> Tensor:
        out = entries.new_zeros(4, 4)
        out[self.lower[0], self.lower[1]] = entries
        return out

    def pick(self, x: Tensor) -> Tensor:
        return x[self.rows] + x[0][self.mask].sum()


def test_arrays_of_numpy_as_indices():
    kept = Indices()
    entries = torch.arange(1.0, 7.0)
    watched = Watched(kept.fill).settle(entries)
    kept.lower[0][0] = 3  # in place: no attribute changes
    watched.call(entries, hit=False)
    watched.call(entries, hit=True)
    kept.lower = np.triu_indices(4, k=1)
    watched.call(entries, hit=False)
    watched.call(entries, hit=True)
    assert "the elements of" in "".join(watched.fast.inspect("guards"))
    watched = Watched(kept.pick).settle(torch.arange(24.0).reshape(6, 4))
    kept.rows += 1
    watched.call(torch.arange(24.0).reshape(6, 4), hit=False)
    kept.mask[1] = True
    watched.call(torch.arange(24.0).reshape(6, 4), hit=False)
    kept.mask[1] = False
    watched.call(torch.arange(24.0).reshape(6, 4), hit=True)  # as before
    kept.mask[3] = True
    assert "the elements of self.mask changed" in watched.fast.explain(torch.zeros(6, 4))


def test_an_array_that_gets_another_shape_in_place():
    holder = types.SimpleNamespace(at=np.array([0, 1]))
    watched = Watched(lambda x: x[:, holder.at]).settle(X)
    holder.at.shape = (2, 1)
    watched.call(X, hit=False)
    watched.call(X, hit=True)


def test_arrays_that_are_no_facts():
    holder = types.SimpleNamespace(at=np.arange(100_000))
    fast = fastjit.jit(lambda x: x[holder.at[:3]] if len(x) > 2 else x[holder.at])
    for _ in range(2):
        assert_same(fast(X), X[:3])
    assert fast.stats().hits == 0 and "numpy.ndarray" in min(fast.stats().fallbacks, key=len)
    big = fastjit.jit(lambda x: x[holder.at])
    for _ in range(2):
        assert_same(big(torch.ones(100_000)), torch.ones(100_000))
    assert big.stats().hits == 0 and "index of type numpy.ndarray" in min(big.stats().fallbacks, key=len)


N = 3


def corners(x: Tensor) -> Tensor:
    grid = np.asarray([a.flatten() for a in np.meshgrid(range(N), [0, 1], indexing="ij")]).T
    total = x.new_zeros(())
    for row in grid:
        total = total + x[tuple(slice(s, s + 2) for s in row)].sum() * grid.ndim
    return total


def test_arrays_that_the_call_makes_of_numbers():
    global N
    watched = Watched(corners).settle(X)
    N = 2
    watched.call(X, hit=False)
    N = 3
    watched.call(X, hit=True)
    stepped = Watched(lambda x: x * [*np.linspace(0, 1, N)][1] + np.arange(N).copy().tolist()[-1]).settle(X)
    stepped.call(X + 1, hit=True)


class Pair(tuple):
    """As e3nn's: a tuple that says in Python what its items are."""

    def __new__(cls, a: Any, b: Any = None) -> Pair:
        return super().__new__(cls, (a, b))

    @property
    def first(self) -> Any:
        return self[0]

    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(i)

    def __len__(self) -> int:
        return super().__len__()


WEIGHT = Pair(2.0, 3.0)


def test_classes_over_tuple():
    global WEIGHT

    def body(x: Tensor) -> Tensor:
        pair = Pair(WEIGHT.first, 5)
        if pair in (Pair(1, 2), Pair(2.0, 5)) and pair != WEIGHT:
            a, b = pair
            return x * a + b + len(pair)
        return x - pair.first

    watched = Watched(body).settle(X)
    WEIGHT = Pair(2.5, 3.0)
    watched.call(X, hit=False)
    watched.call(X, hit=True)
    Pair.__eq__ = lambda self, other: False
    try:
        watched.call(X, hit=False)
    finally:
        del Pair.__eq__


class Kind(enum.StrEnum):
    CONSTANT = " constant "
    GAUSSIAN = "gaussian"


class Settings(type):
    def all(cls) -> list[Any]:
        return sorted(getattr(cls, x) for x in dir(cls) if not x.startswith("_"))

    def __contains__(cls, item: Any) -> bool:
        return item in cls.__dict__.values()

    def __iter__(cls) -> Any:
        return (name for name in ("a", "b"))


class Names(metaclass=Settings):
    a = "euler"
    b = "heun"


METHOD = "euler"


def test_what_metaclasses_say_of_a_class():
    global METHOD

    def body(x: Tensor) -> Tensor:
        for kind in Kind:
            x = x + len(kind.value.strip())
        return x * len([name for name in Names])

    watched = Watched(body).settle(X)
    Settings.__iter__ = lambda cls: iter(("a", "b", "c"))
    try:
        watched.call(X, hit=False)
        watched.call(X, hit=True)
    finally:
        Settings.__iter__ = lambda cls: (name for name in ("a", "b"))

    given = Watched(lambda x: x + 1 if METHOD in Held else x - 1).settle(X)
    METHOD = "rk4"
    given.call(X, hit=False)
    Held.known.append("rk4")
    given.call(X, hit=False)
    METHOD = "euler"
    Held.known.remove("rk4")
    given.call(X, hit=True)


class Holding(type):
    def __contains__(cls, item: Any) -> bool:
        return item in cls.known


class Held(metaclass=Holding):
    known = ["euler", "heun"]  # noqa: RUF012


def test_methods_of_a_str_enum():
    watched = Watched(lambda x: x if KIND.strip() == "constant" else -x).settle(X)
    global KIND
    KIND = Kind.GAUSSIAN
    watched.call(X, hit=False)
    KIND = Kind.CONSTANT
    watched.call(X, hit=True)


KIND = Kind.CONSTANT


def test_attributes_that_builtin_objects_lack():
    holder = types.SimpleNamespace(sizes=(1, 2))

    def body(x: Tensor) -> Tensor:
        sizes = holder.sizes
        return x if not hasattr(sizes, "ndim") and getattr([], "ndim", None) is None else -x

    watched = Watched(body).settle(X)
    holder.sizes = torch.ones(2)
    watched.call(X, hit=False)


UNION = int | float


def test_unions_of_types():
    global UNION

    def body(x: Tensor) -> Tensor:
        return x + len(UNION.__args__) if UNION.__args__[0] is int else x

    watched = Watched(body).settle(X)
    UNION = float | int
    watched.call(X, hit=False)
    UNION = int | float | str
    watched.call(X, hit=False)
    watched.call(X, hit=True)


class Config:
    def __init__(self) -> None:
        self.decoder_layers, self.scale = 3, 2.0


CONFIG = Config()


def test_deleted_attributes_of_new_objects():
    def body(x: Tensor) -> Tensor:
        config = copy.deepcopy(CONFIG)
        value = config.decoder_layers
        delattr(config, "decoder_layers")
        config.layers = value
        del config.scale
        return x * config.layers + (0 if hasattr(config, "scale") or hasattr(config, "decoder_layers") else 1)

    watched = Watched(body).settle(X)
    CONFIG.decoder_layers = 4
    watched.call(X, hit=False)
    watched.call(X, hit=True)
    Config.scale = 1.0
    try:
        watched.call(X, hit=False)
    finally:
        del Config.scale


def test_a_deleted_attribute_of_an_object_that_stays():
    def body(x: Tensor) -> Tensor:
        CONFIG.extra = 1
        delattr(CONFIG, "extra")
        return x + 1

    fast = fastjit.jit(body)
    for _ in range(2):
        assert_same(fast(X), X + 1)
    assert not hasattr(CONFIG, "extra")
    assert fast.stats().hits == 0 and "deletion of" in min(fast.stats().fallbacks, key=len)


class Output(OrderedDict):  # as transformers' outputs
    def __getitem__(self, key: Any) -> Any:
        return dict(self.items())[key]


class Opaque:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody compares it")

    __hash__ = None  # type: ignore[assignment]


def test_a_dictionary_of_the_items_of_another():
    kept = Opaque()

    def body(x: Tensor) -> Tensor:
        out = Output()
        out["x"], out["kept"] = x + 1, kept
        return out["x"] * 2

    Watched(body).settle(X)


class Makers(OrderedDict):  # as transformers' activations
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key)()


MAKERS = Makers(relu=torch.nn.ReLU, tanh=torch.nn.Hardtanh)


def test_an_item_that_a_class_over_an_ordered_dictionary_makes():
    name = types.SimpleNamespace(of="relu")
    watched = Watched(lambda x: MAKERS[name.of](x - 5)).settle(X)
    MAKERS["tanh"] = torch.nn.ReLU6  # not read
    watched.call(X, hit=True)
    name.of = "tanh"
    watched.call(X, hit=False)
    watched.call(X, hit=True)
    MAKERS["tanh"] = torch.nn.Hardtanh
    watched.call(X, hit=False)
    del MAKERS["tanh"]
    MAKERS["tanh"] = torch.nn.ReLU6
    watched.call(X, hit=True)  # as before


STEPS = [0.5, 1.0, 2.0]


def test_bisection():
    def body(x: Tensor, at: float) -> Tensor:
        return x * bisect.bisect(STEPS, at) + bisect.bisect_left([1, 2, 3], 2) + bisect.bisect([], x.sum())

    watched = Watched(body).settle(X, 1.0)
    watched.call(X, 0.25, hit=False)
    STEPS.insert(0, 0.0)
    watched.call(X, 1.0, hit=False)
    watched.call(X, 1.0, hit=True)


def test_bisection_among_tensors_is_refused():
    fast = fastjit.jit(lambda x: x * bisect.bisect([0.5], x.sum()))
    for _ in range(2):
        assert_same(fast(X), X)
    assert fast.stats().hits == 0 and "comparison of Tensor" in min(fast.stats().fallbacks, key=len)


Q = torch.randn(2, 4, 8, 16)


def attend(q: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(q, q, q)
    return out + 1


def test_the_choice_of_kernels_for_attention():
    watched = Watched(attend).settle(Q)
    flash = scaled_dot_product_attention(Q, Q, Q) + 1
    assert not torch.equal(watched.call(Q, hit=True), flash)  # the kernels differ in their last bits
    assert torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        watched.call(Q, hit=False)
        watched.call(Q, hit=True)
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert "the choice of kernels for scaled_dot_product_attention" in "".join(watched.fast.inspect("guards"))
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    watched.call(Q, hit=True)


def test_a_choice_of_kernels_that_depends_on_the_choice():
    def body(q: Tensor) -> Tensor:
        return q * 2 if torch.backends.cuda.math_sdp_enabled() else q

    watched = Watched(body).settle(Q)
    torch.backends.cuda.enable_math_sdp(False)
    try:
        watched.call(Q, hit=False)
    finally:
        torch.backends.cuda.enable_math_sdp(True)


def test_a_choice_of_kernels_that_stays_is_eager():
    def body(q: Tensor) -> Tensor:
        torch.backends.cuda.enable_flash_sdp(False)
        return scaled_dot_product_attention(q, q, q)

    fast = fastjit.jit(body)
    try:
        for _ in range(2):
            torch.backends.cuda.enable_flash_sdp(True)
            assert_same(fast(Q), body(Q), exact=True)
            assert not torch.backends.cuda.flash_sdp_enabled()
        assert fast.stats().hits == 0 and "the call itself changes" in min(fast.stats().fallbacks, key=len)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_what_a_library_does_once_is_recorded_without_it_at_the_next_call():
    from torch.distributions import Normal, kl, kl_divergence

    def body(x: Tensor) -> Tensor:
        return kl_divergence(Normal(x, 1.0, validate_args=False), Normal(0.0, 1.0, validate_args=False))

    kl._KL_MEMOIZE.clear()
    fast = fastjit.jit(body)
    for call in range(4):
        assert_same(fast(X), body(X), exact=True)
        assert fast.stats().hits == max(0, call - 1)
    assert len(fast.stats().fallbacks) == 1 and "kl.py" in min(fast.stats().fallbacks)
    kl._KL_MEMOIZE.clear()  # another function may be there next time
    assert_same(fast(X), body(X), exact=True)
    assert fast.stats().hits == 2


def test_what_a_library_does_each_time_is_tried_twice():
    fast = fastjit.jit(lambda x: x + torch.from_numpy(np.random.rand(4)).float() * 0)
    for _ in range(6):
        assert_same(fast(X), X)
    assert fast.stats().hits == 0


class Assign(torch.autograd.Function):
    """As torchdiffeq's: writes past the version counter."""

    @staticmethod
    def forward(ctx: Any, scratch: Tensor, value: Tensor, at: Any) -> Tensor:
        scratch.data[at] = value
        return scratch

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise NotImplementedError


def test_a_function_of_autograd_that_fills_new_memory():
    def body(x: Tensor) -> Tensor:
        k = torch.empty(3, 4)
        for i in range(4):
            k = Assign.apply(k, x[:, i], (..., i))
            x = x + k[..., : i + 1].sum(-1, keepdim=True)
        return k

    watched = Watched(body).settle(X)
    assert watched.fast(X)._version == body(X)._version == 0
    watched.call(-X, hit=True)


def test_writes_past_the_version_counter():
    def new(x: Tensor) -> Tensor:
        t = x * 2
        t.data.add_(1)
        return t.add_(x)

    watched = Watched(new).settle(X)
    assert watched.fast(X)._version == new(X)._version == 1

    def number(x: Tensor) -> Tensor:
        t = torch.tensor(2.0)
        t.data.fill_(3.0)
        return x * t

    Watched(number).settle(X)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:  # which of them counts the next write would be seen
        t = x * 2
        t.data.add_(1)
        return t, t.data

    def given_back(x: Tensor) -> Tensor:
        x.data.add_(1)
        return x.data

    def two_arguments(x: Tensor) -> Tensor:
        part = x[0]
        x.data.add_(1)
        return part

    def by_torch(x: Tensor) -> Tensor:
        x.data.index_fill_(0, torch.tensor([1]), 2.0)
        return x * 2

    for body in (both, given_back, two_arguments, by_torch):
        fast = fastjit.jit(body)
        for _ in range(3):
            x, twin = X.clone(), X.clone()
            assert_same(fast(x), body(twin), exact=True)
            assert_same(x, twin, exact=True)
            assert x._version == twin._version
        assert fast.stats().hits == 0 and "of which Tensor.data was read" in min(fast.stats().fallbacks, key=len)


class Positive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x[x > 0]
        return y * 2 if y.shape[0] > 2 else y * 3 * torch.tensor([2.0])


def test_sizes_that_data_decide_inside_a_function_of_autograd():
    fast = fastjit.jit(lambda x: Positive.apply(x).sum())
    for seed in range(8):
        x = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        assert_same(fast(x), Positive.apply(x).sum())  # a kernel sums
    assert fast.stats().hits > 0 and fast.stats().fallbacks == {}


def step(x: Tensor, by: Tensor) -> Tensor:
    return (x + by).mul(0.5).sin().add(1).mul(0.5)


def stepped(x: Tensor, rounds: Tensor) -> Tensor:
    while rounds > 0:
        x, rounds = step(x, x), rounds - 1
    return x


def test_a_loop_of_many_values_is_a_program_where_it_comes_again():
    fast = fastjit.jit(stepped)
    for call in range(3):
        assert_same(fast(X + call, torch.tensor(200)), stepped(X + call, torch.tensor(200)), exact=True)
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}


def test_a_loop_of_too_many_values_goes_on_in_parts():
    fast = fastjit.jit(stepped)
    for call in range(6):  # two paths are recorded whole, as if they came again
        rounds = torch.tensor(40 + call)
        assert_same(fast(X + call, rounds), stepped(X + call, rounds), exact=True)
        operators = fast.stats().operators
        if sys.version_info < (3, 12):
            assert operators >= (0, 0, 0, 0, 5 * 40, 5 * 80)[call], call
    assert "value limit (32) reached: bool at test_library_code.py" in min(fast.stats().fallbacks, key=len)


class Cache:
    """As transformers': marks its memory for whoever captures graphs."""

    def __init__(self, x: Tensor) -> None:
        self.keys = torch.zeros_like(x)
        self.keys._dynamo_static_input_type = "unguarded"  # torch._dynamo.mark_static_address
        self.keys.add_(x)


def test_attributes_of_new_tensors():
    def body(x: Tensor) -> tuple[Cache, Tensor, list[Tensor]]:
        cache, y = Cache(x), x + 1
        y.parts = [y, x * 2]
        return cache, y, [y.parts[1], cache.keys]

    fast = fastjit.jit(body)
    for call in range(4):
        cache, y, (part, keys) = fast(X + call)
        assert_same(cache.keys, X + call, exact=True)
        assert cache.keys is keys and keys._dynamo_static_input_type == "unguarded"
        assert y.parts[0] is y and y.parts[1] is part and torch.equal(part, (X + call) * 2)
        assert vars(part) == {} and vars(keys) == {"_dynamo_static_input_type": "unguarded"}
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}


def test_attributes_of_new_tensors_that_stay_inside():
    def body(x: Tensor) -> Tensor:
        y = x + 1
        y.scale = SCALE
        y.shift = 1
        return x * y.scale + y.shift if not hasattr(y, "other") and not hasattr(x + 1, "scale") else x

    global SCALE
    watched = Watched(body).settle(X)
    SCALE = 3.0
    watched.call(X, hit=False)
    watched.call(X, hit=True)


SCALE = 2.0


def test_an_attribute_of_a_tensor_that_is_stored():
    holder = types.SimpleNamespace(last=None)

    def body(x: Tensor) -> Tensor:
        y = x + 1
        y.tag = "new"
        holder.last = y
        return x

    fast = fastjit.jit(body)
    for call in range(3):
        fast(X + call)
        assert_same(holder.last, X + call + 1, exact=True)
        assert holder.last.tag == "new"
        holder.last = None
    assert fast.stats().hits == 2


def test_attributes_of_tensors_that_are_there_already():
    kept = torch.ones(4)

    def given(x: Tensor) -> Tensor:
        x.tag = 1
        return x + 1

    def found(x: Tensor) -> Tensor:
        kept.tag = 1
        return x + kept

    def same(x: Tensor) -> Tensor:
        y = x.contiguous()
        y.tag = 1
        return x + 1

    def classes_own(x: Tensor) -> Tensor:
        y = x + 1
        y.grad = x.clone()
        return y

    for body in (given, found, same, classes_own):
        fast = fastjit.jit(body)
        for _ in range(3):
            x = X.clone()
            assert_same(fast(x), body(X.clone()), exact=True)
            assert hasattr(x, "tag") == (body in (given, same))
        if body in (given, same):  # an argument's, which each call brings
            assert fast.stats().hits == 2 and not fast.stats().fallbacks
        else:
            assert fast.stats().hits == 0 and "store to" in min(fast.stats().fallbacks, key=len)


class Flag:
    """As the settings of gpytorch: a class that inherits its state until it is first set."""

    state: bool | None = None

    def __init__(self, state: bool = True) -> None:
        self.before, self.now = type(self).state, state

    def __enter__(self) -> None:
        type(self).state = self.now

    def __exit__(self, *args: object) -> None:
        type(self).state = self.before


def test_a_setting_that_a_class_inherits_is_its_own_from_the_first_call_on():
    class Debug(Flag):
        pass

    def fn(x: Tensor) -> Tensor:
        with Debug(False):
            y = x * (3 if Debug.state is None else 2)
        return y + 1 if Debug.state is None else y

    watched = Watched(fn)
    assert "state" not in vars(Debug)
    watched.settle(X)
    assert vars(Debug)["state"] is None
    del Debug.state  # eager would make it the class's own again
    watched.fast(X)
    assert vars(Debug)["state"] is None and watched.fast.stats().hits == 2
    watched.call(X, hit=True)
    Flag.state = True  # which Debug does not inherit any more
    try:
        watched.call(X, hit=True)
        Debug.state = True
        watched.call(X, hit=False)
    finally:
        Flag.state = None


def test_a_setting_inherited_from_one_that_is_set():
    class Base(Flag):
        state = None

    class Debug(Base):
        pass

    def fn(x: Tensor) -> Tensor:
        with Base(True), Debug(False):
            return x * (2 if Base.state else 3) + (1 if Debug.state else 0)

    watched = Watched(fn)
    for _ in range(4):
        watched.fast(X)
    assert Base.state is None and vars(Debug)["state"] is True  # as eager leaves it
    before = watched.fast.stats().hits
    Debug.state = None
    assert_same(watched.fast(X), fn(X), exact=True)
    assert watched.fast.stats().hits == before and Debug.state is None


def test_what_a_class_has_of_its_own_while_its_base_is_set():
    class Base(Flag):
        state = None

    class Debug(Base):
        pass

    def fn(x: Tensor) -> Tensor:
        with Base(True):
            return x * (2 if Debug.state else 3)

    watched = Watched(fn).settle(X)
    Debug.state = False  # which is not what it inherits
    watched.call(X, hit=False)
    watched.call(X, hit=True)
    Debug.state = True
    watched.call(X, hit=False)
    Debug.state = False
    watched.call(X, hit=True)
    del Debug.state
    watched.call(X, hit=True)


def test_a_setting_that_is_not_put_back():
    class Debug(Flag):
        pass

    def fn(x: Tensor) -> Tensor:
        Debug(True).__enter__()
        return x + 1

    fast = fastjit.jit(fn)
    for _ in range(3):
        assert_same(fast(X), X + 1)
        assert Debug.state is True
        del Debug.state
    assert fast.stats().hits == 0


def test_a_tensor_without_history_says_so():
    def fn(x: Tensor) -> Tensor:
        y = x * 2
        return y + 1 if y.grad_fn is None and x.grad_fn is None else y

    watched = Watched(fn).settle(X)
    leaf = X.clone().requires_grad_()
    with torch.enable_grad():
        for _ in range(3):
            got = watched.fast(leaf)
            assert got.grad_fn is not None and torch.equal(got, X * 2)
    watched.call(X, hit=True)


def test_unions_of_classes_are_compared():
    one, same, other = int | None, None | int, float | None

    def fn(x: Tensor) -> Tensor:
        return x + 1 if one == "int" or one == other else x - (3 if one == same else 2)

    Watched(fn).settle(X)
