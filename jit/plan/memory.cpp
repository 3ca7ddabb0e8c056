// Best fit by lifetime: large pieces first, each into the smallest gap between those alive with it.
#include "plan/memory.h"

#include <algorithm>
#include <numeric>

namespace fastjit::plan {

int64_t pack_arena(std::vector<Piece>& pieces) {
  constexpr int64_t kAlign = 64;
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return pieces[a].bytes > pieces[b].bytes; });
  std::vector<const Piece*> placed;
  int64_t total = 0;
  for (const size_t i : order) {
    Piece& piece = pieces[i];
    piece.bytes = (piece.bytes + kAlign - 1) / kAlign * kAlign;
    std::vector<const Piece*> alive;
    for (const Piece* other : placed)
      if (other->first <= piece.last && piece.first <= other->last) alive.push_back(other);
    std::sort(alive.begin(), alive.end(), [](const Piece* a, const Piece* b) { return a->offset < b->offset; });
    int64_t end = 0, best = -1, best_gap = 0;
    for (const Piece* other : alive) {
      const int64_t gap = other->offset - end;
      if (gap >= piece.bytes && (best < 0 || gap < best_gap)) {
        best = end;
        best_gap = gap;
      }
      end = std::max(end, other->offset + other->bytes);
    }
    piece.offset = best >= 0 ? best : end;
    total = std::max(total, piece.offset + piece.bytes);
    placed.push_back(&piece);
  }
  return total;
}

}  // namespace fastjit::plan
