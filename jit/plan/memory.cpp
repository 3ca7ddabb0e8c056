// Best fit by lifetime: large pieces first, each into the smallest gap between those alive with it.
#include "plan/memory.h"

#include <algorithm>
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
  const auto together = [&](size_t a, size_t b) {
    return pieces[a].first <= pieces[b].last && pieces[b].first <= pieces[a].last;
  };
  std::vector<ir::Dim> offsets(pieces.size() + 1, 0);
  const auto end = [&](size_t i) { return offsets[i] + divide_up(sizes[i], kAlign) * kAlign; };
  std::vector<bool> is_top(pieces.size(), true);
  for (size_t at = 0; at < order.size(); ++at) {
    std::vector<size_t> below;  // directly: what lies below one of them is below this, too
    for (size_t lower = at; lower-- > 0;) {
      const size_t i = order[lower];
      work();
      if (pieces[i].bytes == 0 || !together(i, order[at])) continue;
      is_top[i] = false;
      if (std::ranges::any_of(below, [&](size_t other) { return together(i, other); })) continue;
      below.push_back(i);
      offsets[order[at]] = max(offsets[order[at]], end(i));
    }
  }
  for (size_t i = 0; i < pieces.size(); ++i)
    if (is_top[i]) offsets.back() = max(offsets.back(), end(i));
  return offsets;
}

}  // namespace fastjit::plan
