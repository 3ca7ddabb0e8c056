// The loops of a kernel: order, merging and vector dim follow from the strides of everything it touches.
#include "plan/shape.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/share.h"

namespace fastjit::plan {

namespace {

constexpr int64_t kChunk = 8192;  // points of one unit of a long row
constexpr int64_t kColumns = 64;  // of a unit where an operand is transposed or lanes are kept points of a row kernel
constexpr int64_t kTile = 64, kLeastTile = 16;  // points along a side of a tile
constexpr int64_t kTileBytes = 32 << 10;        // of all buffers of a tile, where kLeastTile allows it
constexpr int64_t kMostPacked = 4;              // rows of packed operands
constexpr int64_t kLeastSide = 4;               // a dim shorter than this is not worth a tile

/// An operand while dims are still moved about: strides per frame dim.
struct Touched {
  BufferId buffer;
  ir::DType dtype;
  Linear address;
  bool stored = false;
  bool in_loop = false;  // loaded or stored once per reduced point
};

/// One loop of the kernel: a frame dim, or several merged into their innermost.
struct Loop {
  int dim;
  Dim size;
  bool indexed;
};

class Shaper {
 public:
  Shaper(const World& world, const Space& frame, std::span<const Root> roots, const Draft& draft,
         const PlanOptions& options, Rows rows)
      : world_(world), frame_(frame), roots_(roots), draft_(draft), options_(options), rows_(rows) {}

  Shaped run() {
    touch();
    order();
    merge(kept_, rows_ == Rows::Separate ? 1 : 0);
    merge(reduced_, 0);
    choose_lanes();
    choose_rows();
    choose_packed();
    choose_tile();
    choose_narrow();
    choose_small();
    fill_plan();
    fill_step();
    return std::move(out_);
  }

 private:
  void touch();
  void order();
  void sort(std::vector<Loop>& loops);
  void merge(std::vector<Loop>& loops, size_t first);
  double lane_cost(const Loop& loop, bool reduced) const;
  void choose_lanes();
  void choose_rows();
  int64_t bytes_still(const Loop& loop) const;
  void choose_packed();
  bool packs(const Loop& lanes, const Loop& rows) const;
  void choose_tile();
  void choose_narrow();
  void choose_small();
  bool is_small() const;
  void fill_plan();
  void fill_step();
  bool is_narrow(const Loop& loop) const;
  bool is_wide() const {
    return std::ranges::any_of(code_, [](const Instr& instr) { return ir::size_of(instr.dtype) == 8; });
  }
  int lanes_along(const Loop& loop) const;
  size_t computed() const { return static_cast<size_t>(std::ranges::count(code_, Code::Compute, &Instr::code)); }
  uint8_t unroll() const;
  uint8_t unroll_of_product() const;
  Dim block() const;
  bool packed(const Touched& touched, const Loop& lanes, const Loop& rows) const {
    const Dim step = stride(touched, rows.dim);
    return is(stride(touched, lanes.dim), rows.size.hint()) && (is(step, 1) || is(step, -1));
  }
  bool transposed(const Touched& touched) const;
  bool transposed(const Touched& touched, const Loop& across) const {
    return !is(stride(touched, lanes_along_), 0) && !is(stride(touched, lanes_along_), 1) &&
           !is(stride(touched, lanes_along_), -1) && is(stride(touched, across.dim), 1);
  }
  Dim stride(const Touched& touched, int dim) const { return touched.address[static_cast<size_t>(dim)]; }
  /// For all sizes: a kernel takes any other stride at run time.
  static bool is(Dim stride, int64_t number) { return identical(stride, number); }

