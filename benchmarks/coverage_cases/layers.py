"""Layers and functions that models are made of, and models of noise."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from . import Program, add, case, randn, tokens


@case("einops")
def einops_patches() -> Program:
    from einops import rearrange, reduce

    def pool(images: Tensor) -> Tensor:
        patches = rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
        return reduce(patches, "b n d -> b d", "max")

    return Program(pool, randn(3, 16, 16))


@case("einops")
def einops_attention() -> Program:
    from einops import einsum, rearrange

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=4) for t in (q, k, v))
        scores = einsum(q, k, "b h i d, b h j d -> b h i j").softmax(dim=-1)
        return rearrange(scores @ v, "b h n d -> b n (h d)")

    return Program(attend, randn(7, 32, count=3))


@case("einops")
def einops_layers() -> Program:
    from einops.layers.torch import Rearrange, Reduce

    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), Reduce("b c (h 2) (w 2) -> b c h w", "max"), Rearrange("b c h w -> b (c h w)"),
        nn.Linear(392, 10),
    )  # fmt: skip
    return Program(module.eval(), randn(3, 16, 16))


@case("einops")
def einops_repeat_and_pack() -> Program:
    from einops import pack, repeat, unpack

    def both(x: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        token = repeat(token, "d -> b n d", b=x.shape[0], n=2)
        packed, shapes = pack([token, x], "b * d")
        one, other = unpack(packed.tanh(), shapes, "b * d")
        return one, other

    return Program(both, lambda batch: (torch.randn(batch, 5, 8), torch.randn(8)))


@case("einops")
def einops_mix_layer() -> Program:
    from einops.layers.torch import EinMix

    layer = EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=12, d=20)
    return Program(layer, randn(6, 12))


@case("rotary-embedding-torch")
def rotary_queries_and_keys() -> Program:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=16)

    def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k)

    return Program(rotate, randn(2, 9, 16, count=2), rotary)


@case("rotary-embedding-torch")
def rotary_axial() -> Program:
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    rotary = RotaryEmbedding(dim=8, freqs_for="pixel", max_freq=16)

    def rotate(x: Tensor) -> Tensor:
        return apply_rotary_emb(rotary.get_axial_freqs(6, 6), x)

    return Program(rotate, randn(6, 6, 32), rotary)


@case("local-attention")
def local_attention_layer() -> Program:
    from local_attention import LocalAttention

    module = LocalAttention(dim=16, window_size=8, causal=True, autopad=True)
    return Program(module.eval(), randn(2, 20, 16, count=3))


@case("local-attention")
def local_transformer() -> Program:
    from local_attention import LocalTransformer

    module = LocalTransformer(num_tokens=100, dim=32, depth=2, max_seq_len=32, local_attn_window_size=8, heads=2)
    return Program(module.eval(), tokens(16))


@case("performer-pytorch")
def performer_layer() -> Program:
    from performer_pytorch import SelfAttention

    return Program(SelfAttention(dim=32, heads=2, dim_head=16, nb_features=16).eval(), randn(10, 32))


@case("performer-pytorch")
def performer_language_model() -> Program:
    from performer_pytorch import PerformerLM

    module = PerformerLM(num_tokens=100, max_seq_len=16, dim=32, depth=2, heads=2, dim_head=16, causal=False)
    return Program(module.eval(), tokens(12))


QUANTIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "vector_quantize": ("VectorQuantize", {"dim": 16, "codebook_size": 32}),
    "residual_vq": ("ResidualVQ", {"dim": 16, "codebook_size": 32, "num_quantizers": 3}),
    "finite_scalar_quantize": ("FSQ", {"levels": [8, 5, 5], "dim": 16}),
    "lookup_free_quantize": ("LFQ", {"codebook_size": 64, "dim": 16}),
}


def quantizer(name: str) -> Program:
    import vector_quantize_pytorch

    kind, options = QUANTIZERS[name]
    return Program(getattr(vector_quantize_pytorch, kind)(**options).eval(), randn(12, 16))


for _name in QUANTIZERS:
    add("vector-quantize-pytorch", _name, functools.partial(quantizer, _name))


@case("perceiver-pytorch")
def perceiver() -> Program:
    from perceiver_pytorch import Perceiver

    module = Perceiver(
        num_freq_bands=4, depth=2, max_freq=8.0, num_latents=8, latent_dim=32, latent_heads=2, num_classes=10,
        cross_dim_head=16, latent_dim_head=16,
    )  # fmt: skip
    return Program(module.eval(), randn(12, 12, 3))


@case("perceiver-pytorch")
def perceiver_io() -> Program:
    from perceiver_pytorch import PerceiverIO

    module = PerceiverIO(depth=2, dim=24, queries_dim=16, logits_dim=10, num_latents=8, latent_dim=32, latent_heads=2)
    return Program(
        module.eval(), lambda batch: {"data": torch.randn(batch, 14, 24), "queries": torch.randn(batch, 5, 16)}
    )


@case("entmax")
def entmax_functions() -> Program:
    import entmax

    return Program(lambda x: (entmax.entmax15(x, dim=-1), entmax.sparsemax(x, dim=-1)), randn(3, 9))


@case("entmax")
def entmax_by_bisection() -> Program:
    import entmax

    return Program(functools.partial(entmax.entmax_bisect, alpha=1.3, dim=-1, n_iter=20), randn(12))


@case("entmax")
def entmax_loss() -> Program:
    import entmax

    return Program(
        entmax.Entmax15Loss(), lambda batch: (torch.randn(8 * batch, 10), torch.randint(0, 10, (8 * batch,)))
    )


UNET = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
TWO_LEVELS = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}


@case("diffusers")
def unet2d() -> Program:
    from diffusers import UNet2DModel

    module = UNet2DModel(sample_size=16, attention_head_dim=8, **UNET, **TWO_LEVELS)
    return Program(module.eval(), lambda batch: (torch.randn(batch, 3, 16, 16), torch.randint(0, 1000, (batch,))))


@case("diffusers")
def unet2d_condition() -> Program:
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        sample_size=16, cross_attention_dim=16, attention_head_dim=4, **UNET,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip

    def inputs(batch: int) -> dict[str, Any]:
        return {
            "sample": torch.randn(batch, 4, 16, 16),
            "timestep": torch.randint(0, 1000, (batch,)),
            "encoder_hidden_states": torch.randn(batch, 7, 16),
        }

    return Program(module.eval(), inputs)


@case("diffusers")
def vae_encode_and_decode() -> Program:
    from diffusers import AutoencoderKL

    module = AutoencoderKL(
        block_out_channels=(8, 16), norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4,
    )  # fmt: skip
    return Program(module.eval(), lambda batch: (torch.rand(batch, 3, 16, 16), True))


@case("diffusers")
def diffusion_transformer() -> Program:
    from diffusers import DiTTransformer2DModel

    module = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, patch_size=2,
        norm_num_groups=4, num_embeds_ada_norm=1000,
    )  # fmt: skip

    def inputs(batch: int) -> dict[str, Any]:
        steps, labels = torch.randint(0, 1000, (batch,)), torch.randint(0, 10, (batch,))
        return {"hidden_states": torch.randn(batch, 4, 8, 8), "timestep": steps, "class_labels": labels}

    return Program(module.eval(), inputs)


@case("diffusers")
def ddpm_add_noise() -> Program:
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler()

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.rand(batch, 3, 8, 8), torch.randn(batch, 3, 8, 8), torch.randint(0, 1000, (batch,))

    return Program(scheduler.add_noise, inputs, [scheduler])


@case("diffusers")
def ddim_step() -> Program:
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler()
    scheduler.set_timesteps(10)

    def step(noise: Tensor, sample: Tensor) -> Tensor:
        return scheduler.step(noise, 500, sample).prev_sample

    return Program(step, randn(3, 8, 8, count=2), [scheduler])


@case("diffusers")
def euler_loop() -> Program:
    """A sampler as pipelines have it: the schedule is set, then one model call and one step for each timestep."""
    from diffusers import EulerDiscreteScheduler, UNet2DModel

    module = UNet2DModel(sample_size=8, attention_head_dim=8, **UNET, **TWO_LEVELS).eval()
    scheduler = EulerDiscreteScheduler()

    def sample(x: Tensor) -> Tensor:
        scheduler.set_timesteps(3)
        x = x * scheduler.init_noise_sigma
        for t in scheduler.timesteps:
            noise = module(scheduler.scale_model_input(x, t), t, return_dict=False)[0]
            x = scheduler.step(noise, t, x).prev_sample
        return x

    return Program(sample, randn(3, 8, 8), [module, scheduler])


@case("denoising-diffusion-pytorch")
def denoising_unet() -> Program:
    from denoising_diffusion_pytorch import Unet

    module = Unet(dim=8, dim_mults=(1, 2), attn_heads=2, attn_dim_head=8)
    return Program(module.eval(), lambda batch: (torch.randn(batch, 3, 16, 16), torch.randint(0, 1000, (batch,))))


@case("denoising-diffusion-pytorch")
def denoising_loss() -> Program:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    diffusion = GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2), attn_heads=2, attn_dim_head=8), image_size=16)
    return Program(diffusion, lambda batch: (torch.rand(batch, 3, 16, 16),))


@case("denoising-diffusion-pytorch")
def denoising_sample() -> Program:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    network = Unet(dim=8, dim_mults=(1, 2), attn_heads=2, attn_dim_head=8)
    diffusion = GaussianDiffusion(network, image_size=8, timesteps=20, sampling_timesteps=3).eval()
    return Program(lambda images: diffusion.sample(batch_size=images.shape[0]), randn(3, 8, 8), [diffusion])


@case("positional-encodings")
def positional_encoding_2d() -> Program:
    from positional_encodings.torch_encodings import PositionalEncoding2D, Summer

    return Program(Summer(PositionalEncoding2D(16)), randn(6, 5, 16), flips=False)
