"""What nn.Module's own functions read is noted when they are entered: the same facts as watching them gives."""

import re
from collections import OrderedDict

import pytest
import torch
from torch import nn

from fastjit import _C, fastjit
from fastjit._known_frames import known_frames
from helpers import assert_same, check


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))
        self.depth = 2

    def forward(self, x):
        return self.inner(x) * self.scale + self.shift * self.depth


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def watch_all():
    """Switches to recordings that watch every frame."""
    yield lambda: _C.register_known_frames(dict)
    _C.register_known_frames(known_frames)


def calling(module):
    def call(x):
        return module(x)

    return call


def model():
    return nn.Sequential(Layer(), Layer(), nn.ReLU())


def test_this_release_of_torch_is_known():
    assert sorted(known_frames()) == ["__getattr__", "_call_impl", "_wrapped_call_impl"]


def facts_of(module, x):
    lines = check(calling(module), x).inspect("guards").splitlines()
    return {re.sub(r" \([^()]*:\d+\)$", "", line) for line in lines}


def test_the_facts_are_those_that_watching_finds(no_grad, watch_all):
    module, x = model(), torch.randn(2, 4)
    noted = facts_of(module, x)
    watch_all()
    assert noted == facts_of(module, x)


def test_fewer_instructions_are_watched(no_grad, watch_all):
    def work():
        before = _C.recording_work()
        check(calling(model()), torch.randn(2, 4))
        return _C.recording_work() - before

    noted = work()
    watch_all()
    assert noted < 0.9 * work()


def other_forward(x):
    return x - 1


def keeps(name, value):
    def change(layer):
        object.__setattr__(layer, name, value)

    return change


def moves_scale_to_the_buffers(layer):
    value = layer.scale.detach() + 1
    del layer.scale
    layer.register_buffer("scale", value)


CHANGES = {
    "a forward hook": lambda layer: layer.register_forward_hook(lambda module, args, result: result + 1),
    "a hook before": lambda layer: layer.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "another parameter": lambda layer: setattr(layer, "scale", nn.Parameter(torch.ones(4))),
    "another submodule": lambda layer: setattr(layer, "inner", nn.Identity()),
    "a buffer in the parameter's place": moves_scale_to_the_buffers,
    "an attribute before the parameter": keeps("scale", torch.zeros(4)),
    "a forward of its own": keeps("forward", other_forward),
    "a call of its own": keeps("_call_impl", other_forward),
    "a compiled call": keeps("_compiled_call_impl", other_forward),
    "other hooks": keeps("_forward_hooks", OrderedDict({1: lambda module, args, result: result + 1})),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_change_is_noticed(change, no_grad):
    module, x = model(), torch.randn(2, 4)
    fast = check(calling(module), x)
    change(module[1])
    for _ in range(2):
        assert_same(fast(x), module(x))
    stats = fast.stats()
    assert (stats.hits, stats.fallbacks) == (2, {})  # the last call: of a program that knows the change


def test_a_global_hook_is_noticed(no_grad):
    module, x = model(), torch.randn(2, 4)
    fast = check(calling(module), x)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, result: result + 1)
    try:
        assert_same(fast(x), module(x))
    finally:
        handle.remove()
    assert_same(fast(x), module(x))


class Asking(nn.Module):
    """Looks for an attribute that is not there, and for one that a class attribute hides."""

    kind = "asking"

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        bias = getattr(self, "bias", None)
        if hasattr(self, "gate"):
            x = x * 2
        return self.inner(x) + (0 if bias is None else bias) + len(self.kind)


def test_what_is_not_there_is_a_fact(no_grad):
    module, x = Asking(), torch.randn(2, 4)
    fast = check(calling(module), x)
    module.bias = nn.Parameter(torch.ones(4))
    assert_same(fast(x), module(x))
    module.register_buffer("gate", torch.ones(1))
    assert_same(fast(x), module(x))


class Own(nn.Module):
    """A __getattr__ of its own before that of nn.Module."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __getattr__(self, name):
        return 3.0 if name == "three" else super().__getattr__(name)

    def forward(self, x):
        return self.inner(x) * self.three


def test_a_class_with_its_own_lookup(no_grad):
    check(calling(Own()), torch.randn(2, 4))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x) + 1


def test_a_module_that_counts_its_calls(no_grad):
    module, x = nn.Sequential(Counting(), Counting()), torch.randn(2, 4)
    fast = fastjit(calling(module))
    for _ in range(3):
        assert_same(fast(x), module(x))
    assert [layer.calls for layer in module] == [6, 6]
    assert fast.stats().hits == 2 and not fast.stats().fallbacks
