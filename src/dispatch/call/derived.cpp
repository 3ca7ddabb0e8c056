#include "dispatch/call/derived.h"

#include <algorithm>

namespace fastjit::dispatch {
namespace {

// A guard is of an int or a bool: schedule_numbers() refuses floats.
bool is_same(PyObject* a, PyObject* b) {
  return Py_IS_TYPE(a, Py_TYPE(b)) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

std::string name_of(const observe::Derivation& how) { return how.text + " at " + how.where; }

}  // namespace

void Derived::add(observe::Derivation how, const std::vector<int>& place, Use use) {
  std::vector<int> places;
  for (const auto& operand : how.operands)
    places.push_back(operand.scalar < 0 ? -1 : place[static_cast<size_t>(operand.scalar)]);
  has_guards_ |= use == Use::Guard;
  asks_clock_ |= how.asked == observe::Asked::Clock;
  draws_ |= how.asked == observe::Asked::Random;
  draws_from_numpy_ |= how.asked == observe::Asked::NumpyRandom;
  PyTypeObject* type = Py_TYPE(how.number.get());
  formulas_.push_back({std::move(how), std::move(places), type, use});
}

bool Derived::holds(PyObject* const* given, size_t count) const noexcept {
  try {
    return !Numbers(*this, given, count).differs();
  } catch (const std::exception&) {  // no memory
    return false;
  }
}

std::string Derived::last_guard() const {
  const auto last =
      std::find_if(formulas_.rbegin(), formulas_.rend(), [](const Formula& s) { return s.use == Use::Guard; });
  return last == formulas_.rend() ? "" : name_of(last->how);
}

std::vector<std::string> Derived::describe() const {
  std::vector<std::string> out;
  for (const Formula& step : formulas_) {
    if (step.how.asked != observe::Asked::No) out.push_back("asked again: " + name_of(step.how));
    if (step.use == Use::Guard)
      out.push_back("value of " + name_of(step.how) + " is " + observe::words(step.how.number.get()));
  }
  return out;
}

Derived::Numbers::Numbers(const Derived& derived, PyObject* const* given, size_t count)
    : derived_(derived), all_(given, given + count), given_(count) {
  all_.resize(count + derived.formulas_.size(), nullptr);
  if (derived.draws_ || derived.draws_from_numpy_) state_.emplace(derived.draws_, derived.draws_from_numpy_);
  if (state_ && !state_->known()) why_ = "the state of a random number generator cannot be read";
  for (size_t i = 0; i < derived.formulas_.size() && why_.empty(); ++i)
    if (derived.formulas_[i].use != Use::Late && !compute(i) && why_.empty()) {
      why_ = "number " + name_of(derived.formulas_[i].how) + " raises " +
             (PyErr_Occurred() ? ((PyTypeObject*)PyErr_Occurred())->tp_name : "an error");
      PyErr_Clear();  // eager raises its own
    }
}

// False: it raises, or `why_` says what is wrong with it.
bool Derived::Numbers::compute(size_t at) {
  const Formula& step = derived_.formulas_[at];
  c10::SmallVector<PyObject*, 4> operands;
  for (size_t i = 0; i < step.places.size(); ++i)
    operands.push_back(step.places[i] < 0 ? step.how.operands[i].value.get()
                                          : all_[static_cast<size_t>(step.places[i])]);
  PyObject* number = step.how.compute(operands.data());
  if (!number) return false;
  all_[given_ + at] = number;
  if (step.use == Use::Guard && !is_same(number, step.how.number.get())) {
    differs_ = true;
    why_ = "value of " + name_of(step.how) + " was " + observe::words(step.how.number.get()) + ", is " +
           observe::words(number);
  } else if (Py_TYPE(number) != step.type) {
    why_ = "number " + name_of(step.how) + " was of type " + step.type->tp_name + ", is of type " +
           Py_TYPE(number)->tp_name;
  } else if (step.use == Use::Open && !observe::fits_program(number)) {
    why_ = "number " + name_of(step.how) + " is too large";
  }
  return why_.empty();
}

bool Derived::Numbers::finish() {
  for (size_t i = 0; i < derived_.formulas_.size(); ++i)
    if (derived_.formulas_[i].use == Use::Late && !compute(i)) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, ("fastjit: " + why_).c_str());
      return false;
    }
  return true;
}

Derived::Numbers::~Numbers() {
  if (state_) state_->put_back();
  std::for_each(all_.begin() + static_cast<ptrdiff_t>(given_), all_.end(), Py_DecRef);
}

std::string text(const observe::Derivation& how, const std::vector<std::string>& operands) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < operands.size(); ++i)
    shown.push_back(operands[i].empty() ? observe::words(how.operands[i].value.get()) : operands[i]);
  if (how.binary || how.comparison >= 0 || (how.test && shown.size() == 2))
    return "(" + shown[0] + " " + how.text + " " + shown[1] + ")";
  if (how.unary) return how.text + shown[0];
  std::string out;
  for (const std::string& one : shown) out += (out.empty() ? "" : ", ") + one;
  return how.text + "(" + out + ")";
}

}  // namespace fastjit::dispatch
