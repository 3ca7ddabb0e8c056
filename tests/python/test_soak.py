"""2,000 functions compiled and dropped leave nothing behind (`make soak`: 100,000)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[1] / "soak" / "soak.py"


def test_2000_functions_leave_nothing_behind(tmp_path):
    env = {**os.environ, "FASTJIT_CACHE_DIR": str(tmp_path), "FASTJIT_CACHE_MAX_ENTRIES": "64"}
    command = [sys.executable, str(SOAK), "--warmup", "800", "--cycles", "1200"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["over"] == []
