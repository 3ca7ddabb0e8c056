// What a legal kernel plan is. Codegen relies on every rule here and checks none of them again.
#include <algorithm>

#include "plan/kernel_plan.h"
#include "plan/share.h"

namespace fastjit::plan {
namespace {

using ir::DType;
using ir::Op;
using ir::ReduceKind;
using ir::TypeRule;

class Verifier {
 public:
  explicit Verifier(const KernelPlan& plan)
      : plan_(plan),
        phase_of_(plan.code.size(), -1),
        deps_(plan.code.size(), 0),
        stored_(plan.operands.size(), false),
        kept_(plan.scratch.size(), -1) {}

  std::string run() {
    if (!shape() || !operands() || !time()) return error_;
    for (phase_ = 0; phase_ < static_cast<int>(plan_.phases.size()); ++phase_) {
      elem_ = true;
      for (uint32_t id : plan_.phases[phase_].elem)
        if (!instruction(id)) return error_;
      elem_ = false;
      for (uint32_t id : plan_.phases[phase_].row)
        if (!instruction(id)) return error_;
    }
    for (size_t i = 0; i < plan_.operands.size(); ++i)
      if (plan_.operands[i].output && !stored_[i]) return "output #" + std::to_string(i) + " is never stored";
    return "";
  }

 private:
  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  bool fail(uint32_t id, const std::string& message) {
    return fail("instruction %" + std::to_string(id) + " " + message);
  }
  uint32_t time_bit() const { return plan_.is_over_time() ? 1u << (plan_.rank() - 1) : 0; }
  /// All of a small plan runs in each round.
  bool reduced(uint32_t deps) const { return (plan_.is_small() ? deps & ~time_bit() : deps) >> plan_.kept() != 0; }
  DType arg_type(const Instr& in, int i) const { return plan_.code[in.args[i]].dtype; }

  bool small() {
    const auto rank = static_cast<size_t>(plan_.rank());
    if (plan_.sizes.size() != rank || plan_.strides.size() != rank * plan_.operands.size() || plan_.vec_dim >= 0 ||
        plan_.rows > 1 || plan_.tile > 0 || !plan_.scratch.empty())
      return fail("a small plan has a size per dim, a stride per operand and dim, and no loops");
    if (plan_.is_over_time() && plan_.sizes.back() != 1) return fail("the time of a small plan has size 1");
    int64_t reduced = 1;
    for (size_t d = 0; d < rank; ++d) {
      if (plan_.sizes[d] < 1) return fail("a small plan has no empty dim");
      if (plan_.dims[d] == DimKind::Reduced) reduced *= plan_.sizes[d];
    }
    for (const int64_t stride : plan_.strides)
      if (stride < 0) return fail("a small plan has no negative stride");
    if (plan_.points() > kSmallPoints || reduced > kSmallReduced) return fail("a small plan is small");
    for (size_t i = 0; i < plan_.operands.size(); ++i)
      if (plan_.extent(i) > kSmallExtent) return fail("a small plan's operands are small");
    return true;
  }

  bool shape() {
    const int rank = plan_.rank(), vec = plan_.vec_dim;
    if (rank > 16) return fail("a plan has at most 16 dims");
    for (int d = 1; d < rank; ++d)
      if (plan_.dims[d] < plan_.dims[d - 1] || plan_.dims[d - 1] == DimKind::Time)
        return fail("kept dims come before reduced dims, and those before one of time");
    if (plan_.lanes == 0 || plan_.lanes > 64 || (plan_.lanes & (plan_.lanes - 1)))
      return fail("lanes is a power of two up to 64");
    if (plan_.unroll == 0 || plan_.unroll > 16) return fail("unroll is 1 to 16");
    if (vec < -1 || vec >= rank) return fail("vec_dim names no dim");
    if (plan_.is_small() && !small()) return false;
    if (vec < 0 && (plan_.lanes != 1 || plan_.unroll != 1)) return fail("without a vec_dim there is one lane");
    if (plan_.vec_is_kept() && vec != plan_.kept() - 1) return fail("a kept vec_dim is the last kept dim");
    if (vec >= 0 && !plan_.vec_is_kept() && vec != rank - 1) return fail("a reduced vec_dim is the last dim");
    if (plan_.rows == 0 || plan_.rows > 8) return fail("rows is 1 to 8");
    const bool loops = plan_.is_row_kernel() || (plan_.vec_is_kept() && plan_.tile == 0);
    if (plan_.rows > 1 && (!loops || plan_.row_dim() < 0 || !plan_.scratch.empty()))
      return fail("several rows need a kept dim for them, a loop in each, and no scratch slots");
    if (!tiles()) return false;
    const bool is_odd = plan_.tile > 0 || plan_.vector > 1 || plan_.is_small() || plan_.is_over_time();
    if (plan_.has_gathers() && is_odd)
      return fail("what gathers has no tiles, vectors of a GPU or rounds, and is not small");
    if (!is_vector_whole()) return fail("a vector of 1 or 4 elements lies along the last dim, or down a tile");
    if (!plan_.scratch.empty() && (vec < 0 || plan_.vec_is_kept())) return fail("scratch slots need a reduced vec_dim");
    if (!plan_.is_row_kernel() && plan_.phases.size() != 1) return fail("a pointwise kernel has one phase");
    for (const Phase& phase : plan_.phases)
      if (!plan_.is_row_kernel() && !phase.elem.empty()) return fail("a pointwise kernel has no elem instructions");
    for (DType type : plan_.scalars)
      if (type != DType::F64 && type != DType::I64) return fail("a scalar is f64 or i64");
    return true;
  }