  const World& world_;
  const Space& frame_;
  std::span<const Root> roots_;
  const Draft& draft_;
  const PlanOptions& options_;
  Rows rows_;
  std::vector<Touched> touched_;
  std::vector<Instr> code_;
  std::vector<std::vector<uint32_t>> lists_;
  std::vector<Loop> kept_, reduced_;
  int lanes_along_ = -1;     // frame dim
  int64_t tile_ = 0;         // the loop before the lanes' makes tiles with it
  bool is_product_ = false;  // a kernel with a Dot
  bool is_packed_ = false;
  bool is_small_ = false;
  int sums_ = 1;
  uint8_t rows_together_ = 1;
  Shaped out_;
};

/// Adds the stores; a store to the element that is loaded shares its operand.
void Shaper::touch() {
  code_ = draft_.code;
  lists_ = draft_.lists;
  for (const Access& access : draft_.accesses) touched_.push_back({access.buffer, access.dtype, access.address});
  for (size_t i = 0; i < roots_.size(); ++i) {
    const Map map = root_map(world_, frame_, roots_[i]);
    for (const Storage& dest : roots_[i].dests) {
      Linear address = dot(dest.strides, map);
      address.resize(static_cast<size_t>(frame_.rank()) + 1, 0);
      address.back() += dest.offset;
      auto found = std::find_if(touched_.begin(), touched_.end(), [&](const Touched& other) {
        return other.buffer == dest.buffer && identical(other.address, address);
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
      if (code_[at].code == Code::Load || code_[at].code == Code::Store) touched_[code_[at].imm].in_loop = true;
}

void Shaper::order() {
  std::vector<bool> indexed(frame_.sizes.size(), false);
  bool positions_matter = false;
  for (const Instr& instr : code_) {
    if (instr.code == Code::Index) indexed[instr.imm] = true;
    positions_matter =
        positions_matter ||
        (instr.code == Code::Reduce && (instr.kind == ir::ReduceKind::ArgMax || instr.kind == ir::ReduceKind::ArgMin));
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

/// One vector holds a row.
bool Shaper::is_narrow(const Loop& loop) const {
  return !options_.cuda && reduced_.empty() && kept_.size() > 1 && loop.size.hint() <= options_.lanes;
}

/// Values of 8 bytes take two registers; along a dim that one of them holds, the other would be empty.
int Shaper::lanes_along(const Loop& loop) const {
  const bool half = is_wide() && is_narrow(loop) && loop.size.hint() <= options_.lanes / 2;
  return half ? options_.lanes / 2 : options_.lanes;
}

/// Rough cycles per point when the lanes run along `loop`.
double Shaper::lane_cost(const Loop& loop, bool reduced) const {
  const double lanes = lanes_along(loop), useful = std::min<double>(lanes, static_cast<double>(loop.size.hint()));
  const double rest = static_cast<double>(frame_.reduced.hint());
  double in_loop = 0, per_row = 0;
  for (const Touched& touched : touched_) {
    const Dim step = stride(touched, loop.dim);
    const double cost = is(step, 1) ? 1 : is(step, 0) ? 0.1 : (touched.stored ? 1.5 : 1.0) * lanes;
    (touched.in_loop || !frame_.has_reduced() ? in_loop : per_row) += cost;
  }
  for (const Instr& instr : code_) {
    if (instr.code == Code::Compute) in_loop += 0.5;
    if (instr.code == Code::Reduce && reduced) per_row += 6;
  }
  return reduced ? in_loop / useful + per_row / rest : (in_loop + per_row / rest) / useful;
}

void Shaper::choose_lanes() {
  double best = 0;
  auto consider = [&](const Loop& loop, bool reduced) {
    const double cost = lane_cost(loop, reduced);
    if (lanes_along_ >= 0 && cost >= best * 0.999) return;
    best = cost;
    lanes_along_ = loop.dim;
    out_.kept_lanes = !reduced;
  };
  if (!reduced_.empty()) consider(reduced_.back(), true);
  if (draft_.scratch.empty())
    for (size_t i = kept_.size(); i-- > 0;) consider(kept_[i], false);
  if (!out_.kept_lanes) return;
  const auto chosen =
      std::find_if(kept_.begin(), kept_.end(), [&](const Loop& loop) { return loop.dim == lanes_along_; });
  std::rotate(chosen, chosen + 1, kept_.end());
}

/// Bytes of factors that stand still along the loop.
int64_t Shaper::bytes_still(const Loop& loop) const {
  int64_t bytes = 0;
  for (const Touched& touched : touched_) {
    if (!touched.in_loop || !is(stride(touched, loop.dim), 0)) continue;
    int64_t points = ir::size_of(touched.dtype);
    for (const auto* loops : {&kept_, &reduced_})
      for (const Loop& other : *loops)
        if (!is(stride(touched, other.dim), 0)) points *= other.size.hint();
    bytes += points;
  }
  return bytes;
}

/// The innermost kept loop beside the lanes is that along which the larger factor stands still: a unit takes several of
/// its points, and the next ones find the factor in cache.
void Shaper::choose_rows() {
  is_product_ = std::ranges::any_of(code_, is_dot);
  if (!is_product_ || options_.cuda || !draft_.scratch.empty()) return;
  const auto last = kept_.end() - (out_.kept_lanes ? 1 : 0);
  auto best = last;
  int64_t most = 0;
  for (auto loop = kept_.begin(); loop != last; ++loop) {
    const int64_t bytes = loop->size.hint() > 1 ? bytes_still(*loop) : 0;
    if (bytes <= most) continue;
    most = bytes;
    best = loop;
  }
  if (best == last) return;
  rows_together_ = best->size.hint() == 2 ? 2 : 4;
  std::rotate(best, best + 1, last);
}

/// Whether one vector along `lanes` for each of the few `rows` makes whole vectors of everything that is touched, and
/// something is packed.
bool Shaper::packs(const Loop& lanes, const Loop& rows) const {
  if (&lanes == &rows || rows.size.is_symbolic() || lanes.size.hint() < 2 * options_.lanes) return false;
  if (rows.size.hint() < 2 || rows.size.hint() > kMostPacked) return false;
  bool some = false;
  for (const Touched& touched : touched_) {
    const Dim step = stride(touched, lanes.dim);
    if (packed(touched, lanes, rows))
      some = true;
    else if (!is(step, 1) && (touched.stored || !is(step, 0)))
      return false;
  }
  return some;
}

/// Colours of an image: along the few points of their dim a vector would be mostly empty.
void Shaper::choose_packed() {
  if (options_.cuda || !reduced_.empty() || rows_ == Rows::Separate) return;
  for (const Loop& lanes : kept_)
    for (const Loop& rows : kept_) {
      if (!packs(lanes, rows)) continue;
      const Loop inner = lanes, outer = rows;
      std::erase_if(kept_, [&](const Loop& loop) { return loop.dim == inner.dim || loop.dim == outer.dim; });
      kept_.insert(kept_.end(), {outer, inner});
      lanes_along_ = inner.dim;
      out_.kept_lanes = true;
      rows_together_ = static_cast<uint8_t>(outer.size.hint());
      is_packed_ = true;
      return;
    }
}

/// Tiles lie along the loop that most bytes of transposed operands follow.
void Shaper::choose_tile() {
  if (options_.cuda || !reduced_.empty() || !out_.kept_lanes || is_packed_) return;
  if (kept_.back().size.hint() < kLeastSide) return;
  int64_t most = 0;
  size_t best = 0;
  for (size_t i = 0; i + 1 < kept_.size(); ++i) {
    int64_t bytes = 0;
    for (const Touched& touched : touched_)
      if (transposed(touched, kept_[i])) bytes += ir::size_of(touched.dtype);
    if (kept_[i].size.hint() < kLeastSide || bytes <= most) continue;
    most = bytes;
    best = i;
  }
  if (most == 0) return;
  const auto across = kept_.begin() + static_cast<std::ptrdiff_t>(best);
  std::rotate(across, across + 1, kept_.end() - 1);
  tile_ = kTile;
  while (tile_ > std::max<int64_t>(kLeastTile, options_.lanes) && tile_ * tile_ * most > kTileBytes) tile_ /= 2;
}

/// A product of so few elements that its loops, and vectors that are mostly empty, would cost more than it does.
bool Shaper::is_small() const {
  if (!is_product_ || options_.cuda || rows_ == Rows::Separate || !draft_.scratch.empty()) return false;
  int64_t points = 1, reduced = 1;
  for (const auto* loops : {&kept_, &reduced_})
    for (const Loop& loop : *loops) {
      if (loop.size.is_symbolic() || loop.size.hint() < 1) return false;
      (loops == &kept_ ? points : reduced) *= loop.size.hint();
    }
  if (points > kSmallPoints || reduced > kSmallReduced) return false;
  for (size_t list = 0; list < lists_.size(); list += 2)
    for (const uint32_t at : lists_[list])
      if (code_[at].code == Code::Store) return false;
  return std::ranges::all_of(touched_, [&](const Touched& touched) {
    int64_t extent = 1;
    for (const auto* loops : {&kept_, &reduced_})
      for (const Loop& loop : *loops) {
        const Dim step = stride(touched, loop.dim);
        if (step.is_symbolic() || step.hint() < 0) return false;
        extent += (loop.size.hint() - 1) * step.hint();
      }
    return extent <= kSmallExtent;
  });
}

void Shaper::choose_small() {
  is_small_ = is_small();
  if (!is_small_) return;
  sums_ = out_.kept_lanes ? 1 : options_.lanes;  // as with loops: equal bits
  lanes_along_ = -1;
  out_.kept_lanes = false;
  rows_together_ = 1;
}

/// Where one vector holds a row, each row would wait for its own chain of operations: a unit computes several.
void Shaper::choose_narrow() {
  if (!out_.kept_lanes || tile_ > 0 || is_packed_ || !is_narrow(kept_.back())) return;
  const int64_t most = computed() <= 16 ? 4 : 2, length = kept_[kept_.size() - 2].size.hint();
  rows_together_ = static_cast<uint8_t>(length >= 2 * most ? most : 1);
}

/// As many as leave registers for the sums of all rows, and as one pass along the lanes' loop fills.
uint8_t Shaper::unroll_of_product() const {
  const bool has_many_registers = out_.kept_lanes && options_.lanes >= 16;
  const int most = rows_together_ == 1 && has_many_registers ? 8 : rows_together_ <= 2 || has_many_registers ? 4 : 2;
  const int64_t length = (out_.kept_lanes ? kept_ : reduced_).back().size.hint();
  int vectors = most;
  while (vectors > 1 && vectors * options_.lanes > length) vectors /= 2;
  return static_cast<uint8_t>(vectors);
}

uint8_t Shaper::unroll() const {
  const size_t computed = this->computed();
  if (reduced_.empty() && rows_together_ > 1) return 1;
  if (const uint8_t calling = unroll_of_calls(out_.plan)) return calling;
  if (is_product_) return unroll_of_product();
  if (reduced_.empty()) return computed <= 4 ? 4 : computed <= 16 || (computed > 96 && !is_wide()) ? 2 : 1;
  return computed <= 12 ? 4 : computed <= 30 ? 2 : 1;
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
    return is(step, 0)                                  ? StrideClass::Zero
           : is(step, 1)                                ? StrideClass::Unit
           : is(step, 2) && is_lanes && !touched.stored ? StrideClass::Two
                                                        : StrideClass::Any;
  };
  for (const Touched& touched : touched_) {
    Operand operand{touched.dtype, touched.stored, {}};
    for (const Loop& loop : loops) {
      operand.strides.push_back(class_of(touched, loop));
      out_.dims.strides.push_back(stride(touched, loop.dim));
    }
    plan.operands.push_back(std::move(operand));
    out_.buffers.push_back(touched.buffer);
    out_.dims.offsets.push_back(touched.address.back());
  }
  for (Instr& instr : code_)
    if (instr.code == Code::Index) instr.imm = static_cast<uint64_t>(place[instr.imm]);
  plan.code = code_;
  plan.scalars = draft_.scalar_types;
  plan.scratch = draft_.scratch;
  lists_.resize((lists_.size() + 1) / 2 * 2);
  for (size_t list = 0; list < lists_.size(); list += 2) plan.phases.push_back({lists_[list], lists_[list + 1]});
  plan.numerics = options_.numerics;
  if (!options_.cuda) share_functions(plan);
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

}  // namespace

void cut(const KernelPlan& plan, KernelStep& step, const PlanOptions& options) {
  if (options.cuda) step.grid = grid_of(plan, step.sizes.data());
  int64_t points = 1;
  for (const int64_t size : step.sizes) points *= size;
  step.units = unit_count(plan, step.sizes.data(), step.block);
  const Costs& costs = options.costs;
  double whole = static_cast<double>(costs.point(plan)) * static_cast<double>(points);
  // Few rows read their weights faster than memory gives them.
  if (plan.is_row_kernel() && std::ranges::any_of(plan.code, is_dot))
    whole = std::max(whole, static_cast<double>(costs.read(traffic(plan, step).read)));
  const int64_t units = std::max<int64_t>(step.units, 1);
  const double worth = std::ceil(static_cast<double>(costs.task) / (whole / static_cast<double>(units)));
  step.grain = whole < static_cast<double>(costs.serial) ? units : std::max<int64_t>(1, static_cast<int64_t>(worth));
}

Shaped shape(const World& world, const Space& frame, std::span<const Root> roots, const Draft& draft,
             const PlanOptions& options, Rows rows) {
  return Shaper(world, frame, roots, draft, options, rows).run();
}

}  // namespace fastjit::plan
