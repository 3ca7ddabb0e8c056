#include "codegen/cuda/emit.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "codegen/cuda/emitter.h"
#include "codegen/cuda/rules.h"

namespace fastjit::codegen {

using ir::DType;
using ir::ReduceKind;
using plan::Code;
using plan::StrideClass;

namespace {

std::string float_literal(double value, DType type) {
  const bool single = type == DType::F32;
  if (std::isnan(value)) return single ? "__uint_as_float(0x7fc00000u)" : "__longlong_as_double(0x7ff8000000000000ll)";
  if (std::isinf(value)) {
    const char* sign = value < 0 ? "-" : "";
    return sign + std::string(single ? "__uint_as_float(0x7f800000u)" : "__longlong_as_double(0x7ff0000000000000ll)");
  }
  char text[40];
  std::snprintf(text, sizeof text, single ? "%.9g" : "%.17g", value);
  std::string out = text;
  if (out.find_first_of(".e") == out.npos) out += ".0";
  return out + (single ? "f" : "");
}

std::string literal(const plan::Instr& in) {
  if (ir::is_float(in.dtype)) return float_literal(std::bit_cast<double>(in.imm), in.dtype);
  const auto value = static_cast<int64_t>(in.imm);
  if (in.dtype == DType::Bool) return value ? "true" : "false";
  if (value == INT64_MIN) return "(-9223372036854775807ll - 1)";
  return "(" + std::string(cuda_type(in.dtype)) + ")" + number(value) + "ll";
}

/// The accumulator of a reduction over `from`.
std::string accumulator(ReduceKind kind, DType from) {
  const std::string type(cuda_type(from)), wide = ir::is_float(from) ? "double" : type;
  const bool integers = !ir::is_float(from);
  switch (kind) {
    case ReduceKind::Dot:
      return "FjSum<" + type + ">";
    case ReduceKind::Sum:
      return (from == DType::F64 ? "FjSumExact<" : integers ? "FjSumIntegers<" : "FjSum<") + wide + ">";
    case ReduceKind::Prod:
      return (integers ? "FjProdIntegers<" : "FjProd<") + wide + ">";
    case ReduceKind::Max:
      return "FjMost<" + type + ", false>";
    case ReduceKind::Min:
      return "FjMost<" + type + ", true>";
    case ReduceKind::ArgMax:
      return "FjBest<" + type + ", false>";
    case ReduceKind::ArgMin:
      return "FjBest<" + type + ", true>";
    case ReduceKind::Any:
      return "FjAny<bool>";
    case ReduceKind::All:
      return "FjAll<bool>";
  }
  throw std::runtime_error("codegen: unknown reduction");
}

/// What every number of the type is at least (`low`: at most).
std::string extreme(DType type, bool low) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (ir::is_float(type)) return float_literal(low ? infinity : -infinity, type);
  if (type == DType::Bool) return low ? "true" : "false";
  if (type == DType::U8) return low ? "255" : "0";
  const int bits = static_cast<int>(8 * ir::size_of(type));
  const std::string most = number(INT64_MAX >> (64 - bits)) + "ll";
  return "(" + std::string(cuda_type(type)) + ")" + (low ? most : "(-" + most + " - 1)");
}

/// The argument of the accumulator's start().
std::string start_of(ReduceKind kind, DType from) {
  return kind == ReduceKind::Max || kind == ReduceKind::Min ? extreme(from, kind == ReduceKind::Min) : "";
}

}  // namespace

std::string CudaEmitter::source() {
  body();
  std::string out = "// " + heading() + "\n";
  out += cuda_helpers(body_);
  if (out.back() == '\n' && out[out.size() - 2] != '\n') out += "\n";
  out += parameters() + "\n" + shared_tiles();
  const bool is_twice = plan_.vector > 1;
  if (is_twice) out += "template <bool whole>\n__device__ inline void body(const Params& p) {\n" + body_ + "}\n\n";
  out += "extern \"C\" __global__ void __launch_bounds__(" + number(plan::kMostThreads) + ")\n" + plan::name(plan_) +
         "(const Params p) {\n" + (is_twice ? choice() : body_) + "}\n";
  return out;
}

// Vectors that begin at multiples of their size are loaded and stored whole.
std::string CudaEmitter::choice() const {
  std::string places;
  for (size_t i = 0; i < plan_.operands.size(); ++i)
    if (plan_.operands[i].strides.back() == StrideClass::Unit || plan_.is_transposed(i))
      places += (places.empty() ? "" : " | ") + std::string("(unsigned long long)p.") + operand(i);
  if (places.empty()) return "  body<true>(p);\n";
  return "  if ((" + places + ") % 16 == 0)\n    body<true>(p);\n  else\n    body<false>(p);\n";
}

std::string CudaEmitter::heading() const {
  const std::string dims = number(kept()) + " kept and " + number(rank() - kept()) + " reduced dims";
  if (plan_.tile > 0) return "Pointwise over " + number(rank()) + " dims: a block per tile.";
  if (!plan_.is_row_kernel()) return "Pointwise over " + number(rank()) + " dims: a thread per element.";
  return "Rows over " + dims + (blocks_ ? ": a block per row." : ": a thread per row.");
}