  bool time() {
    if (!plan_.is_over_time()) return plan_.carries.empty() || fail("only a plan over time carries values");
    const bool is_plain = plan_.kept() == plan_.rank() - 1 && plan_.phases.size() == 1 && plan_.phases[0].row.empty() &&
                          plan_.tile == 0 && plan_.scratch.empty();
    if (!plan_.is_small() && !is_plain)
      return fail("a plan over time has one phase, in its rounds, and reduces nothing");
    std::vector<bool> loaded(plan_.operands.size(), false), stored(plan_.operands.size(), false);
    for (const auto& [from, to] : plan_.carries) {
      if (to >= plan_.operands.size() || !plan_.operands[to].output || stored[to])
        return fail("a carried value is stored to an output of its own");
      stored[to] = true;
      if (from == Carry::kNone) continue;
      if (from >= plan_.operands.size() || loaded[from] || plan_.operands[from].dtype != plan_.operands[to].dtype)
        return fail("a carried value is loaded from an operand of its own, of its type");
      loaded[from] = true;
      for (int d = 0; d < plan_.kept(); ++d)
        if (!plan_.is_small() && plan_.operands[from].strides[d] != plan_.operands[to].strides[d])
          return fail("a carried value lies alike where it is loaded and where it is stored");
      if (plan_.is_small() && plan_.extent(from) != plan_.extent(to))
        return fail("a carried value is all of what is loaded");
    }
    for (size_t i = 0; i < plan_.operands.size(); ++i) {
      if ((loaded[i] || stored[i]) && plan_.operands[i].strides.back() != StrideClass::Zero)
        return fail("a carried value moves with no round");
      if (plan_.operands[i].listed && (!plan_.is_small() || loaded[i] || stored[i]))
        return fail("a listed operand is one of a small plan, and carries nothing");
    }
    return true;
  }

  bool is_vector_whole() const {
    if (plan_.vector == 1) return true;
    if (plan_.vector != 4 || plan_.rank() == 0) return false;
    for (size_t i = 0; i < plan_.operands.size(); ++i) {
      const StrideClass last = plan_.operands[i].strides.back();
      if (last != StrideClass::Zero && last != StrideClass::Unit && !plan_.is_transposed(i)) return false;
    }
    return true;
  }

  bool tiles() {
    if (plan_.tile_dim < 0 && plan_.tile == 0) return true;
    if (plan_.is_row_kernel() || !plan_.vec_is_kept() || plan_.tile_dim < 0 || plan_.tile_dim != plan_.vec_dim - 1)
      return fail("tile_dim is the dim before the vec_dim of a pointwise kernel");
    if (plan_.tile < plan_.lanes || plan_.tile > 64 || (plan_.tile & (plan_.tile - 1)))
      return fail("tile is a power of two from lanes to 64");
    return true;
  }

  bool packed(const Operand& operand) const {
    const bool has_rows = plan_.rows > 1 && plan_.vec_is_kept() && !plan_.is_row_kernel();
    for (int d = 0; d < plan_.rank(); ++d) {
      const StrideClass stride = operand.strides[d];
      if (stride != StrideClass::Packed && stride != StrideClass::Back) continue;
      const bool is_lanes = stride == StrideClass::Packed;
      if (!has_rows || d != (is_lanes ? plan_.vec_dim : plan_.row_dim())) return false;
      const StrideClass other = operand.strides[is_lanes ? plan_.row_dim() : plan_.vec_dim];
      if (is_lanes ? other != StrideClass::Unit && other != StrideClass::Back : other != StrideClass::Packed)
        return false;
    }
    return true;
  }

