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

class Variants {
 public:
  /// The variant with a program that served last, or null.
  const std::shared_ptr<Variant>& last() const { return last_; }
  /// Room for the tensors and numbers of any variant's call.
  size_t width() const { return width_; }
  const std::vector<std::shared_ptr<Variant>>& all() const { return all_; }  // oldest first
  std::vector<std::shared_ptr<Variant>> recent_first() const;

  /// The first variant of this hash that `serves` accepts, or null.
  template <class Serves>
  const std::shared_ptr<Variant>* find(uint64_t hash, Serves serves) const;
  void used(const std::shared_ptr<Variant>& variant);
  void add(std::shared_ptr<Variant> variant);
  void drop(const std::function<bool(const Variant&)>& is_useless);
  /// Drops the variants of objects that are gone: no call can be theirs.
  void drop_dead();
  /// Gives all away: the caller releases them when the function no longer names them.
  std::vector<std::shared_ptr<Variant>> take();
  /// Variants that count against the limit for this call: those of the same bound object, if it is a call of a method.
  std::vector<const Variant*> siblings(const CallSpec& call) const;

 private:
  struct Place {
    uint64_t hash = 0;
    uint32_t variant = 0;  // 1 + index; 0: free
  };
  void rebuild();
  std::vector<std::shared_ptr<Variant>> all_;
  std::vector<Place> table_;  // a power of two, at most half full
  std::shared_ptr<Variant> last_;
  size_t width_ = 0;
  uint64_t clock_ = 0;
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
