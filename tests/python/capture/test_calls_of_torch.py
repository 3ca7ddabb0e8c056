"""What only torch computes: complex numbers, operators called through torch.ops, functions without tensor arguments."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F

from fastjit import fastjit, of
from helpers import assert_same, check


def spectrum(x):
    return torch.fft.ifft(torch.fft.fft(x) * 2).real + 1


def write_complex(z):
    z.mul_(2j)
    z[:1].fill_(1.5)
    return z[1:].abs().sum()


def returned(z):
    return z, z.t(), z + 1, torch.view_as_real(z), z.clone()


def scaled(x):
    return torch.view_as_real(torch.complex(x, x) * (2 + 1j))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_numbers_are_calls_of_torch_between_kernels(dtype):
    fast = check(spectrum, torch.randn(8, dtype=dtype), kernels=1)
    assert "raw" in fast.inspect("ir")
    check(scaled, torch.randn(4, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_arguments_are_written_and_returned(dtype):
    z = torch.randn(3, 3, dtype=dtype)
    check(write_complex, z[0])
    check(returned, z)
    fast = fastjit(returned)
    for _ in range(2):
        now = z.clone()
        out = fast(now)
        assert out[0] is now and out[1].untyped_storage().data_ptr() == now.untyped_storage().data_ptr()
    assert fast.stats().hits == 1


def test_another_complex_number_is_another_program():
    def f(x, k):
        return torch.view_as_real(x * k)

    x, fast = torch.randn(4), fastjit(f)
    for k in (2j, 2j, 3j, 1 + 2j, 2j):
        torch.testing.assert_close(fast(x, k), f(x, k), rtol=0, atol=0)
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {})


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn])
def test_types_that_no_kernel_knows(dtype):
    x = torch.arange(6, dtype=torch.float32).to(dtype).view(2, 3)
    check(lambda x: (x.t(), x.to(torch.float32) * 2), x, kernels=1)


def test_a_complex_constant_runs_eagerly():
    for f in (lambda z: z * torch.tensor(2j), lambda z: (z, torch.tensor(1j, dtype=torch.complex128))):
        fast = fastjit(f, on_unsupported="eager")
        z = torch.randn(2, dtype=torch.complex64)
        for _ in range(2):
            assert_same(fast(z), f(z))
        ((reason, count),) = fast.stats().fallbacks.items()
        assert "call of tensor" in reason and (count, fast.stats().hits) == (2, 0)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch._neg_view(x),
        lambda x: torch.fft.fft(x).conj(),
    ],
)
def test_lazy_negations_and_conjugates_run_eagerly(f):
    x, fast = torch.randn(2, 3), fastjit(f, on_unsupported="eager")
    for _ in range(2):
        got, want = fast(x), f(x)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg())
    ((reason, count),) = fast.stats().fallbacks.items()
    assert "lazy conjugate or negation" in reason and (count, fast.stats().hits) == (2, 0)


def correlation(a, b):
    return torch.fft.irfft(torch.fft.rfft(a) * torch.fft.rfft(b).conj(), n=a.shape[-1])


def turned(a, b):
    return torch.view_as_real(torch.complex(a, b).conj().t().contiguous() * 1j)


LAZY = [
    correlation,
    lambda a, b: (torch.complex(a, b) * torch.complex(a, b).conj()).real.sum(-1),
    lambda a, b: torch.matmul(torch.complex(a, b), torch.complex(b, a).mH).abs(),
    lambda a, b: torch.complex(a, b).conj().real + torch.fft.ifft(torch.fft.fft(a)).abs(),
    lambda a, b: torch.fft.fft(torch.fft.ifft(a) * b).abs(),
]
NEGATED = [
    lambda a, b: torch.complex(a, b).conj().imag * 2 + torch._neg_view(a),
    lambda a, b: torch._neg_view(a) @ b.t(),
    lambda a, b: F.conv1d(torch._neg_view(b).unsqueeze(0), torch.ones(3, len(b), 8)) + a.sum(),
]


@pytest.mark.parametrize(
    ("f", "sizes"), [(f, (3, 4, 7, 6, 9)) for f in LAZY[:4]] + [(f, (3,)) for f in [*LAZY[4:], turned, *NEGATED]]
)
def test_lazy_conjugates_and_negations_inside_a_call_are_calls_of_torch(f, sizes):
    fast = fastjit(f)
    for rows in (3, 3, *sizes):
        inputs = torch.randn(2, rows, 8)
        torch.testing.assert_close(fast(*inputs), f(*inputs))
    stats = fast.stats()
    assert stats.hits >= 2 and stats.variants <= 2 and stats.fallbacks == {}


@torch.enable_grad()
@pytest.mark.parametrize("f", [*LAZY, *NEGATED[1:]])
def test_lazy_conjugates_and_negations_on_the_way_back(f):
    fast = fastjit(f)
    for _ in range(4):
        inputs = [torch.randn(3, 8, requires_grad=True) for _ in range(2)]
        got, want = fast(*inputs), f(*inputs)
        torch.testing.assert_close(got, want)
        seed = torch.randn_like(got)
        for one, other in zip(*(torch.autograd.grad(y, inputs, seed) for y in (got, want)), strict=True):
            torch.testing.assert_close(one, other)
            assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}


def test_what_a_lazy_conjugate_lies_in_is_written():
    def f(z):
        twice = z * 2
        turned = twice.conj()
        twice.mul_(3)
        return turned + 1

    z, fast = torch.randn(4, dtype=torch.complex64), fastjit(f, on_unsupported="eager")
    for _ in range(2):
        torch.testing.assert_close(fast(z), f(z), rtol=0, atol=0)
    ((reason, count),) = fast.stats().fallbacks.items()
    assert "aten::mul_" in reason and "lazy conjugate" in reason and count == 2


@torch.enable_grad()
def test_a_spectrogram_and_its_inverse_go_back():
    window = torch.hann_window(32)

    def f(x):
        spectrum = torch.stft(x, 32, window=window, return_complex=True)
        return torch.istft(spectrum * spectrum.abs().tanh(), 32, window=window)

    fast = fastjit(f)
    for _ in range(4):
        x = torch.randn(2, 256, requires_grad=True)
        got, want = fast(x), f(x)
        torch.testing.assert_close(got, want)
        one, other = (torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want))
        torch.testing.assert_close(one, other)
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}


class Spectral(torch.nn.Module):
    """A layer of a Fourier neural operator: complex weights for the lowest frequencies."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4, 6, dtype=torch.cfloat) * 0.1)
        self.mix = torch.nn.Conv1d(4, 4, 1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :6] = torch.einsum("bix,iox->box", spectrum[:, :, :6], self.weight)
        return F.gelu(torch.fft.irfft(out, n=x.size(-1)) + self.mix(x))