  bool operands() {
    for (size_t i = 0; i < plan_.operands.size(); ++i) {
      const Operand& operand = plan_.operands[i];
      if (operand.strides.size() != plan_.dims.size())
        return fail("operand #" + std::to_string(i) + " has not one stride a dim");
      if (operand.gathered && operand.output) return fail("operand #" + std::to_string(i) + " is gathered and stored");
      if (!packed(operand)) return fail("operand #" + std::to_string(i) + " is packed otherwise than rows are");
      for (int d = 0; operand.output && d < plan_.kept(); ++d)
        if (operand.strides[d] == StrideClass::Zero)
          return fail("output #" + std::to_string(i) + " does not move along kept dim " + std::to_string(d));
      for (int d = 0; d < plan_.rank(); ++d)
        if (operand.strides[d] == StrideClass::Two && (operand.output || d != plan_.vec_dim))
          return fail("operand #" + std::to_string(i) + " has stride class Two where only loads along vec_dim may");
    }
    return true;
  }

  // Every argument must be computed already. A value that depends on a reduced index lives in its own elem list only.
  bool arguments(uint32_t id, int count) {
    for (int i = 0; i < count; ++i) {
      const uint32_t arg = plan_.code[id].args[i];
      if (arg >= plan_.code.size() || phase_of_[arg] < 0)
        return fail(id, "uses a value that is not computed before it");
      const Code code = plan_.code[arg].code;
      if (code == Code::Store || code == Code::Keep) return fail(id, "uses an instruction without a value");
      if (code == Code::Reduce && elem_ && phase_of_[arg] == phase_)
        return fail(id, "uses a reduction of its own loop");
      if (reduced(deps_[arg]) && (!elem_ || phase_of_[arg] != phase_))
        return fail(id, "uses an element value outside its loop");
      deps_[id] |= deps_[arg];
    }
    return true;
  }

  bool instruction(uint32_t id) {
    if (id >= plan_.code.size())
      return fail("a phase names instruction %" + std::to_string(id) + ", which is not there");
    if (phase_of_[id] >= 0) return fail(id, "stands in two places");
    const Instr& in = plan_.code[id];
    const int count = arity(in);
    if (count < 0 || count > 3) return fail(id, "has an op that is not pointwise");
    if (in.shared && (in.code != Code::Compute || !has_long_code(in.op, in.dtype)))
      return fail(id, "is to be called, but no function is made of it");
    if (!arguments(id, count)) return false;
    switch (in.code) {
      case Code::Load:
      case Code::Gather:
      case Code::Store:
        if (!memory(id, in)) return false;
        break;
      case Code::Scalar:
        if (in.imm >= plan_.scalars.size() || plan_.scalars[in.imm] != in.dtype)
          return fail(id, "names no scalar of its type");
        break;
      case Code::Const:
        if (ir::is_half(in.dtype)) return fail(id, "is a constant of a half type");
        break;
      case Code::Index:
        if (in.imm >= plan_.dims.size() || in.dtype != DType::I64) return fail(id, "is no i64 index of a dim");
        deps_[id] |= 1u << in.imm;
        break;
      case Code::Compute:
        if (!compute(id, in)) return false;
        break;
      case Code::Reduce:
        if (!reduce(id, in)) return false;
        break;
      case Code::Keep:
      case Code::Recall:
        if (!scratch(id, in)) return false;
        break;
    }
    if (!elem_ && reduced(deps_[id])) return fail(id, "is a row value and moves along a reduced dim");
    phase_of_[id] = phase_;
    return true;
  }

  bool memory(uint32_t id, const Instr& in) {
    if (in.imm >= plan_.operands.size()) return fail(id, "names no operand");
    const Operand& operand = plan_.operands[in.imm];
    if (operand.dtype != in.dtype) return fail(id, "has not its operand's type");
    uint32_t moves = 0;
    for (int d = 0; d < plan_.rank(); ++d) moves |= operand.strides[d] != StrideClass::Zero ? 1u << d : 0u;
    if (is_load(in)) {
      if (stored_[in.imm]) return fail(id, "loads what an earlier instruction stored");
      if (operand.gathered != (in.code == Code::Gather)) return fail(id, "loads otherwise than its operand is read");
      if (in.code == Code::Gather && arg_type(in, 0) != DType::I64) return fail(id, "gathers by no i64");
      deps_[id] |= moves;
      return true;
    }
    if (!operand.output) return fail(id, "stores to an operand that is no output");
    if (arg_type(in, 0) != in.dtype) return fail(id, "stores a value of another type");
    if (stored_[in.imm]) return fail(id, "stores to an output a second time");
    const uint32_t all = (1u << plan_.rank()) - 1, kept = (1u << plan_.kept()) - 1;
    // Each round may store to one place.
    if ((moves | time_bit()) != ((elem_ ? all : kept) | time_bit()))
      return fail(id, "stores to an output that does not move with its loops");
    stored_[in.imm] = true;
    return true;
  }

