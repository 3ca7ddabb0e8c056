#pragma once
// Entries of a table that stands elsewhere, found by their hashes: one block of memory, where a map of the standard
// library would allocate a node each.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjit::support {

class HashIndex {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFFu;

  /// The number of an entry with this hash that `is_it` accepts, or kNone.
  template <class Accept>
  uint32_t find(uint64_t hash, Accept is_it) const {
    if (count_ == 0) return kNone;
    for (size_t i = home(hash); places_[i].entry != kNone; i = (i + 1) & mask())
      if (places_[i].hash == hash && is_it(places_[i].entry)) return places_[i].entry;
    return kNone;
  }
  /// Several entries may have one hash; an entry is not kNone.
  void add(uint64_t hash, uint32_t entry) {
    if (2 * ++count_ > places_.size()) grow(places_.empty() ? kFewest : 2 * places_.size());
    put({hash, entry});
  }
  /// Makes room for so many entries.
  void reserve(size_t count) {
    const size_t size = std::max(kFewest, std::bit_ceil(2 * count));
    if (size > places_.size()) grow(size);
  }

 private:
  struct Place {
    uint64_t hash = 0;
    uint32_t entry = kNone;
  };
  size_t mask() const { return places_.size() - 1; }
  size_t home(uint64_t hash) const { return (hash * 0x9E3779B97F4A7C15u >> 32) & mask(); }
  void put(Place place) {
    size_t i = home(place.hash);
    while (places_[i].entry != kNone) i = (i + 1) & mask();
    places_[i] = place;
  }
  static constexpr size_t kFewest = 32;
  void grow(size_t size) {
    std::vector<Place> before(size);
    before.swap(places_);
    for (const Place& place : before)
      if (place.entry != kNone) put(place);
  }

  std::vector<Place> places_;
  size_t count_ = 0;
};

}  // namespace fastjit::support
