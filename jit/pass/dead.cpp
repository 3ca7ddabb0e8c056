#include <algorithm>

#include "pass/keep.h"
#include "pass/pass.h"

namespace fastjit::pass {

using namespace ir;

Changed dead(const Graph& graph, const PassContext&) {
  std::vector<bool> live(graph.nodes.size(), false);
  for (NodeId id : graph.outputs) live[id] = true;
  for (const Store& store : graph.stores) live[store.value] = true;
  for (NodeId id = static_cast<NodeId>(graph.nodes.size()); id-- > 0;) {
    if (!live[id]) {
      if (!stays(graph, id)) continue;
      live[id] = true;
    }
    for (NodeId in : graph.operands(id))
      if (in != kNoNode) live[in] = true;
    take_finals(graph, id, live);
  }
  if (std::ranges::find(live, false) == live.end()) return {};
  return kept(graph, live);
}

}  // namespace fastjit::pass
