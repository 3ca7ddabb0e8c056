#pragma once
// A graph as two that run one after the other: the way to the results, and the way back from their gradients.
#include <vector>

#include "ir/graph.h"

namespace fastjit::pass {

/// What of the graph waits for the second half, and what of the caller's tensors may be kept for it.
struct SplitAt {
  std::vector<bool> late_inputs;   // per input: only the second half is given it
  std::vector<bool> late_outputs;  // per output: the second half makes it
  std::vector<bool> kept_inputs;   // per input that is not late
  std::vector<bool> kept_outputs;  // per output that is not late, in order
};

/// Where an input of the second half comes from.
struct Handed {
  enum class From : uint8_t {
    Input,   // input `index` of the graph
    Output,  // output `index` of the first half, which is the caller's
    Extra,   // output `index` of the first half, which nobody else has
    Late,    // input `index` of the graph, when the second half runs
  } from;
  uint32_t index;
  bool operator==(const Handed&) const = default;
};

struct Halves {
  ir::Graph first;                     // its outputs: those of the graph that are not late, then what it hands over
  std::vector<uint32_t> first_inputs;  // per input of it: which of the graph's
  ir::Graph second;                    // its outputs: the late ones; the run-time scalars of the graph
  std::vector<Handed> handed;          // per input of it
};

/// A graph where what was computed from the values of some outputs is computed from new inputs instead, other outputs
/// of the same value too. Those outputs are what they were.
struct CutAt {
  ir::Graph graph;
  std::vector<uint32_t> inputs;  // per such output, behind those that there were
};
CutAt cut_at(const ir::Graph& graph, const std::vector<uint32_t>& outputs);

/// What both halves need is made by the first and handed over. What costs nothing, what follows pointwise from what is
/// handed over anyway, and what the first does not need, the second makes, each where it is used first; and what few
/// operations make of the result of a call is made again of that. Throws support::Unable where the first half
/// needs what is late, or the second writes what the first made.
Halves split(const ir::Graph& graph, const SplitAt& at);

/// Of each input of a graph: from which sets of inputs those nodes follow that need it and some input with a bit, where
/// `bits` gives each input one or none. Sorted, each set once.
std::vector<std::vector<uint64_t>> uses_beside(const ir::Graph& graph, const std::vector<uint64_t>& bits);

/// The second half where some of its late inputs are missing, as a gradient is that no result needs.
struct Pruned {
  ir::Graph graph;               // its outputs: those that are wanted
  std::vector<uint32_t> inputs;  // per input of it: which of the graph's
  std::vector<int> outputs;      // per output of the graph: which of it; -1: not wanted
};

/// `late`: per input of the graph, `missing` some of these. What follows from missing ones and from no other late one
/// is missing too, as autograd has it: added to something it is nothing, and anything else takes it for zeros. So does
/// an output that is wanted: autograd has come to it, and what it brings there has other reasons than those
/// (`zero_()`).
Pruned prune(const ir::Graph& graph, const std::vector<bool>& late, const std::vector<bool>& missing,
             const std::vector<bool>& wanted);

/// Whether each output is a sum of what late inputs hold, times what they have no part in. So what gradients make of
/// their sum is the sum of what each makes, and zeros make zeros. May say no of one that is.
bool is_linear(const ir::Graph& graph, const std::vector<bool>& late);

}  // namespace fastjit::pass
