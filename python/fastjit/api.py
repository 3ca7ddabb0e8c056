"""The decorator and what it returns."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

import torch

from fastjit._function import STAGES, FastFunction, Stage, Stats, VariantInfo
from fastjit._load import FastJITWarning, UnsupportedError, disabled
from fastjit._load import extension as _C
from fastjit._passes import PassStep
from fastjit._words import excerpt

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)

Numerics = Literal["eager", "accurate", "fast"]  # for checkers of types; _C.numerics is what counts

Dynamic = bool | Mapping[str, int | Sequence[int]] | None

# Option -> (default, allowed values or type).
OPTIONS: dict[str, tuple[Any, Any]] = {
    "name": (None, (str, type(None))),
    "pure": (False, (bool,)),
    "numerics": ("eager", _C.numerics),
    "on_unsupported": ("warn", ("warn", "eager", "error")),
    "on_miss": ("compile", ("compile", "background")),
    "max_variants": (64, (int,)),
    "dynamic": (None, (bool, dict, type(None))),
    "cache": (True, (True, False, "readonly", "memory")),
    "verify": (False, (bool, float)),
}
# Options of torch.compile -> what to do here instead.
_OF_TORCH_COMPILE = {
    "mode": "leave it out: there is one mode; numerics='fast' allows faster arithmetic with larger errors",
    "fullgraph": "say on_unsupported='error' instead: a call that cannot be one program then raises",
    "backend": "leave it out: FastJIT is the compiler (from the other side, torch.compile takes backend='fastjit')",
    "options": "give each option as a keyword of its own: {options}",
    "recompile_limit": "say max_variants= instead: how many signatures are kept",
    "isolate_recompiles": "leave it out: each function has its own variants",
    "shapes_spec": "leave it out: a size is any size from its second value on; dynamic= says which are at once",
    "dynamic_shapes": "leave it out: a size is any size from its second value on; dynamic= says which are at once",
    "disable": "set FASTJIT_DISABLE=1, or call it within fastjit.stance('eager')",
}
_WORDS = {int: "a positive int below 2**32", float: "a number from 0 to 1"}


def _reduce(function: Any) -> str | tuple[Any, ...]:
    """By name where the name leads to it, as Python functions; else what it wraps and the options."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return str(function.__qualname__) if found is function else (_rebuild, (function.__wrapped__, function._options))


