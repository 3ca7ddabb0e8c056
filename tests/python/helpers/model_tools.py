"""Models that no one here wrote: what they are, how one is played in eager and under @fastjit, and what ran inside.

`model_report()` gives the rows of docs/correctness.md; it needs no pytest.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import fastjit
from fastjit._bench.models import library_of

transformers = library_of("transformers")  # which imports a torchvision that is there

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


def assert_same(got: Any, expected: Any, exact: Any = None) -> None:
    """`exact`: the same result in f64, to which both are as near then."""
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        if exact is None:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        else:
            assert (got - exact).abs().max() <= 2 * (expected - exact).abs().max() + 1e-6
        assert got.stride() == expected.stride()
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        assert list(vars(got)) == list(vars(expected))
        for key, value in vars(expected).items():
            assert_same(vars(got)[key], value, None if exact is None else vars(exact)[key])
        for key in expected:
            assert got[key] is getattr(got, key)
    elif isinstance(expected, (tuple, list)):
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_same(one, other, None if exact is None else exact[i])
    elif type(expected).__module__.endswith("cache_utils"):  # a key/value cache, or one layer of it
        assert list(vars(got)) == list(vars(expected))
        for key, value in vars(expected).items():
            assert_same(vars(got)[key], value)
    else:
        assert got == expected


MODELS: dict[str, Callable[[], Any]] = {
    make.__name__: make for make in (bert, gpt2, llama, t5, vit, convnext, resnet, whisper)
}
DECODERS = ("gpt2", "llama")
# Normalisations of few values between many convolutions, in training, make the difference of last bits larger.
CONVOLVES = ("resnet",)
CALLS = 4
STEPS, DECODINGS = 8, 3


@dataclasses.dataclass
class Played:
    """What one model showed; `share`: of the ATen calls that Python makes in an eager forward, those inside programs.

    A hit is one program and runs no Python code of the model, so one call is inside as a whole or not at all.
    """

    model: str
    mode: str
    runs_as: str
    share: float | None
    aten_calls: int | None
    steps: int
    kernels: int
    hits: int
    reason: str


@contextmanager
def quietly() -> Iterator[None]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def outermost(call: Callable[[], Any]) -> int:
    """ATen calls that Python makes: those inside another operator are not counted."""
    with torch.autograd.profiler.profile() as profile:
        call()
    return sum(e.name.startswith("aten::") and e.cpu_parent is None for e in profile.function_events)


def in_f64(model: torch.nn.Module, call: dict[str, Any]) -> Any:
    """The result of a copy of the model, which draws no random numbers."""
    return copy.deepcopy(model).double()(**{key: v.double() for key, v in call.items()})


def play(name: str, train: bool = False, **more: Any) -> Played:
    """CALLS calls of the model and of a copy under @fastjit: results, generator and buffers are held to be the same."""
    torch.manual_seed(0)
    model, call = MODELS[name]()
    call.update(more)
    model.train(train)
    fast = fastjit.fastjit(copy.deepcopy(model))
    with quietly():
        for seed in range(CALLS):
            torch.manual_seed(seed)
            exact = in_f64(model, call) if name in CONVOLVES else None
            expected, after = model(**call), torch.get_rng_state()
            torch.manual_seed(seed)
            assert_same(fast(**call), expected, exact)
            assert torch.equal(torch.get_rng_state(), after)
            for got, wanted in zip(fast.state_dict().values(), model.state_dict().values(), strict=True):
                assert_same(got, wanted)
        stats = fastjit.of(fast).stats()
        assert stats.calls == CALLS
        calls = outermost(lambda: model(**call))
    is_program = stats.hits == CALLS - 1
    return Played(
        name,
        "train" if train else "eval",
        "program" if is_program else "eager" if not stats.hits else "program at times",
        stats.hits / (CALLS - 1),
        calls,
        stats.steps,
        stats.kernels,
        stats.hits,
        "; ".join(stats.fallbacks),
    )


def decode(name: str) -> Played:
    """DECODINGS times STEPS tokens with a key/value cache that the first call makes and the others are given: equal at
    each step."""
    torch.manual_seed(0)
    model, _ = MODELS[name]()
    model.eval()
    fast = fastjit.fastjit(copy.deepcopy(model))
    caches: list[Any] = []
    with quietly():
        for step in range(DECODINGS * STEPS):
            if step % STEPS == 0:
                caches, tokens = [None, None], torch.arange(8).view(2, 4)
            outputs = []
            for index, one in enumerate((model, fast)):
                outputs.append(one(input_ids=tokens, past_key_values=caches[index], use_cache=True))
                caches[index] = outputs[-1].past_key_values
            assert_same(outputs[1], outputs[0])
            tokens = outputs[0].logits[:, -1:].argmax(-1)
    stats = fastjit.of(fast).stats()
    assert stats.calls == DECODINGS * STEPS
    reason = "; ".join(f"{text} ({count})" for text, count in stats.fallbacks.items())
    recorded = stats.variants
    eager = stats.calls - stats.hits - recorded
    runs = f"{stats.hits} hits, {recorded} recorded, {eager} eager"
    return Played(
        name,
        f"{DECODINGS} times {STEPS} decode steps",
        runs,
        stats.hits / stats.calls,
        None,
        stats.steps,
        stats.kernels,
        stats.hits,
        reason,
    )


def model_report() -> list[dict[str, Any]]:
    """One row a model and mode: model, mode, runs_as, share, aten_calls, steps, kernels, hits, reason."""
    rows = [play(name, train) for train in (False, True) for name in MODELS]
    rows += [dataclasses.replace(play(name, use_cache=True), mode="eval, makes a cache") for name in DECODERS]
    rows += [decode(name) for name in DECODERS]
    return [dataclasses.asdict(row) for row in rows]