class Rotary(torch.nn.Module):
    """Positions as turns of complex numbers, as Llama's reference code has them."""

    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(8, 8)
        self.register_buffer("turns", torch.polar(torch.ones(10, 4), torch.randn(10, 4)))

    def forward(self, x):
        query = torch.view_as_complex(self.query(x).reshape(*x.shape[:-1], 4, 2))
        return torch.view_as_real(query * self.turns).flatten(-2)


@torch.enable_grad()
@pytest.mark.parametrize(("make", "sizes"), [(Spectral, (2, 4, 32)), (Rotary, (3, 10, 8))])
def test_models_that_compute_with_complex_numbers_train(make, sizes):
    model = make()
    eager = copy.deepcopy(model)
    fastjit(model)
    for _ in range(4):
        x = torch.randn(*sizes)
        for each in (model, eager):
            each.zero_grad()
            each(x).square().sum().backward()
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
            assert ours.grad.is_conj() == theirs.grad.is_conj()
    stats = of(model).stats()
    assert stats.hits == 3 and stats.fallbacks == {} and stats.kernels > 0


def test_masked_complex_values_are_torchs():
    fast = fastjit(lambda z: z[z.real > 0] * 2)
    for count in (2, 4, 3):
        z = torch.complex(torch.arange(5.0) - 4.5 + count, torch.ones(5))
        torch.testing.assert_close(fast(z), z[z.real > 0] * 2, rtol=0, atol=0)
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}


def test_value_of_a_complex_tensor_runs_eagerly():
    fast = fastjit(lambda z: z * z.sum().item(), on_unsupported="eager")
    for z in (torch.ones(2, dtype=torch.complex64), torch.full((2,), 2j)):
        for _ in range(2):
            torch.testing.assert_close(fast(z), z * z.sum().item())
    assert fast.stats().hits == 0 and sum(fast.stats().fallbacks.values()) == 4


