"""Functions and modules of TorchScript as functions that fastjit can record.

The graph becomes Python code that calls torch's operators: one function, or with control that depends on data several
and one that calls them. Where that cannot be, the scripted object itself runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastjit._script import axes, build
from fastjit._script.build import name_of
from fastjit._script.driven import Driven
from fastjit._script.driver import Driver
from fastjit._script.items import Items
from fastjit._script.nodes import Unknown

# The target, its options, and what the extension's function is made of -> the function.
Make = Callable[[Any, dict[str, Any], dict[str, Any]], Any]


def compiled(target: Any, options: dict[str, Any], make: Make) -> Any:
    """What fastjit returns for the target."""
    options = {**options, "name": options.get("name") or name_of(target)}
    try:
        scripted = build.Scripted(target)
        items = Items(scripted.graph)
        if items.control:
            return _driven(scripted, items, options, make)
        function, writer = build.whole(scripted, axes.rewrite)
    except Unknown as problem:
        return make(target, options, {"refused": f"its TorchScript has {problem}"})
    except (AttributeError, RuntimeError) as error:  # no forward, or a module of another compilation unit
        reason = f"its TorchScript cannot be read ({str(error).partition(chr(10))[0]})"
        return make(target, options, {"refused": reason})
    return make(target, options, {"callable": function, "original": target, **_slots(build.slots_of(writer))})


def _slots(slots: Any) -> dict[str, Any]:
    return {"slots": slots} if slots else {}


def _driven(scripted: build.Scripted, items: Items, options: dict[str, Any], make: Make) -> Any:
    count = 0

    def make_part(function: Callable[..., Any], slots: Any) -> Any:
        nonlocal count
        count += 1
        own = {key: value for key, value in options.items() if key != "dynamic" or not isinstance(value, dict)}
        return make(function, {**own, "name": f"{options['name']}, part {count}"}, _slots(slots))

    driver = Driver(scripted, items, make_part)
    function = driver.function()
    return Driven(scripted.original, function, driver.parts, options)


__all__ = ["compiled", "name_of"]
