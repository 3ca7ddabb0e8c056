// How vectors, rows and tiles run along the loops of a kernel: see shaper.h.
#include <algorithm>

#include "plan/shaper.h"
#include "plan/share.h"

namespace fastjit::plan {

namespace {

constexpr int64_t kTile = 64, kLeastTile = 16;  // points along a side of a tile
constexpr int64_t kTileOnGpu = 32;              // what a warp reads side by side
constexpr int64_t kLargeTileOnGpu = 64;         // of vectors, four to a thread; an H200: 62 -> 51 us at 16M elements
constexpr int64_t kManyOnGpu = 1 << 21;         // points: more than two large tiles for each multiprocessor
constexpr int64_t kTileBytes = 32 << 10;        // of all buffers of a tile, where kLeastTile allows it
constexpr int64_t kMostPacked = 4;              // rows of packed operands
constexpr uint8_t kRows = 4, kFewRows = 2;      // of a product, computed together
constexpr int kMostSums = 16;                   // vectors of one row of it that are computed together
constexpr int64_t kFewestUnits = 8;             // so many for threads to share are left then
constexpr int64_t kLeastSide = 4;               // a dim shorter than this is not worth a tile

}  // namespace

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
    const bool is_apart = touched.turns >> loop.dim & 1;
    const double cost = !is_apart && is(step, 1)   ? 1
                        : !is_apart && is(step, 0) ? 0.1
                                                   : (touched.stored ? 1.5 : 1.0) * lanes;
    (touched.in_loop || !frame_.has_reduced() ? in_loop : per_row) += cost;
  }
  for (const Instr& instr : code_) {
    if (instr.code == Code::Compute) in_loop += 0.5;
    if (instr.code == Code::Reduce && reduced) per_row += 6;
  }
  return reduced ? in_loop / useful + per_row / rest : (in_loop + per_row / rest) / useful;
}

/// On a GPU lanes along a kept dim are a thread for each point, lanes along a reduced one a block: it takes many points
/// to keep threads busy, and of few reduced indices a block is mostly idle.
bool Shaper::may_take(bool reduced) const {
  constexpr int64_t kFewReduced = 32, kFewPoints = 1 << 12, kManyPoints = 1 << 14;
  if (!options_.cuda || reduced_.empty() || !draft_.scratch.empty()) return true;
  const int64_t points = frame_.kept.hint();
  const bool is_short = frame_.reduced.hint() <= kFewReduced && points >= kFewPoints;
  return reduced ? !is_short : is_short || points >= kManyPoints;
}

void Shaper::choose_lanes() {
  double best = 0;
  auto consider = [&](const Loop& loop, bool reduced) {
    if (!may_take(reduced)) return;
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

/// Sums of lanes along a kept dim, of a CPU with 32 registers.
bool Shaper::has_many_registers() const { return out_.kept_lanes && options_.lanes >= 16; }

/// Whether the lanes' loop alone gives sums enough to add to in turn, each a vector of a row that is read once.
bool Shaper::has_wide_rows() const {
  return has_many_registers() && kept_.back().size.hint() >= kMostSums * options_.lanes;
}

/// Bytes of factors that stand still along the loop. One number for all lanes costs nothing beside so many vectors, and
/// several rows of the other factor at a time are a worse order to read it in.
int64_t Shaper::bytes_still(const Loop& loop) const {
  int64_t bytes = 0;
  for (const Touched& touched : touched_) {
    if (!touched.in_loop || !is(stride(touched, loop.dim), 0)) continue;
    if (has_wide_rows() && is(stride(touched, lanes_along_), 0)) continue;
    int64_t points = ir::size_of(touched.dtype);
    for (const auto* loops : {&kept_, &reduced_})
      for (const Loop& other : *loops)
        if (!is(stride(touched, other.dim), 0)) points *= other.size.hint();
    bytes += points;
  }
  return bytes;
}

/// How much of the rows that are computed together along a loop of so many points is of use.
static double use_of_rows(int64_t points) {
  const int64_t whole = (points + kRows - 1) / kRows * kRows;
  return points == kFewRows ? 0.5 : static_cast<double>(points) / static_cast<double>(whole);
}

/// The innermost kept loop beside the lanes is that along which the larger factor stands still: a unit takes several of
/// its points, and the next ones find the factor in cache. Of several such loops, the one that fills its rows.
void Shaper::choose_rows() {
  is_product_ = std::ranges::any_of(code_, is_dot);
  if (!is_product_ || options_.cuda || !draft_.scratch.empty()) return;
  const auto last = kept_.end() - (out_.kept_lanes ? 1 : 0);
  auto best = last;
  std::pair<int64_t, double> most{0, 0};
  for (auto loop = kept_.begin(); loop != last; ++loop) {
    if (loop->size.hint() <= 1) continue;
    const std::pair gain(bytes_still(*loop), use_of_rows(loop->size.hint()));
    if (gain.first == 0 || gain < most) continue;
    most = gain;
    best = loop;
  }
  if (best == last) return;
  rows_together_ = best->size.hint() == kFewRows ? kFewRows : kRows;
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
  if (options_.cuda || !reduced_.empty() || rows_ == Rows::Separate || has_gathers()) return;
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
  if (!reduced_.empty() || !out_.kept_lanes || is_packed_ || has_gathers()) return;
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
  tile_ = options_.cuda ? kTileOnGpu : kTile;
  if (options_.cuda && vector_on_gpu() > 1 && frame_.kept.hint() >= kManyOnGpu) tile_ = kLargeTileOnGpu;
  while (tile_ > std::max<int64_t>(kLeastTile, options_.lanes) && tile_ * tile_ * most > kTileBytes) tile_ /= 2;
}

/// A product of so few elements that its loops, and vectors that are mostly empty, would cost more than it does.
bool Shaper::is_small() const {
  if (!is_product_ || options_.cuda || rows_ == Rows::Separate || !draft_.scratch.empty()) return false;
  if (has_gathers()) return false;
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
  const int few = rows_together_ <= 2 || has_many_registers() ? 4 : 2;
  const bool is_shared = frame_.kept.hint() >= kFewestUnits * kMostSums * options_.lanes;
  const int most = rows_together_ == 1 && has_many_registers() ? (is_shared ? kMostSums : kMostSums / 2) : few;
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

}  // namespace fastjit::plan
