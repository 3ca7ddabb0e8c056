"""What ``inspect("passes")`` gives."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, repr=False)
class PassStep:
    """The graph after one pass. Printed, it shows the graph only where the pass changed it."""

    name: str
    nodes: int
    ms: float
    graph: str
    changed: bool = True

    def __repr__(self) -> str:
        head = f"{self.name}: {self.nodes} nodes, {self.ms:.3f} ms"
        return f"<{head}>\n{self.graph}" if self.changed else f"<{head}, unchanged>"


def steps_of(rows: list[dict[str, Any]]) -> list[PassStep]:
    before = [None, *(row["graph"] for row in rows)]
    return [PassStep(**row, changed=row["graph"] != old) for row, old in zip(rows, before, strict=False)]
