#pragma once
// The variants of one function. A hit is looked for at the last one first, then by the hash of the call's shapes and
// types in an open-addressing table, so that it costs the same with 2 variants as with 60.
#include <Python.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace fastjit::dispatch {

struct Variant;
class CallSpec;

/// How much of variants a function keeps.
struct Room {
  size_t variants;  // of one bound object, if it is a method
  size_t bytes;     // of all
};

class Variants {
 public:
  /// The variant with a program that served last, or null.
  const std::shared_ptr<Variant>& last() const { return last_; }
  /// Room for the tensors and numbers of any variant's call.
  size_t width() const { return width_; }
  /// Whether the programs of some are for any size.
  bool has_sized() const { return has_sized_; }
  const std::vector<std::shared_ptr<Variant>>& all() const { return all_; }  // oldest first
  std::vector<std::shared_ptr<Variant>> recent_first() const;

  /// The first variant of this hash that `serves` accepts, or null.
  template <class Serves>
  const std::shared_ptr<Variant>* find(uint64_t hash, Serves serves) const;
  /// By this call of the function. Of one that was dropped while it ran: nothing.
  void used(const std::shared_ptr<Variant>& variant, uint64_t call);
  void add(std::shared_ptr<Variant> variant, uint64_t call);
  /// Whether as many are there as there may be for this call.
  bool fills(const CallSpec& call, const Room& room) const;
  /// The one that a new variant of this call would take the place of, the least recently used; null: there is room.
  const Variant* victim(const CallSpec& call, const Room& room) const;
  /// Drops the least recently used ones, but not `newest`, until there is no more than there is room for.
  void make_room(const Variant& newest, const Room& room);
  size_t bytes() const;

  /// Recordings in a row, up to the last one, that served no second call; and of those that are there of the object
  /// that the call is bound to.
  uint64_t unused() const;
  uint64_t unused(const CallSpec& call) const;
  /// How many of these are of objects that are gone.
  uint64_t dead() const;
  void count_recording() { ++recordings_; }  // one that became no variant
  void count_served(const Variant& variant);
  void forgive() { served_ = recordings_; }  // as if the last one had served
  /// Whether one was recorded with these arguments (argument_hash).
  bool has_arguments(uint64_t hash) const;
  void drop(const std::function<bool(const Variant&)>& is_useless);
  /// Drops the variants of objects that are gone: no call can be theirs.
  void drop_dead();
  /// Gives all away: the caller releases them when the function no longer names them.
  std::vector<std::shared_ptr<Variant>> take();
  /// Variants that count against the limit for this call: those of the same bound object, if it is a call of a method.
  std::vector<std::shared_ptr<Variant>> siblings(const CallSpec& call) const;
  /// The object that the call is bound to, a first argument that is compared by identity; borrowed, null: none.
  static PyObject* owner(const CallSpec& call);

 private:
  struct Place {
    uint64_t hash = 0;
    uint32_t variant = 0;  // 1 + index; 0: free
  };
  void rebuild();
  void forget(const std::vector<std::shared_ptr<Variant>>& dropped);
  std::vector<std::shared_ptr<Variant>> all_;
  std::vector<Place> table_;  // a power of two, at most half full
  std::shared_ptr<Variant> last_;
  size_t width_ = 0;
  bool has_sized_ = false;
  uint64_t last_served() const;
  uint64_t recordings_ = 0;
  std::vector<uint64_t> dead_;  // recordings of objects that were gone before a later one served
  uint64_t served_ = 0;  // the last recording that served a call; variants that are there may know of a later one
};

template <class Serves>
const std::shared_ptr<Variant>* Variants::find(uint64_t hash, Serves serves) const {
  if (table_.empty()) return nullptr;
  for (size_t i = hash;; ++i) {
    const Place& place = table_[i & (table_.size() - 1)];
    if (!place.variant) return nullptr;
    if (place.hash == hash && serves(*all_[place.variant - 1])) return &all_[place.variant - 1];
  }
}

}  // namespace fastjit::dispatch
