#pragma once
// Which operand of which operator call is a number argument of the function: found by the instruction that used it.
#include <map>
#include <set>
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// Numbers of CallInputs that the program may read at run time, and where.
struct ScalarBindings {
  struct Place {
    uint32_t scalar;
    double limit;  // finite values beyond it make eager's operator raise; infinity: it takes any
  };
  std::map<std::pair<uint32_t, uint32_t>, Place> places;                     // (event, argument)
  std::map<std::pair<uint32_t, uint32_t>, std::map<uint32_t, Place>> lists;  // the same by element, of lists of numbers
  std::vector<bool> bound;                                             // per scalar: every use of it is in `places`
  const std::map<uint32_t, std::vector<uint32_t>>* derived = nullptr;  // Trace::derived

  const Place* find(uint32_t event, uint32_t argument) const;
  /// Guards these by value after all: the graph could not take them as values known at run time only. Of a derived one
  /// that is what it was computed of; and one all of whose operands are guarded is a constant.
  void refuse(const std::set<uint32_t>& scalars);
  void refuse_all();
};

/// The bound of finite numbers that this operator takes in the place of `item`: it converts a c10::Scalar with a check.
/// Nothing: the check cannot be expressed as a bound.
std::optional<double> limit_of(const Event& event, const CallValue& item, bool is_float);

/// Whether it takes any number that follows from sizes there: what a tensor's type cannot hold raises in eager.
bool takes_any_size(const Event& event, const CallValue& item, bool is_float);

ScalarBindings bind_scalars(const Trace& trace, const CallInputs& inputs, const std::vector<bool>& symbolic);

}  // namespace fastjit::capture
