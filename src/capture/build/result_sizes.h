#pragma once
// Sizes of what torch's operators give, where they follow from the operands by a formula.
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// A call, and what its operands are for any size.
struct SizedCall {
  const Event& event;
  size_t result;                                                 // which one of flat_results(event) is asked for
  const std::vector<ir::Layout>& tensors;                        // those among its arguments, in their order
  const std::function<std::vector<ir::Dim>(uint32_t arg)> ints;  // of an int or a list of them; else empty
  const std::function<ir::Layout(const Use& use)> layout;
};

/// Of that result; nothing: the operator is not known here. What torch gives is compared with them at each hit.
std::optional<std::vector<ir::Dim>> sizes_by_formula(const SizedCall& call);

/// The formula takes every int that the operator is given, so that each may be a size.
bool takes_sizes(std::string_view op);

/// The place of the operator's argument of that name; nothing: it has none.
std::optional<uint32_t> place_of(const Event& event, std::string_view name);

/// Those of a constant argument.
std::vector<ir::Dim> ints_of(const CallValue& item);

}  // namespace fastjit::capture
