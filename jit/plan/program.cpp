// The program: slots for buffers, kernels shared by text, steps in order, memory freed after its last use.
#include "plan/program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "plan/lives.h"
#include "plan/memory.h"
#include "plan/order.h"
#include "plan/shape.h"
#include "plan/two_stage.h"
#include "plan/work.h"
#include "support/hash_index.h"

namespace fastjit::plan {

namespace {

class ProgramBuilder {
 public:
  ProgramBuilder(const ir::Graph& graph, const PlanOptions& options)
      : graph_(graph), options_(options), former_(graph, options.costs) {}

  Program run() {
    former_.run();
    settle_lanes();
    Order order(former_);
    order.settle_stores();
    order.settle_destinations();
    order.fuse_epilogues();
    steps_ = order.steps();
    find_results();
    lives_.emplace(former_, order, steps_, results_, options_);
    for (const auto& step : steps_) add_step(step, order);
    for (const ir::NodeId id : graph_.outputs) out_.outputs.push_back(slot(former_.world().storage[id]->buffer));
    place_temps();
    tell_verdicts();
    return std::move(out_);
  }

 private:
  using AliasKey = std::tuple<SlotId, int64_t, std::vector<int64_t>, std::vector<int64_t>>;

  void settle_lanes();
  void find_results();
  void add_step(const std::vector<uint32_t>& batch, const Order& order);
  std::vector<SlotId> operand_slots(const Item& item);
  void add_extern(const Item& item, const Order& order);
  void add_contract(const Item& item, const Order& order, uint32_t epilogue);
  Shaped shaped(const Item& item, Rows rows);
  KernelStep install(Shaped shaped, const Item& item);
  uint32_t kernel_of(KernelPlan& plan);  // which is moved from where it is new
  int64_t tile_rows(ir::NodeId product) const;
  bool is_by_rows(const Shaped& epilogue, ir::NodeId product, const Order& order) const;
  void add_epilogue(ContractStep& step, const Item& item, ir::NodeId product, const Order& order);
  SlotId slot(BufferId buffer);
  SlotId operand_slot(ir::NodeId node, const Storage& storage);
  void drop_aliases(SlotId base);
  void add_owns();
  void add_frees();
  void place_temps();
  void tell_verdicts();

