"""What fastjit returns, and what it tells of itself."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

import torch

from fastjit import _nvrtc, _parts, _passes
from fastjit._load import extension as _C
from fastjit._tables import several

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

Stage = Literal["source", "ir", "passes", "plan", "llvm", "asm", "cuda", "ptx", "guards", "dot"]
STAGES = ("source", "ir", "passes", "plan", "llvm", "asm", "cuda", "ptx", "guards", "dot")


_STATS_ROWS = (
    "calls hits misses variants kernels steps",
    "compiles memory_hits disk_hits compile_ms record_ms",
    "verified mismatches operators",
)


def _brief(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


@dataclasses.dataclass(frozen=True, repr=False)
class Stats:
    """What a function did so far.

    ``calls == hits + misses + sum(fallbacks of known reasons)``. ``compiles``, ``memory_hits`` and ``disk_hits`` count
    kernels by where they came from. ``fallbacks`` maps a reason to the calls that ran eagerly because of it.
    ``kernels`` and ``steps`` describe one call of the program used last. ``operators`` counts the calls of torch's
    operators that programs took the place of. Times are milliseconds. ``verified`` counts the calls that ``verify=``
    compared with eager, ``mismatches`` those that differed. ``parts`` has the same of each part, see
    :meth:`FastFunction.parts`; ``operators`` includes theirs.
    """

    calls: int
    hits: int
    misses: int
    compiles: int
    memory_hits: int
    disk_hits: int
    fallbacks: dict[str, int]
    kernels: int
    steps: int
    variants: int
    operators: int
    compile_ms: float
    record_ms: float
    verified: int
    mismatches: int
    parts: dict[str, Stats]

    def __repr__(self) -> str:
        """Every field, on lines that fit a terminal; each reason to run eagerly has its own."""
        lines = [", ".join(f"{name}={_brief(getattr(self, name))}" for name in row.split()) for row in _STATS_ROWS]
        reasons = [f"{reason!r}: {calls}" for reason, calls in self.fallbacks.items()]
        indent = "\n" + " " * len("Stats(")
        parts = [f"{name!r}: '{part.hits} hits of {part.calls} calls'" for name, part in self.parts.items()]
        lines.append(f"fallbacks={{{f',{indent}  '.join(reasons)}}}")
        lines.append(f"parts={{{f',{indent}  '.join(parts)}}}")
        return f"Stats({f',{indent}'.join(lines)})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{k}</td><td>{v}</td></tr>" for k, v in dataclasses.asdict(self).items())
        return f"<table>{rows}</table>"


@dataclasses.dataclass(frozen=True)
class VariantInfo:
    """One thing a function knows: a program for a signature, or the reason why that signature stays eager.

    ``bytes`` is an estimate of the memory that goes with it, without its machine code. ``kept_bytes`` is what each call
    keeps until ``backward()``, beside tensors that the caller has; 0 where no result requires grad.
    """

    signature: str
    hits: int
    kernels: int
    steps: int
    reason: str
    compile_ms: float
    record_ms: float
    bytes: int
    kept_bytes: int
    keys: list[str]


class FastFunction(Generic[P, R], metaclass=abc.ABCMeta):
    """A function that watches its first call and runs compiled kernels on calls like it.

    The type of what :func:`fastjit` returns, for annotations and ``isinstance``; the object itself is made in C, so
    that a call costs no Python. A method is asked through its class: ``Model.step.stats()``,
    ``Model.step.explain(model, x)``.
    """

    __wrapped__: Callable[P, R]
    __name__: str
    __qualname__: str

    @overload
    def __get__(self, instance: None, owner: Any = None, /) -> FastFunction[P, R]: ...
    @overload
    def __get__(
        self: FastFunction[Concatenate[Any, Q], R], instance: object, owner: Any = None, /
    ) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any:
        raise NotImplementedError

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        raise NotImplementedError

    def stats(self) -> Stats:
        """Counters since the function was made."""
        parts = {name: part.stats() for name, part in self.parts().items()}
        return Stats(parts=parts, **cast(Any, self)._stats())

    def parts(self) -> dict[str, FastFunction[..., Any]]:
        """The functions and modules that run as programs of their own where this function cannot be one program.

        Empty for a function that is one. The names are those of submodules (``"encoder.0"``) where a module was given
        to fastjit, else of classes and functions. Each part has ``stats()``, ``variants()`` and ``inspect()``.
        """
        return _parts.named(self, _module_of(self.__wrapped__))

    def variants(self) -> list[VariantInfo]:
        """Every known signature, the most recently used first: the last ones go when there is no room for a new one."""
        return [VariantInfo(**row) for row in cast(Any, self)._variants()]

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Says whether this call would be a hit, a new variant, or eager, and why. Runs nothing.

        What no call has shown yet cannot be told: a new variant is made only if what the function then does can be
        compiled.
        """
        if problem := _wrong_arguments(self.__wrapped__, args, kwargs):
            return f"an error: TypeError: {problem}"
        said = cast(str, cast(Any, self)._explain(*args, **kwargs))
        if said.startswith("eager: ") and (parts := self.parts()):
            said += _parts.sentence(parts)
        return said

    def inspect(self, stage: Stage, variant: int = 0) -> Any:
        """One stage of a compiled variant as text (``"passes"``: a list of :class:`PassStep`).

        Args:
            stage: "source", "ir", "passes", "plan", "llvm", "asm", "cuda", "ptx", "guards" or "dot". "source" of a
                program for any size is that for the sizes of its recording.
            variant: which program, counted from the most recently used one.

        Raises:
            ValueError: for an unknown stage.
            LookupError: when there is no such program; the text says what there is.
        """
        if stage not in STAGES:
            raise ValueError(f"unknown stage {stage!r}; choose one of {', '.join(STAGES)}")
        return _inspect(cast(Any, self), stage, variant)

    def clear(self) -> None:
        """Forgets every variant (not the kernels on disk)."""
        cast(Any, self)._clear()

    def warmup(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls the function until a call like this one is a hit, at most three times; results are dropped.

        Effects of the function happen each time, as in any call. With ``on_miss="background"`` this waits for programs
        that are being compiled.
        """
        cast(Any, self)._expect()
        for _ in range(3):
            hits = self.stats().hits
            self(*args, **kwargs)
            if self.stats().hits > hits:
                return
            cast(Any, self)._wait()

    def eager(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function as it was written."""
        return self.__wrapped__(*args, **kwargs)

    def export(
        self,
        path: str | os.PathLike[str],
        /,
        *args: Any,
        isa: Literal["avx2", "avx512"] | None = None,
        order: Literal["keep", "fortran"] = "keep",
        **kwargs: Any,
    ) -> Path:
        """Writes the program of a call as a library for C and Fortran, which needs no Python, and libtorch only for
        operators that have no kernel of FastJIT's.

        The function is called with copies of the tensors in ``args`` and ``kwargs``, without gradients. Sizes, strides
        and types of the arguments are those of this call; tensors that it finds elsewhere, such as parameters, become
        part of the library as they are now. Needs a C compiler. `docs/export.md` says more.

        Args:
            path: where the library goes, ``"lib/column"`` or ``"lib/column.so"``; ``column.h`` and ``column.f90`` are
                written beside it.
            *args: of the call.
            isa: what the CPU must have; None: the best that this one has.
            order: "keep": arguments lie as those given here do, results as eager's. "fortran": all are column-major.
            **kwargs: of the call.

        Returns:
            The path of the library.

        Raises:
            ValueError: the program cannot run without Python; the text names what is in the way.
            RuntimeError: there is no C compiler, or it failed.
        """
        from fastjit import _export  # not at import: that takes milliseconds

        return _export.export(self, path, args, kwargs, isa, order)


def _module_of(function: Any) -> torch.nn.Module | None:
    """The module, where a module was given to fastjit."""
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) and function.__name__ == "_call_impl" else None


