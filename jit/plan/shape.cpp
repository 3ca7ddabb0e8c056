// The loops of a kernel: order, merging and vector dim follow from the strides of everything it touches.
#include "plan/shape.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/shaper.h"
#include "plan/share.h"

namespace fastjit::plan {

namespace {

constexpr int64_t kChunk = 8192;  // points of one unit of a long row
constexpr int64_t kColumns = 64;  // of a unit where an operand is transposed or lanes are kept points of a row kernel

}  // namespace

/// Adds the stores; a store to the element that is loaded shares its operand.
void Shaper::touch() {
  code_ = draft_.code;
  lists_ = draft_.lists;
  for (const Access& access : draft_.accesses)
    touched_.push_back({access.buffer, access.dtype, access.address, access.step});
  for (size_t i = 0; i < roots_.size(); ++i) {
    const Map map = root_map(world_, frame_, roots_[i]);
    for (const Storage& dest : roots_[i].dests) {
      Linear address = dot(dest.strides, map);
      address.resize(static_cast<size_t>(frame_.rank()) + 1, 0);
      address.back() += dest.offset;
      auto found = std::find_if(touched_.begin(), touched_.end(), [&](const Touched& other) {
        return other.buffer == dest.buffer && !other.step && identical(other.address, address);
      });
      const auto index = static_cast<uint64_t>(found - touched_.begin());
      const ir::DType dtype = world_.graph[roots_[i].value].dtype;
      if (found == touched_.end()) touched_.push_back({dest.buffer, dtype, std::move(address)});
      touched_[index].stored = true;
      const size_t home = draft_.homes[i];
      if (lists_.size() <= home) lists_.resize(home + 1);
      lists_[home].push_back(static_cast<uint32_t>(code_.size()));
      code_.push_back({.code = Code::Store, .dtype = dtype, .args = {draft_.values[i], 0, 0}, .imm = index});
    }
  }
  for (size_t list = 0; list < lists_.size(); list += 2)
    for (const uint32_t at : lists_[list])
      if (is_load(code_[at]) || code_[at].code == Code::Store) touched_[code_[at].imm].in_loop = true;
  if (has_gathers()) find_turns();
}

void Shaper::find_turns() {
  std::vector<uint32_t> moves(code_.size(), 0);
  const uint32_t kept = [&] {
    uint32_t bits = 0;
    for (size_t d = 0; d < frame_.kinds.size(); ++d) bits |= frame_.kinds[d] == DimKind::Kept ? 1u << d : 0u;
    return bits;
  }();
  for (const std::vector<uint32_t>& list : lists_)
    for (const uint32_t at : list) {
      const Instr& instr = code_[at];
      for (int i = 0; i < arity(instr); ++i) moves[at] |= moves[instr.args[i]];
      if (instr.code == Code::Gather) touched_[instr.imm].turns |= moves[at];
      if (instr.code == Code::Index) moves[at] |= 1u << instr.imm;
      if (instr.code == Code::Reduce) moves[at] &= kept;
      if (instr.code == Code::Recall) moves[at] = ~0u;
      for (int d = 0; is_load(instr) && d < frame_.rank(); ++d)
        moves[at] |= is(stride(touched_[instr.imm], d), 0) ? 0u : 1u << d;
    }
}

void Shaper::order() {
  std::vector<bool> indexed(frame_.sizes.size(), false);
  bool positions_matter = false;
  for (const Instr& instr : code_) {
    if (instr.code == Code::Index) indexed[instr.imm] = true;
    positions_matter = positions_matter || (instr.code == Code::Reduce && ir::gives_position(instr.kind));
  }
  for (int d = 0; d < frame_.rank(); ++d) {
    const auto at = static_cast<size_t>(d);
    (frame_.kinds[at] == DimKind::Kept ? kept_ : reduced_).push_back({d, frame_.sizes[at], indexed[at]});
  }
  sort(kept_);
  if (!positions_matter) sort(reduced_);
}

/// Largest stride outermost: the outputs decide, then the operands in turn. Operands that stand still have no say.
void Shaper::sort(std::vector<Loop>& loops) {
  std::vector<const Touched*> voters;
  for (const bool stored : {true, false})
    for (const Touched& touched : touched_)
      if (touched.stored == stored) voters.push_back(&touched);
  auto inner_first = [&](const Loop& a, const Loop& b) {  // true: a must be inside b
    for (const Touched* voter : voters) {
      const int64_t x = std::abs(stride(*voter, a.dim).hint()), y = std::abs(stride(*voter, b.dim).hint());
      if (x != 0 && y != 0 && x != y) return x < y;
    }
    return false;
  };
  for (size_t i = 1; i < loops.size(); ++i)
    for (size_t j = i; j > 0 && inner_first(loops[j - 1], loops[j]); --j) std::swap(loops[j - 1], loops[j]);
}

void Shaper::merge(std::vector<Loop>& loops, size_t first) {
  std::vector<Loop> merged;
  for (const Loop& loop : loops) {
    const bool fits = merged.size() > first && !loop.indexed && !merged.back().indexed &&
                      std::all_of(touched_.begin(), touched_.end(), [&](const Touched& touched) {
                        return identical(stride(touched, merged.back().dim), stride(touched, loop.dim) * loop.size);
                      });
    if (fits)
      merged.back() = {loop.dim, merged.back().size * loop.size, false};
    else
      merged.push_back(loop);
  }
  loops = std::move(merged);
}

void Shaper::fill_plan() {
  KernelPlan& plan = out_.plan;
  std::vector<int64_t> place(frame_.sizes.size(), -1);
  std::vector<Loop> loops = kept_;
  loops.insert(loops.end(), reduced_.begin(), reduced_.end());
  for (size_t i = 0; i < loops.size(); ++i) {
    place[static_cast<size_t>(loops[i].dim)] = static_cast<int64_t>(i);
    plan.dims.push_back(i < kept_.size() ? DimKind::Kept : DimKind::Reduced);
    out_.dims.sizes.push_back(loops[i].size);
  }
  const auto class_of = [&](const Touched& touched, const Loop& loop) {
    const Dim step = stride(touched, loop.dim);
    const bool is_lanes = loop.dim == lanes_along_;
    if (is_packed_ && packed(touched, kept_.back(), kept_[kept_.size() - 2])) {
      if (is_lanes) return StrideClass::Packed;
      if (loop.dim == kept_[kept_.size() - 2].dim) return is(step, 1) ? StrideClass::Unit : StrideClass::Back;
    }
    return is(step, 0)                                                   ? StrideClass::Zero
           : is(step, 1)                                                 ? StrideClass::Unit
           : is(step, 2) && is_lanes && !touched.stored && !touched.step ? StrideClass::Two
                                                                         : StrideClass::Any;
  };
  for (const Touched& touched : touched_) {
    Operand operand{touched.dtype, touched.stored, {}, false, touched.step.has_value()};
    for (const Loop& loop : loops) {
      operand.strides.push_back(class_of(touched, loop));
      out_.dims.strides.push_back(stride(touched, loop.dim));
    }
    plan.operands.push_back(std::move(operand));
    out_.buffers.push_back(touched.buffer);
    out_.dims.offsets.push_back(touched.address.back());
  }
  for (const Touched& touched : touched_)
    if (touched.step) out_.dims.strides.push_back(*touched.step);
  for (Instr& instr : code_)
    if (instr.code == Code::Index) instr.imm = static_cast<uint64_t>(place[instr.imm]);
  plan.code = code_;
  plan.scalars = draft_.scalar_types;
  plan.scratch = draft_.scratch;
  lists_.resize((lists_.size() + 1) / 2 * 2);
  for (size_t list = 0; list < lists_.size(); list += 2) plan.phases.push_back({lists_[list], lists_[list + 1]});
  plan.numerics = options_.numerics;
  if (options_.cuda) {
    plan.is_wide = is_wide_space();
    plan.vector = vector_on_gpu();
  } else {
    share_functions(plan);
  }
  if (is_small_) {
    plan.sizes = hints(out_.dims.sizes);
    plan.strides = hints(out_.dims.strides);
    plan.sums = static_cast<uint8_t>(sums_);
  }
  if (lanes_along_ < 0) return;
  plan.vec_dim = static_cast<int8_t>(place[static_cast<size_t>(lanes_along_)]);
  plan.lanes = static_cast<uint8_t>(out_.kept_lanes ? lanes_along(kept_.back()) : options_.lanes);
  plan.rows = rows_together_;
  plan.unroll = unroll();
  if (tile_ == 0) return;
  plan.tile = static_cast<uint8_t>(tile_);
  plan.tile_dim = static_cast<int8_t>(plan.vec_dim - 1);
}

/// Along the last loop, and down a tile, where all that moves lies side by side and starts at whole vectors; what does
/// not move in the loop over reduced indices is taken one by one.
uint8_t Shaper::vector_on_gpu() const {
  constexpr int64_t kVector = 4;
  if (has_gathers()) return 1;
  const bool is_row = !reduced_.empty();
  if (is_row ? out_.kept_lanes : kept_.empty()) return 1;
  const auto is_whole = [](Dim number) { return !number.is_symbolic() && number.hint() % kVector == 0; };
  const auto is_in_vectors = [&](const Touched& touched, const Loop& along) {
    bool all = is(stride(touched, along.dim), 1) && is_whole(touched.address.back());
    for (const auto* loops : {&kept_, &reduced_})
      for (const Loop& loop : *loops) all &= loop.dim == along.dim || is_whole(stride(touched, loop.dim));
    return all;
  };
  const Loop& last = is_row ? reduced_.back() : kept_.back();
  const Loop* const down = tile_ > 0 ? &kept_[kept_.size() - 2] : nullptr;
  if (!is_whole(last.size) || (down && !is_whole(down->size))) return 1;
  for (const Touched& touched : touched_) {
    if (is_row && !touched.in_loop) continue;
    if (is(stride(touched, last.dim), 0)) continue;
    if (!is_in_vectors(touched, last) && !(down && is_in_vectors(touched, *down))) return 1;
  }
  return kVector;
}

/// 32 bits then count the points, and what the last step of a loop over the grid goes beyond them.
bool Shaper::is_wide_space() const {
  constexpr int64_t kMost = int64_t{1} << 31;
  return frame_.kept.hint() >= kMost || frame_.reduced.hint() >= kMost;
}

// Lanes walk across its rows while another kept dim walks along them.
bool Shaper::transposed(const Touched& touched) const {
  return std::ranges::any_of(kept_, [&](const Loop& loop) { return transposed(touched, loop); });
}

/// The run of the last kept dim that one unit covers.
Dim Shaper::block() const {
  if (tile_ > 0) return tile_;
  const Dim last = kept_.back().size;
  const bool transposed =
      !is_packed_ && std::ranges::any_of(touched_, [&](const Touched& t) { return this->transposed(t); });
  const int64_t columns = is_product_ ? std::max<int64_t>(kColumns, unroll_of_product() * options_.lanes) : kColumns;
  const int64_t limit = transposed || !reduced_.empty() ? columns : kChunk;
  return min(last, limit);
}

void Shaper::fill_step() {
  LaunchDims& dims = out_.dims;
  if (out_.kept_lanes) dims.block = block();
  if (!out_.plan.scratch.empty()) {
    const Dim bytes = (frame_.reduced + (options_.cuda ? 0 : options_.lanes)) * 8;
    dims.scratch_stride = divide_up(bytes, 64) * 64;
  }
  KernelStep& step = out_.step;
  step.scalars = draft_.scalars;
  step.sizes = hints(dims.sizes);
  step.strides = hints(dims.strides);
  step.offsets = hints(dims.offsets);
  step.block = dims.block.hint();
  step.scratch_stride = dims.scratch_stride.hint();
}

double serial_time(const KernelPlan& plan, const KernelStep& step, const Costs& costs) {
  double points = 1;
  for (const int64_t size : step.sizes) points *= static_cast<double>(size);
  const double whole = static_cast<double>(costs.point(plan)) * points;
  // Few rows read their weights faster than memory gives them.
  const bool has_dot = plan.is_row_kernel() && std::ranges::any_of(plan.code, is_dot);
  return has_dot ? std::max(whole, static_cast<double>(costs.read(traffic(plan, step).read))) : whole;
}

void cut(const KernelPlan& plan, KernelStep& step, const PlanOptions& options) {
  if (options.cuda) step.grid = grid_of(plan, step.sizes.data(), step.scratch_stride);
  step.units = unit_count(plan, step.sizes.data(), step.block);
  const Costs& costs = options.costs;
  const double whole = serial_time(plan, step, costs);
  const int64_t units = std::max<int64_t>(step.units, 1);
  const double worth = std::ceil(static_cast<double>(costs.task) / (whole / static_cast<double>(units)));
  step.grain = whole < static_cast<double>(costs.serial) ? units : std::max<int64_t>(1, static_cast<int64_t>(worth));
}

Shaped shape(const World& world, const Space& frame, std::span<const Root> roots, const Draft& draft,
             const PlanOptions& options, Rows rows) {
  return Shaper(world, frame, roots, draft, options, rows).run();
}

}  // namespace fastjit::plan
