"""How far a program of many types may be off: its floats are followed in f64, beside the run in eager.

Eager runs the program and decides what is which memory and type. Each memory of floats has shadows in f64: number 0
follows exact arithmetic, each other one is moved after every operator by what that operator may be off in the type that
eager computes in (error_bounds.Running). What only rounds as eager rounds, from values that are eager's bits, is
eager's bits, and so are its shadows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from eager_cpu import RoundedRoots
from error_bounds import (
    PRODUCTS,
    ROUNDINGS,
    SLACK,
    SUMS,
    ULPS,
    UNITS,
    Draw,
    Running,
    default_dtype,
    distance,
    error,
    promises,
    spacing,
    tensors_of,
)

# Draws at first, then at a time, and at most; none more for what is FAR times beyond the bound.
FIRST, STEP, MOST, FAR = 6, 20, 126, 16
# Rounded once, by IEEE's rule, in eager and in kernels.
ROUNDED_ONCE = {"add", "sub", "rsub", "mul", "div", "true_divide"}
# Taken apart by formulas: their steps round otherwise in eager.
COMPOSED = {"gelu", "silu", "softplus", "_softmax", "_log_softmax", "native_layer_norm", "var", "std"}
COMPOSED |= {"linalg_vector_norm"}


@dataclasses.dataclass
class Memory:
    """The shadows of one storage, element by element; `exact` while they are eager's values."""

    owner: torch.Tensor
    shadows: list[torch.Tensor]
    exact: bool


class Step(Running):
    """One operator on one shadow. What depends on data by steps depends on no moved value: programs are made so."""

    def copies(self, name: str, out: Any, operands: Any) -> bool:
        """A deviation of 0 is no copy of a number."""
        return name not in COMPOSED and super().copies(name, out, operands)

    def decide(self, name: str, out: Any) -> Any:
        return out


@functools.cache
def gelu_error() -> float:
    """What eager's own gelu of f32 is off by on this CPU, over its argument: 3e-7 where oneDNN uses AVX-512."""
    x = torch.linspace(-8.0, 8.0, 160_001)
    truth = torch.nn.functional.gelu(x.double())
    return float(((torch.nn.functional.gelu(x) - truth).abs() / x.abs().clamp(min=1e-3)).max())


def plain_name(func: Any) -> str:
    name = func._schema.name.split("::")[1]
    return name if name.startswith("_") else name.rstrip("_")


def rounds_otherwise(name: str) -> bool:
    """Whether kernels may give other bits than eager for the same operands."""
    if name in ROUNDED_ONCE:
        return False
    return name in COMPOSED | SUMS | PRODUCTS | ROUNDINGS.keys() or (name, torch.float32) in promises()


