#pragma once
// Which operators of a recording say nothing that others do not say as well.
#include <set>
#include <unordered_map>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// Operators whose numbers those of others tell, so that recordings of loops of other lengths have as many of their
/// own: in rounds that do the same as an earlier one, and of what is spread over rounds all but the first.
class ToldByOthers {
 public:
  explicit ToldByOthers(const Trace& trace);
  /// The operator that tells what this one was given; kNone: it speaks for itself.
  uint32_t by(uint32_t event) const;
  /// Whether it is given a list with a tensor of each round of a way back.
  bool lists_rounds(uint32_t event) const { return lists_.contains(event); }

 private:
  std::unordered_map<uint32_t, uint32_t> by_;
  std::set<uint32_t> lists_;
};

}  // namespace fastjit::capture
