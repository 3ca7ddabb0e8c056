"""Small training scripts: `name -> Script`. Each is played in eager and with what it gives to fastjit."""

from __future__ import annotations

# Each of these adds its own.
import training_autograd  # noqa: F401
import training_layers  # noqa: F401
import training_models  # noqa: F401
from training_base import SCRIPTS, Script, played
from training_optimizers import OPTIMIZERS, whole_step_with

__all__ = ["OPTIMIZERS", "SCRIPTS", "Script", "played", "whole_step_with"]
