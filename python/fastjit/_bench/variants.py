"""The ways to run one function: eager, torch.jit.trace, torch.jit.script, torch.compile, fastjit."""

from __future__ import annotations

import copy
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import BenchError

Call = Callable[..., Any]


class Absent(Exception):
    """A variant this machine or function cannot have; the text says why."""


def no_compiles() -> int:
    return 0


def no_text() -> None:
    return None


@dataclass(frozen=True)
class Built:
    """One variant ready to call, with what it can tell about itself."""

    call: Call
    compiles: Callable[[], int] = no_compiles  # compilations so far
    counts: Callable[[], tuple[int, int] | None] = no_text  # kernels and steps of the last call
    note: Callable[[], str | None] = no_text  # what a reader must know: "ran eagerly: …"
    stats: Callable[[], Mapping[str, Any] | None] = no_text  # all that fastjit tells of itself


Builder = Callable[[Call, tuple[Any, ...], dict[str, Any]], Built]


def build_eager(fn: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Built:
    return Built(fn, counts=lambda: _ops_of(fn, args, kwargs))


def build_trace(fn: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Built:
    """torch.jit.trace takes tensors only: other arguments are bound, as a user would."""
    import torch

    if kwargs:
        raise Absent("torch.jit.trace takes no keyword arguments here")
    fixed = list(args)
    places = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]
    if not places:
        raise Absent("torch.jit.trace needs a tensor argument")

    def of_tensors(*given: Any) -> Any:
        whole = list(fixed)
        for place, value in zip(places, given, strict=True):
            whole[place] = value
        return fn(*whole)

    bare = len(places) == len(args)
    # The trace records in-place ops on its example inputs too: it must not get the ones that are timed.
    example = tuple(copy.deepcopy(args[i]) for i in places)
    traced = torch.jit.trace(fn if bare else of_tensors, example, check_trace=False)  # type: ignore[no-untyped-call]
    if bare:
        return Built(traced)
    chosen = ", ".join(f"a[{i}]" for i in places)
    call: Call = eval(f"lambda *a: traced({chosen})", {"traced": traced})
    return Built(call)


def build_script(fn: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Built:
    import torch

    return Built(torch.jit.script(fn))


def build_compile(fn: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Built:
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    torch._dynamo.reset()
    before = metrics.generated_kernel_count
    compiled = torch.compile(fn)

    def counts() -> tuple[int, int] | None:
        kernels = metrics.generated_kernel_count - before
        return (kernels, kernels) if kernels > 0 else None

    return Built(compiled, lambda: int(counters["stats"]["unique_graphs"]), counts)


def read_stats(handle: Any) -> Mapping[str, Any]:
    """`handle.stats()` by name, whether it is a dataclass or a dictionary."""
    found = handle.stats()
    return dataclasses.asdict(found) if dataclasses.is_dataclass(found) and not isinstance(found, type) else found


def build_fastjit(fn: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Built:
    """The only place that makes a fastjit variant."""
    try:
        from fastjit import fastjit, of
    except ImportError as error:
        reason = re.sub(r"\S*/", "", str(error).partition(" (")[0])
        raise Absent(f"fastjit does not import: {reason}") from error
    import torch

    made = fastjit(fn)
    handle = of(made) if isinstance(made, torch.nn.Module) else made

    def note() -> str | None:
        fallbacks = read_stats(handle).get("fallbacks") or {}
        return (
            "ran eagerly: " + ", ".join(f"{why} ({count}x)" for why, count in fallbacks.items()) if fallbacks else None
        )

    def counts() -> tuple[int, int] | None:
        now = read_stats(handle)
        return (int(now["kernels"]), int(now["steps"])) if "kernels" in now and "steps" in now else None

    return Built(made, lambda: int(read_stats(handle).get("compiles", 0)), counts, note, lambda: read_stats(handle))


BUILDERS: dict[str, Builder] = {
    "eager": build_eager,
    "torch.jit.trace": build_trace,
    "torch.jit.script": build_script,
    "torch.compile": build_compile,
    "fastjit": build_fastjit,
}
SHORT_NAMES = {"jit": "torch.jit.trace", "jit.trace": "torch.jit.trace", "trace": "torch.jit.trace",
               "jit.script": "torch.jit.script", "script": "torch.jit.script", "compile": "torch.compile"}  # fmt: skip
OPTIONAL = {"torch.jit.script"}  # left out without a word where it does not compile
BASELINE = "eager"


def parse_names(text: str | None) -> list[str]:
    if text is None:
        return list(BUILDERS)
    names = []
    for word in text.split(","):
        name = SHORT_NAMES.get(word.strip(), word.strip())
        if name not in BUILDERS:
            raise BenchError(f"--variants: no variant '{word.strip()}'; choose from {', '.join(BUILDERS)}")
        if name not in names:
            names.append(name)
    return names if BASELINE in names else [BASELINE, *names]


def own_copy(fn: Call) -> Call:
    """A module is changed by what is done to it, so each variant gets its own."""
    import torch

    return copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else fn


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings of the compilers under test are their own business; fastjit's fallbacks are read from its stats."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(name: str, fn: Call, args: tuple[Any, ...], kwargs: dict[str, Any], *, own: bool = True) -> Built:
    """own=False where nobody else uses `fn`: a module is not copied then."""
    with quiet():
        return BUILDERS[name](own_copy(fn) if own else fn, args, kwargs)


def _ops_of(fn: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Eager's kernels (ops that compute) and steps (all ops) of one call, as its dispatcher sees them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
        kernels = 0
        steps = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Count.steps += 1
            Count.kernels += not func.is_view
            return func(*args, **(kwargs or {}))

    own_args, own_kwargs = copy.deepcopy((args, kwargs))
    with Count():  # type: ignore[no-untyped-call]
        fn(*own_args, **own_kwargs)
    return Count.kernels, Count.steps
