"""On a GPU: decorated functions of CUDA tensors, launched on torch's current stream, against eager on the CPU.

Run with `pytest tests/gpu`; without a device every test is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import cuda_launch_cases
from cuda_cases import Case, cases, compare
from fastjit import fastjit, of
from helpers import assert_same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _no_grad():
    # float32 products as the CPU has them
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        yield


def put(value: Any, device: str = "cuda:0") -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)
    return tuple(put(item, device) for item in value) if isinstance(value, tuple) else value


def back(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
    return tuple(map(back, value)) if isinstance(value, tuple) else value


def hit(function: Any, *args: Any) -> Any:
    """The result of a call that must run the program."""
    hits = function.stats().hits
    got = function(*args)
    assert (function.stats().hits, function.stats().fallbacks) == (hits + 1, {})
    return got


@pytest.mark.parametrize("pure", [False, True], ids=["guarded", "pure"])
@pytest.mark.parametrize("name", cuda_launch_cases.programs())
def test_programs_are_fused_and_right(name: str, pure: bool) -> None:
    function, args, kernels = cuda_launch_cases.programs()[name]
    expected, inputs, fast = function(*args), put(args), fastjit(pure=pure)(function)
    fast(*inputs)
    got = hit(fast, *inputs)
    assert fast.stats().kernels == kernels
    # Products of 32-bit floats: the order of summation is the library's.
    loose = {"rtol": 1e-4, "atol": 1e-4}
    for one, other in zip(back(got) if isinstance(got, tuple) else (back(got),), as_tuple(expected), strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        torch.testing.assert_close(one, other, **(loose if one.dtype == torch.float32 else {}))


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("case", [case for case in cases() if case.pure], ids=lambda case: case.name)
def test_a_kernel_means_on_the_device_what_eager_means_on_the_cpu(case: Case) -> None:
    fast, inputs = fastjit(pure=True)(case.function), put(tuple(case.args))
    fast(*inputs)
    got = hit(fast, *put(tuple(case.args)))
    compare(case, list(as_tuple(back(got))), list(as_tuple(case.function(*case.args))))


@pytest.mark.parametrize("sizes", [*cuda_launch_cases.TURNED_SIZES, cuda_launch_cases.MANY_TURNED])
def test_turned_tensors_go_through_tiles(sizes: tuple[int, int]) -> None:
    x, y, fast = torch.randn(sizes), torch.randn(sizes[::-1]), fastjit(cuda_launch_cases.turned)
    fast(put(x), put(y))
    assert_same(back(hit(fast, put(x), put(y))), cuda_launch_cases.turned(x, y))


@pytest.mark.parametrize("sizes", cuda_launch_cases.REDUCED_SIZES)
def test_reductions_of_every_shape(sizes: tuple[int, int]) -> None:
    x, fast = torch.randn(sizes), fastjit(cuda_launch_cases.reductions)
    fast(put(x))
    for one, other in zip(back(hit(fast, put(x))), cuda_launch_cases.reductions(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_vectors_that_do_not_begin_at_multiples_of_their_size() -> None:
    """The program loads and stores four elements at once; of these, one by one."""
    fast, whole = fastjit(lambda x, y: (x * y + 1, torch.softmax(x * 2, -1))), torch.randn(2, 64 * 128 + 3)
    for at in (0, 1, 2, 3):
        x, y = (row[at : at + 64 * 128].view(64, 128) for row in whole)
        on_device = [row[at : at + 64 * 128].view(64, 128) for row in whole.cuda()]
        fast(*on_device)
        torch.testing.assert_close(back(hit(fast, *on_device)), (x * y + 1, torch.softmax(x * 2, -1)))
    assert "vector 4" in fast.inspect("plan")


def test_the_state_of_a_module_is_guarded() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).cuda().eval()
    fast, x = fastjit(model), torch.randn(5, 8, device="cuda")

    def agrees() -> None:
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)

    for _ in range(3):
        agrees()
    model[0].weight.mul_(3)
    model[2].bias = torch.nn.Parameter(torch.randn(4, device="cuda"))
    for _ in range(3):
        agrees()
    stats = of(fast).stats()
    assert stats.hits >= 4 and stats.fallbacks == {}, stats


def test_draws_are_those_of_eager() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * 2, 0.3) + torch.rand_like(x)

    fast, x = fastjit(noisy), torch.randn(1000, device="cuda")
    fast(x)
    torch.manual_seed(7)
    expected = [noisy(x), noisy(x)]
    torch.manual_seed(7)
    for each in expected:
        torch.testing.assert_close(hit(fast, x), each)


@pytest.mark.parametrize("pure", [False, True], ids=["guarded", "pure"])
def test_masks_choose_elements(pure: bool) -> None:
    x, fast = torch.randn(300), fastjit(pure=pure)(cuda_launch_cases.masked)
    fast(put(x))
    assert_same(back(hit(fast, put(x))), cuda_launch_cases.masked(x))
    assert fast.stats().kernels == 1


def test_writes_to_arguments() -> None:
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    fast = fastjit(pure=True)(cuda_launch_cases.add_in_place)
    fast(put(x), put(y))
    written, expected = put(x), x.clone()
    assert hit(fast, written, put(y)) is written
    cuda_launch_cases.add_in_place(expected, y)
    assert_same(back(written), expected)


def test_the_current_stream_is_used() -> None:
    """A hit on a side stream sees what that stream wrote before, although it is still busy, and is seen by it."""
    fast = fastjit(pure=True)(lambda x: x * 2 + 1)
    x = torch.zeros(1 << 20, device="cuda")
    fast(x)
    hit(fast, x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # about 0.1 s: on another stream, the kernel would run before the write
        x.fill_(3)
        got = hit(fast, x)
        after = got + 0
    side.synchronize()
    assert after.eq(7).all() and got.eq(7).all()


def test_a_cuda_graph_replays_the_program() -> None:
    fast = fastjit(pure=True)(lambda x: torch.softmax(x, -1) + 1)
    x = torch.randn(16, 64, device="cuda")
    fast(x)
    hit(fast, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = hit(fast, x)
    x.copy_(torch.randn(16, 64))
    graph.replay()
    torch.testing.assert_close(got, torch.softmax(x, -1) + 1)


def test_a_new_thread() -> None:
    fast, x, results = fastjit(pure=True)(lambda x: x * 7), torch.randn(8, device="cuda"), []
    fast(x)
    thread = threading.Thread(target=torch.no_grad()(lambda: results.append(hit(fast, x))))
    thread.start()
    thread.join()
    torch.testing.assert_close(results[0], x * 7)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_each_device_has_its_program() -> None:
    fast, x = fastjit(pure=True)(lambda x: x * 3 + 1), torch.randn(8)
    for device in ("cuda:0", "cuda:1"):
        fast(x.to(device))
        got = hit(fast, x.to(device))
        assert str(got.device) == device
        torch.testing.assert_close(got.cpu(), x * 3 + 1)
    assert torch.cuda.current_device() == 0


def test_memory_comes_from_torch_and_goes_back() -> None:
    fast = fastjit(pure=True)(lambda x: torch.softmax(torch.mm(x, x), -1).sum(0))
    x = torch.randn(256, 256, device="cuda")
    fast(x)
    hit(fast, x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        hit(fast, x)
    assert torch.cuda.memory_allocated() == before


SECOND = """
import json, torch
from fastjit import fastjit
torch.set_grad_enabled(False)
fast = fastjit(pure=True)(lambda x: torch.softmax(x * 17, -1))
x = torch.randn(4, 8, device="cuda")
torch.testing.assert_close(fast(x), fast(x))
stats = fast.stats()
assert stats.hits == 1, stats
print(json.dumps([stats.compiles, stats.disk_hits]))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    def costs() -> list[int]:
        done = subprocess.run(
            [sys.executable, "-c", SECOND],
            env={**os.environ, "FASTJIT_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        counts: list[int] = json.loads(done.stdout)
        return counts

    assert costs() == [1, 0]
    assert costs() == [0, 1]
