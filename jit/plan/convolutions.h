#pragma once
// Convolutions that kernels compute, and their gradients: sums of products over taps and channels.
#include <unordered_map>

#include "ir/graph.h"
#include "pass/rewrite.h"
#include "plan/program.h"

namespace fastjit::plan {

/// Whether kernels compute the convolution, a Contract: they can, and that costs less than torch's library does.
bool is_own_convolution(const ir::Graph& graph, ir::NodeId id, const PlanOptions& options);

/// The same of a call for the gradients of one, an Extern, of which these results are wanted.
bool are_own_gradients(const ir::Graph& graph, ir::NodeId call, std::span<const ir::NodeId> results,
                       const PlanOptions& options);

/// Puts them into a graph that is being rewritten.
class OwnConvolutions {
 public:
  OwnConvolutions(pass::Rewriter& rewriter, int lanes)
      : rewriter_(rewriter), from_(rewriter.from()), to_(rewriter.to()), lanes_(lanes) {}

  /// What a Contract gives.
  ir::NodeId convolution(ir::NodeId id);
  /// A result of a call for gradients, without the call.
  ir::NodeId gradient(ir::NodeId result);

 private:
  ir::NodeId around(ir::NodeId call);
  ir::NodeId image_gradient(ir::NodeId call);
  ir::NodeId weight_gradient(ir::NodeId call);
  ir::NodeId bias_gradient(ir::NodeId call);

  pass::Rewriter& rewriter_;
  const ir::Graph& from_;
  ir::Graph& to_;
  int lanes_;
  std::unordered_map<ir::NodeId, ir::NodeId> around_;
};

}  // namespace fastjit::plan
