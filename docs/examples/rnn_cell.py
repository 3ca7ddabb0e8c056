"""A recurrent cell: the loop stays in Python, each step is one call; or the whole loop is one program."""

import torch

from fastjit import fastjit

inputs, hidden, steps, batch = 16, 32, 20, 4
wx, wh, bias = torch.randn(inputs, hidden) / 4, torch.randn(hidden, hidden) / 8, torch.randn(hidden)
sequence = torch.randn(steps, batch, inputs)


@fastjit
def cell(x, h):
    return torch.tanh(x @ wx + h @ wh + bias)


@fastjit
def rollout(xs, h):
    for x in xs:
        h = torch.tanh(x @ wx + h @ wh + bias)
    return h


h = torch.zeros(batch, hidden)
for x in sequence:
    h = cell(x, h)
for _ in range(2):
    whole = rollout(sequence, torch.zeros(batch, hidden))
assert torch.allclose(h, whole, atol=1e-5)

print(f"cell: calls {cell.stats().calls}, hits {cell.stats().hits}, steps a call {cell.stats().steps}")
print(f"rollout: calls {rollout.stats().calls}, hits {rollout.stats().hits}, steps a call {rollout.stats().steps}")
