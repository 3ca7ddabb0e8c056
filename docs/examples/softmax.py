"""A row operation: scaling, masking and softmax in one kernel, for any number of rows."""

import torch

from fastjit import fastjit


def attention_weights(scores, keep, scale):
    return torch.softmax(torch.where(keep, scores * scale, -1e9), dim=-1)


fast = fastjit(attention_weights)
for rows in (8, 8, 64, 64, 64):  # a new size runs eagerly once, is recorded when it comes again, and compiles nothing
    scores, keep = torch.randn(rows, 128), torch.rand(rows, 128) > 0.2
    assert torch.allclose(fast(scores, keep, 0.125), attention_weights(scores, keep, 0.125), atol=1e-6)

stats = fast.stats()
print(f"calls {stats.calls}, hits {stats.hits}, kernels a call {stats.kernels}, compiles {stats.compiles}")
for variant in fast.variants():
    print(variant.signature, "hits", variant.hits)
