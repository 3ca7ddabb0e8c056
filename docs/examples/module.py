"""An nn.Module: the same object comes back, and a changed weight is seen."""

import torch
from torch import nn

import fastjit as fj

model = fj.fastjit(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).eval())
x = torch.randn(5, 8)

with torch.no_grad():
    for _ in range(3):
        y = model(x)
    model[0].weight.mul_(2)
    assert torch.allclose(model(x), model.forward(x), atol=1e-6)
    assert not torch.allclose(model(x), y)

print(f"{type(model).__name__}, parameters {[name for name, _ in model.named_parameters()]}")
stats = fj.of(model).stats()
print(f"calls {stats.calls}, hits {stats.hits}, steps a call {stats.steps}, fallbacks {stats.fallbacks}")