class Following(TorchDispatchMode):
    """Runs in eager, and each operator that yields floats on the shadows too."""

    def __init__(self, numbers: Iterable[int]) -> None:
        super().__init__()
        self.draws = [Draw(number) for number in numbers]
        self.memory: dict[int, Memory] = {}

    def adopt(self, t: torch.Tensor, shadows: list[torch.Tensor] | None = None) -> None:
        """Gives the memory of `t` shadows: those given, laid out like t, or else eager's values."""
        storage = t.untyped_storage()
        whole = torch.empty(0, dtype=t.dtype).set_(storage, 0, (storage.nbytes() // t.element_size(),), (1,))
        copies = [whole.double() if t.dtype != torch.float64 else whole.clone() for _ in self.draws]
        memory = self.memory[storage._cdata] = Memory(t, copies, shadows is None)
        for copy, values in zip(memory.shadows, shadows or [], strict=False):
            laid_like(copy, t).copy_(values)

    def of(self, t: torch.Tensor) -> Memory:
        if t.untyped_storage()._cdata not in self.memory:
            self.adopt(t)
        return self.memory[t.untyped_storage()._cdata]

    def shadow(self, t: torch.Tensor, k: int) -> torch.Tensor:
        return laid_like(self.of(t).shadows[k], t) if t.is_floating_point() else t

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        operands = [t for t in tensors_of((args, kwargs)) if t.is_floating_point()]
        exact = all([self.of(t).exact for t in operands]) and not rounds_otherwise(plain_name(func))
        if func.is_view or exact or func._schema.is_mutable:
            if not func.is_view and not exact:
                self.follow(func, args, kwargs, args[0])
            out = func(*args, **kwargs)
            if func._schema.is_mutable and args[0].is_floating_point():
                self.written(args[0], exact)
            return out
        out = func(*args, **kwargs)
        leaves = pytree.tree_leaves(out)
        floats = [i for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        new = [i for i in floats if leaves[i].untyped_storage()._cdata not in self.memory]
        found = self.follow(func, args, kwargs, leaves[new[0]]) if new else []
        for i in new:
            self.adopt(leaves[i], [shadow[i] for shadow in found])
        return out

    def written(self, t: torch.Tensor, exact: bool) -> None:
        """An operator wrote into `t`: its own values, or what was followed. Elements may share memory."""
        memory = self.of(t)
        memory.exact &= exact
        for dim in [d for d, step in enumerate(t.stride()) if step == 0 and t.size(d) > 1]:
            t = t.narrow(dim, 0, 1)
        for shadow in memory.shadows if exact else []:
            laid_like(shadow, t).copy_(t)

    def follow(self, func: Any, args: tuple, kwargs: dict, like: torch.Tensor) -> list[list[Any]]:
        """Per shadow, the leaves of what the operator yields, moved; its first result is like, or writes, `like`."""
        if not like.is_floating_point():
            return []
        name, found = plain_name(func), []
        copies = not rounds_otherwise(name) and name not in ROUNDED_ONCE
        for k, draw in enumerate(self.draws):
            moved = pytree.tree_map(lambda leaf, k=k: self.operand(leaf, k, like), (args, kwargs))
            with default_dtype(torch.float64), RoundedRoots():
                out = pytree.tree_leaves(Step(like.dtype, draw, []).__torch_dispatch__(func, (), *moved))
            if name == "gelu" and like.dtype == torch.float32:
                draw.move(out[0], gelu_error() * moved[0][0].abs())
            if copies and any(wider(t, like) for t in tensors_of((args, kwargs))):
                for t in tensors_of(out):
                    draw.move(t, 0.5 * spacing(t, like.dtype))
            found.append(out)
        return found

    def operand(self, leaf: Any, k: int, like: torch.Tensor) -> Any:
        """A leaf of the arguments for shadow k; a number, in a tensor too, is rounded before it meets a narrower."""
        if isinstance(leaf, torch.dtype):
            return torch.float64 if leaf.is_floating_point else leaf
        if type(leaf) is float and like.dtype != torch.float64:
            return torch.tensor(leaf, dtype=torch.float32).item()
        if not isinstance(leaf, torch.Tensor):
            return leaf
        t = self.shadow(leaf, k)
        if leaf is like:
            return t
        t = t.clone()
        if not leaf.dim() and like.dim() and wider(leaf, like):
            self.draws[k].move(t, 0.5 * spacing(t, torch.float32))
        return t


def wider(t: torch.Tensor, than: torch.Tensor) -> bool:
    return t.is_floating_point() and t.dtype.itemsize > than.dtype.itemsize


def laid_like(whole: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return whole.as_strided(t.size(), t.stride(), t.storage_offset())


class Replay:
    """The results and arguments of one call in f64, and how far they may be off; `fresh` makes the arguments."""

    def __init__(self, function: Callable[..., Any], fresh: Callable[[], list[torch.Tensor]], number: float) -> None:
        self.function, self.fresh, self.number, self.drawn = function, fresh, number, 0
        self.truth: list[torch.Tensor] = []
        self.bounds: list[torch.Tensor] = []

    def draw(self, number: int) -> None:
        """Follows the call with `number` more moves."""
        arguments = self.fresh()
        with Following([0, *range(self.drawn + 1, self.drawn + number + 1)]) as following:
            out = self.function(*arguments, self.number)
        shadows = [[following.shadow(t, k).double() for k in range(number + 1)] for t in [*out, *arguments]]
        self.truth = [first for first, *_ in shadows]
        # A move that leaves a function's domain says nothing, and the other moves say what they say.
        apart = [[distance(other, first).nan_to_num(0, torch.inf) for other in moved] for first, *moved in shadows]
        widths = [torch.stack(each).amax(0) for each in apart]
        self.bounds = [torch.maximum(a, b) for a, b in zip(self.bounds or widths, widths, strict=True)]
        self.drawn += number

    def wrong(self, k: int, got: torch.Tensor, want: torch.Tensor) -> str:
        """What is wrong with the k-th tensor where eager gives `want`; "" if nothing.

        Right is what is within ULPS of eager, as near to the exact value as eager, or within the bound. Draws approach
        the bound from below, so there are more before what is not far beyond it is called wrong.
        """
        off = error(got, want, want.dtype)
        if bool((off <= ULPS).all()):
            return ""
        if not self.drawn:
            self.draw(FIRST)
        while True:
            truth = self.truth[k]
            sides = 2 if want.dtype == torch.float64 else 1
            unit = spacing(truth.nan_to_num(0, 0, 0), want.dtype)
            allowed = sides * (SLACK * self.bounds[k] + UNITS * unit)
            allowed = torch.maximum(allowed, distance(want, truth).nan_to_num(0, 0, 0))
            bad = ~((off <= ULPS) | (distance(got, truth) <= allowed))
            if not bool(bad.any()):
                return ""
            if self.drawn >= MOST or bool((distance(got, truth) > FAR * allowed)[bad].any()):
                break
            self.draw(STEP)
        shown = f"{got[bad][:4].tolist()} is not {want[bad][:4].tolist()}, in f64 {truth[bad][:4].tolist()}"
        return f"{off[bad].max():.3g} ulp: {shown}, allowed {allowed[bad][:4].tolist()}"