def test_operators_called_through_torch_ops_are_in_the_program():
    overload, packet = torch.ops.aten.add.Tensor, torch.ops.aten.mul

    def f(x):
        return torch.ops.aten.relu.default(packet(overload(x, x, alpha=2), 0.5)) - 1

    check(f, torch.randn(5), kernels=1)


def test_torch_ops_that_replace_memory_are_no_part_of_a_program():
    def resized(x):
        return torch.ops.aten.resize_.default(x + 1, [2])

    fast = fastjit(resized, on_unsupported="eager")
    for _ in range(2):
        torch.testing.assert_close(fast(torch.ones(3)), resized(torch.ones(3)))
    assert fast.stats().hits == 0


def test_torch_ops_whose_sizes_depend_on_data():
    def sized(x):
        return torch.ops.aten.nonzero(x)

    fast = fastjit(sized)
    for x in (torch.ones(3), torch.tensor([0.0, 2.0, 3.0]), torch.ones(4).bernoulli()[:3] + 1):
        torch.testing.assert_close(fast(x), sized(x), rtol=0, atol=0)
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}


def test_functions_without_tensor_arguments_hit():
    def grid(n, step=0.5):
        return torch.arange(n, dtype=torch.float32) * step, torch.zeros(2, n)

    check(grid, 4)
    fast = fastjit(grid)
    for n in (4, 4, 7, 7, 4):
        for got, want in zip(fast(n), grid(n), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}


def test_a_random_factory_moves_the_generator_as_eager_does():
    def noise():
        return torch.rand(3) + 1

    fast = fastjit(noise)
    torch.manual_seed(1)
    want = [noise() for _ in range(3)]
    torch.manual_seed(1)
    got = [fast() for _ in range(3)]
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert fast.stats().hits == 2


def test_a_default_type_changed_between_calls_is_seen():
    fast = fastjit(lambda: torch.ones(2))
    assert fast().dtype == fast().dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert fast().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert fast().dtype == torch.float32


def test_a_factory_that_views_its_own_memory_is_no_view():
    fast = fastjit(lambda: torch.empty_permuted((2, 3), (1, 0)))
    out = [fast() for _ in range(2)]
    assert [t._is_view() for t in out] == [False, False] and [t.stride() for t in out] == [(1, 2), (1, 2)]
    assert fast.stats().hits == 1


def test_repeat_of_itertools():
    def f(x):
        return x * sum(tuple(itertools.repeat(3, 2))) + torch.nn.functional.unfold(x.view(1, 1, 4, 4), 2).sum()

    check(f, torch.randn(16))


def test_out_of_no_element_gets_its_sizes_in_the_program():
    def f(x, out):
        return torch.mul(x, 2, out=out)

    def both(x, values, indices):
        return torch.sort(x, out=(values, indices))

    x, fast = torch.randn(3, 2), fastjit(f)
    for _ in range(3):
        out = torch.empty(0)
        assert fast(x, out) is out and torch.equal(out, x * 2) and out._version == 1
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {})
    kept = out.clone()
    for _ in range(3):  # now of the right sizes
        assert torch.equal(fast(x + 1, out), (x + 1) * 2) and not torch.equal(kept, out)
    assert fast.stats().hits >= 3 and fast.stats().fallbacks == {}
    fast = fastjit(both)
    for _ in range(2):
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
        got = fast(x, values, indices)
        assert got.values is values and torch.equal(values, torch.sort(x).values) and indices.shape == (3, 2)
    assert fast.stats().hits == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x, out: torch.mul(x, 2, out=out).sum() + out,
        lambda x, out: torch.add(x, 2, out=torch.mul(x, 2, out=out)),
        lambda x, out: (out + 1, torch.mul(x, 2, out=out)),
        lambda x, out: x.sum().item() > 0 and torch.mul(x, 2, out=out),
    ],
)
def test_out_that_is_seen_before_or_after_it_gets_its_sizes_runs_eagerly(f):
    fast = fastjit(f, on_unsupported="eager")
    for _ in range(2):
        x, out, want = torch.ones(3), torch.empty(0), torch.empty(0)
        assert_same(fast(x, out), f(x, want))
        assert_same(out, want)
    assert fast.stats().hits == 0 and all("metadata of out" in reason for reason in fast.stats().fallbacks)


