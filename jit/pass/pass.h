#pragma once
// Graph to graph, one free function each; the pipeline is one visible list.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/numerics.h"

namespace fastjit::pass {

struct PassContext {
  ir::Numerics numerics = ir::Numerics::Eager;
  bool channels_last = true;  // convolutions may run so: the library is faster that way
};

/// Nothing: the graph stays as it is.
using Changed = std::optional<ir::Graph>;

Changed fold(const ir::Graph& graph,
             const PassContext& context);  // constants, identities that keep every bit, conversion pairs
Changed unread(const ir::Graph& graph,
               const PassContext& context);  // an update of which only what it left alone is read is none
Changed slices(const ir::Graph& graph,
               const PassContext& context);  // a tensor that is filled slice by slice from another is a view of that
Changed sums(const ir::Graph& graph,
             const PassContext& context);  // a sum of tensors of one slice each among zeros is one of all slices
Changed variants(const ir::Graph& graph,
                 const PassContext& context);  // cheaper forms of an operation where its result is rounded at once
Changed biases(const ir::Graph& graph,
               const PassContext& context);  // a product's bias is added by the kernels that read the sum anyway
Changed layouts(const ir::Graph& graph, const PassContext& context);  // convolutions of images in channels_last
Changed dead(const ir::Graph& graph, const PassContext& context);     // drops pure nodes nothing needs

struct Pass {
  const char* name;
  Changed (*run)(const ir::Graph&, const PassContext&);
};
const std::vector<Pass>& pipeline();

struct PassRecord {
  std::string name;
  size_t nodes = 0;
  double ms = 0;
  std::string graph;
};

/// Runs the pipeline; verifies after each pass in debug builds. `records`, if given, gets the graph's text after each
/// pass.
ir::Graph run(const ir::Graph& graph, const PassContext& context, std::vector<PassRecord>* records = nullptr);

}  // namespace fastjit::pass
