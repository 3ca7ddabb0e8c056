"""Probabilistic programs, Gaussian processes, acquisition functions and normalizing flows."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from . import Program, add, case, rand, randn


@case("pyro-ppl")
def pyro_elbo() -> Program:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO

    def model(data: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(data)):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=data)

    def guide(data: Tensor) -> None:
        location, scale = torch.tensor(0.5), torch.tensor(0.3)
        pyro.sample("mean", dist.Normal(location, scale))

    elbo = Trace_ELBO()
    return Program(lambda data: torch.tensor(elbo.loss(model, guide, data)), randn())


@case("pyro-ppl")
def pyro_log_density() -> Program:
    import pyro
    import pyro.distributions as dist
    from pyro import poutine

    def model(x: Tensor, y: Tensor) -> None:
        weight = pyro.sample("weight", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("y", dist.Normal(x @ weight, 0.5), obs=y)

    def density(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        conditioned = poutine.condition(model, data={"weight": weight})
        return poutine.trace(conditioned).get_trace(x, y).log_prob_sum()

    return Program(density, lambda batch: (torch.randn(4 * batch, 3), torch.randn(4 * batch), torch.randn(3)))


@case("pyro-ppl")
def pyro_distributions() -> Program:
    import pyro.distributions as dist

    def density(x: Tensor, logits: Tensor) -> Tensor:
        return dist.ZeroInflatedPoisson(gate=torch.tensor(0.3), rate=logits.exp()).log_prob(x.abs().round())

    return Program(density, randn(5, count=2))


def exact_gp(kernel: str, train: int = 12) -> tuple[Any, Any]:
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(getattr(gpytorch.kernels, kernel)())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    x = torch.linspace(0, 1, train).unsqueeze(-1)
    return Model(x, torch.sin(6 * x).squeeze(-1), likelihood).eval(), likelihood.eval()


@case("gpytorch")
def gp_predict() -> Program:
    model, likelihood = exact_gp("RBFKernel")

    def predict(x: Tensor) -> tuple[Tensor, Tensor]:
        found = likelihood(model(x))
        return found.mean, found.variance

    return Program(predict, lambda batch: (torch.rand(3 * batch, 1),), [model, likelihood], flips=False)


@case("gpytorch")
def gp_marginal_likelihood() -> Program:
    import gpytorch

    model, likelihood = exact_gp("MaternKernel")
    model.train(), likelihood.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return Program(
        lambda y: objective(model(*model.train_inputs), y), lambda batch: (torch.randn(12),), [objective], flips=False
    )


GP_KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gp_rbf_kernel": ("RBFKernel", {}),
    "gp_periodic_kernel": ("PeriodicKernel", {}),
    "gp_matern_ard_kernel": ("MaternKernel", {"nu": 1.5, "ard_num_dims": 3}),
}


def gp_kernel(name: str) -> Program:
    import gpytorch

    kind, options = GP_KERNELS[name]
    kernel = gpytorch.kernels.ScaleKernel(getattr(gpytorch.kernels, kind)(**options))
    return Program(lambda x: kernel(x).to_dense(), rand(3), kernel, batches=(6, 9))


for _name in GP_KERNELS:
    add("gpytorch", _name, functools.partial(gp_kernel, _name))


@case("gpytorch")
def gp_variational() -> Program:
    import gpytorch

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = torch.linspace(0, 1, 6).unsqueeze(-1)
            family = gpytorch.variational.CholeskyVariationalDistribution(6)
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, family))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Model().eval()

    def predict(x: Tensor) -> tuple[Tensor, Tensor]:
        found = model(x)
        return found.mean, found.variance

    return Program(predict, lambda batch: (torch.rand(4 * batch, 1),), model, flips=False)


def single_task_gp() -> Any:
    from botorch.models import SingleTaskGP

    x = torch.rand(10, 2, dtype=torch.float64)
    return SingleTaskGP(x, (x - 0.5).square().sum(-1, keepdim=True).neg()).eval()


def points(batch: int) -> tuple[Tensor]:
    return (torch.rand(batch, 1, 2, dtype=torch.float64),)


@case("botorch")
def botorch_posterior() -> Program:
    model = single_task_gp()

    def predict(x: Tensor) -> tuple[Tensor, Tensor]:
        found = model.posterior(x)
        return found.mean, found.variance

    return Program(predict, points, model, flips=False)


@case("botorch")
def botorch_expected_improvement() -> Program:
    from botorch.acquisition import LogExpectedImprovement

    return Program(LogExpectedImprovement(single_task_gp(), best_f=-0.1), points, flips=False)


@case("botorch")
def botorch_test_function() -> Program:
    from botorch.test_functions import Hartmann

    return Program(Hartmann(dim=6), rand(6), flips=False)


def n_flow(name: str) -> Program:
    from nflows import distributions, flows, transforms

    if name == "nflows_maf":
        steps = [transforms.ReversePermutation(4), transforms.MaskedAffineAutoregressiveTransform(4, 16)]
    else:
        spline = transforms.PiecewiseRationalQuadraticCouplingTransform
        from nflows.nn.nets import ResidualNet

        def network(inputs: int, outputs: int) -> Any:
            return ResidualNet(inputs, outputs, 16, num_blocks=1)

        steps = [spline(torch.tensor([0, 1, 0, 1]), network, tails="linear", tail_bound=3.0), transforms.LULinear(4)]
    flow = flows.Flow(transforms.CompositeTransform(steps), distributions.StandardNormal([4])).eval()
    return Program(flow.log_prob, randn(4), flow)


for _name in ("nflows_maf", "nflows_spline_coupling"):
    add("nflows", _name, functools.partial(n_flow, _name))


@case("nflows")
def nflows_sample() -> Program:
    from nflows import distributions, flows, transforms

    transform = transforms.CompositeTransform([transforms.LULinear(4), transforms.ActNorm(4)])
    flow = flows.Flow(transform, distributions.StandardNormal([4])).eval()
    return Program(lambda like: flow.sample(like.shape[0]), randn(4), flow, flips=False)


@case("normflows")
def normflows_real_nvp() -> Program:
    import normflows

    steps = []
    for _ in range(2):
        steps += [
            normflows.flows.AffineCouplingBlock(normflows.nets.MLP([1, 16, 2], init_zeros=True)),
            normflows.flows.Permute(2, mode="swap"),
        ]
    flow = normflows.NormalizingFlow(normflows.distributions.DiagGaussian(2), steps).eval()
    return Program(flow.log_prob, randn(2), flow)


@case("normflows")
def normflows_spline_kld() -> Program:
    import normflows

    steps = [normflows.flows.AutoregressiveRationalQuadraticSpline(2, 1, 16), normflows.flows.LULinearPermute(2)]
    flow = normflows.NormalizingFlow(normflows.distributions.DiagGaussian(2), steps).eval()
    return Program(flow.forward_kld, randn(2), flow)


ZUKO = {"zuko_nsf": "NSF", "zuko_maf": "MAF", "zuko_gaussianization": "GF"}


def of_zuko(name: str) -> Program:
    import zuko

    flow = getattr(zuko.flows, ZUKO[name])(3, context=2, transforms=2, hidden_features=(16,))
    return Program(
        lambda x, context: flow(context).log_prob(x), lambda batch: (torch.randn(batch, 3), torch.randn(batch, 2)), flow
    )


for _name in ZUKO:
    add("zuko", _name, functools.partial(of_zuko, _name))


@case("zuko")
def zuko_sample() -> Program:
    import zuko

    flow = zuko.flows.MAF(3, context=2, transforms=2, hidden_features=(16,))
    return Program(lambda context: flow(context).rsample((4,)), randn(2), flow)
