#pragma once
// From a recorded call with its way back to two graphs, and from the second one to programs. Private to compile.cpp.
#include <memory>

#include "dispatch/learn/compile.h"
#include "dispatch/run/backward.h"

namespace fastjit::dispatch {

/// A way back whose programs cannot be made yet.
struct Cut {
  std::shared_ptr<WayBack> way;  // null: the call has none; without its nodes
  std::vector<std::shared_ptr<Backward>> nodes;
};

/// Cuts what was captured: the call's own graph stays there, with outputs behind its results for what the way back
/// needs of it. How both ways lie in memory is chosen here. Throws support::Unable.
Cut cut(capture::Capture& captured, const std::string& function, const pass::PassContext& context);

/// What programs of its nodes are made of, for gradients of all their results or some. Throws support::Unable: these
/// are too many to be tried.
std::vector<ir::Graph> graphs_of(const Cut& cut);

/// Programs of the way back are made as the call's own, whose compilation, calls of torch's and device these are.
void make_like(Cut& cut, const Compilation& like, const Executable& executable, c10::Device device);

}  // namespace fastjit::dispatch
