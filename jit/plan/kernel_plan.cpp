// Text and cost of a kernel plan. The text is part of the kernel key: whatever codegen reads must stand in it.
#include "plan/kernel_plan.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <span>

#include "ir/strides.h"
#include "support/mix.h"

namespace fastjit::plan {
namespace {

std::string value(uint32_t id) { return "%" + std::to_string(id); }

std::string hex(uint64_t bits) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "0x%" PRIx64, bits);
  return buffer;
}

// A constant as a person reads it, then its exact bits.
std::string constant(const Instr& in) {
  char buffer[64];
  if (ir::is_floating(in.dtype)) {
    double number;
    static_assert(sizeof number == sizeof in.imm);
    __builtin_memcpy(&number, &in.imm, sizeof number);
    std::snprintf(buffer, sizeof buffer, "%.9g", number);
  } else {
    std::snprintf(buffer, sizeof buffer, "%" PRId64, static_cast<int64_t>(in.imm));
  }
  return std::string(buffer) + " (" + hex(in.imm) + ")";
}

std::string line(uint32_t id, const Instr& in) {
  const std::string head = value(id) + " = ";
  const std::string type = ":" + std::string(ir::text(in.dtype));
  switch (in.code) {
    case Code::Load:
      return head + "load #" + std::to_string(in.imm) + type;
    case Code::Gather:
      return head + "gather #" + std::to_string(in.imm) + ", " + value(in.args[0]) + type;
    case Code::Scalar:
      return head + "scalar $" + std::to_string(in.imm) + type;
    case Code::Const:
      return head + "const " + constant(in) + type;
    case Code::Index:
      return head + "index d" + std::to_string(in.imm) + type;
    case Code::Recall:
      return head + "recall k" + std::to_string(in.imm) + type;
    case Code::Reduce:
      return head + "reduce." + std::string(ir::text(in.kind)) + " " + value(in.args[0]) +
             (arity(in) == 2 ? ", " + value(in.args[1]) : "") + type;
    case Code::Store:
      return "store #" + std::to_string(in.imm) + ", " + value(in.args[0]) + type;
    case Code::Keep:
      return "keep k" + std::to_string(in.imm) + ", " + value(in.args[0]) + type;
    case Code::Compute:
      break;
  }
  std::string out = head + (in.shared ? "call " : "") + std::string(ir::text(in.op));
  for (int i = 0; i < ir::info(in.op).arity && i < 3; ++i) out += (i ? ", " : " ") + value(in.args[i]);
  return out + type;
}

void print_list(std::string& out, const KernelPlan& plan, const char* name, const std::vector<uint32_t>& list) {
  if (list.empty()) return;
  out += std::string("  ") + name + "\n";
  for (uint32_t id : list) out += "    " + (id < plan.code.size() ? line(id, plan.code[id]) : value(id) + " ?") + "\n";
}

}  // namespace

int KernelPlan::kept() const {
  int count = 0;
  for (DimKind kind : dims) count += kind == DimKind::Kept;
  return count;
}

bool KernelPlan::has_gathers() const { return std::ranges::any_of(operands, &Operand::gathered); }

size_t KernelPlan::step_of(size_t operand) const {
  const auto before = std::span(operands).first(operand);
  return operands.size() * dims.size() + static_cast<size_t>(std::ranges::count(before, true, &Operand::gathered));
}

bool KernelPlan::is_transposed(size_t operand) const {
  return tile > 0 && operands[operand].strides[static_cast<size_t>(vec_dim)] == StrideClass::Any &&
         operands[operand].strides[static_cast<size_t>(tile_dim)] == StrideClass::Unit;
}

int64_t KernelPlan::points() const {
  int64_t points = 1;
  for (int d = 0; d < kept(); ++d) points *= sizes[static_cast<size_t>(d)];
  return points;
}

int64_t KernelPlan::extent(size_t operand) const {
  return ir::extent(std::span(sizes), std::span(strides).subspan(operand * sizes.size(), sizes.size()));
}

int64_t unit_count(const KernelPlan& plan, const int64_t* sizes, int64_t block) {
  if (plan.is_small()) return 1;
  int64_t units = 1;
  for (int d = 0; d < plan.kept(); ++d) {
    const bool is_blocked = plan.vec_is_kept() && (d == plan.vec_dim || (plan.tile > 0 && d == plan.tile_dim));
    const int64_t together = is_blocked ? block : d == plan.row_dim() ? plan.rows : 1;
    units *= sizes[d] > 0 ? (sizes[d] + together - 1) / together : 0;
  }
  return units;
}

