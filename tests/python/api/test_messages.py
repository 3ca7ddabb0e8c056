"""What a user is told when a call runs eagerly: the thing, the place, the way out."""

from __future__ import annotations

import array
import importlib
import logging
import operator
import os
import re
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fastjit import _C, FastJITWarning, UnsupportedError, _load, fastjit, of
from helpers import assert_same


def hooked_layer() -> nn.Linear:
    """A whole training step would not run the hook on its parameter."""
    net = nn.Linear(4, 4)
    net.weight.register_hook(lambda grad: grad * 2)
    return net


class Shared(nn.Linear):
    """A result is a part of its weight, through which autograd goes: gradients of calls with it are not compiled."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = self.weight[1:]
        return super().forward(x) + part.sum(), part


def test_gradients_that_are_not_compiled_are_said_once_with_the_way_out():
    net = fastjit(Shared(4, 4))
    x = torch.randn(2, 4)
    with torch.enable_grad():
        said = (
            r"Shared ran eagerly because its gradients are not compiled: "
            r"a result that requires grad shares memory with 'self.weight'; "
            r"'python -m fastjit docs training' says which gradients are compiled; "
            r"where none is needed, call it under torch.no_grad\(\)$"
        )
        with pytest.warns(FastJITWarning, match=said):
            out, _ = net(x)
        assert out.requires_grad
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net(x)
    for _ in range(2):
        assert not net(x)[0].requires_grad
    assert of(net).stats().hits == 1


def test_a_call_whose_gradients_are_not_compiled_delays_no_later_recording():
    weight = torch.randn(4, 4, requires_grad=True)

    def f(x):
        part = weight[1:]
        return torch.relu(x @ part), part

    fast, x = fastjit(f, on_unsupported="eager"), torch.randn(2, 3)
    with torch.enable_grad():
        fast(x), fast(x)
    fast(x), fast(x)
    assert fast.stats().hits == 1, fast.stats()
    assert list(fast.stats().fallbacks.values()) == [2]


def test_frozen_parameters_are_noticed():
    net = fastjit(nn.Linear(4, 4))
    x = torch.randn(2, 4)
    with torch.enable_grad():
        assert net(x).requires_grad and net(x).requires_grad
        net.requires_grad_(False)
        for _ in range(2):
            out = net(x)
            assert not out.requires_grad
            assert_same(out, F.linear(x, net.weight, net.bias))
    assert of(net).stats().hits == 2 and of(net).stats().misses == 2


def test_on_unsupported():
    def f(x):
        return x[x > 0].split(2)[0]

    x = torch.arange(8.0)
    with pytest.warns(FastJITWarning, match=r"f ran eagerly because .* at .*test_messages\.py:\d+"):
        assert_same(fastjit(f)(x), f(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = fastjit(on_unsupported="eager")(f)
        assert_same(quiet(x), f(x))
    assert len(quiet.stats().fallbacks) == 1
    with pytest.raises(UnsupportedError):
        fastjit(on_unsupported="error")(f)(x)


QUEUE = array.array("d", [2.0])


@pytest.mark.parametrize(
    ("fn", "way_out"),
    [
        (lambda x: x * float(x.numpy()[0]), "do this outside the function"),
        (lambda x: print(x) or x + 1, "side effect: print at .*; do this outside the function"),
        (lambda x: x * QUEUE[0], "read of item of array.array at .*; pass it as an argument, or say pure=True"),
    ],
)
def test_a_warning_names_the_way_out(fn, way_out):
    with pytest.warns(FastJITWarning, match=way_out):
        fastjit(fn)(torch.ones(3))


def call_in_a_module(net, x):
    return nn.Sequential(nn.Identity(), net)(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda net, x: net(x),
        call_in_a_module,
        lambda net, x: torch.enable_grad()(net)(x),
        lambda net, x: of(net).warmup(x),
    ],
    ids=["module", "submodule", "decorated", "warmup"],
)
def test_a_warning_points_at_the_users_line(call):
    net = fastjit(Shared(4, 4))
    with torch.enable_grad(), pytest.warns(FastJITWarning) as said:
        call(net, torch.randn(2, 4))
    assert said[0].filename == __file__
    first = call.__code__.co_firstlineno
    assert first <= said[0].lineno <= first + 1


def test_a_warning_of_verify_points_at_the_users_line():
    class Scaled(nn.Module):
        scale = 2.0

        def forward(self, x):
            return x * self.scale

    net = fastjit(Scaled(), pure=True, verify=True)
    net(torch.ones(3)), net(torch.ones(3))
    Scaled.scale = 3.0  # against the promise
    with pytest.warns(FastJITWarning, match="Scaled.* computed something else than eager") as said:
        call_in_a_module(net, torch.ones(3))
    assert said[0].filename == __file__
    assert said[0].lineno == call_in_a_module.__code__.co_firstlineno + 1


def test_errors_are_eagers_and_later_calls_work():
    fast = fastjit(lambda x, y: torch.mm(x, y) + 1)
    x = torch.randn(2, 3)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        fast(x, x)
    with pytest.raises(TypeError):
        fast(x)
    y = torch.randn(3, 2)
    for _ in range(2):
        assert_same(fast(x, y), torch.mm(x, y) + 1)
    assert fast.stats().hits == 1


def test_a_call_with_wrong_arguments_says_only_what_eager_says():
    fast = fastjit(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            fast()
    assert fast.stats().fallbacks == {}


def test_later_calls_name_the_reason_of_the_unsound_recording():
    class Counter:
        calls = 0

    def f(x):
        Counter.calls += 1
        return x + 1

    fast = fastjit(on_unsupported="eager")(f)
    for n in range(1, 7):
        fast(torch.ones(n))
    first = min(fast.stats().fallbacks, key=len)
    assert "test_messages.py" in first
    assert fast.stats().fallbacks == {first: 4, f"an earlier recording was unsound: {first}": 2}
    assert fast.explain(torch.ones(9)) == f"eager: an earlier recording was unsound: {first}"


def test_a_hook_inside_a_training_step_is_said():
    net = hooked_layer()
    optimizer = torch.optim.SGD(net.parameters())

    @fastjit
    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    with torch.enable_grad(), pytest.warns(FastJITWarning):
        step(torch.ones(2, 4))  # the first one of a process also meets what torch imports then
        step(torch.ones(2, 4))
    assert any("backward(), and a hook waits for that of" in why for why in step.stats().fallbacks), step.stats()


def test_what_a_library_does_is_said_with_the_users_line():
    def f(x):
        logging.getLogger("model").warning("seen")
        return x + 1

    with pytest.warns(FastJITWarning) as said:
        fastjit(f)(torch.ones(3))
    line = f.__code__.co_firstlineno + 1
    assert re.search(
        rf" at logging/__init__\.py:\d+ \(called at test_messages\.py:{line}\); do this outside the function$",
        str(said[0].message),
    )


LIBRARY = """
import array
QUEUE = array.array("d", [2.0])
def scaled(x):
    return x * QUEUE[0]