def _rebuild(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    return _make_any(function, options)


_C.Function.__reduce__ = _reduce


def _run_shadow(shadow: Any) -> Any:
    from fastjit import _verify  # not at import: that takes milliseconds

    return _verify.run(shadow)


def _judge_shadow(shadow: Any, outcome: Any, result: Any, error: BaseException | None) -> None:
    from fastjit import _verify

    _verify.judge(shadow, outcome, result, error)


_C.register_verifier(_run_shadow, _judge_shadow)


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    for key, value in options.items():
        if key in _OF_TORCH_COMPILE:
            instead = _OF_TORCH_COMPILE[key].format(options=", ".join(OPTIONS))
            raise TypeError(f"option {key!r} is torch.compile's; {instead}")
        if key not in OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the options are {', '.join(OPTIONS)}"
            raise TypeError(f"unknown option {excerpt(key)}{hint}")
        allowed = OPTIONS[key][1]
        fits = (
            isinstance(value, allowed)
            if isinstance(allowed[0], type)
            else any(value is a or (isinstance(value, (str, int)) and value == a) for a in allowed)
        )
        fits = fits or (float in allowed and isinstance(value, int))
        fits = fits and not (float in allowed and not 0 <= value <= 1)
        fits = fits and not (allowed == (int,) and (isinstance(value, bool) or not 1 <= value < 1 << 32))
        fits = fits and not (isinstance(value, str) and value != value.encode(errors="replace").decode())
        if key == "dynamic" and isinstance(value, dict):
            _check_dims(value)
        if not fits:
            names = " or ".join(_WORDS.get(a, "") or getattr(a, "__name__", repr(a)) for a in allowed)
            raise TypeError(f"option {key!r} must be {names}, not {excerpt(value)}")
    return options


def _check_dims(dynamic: dict[Any, Any]) -> None:
    for name, dims in dynamic.items():
        listed = [dims] if isinstance(dims, int) else dims
        fits = isinstance(listed, (list, tuple)) and all(isinstance(d, int) and not isinstance(d, bool) for d in listed)
        if not isinstance(name, str) or not fits:
            raise TypeError(
                "option 'dynamic' must give dims of parameters, as in {'x': 0, 'mask': (0, 1)}, "
                f"not {excerpt(name)}: {excerpt(dims)}"
            )


def _check_names(function: Any, dynamic: Any) -> None:
    if not isinstance(dynamic, dict):
        return
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in dynamic:
        if name not in parameters:
            raise TypeError(f"option 'dynamic' names {excerpt(name)}; the parameters are {', '.join(parameters)}")


def _refuse_kind(function: Any) -> None:
    what, name = None, getattr(function, "__qualname__", f"{type(function).__module__}.{type(function).__qualname__}")
    if isinstance(function, type):
        what = f"the class {name}; decorate its forward method or pass an instance"
    elif inspect.iscoroutinefunction(function):
        what = f"the coroutine function {name}; decorate the plain functions that it awaits between"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what = f"the generator function {name}; decorate the function that computes one item"
    elif not callable(function):
        what = f"an object of type {type(function).__name__}; it needs something callable"
    if what:
        raise TypeError(f"fastjit cannot compile {what}")


def _copy_attributes(made: Any, function: Any) -> None:
    """What decorators below set on the function, as functools.wraps does; names of FastFunction keep their meaning."""
    own = getattr(function, "__dict__", {})  # methods of C functions have none
    made.__dict__.update({k: v for k, v in own.items() if k != "_options" and not hasattr(_C.Function, k)})


def _make(function: Any, options: dict[str, Any], origin: dict[str, Any] | None = None) -> Any:
    raw = {k: v for k, v in options.items() if v is not None}
    origin = dict(origin or {})
    recorded = origin.pop("callable", function)
    where = getattr(function, "__module__", "") or ""
    own = getattr(function, "__qualname__", type(function).__name__).removeprefix("_VariableFunctionsClass.")
    raw["name"] = options.get("name") or (f"{where}." if where not in ("", "__main__") else "") + own
    if raw.get("cache") in (True, False):
        raw["cache"] = "on" if raw["cache"] else "memory"
    raw["verify"] = float(raw.get("verify", False))
    made = _C.Function(recorded, {**raw, **origin})
    if isinstance(function, (types.FunctionType, types.MethodType)):
        _copy_attributes(made, function)
    made.__dict__["_options"] = dict(options)
    for name in functools.WRAPPER_ASSIGNMENTS:
        with contextlib.suppress(AttributeError):
            made.__dict__[name] = getattr(recorded, name)
    made.__dict__.setdefault("__qualname__", raw["name"])
    made.__dict__.setdefault("__name__", raw["name"])
    with contextlib.suppress(ValueError, TypeError):
        made.__dict__["__signature__"] = inspect.signature(recorded)
    return made


def _wrap(target: Any, options: dict[str, Any]) -> Any:
    if isinstance(target, FastFunction):
        made = _make_any(target.__wrapped__, {**cast(Any, target)._options, **options})
        _copy_attributes(made, target)
        return made
    if isinstance(target, torch.nn.Module) and not isinstance(target, torch.jit.ScriptModule):
        if disabled:
            return target
        options = {"name": type(target).__qualname__, **options}
        target._compiled_call_impl = _make(target._call_impl, options)
        return target
    _refuse_kind(target)
    _check_names(target, options.get("dynamic"))
    if isinstance(target, (staticmethod, classmethod)):
        raise TypeError(
            f"fastjit cannot compile a {type(target).__name__} object; put @fastjit below @{type(target).__name__}"
        )
    return _make_any(target, options)


def _make_any(target: Any, options: dict[str, Any]) -> Any:
    if not isinstance(target, _TORCHSCRIPT):
        return _make(target, options)
    from fastjit import _script  # not at import: that takes milliseconds

    return _script.compiled(target, options, _make)


_TORCHSCRIPT = (torch.jit.ScriptFunction, torch.jit.ScriptModule, torch._C.ScriptMethod)


class _LaterTarget:
    """fastjit(option=...) is given its target by the next call."""

    def __repr__(self) -> str:
        return "..."


_LATER: Any = _LaterTarget()


class Decorator(Protocol):
    """What ``fastjit(option=...)`` returns."""

    @overload
    def __call__(self, target: M, /) -> M: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, R], /) -> FastFunction[P, R]: ...


