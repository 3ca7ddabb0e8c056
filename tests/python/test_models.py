"""Models that no one here wrote, under the default capture: equal to eager, and what ran."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import fastjit

transformers = pytest.importorskip("transformers", reason="the models come from the package transformers")

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
IDS = {"input_ids": torch.arange(32).view(2, 16) % 50}
MASK = {"attention_mask": torch.ones(2, 16, dtype=torch.long)}


def vit():
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def convnext():
    config = transformers.ConvNextConfig(num_stages=2, hidden_sizes=[32, 64], depths=[2, 2], image_size=32)
    return transformers.ConvNextModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def resnet():
    config = transformers.ResNetConfig(embedding_size=32, hidden_sizes=[32, 64], depths=[2, 2])
    return transformers.ResNetModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=100,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_mel_bins=16,
        max_source_positions=32,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        attn_implementation="eager",
    )
    call = {"input_features": torch.randn(2, 16, 64), "decoder_input_ids": torch.arange(16).view(2, 8)}
    mask = torch.ones(2, 8, dtype=torch.long)
    return transformers.WhisperModel(config), {**call, "decoder_attention_mask": mask, "use_cache": False}


def bert():
    return transformers.BertModel(transformers.BertConfig(vocab_size=50, **SMALL)), {**IDS, **MASK}


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config), {**IDS, **MASK, "use_cache": False}


def llama():
    config = transformers.LlamaConfig(vocab_size=50, **SMALL, attn_implementation="eager")
    return transformers.LlamaForCausalLM(config), {**IDS, **MASK, "use_cache": False}


def t5():
    config = transformers.T5Config(
        vocab_size=50, d_model=64, num_layers=2, num_heads=4, d_kv=16, d_ff=128, decoder_start_token_id=0
    )
    call = {**IDS, **MASK, "decoder_input_ids": torch.arange(16).view(2, 8), "use_cache": False}
    return transformers.T5ForConditionalGeneration(config), call


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert got.stride() == expected.stride()
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        assert list(vars(got)) == list(vars(expected))
        for key, value in vars(expected).items():
            assert_same(vars(got)[key], value)
        for key in expected:
            assert got[key] is getattr(got, key)
    elif isinstance(expected, (tuple, list)):
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    else:
        assert got == expected


def play(make: Any) -> tuple[int, dict[str, int]]:
    torch.manual_seed(0)
    model, call = make()
    model.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model(**call)
        fast = fastjit.fastjit(model)
        for _ in range(4):
            assert_same(fast(**call), expected)
    stats = fastjit.of(fast).stats()
    assert stats.calls == 4
    return stats.hits, stats.fallbacks


@pytest.mark.parametrize("make", [vit, convnext, resnet, whisper, llama, bert, gpt2, t5], ids=lambda f: f.__name__)
def test_model_is_a_program(make):
    assert play(make) == (3, {})
