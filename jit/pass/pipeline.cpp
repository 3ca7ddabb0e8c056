#include <chrono>
#include <stdexcept>

#include "pass/pass.h"

namespace fastjit::pass {

const std::vector<Pass>& pipeline() {
  static const std::vector<Pass> kPasses{{"fold", fold},       {"unread", unread},     {"slices", slices},
                                         {"sums", sums},       {"variants", variants}, {"biases", biases},
                                         {"layouts", layouts}, {"dead", dead}};
  return kPasses;
}

static void check(const ir::Graph& graph, const char* pass) {
#ifdef FASTJIT_DEBUG
  const std::string fault = ir::verify(graph);
  if (!fault.empty()) throw std::logic_error("illegal graph after pass '" + std::string(pass) + "': " + fault);
#else
  (void)graph;
  (void)pass;
#endif
}

ir::Graph run(const ir::Graph& graph, const PassContext& context, std::vector<PassRecord>* records) {
  const ir::Symbols::Scope symbols(graph.symbols.get());
  if (records) records->push_back({"capture", graph.nodes.size(), 0, ir::print(graph)});
  check(graph, "capture");
  const ir::Graph* from = &graph;
  ir::Graph current;
  bool all_live = false;  // the last pass that changed something has left out what is dead
  for (const Pass& pass : pipeline()) {
    const auto start = std::chrono::steady_clock::now();
    if (Changed changed = all_live && pass.run == dead ? std::nullopt : pass.run(*from, context)) {
      current = std::move(*changed);
      from = &current;
      all_live = pass.run == unread || pass.run == dead;
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    check(*from, pass.name);
    if (records) records->push_back({pass.name, from->nodes.size(), took.count(), ir::print(*from)});
  }
  if (from == &graph) return graph;
  return current;
}

}  // namespace fastjit::pass
