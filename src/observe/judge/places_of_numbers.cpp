#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <utility>

#include "observe/facts/facts.h"
#include "observe/facts/number_forms.h"
#include "observe/judge/places_of_numbers.h"
#include "support/work.h"

namespace fastjit::observe {

const NumberPlace* PlacesOfNumbers::find(const void* container, PyObject* key, Py_ssize_t index) const {
  const auto [first, last] = all_.equal_range(container);
  for (auto it = first; it != last; ++it, support::count_work()) {
    const NumberPlace& known = it->second;
    const bool same_key = known.key.get() == key || (key && known.key && same_bits(known.key.get(), key));
    if (same_key && known.index == index) return &known;
  }
  return nullptr;
}

void PlacesOfNumbers::add(NumberPlace place) {
  if (const NumberPlace* known = find(place.container, place.key.get(), place.index)) {
    PyObject *was = known->was.get(), *other = place.was.get();
    if (was && PyTuple_CheckExact(was)) {
      if (Ref form = common_form(was, other)) const_cast<NumberPlace*>(known)->was = std::move(form);
      return;
    }
    const bool differ = !other || (was && Py_TYPE(was) == Py_TYPE(other) && !same_bits(was, other));
    if (differ) const_cast<NumberPlace*>(known)->was = {};
  } else if (!full()) {
    const void* container = place.container;
    all_.emplace(container, std::move(place));
  }
}

void PlacesOfNumbers::add(std::vector<NumberPlace> places) {
  for (NumberPlace& place : places) add(std::move(place));
}

bool PlacesOfNumbers::varies(const void* container, PyObject* key, Py_ssize_t index, PyObject* now) const {
  const NumberPlace* known = find(container, key, index);
  PyObject* was = known ? known->was.get() : nullptr;
  return known && (!was || (now && is_number(was) && Py_TYPE(now) == Py_TYPE(was) && !same_bits(now, was)));
}

Ref PlacesOfNumbers::form(const void* container, PyObject* key, Py_ssize_t index, PyObject* now) const {
  const NumberPlace* known = now && PyTuple_CheckExact(now) ? find(container, key, index) : nullptr;
  Ref form = known ? common_form(known->was.get(), now) : Ref();
  return form && !open_elements(form.get()).empty() ? std::move(form) : Ref();
}

std::vector<NumberPlace> PlacesOfNumbers::take() {
  std::vector<NumberPlace> out;
  out.reserve(all_.size());
  for (auto& [container, place] : std::exchange(all_, {})) out.push_back(std::move(place));
  return out;
}

}  // namespace fastjit::observe
#endif