def _wrong_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why the function does not take these arguments, as far as its parameters tell."""
    module = _module_of(function)
    if module is not None and not module._forward_pre_hooks:  # hooks may change the arguments
        function = module.forward
    if not isinstance(getattr(function, "__func__", function), types.FunctionType):
        return ""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except ValueError:
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        is_method = isinstance(function, types.FunctionType) and next(iter(signature.parameters), "") == "self"
        hint = f" (of a method, ask its class: {function.__qualname__}.explain(instance, ...))" if is_method else ""
        return f"{error}{hint}"
    return ""


def _inspect(function: Any, stage: str, variant: int) -> Any:
    count = sum(1 for v in function._variants() if not v["reason"])
    result: Any = None
    if not 0 <= variant < count:
        pass
    elif stage == "source":
        from fastjit import _source  # not at import: that takes milliseconds

        way_there = function._inspect("ir in numbers", variant)
        result = way_there and _source.from_ir(way_there, function._inspect("steps of python", variant))
    elif stage in ("cuda", "ptx"):
        result = _cuda_stage(function, stage, variant)
    else:
        result = function._inspect(stage, variant)
    if result is None:
        way_out = _parts.where_to_inspect(function.parts(), stage) or "call it first"
        raise LookupError(
            f"{function._name} has {several(count, 'compiled variant')}, so there is no variant {variant} to inspect; "
            + way_out
        )
    return _passes.steps_of(result) if stage == "passes" else result


def _cuda_stage(function: Any, stage: str, variant: int) -> str:
    kernels = _C.cuda_kernels(function, variant)
    if stage == "cuda":
        return "\n".join(kernel["source"] for kernel in kernels)
    if problem := _nvrtc.problem():
        raise RuntimeError(problem)
    return "\n".join(_C.cuda_ptx(function, variant, i, _nvrtc.architecture()) for i in range(len(kernels)))


def _attach_methods() -> None:
    for name in ("stats", "parts", "variants", "explain", "inspect", "clear", "warmup", "eager", "export"):
        setattr(_C.Function, name, FastFunction.__dict__[name])
    _C.Function.__repr__ = lambda self: f"<fastjit function {self._name}>"
    _C.Function.__deepcopy__ = lambda self, memo: self
    _C.Function.__copy__ = lambda self: self
    FastFunction.register(_C.Function)


_attach_methods()
