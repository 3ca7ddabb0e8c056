"""Differential equations, graphs, equivariant networks and sound."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Program, add, case, randn


class Field(nn.Module):
    """dy/dt of a small network."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, width))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y) * torch.cos(t)


def ode(method: str) -> Program:
    from torchdiffeq import odeint

    field = Field()

    def solve(y: Tensor) -> Tensor:
        return odeint(field, y, torch.linspace(0, 1, 4, dtype=y.dtype), method=method)

    return Program(solve, randn(4), field)


for _name in ("dopri5", "rk4", "euler"):
    add("torchdiffeq", f"ode_{_name}", functools.partial(ode, _name))


class Noisy(nn.Module):
    """A stochastic differential equation with diagonal noise."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(3, 3), nn.Linear(3, 3)

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return self.mean(y)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return self.spread(y).sigmoid()


@case("torchsde")
def sde_euler() -> Program:
    import torchsde

    sde = Noisy()

    def solve(y: Tensor) -> Tensor:
        times = torch.linspace(0, 1, 4, dtype=y.dtype)
        path = torchsde.BrownianInterval(0.0, 1.0, size=y.shape, dtype=y.dtype, entropy=7)
        return torchsde.sdeint(sde, y, times, bm=path, dt=0.1, method="euler")

    return Program(solve, randn(3), sde)


@case("torchcde")
def cde_spline() -> Program:
    import torchcde

    def interpolate(x: Tensor) -> Tensor:
        spline = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(x))
        return spline.derivative(torch.tensor(1.5))

    return Program(interpolate, randn(6, 3))


@case("torchcde")
def cde_solve() -> Program:
    import torchcde

    class Vector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 12)

        def forward(self, t: Tensor, z: Tensor) -> Tensor:
            return self.linear(z).tanh().view(*z.shape[:-1], 4, 3)

    field = Vector()

    def solve(x: Tensor) -> Tensor:
        path = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(x))
        start = torch.zeros(x.shape[0], 4, dtype=x.dtype)
        return torchcde.cdeint(path, field, start, path.interval, adjoint=False, method="rk4")

    return Program(solve, randn(5, 3), field)


GNN_LAYERS: dict[str, dict[str, Any]] = {
    "GCNConv": {},
    "GATConv": {"heads": 2},
    "SAGEConv": {},
    "GraphConv": {},
    "TransformerConv": {"heads": 2},
    "EdgeConv": {},
}


def graph(batch: int, width: int = 8) -> tuple[Tensor, Tensor]:
    """Features and edges; `batch` is the number of nodes beyond ten."""
    nodes = 10 + batch
    return torch.randn(nodes, width), torch.randint(0, nodes, (2, 3 * nodes))


def gnn_layer(name: str) -> Program:
    from torch_geometric import nn as geometric

    if name == "EdgeConv":
        module = geometric.EdgeConv(nn.Sequential(nn.Linear(16, 12), nn.ReLU()))
    else:
        module = getattr(geometric, name)(8, 12, **GNN_LAYERS[name])
    return Program(module.eval(), graph)


for _name in GNN_LAYERS:
    add("torch_geometric", f"pyg_{_name.lower()}", functools.partial(gnn_layer, _name))


@case("torch_geometric")
def pyg_gcn_model() -> Program:
    from torch_geometric.nn import GCN

    return Program(GCN(8, 16, 2, 4, dropout=0.1, norm="batch").eval(), graph)


@case("torch_geometric")
def pyg_gin_and_pool() -> Program:
    from torch_geometric.nn import GIN, global_mean_pool

    module = GIN(8, 16, 2, 4).eval()

    def classify(x: Tensor, edges: Tensor) -> Tensor:
        return global_mean_pool(module(x, edges), torch.zeros(len(x), dtype=torch.long), size=1).softmax(-1)

    return Program(classify, graph, module)


@case("torch_geometric")
def pyg_softmax_and_scatter() -> Program:
    from torch_geometric.utils import scatter, softmax

    def weigh(x: Tensor, edges: Tensor) -> Tensor:
        weights = softmax(x.sum(-1), edges[0, : len(x)], num_nodes=16)
        return scatter(x * weights.unsqueeze(-1), edges[1, : len(x)], dim=0, dim_size=16, reduce="max")

    return Program(weigh, graph)


@case("e3nn")
def e3nn_spherical_harmonics() -> Program:
    from e3nn import o3

    return Program(lambda x: o3.spherical_harmonics([0, 1, 2], x, normalize=True), randn(3), batches=(6, 9))


@case("e3nn")
def e3nn_linear() -> Program:
    from e3nn import o3

    return Program(o3.Linear("4x0e+2x1o", "3x0e+2x1o"), randn(10))


@case("e3nn")
def e3nn_tensor_product() -> Program:
    from e3nn import o3

    product = o3.FullyConnectedTensorProduct("4x0e+2x1o", "1x0e+1x1o", "3x0e+2x1o")
    return Program(product, lambda batch: (torch.randn(batch, 10), torch.randn(batch, 4)))


@case("e3nn")
def e3nn_gate() -> Program:
    from e3nn.nn import Gate

    gate = Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
    return Program(gate, randn(12))


@case("julius")
def julius_resample() -> Program:
    import julius

    return Program(julius.ResampleFrac(4, 3), randn(1, 200))


@case("julius")
def julius_filter_and_bands() -> Program:
    import julius

    low, bands = julius.LowPassFilter(0.2), julius.SplitBands(1.0, n_bands=3)
    return Program(lambda x: bands(low(x)), randn(1, 256), [low, bands])


@case("nnAudio")
def nnaudio_mel() -> Program:
    from nnAudio.features import MelSpectrogram

    return Program(MelSpectrogram(sr=8000, n_fft=128, n_mels=16, hop_length=64, verbose=False), randn(800))


@case("nnAudio")
def nnaudio_mfcc() -> Program:
    from nnAudio.features import MFCC

    return Program(MFCC(sr=8000, n_mfcc=8, n_fft=128, n_mels=16, hop_length=64, verbose=False), randn(800))


@case("asteroid-filterbanks")
def asteroid_encode_decode() -> Program:
    from asteroid_filterbanks import Decoder, Encoder, FreeFB

    encoder, decoder = Encoder(FreeFB(16, 8, stride=4)), Decoder(FreeFB(16, 8, stride=4))
    module = nn.Sequential(encoder, nn.ReLU(), decoder)
    return Program(module.eval(), randn(1, 200))


@case("torch-dct")
def dct_and_back() -> Program:
    import torch_dct

    return Program(lambda x: torch_dct.idct(F.hardshrink(torch_dct.dct(x), 0.5)), randn(16))
