"""The tests have a cache folder of their own; nothing touches the user's."""

from __future__ import annotations

import os
import tempfile

# Before anything imports fastjit: the engine reads the folder once.
os.environ.setdefault("FASTJIT_CACHE_DIR", tempfile.mkdtemp(prefix="fastjit-gpu-tests-"))
