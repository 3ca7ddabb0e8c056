"""What fastjit returns for TorchScript whose control depends on data: programs with decisions between them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from fastjit._function import FastFunction
from fastjit._tables import several

_SUMMED = (
    "compiles memory_hits disk_hits kernels steps variants operators compile_ms record_ms verified mismatches".split()
)


class Driven(FastFunction[..., Any]):
    """Calls `run`, which calls the parts; a call is a hit where each part's were."""

    def __init__(self, original: Any, run: Callable[..., Any], parts: list[Any], options: dict[str, Any]):
        self.__wrapped__, self._run, self._options = original, run, options
        self._all_parts = {part._name: part for part in parts}
        self._calls = self._hits = 0
        self.__name__, self.__qualname__ = run.__name__, run.__qualname__
        self._name = options["name"]
        self.__signature__ = inspect.signature(run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = [part._unserved() for part in self._all_parts.values()]
        try:
            result = self._run(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ and error.__traceback__.tb_next:
                raise
            return self.__wrapped__(*args, **kwargs)  # the arguments do not fit; it has words of its own for that
        self._calls += 1
        self._hits += before == [part._unserved() for part in self._all_parts.values()]
        return result

    def __get__(self, instance: Any, owner: Any = None, /) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        from fastjit.api import _rebuild

        return _rebuild, (self.__wrapped__, self._options)

    def __repr__(self) -> str:
        return f"<fastjit function {self._name}>"

    def parts(self) -> dict[str, FastFunction[..., Any]]:
        return dict(self._all_parts)

    def _stats(self) -> dict[str, Any]:
        rows = [part._stats() for part in self._all_parts.values()]
        out: dict[str, Any] = {name: sum(row[name] for row in rows) for name in _SUMMED}
        fallbacks: dict[str, int] = {}
        for row in rows:
            for reason, calls in row["fallbacks"].items():
                fallbacks[reason] = fallbacks.get(reason, 0) + calls
        return {
            **out,
            "calls": self._calls,
            "hits": self._hits,
            "misses": self._calls - self._hits,
            "fallbacks": fallbacks,
        }

    def _variants(self) -> list[dict[str, Any]]:
        return [row for part in self._all_parts.values() for row in part._variants()]

    def _explain(self, *args: Any, **kwargs: Any) -> str:
        if not self._all_parts:
            return "control that depends on data, and nothing that a program would compute"
        count = several(len(self._all_parts), "part")
        return f"control that depends on data, between {count}, each a program of its own: see parts()"

    def _inspect(self, stage: str, index: int) -> Any:
        for part in self._all_parts.values():
            own = sum(1 for row in part._variants() if not row["reason"])
            if index < own:
                return part._inspect(stage, index)
            index -= own
        return None

    def _clear(self) -> None:
        for part in self._all_parts.values():
            part._clear()

    def _expect(self) -> None:
        for part in self._all_parts.values():
            part._expect()

    def _wait(self) -> None:
        for part in self._all_parts.values():
            part._wait()

    def export(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("its control depends on values of tensors; export a function without it")
