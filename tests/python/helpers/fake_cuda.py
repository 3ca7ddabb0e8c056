"""Tests of programs on a stand-in for a CUDA device, in a process of their own: it takes CUDA's place in torch.

Run as `fake_cuda.py DEVICE DRIVER CHECK...` by test_cuda_launch.py: DEVICE is tests/cuda/fake_device.cpp built, DRIVER
tests/cuda/fake_driver.cpp. Prints {check: what went wrong, or ""} as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

import cuda_cases
import cuda_launch_cases
import fake_cuda_training
import fastjit as package
from fastjit import _nvrtc, fastjit
from fastjit._load import extension
from helpers import assert_same
from stand_in import back, put

CASES = ("softmax of 3 dims", "layer_norm", "gelu chain", "full sum", "amax float32", "to float64")
driver: Any = None


def value(name: str) -> int:
    return ctypes.c_int.in_dll(driver, f"fake_{name}").value


def address(name: str) -> int:
    return ctypes.c_void_p.in_dll(driver, f"fake_{name}").value or 0


def fallback(function: Callable[..., Any], *args: Any, pure: bool = True) -> tuple[str, str]:
    """The reason for which a call ran eagerly, and the warning; its result is what eager gives."""
    fast = fastjit(pure=pure)(function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            fast(*args)
    stats = fast.stats()
    assert stats.hits == 0, stats
    said = [str(w.message) for w in caught if w.category is package.FastJITWarning]
    assert len(said) == 1, said
    return next(iter(stats.fallbacks)), said[0]


def check_programs_are_fused_and_right(pure: bool = True) -> None:
    for name, (function, args, kernels) in cuda_launch_cases.programs().items():
        expected = function(*args)
        fast, inputs = fastjit(pure=pure)(function), put(args)
        assert_same(back(fast(*inputs)), expected)
        before = value("launches")
        got = fast(*inputs)
        stats = fast.stats()
        assert (stats.hits, stats.fallbacks, stats.kernels) == (1, {}, kernels), (name, stats)
        assert value("launches") - before == kernels, name
        for tensor in got if isinstance(got, tuple) else (got,):
            assert str(tensor.device) == "cuda:0", name
        assert_same(back(got), expected)


def check_programs_that_are_not_pure() -> None:
    check_programs_are_fused_and_right(pure=False)


def check_turned_tensors_and_reductions() -> None:
    for function, all_sizes in (
        (cuda_launch_cases.turned, cuda_launch_cases.TURNED_SIZES),
        (cuda_launch_cases.reductions, [sizes for sizes in cuda_launch_cases.REDUCED_SIZES if max(sizes) < 10_000]),
    ):
        for sizes in all_sizes:
            args = (torch.randn(sizes), torch.randn(sizes[::-1]))[: function.__code__.co_argcount]
            fast, inputs = fastjit(pure=True)(function), put(args)
            fast(*inputs)
            got, expected = back(fast(*inputs)), function(*args)
            assert (fast.stats().hits, fast.stats().fallbacks) == (1, {}), (function, sizes)
            for one, other in zip(got, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def check_turned_vectors() -> None:
    for dtype, sizes, at in (
        (torch.bfloat16, (36, 100), 0),
        (torch.float64, (36, 100), 0),
        (torch.int16, (36, 100), 1),
        (torch.float32, (36, 100), 3),
        (torch.float32, cuda_launch_cases.MANY_TURNED, 0),
        (torch.float32, cuda_launch_cases.MANY_TURNED, 1),
    ):
        count = sizes[0] * sizes[1]
        whole = (torch.randn(2, count + at) * 100).to(dtype)
        fast, on_device = fastjit(pure=True)(cuda_launch_cases.turned), put(whole)
        x, y = whole[0, at:].view(sizes), whole[1, at:].view(sizes[::-1])
        inputs = on_device[0, at:].view(sizes), on_device[1, at:].view(sizes[::-1])
        fast(*inputs)
        assert_same(back(fast(*inputs)), cuda_launch_cases.turned(x, y))
        assert (fast.stats().hits, fast.stats().fallbacks) == (1, {}), (dtype, sizes)
        assert "fj_load4<whole>(&p." in fast.inspect("cuda") and "static __shared__" in fast.inspect("cuda")


def check_vectors_that_do_not_begin_at_multiples_of_their_size() -> None:
    fast, whole = fastjit(pure=True)(lambda x, y: (x * y + 1, torch.softmax(x * 2, -1))), torch.randn(2, 8 * 128 + 3)
    on_device = put(whole)
    for at in (0, 1, 2, 3):
        x, y = (row[at : at + 8 * 128].view(8, 128) for row in whole)
        inputs = [row[at : at + 8 * 128].view(8, 128) for row in on_device]
        fast(*inputs)
        hits = fast.stats().hits
        torch.testing.assert_close(back(fast(*inputs)), (x * y + 1, torch.softmax(x * 2, -1)))
        assert fast.stats().hits == hits + 1 and fast.stats().fallbacks == {}
    assert "vector 4" in fast.inspect("plan")


def check_masks_choose_elements() -> None:
    for pure in (False, True):
        x, fast = torch.randn(300), fastjit(pure=pure)(cuda_launch_cases.masked)
        fast(put(x))
        assert_same(back(fast(put(x))), cuda_launch_cases.masked(x))
        stats = fast.stats()
        assert (stats.hits, stats.fallbacks, stats.kernels) == (1, {}, 1), stats


class Scaled(torch.nn.Module):
    """Reads a parameter, a buffer, a number and the device of its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(put(torch.randn(8)))
        self.register_buffer("shift", put(torch.randn(8)))
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight + self.shift * self.factor
        return y + 1 if x.device.type == "cuda" else y - 1


