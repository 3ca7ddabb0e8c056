#pragma once
// Hash tables of addresses and the like in one block of memory: the observer asks several for every instruction.
// Nothing in a table has a place that outlives the next insertion or removal. One key, that of Hash::empty(), is in no
// table: inserting it does nothing.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/work.h"

namespace fastjit::support {

inline size_t bits_of(const void* address) noexcept { return reinterpret_cast<uintptr_t>(address); }

/// Every bit depends on every other: one product alone puts addresses that an allocator spaced evenly into few runs.
/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
inline uint64_t scattered(uint64_t bits) noexcept {
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
  return bits ^ bits >> 31;
}

template <class T>
struct AddressHash {
  static T empty() noexcept { return nullptr; }
  size_t operator()(T address) const noexcept { return bits_of(address); }
};

/// What FlatSet and FlatMap share: linear probing, at most half full, no marks of what was removed.
template <class Entry, class Key, class Hash>
class FlatTable {
 public:
  Entry* begin() noexcept { return places_.data(); }  // with end(): for what find() gives, not for walking
  Entry* end() noexcept { return places_.data() + places_.size(); }
  const Entry* end() const noexcept { return places_.data() + places_.size(); }
  bool empty() const noexcept { return size_ == 0; }
  size_t size() const noexcept { return size_; }
  bool contains(const Key& key) const noexcept { return find(key) != end(); }
  const Entry* find(const Key& key) const noexcept {
    if (size_ == 0) return end();
    for (size_t i = home(key);; i = (i + 1) & mask()) {
      const Key& there = key_of(places_[i]);
      if (there == Hash::empty()) return end();
      if (there == key) return &places_[i];
      count_work();
    }
  }
  Entry* find(const Key& key) noexcept { return const_cast<Entry*>(std::as_const(*this).find(key)); }
  void clear() noexcept {
    places_ = {};
    size_ = 0;
  }
  /// What stood behind it in its run moves up, so that no search ends before it.
  void erase(const Key& key) {
    Entry* found = find(key);
    if (found == end()) return;
    size_t hole = static_cast<size_t>(found - places_.data());
    for (size_t i = (hole + 1) & mask(); !(key_of(places_[i]) == Hash::empty()); i = (i + 1) & mask()) {
      const size_t wanted = home(key_of(places_[i]));
      if (((i - wanted) & mask()) < ((i - hole) & mask())) continue;  // it is between its home and the hole's far side
      places_[hole] = std::move(places_[i]);
      hole = i;
    }
    places_[hole] = free_place();
    --size_;
  }

 protected:
  static const Key& key_of(const Key& entry) noexcept { return entry; }
  template <class Value>
  static const Key& key_of(const std::pair<Key, Value>& entry) noexcept {
    return entry.first;
  }
  static Entry free_place() {
    if constexpr (std::is_same_v<Entry, Key>) {
      return Hash::empty();
    } else {
      return Entry{Hash::empty(), {}};
    }
  }
  size_t mask() const noexcept { return places_.size() - 1; }
  size_t home(const Key& key) const noexcept { return (scattered(Hash{}(key)) >> shift_) & mask(); }
  /// Where the key is or goes, and whether it goes.
  std::pair<Entry*, bool> place(const Key& key) {
    if (2 * (size_ + 1) > places_.size()) grow();
    for (size_t i = home(key);; i = (i + 1) & mask()) {
      const Key& there = key_of(places_[i]);
      if (there == key) return {&places_[i], false};
      if (there == Hash::empty()) return {&places_[i], true};
      count_work();
    }
  }
  size_t size_ = 0;

 private:
  void grow() {
    std::vector<Entry> before(places_.empty() ? 16 : 2 * places_.size(), free_place());
    before.swap(places_);
    shift_ = 64;
    for (size_t n = places_.size(); n > 1; n /= 2) --shift_;
    for (Entry& entry : before)
      if (!(key_of(entry) == Hash::empty())) *place_again(key_of(entry)) = std::move(entry);
  }
  Entry* place_again(const Key& key) noexcept {
    size_t i = home(key);
    while (!(key_of(places_[i]) == Hash::empty())) i = (i + 1) & mask();
    return &places_[i];
  }
  std::vector<Entry> places_;
  int shift_ = 64;
};

template <class Key, class Hash = AddressHash<Key>>
class FlatSet : public FlatTable<Key, Key, Hash> {
 public:
  /// `second`: it was not there.
  std::pair<const Key*, bool> insert(const Key& key) {
    if (key == Hash::empty()) return {nullptr, false};
    const auto [at, is_new] = this->place(key);
    if (is_new) *at = key, ++this->size_;
    return {at, is_new};
  }
};

template <class Key, class Value, class Hash = AddressHash<Key>>
class FlatMap : public FlatTable<std::pair<Key, Value>, Key, Hash> {
 public:
  /// The key is not Hash::empty(). By value: what is given may be in this table.
  std::pair<std::pair<Key, Value>*, bool> emplace(Key key, Value value) {
    const auto [at, is_new] = this->place(key);
    if (is_new) *at = {std::move(key), std::move(value)}, ++this->size_;
    return {at, is_new};
  }
  void insert_or_assign(Key key, Value value) { (*this)[key] = std::move(value); }
  Value& operator[](const Key& key) {
    const auto [at, is_new] = this->place(key);
    if (is_new) *at = {key, Value{}}, ++this->size_;
    return at->second;
  }
};

}  // namespace fastjit::support