  const ir::Graph& graph_;
  const PlanOptions& options_;
  Former former_;
  Program out_;
  std::vector<std::vector<uint32_t>> steps_;
  std::optional<Lives> lives_;
  ByBuffer<SlotId> slots_;
  std::map<AliasKey, SlotId> aliases_;
  Results results_;
  size_t done_steps_ = 0;
  std::map<std::string, uint32_t> kernels_;  // by text
  support::HashIndex alike_;                 // of out_.kernels: most launches are those of a kernel that is there
};

/// Kept values need lanes along the reduced dims; where those are the wrong ones, values are computed again instead.
void ProgramBuilder::settle_lanes() {
  for (uint32_t i = 0; i < former_.items().size(); ++i) {
    if (former_.items()[i].draft.scratch.empty()) continue;
    std::optional<Item> plain = former_.without_keep(i);
    if (plain && shape(former_.world(), plain->frame, plain->roots, plain->draft, options_, Rows::Merge).kept_lanes)
      former_.items()[i] = std::move(*plain);
  }
}

void ProgramBuilder::find_results() {
  for (ir::NodeId id = 0; id < graph_.nodes.size(); ++id) {
    const ir::Node& node = graph_[id];
    if (node.op != ir::Op::Result && node.op != ir::Op::Contract) continue;
    const bool is_product = node.op == ir::Op::Contract;
    const size_t which = is_product ? 0 : node.attr;
    auto& results = results_[is_product ? id : node.in[0]];
    if (results.size() <= which) results.resize(which + 1, ir::kNoNode);
    results[which] = id;
  }
}

Shaped ProgramBuilder::shaped(const Item& item, Rows rows) {
  Draft draft = item.draft;
  std::vector<Root> roots = item.roots;
  for (Access& access : draft.accesses) access.buffer = lives_->home(access.buffer);
  for (Root& root : roots)
    for (Storage& dest : root.dests) dest.buffer = lives_->home(dest.buffer);
  return shape(former_.world(), item.frame, roots, draft, options_, rows);
}

uint32_t ProgramBuilder::kernel_of(KernelPlan& plan) {
  const uint64_t hash = hash_of(plan);
  const uint32_t alike = alike_.find(hash, [&](uint32_t at) { return out_.kernels[at] == plan; });
  if (alike != support::HashIndex::kNone) return alike;
  const auto [found, fresh] = kernels_.try_emplace(text(plan), static_cast<uint32_t>(out_.kernels.size()));
  if (!fresh) return found->second;
  alike_.add(hash, found->second);
  out_.kernels.push_back(std::move(plan));
  return found->second;
}

KernelStep ProgramBuilder::install(Shaped shaped, const Item& item) {
  KernelStep step = std::move(shaped.step);
  step.kernel = kernel_of(shaped.plan);
  for (const BufferId buffer : shaped.buffers) step.operands.push_back(slot(buffer));
  out_.scratch_bytes = std::max(out_.scratch_bytes, step.scratch_stride *
                                                        static_cast<int64_t>(out_.kernels[step.kernel].scratch.size()) *
                                                        (options_.cuda ? step.grid.blocks : 1));
  std::vector<ir::NodeId>& made = out_.made.emplace_back();
  for (const Root& root : item.roots) made.push_back(root.value);
  return step;
}

void ProgramBuilder::add_step(const std::vector<uint32_t>& batch, const Order& order) {
  add_owns();
  const Item& first = former_.items()[batch[0]];
  if (first.is_extern()) {
    const bool runs = !order.is(first, ir::ExternKind::View) && !order.may_refuse(first);
    if (runs && lives_->leaves_arena(done_steps_)) out_.steps.emplace_back(FreeStep{kNoSlot});
  }
  if (first.is_extern() && graph_[first.external].op == ir::Op::Contract) {
    add_contract(first, order, order.epilogue_of(batch[0]));
  } else if (first.is_extern()) {
    add_extern(first, order);
  } else {
    ParallelStep parallel;
    for (const uint32_t index : batch)
      parallel.launches.push_back(install(shaped(former_.items()[index], Rows::Merge), former_.items()[index]));
    if (batch.size() == 1)
      out_.steps.emplace_back(std::move(parallel.launches[0]));
    else
      out_.steps.emplace_back(std::move(parallel));
  }
  add_frees();
}

/// Aliases are made again where they are wanted again; until then they would keep the memory.
void ProgramBuilder::drop_aliases(SlotId base) {
  for (auto it = aliases_.lower_bound({base, INT64_MIN, {}, {}}); it != aliases_.end(); ++it) {
    if (std::get<SlotId>(it->first) != base) return;
    out_.steps.emplace_back(FreeStep{it->second});
  }
}

void ProgramBuilder::add_owns() {
  for (const BufferId buffer : lives_->written_over(done_steps_)) {
    drop_aliases(slot(buffer));
    out_.steps.emplace_back(OwnStep{slot(buffer)});
  }
}

void ProgramBuilder::add_frees() {
  for (const BufferId buffer : lives_->dying(done_steps_++)) {
    const auto found = slots_.find(buffer);
    if (found == slots_.end() || out_.slots[found->second].kind == SlotKind::Input) continue;
    out_.slots[found->second].brief = true;
    drop_aliases(found->second);
    out_.steps.emplace_back(FreeStep{found->second});
  }
}

/// Rows of the product that the epilogue follows at a time; 0: all.
int64_t ProgramBuilder::tile_rows(ir::NodeId product) const {
  const ir::Product kind = graph_.contracts[graph_[product].attr].kind;
  if (options_.cuda || (kind != ir::Product::Mm && kind != ir::Product::Addmm)) return 0;
  const auto sizes = graph_.sizes(product);
  return options_.costs.tile_rows(sizes[0], sizes[1] * ir::size_of(graph_[product].dtype));
}

/// Whether the outer loop is over the rows of the product, each of which some units have to themselves.
bool ProgramBuilder::is_by_rows(const Shaped& epilogue, ir::NodeId product, const Order& order) const {
  const KernelStep& step = epilogue.step;
  const bool rows = step.sizes.size() == 2 && step.sizes[0] == graph_.sizes(product)[0] && epilogue.plan.tile == 0;
  if (!rows || (epilogue.plan.is_row_kernel() && epilogue.kept_lanes)) return false;
  const BufferId place = lives_->home(order.place_of(product));
  const auto at = std::find(epilogue.buffers.begin(), epilogue.buffers.end(), place) - epilogue.buffers.begin();
  return step.strides[static_cast<size_t>(at) * 2] == graph_.layout(product).strides[0];
}

/// Tile by tile only where the product is large.
void ProgramBuilder::add_epilogue(ContractStep& step, const Item& item, ir::NodeId product, const Order& order) {
  if (const int64_t tile = tile_rows(product); tile > 0) {
    Shaped by_rows = shaped(item, Rows::Separate);
    if (is_by_rows(by_rows, product, order)) {
      step.epilogue.push_back(install(std::move(by_rows), item));
      step.rows_per_tile = tile;
      return;
    }
  }
  step.epilogue.push_back(install(shaped(item, Rows::Merge), item));
}

std::vector<SlotId> ProgramBuilder::operand_slots(const Item& item) {
  const auto nodes = graph_.operands(item.external);
  std::vector<SlotId> operands;
  for (size_t i = 0; i < nodes.size(); ++i)
    operands.push_back(item.operands[i] ? operand_slot(nodes[i], *item.operands[i]) : kNoSlot);
  return operands;
}

void ProgramBuilder::add_contract(const Item& item, const Order& order, uint32_t epilogue) {
  const ir::ContractAttr& attr = graph_.contracts[graph_[item.external].attr];
  ContractStep step{attr.kind, attr.call, operand_slots(item), slot(order.place_of(item.external)), {}, 0};
  if (epilogue != Order::kNoItem) add_epilogue(step, former_.items()[epilogue], item.external, order);
  out_.steps.emplace_back(std::move(step));
}

void ProgramBuilder::add_extern(const Item& item, const Order& order) {
  const uint32_t external = graph_[item.external].attr;
  if (order.is(item, ir::ExternKind::Guard)) {
    const Storage& place = *item.operands[0];
    const std::vector<int64_t>& sizes = graph_.layout(graph_.operands(item.external)[0]).sizes;
    out_.steps.emplace_back(
        GuardStep{graph_.externs[external].call, slot(place.buffer), place.offset, sizes, place.strides});
    return;
  }
  if (order.is(item, ir::ExternKind::Number)) {
    NumberStep step{graph_.externs[external].call, {}, slot(results_[item.external][0])};
    for (const auto& place : item.operands) step.operands.push_back({slot(place->buffer), place->offset});
    out_.steps.emplace_back(std::move(step));
    return;
  }
  ExternStep step{external, operand_slots(item), {}};
  for (const ir::NodeId id : results_[item.external]) step.results.push_back(id == ir::kNoNode ? kNoSlot : slot(id));
  step.results.resize(std::max<size_t>(step.results.size(), graph_.externs[external].outputs), kNoSlot);
  out_.steps.emplace_back(std::move(step));
}

SlotId ProgramBuilder::slot(BufferId buffer) {
  buffer = lives_->home(buffer);
  const auto [found, fresh] = slots_.try_emplace(buffer, static_cast<SlotId>(out_.slots.size()));
  if (!fresh) return found->second;
  const ir::Node& node = graph_[buffer.node];
  const ir::Layout& layout = graph_.layout(buffer.node);
  Slot made{SlotKind::Tensor, node.dtype, layout.sizes, former_.buffer_strides(buffer)};
  if (buffer.is_own() && node.op == ir::Op::Input) {
    made.kind = SlotKind::Input;
    made.index = node.attr;
    made.strides = layout.strides;
  } else if (buffer.is_own() && is_tensor(node.op)) {
    const bool is_number = graph_.is_number(buffer.node);
    const bool is_given = node.op == ir::Op::Contract && graph_.contracts[node.attr].kind != ir::Product::Convolution;
    made.kind = is_number && lives_->is_temp(buffer) ? SlotKind::Temp
                : is_given || is_number              ? SlotKind::Tensor
                                                     : SlotKind::Extern;
    made.strides = layout.strides;
  } else if (lives_->is_temp(buffer)) {
    made.kind = SlotKind::Temp;
  }
  out_.slots.push_back(std::move(made));
  return found->second;
}

/// The slot of a tensor that an extern call reads: a whole buffer or an alias of a part of one.
SlotId ProgramBuilder::operand_slot(ir::NodeId node, const Storage& storage) {
  const SlotId base = slot(storage.buffer);
  const ir::Layout& layout = graph_.layout(node);
  const auto& strides = same_strides(layout.sizes, layout.strides, storage.strides) ? layout.strides : storage.strides;
  if (storage.offset == 0 && out_.slots[base].sizes == layout.sizes && out_.slots[base].strides == strides) return base;
  Slot alias{SlotKind::Alias, graph_[node].dtype, layout.sizes, strides, 0, storage.offset, base};
  const auto [found, fresh] = aliases_.try_emplace(AliasKey{base, alias.offset, alias.sizes, alias.strides},
                                                   static_cast<SlotId>(out_.slots.size()));
  if (fresh) out_.slots.push_back(std::move(alias));
  return found->second;
}

void ProgramBuilder::place_temps() {
  std::vector<Piece> pieces;
  std::vector<SlotId> owners;
  for (const auto& [buffer, life] : lives_->all()) {
    const auto found = slots_.find(buffer);
    if (found == slots_.end()) continue;
    const SlotId id = found->second;
    const Slot& temp = out_.slots[id];
    if (temp.kind != SlotKind::Temp) continue;
    int64_t extent = 1;
    for (size_t d = 0; d < temp.sizes.size(); ++d) extent += (temp.sizes[d] - 1) * temp.strides[d];
    pieces.push_back({std::max<int64_t>(extent, 0) * ir::size_of(temp.dtype), static_cast<int64_t>(life.first),
                      static_cast<int64_t>(life.last)});
    owners.push_back(id);
  }
  out_.arena_bytes = pack_arena(pieces);
  if (out_.arena_bytes < options_.own_bytes)  // not worth a step
    std::erase_if(out_.steps, [](const Step& step) {
      const auto* free = std::get_if<FreeStep>(&step);
      return free && free->slot == kNoSlot;
    });
  for (size_t i = 0; i < owners.size(); ++i) out_.slots[owners[i]].offset = pieces[i].offset;
}

void ProgramBuilder::tell_verdicts() {
  for (ir::NodeId id = 0; id < graph_.nodes.size(); ++id) {
    const Why why = former_.why(id);
    if (why == Why::Free || why == Why::Needed) continue;
    const auto& storage = former_.world().storage[id];
    const auto found = storage ? slots_.find(lives_->home(storage->buffer)) : slots_.end();
    out_.verdicts.push_back({id, found == slots_.end() ? kNoSlot : found->second, why});
  }
}

}  // namespace

Program plan(const ir::Graph& graph, const PlanOptions& options) {
  const auto staged = two_stage(graph);
  return ProgramBuilder(staged ? *staged : graph, options).run();
}

}  // namespace fastjit::plan