def calls(f, x):
    return f(x)
def imports(x):
    import wave
    return x * wave.WAVE_FORMAT_PCM
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module of an installed package."""
    (tmp_path / "a_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    ours, others = _load._library_folders()
    _C.register_library_folders(ours, [*others, f"{tmp_path}/"])
    yield importlib.import_module("a_library")
    _C.register_library_folders(ours, others)
    del sys.modules["a_library"]


def test_the_users_line_is_named_across_installed_packages(library):
    fast = fastjit(lambda x: library.scaled(x) + 1)
    with pytest.warns(FastJITWarning) as said:
        library.calls(fast, torch.ones(3))
    line = test_the_users_line_is_named_across_installed_packages.__code__.co_firstlineno
    assert (said[0].filename, said[0].lineno) == (__file__, line + 3)
    assert str(said[0].message).endswith(
        f"read of item of array.array at a_library.py:5 (called at test_messages.py:{line + 1}); "
        "do this outside the function"
    )


def test_what_a_library_imports_at_its_first_use_is_not_warned_of(library, recwarn):
    """The next call is recorded: there is nothing that a user could do."""
    sys.modules.pop("wave", None)
    fast = fastjit(lambda x: library.imports(x) + 1)
    for _ in range(3):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert not [seen for seen in recwarn if issubclass(seen.category, FastJITWarning)]
    assert fast.stats().hits == 1 and [reason.split(" at ")[0] for reason in fast.stats().fallbacks] == [
        "import of wave"
    ]


@pytest.mark.parametrize(
    ("file", "line_is_the_users"),
    [("<stdin>", True), ("<ipython-input-3-0>", True), ("<doctest model[0]>", True), ("<string>", False)],
)
def test_code_without_a_file_is_the_users_where_it_was_typed(file, line_is_the_users):
    fast = fastjit(lambda x: x[x > 0].split(2))
    with pytest.warns(FastJITWarning) as said:
        exec(compile("fast(torch.ones(3))", file, "exec"), {"fast": fast, "torch": torch})
    assert said[0].filename == (file if line_is_the_users else __file__)


def test_folders_of_libraries():
    ours, others = _load._library_folders()
    assert f"{os.path.dirname(torch.__file__)}/" in ours and len(ours) == 2  # noqa: PTH120
    assert any(logging.__file__.startswith(folder) for folder in others)
    assert any(pytest.__file__.startswith(folder) for folder in others)
    assert not any(__file__.startswith(folder) for folder in others)


def test_the_general_advice_is_a_command_that_works():
    def f(x):
        return x * float(memoryview(b"1")[0])

    with pytest.warns(FastJITWarning) as said:
        fastjit(f)(torch.ones(3))
    command = re.search(r"; '(python -m fastjit docs limits)' says what can be compiled; ", str(said[0].message))
    assert command, said[0].message
    done = subprocess.run([sys.executable, *command[1].split()[1:]], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("# Limits\n")


def test_the_log_says_load_or_compile(tmp_path):
    script = (
        "import torch, fastjit; x = torch.ones(2)\n"
        "for name in 'first', 'second':\n"
        "    f = fastjit.fastjit(name=name)(lambda x: x + 1); f(x), f(x)\n"
        "f = fastjit.fastjit(name='copies')(lambda x: x.view(1, 2)); f(x), f(x)\n"
    )
    env = {**os.environ, "FASTJIT_LOG": "compile", "FASTJIT_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", script]
    logs = [subprocess.run(run, env=env, capture_output=True, text=True, check=True).stderr for _ in range(2)]
    first, second = ([re.sub(r"[0-9.]+ ms.*", "T", line) for line in log.splitlines()] for log in logs)
    memory = [
        "fastjit: [compile] second(f32[2]): 1 kernel reused from memory in T",
        "fastjit: [compile] copies(f32[2]): no kernel needed in T",
    ]
    assert re.fullmatch(r"fastjit: \[compile\] compiled a kernel of first\(f32\[2\]\) for cpu-\w+ in T", first[0])
    assert first[1:] == ["fastjit: [compile] first(f32[2]): 1 kernel compiled in T", *memory]
    assert second == ["fastjit: [compile] first(f32[2]): 1 kernel loaded from disk in T", *memory]


def test_no_tensor_result_is_eager_with_a_reason():
    fast = fastjit(lambda n: n + 1)
    with pytest.warns(FastJITWarning, match="because its result holds no tensor"):
        fast(3)
    assert fast.stats().fallbacks == {"its result holds no tensor": 1}


@pytest.mark.parametrize("text", ["compiles", "compile,miss es", "ALL"])
def test_a_log_channel_that_is_not_there_is_said(text, tmp_path):
    script = "import torch, fastjit; f = fastjit.fastjit(lambda x: x + 1); f(torch.ones(2)); f(torch.ones(2))"
    env = {**os.environ, "FASTJIT_LOG": text, "FASTJIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    wrong = text.split(",")[-1]
    said = f"fastjit: FASTJIT_LOG: there is no '{wrong}'; choose from compile, fallback, cache, miss, all"
    assert done.stderr.splitlines()[0] == said and done.stderr.count("FASTJIT_LOG") == 1
    assert ("fastjit: [compile]" in done.stderr) == text.startswith("compile,")


def test_a_scripted_callee_is_told_that_torchscript_is_not_compiled_there():
    """In a process of its own: torch's test tools replace what calls of TorchScript run."""
    script = (
        "import torch, fastjit; f = fastjit.fastjit(lambda x: m(x)); "
        "m = torch.jit.trace(lambda x: x + 1, torch.ones(3)); f(torch.ones(3))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert re.search(
        r"<lambda> ran eagerly because call of ScriptFunction at <string>:1; "
        r"TorchScript is not compiled inside of other functions; give it to fastjit itself\n",
        done.stderr,
    ), done.stderr


@pytest.mark.parametrize(
    ("make", "args", "said"),
    [
        (
            lambda: torch.resize_as_,
            (torch.ones(3), torch.ones(4)),
            r"torch\.resize_as_ ran eagerly because call of resize_as_, which was given to fastjit; 'python -m fastjit",
        ),
        (
            lambda: operator.iand,
            (torch.ones(3, dtype=torch.bool), True),
            r"_operator\.iand ran eagerly because call of iand, which was given to fastjit; 'python -m fastjit docs",
        ),
    ],
    ids=["torch function", "operator"],
)
def test_a_target_without_a_python_frame_is_named(make, args, said):
    with pytest.warns(FastJITWarning, match=said):
        fastjit(make())(*args)
