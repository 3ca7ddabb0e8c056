#pragma once
// Pointwise ops as CUDA C++ expressions.
#include <string>
#include <string_view>

#include "ir/dtype.h"
#include "ir/op.h"

namespace fastjit::codegen {

/// The C++ type of a value in a register (halves: their bits), and of an element in memory (Bool: a byte).
std::string_view cuda_type(ir::DType type);
std::string_view cuda_memory_type(ir::DType type);

/// The expression of a pointwise op. `type` is the dtype of the operands (of the last one for Where), `args` their
/// names. Throws std::runtime_error where the op takes no such type.
std::string cuda_expression(ir::Op op, ir::DType type, const std::string args[3]);

/// torch's .to(dtype) on a GPU: a float that does not fit an integer type gives what the device's conversion gives.
std::string cuda_convert(const std::string& value, ir::DType from, ir::DType to);

/// The prelude's helpers that `body` uses, in order.
std::string cuda_helpers(std::string_view body);

}  // namespace fastjit::codegen
