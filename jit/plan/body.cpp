#include "plan/body.h"

#include <algorithm>

#include "ir/graph.h"
#include "ir/strides.h"
#include "pass/rewrite.h"
#include "plan/products.h"
#include "plan/repeat.h"
#include "plan/stage.h"
#include "plan/two_stage.h"
#include "plan/updates.h"
#include "plan/work.h"

namespace fastjit::plan {

namespace {

using Of = SizedNumber::Of;

/// What torch computes, or a guard.
bool is_call(const ir::Node& node) { return node.op == ir::Op::Contract || node.op == ir::Op::Extern; }

/// Every placed value is stored over the one of the round before, and nothing else of it is.
bool stays_in_place(const ir::Graph& body) {
  const std::vector<bool> made = made_in_inputs(body, Inputs::OfProgram);
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

/// As take_launches(), of steps of any kind that stands in a round.
bool take_steps(Body& body) {
  for_each_launch(std::as_const(body.program), [&](const KernelStep& launch) { body.launches.push_back(launch); });
  return std::ranges::all_of(body.program.steps, [](const Step& step) { return as_round_step(step).has_value(); });
}

std::vector<Dim> dims(const std::vector<int64_t>& numbers) { return {numbers.begin(), numbers.end()}; }

/// The numbers of the body's program.
void take_numbers(Body& body) {
  for (const KernelStep& launch : body.launches)
    body.dims.push_back(
        {dims(launch.sizes), dims(launch.strides), dims(launch.offsets), launch.block, launch.scratch_stride});
  for (const Slot& slot : body.program.slots) {
    body.slots.push_back({dims(slot.sizes), dims(slot.strides)});
    body.places.push_back(slot.offset);
  }
  body.scratch = body.program.arena_bytes;
}

/// Where it takes the number; null: it takes none of this kind.
Dim* place_of(Body& body, const SizedNumber& number) {
  switch (number.of) {
    case Of::SlotSize:
      return &body.slots[number.at].sizes[number.index];
    case Of::SlotStride:
      return &body.slots[number.at].strides[number.index];
    case Of::SlotOffset:
      return &body.places[number.at];
    case Of::LaunchSize:
      return &body.dims[number.at].sizes[number.index];
    case Of::LaunchStride:
      return &body.dims[number.at].strides[number.index];
    case Of::LaunchOffset:
      return &body.dims[number.at].offsets[number.index];
    case Of::LaunchBlock:
      return &body.dims[number.at].block;
    case Of::LaunchScratch:
      return &body.dims[number.at].scratch_stride;
    case Of::ArenaBytes:
      return &body.scratch;
    default:
      return nullptr;
  }
}

/// Where it takes what the number is in each round; null: it is of none that may differ.
std::vector<Dim>* offsets_of(Body& body, const SizedNumber& number) {
  if (number.of == Of::LaunchOffset)
    return &body.moving.emplace_back(Body::Moving{{number.at, number.index}, {}}).offsets;
  if (number.of == Of::SlotOffset && body.has_calls && body.program.slots[number.at].kind == SlotKind::Alias)
    return &body.sliding.emplace_back(Body::Sliding{number.at, {}}).offsets;
  return nullptr;
}

/// What depends on sizes, and where operands lie in each round: nothing else may depend on the round.
bool take_dims(Body& body, const ir::Symbols& own, Dim trip, ir::Symbols& around) {
  take_numbers(body);
  for (const SizedNumber& number : body.program.sized) {
    const Dim dim = own.dim_of(number.expr);
    if (!own.has_round(dim)) {
      Dim* const place = place_of(body, number);
      if (!place) return false;
      *place = around.in_round(own, dim, 0);
      continue;
    }
    std::vector<Dim>* const offsets = offsets_of(body, number);
    if (!offsets) return false;
    work(static_cast<uint64_t>(trip.hint()));
    const auto offset = [&](Dim round) { return around.in_round(own, dim, round + ir::LoopAttr::kFirstRound); };
    for (int64_t round = 0; round < trip.hint(); ++round) offsets->push_back(offset(round));
    if (!trip.is_symbolic()) continue;
    const Dim begin = (*offsets)[0], step = (*offsets)[1] - begin;
    if (!identical(offset(trip - 1), begin + (trip - 1) * step)) return false;
  }
  return true;
}

/// Whether what was asked of the first round is so in all of them.
bool is_so_in_all(const ir::Symbols& asked, int64_t trip) {
  const ir::SizeCode code = asked.code({});
  std::vector<int64_t> registers(code.registers());
  for (size_t i = 0; i < asked.size(); ++i) registers[i] = asked.value(i);
  for (int64_t round = 0; round < trip && !code.checks.empty(); ++round) {
    work(code.registers());
    registers[asked.size() - 1] = ir::LoopAttr::kFirstRound + round;
    if (!code.run(registers.data())) return false;
  }
  return true;
}

}  // namespace

bool calls_torch(const ir::LoopAttr& loop) { return std::ranges::any_of(loop.body->nodes, is_call); }

bool is_handed(const ir::Graph& graph, ir::NodeId id) {
  const ir::Node& node = graph[id];
  if (node.op != ir::Op::Final) return false;
  const ir::LoopAttr& loop = graph.loops[graph[node.in[0]].attr];
  const bool is_placed = node.attr >= loop.carried && node.attr < loop.carried + loop.placed;
  return !is_placed && calls_torch(loop);
}

std::optional<Body> plan_body(ir::Graph graph, Dim trip, uint32_t carried, bool calls, const PlanOptions& options,
                              ir::Symbols& around) {
  const std::shared_ptr<ir::Symbols> own = graph.symbols;
  Body body;
  {
    const ir::Symbols::Scope symbols(own.get());
    if (!stays_in_place(graph)) return std::nullopt;
    const auto is_guard = [&](const ir::Node& node) { return pass::is_guard(graph, node); };
    const bool may_call = calls || std::ranges::any_of(graph.nodes, is_guard);
    std::optional<ir::Graph> given = may_call ? std::optional(graph) : std::nullopt;
    if (options.own_products)
      if (auto products = own_products(graph, options)) graph = std::move(*products);
    body.has_calls = std::ranges::any_of(graph.nodes, is_call);
    const auto is_of_torch = [&](const ir::Node& node) { return is_call(node) && !is_guard(node); };
    if (!calls && std::ranges::any_of(graph.nodes, is_of_torch)) return std::nullopt;
    if (auto stages = two_stage(graph, options.cuda)) graph = std::move(*stages);
    std::optional<ir::Graph> placed = in_place(graph, Inputs::OfProgram);
    ir::Graph& planned = placed ? *placed : graph;
    if (body.has_calls) number_as(*given, planned);
    body.program = plan_staged(planned, options, {});
  }
  const ir::Symbols::Scope symbols(&around);
  const bool is_taken = body.has_calls ? take_steps(body) : take_launches(body);
  if (!is_taken || !is_so_in_all(*own, trip.hint()) || !take_dims(body, *own, trip, around)) return std::nullopt;
  const auto aligned = [](Dim bytes) { return divide_up(bytes, 64) * 64; };
  body.scratch = aligned(body.scratch);
  for (uint32_t i = 0; i < carried && !body.has_calls; ++i) {
    body.spare.push_back(body.scratch);
    const SlotId output = body.program.outputs[i];
    const auto& [sizes, strides] = body.slots[output];
    body.scratch += aligned(max(ir::extent(sizes, strides), 0) * ir::size_of(body.program.slots[output].dtype));
  }
  body.graph = std::make_shared<const ir::Graph>(std::move(graph));
  return body;
}

}  // namespace fastjit::plan