std::string CudaEmitter::parameters() const {
  std::string out = "struct Params {\n";
  for (size_t i = 0; i < plan_.operands.size(); ++i) {
    const plan::Operand& op = plan_.operands[i];
    out += std::string("  ") + (op.output ? "" : "const ") + std::string(cuda_memory_type(op.dtype)) + "* " +
           operand(i) + ";  // " + std::string(ir::text(op.dtype)) + "\n";
  }
  for (int d = 0; d < rank(); ++d) out += "  long long n" + number(d) + ";\n";
  for (int d = 0; d < rank(); ++d)
    if (plan::is_divided(plan_, d)) out += "  FjDivisor by" + number(d) + ";  // n" + number(d) + "\n";
  for (size_t i = 0; i < plan_.operands.size(); ++i)
    for (int d = 0; d < rank(); ++d)
      if (plan_.operands[i].strides[static_cast<size_t>(d)] == StrideClass::Any)
        out += "  long long " + operand(i) + "_stride" + number(d) + ";\n";
  for (size_t i = 0; i < plan_.operands.size(); ++i)
    if (plan_.operands[i].gathered) out += "  long long " + operand(i) + "_step;\n";
  for (size_t i = 0; i < plan_.scalars.size(); ++i)
    out += "  " + std::string(cuda_type(plan_.scalars[i])) + " scalar" + number(static_cast<int64_t>(i)) + ";\n";
  if (!plan_.scratch.empty()) out += "  char* scratch;\n  long long scratch_stride;\n";
  return out + "};\n";
}

// An element of a transposed operand is taken from its tile.
std::string CudaEmitter::element(size_t i) const {
  if (!plan_.is_transposed(i)) return memory(i);
  return in_tile(i, side_by_side() + (in_vector_ ? " + v" : ""), "point / " + across_tile());
}

std::string CudaEmitter::memory(size_t i, const std::string& gathered_at) const {
  std::string at = gathered_at.empty() ? "" : gathered_at + " * p." + operand(i) + "_step";
  for (int d = 0; d < rank(); ++d) {
    const StrideClass stride = plan_.operands[i].strides[static_cast<size_t>(d)];
    if (stride == StrideClass::Zero) continue;
    at += (at.empty() ? "" : " + ") + index(d);
    if (stride == StrideClass::Two) at += " * 2";
    if (stride == StrideClass::Any) at += " * p." + operand(i) + "_stride" + number(d);
  }
  return "p." + operand(i) + "[" + (at.empty() ? "0" : at) + "]";
}

std::string CudaEmitter::scratch(uint64_t slot, const std::string& at) const {
  const std::string type(cuda_memory_type(plan_.scratch[slot]));
  return "((" + type + "*)(scratch + " + number(static_cast<int64_t>(slot)) + "ll * p.scratch_stride))[" + at + "]";
}

// Whether the value changes along a reduced dim: only then is it computed inside the reduced loop.
bool CudaEmitter::moves(const Instr& in) const {
  const int count = in.code == Code::Compute || in.code == Code::Gather ? arity(in) : 0;
  bool result = in.code == Code::Recall || (in.code == Code::Index && static_cast<int>(in.imm) >= kept());
  for (int d = kept(); is_load(in) && d < rank(); ++d)
    result |= plan_.operands[in.imm].strides[static_cast<size_t>(d)] != StrideClass::Zero;
  for (int i = 0; i < count; ++i) result |= moves_[in.args[i]];
  return result;
}

std::string CudaEmitter::value(const Instr& in) const {
  const std::string args[3] = {names_[in.args[0]], names_[in.args[1]], names_[in.args[2]]};
  switch (in.code) {
    case Code::Load:
      return element(in.imm) + (in.dtype == DType::Bool ? " != 0" : "");
    case Code::Gather:
      return memory(in.imm, args[0]) + (in.dtype == DType::Bool ? " != 0" : "");
    case Code::Recall:
      return scratch(in.imm) + (in.dtype == DType::Bool ? " != 0" : "");
    case Code::Scalar:
      return "p.scalar" + number(static_cast<int64_t>(in.imm));
    case Code::Const:
      return literal(in);
    case Code::Index:
      return index(static_cast<int>(in.imm));
    default:
      break;
  }
  if (in.op == ir::Op::Convert) return cuda_convert(args[0], plan_.code[in.args[0]].dtype, in.dtype);
  return cuda_expression(in.op, plan_.code[in.args[in.op == ir::Op::Where ? 2 : 0]].dtype, args);
}

std::string CudaEmitter::name_of(uint32_t id) const {
  const Instr& in = plan_.code[id];
  const std::string tail = "_" + number(id);
  switch (in.code) {
    case Code::Load:
    case Code::Gather:
      return "x" + tail;
    case Code::Recall:
      return "kept" + tail;
    case Code::Const:
      return "c" + tail;
    case Code::Scalar:
      return "s" + tail;
    case Code::Index:
      return "index" + tail;
    case Code::Reduce:
      return std::string(ir::text(in.kind)) + tail;
    default:
      return std::string(ir::text(in.op)) + tail;
  }
}

