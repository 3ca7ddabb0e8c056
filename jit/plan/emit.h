#pragma once
// The emitter of one draft: instructions by (node, index map), shared wherever they are visible.
#include "plan/draft.h"
#include "support/flat.h"
#include "support/hash_index.h"

namespace fastjit::plan {

class Emitter {
 public:
  Emitter(const World& world, const Space& frame, std::span<const Root> roots, bool allow_keep);
  using Outcome = std::variant<Draft, MustStore, Mismatch, Split>;
  Outcome run();

 private:
  using Obstacle = std::variant<MustStore, Mismatch, Split>;
  using Value = std::optional<uint32_t>;  // none: an obstacle was met

  /// A node that was emitted under a map.
  struct Memo {
    ir::NodeId node;
    uint32_t map, value;
  };

  Value emit(ir::NodeId id, const Map& map, int section);
  Value make(ir::NodeId id, const Map& map, int section);
  Value make_pointwise(ir::NodeId id, const Map& map, int section);
  Value make_view(ir::NodeId id, const Map& map, int section);
  Value make_reshape(ir::NodeId id, const Map& map, int section);
  Value make_reduce(ir::NodeId id, const Map& map, int section);
  Value make_gather(ir::NodeId id, const Map& map, int section);
  uint32_t load(const Storage& storage, ir::DType dtype, const Map& map, int section);
  uint64_t access_at(const Storage& storage, ir::DType dtype, const Map& map, std::optional<Dim> step);
  uint32_t affine(const Linear& index, int section);
  uint32_t recall(uint32_t value, int section);
  uint32_t constant(ir::DType dtype, uint64_t bits, int section);
  uint32_t add(Instr instr, int section);
  bool spreads(ir::NodeId inner, Dim outer_points, uint32_t value) const;
  std::nullopt_t refuse(Obstacle obstacle);
  std::nullopt_t refuse(const Unraveled& failed);

  struct ByNode {
    static ir::NodeId empty() { return ir::kNoNode; }
    size_t operator()(ir::NodeId id) const { return id; }
  };

  uint32_t intern(const Map& map);
  int depth(ir::NodeId id);  // reduction phases below the node
  int hoisted(ir::NodeId id, const Map& map, int section);
  const Root* find_root(ir::NodeId id) const;
  bool visible(uint32_t value, int section) const;

  const World& world_;
  const ir::Graph& graph_;
  const Space& frame_;
  std::span<const Root> roots_;
  std::vector<Map> root_maps_;
  bool allow_keep_;
  int nesting_ = 0;
  Draft draft_;
  std::optional<Obstacle> obstacle_;  // the first that was met
  std::vector<Map> maps_;             // each once
  std::vector<Memo> memos_;
  support::HashIndex known_maps_, known_, interned_;  // of maps, memos, instructions
  support::FlatMap<ir::NodeId, int, ByNode> depths_;
  std::unordered_map<uint64_t, int> makes_;      // (node, section) -> how often an expensive node was made there
  std::unordered_map<uint32_t, uint32_t> kept_;  // value -> scratch slot
};

}  // namespace fastjit::plan
