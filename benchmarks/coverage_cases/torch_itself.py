"""torch's own layers, losses, distributions and transforms of functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Program, case, rand, randn


@case("torch")
def transformer_encoder() -> Program:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return Program(nn.TransformerEncoder(layer, 2).eval(), randn(10, 32))


@case("torch")
def transformer_seq2seq() -> Program:
    module = nn.Transformer(32, 4, 2, 2, 64, batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    return Program(
        module,
        lambda batch: {"src": torch.randn(batch, 10, 32), "tgt": torch.randn(batch, 7, 32), "tgt_mask": mask},
        flips=True,
    )


@case("torch")
def attention_with_padding() -> Program:
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()

    def inputs(batch: int) -> dict[str, Any]:
        x = torch.randn(batch, 9, 32)
        return {"query": x, "key": x, "value": x, "key_padding_mask": torch.arange(9).expand(batch, 9) > 6}

    return Program(module, inputs)


@case("torch")
def lstm_layers() -> Program:
    return Program(nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True).eval(), randn(8, 16))


@case("torch")
def packed_lstm() -> Program:
    module = nn.LSTM(8, 16, batch_first=True)

    def encode(x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(module(packed)[0], batch_first=True)
        return out

    return Program(encode, lambda batch: (torch.randn(batch, 7, 8), torch.arange(batch) % 3 + 5), module)


@case("torch")
def normal_log_prob_and_kl() -> Program:
    from torch.distributions import Normal, kl_divergence

    def elbo(mean: Tensor, log_std: Tensor, x: Tensor) -> Tensor:
        q, p = Normal(mean, log_std.exp()), Normal(0.0, 1.0)
        return q.log_prob(x).sum(-1) - kl_divergence(q, p).sum(-1) + q.rsample().mean(-1)

    return Program(elbo, randn(8, count=3))


@case("torch")
def categorical_policy() -> Program:
    from torch.distributions import Categorical

    def act(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        policy = Categorical(logits=logits)
        action = policy.sample()
        return action, policy.log_prob(action), policy.entropy()

    return Program(act, randn(6))


@case("torch")
def gaussian_mixture() -> Program:
    from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

    def density(logits: Tensor, means: Tensor, x: Tensor) -> Tensor:
        parts = Independent(Normal(means, torch.ones_like(means)), 1)
        return MixtureSameFamily(Categorical(logits=logits), parts).log_prob(x)

    return Program(density, lambda batch: (torch.randn(batch, 4), torch.randn(batch, 4, 3), torch.randn(batch, 3)))


@case("torch")
def multivariate_normal() -> Program:
    from torch.distributions import MultivariateNormal

    def density(mean: Tensor, root: Tensor, x: Tensor) -> Tensor:
        covariance = root @ root.mT + torch.eye(4, dtype=root.dtype)
        return MultivariateNormal(mean, covariance).log_prob(x)

    return Program(density, lambda batch: (torch.randn(batch, 4), torch.randn(batch, 4, 4), torch.randn(batch, 4)))


@case("torch")
def func_vmap_of_grad() -> Program:
    from torch.func import grad, vmap

    def energy(weight: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x @ weight).square().sum()

    per_sample = vmap(grad(energy), in_dims=(None, 0))
    return Program(per_sample, lambda batch: (torch.randn(5, 3), torch.randn(batch, 5)))


@case("torch")
def func_ensemble() -> Program:
    from torch.func import functional_call, stack_module_state, vmap

    models = [nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2)) for _ in range(3)]
    params, buffers = stack_module_state(models)
    skeleton = models[0]

    def predict(x: Tensor) -> Tensor:
        def one(p: Any, b: Any, y: Tensor) -> Tensor:
            return functional_call(skeleton, (p, b), (y,))

        return vmap(one, in_dims=(0, 0, None))(params, buffers, x)

    return Program(predict, randn(6), [params, buffers])


@case("torch")
def weight_norm() -> Program:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(12, 12))
    second = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 4))
    return Program(nn.Sequential(first, nn.ReLU(), second).eval(), randn(12))


@case("torch")
def ctc_loss() -> Program:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        lengths = torch.full((logits.shape[1],), logits.shape[0])
        return F.ctc_loss(logits.log_softmax(-1), targets, lengths, torch.full_like(lengths, targets.shape[1]))

    return Program(loss, lambda batch: (torch.randn(12, batch, 8), torch.randint(1, 8, (batch, 4))))


@case("torch")
def stft_and_back() -> Program:
    window = torch.hann_window(64)

    def roundtrip(x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 64, 16, window=window.to(x.dtype), return_complex=True)
        return torch.istft(spectrum * spectrum.abs().sqrt(), 64, 16, window=window.to(x.dtype), length=x.shape[-1])

    return Program(roundtrip, randn(512))


@case("torch")
def grid_warp() -> Program:
    def warp(image: Tensor, theta: Tensor) -> Tensor:
        grid = F.affine_grid(theta, list(image.shape), align_corners=False)
        return F.interpolate(F.grid_sample(image, grid, align_corners=False), scale_factor=2.0, mode="bilinear")

    return Program(warp, lambda batch: (torch.rand(batch, 3, 16, 16), torch.randn(batch, 2, 3)))


@case("torch")
def nucleus_sampling() -> Program:
    def draw(logits: Tensor) -> Tensor:
        ordered, index = logits.softmax(-1).sort(descending=True)
        kept = ordered * (ordered.cumsum(-1) - ordered < 0.9)
        return index.gather(-1, torch.multinomial(kept, 1))

    return Program(draw, randn(50))


@case("torch")
def image_quantiles() -> Program:
    def stretch(image: Tensor) -> Tensor:
        low, high = torch.quantile(image.flatten(1), torch.tensor([0.05, 0.95], dtype=image.dtype), dim=1)
        return ((image - low.view(-1, 1, 1)) / (high - low).view(-1, 1, 1)).clamp(0, 1)

    return Program(stretch, rand(12, 12))
