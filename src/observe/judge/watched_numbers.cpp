#include "observe/judge/watched_numbers.h"

#include <algorithm>

namespace fastjit::observe {

void WatchedNumbers::watch(PyObject* number, From from) {
  by_address_[number] = all_.size();
  all_.push_back({Ref::share(number), from});
  has_asked_ |= is_asked(all_.size() - 1);
}

size_t WatchedNumbers::find(PyObject* o) const {
  if (all_.empty()) return kNone;
  const auto known = by_address_.find(o);
  return known == by_address_.end() ? kNone : known->second;
}

bool WatchedNumbers::is_open(PyObject* o) const {
  const size_t which = find(o);
  return which != kNone && all_[which].is_open;
}

void WatchedNumbers::add_operand(Derivation& how, PyObject* o) const {
  const size_t which = find(o);
  const bool open = which != kNone && is_open(which);
  how.of_tensor |= open && from(which) == From::Tensor;
  how.of_asked |= open && is_asked(which);
  how.of_clock |= open && from(which) == From::Clock;
  how.of_size |= open && from(which) == From::Size;
  how.operands.push_back({open ? static_cast<int>(which) : -1, Ref::share(o)});
}

const Derivation* WatchedNumbers::derivation_of(size_t which) const {
  const auto how = std::ranges::find(derivations_, which, &Derivation::scalar);
  return how == derivations_.end() ? nullptr : &*how;
}

size_t WatchedNumbers::asked() const {
  size_t count = 0;
  for (size_t which = 0; which < all_.size(); ++which) count += is_asked(which);
  return count;
}

void WatchedNumbers::tell(Observation& seen) {
  for (const Watched& one : all_) {
    seen.references.push_back(Py_REFCNT(one.number.get()) - 1);
    seen.symbolic.push_back(one.is_open);
  }
  for (const Derivation& how : derivations_) {
    if (how.scalar != Derivation::kUnwatched) --seen.references[how.scalar];
    for (const Derivation::Operand& operand : how.operands)
      if (operand.scalar >= 0) --seen.references[static_cast<size_t>(operand.scalar)];
  }
  seen.derivations = std::move(derivations_);
  for (Watched& one : all_) seen.watched.push_back(std::move(one.number));
}

}  // namespace fastjit::observe
