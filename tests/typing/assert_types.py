"""Checked by mypy and pyright, never run: what a type checker sees of the public names."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import assert_type

import torch
from torch import Tensor, nn

import fastjit as package
from fastjit import FastFunction, FastJITWarning, UnsupportedError, fastjit, of, stance
from fastjit.api import PassStep, Stats, VariantInfo


@fastjit
def plain(x: Tensor, scale: float = 1.0) -> Tensor:
    return x * scale


@fastjit(pure=True, numerics="fast", on_unsupported="error", max_variants=8, cache="memory", name="chain", verify=0.5)
def with_options(x: Tensor, *, flag: bool) -> tuple[Tensor, int]:
    return x, int(flag)


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Decorated(nn.Module):
    @fastjit  # pyright asks of a method that its override be a function
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x


class Holder:
    @fastjit
    def method(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x * scale

    @fastjit(pure=True)
    def pure_method(self, x: Tensor, *, flag: bool) -> tuple[Tensor, int]:
        return x, int(flag)

    @staticmethod
    @fastjit
    def static(x: Tensor) -> Tensor:
        return x


x = torch.zeros(2)
assert_type(plain(x, 2.0), Tensor)
assert_type(plain(x, scale=2.0), Tensor)
assert_type(plain.eager(x), Tensor)
assert_type(plain.stats(), Stats)
assert_type(plain.stats().fallbacks, dict[str, int])
assert_type(plain.variants(), list[VariantInfo])
assert_type(plain.explain(x), str)
assert_type(plain.warmup(x), None)
assert_type(with_options(x, flag=True), tuple[Tensor, int])
assert_type(fastjit(Model()), Model)
assert_type(fastjit(Model(), pure=True), Model)
assert_type(fastjit(pure=True)(Model()), Model)
assert_type(fastjit(lambda: 3, name="three")(), int)
assert_type(package.jit(Model()), Model)
assert_type(fastjit(lambda: 3)(), int)

holder = Holder()
assert_type(holder.method(x), Tensor)
assert_type(holder.method(x, scale=2.0), Tensor)
assert_type(holder.pure_method(x, flag=True), tuple[Tensor, int])
assert_type(Holder.method(holder, x), Tensor)
assert_type(Holder.method.stats(), Stats)
assert_type(Holder.method.explain(holder, x), str)
assert_type(Holder.static(x), Tensor)
assert_type(Decorated().forward(x), Tensor)
as_argument: Callable[[Tensor], Tensor] = holder.method
if isinstance(plain, FastFunction):
    plain.stats()

guard: AbstractContextManager[None] = stance("eager")

function: FastFunction[..., Tensor] = plain
module: FastFunction[..., object] = of(Model())
steps: list[PassStep] = plain.inspect("passes")
kinds: tuple[type[UserWarning], type[RuntimeError]] = (FastJITWarning, UnsupportedError)

# What a checker refuses: each line must be an error of the kind named, or mypy reports an unused ignore.
plain("text")  # type: ignore[arg-type]
holder.method("text")  # type: ignore[arg-type]
holder.method(holder, x)  # type: ignore[arg-type]
fastjit(Model(), mode="max-autotune")  # type: ignore[call-overload]
with_options(x)  # type: ignore[call-arg]
plain.inspect("bytecode")  # type: ignore[arg-type]
stance("fast")  # type: ignore[arg-type]
fastjit(numeric="fast")  # type: ignore[call-overload]
fastjit(numerics="exact")  # type: ignore[call-overload]
