"""A custom activation: one kernel, and what the function says about itself."""

import torch

from fastjit import fastjit


@fastjit
def swish(x, beta):
    return x * torch.sigmoid(beta * x)


x = torch.randn(1000)
swish(x, 1.5)  # runs eagerly, watched, and is compiled
assert torch.allclose(swish(x, 1.5), x * torch.sigmoid(1.5 * x))
assert torch.allclose(swish(x, 2.5), x * torch.sigmoid(2.5 * x))  # numbers are arguments of the kernel

stats = swish.stats()
print(f"calls {stats.calls}, hits {stats.hits}, kernels a call {stats.kernels}, fallbacks {stats.fallbacks}")
print(swish.explain(torch.randn(7, 7), 1.5))
print(swish.inspect("source"))
