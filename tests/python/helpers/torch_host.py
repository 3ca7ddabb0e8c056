"""What the read observer alone is told of torch, in the place of the dispatch."""

from __future__ import annotations

from typing import Any

import torch

SELVES = {torch._C._VariableFunctions, torch._C._nn, torch._C._linalg, torch._C._special}
OWNERS = {torch._C.TensorBase, torch.Tensor}


class TorchHost:
    """Operators are the members of torch's own operator namespaces and of TensorBase."""

    tensor_types = (torch.Tensor, torch.nn.Parameter)
    module_types = (torch.nn.Module,)

    @staticmethod
    def classify(callee: Any) -> str:
        owner, bound = getattr(callee, "__objclass__", None), getattr(callee, "__self__", None)
        variable_function = getattr(callee, "__qualname__", "").startswith("_VariableFunctionsClass.")
        is_operator = owner in OWNERS or isinstance(bound, torch.Tensor) or variable_function
        return "operator" if is_operator or any(bound is one for one in SELVES) else "unknown"
