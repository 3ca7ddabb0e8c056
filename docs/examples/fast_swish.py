"""Masked stores as people write them: selects in one kernel, no index lists. An argument may be written as well."""

import torch

from fastjit import fastjit


@fastjit
def fast_swish(x):
    a = 42 / 13
    y = x * (x + a) / (a + 3)
    y[x > 3] = x[x > 3]
    y[x < -3] = -1 / x[x < -3] ** 2
    return y


@fastjit
def clip_(x, limit):
    x[x > limit] = limit
    return x


x = torch.randn(10_000) * 3
for _ in range(3):
    assert torch.allclose(fast_swish(x), fast_swish.eager(x), atol=1e-6)
for _ in range(3):
    y = x.clone()
    assert clip_(y, 2.0) is y  # the tensor that was given comes back, written
    assert y.max() <= 2

print(f"fast_swish: hits {fast_swish.stats().hits}, kernels a call {fast_swish.stats().kernels}")
print(f"clip_: hits {clip_.stats().hits}, fallbacks {clip_.stats().fallbacks}")
print(fast_swish.inspect("ir"))
