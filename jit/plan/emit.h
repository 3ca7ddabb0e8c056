#pragma once
// The emitter of one draft: instructions by (node, index map), shared wherever they are visible.
#include "plan/draft.h"

namespace fastjit::plan {

class Emitter {
 public:
  Emitter(const World& world, const Frame& frame, std::span<const Root> roots, bool allow_keep);
  using Outcome = std::variant<Draft, MustStore, Mismatch, Split>;
  Outcome run();

 private:
  using Obstacle = std::variant<MustStore, Mismatch, Split>;
  using Value = std::optional<uint32_t>;  // none: an obstacle was met

  struct Memo {
    ir::NodeId node;
    Map map;
    uint32_t value;
  };

  Value emit(ir::NodeId id, const Map& map, int section);
  Value make(ir::NodeId id, const Map& map, int section);
  Value make_pointwise(ir::NodeId id, const Map& map, int section);
  Value make_view(ir::NodeId id, const Map& map, int section);
  Value make_reshape(ir::NodeId id, const Map& map, int section);
  Value make_reduce(ir::NodeId id, const Map& map, int section);
  uint32_t load(const Storage& storage, ir::DType dtype, const Map& map, int section);
  uint32_t affine(const Linear& index, int section);
  uint32_t recall(uint32_t value, int section);
  uint32_t constant(ir::DType dtype, uint64_t bits, int section);
  uint32_t add(Instr instr, int section);
  bool spreads(ir::NodeId inner, int64_t outer_points, uint32_t value) const;
  std::nullopt_t refuse(Obstacle obstacle);
  std::nullopt_t refuse(const Unraveled& failed);

  int depth(ir::NodeId id);  // reduction phases below the node
  int hoisted(ir::NodeId id, const Map& map, int section);
  const Root* find_root(ir::NodeId id) const;
  bool visible(uint32_t value, int section) const;

  const World& world_;
  const ir::Graph& graph_;
  const Frame& frame_;
  std::span<const Root> roots_;
  std::vector<Map> root_maps_;
  bool allow_keep_;
  int nesting_ = 0;
  Draft draft_;
  std::optional<Obstacle> obstacle_;  // the first that was met
  std::unordered_multimap<uint64_t, Memo> memo_;
  std::unordered_multimap<uint64_t, uint32_t> interned_;
  std::unordered_map<ir::NodeId, int> depths_;
  std::unordered_map<uint64_t, int> makes_;      // (node, section) -> how often an expensive node was made there
  std::unordered_map<uint32_t, uint32_t> kept_;  // value -> scratch slot
};

}  // namespace fastjit::plan
