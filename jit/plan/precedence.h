#pragma once
// Which of a program's items must run before which. Edges may be added at any time; an order that respects them is kept
// at hand (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", JEA 11, 2006), so that
// a question about two items looks at what stands between them only.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjit::plan {

class Precedence {
 public:
  /// A new item, which follows all others for now. Returns its number: 0, 1, 2, ...
  uint32_t add();
  void before(uint32_t earlier, uint32_t later);
  /// From here on the order is kept; before, edges are only collected.
  void sort();
  /// Whether `later` needs `earlier`, through any number of others. True of an item and itself.
  bool reaches(uint32_t earlier, uint32_t later) const;
  /// `item` runs together with `host`, which it follows.
  void merge(uint32_t item, uint32_t host);

  size_t size() const { return homes_.size(); }
  /// The item itself, or the one it was merged into.
  uint32_t home(uint32_t item) const { return homes_[item]; }
  const std::vector<uint32_t>& needs(uint32_t item) const { return needs_[item]; }

 private:
  void reorder(uint32_t earlier, uint32_t later);
  std::vector<uint32_t> between(uint32_t from, uint32_t limit, bool forward) const;

  std::vector<std::vector<uint32_t>> needs_, needed_by_;
  std::vector<uint32_t> homes_, places_;
  mutable std::vector<uint32_t> seen_;  // per item: the search that met it last
  mutable uint32_t search_ = 0;
  bool sorted_ = false;
};

}  // namespace fastjit::plan
