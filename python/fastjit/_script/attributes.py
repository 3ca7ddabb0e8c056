"""What a graph reads of the module whose method it is."""

from __future__ import annotations

import re
from typing import Any


class Attributes:
    """What a graph reads of its module: paths for the extension, and names of the globals that hold them."""

    def __init__(self, root: Any):
        self.root = root
        self.paths: list[tuple[int, str]] = []
        self._places: dict[tuple[int, str], int] = {}  # in `paths`
        self.names: dict[int, str] = {}  # of paths that lead to no object of a class

    def object_or_name(self, parent: int, attribute: str, is_object: bool) -> tuple[int, str]:
        path = (parent, attribute)
        index = self._places.setdefault(path, len(self.paths))
        if index == len(self.paths):
            self.paths.append(path)
        if not is_object:
            self.names[index] = "self_" + re.sub(r"\W", "_", ".".join(self._full(index)))
        return index, self.names.get(index, "")

    def _full(self, index: int) -> list[str]:
        parent, attribute = self.paths[index]
        return [*(self._full(parent) if parent >= 0 else []), attribute]

    def values(self) -> dict[str, Any]:
        """The attributes as they are now."""
        objects: list[Any] = []
        for parent, attribute in self.paths:
            owner = self.root if parent < 0 else objects[parent]
            objects.append(owner.getattr(attribute))
        return {name: objects[index] for index, name in self.names.items()}