def check_state_that_is_read_is_guarded() -> None:
    model, x = Scaled(), torch.randn(3, 8)
    fast, on_device = fastjit(model), put(x)

    def agree(hits: int) -> None:
        weight, shift = back(model.weight), back(model.shift)
        assert_same(back(fast(on_device)), x * weight + shift * model.factor + 1)
        assert package.of(fast).stats().hits == hits, package.of(fast).stats()

    agree(0)
    agree(1)
    model.weight.data = put(torch.randn(8))  # another tensor
    model.weight.mul_(put(torch.full((8,), 2.0)))
    agree(2)
    model.factor = 3.0
    fast(on_device)
    hits = package.of(fast).stats().hits
    agree(hits + 1)
    assert package.of(fast).stats().fallbacks == {}


def check_numbers_that_change_are_the_program_s() -> None:
    fast, x = fastjit(lambda x, a: torch.tanh(x * a) + a), torch.randn(4, 8)
    for factor in (1.0, 2.5, 3.0, -4.0):
        assert_same(back(fast(put(x), factor)), torch.tanh(x * factor) + factor)
    assert (fast.stats().misses, fast.stats().hits, fast.stats().fallbacks) == (1, 3, {})


def check_state_that_each_call_replaces() -> None:
    class Mean:
        def __init__(self) -> None:
            self.total = put(torch.zeros(8))

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            self.total = self.total * 0.5 + x.sum(0)
            return self.total * 2

    x, expected, fast = torch.randn(4, 8), torch.zeros(8), fastjit(Mean().__call__)
    for _ in range(4):
        expected = expected * 0.5 + x.sum(0)
        torch.testing.assert_close(back(fast(put(x))), expected * 2)
    assert (fast.stats().hits, fast.stats().fallbacks) == (3, {})


def check_loops_launch_every_round() -> None:
    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = torch.softmax(x * y + 0.1, -1) - y.sum(-1, keepdim=True) * x
        return x

    args = torch.randn(4, 33), torch.rand(4, 33) / 33
    fast, inputs = fastjit(pure=True)(chain), put(args)
    fast(*inputs)
    before = value("launches")
    got = fast(*inputs)
    stats = fast.stats()
    assert "\nloop " in fast.inspect("plan"), fast.inspect("plan")
    assert (stats.hits, stats.fallbacks) == (1, {}) and stats.steps < stats.kernels, stats
    assert value("launches") - before == stats.kernels
    assert_same(back(got), chain(*args))


def check_kernel_cases_mean_what_eager_does() -> None:
    for case in cuda_cases.cases():
        if not case.name.startswith(CASES):
            continue
        fast = fastjit(pure=True)(case.function)
        fast(*put(case.args))
        got, expected = fast(*put(case.args)), case.function(*case.args)
        assert (fast.stats().hits, fast.stats().fallbacks) == (1, {}), case.name
        as_list = list if isinstance(expected, tuple) else lambda result: [result]
        cuda_cases.compare(case, as_list(back(got)), as_list(expected))


def check_results_that_are_arguments_or_views() -> None:
    fast = fastjit(pure=True)(lambda x, y: (x, x * y, y.t()))
    x, y = put((torch.randn(3, 4), torch.randn(3, 4)))
    fast(x, y)
    same, _, view = fast(x, y)
    assert fast.stats().hits == 1
    assert same is x and view.data_ptr() == y.data_ptr() and view._base is y


def check_writes_to_arguments_count_versions() -> None:
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    fast = fastjit(pure=True)(cuda_launch_cases.add_in_place)
    for _ in range(3):
        written, expected, other = put(x), x.clone(), put(y)
        versions = written._version
        assert fast(written, other) is written
        cuda_launch_cases.add_in_place(expected, y)
        assert written._version - versions == expected._version
        assert_same(back(written), expected)
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}


