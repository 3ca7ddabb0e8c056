"""Eager against fastjit on your own arguments: results are checked first, then timed in turns."""

import torch

import fastjit as fj


@fj.fastjit
def layer(x, scale, shift):
    y = x - x.mean(-1, keepdim=True)
    return y / (y.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * scale + shift


args = (torch.randn(256, 512), torch.randn(512), torch.randn(512))
result = fj.compare({"eager": layer.eager, "fastjit": layer}, args=args, min_time=0.2, progress=False)
print(result)
print(f"hits {layer.stats().hits}, fallbacks {layer.stats().fallbacks}")