void CudaEmitter::define(uint32_t id) {
  const Instr& in = plan_.code[id];
  const std::string expression = value(in);
  names_[id] = name_of(id);
  moves_[id] = moves(in);
  line("const " + std::string(cuda_type(in.dtype)) + " " + names_[id] + " = " + expression + ";");
}

void CudaEmitter::body() {
  depth_ = 1;
  const std::string type(index_type()), points = product(0, kept());
  if (!plan_.scratch.empty())
    line("char* const scratch = fj_scratch(p.scratch, " + number(static_cast<int64_t>(plan_.scratch.size())) +
         "ll * p.scratch_stride);");
  if (blocks_) {
    open("for (" + type + " row = blockIdx.x; row < " + points + "; row += gridDim.x)");
    decode("row", 0, kept());
    phases();
    close();
  } else if (plan_.is_row_kernel()) {
    line("const " + type + " points = " + points + ", step = (" + type + ")gridDim.x * blockDim.x;");
    open("for (" + type + " point = (" + type +
         ")blockIdx.x * blockDim.x + threadIdx.x; point < points; point += step)");
    decode("point", 0, kept());
    phases();
    close();
  } else if (plan_.tile > 0) {
    tiles();
  } else {
    line("const " + type + " first = (" + type + ")blockIdx.x * blockDim.x * " + number(points_) + " + threadIdx.x;");
    line("const " + type + " step = (" + type + ")gridDim.x * blockDim.x * " + number(points_) + ";");
    together({"point", points, "first", "step", "blockDim.x", 0, kept()}, plan_.phases.front().row);
  }
}

void CudaEmitter::phases() {
  for (const plan::Phase& phase : plan_.phases) {
    if (!phase.elem.empty()) reduced_loop(phase);
    row_values(phase);
  }
}

// One instruction inside a loop over points or over reduced indices.
void CudaEmitter::run(uint32_t id) {
  const Instr& in = plan_.code[id];
  if (is_gathered(in))
    line("to_" + number(id) + ".at[v] = " + names_[in.args[0]] + ";");
  else if (in.code == Code::Store)
    store(in);
  else if (in.code == Code::Keep)
    line(scratch(in.imm) + " = " + names_[in.args[0]] + ";");
  else if (in.code == Code::Reduce)
    line("acc_" + number(id) + ".add(" + names_[in.args[0]] + (arity(in) == 2 ? " * " + names_[in.args[1]] : "") +
         (plan_.vector > 1 ? ", r * " + number(plan_.vector) + " + v);" : ", r);"));
  else
    define(id);
}

// Values that no reduced index changes stand before the loop: later phases may use them.
void CudaEmitter::reduced_loop(const plan::Phase& phase) {
  std::vector<uint32_t> inside, reductions;
  for (uint32_t id : phase.elem) {
    const Instr& in = plan_.code[id];
    const bool effect = in.code == Code::Store || in.code == Code::Keep || in.code == Code::Reduce;
    if (in.code == Code::Reduce) reductions.push_back(id);
    if (effect || moves(in)) {
      inside.push_back(id);
      moves_[id] = !effect;
    } else {
      define(id);
    }
  }
  for (uint32_t id : reductions) {
    const std::string state = "acc_" + number(id);
    const DType from = plan_.code[plan_.code[id].args[0]].dtype;
    line(accumulator(plan_.code[id].kind, from) + " " + state + ";");
    line(state + ".start(" + start_of(plan_.code[id].kind, from) + ");");
  }
  open("");
  together({"r", product(kept(), rank()), blocks_ ? "threadIdx.x" : "0",
            (blocks_ ? "blockDim.x * " : "") + number(points_), blocks_ ? "blockDim.x" : "1", kept(), rank()},
           inside);
  close();
  for (uint32_t id : reductions) finish(id);
}

void CudaEmitter::finish(uint32_t id) {
  const Instr& in = plan_.code[id];
  const std::string state = "acc_" + number(id);
  const bool index = ir::gives_position(in.kind);
  if (blocks_) line("fj_block_merge(" + state + ");");
  names_[id] = name_of(id);
  const std::string type(cuda_type(in.dtype));
  line("const " + type + " " + names_[id] + " = (" + type + ")" + state + (index ? ".index();" : ".result();"));
}

// Every thread of a block computes them; one stores, when no other still reads what it overwrites.
void CudaEmitter::row_values(const plan::Phase& phase) {
  bool waited = !blocks_;
  for (uint32_t id : phase.row) {
    const Instr& in = plan_.code[id];
    if (in.code != Code::Store) {
      define(id);
      continue;
    }
    if (!waited) line("__syncthreads();");
    waited = true;
    if (blocks_) body_ += std::string(static_cast<size_t>(2 * depth_), ' ') + "if (threadIdx.x == 0)\n  ";
    store(in);
  }
}

std::string cuda_source(const plan::KernelPlan& plan) { return CudaEmitter(plan).source(); }

}  // namespace fastjit::codegen