def test_a_kernel_that_python_registered_for_another_device_is_no_matter():
    """torch 2.14 registers some for CUDA itself."""
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("atan", lambda x: x * 100, "CUDA")
        check(lambda x: torch.atan(x) + 1, torch.randn(4))
    finally:
        library._destroy()


def branch_on_capture(x):
    try:
        capturing = torch.cuda.is_current_stream_capturing()
    except Exception:
        capturing = False
    return x - 1 if capturing else x + 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="other tests set up CUDA")
def test_whether_a_stream_records_a_graph_is_known_until_cuda_is_set_up(monkeypatch):
    fast = check(branch_on_capture, torch.randn(4), on_unsupported="eager")
    if torch.backends.cuda.is_built():  # then the stream is asked, which fails without a driver
        monkeypatch.setattr(torch.cuda, "_initialized", True)
        x = torch.randn(4)
        assert_same(fast(x), x + 1)


def branch_on_setting(x):
    return x * 2 + 1 if torch._C._get_cublas_allow_tf32() else x * 3 + 1


def test_settings_of_torch_are_asked_at_each_hit():
    fast, x, before = fastjit(branch_on_setting), torch.randn(4), torch._C._get_cublas_allow_tf32()
    try:
        for allowed in (False, False, True, True, False, True):
            torch._C._set_cublas_allow_tf32(allowed)
            assert_same(fast(x), branch_on_setting(x))
    finally:
        torch._C._set_cublas_allow_tf32(before)
    assert (fast.stats().hits, fast.stats().misses, fast.stats().fallbacks) == (4, 2, {})
    assert "asked again: torch._C._get_cublas_allow_tf32()" in fast.inspect("guards")


@pytest.fixture(scope="module")
def doubled():
    @torch.library.custom_op("fastjit_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)  # no operator shows what this does

    return doubled


@pytest.mark.parametrize("pure", [False, True], ids=["default", "pure"])
@pytest.mark.parametrize("way", ["definition", "packet", "overload"])
def test_a_custom_operator_is_one_call_however_torch_dispatches_it(doubled, way, pure):
    packet = torch.ops.fastjit_tests.doubled
    operator = {"definition": doubled, "packet": packet, "overload": packet.default}[way]
    f = fastjit(lambda x: operator(x + 1) * 3, pure=pure)
    for value in range(3):
        x = torch.full((5,), float(value))
        assert_same(f(x), (x + 1) * 6)
    assert (f.stats().hits, f.stats().fallbacks) == (2, {})


def attention(x, w, b):
    batch, length, width = x.shape
    q, k, v = F.linear(x, w, b).view(batch, length, 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
    scores = torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1)
    return (scores @ v).transpose(1, 2).reshape(batch, length, width) + x


def test_views_that_products_read_are_no_calls():
    fast = check(attention, torch.randn(2, 100, 64), torch.randn(192, 64) / 8, torch.randn(192))
    plan = fast.inspect("plan")
    assert "\nextern " not in plan and plan.count("\nproduct ") == 3


def test_what_a_view_showed_before_a_write_is_what_a_product_reads():
    def written_between(x, y):
        z = x * 2
        before = z.t() @ y
        z.add_(1)
        return before, z.t() @ y, z

    check(written_between, torch.randn(4, 4), torch.randn(4, 4))


def test_kernels_add_the_bias_of_a_product_that_they_read():
    x, w, b = torch.randn(200, 64), torch.randn(96, 64) / 8, torch.randn(96)
    fast = check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, kernels=1)
    assert "\nproduct mm " in fast.inspect("plan")
    for own in (lambda x, w, b: F.linear(x, w, b), lambda x, w, b: F.linear(x, w, b).sort().values):
        fast = check(own, x, w, b)  # what torch or the caller gets
        assert "\nproduct addmm " in fast.inspect("plan")
        assert torch.equal(fast(x, w, b), own(x, w, b))
    check(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5, alpha=2).relu(), x, w, b)
    check(lambda x, w, b: torch.addmm(b, x, w.t()).relu(), x, w, torch.randn(200, 96))


def test_a_bias_stays_in_the_product_that_decides_a_branch():
    def branches(x, w, b):
        y = F.linear(x, w, b)
        return y + 1 if y.sum() > 0 else y - 1

    fast = check(branches, torch.rand(6, 8), torch.rand(4, 8), torch.rand(4))
    assert "\nproduct addmm " in fast.inspect("plan")