  bool compute(uint32_t id, const Instr& in) {
    const TypeRule rule = ir::info(in.op).rule;
    const DType first = arg_type(in, 0);
    const int arity = ir::info(in.op).arity;
    if (!ir::is_pointwise(in.op)) return fail(id, "has an op that is not pointwise");
    if (rule == TypeRule::Convert) return true;
    if (rule == TypeRule::Select)
      return (first == DType::Bool && arg_type(in, 1) == in.dtype && arg_type(in, 2) == in.dtype) ||
             fail(id, "is no select of its type");
    for (int i = 1; i < arity; ++i)
      if (arg_type(in, i) != first) return fail(id, "has operands of two types");
    if (in.dtype != (rule == TypeRule::Compare ? DType::Bool : first)) return fail(id, "has not the type its op gives");
    if (ir::is_half(first)) return fail(id, "computes on a half type");
    if (rule == TypeRule::Float && !ir::is_float(first)) return fail(id, "needs a float");
    if (rule == TypeRule::Integral && ir::is_float(first)) return fail(id, "needs an integer or bool");
    const bool divides = in.op == Op::Div || in.op == Op::FloorDiv || in.op == Op::Remainder || in.op == Op::Fmod;
    if (divides && !ir::is_float(first)) {
      const Instr& divisor = plan_.code[in.args[1]];
      const uint64_t low = divisor.imm << (64 - 8 * ir::size_of(first));
      if (first == DType::Bool || divisor.code != Code::Const || low == 0)
        return fail(id, "divides by something else than a nonzero constant");
    }
    return true;
  }

  bool reduce(uint32_t id, const Instr& in) {
    if (!elem_) return fail(id, "is a reduction outside elem");
    const DType type = arg_type(in, 0);
    bool legal = !ir::is_half(type);
    switch (in.kind) {
      case ReduceKind::Sum:
      case ReduceKind::Prod:
        legal &= (type == in.dtype && (ir::is_float(type) || type == DType::I64)) ||
                 (type == DType::F32 && in.dtype == DType::F64);
        break;
      case ReduceKind::Max:
      case ReduceKind::Min:
        legal &= type == in.dtype;
        break;
      case ReduceKind::ArgMax:
      case ReduceKind::ArgMin:
        legal &= in.dtype == DType::I64;
        break;
      case ReduceKind::Any:
      case ReduceKind::All:
        legal &= type == DType::Bool && in.dtype == DType::Bool;
        break;
      case ReduceKind::Dot:
        legal &= ir::is_float(type) && arg_type(in, 1) == type && in.dtype == type;
        break;
    }
    deps_[id] = (1u << plan_.kept()) - 1;
    return legal || fail(id, "has types its reduction does not take");
  }

  bool scratch(uint32_t id, const Instr& in) {
    if (!elem_) return fail(id, "uses a scratch slot outside elem");
    if (in.imm >= plan_.scratch.size() || plan_.scratch[in.imm] != in.dtype)
      return fail(id, "names no scratch slot of its type");
    if (in.code == Code::Keep) {
      if (arg_type(in, 0) != in.dtype) return fail(id, "keeps a value of another type");
      kept_[in.imm] = phase_;
    } else {
      if (kept_[in.imm] < 0 || kept_[in.imm] >= phase_) return fail(id, "recalls what no earlier phase kept");
      deps_[id] = (1u << plan_.rank()) - 1;
    }
    return true;
  }

  const KernelPlan& plan_;
  std::vector<int> phase_of_;   // per instruction: the phase it was met in, -1 before
  std::vector<uint32_t> deps_;  // per instruction: dims it depends on
  std::vector<bool> stored_;    // per operand
  std::vector<int> kept_;       // per scratch slot: phase of its last Keep
  int phase_ = 0;
  bool elem_ = false;
  std::string error_;
};

}  // namespace

std::string verify(const KernelPlan& plan) { return Verifier(plan).run(); }

}  // namespace fastjit::plan
