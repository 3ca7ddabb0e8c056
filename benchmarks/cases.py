"""Functions that people write, each with `<name>_args(n)`: what the demo and the single figures run."""

import torch
import torch.nn.functional as F


def multiply_add(x, y):
    return x * y + 1


def multiply_add_args(n=64):
    return torch.randn(n), torch.randn(n)


def ten_ops(x, y):
    z = x * y + 1
    z = torch.tanh(z) * x - y
    z = torch.sigmoid(z) + x * 0.5
    return (z - 1).abs().sqrt()


def ten_ops_args(n=4096):
    return torch.randn(n), torch.randn(n)


def gelu_chain(x, y):
    return F.gelu(x * y + 1, approximate="tanh") * x


def gelu_chain_args(n=64):
    return torch.randn(n), torch.randn(n)


def fastswish(x):
    a = 42 / 13
    y = x * (x + a) / (a + 3)
    y[x > 3] = x[x > 3]
    y[x < -3] = -1 / x[x < -3] ** 2
    return y


def fastswish_args(n=64):
    return (torch.randn(n) * 3,)


def hardswish(x):
    return F.hardswish(x)


def hardswish_args(n=64):
    return fastswish_args(n)


def scaled_product(x, y):
    return torch.mm(x.t(), y) * 100 + 10


def scaled_product_args(n=8):
    return torch.randn(n, n), torch.randn(n, n)


def linear_gelu(x, w, b):
    return F.gelu(F.linear(x, w, b))


def linear_gelu_args(n=8):
    return torch.randn(n, n), torch.randn(n, n) / n**0.5, torch.randn(n)


def few_rows_args(rows=2, inner=8, columns=8):
    return torch.randn(rows, inner), torch.randn(columns, inner) / inner**0.5, torch.randn(columns)


def rnn_cell(wx, x, wh, h):
    return torch.tanh(torch.mm(wx, x.t()) + torch.mm(wh, h.t()))


def rnn_cell_args(n=8):
    return torch.randn(n, n) / n**0.5, torch.randn(4, n), torch.randn(n, n) / n**0.5, torch.randn(4, n)


def mlp(x, w1, b1, w2, b2):
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def mlp_args(n=8):
    wide = 2 * n
    return (
        torch.randn(4, n),
        torch.randn(wide, n) / n**0.5,
        torch.randn(wide),
        torch.randn(n, wide) / n**0.5,
        torch.randn(n),
    )


def softmax_row(x):
    return torch.softmax(x, dim=-1)


def softmax_row_args(n=16):
    return (torch.randn(max(1, n // 4), n),)


# What `make demo` shows: name, tiny n, large n.
DEMO = (
    ("gelu_chain", 64, 4_194_304),
    ("fastswish", 64, 4_194_304),
    ("scaled_product", 8, 512),
    ("rnn_cell", 8, 512),
    ("mlp", 8, 512),
    ("softmax_row", 16, 4096),
)
