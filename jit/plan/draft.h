#pragma once
// A kernel while it is being decided: roots over one frame, emitted into instructions whose loads still name buffers.
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "ir/graph.h"
#include "plan/cost.h"
#include "plan/kernel_plan.h"
#include "plan/maps.h"
#include "support/mix.h"

namespace fastjit::plan {

/// A piece of memory with the type and sizes of `node`: the node's own, or one beside it.
struct BufferId {
  enum Part : uint32_t {
    Own,
    Packed,    // the row-major copy below a Reshape that strides cannot express
    Snapshot,  // the old contents of an input
    ForCall,   // the tensor made for a call of torch's; from here on one each
  };
  ir::NodeId node = ir::kNoNode;
  uint32_t part = Own;

  BufferId() = default;
  BufferId(ir::NodeId node, uint32_t part = Own) : node(node), part(part) {}  // a node stands for its own
  bool is_own() const { return part == Own; }
  auto operator<=>(const BufferId&) const = default;
};

struct HashBuffer {
  size_t operator()(BufferId id) const { return support::mix(id.node, id.part); }
};
using BufferSet = std::unordered_set<BufferId, HashBuffer>;
template <class T>
using ByBuffer = std::unordered_map<BufferId, T, HashBuffer>;

/// Where the elements of a value lie: strides per dim of the value, in elements.
struct Storage {
  BufferId buffer;
  Dim offset;
  std::vector<Dim> strides;
};

/// A value that a kernel computes. Without a destination it is only used inside the kernel.
struct Root {
  ir::NodeId value;
  bool full = false;  // moves along the reduced dims too
  bool copy = false;  // in memory before this kernel, which only copies it
  std::vector<Storage> dests;
};

struct Access {
  BufferId buffer;
  ir::DType dtype;
  Linear address;                // per iteration dim, then the offset
  std::optional<Dim> step = {};  // of a Gather: so many elements for each that its index is higher
  /// It reads this very element at each point.
  bool is_at(const Linear& place) const { return !step && identical(address, place); }
};

/// Lists of a draft: 2p is `elem` of phase p, 2p + 1 its `row`.
constexpr int elem_section(int phase) { return 2 * phase; }
constexpr int row_section(int phase) { return 2 * phase + 1; }

struct Draft {
  std::vector<Instr> code;       // Load and Store: imm is an index into `accesses`
  std::vector<uint8_t> section;  // per instruction: the list from whose end on its value is known
  std::vector<bool> heavy;       // per instruction: expensive to compute again
  std::vector<std::vector<uint32_t>> lists;
  std::vector<Access> accesses;
  std::vector<uint32_t> scalars;  // program scalar per kernel scalar
  std::vector<ir::DType> scalar_types, scratch;
  std::vector<uint32_t> values;  // per root
  std::vector<uint8_t> homes;    // per root: the list its stores belong to
};

/// Whether a list after that of root `which` loads from a buffer that `is_it` accepts: a store there would come first.
template <class Accept>
bool is_loaded_after(const Draft& draft, size_t which, Accept is_it) {
  for (size_t list = draft.homes[which] + size_t{1}; list < draft.lists.size(); ++list)
    for (const uint32_t at : draft.lists[list])
      if (is_load(draft.code[at]) && is_it(draft.accesses[draft.code[at].imm].buffer)) return true;
  return false;
}

/// What is known while kernels are formed: the graph and where values lie.
struct World {
  const ir::Graph& graph;
  const Costs& costs;
  std::vector<std::optional<Storage>> storage;      // per node
  std::unordered_map<ir::NodeId, BufferId> packed;  // Reshape -> its row-major copy
  std::vector<uint64_t> structure;                  // per node: see Choice

  World(const ir::Graph& graph, const Costs& costs) : graph(graph), costs(costs), storage(graph.nodes.size()) {}
  Dim numel(ir::NodeId id) const { return graph.layout(id).numel(); }
  /// The node as a strided tensor in memory, through views; nothing if it is computed or strides cannot express it.
  std::optional<Storage> strided(ir::NodeId id, std::span<const Root> inlined = {}) const;
  bool is_strided(ir::NodeId id, std::span<const Root> inlined) const;
  /// Where it lies itself; null where it is computed, or seen through views.
  const Storage* stored(ir::NodeId id, std::span<const Root> inlined) const;
};

/// A Reduce or Dot over more than one element.
bool is_loop(const ir::Graph& graph, ir::NodeId id);

/// The node must be in memory before this kernel can be formed.
struct MustStore {
  ir::NodeId node;
};
/// These roots do not fit into one kernel.
struct Mismatch {};
using Drafted = std::variant<Draft, MustStore, Mismatch>;

/// Emits `roots` over `frame`, which is refined in place where a Reshape needs it.
Drafted draft(const World& world, Space& frame, std::span<const Root> roots, bool allow_keep);

Unraveled unravel_root(const World& world, const Space& frame, const Root& root);
/// The map of a root's value over the frame that it was emitted over.
Map root_map(const World& world, const Space& frame, const Root& root);
/// The address, per iteration dim, at which it lies with these strides; the last cell is an offset.
Linear root_address(const World& world, const Space& frame, const Root& root, std::span<const Dim> strides);

}  // namespace fastjit::plan
