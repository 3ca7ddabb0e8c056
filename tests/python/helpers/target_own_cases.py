"""Arguments of callables that take none of the common forms (target_cases.py): convolutions, cells, conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def own_calls(k: int) -> dict[str, list[tuple[Any, ...]]]:
    """Base name -> calls, with other numbers for k = 0 and 1."""
    g = torch.Generator().manual_seed(17 + k)

    def t(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=g)

    x, y, signal, index = t(3, 4), t(3, 4), t(2, 3, 8), torch.tensor([2, 0, 1])
    number, size, rate, eps = (0.5, 1.75)[k], (2, 3)[k], (0.25, 0.5)[k], (1e-5, 1e-1)[k]
    stride, padding = (1, 2)[k], (0, 1)[k]
    row, state, cubes = t(2, 4), t(2, 5), t(1, 2, 4, 4, 4)
    stats = [t(3), t(3).abs(), torch.zeros(3), torch.ones(3)]
    recurrent = (False, 1, 0.0, False, False, False)
    calls: dict[str, list[tuple[Any, ...]]] = {
        "conv1d": [(signal, t(4, 3, 3), None, stride, padding)],
        "conv2d": [(t(1, 3, 8, 8), t(4, 3, 3, 3), None, stride, padding)],
        "conv3d": [(cubes, t(3, 2, 2, 2, 2), None, stride, padding)],
        "conv_transpose1d": [(signal, t(3, 4, 3), None, stride, padding)],
        "conv_transpose2d": [(t(1, 3, 6, 6), t(3, 4, 3, 3), None, stride, padding)],
        "conv_transpose3d": [(cubes, t(2, 3, 2, 2, 2), None, stride, padding)],
        "convolution": [(signal, t(4, 3, 3), None, [stride], [padding], [1], False, [0], 1)],
        "conv_tbc": [(t(8, 2, 3), t(3, 3, 4), t(4), padding)],
        "batch_norm": [(signal, *stats, True, (0.1, 0.3)[k], eps, False), (signal, *stats, False, 0.1, eps, False)],
        "instance_norm": [(signal, None, None, None, None, True, 0.1, eps, False)],
        "group_norm": [(t(2, 4, 8), 2, None, None, eps)],
        "layer_norm": [(x, (4,), None, None, eps)],
        "rms_norm": [(x, (4,), None, eps)],
        "native_dropout": [(x, rate, True)],
        "bilinear": [(x, y, t(5, 4, 4), t(5))],
        "prelu": [(x, t(1))],
        "gru_cell": [(row, state, t(15, 4), t(15, 5))],
        "lstm_cell": [(row, [state, t(2, 5)], t(20, 4), t(20, 5))],
        "gru": [(t(6, 2, 4), t(1, 2, 5), [t(15, 4), t(15, 5)], *recurrent)],
        "lstm": [(t(6, 2, 4), [t(1, 2, 5), t(1, 2, 5)], [t(20, 4), t(20, 5)], *recurrent)],
        "pixel_shuffle": [(t(1, 36, 2, 2), size)],
        "pixel_unshuffle": [(t(1, 1, 6, 6), size)],
        "embedding": [(index, t(5, 3)), (index, t(5, 3), None, number)],
        "embedding_bag": [(t(5, 3), index, torch.tensor([0, size - 1]))],
        "embedding_renorm_": [(t(5, 3), index, number, 2.0)],
        "affine_grid_generator": [(t(1, 2, 3), (1, 1, size, 2), bool(k))],
        "affine_grid": [(t(1, 2, 3), (1, 1, size, 2))],
        "grid_sampler": [(t(1, 2, 8, 8), t(1, 3, 3, 2), 0, k, bool(k))],
        "poisson": [(t(3, 4).abs() + number,)],
        "poisson_nll_loss": [(x, y, bool(k), False, eps, 1)],
        "cosine_embedding_loss": [(x, y, torch.tensor([1, -1, 1]), rate)],
        "fold": [(t(1, 4, 4), (3, 3), (2, 2))],
        "lp_pool3d": [(cubes, float(size), 2)],
        "max_pool3d": [(cubes, (2, 4)[k])],
        "max_pool3d_with_indices": [(cubes, (2, 4)[k])],
        "ger": [(t(3), t(4))],
        "unsafe_split_with_sizes": [(x, ([1, 2], [2, 1])[k], 0)],
        "view_as_complex_copy": [(t(3, 2),)],
        "view_as_real_copy": [(torch.complex(x, y),)],
        "quantize_per_tensor": [(x, rate, k, torch.qint8)],
        "from_numpy": [(np.arange(3.0) + k,)],
        "float_power_": [(t(3).double().abs(), number)],
        "apply_": [(x, lambda v: v * number)],
        "map_": [(x, y, lambda a, b: a + number * b)],
        "map2_": [(x, y, t(3, 4), lambda a, b, c: a + number * b - c)],
        "register_hook": [(t(3).requires_grad_(), abs)],
        "as_subclass": [(x, torch.nn.Parameter)],
        "sparse_mask": [(x, (y * (y > 0)).to_sparse())],
        "isinstance": [(x, (torch.Tensor, int)[k])],
        "issubclass": [(torch.nn.Linear, (torch.nn.Module, int)[k])],
        "eval": [(f"{size} * 2",)],
        "exec": [(f"{size} * 2",)],
    }
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"):
        calls[name] = calls[f"{name}_"] = [(signal, rate, True), (signal, rate, False)]
    for name in ("rnn_tanh", "rnn_relu"):
        calls[f"{name}_cell"] = [(row, state, t(5, 4), t(5, 5))]
        calls[name] = [(t(6, 2, 4), t(1, 2, 5), [t(5, 4), t(5, 5)], *recurrent)]
    for name in ("channel_shuffle", "native_channel_shuffle"):
        calls[name] = [(t(1, 12, 2, 2), size)]
    for name in ("__bool__", "__float__", "__int__", "__complex__", "__long__", "__nonzero__", "is_nonzero"):
        calls[name] = [(torch.tensor(number * k),)]
    calls["__index__"] = [(torch.tensor(size),)]
    return calls
