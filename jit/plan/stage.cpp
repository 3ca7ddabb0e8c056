#include "plan/stage.h"

#include "plan/products.h"
#include "plan/two_stage.h"

namespace fastjit::plan {

std::optional<ir::Graph> staged(const ir::Graph& graph, const Costs& costs, bool own) {
  auto products = own ? own_products(graph, costs) : std::nullopt;
  auto both = two_stage(products ? *products : graph);
  return both ? std::move(both) : std::move(products);
}

}  // namespace fastjit::plan
