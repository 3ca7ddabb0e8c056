#pragma once
// Stretches of a graph that repeat: which of its nodes are alike in every round, and where their operands come from.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace fastjit::plan {

/// The nodes that do work, in order. Arguments, constants and what views of these are stand beside it: they are there
/// before any of it.
struct Sequence {
  std::vector<ir::NodeId> nodes;
  std::vector<uint32_t> places;  // per node of the graph: its place in `nodes`, or kNone
  std::vector<bool> live;        // per node of the graph
  std::vector<bool> looped;      // per node of the graph: a loop makes it
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
};
Sequence sequence_of(const ir::Graph& graph);

/// Per node of the sequence a number that is equal for nodes of equal work: what may differ from round to round, such
/// as operands and offsets, has no say, and neither have the constants that torch's calls are given. What cannot repeat
/// has a number of its own, and so have the nodes of the graph that are to stay `alone`.
std::vector<uint32_t> tokens_of(const ir::Graph& graph, const Sequence& sequence, const std::vector<bool>& alone);

/// A product of matrices with nothing but its factors and a bias, which kernels can compute too.
bool is_matrix_product(const ir::ContractAttr& attr);

/// Where an operand comes from, in every round.
struct Source {
  enum class Of : uint8_t {
    Round,    // node `at` of this round
    Before,   // node `at` of the round before; in the first round `first`
    Outside,  // a node that is there before the loop
  };
  Of of = Of::Outside;
  uint32_t at = 0;
  ir::NodeId first = ir::kNoNode;
};

/// `trip` rounds of `period` nodes each, from place `begin` of the sequence on.
struct Rounds {
  uint32_t begin = 0, period = 0;
  int64_t trip = 0;
  ir::Dim count = trip;              // how many there are: of a traced loop an expression
  std::vector<Source> sources;       // of the operands of all nodes of a round
  std::vector<uint32_t> firsts;      // per node of a round: where its sources begin; and one more
  std::vector<ir::NodeId> operands;  // per source, per round

  std::span<const Source> sources_of(uint32_t at) const {
    return std::span(sources).subspan(firsts[at], firsts[at + 1] - firsts[at]);
  }
  /// Operand k of a node of a round, in all rounds.
  std::span<const ir::NodeId> operands_at(uint32_t at, size_t k) const {
    return std::span(operands).subspan((firsts[at] + k) * static_cast<size_t>(trip), static_cast<size_t>(trip));
  }
  uint32_t end() const { return begin + static_cast<uint32_t>(trip) * period; }
  /// Node `at` of a round.
  ir::NodeId node(const Sequence& sequence, int64_t round, uint32_t at) const {
    return sequence.nodes[begin + static_cast<size_t>(round) * period + at];
  }
  /// The place of a node, counted from the first of the rounds; Sequence::kNone: it is none of theirs.
  uint32_t place(const Sequence& sequence, ir::NodeId id) const {
    const uint32_t place = sequence.places[id] - begin;  // far behind the end where it is kNone, or before `begin`
    return place < end() - begin ? place : Sequence::kNone;
  }
};

/// Whether all rounds have the same node, of those that `operands_at()` gives.
bool is_one_node(std::span<const ir::NodeId> per_round);

/// Whether a round reads values of the one before.
bool hands_on(const Rounds& rounds);

/// Finds `sources` and `operands`. Where rounds differ, the ones that are alike are kept, less the first if it alone is
/// another; nothing if fewer than three are.
std::optional<Rounds> alike_rounds(const ir::Graph& graph, const Sequence& sequence, Rounds rounds);

/// So many of the rounds, from number `first` on.
Rounds part_of(const Sequence& sequence, const Rounds& rounds, int64_t first, int64_t trip);

/// How far behind `begin` a round begins best: where fewest bytes go from one round to the next.
uint32_t best_phase(const ir::Graph& graph, const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t period);

/// The views through which `id` is seen, outermost first, and what they are views of. Views that a loop makes are what
/// others find of it.
struct Seen {
  std::vector<ir::NodeId> views;
  ir::NodeId base;
};
Seen seen_through(const ir::Graph& graph, const Sequence& sequence, ir::NodeId id);
/// What they are views of.
ir::NodeId base_of(const ir::Graph& graph, const Sequence& sequence, ir::NodeId id);

/// The maps of one view in each round: that of the first, and how much further each of its rows begins in the next.
struct WalkingMap {
  ir::IndexMap first;
  std::vector<ir::Dim> steps;
};
/// `maps`: one a round, from sizes that are alike, of so many rounds. Nothing: they differ by more.
std::optional<WalkingMap> walking_map(std::span<const ir::IndexMap* const> maps, ir::Dim count);

}  // namespace fastjit::plan
