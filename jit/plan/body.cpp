#include "plan/body.h"

#include <algorithm>

#include "ir/graph.h"
#include "ir/strides.h"
#include "plan/products.h"
#include "plan/two_stage.h"
#include "plan/updates.h"
#include "plan/work.h"

namespace fastjit::plan {

namespace {

using Of = SizedNumber::Of;

/// Every placed value is stored over the one of the round before, and nothing else of it is.
bool stays_in_place(const ir::Graph& body) {
  const std::vector<bool> made = made_in_inputs(body);
  for (const ir::Store& store : body.stores)
    if (!made[store.value]) return false;
  return true;
}

bool take_launches(Body& body) {
  for (const Step& step : body.program.steps) {
    if (const auto* kernel = std::get_if<KernelStep>(&step))
      body.launches.push_back(*kernel);
    else if (const auto* parallel = std::get_if<ParallelStep>(&step))
      body.launches.insert(body.launches.end(), parallel->launches.begin(), parallel->launches.end());
    else
      return false;
  }
  return true;
}

/// Only places may depend on the round. What was asked of it when the body was planned must be so in all of them.
bool take_offsets(Body& body, const ir::Graph& graph, int64_t trip) {
  if (!graph.symbols) return body.program.sized.empty();
  std::vector<uint32_t> wanted;
  for (const SizedNumber& number : body.program.sized) {
    if (number.of != Of::LaunchOffset) return false;
    wanted.push_back(number.expr);
    body.moving.push_back({{number.at, number.index}, {}});
  }
  const ir::SizeCode code = graph.symbols->code(wanted);
  std::vector<int64_t> registers(code.registers());
  for (int64_t round = 0; round < trip; ++round) {
    work(code.registers());
    registers[0] = ir::LoopAttr::kFirstRound + round;
    if (!code.run(registers.data())) return false;
    for (size_t i = 0; i < wanted.size(); ++i) body.moving[i].offsets.push_back(registers[code.place[wanted[i]]]);
  }
  return true;
}

}  // namespace

std::optional<Body> plan_body(ir::Graph graph, int64_t trip, uint32_t carried, const PlanOptions& options) {
  const std::shared_ptr<ir::Symbols> round = graph.symbols;
  const ir::Symbols::Scope symbols(round.get());
  if (!stays_in_place(graph)) return std::nullopt;
  if (options.own_products)
    if (auto own = own_products(graph, options)) graph = std::move(*own);
  if (std::ranges::any_of(graph.nodes, [](const ir::Node& node) { return node.op == ir::Op::Contract; }))
    return std::nullopt;
  if (auto stages = two_stage(graph, options.cuda)) graph = std::move(*stages);
  const std::optional<ir::Graph> placed = in_place(graph);
  Body body;
  body.program = plan_staged(placed ? *placed : graph, options, {});
  if (!take_launches(body) || !take_offsets(body, graph, trip)) return std::nullopt;
  const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  body.scratch = aligned(body.program.arena_bytes);
  for (uint32_t i = 0; i < carried; ++i) {
    body.spare.push_back(body.scratch);
    const Slot& slot = body.program.slots[body.program.outputs[i]];
    body.scratch += aligned(std::max<int64_t>(ir::extent(slot.sizes, slot.strides), 0) * ir::size_of(slot.dtype));
  }
  body.graph = std::make_shared<const ir::Graph>(std::move(graph));
  return body;
}

}  // namespace fastjit::plan
