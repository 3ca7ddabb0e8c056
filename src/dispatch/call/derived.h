#pragma once
// Numbers that a call computes out of its number arguments before a tensor meets them, `-lr` or `1 - beta ** step`:
// computed again at each hit, by the operations that Python itself would run.
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <vector>

#include "observe/observe.h"

namespace fastjit::dispatch {

class Derived {
 public:
  bool empty() const { return formulas_.empty(); }
  /// `place[i]`: where watched number i is among the numbers of a call, negative where it is the same in all of them.
  /// The new number's place is the next one.
  void add(observe::Derivation how, const std::vector<int>& place);

  /// The numbers of one call: those it was given and the derived ones behind them.
  class Numbers {
   public:
    Numbers(const Derived& derived, PyObject* const* given, size_t count);
    ~Numbers();
    Numbers(const Numbers&) = delete;
    Numbers& operator=(const Numbers&) = delete;
    PyObject* const* data() const { return all_.data(); }
    /// Not empty: this call must run eagerly, since a number raises or has another type than in the recorded call.
    const std::string& why() const { return why_; }

   private:
    c10::SmallVector<PyObject*, 16> all_;  // owned from given_ on
    size_t given_;
    std::string why_;
  };

 private:
  struct Formula {
    observe::Derivation how;
    std::vector<int> places;  // per operand
    PyTypeObject* type;
  };
  std::vector<Formula> formulas_;
};

/// "(1 - beta)", for operands of these names; an empty one is shown by its value.
std::string text(const observe::Derivation& how, const std::vector<std::string>& operands);

}  // namespace fastjit::dispatch