uint64_t hash_of(const KernelPlan& plan) {
  using support::mix;
  uint64_t hash = mix(plan.code.size(), static_cast<uint64_t>(plan.vec_dim) << 8 | plan.rows);
  for (const Instr& in : plan.code) {
    hash = mix(hash, static_cast<uint64_t>(in.code) << 24 | static_cast<uint64_t>(in.dtype) << 16 |
                         static_cast<uint64_t>(in.op) << 8 | static_cast<uint64_t>(in.kind));
    for (const uint32_t arg : in.args) hash = mix(hash, arg);
    hash = mix(hash, in.imm);
  }
  for (const Operand& operand : plan.operands) {
    hash = mix(hash, operand.gathered);
    for (const StrideClass stride : operand.strides) hash = mix(hash, static_cast<uint64_t>(stride));
  }
  for (const Carry& carry : plan.carries) hash = mix(mix(hash, carry.from), carry.to);
  for (const auto* list : {&plan.sizes, &plan.strides})
    for (const int64_t number : *list) hash = mix(hash, static_cast<uint64_t>(number));
  return hash;
}

std::string text(const KernelPlan& plan) {
  std::string out = "kernel dims [";
  for (DimKind kind : plan.dims) out += "krt"[static_cast<size_t>(kind)];
  out += "] vec d" + std::to_string(plan.vec_dim) + " lanes " + std::to_string(plan.lanes) + " unroll " +
         std::to_string(plan.unroll) + (plan.rows > 1 ? " rows " + std::to_string(plan.rows) : "") + " numerics " +
         std::string(ir::text(plan.numerics));
  if (plan.tile_dim >= 0 || plan.tile > 0)
    out += " tile d" + std::to_string(plan.tile_dim) + " of " + std::to_string(plan.tile);
  const auto list = [](std::span<const int64_t> numbers) {
    std::string text;
    for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
    return text;
  };
  if (plan.is_small()) out += " small [" + list(plan.sizes) + "] sums " + std::to_string(plan.sums);
  if (plan.vector > 1) out += " vector " + std::to_string(plan.vector);
  if (plan.is_wide) out += " wide";
  out += "\n";
  for (size_t i = 0; i < plan.operands.size(); ++i) {
    const Operand& operand = plan.operands[i];
    out += "operand #" + std::to_string(i) + " " + std::string(ir::text(operand.dtype)) +
           (operand.output ? " out [" : " in [");
    for (StrideClass stride : operand.strides) out += "01*2p-"[static_cast<size_t>(stride)];
    out += operand.listed ? "] listed" : operand.gathered ? "] gathered" : "]";
    if (plan.is_small()) {
      const size_t rank = plan.sizes.size();
      out += " strides [" + list(std::span(plan.strides).subspan(i * rank, rank)) + "]";
    }
    out += "\n";
  }
  for (size_t i = 0; i < plan.scalars.size(); ++i)
    out += "scalar $" + std::to_string(i) + " " + std::string(ir::text(plan.scalars[i])) + "\n";
  for (size_t i = 0; i < plan.scratch.size(); ++i)
    out += "slot k" + std::to_string(i) + " " + std::string(ir::text(plan.scratch[i])) + "\n";
  for (const Carry& carry : plan.carries)
    out += "carry #" + std::to_string(carry.to) +
           (carry.from == Carry::kNone ? "" : " to #" + std::to_string(carry.from)) + "\n";
  for (size_t i = 0; i < plan.phases.size(); ++i) {
    out += "phase " + std::to_string(i) + "\n";
    print_list(out, plan, "elem", plan.phases[i].elem);
    print_list(out, plan, "row", plan.phases[i].row);
  }
  return out;
}

std::string name(const KernelPlan& plan) {
  constexpr size_t kMostWords = 6;
  std::vector<std::string_view> words;
  bool converts = false, loads = false;
  const auto see = [&](uint32_t id) {
    const Instr& in = plan.code[id];
    loads = loads || in.code == Code::Load;
    converts = converts || (in.code == Code::Compute && in.op == ir::Op::Convert);
    const bool has_op = in.code == Code::Compute && in.op != ir::Op::Convert;
    if (!has_op && in.code != Code::Reduce && in.code != Code::Gather) return;
    const std::string_view word = in.code == Code::Reduce   ? ir::text(in.kind)
                                  : in.code == Code::Gather ? ir::text(ir::Op::Gather)
                                                            : ir::text(in.op);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  };
  for (const Phase& phase : plan.phases) {
    std::for_each(phase.elem.begin(), phase.elem.end(), see);
    std::for_each(phase.row.begin(), phase.row.end(), see);
  }
  if (words.empty()) words.push_back(converts ? "convert" : loads ? "copy" : "fill");
  std::string out(kNamePrefix);
  for (size_t i = 0; i < std::min(words.size(), kMostWords); ++i) out += std::string(words[i]) + "_";
  if (words.size() > kMostWords) out += "etc_";
  const auto stored =
      std::find_if(plan.operands.begin(), plan.operands.end(), [](const Operand& o) { return o.output; });
  return out + std::string(stored == plan.operands.end() ? "void" : ir::text(stored->dtype));
}

}  // namespace fastjit::plan
