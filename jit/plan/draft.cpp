// The world that drafts are made in.
#include "plan/draft.h"

#include <algorithm>

#include "plan/emit.h"

namespace fastjit::plan {

/// Whether the kernel of these roots has the value without loading it: a root is it, or is what it is a view of and
/// stored in its memory.
static bool is_inlined(const World& world, ir::NodeId id, std::span<const Root> inlined) {
  const std::optional<Storage>& storage = world.storage[id];
  const bool is_stored_view = storage && ir::is_view(world.graph[id].op);
  return std::ranges::any_of(inlined, [&](const Root& root) {
    if (root.copy) return false;
    return root.value == id || (is_stored_view && std::ranges::any_of(root.dests, [&](const Storage& dest) {
                                  return dest.buffer == BufferId(id) && dest.buffer == storage->buffer;
                                }));
  });
}

const Storage* World::stored(ir::NodeId id, std::span<const Root> inlined) const {
  return storage[id] && !is_inlined(*this, id, inlined) ? &*storage[id] : nullptr;
}

bool World::is_strided(ir::NodeId id, std::span<const Root> inlined) const {
  if (stored(id, inlined)) return true;
  const ir::Op op = graph[id].op;
  return ir::is_view(op) && strided(id, inlined);
}

std::optional<Storage> World::strided(ir::NodeId id, std::span<const Root> inlined) const {
  if (is_inlined(*this, id, inlined)) return std::nullopt;
  if (storage[id]) return storage[id];
  const ir::Node& node = graph[id];
  if (!ir::is_view(node.op)) return std::nullopt;
  const Storage* base = stored(node.in[0], inlined);
  std::optional<Storage> made;
  if (!base) {
    made = strided(node.in[0], inlined);
    if (!made) return std::nullopt;
    base = &*made;
  }
  if (node.op == ir::Op::View) {
    ir::ViewStrides view = ir::view_strides(graph.maps[node.attr], node.rank, base->strides);
    return Storage{base->buffer, base->offset + view.offset, std::move(view.strides)};
  }
  auto strides = reshape_strides(graph.sizes(node.in[0]), base->strides, graph.sizes(id));
  if (!strides) return std::nullopt;
  return Storage{base->buffer, base->offset, std::move(*strides)};
}

bool is_loop(const ir::Graph& graph, ir::NodeId id) {
  const ir::Node& node = graph[id];
  if (node.op != ir::Op::Reduce && node.op != ir::Op::Dot) return false;
  Dim points = 1;
  for (const uint8_t dim : graph.reduces[node.attr].dims) points *= graph.sizes(node.in[0])[dim];
  return points > 1 && graph.layout(node.in[0]).numel() != 0;
}

Unraveled unravel_root(const World& world, const Space& frame, const Root& root) {
  Linear position(static_cast<size_t>(frame.rank()) + 1, 0);
  for (size_t d = 0; d < frame.sizes.size(); ++d)
    position[d] = root.full ? frame.full[d] : frame.kinds[d] == DimKind::Kept ? frame.part[d] : 0;
  return unravel(std::move(position), world.graph.sizes(root.value), frame);
}

Map root_map(const World& world, const Space& frame, const Root& root) {
  return unravel_root(world, frame, root).map.value();
}

Linear root_address(const World& world, const Space& frame, const Root& root, std::span<const Dim> strides) {
  Linear address = dot(strides, root_map(world, frame, root));
  address.resize(static_cast<size_t>(frame.rank()) + 1, 0);
  return address;
}

Drafted draft(const World& world, Space& frame, std::span<const Root> roots, bool allow_keep) {
  for (;;) {
    Emitter::Outcome made = Emitter(world, frame, roots, allow_keep).run();
    if (auto* draft = std::get_if<Draft>(&made)) return std::move(*draft);
    if (const auto* need = std::get_if<MustStore>(&made)) return *need;
    if (std::holds_alternative<Mismatch>(made)) return Mismatch{};
    split(frame, std::get<Split>(made));
  }
}

}  // namespace fastjit::plan
