#pragma once
// What the rounds of a loop store over while it is still to be read.
#include "plan/loop_maker.h"

namespace fastjit::plan {

/// Whether `value`, which the first round gets, may be seen through views of what a placed value begins with, in a
/// region that some round stores over: the loop is to begin with a copy of it.
bool is_stored_over(const ir::Graph& graph, const Sequence& sequence, const MadeLoop& loop, ir::NodeId value);

}  // namespace fastjit::plan