def check_the_current_stream_is_used() -> None:
    fast, x = fastjit(pure=True)(lambda x: x * 2 + 1), put(torch.randn(8))
    fast(x)
    for handle in (0x1230, 0x4560, 0):
        torch.ops.fake_cuda.set_stream(handle)
        fast(x)
        assert address("stream") == handle
    assert fast.stats().hits == 3


def check_each_device_has_its_program() -> None:
    fast, x = fastjit(pure=True)(lambda x: x * 3 + 1), torch.randn(8)
    first, second = put(x, 0), put(x, 1)
    fast(first), fast(first)
    assert address("context") == 1000
    assert "argument 0 was f32[8] on cuda:0, is f32[8] on cuda:1" in fast.explain(second)
    compiles = value("compiles")
    fast(second)
    got = fast(second)
    assert address("context") == 1001 and str(got.device) == "cuda:1"
    assert value("compiles") == compiles, "a kernel is compiled once for devices of one kind"
    fast(first)
    assert address("context") == 1000
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}
    assert_same(back(got), x * 3 + 1)


def check_a_cpu_variant_stands_beside() -> None:
    fast, x = fastjit(pure=True)(lambda x: x * 5 + 1), torch.randn(8)
    for _ in range(2):
        assert_same(fast(x), x * 5 + 1)
        assert_same(back(fast(put(x))), x * 5 + 1)
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}


def check_a_thread_without_a_context() -> None:
    fast, x = fastjit(pure=True)(lambda x: x * 7), torch.randn(8)
    on_device, results = put(x), []
    fast(on_device)
    thread = threading.Thread(target=torch.no_grad()(lambda: results.append(fast(on_device))))
    thread.start()
    thread.join()
    assert_same(back(results[0]), x * 7)
    assert fast.stats().hits == 1


def check_reasons_and_ways_out() -> None:
    x, host, weight = put(torch.randn(4)), torch.randn(4), put(torch.randn(4), 1)
    reason, said = fallback(lambda x, y: (x * 2, y), x, put(host, 1))
    assert reason == "its arguments are on cuda:0 and cuda:1" and said.endswith("; move its tensors to one device")
    assert fallback(lambda x: (x * 2, weight * 2), x)[0].endswith(" is on cuda:1")


def check_a_launch_that_fails_runs_eagerly() -> None:
    fast, x = fastjit(pure=True)(lambda x: x * 11 + 1), torch.randn(8)
    on_device = put(x)
    fast(on_device)
    ctypes.c_int.in_dll(driver, "fake_fail_launch").value = 1
    assert_same(back(fast(on_device)), x * 11 + 1)
    ctypes.c_int.in_dll(driver, "fake_fail_launch").value = 0
    fast(on_device)
    assert fast.stats().hits == 1 and fast.stats().fallbacks == {"an operator raised": 1}


def check_autocast_is_a_guard() -> None:
    fast = fastjit(pure=True)(lambda x: x * 13)
    x = put(torch.randn(8))
    fast(x)
    with torch.autocast("cpu"):
        fast(x)
    assert fast.stats().hits == 0


def cache_counts() -> None:
    """Not a check: what one call in a new process costs, for the parent to compare."""
    fast, x = fastjit(pure=True)(lambda x: torch.softmax(x * 17, -1)), torch.randn(4, 8)
    got = fast(put(x))
    assert_same(back(got), torch.softmax(x * 17, -1))
    assert_same(back(fast(put(x))), torch.softmax(x * 17, -1))
    stats = fast.stats()
    assert stats.hits == 1
    print(json.dumps({"compiles": stats.compiles, "disk_hits": stats.disk_hits, "nvrtc": value("compiles")}))


def no_driver() -> None:
    """Not a check: run without a driver."""
    print(json.dumps(fallback(lambda x: x * 2, put(torch.randn(4)))))


def no_nvrtc() -> None:
    """Not a check: run with a driver and without NVRTC."""
    _nvrtc.problem = lambda: "NVRTC was not found; install it with: pip install nvidia-cuda-nvrtc"  # type: ignore[assignment]
    print(json.dumps(fallback(lambda x: x * 2, put(torch.randn(4)))))


ALL = {**globals(), **vars(fake_cuda_training)}
CHECKS = [name for name in ALL if name.startswith("check_")]


def main(device: str, driver_path: str, names: list[str]) -> None:
    global driver
    os.environ.pop("LD_PRELOAD", None)  # the compiler of kernels needs no torch
    torch.ops.load_library(device)
    if driver_path:
        driver = ctypes.CDLL(driver_path)
        assert extension.cuda_problem(driver_path) == ""
        assert extension.nvrtc_open(driver_path) == ""
    torch.set_grad_enabled(False)
    if names[0] not in CHECKS:
        return ALL[names[0]]()
    results = {}
    for name in names:
        try:
            ALL[name]()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    print(json.dumps(results))
    return None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
