#include "dispatch/call/derived.h"

#include <algorithm>

namespace fastjit::dispatch {

void Derived::add(observe::Derivation how, const std::vector<int>& place) {
  std::vector<int> places;
  for (const auto& operand : how.operands)
    places.push_back(operand.scalar < 0 ? -1 : place[static_cast<size_t>(operand.scalar)]);
  PyTypeObject* type = Py_TYPE(how.number.get());
  formulas_.push_back({std::move(how), std::move(places), type});
}

Derived::Numbers::Numbers(const Derived& derived, PyObject* const* given, size_t count)
    : all_(given, given + count), given_(count) {
  c10::SmallVector<PyObject*, 4> operands;
  for (const Formula& step : derived.formulas_) {
    operands.clear();
    for (size_t i = 0; i < step.places.size(); ++i)
      operands.push_back(step.places[i] < 0 ? step.how.operands[i].value.get()
                                            : all_[static_cast<size_t>(step.places[i])]);
    PyObject* number = step.how.compute(operands.data());
    const auto name = [&] { return "number " + step.how.text + " at " + step.how.where; };
    if (!number) {
      why_ = name() + " raises " + (PyErr_Occurred() ? ((PyTypeObject*)PyErr_Occurred())->tp_name : "an error");
      PyErr_Clear();  // eager raises its own
      return;
    }
    all_.push_back(number);
    if (Py_TYPE(number) != step.type)
      why_ = name() + " was of type " + step.type->tp_name + ", is of type " + Py_TYPE(number)->tp_name;
    else if (!observe::fits_program(number))
      why_ = name() + " is too large";
    if (!why_.empty()) return;
  }
}

Derived::Numbers::~Numbers() { std::for_each(all_.begin() + static_cast<ptrdiff_t>(given_), all_.end(), Py_DecRef); }

std::string text(const observe::Derivation& how, const std::vector<std::string>& operands) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < operands.size(); ++i)
    shown.push_back(operands[i].empty() ? observe::words(how.operands[i].value.get()) : operands[i]);
  if (how.binary) return "(" + shown[0] + " " + how.text + " " + shown[1] + ")";
  if (how.unary) return how.text + shown[0];
  std::string out;
  for (const std::string& one : shown) out += (out.empty() ? "" : ", ") + one;
  return how.text + "(" + out + ")";
}

}  // namespace fastjit::dispatch