# A module is callable, and comes back as itself. A test compares the options of the three with OPTIONS.
@overload
def fastjit(  # type: ignore[overload-overlap]
    target: M,
    /,
    *,
    name: str | None = None,
    pure: bool = False,
    numerics: Numerics = "eager",
    on_unsupported: Literal["warn", "eager", "error"] = "warn",
    on_miss: Literal["compile", "background"] = "compile",
    max_variants: int = 64,
    dynamic: Dynamic = None,
    cache: bool | Literal["readonly", "memory"] = True,
    verify: bool | float = False,
) -> M: ...
@overload
def fastjit(
    target: Callable[P, R],
    /,
    *,
    name: str | None = None,
    pure: bool = False,
    numerics: Numerics = "eager",
    on_unsupported: Literal["warn", "eager", "error"] = "warn",
    on_miss: Literal["compile", "background"] = "compile",
    max_variants: int = 64,
    dynamic: Dynamic = None,
    cache: bool | Literal["readonly", "memory"] = True,
    verify: bool | float = False,
) -> FastFunction[P, R]: ...
@overload
def fastjit(
    *,
    name: str | None = None,
    pure: bool = False,
    numerics: Numerics = "eager",
    on_unsupported: Literal["warn", "eager", "error"] = "warn",
    on_miss: Literal["compile", "background"] = "compile",
    max_variants: int = 64,
    dynamic: Dynamic = None,
    cache: bool | Literal["readonly", "memory"] = True,
    verify: bool | float = False,
) -> Decorator: ...
def fastjit(target: Any = _LATER, /, **options: Any) -> Any:
    """Compiles a function, method or ``nn.Module`` instance the first time it is called.

    The first call of a kind runs eagerly and is watched; later calls like it (same dtypes, sizes, strides, modes, and
    nothing changed that the first one read) run a few fused kernels. A call that cannot be compiled runs eagerly, as if
    the decorator were not there, and says so once.

    Args:
        target: the function or module instance. A module comes back as itself, with ``_compiled_call_impl`` set;
            copies of it and what is unpickled are plain modules, to be given to fastjit again.
        name: what messages and the cache listing call it; default: module and qualified name.
        pure: promise that the result depends on the arguments only. Nothing else is recorded or checked: globals,
            closures and module state that change later are NOT noticed.
        numerics: "eager" rounds every op to its dtype as eager does; "accurate" keeps float32 between half-precision
            ops and rounds once per stored tensor; "fast" allows contraction and errors up to 4 ULP.
        on_unsupported: what to do the first time the function cannot be compiled: "warn", "eager" (say nothing) or
            "error".
        on_miss: "compile": the first call of a kind returns when its program is ready; "background": no call waits for
            the compiler. The first one returns as soon as it has run, one thread of the process compiles what it did,
            and calls like it run eagerly until that is done. For servers: warmup() waits.
        max_variants: how many signatures to keep (per instance, for methods); for a new one, the least recently used
            goes.
        dynamic: which sizes of tensors are any size from the first call on. None: those that turn out to differ, from
            their second value on; True: all; False: none, ever; a dictionary: these dims of these parameters, as in
            ``{"x": 0, "mask": (0, 1)}``.
        cache: True: memory and disk; "readonly": never write to disk; "memory" or False: no disk.
        verify: True, or a fraction of the hits: each program's first hit, then evenly spaced ones. Such a hit runs the
            program on copies of all it reads, then the function itself, whose result the call returns. If they differ,
            calls like it stay eager, the kernels leave the cache, and a FastJITWarning names a file that shows it.

    Returns:
        A :class:`FastFunction`, or the same module.

    Raises:
        TypeError: for a class, generator or coroutine function, or for an unknown or ill-typed option.
    """
    _check_options(options)
    if target is _LATER:
        return functools.partial(_wrap, options=options)
    return _wrap(target, options)


def _signature() -> inspect.Signature:
    """For help() and notebooks: the options by name."""
    target = inspect.Parameter("target", inspect.Parameter.POSITIONAL_ONLY, default=_LATER)
    options = inspect.signature(typing.get_overloads(fastjit)[-1], eval_str=True)
    return inspect.Signature([target, *options.parameters.values()])


cast(Any, fastjit).__signature__ = _signature()


def of(module: torch.nn.Module | FastFunction[..., Any]) -> FastFunction[..., Any]:
    """The compiled form of a module that fastjit was given, for ``stats()``, ``explain()``, ``inspect()``, ``clear()``.

    What fastjit made of a function is that already. Under ``FASTJIT_DISABLE=1`` modules are left alone; what this gives
    then runs the module and knows nothing of it.

    Raises:
        TypeError: if the module was never given to fastjit.
    """
    if isinstance(module, FastFunction):
        return module
    made = getattr(module, "_compiled_call_impl", None)
    if disabled and made is None and isinstance(module, torch.nn.Module):
        return cast("FastFunction[..., Any]", _make(module._call_impl, {"name": type(module).__qualname__}))
    if not isinstance(made, _C.Function):
        raise TypeError(
            f"this {type(module).__name__} was not given to fastjit, or is a copy: copying and pickling a module leave "
            "out its compiled form; call fastjit(module) first"
        )
    return cast("FastFunction[..., Any]", made)


@contextlib.contextmanager
def stance(name: Literal["default", "eager", "error_on_compile"]) -> Iterator[None]:
    """Within the block: "eager" runs functions as written, "error_on_compile" raises RuntimeError instead of compiling.

    The block counts for the thread or asyncio task that runs it and for the tasks that it starts; other threads have
    their own. ``FASTJIT_DISABLE=1`` makes every call of the process eager, whatever the stance.

    Raises:
        ValueError: for an unknown name.
        TypeError: for what is no text.
    """
    block = _C.enter_stance(name)
    try:
        yield
    finally:
        _C.leave_stance(block)


__all__ = [
    "STAGES",
    "Decorator",
    "FastFunction",
    "FastJITWarning",
    "PassStep",
    "Stage",
    "Stats",
    "UnsupportedError",
    "VariantInfo",
    "fastjit",
    "of",
    "stance",
]
