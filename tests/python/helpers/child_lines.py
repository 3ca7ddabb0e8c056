"""What a child process prints, while it runs."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator


def lines_of(process: subprocess.Popen[str], limit_s: float) -> Iterator[str]:
    """Lines as they come; ends where the process does, and raises queue.Empty where a line takes longer than that."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := lines.get(timeout=limit_s)) is not None:
        yield line
