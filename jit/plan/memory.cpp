// Best fit by lifetime: large pieces first, each into the smallest gap between those alive with it.
#include "plan/memory.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>

#include "plan/work.h"

namespace fastjit::plan {

namespace {

constexpr int64_t kAlign = 64;
constexpr size_t kMostNeighbours = 128;  // beyond so many the piece goes above all of them

/// Pieces that have a place, found by the steps at which they are in use. A segment tree over the pieces in order of
/// their first step: each node knows the last step and the highest end below it.
class Placed {
 public:
  explicit Placed(const std::vector<Piece>& pieces) : pieces_(pieces), order_(pieces.size()), ranks_(pieces.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return pieces[a].first < pieces[b].first; });
    for (size_t i = 0; i < order_.size(); ++i) ranks_[order_[i]] = i;
    while (leaves_ < pieces.size()) leaves_ *= 2;
    nodes_.resize(2 * leaves_);
  }

  void add(size_t piece) {
    for (size_t node = leaves_ + ranks_[piece]; node > 0; node /= 2) {
      nodes_[node].last = std::max(nodes_[node].last, pieces_[piece].last);
      nodes_[node].end = std::max(nodes_[node].end, pieces_[piece].offset + pieces_[piece].bytes);
    }
  }

  /// Fills `alive` with what is in use together with the piece; false if that is too much. `end` is above all of it.
  bool together(const Piece& piece, std::vector<const Piece*>& alive, int64_t& end) const {
    const auto begun = std::partition_point(order_.begin(), order_.end(),
                                            [&](size_t other) { return pieces_[other].first <= piece.last; });
    alive.clear();
    end = 0;
    collect(1, 0, leaves_, static_cast<size_t>(begun - order_.begin()), piece.first, alive, end);
    return alive.size() <= kMostNeighbours;
  }

 private:
  struct Node {
    int64_t last = -1, end = 0;
  };

  /// Below a node for the ranks [low, high): pieces of rank below `limit` that last until `first` or longer.
  void collect(size_t node, size_t low, size_t high, size_t limit, int64_t first, std::vector<const Piece*>& alive,
               int64_t& end) const {
    work();
    if (low >= limit || nodes_[node].last < first) return;
    if (alive.size() > kMostNeighbours) {  // its own end is not asked for: a bound does
      end = std::max(end, nodes_[node].end);
      return;
    }
    if (node >= leaves_) {
      alive.push_back(&pieces_[order_[low]]);
      end = std::max(end, nodes_[node].end);
      return;
    }
    const size_t middle = (low + high) / 2;
    collect(2 * node, low, middle, limit, first, alive, end);
    collect(2 * node + 1, middle, high, limit, first, alive, end);
  }

  const std::vector<Piece>& pieces_;
  std::vector<size_t> order_, ranks_;
  size_t leaves_ = 1;
  std::vector<Node> nodes_;
};

/// The smallest gap that holds so many bytes, or the end.
int64_t best_gap(std::vector<const Piece*>& alive, int64_t bytes) {
  std::sort(alive.begin(), alive.end(), [](const Piece* a, const Piece* b) { return a->offset < b->offset; });
  int64_t end = 0, best = -1, best_size = 0;
  for (const Piece* other : alive) {
    const int64_t gap = other->offset - end;
    if (gap >= bytes && (best < 0 || gap < best_size)) {
      best = end;
      best_size = gap;
    }
    end = std::max(end, other->offset + other->bytes);
  }
  return best >= 0 ? best : end;
}

/// The topmost of the pieces so far at each step. What lies below one of them is below what lies above that.
class Skyline {
 public:
  std::vector<size_t> tops(int64_t first, int64_t last) {
    std::vector<size_t> found;
    const auto end = cut(last + 1);
    for (auto part = cut(first); part != end; ++part) add(part->second, found);
    return unique(std::move(found));
  }
  std::vector<size_t> all() const {
    std::vector<size_t> found;
    for (const auto& [step, piece] : parts_) add(piece, found);
    return unique(std::move(found));
  }
  void put(size_t piece, int64_t first, int64_t last) {
    const auto end = cut(last + 1);
    parts_.erase(cut(first), end);
    parts_.emplace(first, piece);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  using Parts = std::map<int64_t, size_t>;  // by their first step; each ends where the next begins

  Parts::iterator cut(int64_t step) {
    work();
    const auto next = parts_.upper_bound(step);
    const auto part = std::prev(next);
    return part->first == step ? part : parts_.emplace_hint(next, step, part->second);
  }
  static void add(size_t piece, std::vector<size_t>& found) {
    work();
    if (piece != kNone) found.push_back(piece);
  }
  static std::vector<size_t> unique(std::vector<size_t> found) {
    std::ranges::sort(found);
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  Parts parts_{{INT64_MIN, kNone}};
};

}  // namespace

int64_t pack_arena(std::vector<Piece>& pieces) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return pieces[a].bytes > pieces[b].bytes; });
  Placed placed(pieces);
  std::vector<const Piece*> alive;
  int64_t total = 0;
  for (const size_t i : order) {
    Piece& piece = pieces[i];
    piece.bytes = (piece.bytes + kAlign - 1) / kAlign * kAlign;
    int64_t end = 0;
    piece.offset = placed.together(piece, alive, end) ? best_gap(alive, piece.bytes) : end;
    total = std::max(total, piece.offset + piece.bytes);
    placed.add(i);
  }
  return total;
}

std::vector<ir::Dim> offsets_of(const std::vector<Piece>& pieces, const std::vector<ir::Dim>& sizes) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return pieces[a].offset < pieces[b].offset; });
  Skyline skyline;
  std::vector<ir::Dim> offsets(pieces.size() + 1, 0);
  const auto end = [&](size_t i) { return offsets[i] + divide_up(sizes[i], kAlign) * kAlign; };
  for (const size_t at : order) {
    for (const size_t below : skyline.tops(pieces[at].first, pieces[at].last))
      offsets[at] = max(offsets[at], end(below));
    if (pieces[at].bytes > 0) skyline.put(at, pieces[at].first, pieces[at].last);
  }
  for (const size_t top : skyline.all()) offsets.back() = max(offsets.back(), end(top));
  return offsets;
}

}  // namespace fastjit::plan
