#pragma once
// From rounds that are alike to a loop: its body, and what it is given and gives.
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plan/body.h"
#include "plan/hoist.h"
#include "plan/rounds.h"

namespace fastjit::plan {

/// Parts of a Cat that are values of rounds, in the order of these, or the last round's first.
struct CatOfRounds {
  struct Part {
    uint32_t at;     // node of a round
    uint32_t first;  // operand of the Cat: that of the first round
  };
  ir::NodeId cat = ir::kNoNode;
  int64_t stride = 1;  // operands from one round's to the next
  int64_t trip = 0;
  std::vector<Part> parts;

  /// The operand that a round gives.
  size_t operand(Part part, int64_t round) const { return static_cast<size_t>(part.first + stride * round); }
  /// Whether a round gives this operand.
  bool is_round(size_t operand) const;
};

/// Values of rounds that somebody behind the loop reads.
struct Wanted {
  std::vector<bool> last;  // per node of a round: of the last round
  std::vector<bool> all;   // of others too
  std::vector<CatOfRounds> cats;
};

/// A value that rounds store over, and the memory that it begins with.
struct PlacedValue {
  enum class Kind : uint8_t { Base, Gather, Cat } kind;
  uint32_t at;                    // node of a round: of a Base the last Update, else what is stored
  ir::NodeId base = ir::kNoNode;  // Base: what it is before the loop
  CatOfRounds cat{};
};

struct MadeLoop {
  Rounds rounds;
  /// Operands: nodes of the old graph, kNoNode where a Gather or Cat begins, or a product is hoisted.
  ir::LoopAttr attr;
  std::vector<Hoisted> hoisted;
  std::vector<ir::NodeId>
      packed;        // right factors that the body gets as copies by rows: operands behind the other fixed
  int64_t most = 0;  // rounds it may have
  Body body;
  std::shared_ptr<const ir::Graph> asked;  // of which `body` is the plan
  std::vector<PlacedValue> placed;
  std::map<uint32_t, uint32_t> finals;   // node of a round -> the Final that is its last value
  std::map<uint32_t, uint32_t> gathers;  // node of a round -> the Final that holds its values of all rounds
};

/// Where a Gather holds the value of a round, which has this rank.
ir::IndexMap gathered_at(ir::Dim round, size_t rank);

/// Of rounds that hand something on. Nothing: they differ in what a loop cannot express, or its body is no list of
/// launches. With `at_most` a loop of more rounds than it may have gets no body. That of `like`, a loop of the same
/// graph, is this one's too if it is the plan of the same.
std::optional<MadeLoop> make_loop(const ir::Graph& graph, const Sequence& sequence, Rounds rounds, const Wanted& wanted,
                                  const PlanOptions& options, bool at_most = false, const MadeLoop* like = nullptr);

}  // namespace fastjit::plan
