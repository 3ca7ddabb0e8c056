"""Models of text, and loops that generate it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import Inputs, Program, add, case, tokens

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TOKENS = {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 64, "decoder_start_token_id": 0}
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
}  # fmt: skip


def masked(length: int) -> Inputs:
    """Ids and a mask with padding, as a tokenizer gives them."""

    def inputs(batch: int) -> dict[str, Any]:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[-1, length - 3 :] = 0
        return {"input_ids": torch.randint(3, 100, (batch, length)), "attention_mask": mask}

    return inputs


def paired(length: int) -> Inputs:
    def inputs(batch: int) -> dict[str, Any]:
        return {**masked(length)(batch), "decoder_input_ids": torch.randint(3, 100, (batch, 6))}

    return inputs


def pixels(size: int) -> Inputs:
    return lambda batch: {"pixel_values": torch.rand(batch, 3, size, size)}


def sounds(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 800)}


WAV2VEC2 = {
    "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
OF_TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], Inputs]] = {
    "bert_classifier": ("BertForSequenceClassification", "BertConfig", {**SMALL, **TOKENS}, masked(12)),
    "distilbert": ("DistilBertModel", "DistilBertConfig",
                   {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, masked(12)),
    "gpt2_forward": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, **TOKENS}, masked(12)),
    "llama_forward": ("LlamaForCausalLM", "LlamaConfig", {**SMALL, **TOKENS}, masked(12)),
    "qwen3_forward": ("Qwen3ForCausalLM", "Qwen3Config",
                      {**SMALL, **TOKENS, "num_key_value_heads": 2, "head_dim": 8}, masked(12)),
    "mixtral_forward": ("MixtralForCausalLM", "MixtralConfig",
                        {**SMALL, **TOKENS, "num_key_value_heads": 2, "num_local_experts": 4}, masked(12)),
    "mamba_forward": ("MambaForCausalLM", "MambaConfig",
                      {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, tokens(12)),
    "t5_forward": ("T5ForConditionalGeneration", "T5Config", {**T5, **TOKENS}, paired(12)),
    "bart_forward": ("BartForConditionalGeneration", "BartConfig", {**BART, **TOKENS}, paired(12)),
    "vit_classifier": ("ViTForImageClassification", "ViTConfig",
                       {**SMALL, "image_size": 32, "patch_size": 8}, pixels(32)),
    "segformer": ("SegformerForSemanticSegmentation", "SegformerConfig",
                  {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}, pixels(64)),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", {**SMALL, **WAV2VEC2}, sounds),
}  # fmt: skip
POSITIONAL = ("mamba_forward",)


def made_of_transformers(kind: str, config: str, options: dict[str, Any]) -> Any:
    import transformers

    return getattr(transformers, kind)(getattr(transformers, config)(**options)).eval()


def of_transformers(name: str) -> Program:
    kind, config, options, inputs = OF_TRANSFORMERS[name]
    return Program(made_of_transformers(kind, config, options), inputs)


for _name in OF_TRANSFORMERS:
    add("transformers", _name, functools.partial(of_transformers, _name))


def generating(name: str, **options: Any) -> Program:
    """The model is given to FastJIT, and `generate` calls it once a token."""
    kind, config, settings, _ = OF_TRANSFORMERS[name]
    model = made_of_transformers(kind, config, settings)
    generate: Callable[..., Any] = functools.partial(model.generate, max_new_tokens=6, min_new_tokens=6, **options)

    def inputs(batch: int) -> dict[str, Any]:
        ids = torch.randint(3, 100, (batch, 5))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    return Program(generate, inputs, model, target=model)


@case("transformers")
def gpt2_generate() -> Program:
    return generating("gpt2_forward", do_sample=False)


@case("transformers")
def llama_generate_static_cache() -> Program:
    return generating("llama_forward", do_sample=False, cache_implementation="static", disable_compile=True)


def x_transformer(model: Callable[[Any], Any], length: int = 12) -> Program:
    import x_transformers

    return Program(model(x_transformers).eval(), tokens(length))


@case("x-transformers")
def x_decoder() -> Program:
    return x_transformer(
        lambda x: x.TransformerWrapper(
            num_tokens=100, max_seq_len=32, attn_layers=x.Decoder(dim=32, depth=2, heads=2, attn_dim_head=16)
        )
    )


@case("x-transformers")
def x_decoder_rotary_flash() -> Program:
    return x_transformer(
        lambda x: x.TransformerWrapper(
            num_tokens=100,
            max_seq_len=32,
            attn_layers=x.Decoder(
                dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True, attn_flash=True, use_rmsnorm=True
            ),
        )
    )


@case("x-transformers")
def x_encoder_alibi() -> Program:
    return x_transformer(
        lambda x: x.TransformerWrapper(
            num_tokens=100,
            max_seq_len=32,
            attn_layers=x.Encoder(dim=32, depth=2, heads=4, attn_dim_head=8, alibi_pos_bias=True, ff_glu=True),
        )
    )


@case("x-transformers")
def x_vit() -> Program:
    import x_transformers as x

    model = x.ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=10, attn_layers=x.Encoder(dim=32, depth=2, heads=2)
    )
    return Program(model.eval(), lambda batch: (torch.rand(batch, 3, 32, 32),))


@case("x-transformers")
def x_seq2seq_loss() -> Program:
    import x_transformers as x

    half = {"num_tokens": 100, "depth": 1, "heads": 2, "max_seq_len": 32}
    model = x.XTransformer(dim=32, **{f"{side}_{key}": value for side in ("enc", "dec") for key, value in half.items()})
    return Program(model.eval(), lambda batch: (torch.randint(0, 100, (batch, 9)), torch.randint(0, 100, (batch, 7))))


@case("x-transformers")
def x_generate() -> Program:
    import x_transformers as x

    layers = x.Decoder(dim=32, depth=1, heads=2)
    model = x.AutoregressiveWrapper(x.TransformerWrapper(num_tokens=100, max_seq_len=32, attn_layers=layers)).eval()
    return Program(
        lambda prompt: model.generate(prompt, 5, temperature=0.8), tokens(4), model, target=model.net, flips=False
    )
