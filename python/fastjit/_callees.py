"""What each C function of torch does, as far as a recording cares.

The read observer identifies C code by pointer. An *operator* is seen by the operator recorder when it runs; a *pure*
function looks at metadata, modes or its arguments only, and all of these are guarded. Everything else is unknown, and a
call of it makes a recording unsound. Operators are generated from torch's own namespaces; what reads or writes data
behind the dispatcher's back is taken out by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

# Read a tensor's contents into Python, or touch storage, autograd state or the generator without an operator call.
_BEHIND_THE_DISPATCHER = frozenset(
    """
    tolist numpy __array__ __bool__ __float__ __int__ __index__ __complex__ __dlpack__ data_ptr storage
    untyped_storage _typed_storage apply_ map_ map2_ set_ set_data resize_ resize_as_ share_memory_ requires_grad_
    retain_grad backward register_hook register_post_accumulate_grad_hook _make_subclass _make_wrapper_subclass
    as_subclass __setstate__ __reduce_ex__ __deepcopy__ tensor as_tensor asarray from_numpy frombuffer from_file
    new_tensor new legacy_new manual_seed seed initial_seed get_rng_state set_rng_state is_set_to to_dlpack
    from_dlpack _to_dlpack swap_tensors set_default_dtype set_num_threads get_num_threads compile load save
    __contains__ detach_ _fw_grad _set_fw_grad storage_offset _is_view is_pinned __hash__
    """.split()
)

# Metadata, modes and small helpers of torch. Everything they look at is part of the call key, the guards or the modes.
_PURE_TENSOR_METHODS = """
    size dim ndimension numel nelement stride element_size is_contiguous is_complex is_floating_point
    is_signed is_inference is_conj is_neg is_same_size get_device has_names __len__ type is_distributed
""".split()
_PURE_FUNCTIONS = """
    is_tensor is_storage is_floating_point is_complex is_signed numel is_grad_enabled is_inference_mode_enabled
    get_default_dtype get_default_device is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype
    get_autocast_cpu_dtype is_autocast_cache_enabled promote_types result_type can_cast
    are_deterministic_algorithms_enabled broadcast_shapes is_conj is_neg is_inference
""".split()
_PURE_PRIVATE = """
    _get_tracing_state _is_torch_function_enabled _has_torch_function _has_torch_function_unary
    _has_torch_function_variadic _is_tracing _get_cpp_backtrace _is_any_autocast_enabled
    _is_torch_function_mode_enabled _log_api_usage_once _is_fwd_grad_enabled _get_deterministic_algorithms
    _len_torch_dispatch_stack _functorch _len_torch_function_stack _get_default_device
""".split()


_OF_EVERY_OBJECT = frozenset(
    """
    __class__ __init__ __new__ __init_subclass__ __subclasshook__ __dir__ __getattribute__ __setattr__ __delattr__
    __reduce__ __sizeof__ __str__ __repr__ __format__
    """.split()
)

# Methods whose name is no operator's, but which only call operators.
_CONVERSIONS = "float double half bfloat16 int long short char byte bool to cpu".split()


def _callables(namespace: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(namespace):
        value = getattr(namespace, name, None)
        if callable(value) and not isinstance(value, type):
            yield name, value


def _operator_names() -> frozenset[str]:
    """Base names of every registered aten operator, in-place forms included."""
    names = set()
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        if namespace == "aten":
            names.add(rest.partition(".")[0])
    return frozenset(names)


# Which kernels scaled_dot_product_attention may choose: a setting of the process, with a priority.
_ATTENTION_KERNELS = "flash math mem_efficient cudnn overrideable".split()


def callees() -> tuple[list[Callable[..., Any]], ...]:
    """The (operators, pure) callables of the installed torch, the Python functions that call nothing but operators, and
    the C functions that read or change the choice of kernels for attention.

    torch.ops.x.y and its overloads are such callers: each holds a C function of its own.
    """
    known = _operator_names()
    operators: list[Callable[..., Any]] = []
    namespaces = [torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase]
    namespaces += [getattr(torch._C, name) for name in ("_special", "_linalg", "_fft") if hasattr(torch._C, name)]
    for namespace in namespaces:
        for name, value in _callables(namespace):
            base = name.removeprefix("special_").removeprefix("linalg_").removeprefix("fft_")
            dunder = name.startswith("__") and name.endswith("__")
            if name in _BEHIND_THE_DISPATCHER or base in _BEHIND_THE_DISPATCHER:
                continue
            if name in known or (dunder and name not in _OF_EVERY_OBJECT):
                operators.append(value)
    operators += [getattr(torch._C.TensorBase, name) for name in _CONVERSIONS]
    pure: list[Callable[..., Any]] = []
    for names, namespace in (
        (_PURE_TENSOR_METHODS, torch._C.TensorBase),
        (_PURE_FUNCTIONS, torch),
        (_PURE_PRIVATE, torch._C),
    ):
        pure += [getattr(namespace, name) for name in names if callable(getattr(namespace, name, None))]
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        pure.append(getattr(torch.overrides, name))
    pure += [torch.Size, torch.device]
    callers: list[Callable[..., Any]] = [
        kind.__call__
        for name in ("OpOverload", "OpOverloadPacket", "TorchBindOpOverload")
        if (kind := getattr(torch._ops, name, None)) is not None
    ]
    names = ["_get_sdp_priority_order", "_set_sdp_priority_order"]
    names += [
        form.format(kernel) for kernel in _ATTENTION_KERNELS for form in ("_get_{}_sdp_enabled", "_set_sdp_use_{}")
    ]
    attention = [getattr(torch._C, name) for name in names if hasattr(torch._C, name)]
    return operators, pure, callers, attention


def see_custom_operators() -> None:
    """From torch 2.14 on, custom operators call their Python kernels past the dispatcher, so that nothing tells of the
    operator itself. Each is put back to the dispatcher for good, as in 2.13: what recordings read of it stays true."""
    from torch._library.custom_ops import OPDEFS

    for definition in list(OPDEFS.values()):
        definition._opoverload._enable_pyobj_dispatch(False)


def before_recording() -> Callable[[], None] | None:
    """What to call before each recording, if anything."""
    return see_custom_operators if hasattr(torch._ops.OpOverload, "_enable_pyobj_dispatch") else None
