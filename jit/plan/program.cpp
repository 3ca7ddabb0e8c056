// The program: slots for buffers, kernels shared by text, steps in order, memory freed after its last use.
#include "plan/program.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "plan/lives.h"
#include "plan/loop_step.h"
#include "plan/memory.h"
#include "plan/order.h"
#include "plan/over_time.h"
#include "plan/roll.h"
#include "plan/round_steps.h"
#include "plan/shape.h"
#include "plan/share_slots.h"
#include "plan/stage.h"
#include "plan/team.h"
#include "plan/work.h"
#include "support/hash_index.h"

namespace fastjit::plan {

namespace {

class ProgramBuilder {
 public:
  ProgramBuilder(const ir::Graph& graph, const PlanOptions& options, const std::vector<Body>& bodies)
      : graph_(graph), options_(options), bodies_(bodies), former_(graph, options.costs) {}

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
    number_tensors(out_);
    settle_launches(out_, options_);
    return std::move(out_);
  }

 private:
  // Base, offset, sizes and strides, each with its expression.
  using AliasKey = std::pair<SlotId, std::vector<int64_t>>;

  void settle_lanes();
  void find_results();
  void add_step(const std::vector<uint32_t>& batch, const Order& order);
  std::vector<SlotId> operand_slots(const Item& item);
  void add_extern(const Item& item, const Order& order);
  void add_loop(const Item& item);
  void add_rounds(const Item& item);
  template <class AnyStep>
  void take_launches(AnyStep& step, ir::NodeId loop, const Body& body);
  void note_repeat(const SizedRepeat& repeat);
  SlotId part_of(const Body& body, SlotId like, SlotId scratch, Dim offset);
  bool has_calls(const Item& item) const {
    return graph_[item.external].op == ir::Op::Loop && bodies_[graph_[item.external].attr].has_calls;
  }
  void add_inside(const Item& item, OverTime inside);
  void note_loop(const SizedLoop& loop);
  void note_launch(uint32_t launch, const LaunchDims& dims);
  void add_contract(const Item& item, const Order& order, uint32_t epilogue);
  Shaped shaped(const Item& item, Rows rows);
  KernelStep install(Shaped shaped, const Item& item);
  uint32_t kernel_of(KernelPlan& plan);  // which is moved from where it is new
  int64_t tile_rows(ir::NodeId product) const;
  bool is_by_rows(const Shaped& epilogue, ir::NodeId product, const Order& order) const;
  void add_epilogue(ContractStep& step, const Item& item, ir::NodeId product, const Order& order);
  SlotId slot(BufferId buffer);
  void push_slot(Slot made, const std::vector<Dim>& sizes, const std::vector<Dim>& strides, Dim offset = 0);
  void note(SizedNumber::Of of, uint32_t at, std::span<const Dim> dims);
  SlotId operand_slot(ir::NodeId node, const Storage& storage);
  void drop_aliases(SlotId base);
  void add_owns();
  void add_frees();
  void place_temps();
  std::vector<Dim> note_places(const std::vector<Piece>& pieces, const std::vector<Dim>& sizes,
                               const std::vector<SlotId>& owners);
  void tell_verdicts();

  const ir::Graph& graph_;
  const PlanOptions& options_;
  const std::vector<Body>& bodies_;
  Former former_;
  Program out_;
  std::vector<ir::Layout> slot_dims_;  // per slot
  std::vector<std::vector<uint32_t>> steps_;
  std::optional<Lives> lives_;
  ByBuffer<SlotId> slots_;
  std::map<AliasKey, SlotId> aliases_;
  Results results_;
  size_t done_steps_ = 0;
  uint32_t guards_ = 0, repeats_ = 0;
  struct Part {
    SlotId slot, of;  // a temporary of a loop, and the one in which it lies
    Dim offset;       // from there, in bytes
  };
  std::vector<Part> parts_;
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
    if (node.op != ir::Op::Result && node.op != ir::Op::Contract && node.op != ir::Op::Final) continue;
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
  note_launch(static_cast<uint32_t>(out_.made.size()), shaped.dims);
  step.kernel = kernel_of(shaped.plan);
  for (const BufferId buffer : shaped.buffers) step.operands.push_back(slot(buffer));
  std::vector<ir::NodeId>& made = out_.made.emplace_back();
  for (const Root& root : item.roots) made.push_back(root.value);
  return step;
}

void ProgramBuilder::add_step(const std::vector<uint32_t>& batch, const Order& order) {
  add_owns();
  const Item& first = former_.items()[batch[0]];
  if (first.is_extern()) {
    const bool runs = !order.is_loop(first) && !order.is(first, ir::ExternKind::View) && !order.may_refuse(first);
    if (runs && lives_->leaves_arena(done_steps_)) out_.steps.emplace_back(FreeStep{kNoSlot});
  }
  if (first.is_extern() && graph_[first.external].op == ir::Op::Contract) {
    add_contract(first, order, order.epilogue_of(batch[0]));
  } else if (order.is_loop(first)) {
    has_calls(first) ? add_rounds(first) : add_loop(first);
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
  for (auto it = aliases_.lower_bound({base, {}}); it != aliases_.end(); ++it) {
    if (it->first.first != base) return;
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
  return options_.costs.tile_rows(sizes[0].hint(), sizes[1].hint() * ir::size_of(graph_[product].dtype));
}

/// Whether the outer loop is over the rows of the product, each of which some units have to themselves.
bool ProgramBuilder::is_by_rows(const Shaped& epilogue, ir::NodeId product, const Order& order) const {
  const LaunchDims& dims = epilogue.dims;
  const bool rows =
      dims.sizes.size() == 2 && identical(dims.sizes[0], graph_.sizes(product)[0]) && epilogue.plan.tile == 0;
  if (!rows || (epilogue.plan.is_row_kernel() && epilogue.kept_lanes)) return false;
  const BufferId place = lives_->home(order.place_of(product));
  const auto at = std::find(epilogue.buffers.begin(), epilogue.buffers.end(), place) - epilogue.buffers.begin();
  return identical(dims.strides[static_cast<size_t>(at) * 2], graph_.layout(product).strides[0]);
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
    const std::vector<Dim>& sizes = graph_.layout(graph_.operands(item.external)[0]).sizes;
    const uint32_t at = guards_++;
    note(SizedNumber::Of::GuardSize, at, sizes);
    note(SizedNumber::Of::GuardStride, at, place.strides);
    note(SizedNumber::Of::GuardOffset, at, std::array{place.offset});
    out_.steps.emplace_back(GuardStep{graph_.externs[external].call, slot(place.buffer), place.offset.hint(),
                                      hints(sizes), hints(place.strides)});
    return;
  }
  if (order.is(item, ir::ExternKind::Number)) {
    NumberStep step{graph_.externs[external].call, {}, slot(results_[item.external][0])};
    for (const auto& place : item.operands) step.operands.push_back({slot(place->buffer), place->offset.fixed()});
    out_.steps.emplace_back(std::move(step));
    return;
  }
  ExternStep step{external, operand_slots(item), {}};
  for (const ir::NodeId id : results_[item.external]) step.results.push_back(id == ir::kNoNode ? kNoSlot : slot(id));
  step.results.resize(std::max<size_t>(step.results.size(), graph_.externs[external].outputs), kNoSlot);
  out_.steps.emplace_back(std::move(step));
}

/// The kernels of the body's launches become this program's.
template <class AnyStep>
void ProgramBuilder::take_launches(AnyStep& step, ir::NodeId loop, const Body& body) {
  for (const KernelStep& launch : launches_of(step)) {
    KernelPlan plan = body.program.kernels[launch.kernel];
    const_cast<KernelStep&>(launch).kernel = kernel_of(plan);
    out_.made.push_back({loop});
  }
}

/// The body's launches, with slots of this program in place of the body's.
void ProgramBuilder::add_loop(const Item& item) {
  const ir::Node& node = graph_[item.external];
  const ir::LoopAttr& attr = graph_.loops[node.attr];
  const Body& body = bodies_[node.attr];
  LoopSlots slots{attr, body, {}, {}, {}};
  const auto place = [&](const Storage& storage) { return SizedPlace{slot(storage.buffer), storage.offset}; };
  for (const auto& operand : item.operands) slots.operands.push_back(place(*operand));
  for (const ir::NodeId final : results_[item.external]) slots.finals.push_back(slot(final));
  const SlotId scratch = identical(attr.scratch, 0) ? kNoSlot : slot(item.external);
  slots.part = [&](SlotId like, Dim offset) { return part_of(body, like, scratch, offset); };
  SizedLoop loop = loop_step(slots);
  if (auto inside = options_.cuda ? std::nullopt : over_time(slots, loop);
      inside && (inside->loop.step.jumps.empty() || !options_.no_library))
    return add_inside(item, std::move(*inside));
  note_loop(loop);
  take_launches(loop.step, item.external, body);
  out_.steps.emplace_back(std::move(loop.step));
}

SlotId ProgramBuilder::part_of(const Body& body, SlotId like, SlotId scratch, Dim offset) {
  const auto id = static_cast<SlotId>(out_.slots.size());
  const auto& [sizes, strides] = body.slots[like];
  push_slot({SlotKind::Temp, body.program.slots[like].dtype}, sizes, strides);
  parts_.push_back({id, scratch, offset});
  return id;
}

/// The body's steps, some of which are calls of torch's, with slots of this program in place of the body's.
void ProgramBuilder::add_rounds(const Item& item) {
  const ir::Node& node = graph_[item.external];
  const ir::LoopAttr& attr = graph_.loops[node.attr];
  const Body& body = bodies_[node.attr];
  RoundSlots slots{attr, body, operand_slots(item), {}, {}, {}};
  for (const ir::NodeId final : results_[item.external]) slots.finals.push_back(slot(final));
  const SlotId scratch = identical(attr.scratch, 0) ? kNoSlot : slot(item.external);
  slots.part = [&](SlotId like, Dim offset) { return part_of(body, like, scratch, offset); };
  slots.make = [&](SlotId like, SlotId base, Dim offset) {
    const auto id = static_cast<SlotId>(out_.slots.size());
    const Slot& given = body.program.slots[like];
    Slot made{given.kind, given.dtype, given.brief};
    made.base = base;
    push_slot(std::move(made), body.slots[like].sizes, body.slots[like].strides, offset);
    return id;
  };
  SizedRepeat repeat = repeat_step(slots);
  out_.steps.insert(out_.steps.end(), repeat.before.begin(), repeat.before.end());
  note_repeat(repeat);
  for (RoundStep& step : repeat.step.body)
    std::visit([&](auto& each) { take_launches(each, item.external, body); }, step);
  repeat.step.takes_any_trip = repeat.trip.is_symbolic();
  out_.steps.emplace_back(std::move(repeat.step));
  out_.steps.insert(out_.steps.end(), repeat.after.begin(), repeat.after.end());
}

/// Its launches come next.
void ProgramBuilder::note_repeat(const SizedRepeat& repeat) {
  const auto first = static_cast<uint32_t>(out_.made.size());
  for (uint32_t i = 0; i < repeat.launches.size(); ++i) note_launch(first + i, repeat.launches[i]);
  const auto note_one = [&](SizedNumber::Of of, uint32_t index, Dim dim) {
    if (dim.is_symbolic()) out_.sized.push_back({of, repeats_, index, dim.expr()});
  };
  note_one(SizedNumber::Of::RepeatTrip, 0, repeat.trip);
  for (uint32_t i = 0; i < repeat.deltas.size(); ++i) note_one(SizedNumber::Of::RepeatDelta, i, repeat.deltas[i]);
  for (uint32_t i = 0; i < repeat.places.size(); ++i) note_one(SizedNumber::Of::RepeatPlace, i, repeat.places[i]);
  ++repeats_;
}

/// Its launches come next.
void ProgramBuilder::note_loop(const SizedLoop& loop) {
  const auto first = static_cast<uint32_t>(out_.made.size());
  for (uint32_t i = 0; i < loop.body.size(); ++i) note_launch(first + i, loop.body[i]);
  note(SizedNumber::Of::LoopTrip, first, std::array{loop.trip});
  note(SizedNumber::Of::LoopDelta, first, loop.deltas);
  note(SizedNumber::Of::LoopPlace, first, loop.places);
}

void ProgramBuilder::note_launch(uint32_t launch, const LaunchDims& dims) {
  using Of = SizedNumber::Of;
  note(Of::LaunchSize, launch, dims.sizes);
  note(Of::LaunchStride, launch, dims.strides);
  note(Of::LaunchOffset, launch, dims.offsets);
  note(Of::LaunchBlock, launch, std::array{dims.block});
  note(Of::LaunchScratch, launch, std::array{dims.scratch_stride});
}

void ProgramBuilder::add_inside(const Item& item, OverTime inside) {
  if (inside.loop.step.jumps.empty()) inside.loop.trip = inside.loop.step.trip;  // one of the launch's sizes
  note_loop(inside.loop);
  LoopStep& step = inside.loop.step;
  KernelStep& launch = step.body[0];
  cut(inside.plan, launch, options_);
  launch.kernel = kernel_of(inside.plan);
  out_.made.push_back({item.external});
  if (step.jumps.empty())
    out_.steps.emplace_back(std::move(launch));
  else
    out_.steps.emplace_back(std::move(step));
}

SlotId ProgramBuilder::slot(BufferId buffer) {
  buffer = lives_->home(buffer);
  const auto [found, fresh] = slots_.try_emplace(buffer, static_cast<SlotId>(out_.slots.size()));
  if (!fresh) return found->second;
  const ir::Node& node = graph_[buffer.node];
  const ir::Layout& layout = graph_.layout(buffer.node);
  Slot made{SlotKind::Tensor, node.dtype};
  std::vector<Dim> strides = former_.buffer_strides(buffer);
  if (buffer.is_own() && node.op == ir::Op::Input) {
    made.kind = SlotKind::Input;
    made.index = node.attr;
    strides = layout.strides;
  } else if (buffer.is_own() && is_tensor(node.op)) {
    const bool is_number = graph_.is_number(buffer.node);
    const bool is_given = node.op == ir::Op::Contract && graph_.contracts[node.attr].kind != ir::Product::Convolution;
    const bool is_handed = plan::is_handed(graph_, buffer.node);
    const bool is_program_s = is_number || (node.op == ir::Op::Final && !is_handed);
    made.kind = is_program_s && lives_->is_temp(buffer) ? SlotKind::Temp
                : is_given || is_program_s              ? SlotKind::Tensor
                                                        : SlotKind::Extern;
    strides = layout.strides;
  } else if (lives_->is_temp(buffer)) {
    made.kind = SlotKind::Temp;
  }
  push_slot(std::move(made), layout.sizes, strides);
  return found->second;
}

void ProgramBuilder::push_slot(Slot made, const std::vector<Dim>& sizes, const std::vector<Dim>& strides, Dim offset) {
  const auto id = static_cast<SlotId>(out_.slots.size());
  note(SizedNumber::Of::SlotSize, id, sizes);
  note(SizedNumber::Of::SlotStride, id, strides);
  note(SizedNumber::Of::SlotOffset, id, std::array{offset});
  made.sizes = hints(sizes);
  made.strides = hints(strides);
  made.offset = offset.hint();
  out_.slots.push_back(std::move(made));
  slot_dims_.push_back({sizes, strides});
}

/// These numbers of the program, from a list, follow from symbols.
void ProgramBuilder::note(SizedNumber::Of of, uint32_t at, std::span<const Dim> dims) {
  for (uint32_t i = 0; i < dims.size(); ++i)
    if (dims[i].is_symbolic()) out_.sized.push_back({of, at, i, dims[i].expr()});
}

/// The slot of a tensor that an extern call reads: a whole buffer or an alias of a part of one.
SlotId ProgramBuilder::operand_slot(ir::NodeId node, const Storage& storage) {
  const SlotId base = slot(storage.buffer);
  const ir::Layout& layout = graph_.layout(node);
  const auto& strides = same_strides(layout.sizes, layout.strides, storage.strides) ? layout.strides : storage.strides;
  const ir::Layout wanted{layout.sizes, strides};
  if (identical(storage.offset, 0) && slot_dims_[base] == wanted) return base;
  AliasKey key{base, {}};
  const auto add = [&](Dim dim) { key.second.insert(key.second.end(), {dim.hint(), dim.expr()}); };
  add(storage.offset);
  std::ranges::for_each(wanted.sizes, add);
  std::ranges::for_each(wanted.strides, add);
  const auto [found, fresh] = aliases_.try_emplace(std::move(key), static_cast<SlotId>(out_.slots.size()));
  Slot alias{SlotKind::Alias, graph_[node].dtype};
  alias.base = base;
  if (fresh) push_slot(std::move(alias), wanted.sizes, wanted.strides, storage.offset);
  return found->second;
}

void ProgramBuilder::place_temps() {
  std::vector<Piece> pieces;
  std::vector<Dim> sizes_of_pieces;
  std::vector<SlotId> owners;
  for (const auto& [buffer, life] : lives_->all()) {
    const auto found = slots_.find(buffer);
    if (found == slots_.end()) continue;
    const SlotId id = found->second;
    const Slot& temp = out_.slots[id];
    if (temp.kind != SlotKind::Temp) continue;
    const auto& [sizes, strides] = slot_dims_[id];
    const Dim bytes = max(ir::extent(sizes, strides), 0) * ir::size_of(temp.dtype);
    pieces.push_back({bytes.hint(), static_cast<int64_t>(life.first), static_cast<int64_t>(life.last)});
    sizes_of_pieces.push_back(bytes);
    owners.push_back(id);
  }
  out_.arena_bytes = pack_arena(pieces);
  const std::vector<Dim> offsets = note_places(pieces, sizes_of_pieces, owners);
  if (out_.arena_bytes < options_.own_bytes)  // not worth a step
    std::erase_if(out_.steps, [](const Step& step) {
      const auto* free = std::get_if<FreeStep>(&step);
      return free && free->slot == kNoSlot;
    });
  for (size_t i = 0; i < owners.size(); ++i) out_.slots[owners[i]].offset = offsets[i].hint();
  for (const auto& [part, of, offset] : parts_) {
    const auto owner = std::ranges::find(owners, of) - owners.begin();
    const Dim place = offsets[static_cast<size_t>(owner)] + offset;
    out_.slots[part].offset = place.hint();
    note(SizedNumber::Of::SlotOffset, part, std::array{place});
  }
}

/// Offsets of the pieces. Where sizes differ, they lie one above the other as they do here.
std::vector<Dim> ProgramBuilder::note_places(const std::vector<Piece>& pieces, const std::vector<Dim>& sizes,
                                             const std::vector<SlotId>& owners) {
  if (std::ranges::none_of(sizes, &Dim::is_symbolic)) {
    std::vector<Dim> offsets;
    for (const Piece& piece : pieces) offsets.push_back(piece.offset);
    return offsets;
  }
  const std::vector<Dim> offsets = offsets_of(pieces, sizes);
  for (size_t i = 0; i < owners.size(); ++i) note(SizedNumber::Of::SlotOffset, owners[i], std::array{offsets[i]});
  out_.arena_bytes = offsets.back().hint();
  note(SizedNumber::Of::ArenaBytes, 0, std::array{offsets.back()});
  return offsets;
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

/// With 1 for each size that is 1: no loop is over it, which is asked anyway, and no weight has it for a factor.
static std::optional<ir::Graph> without_unit_expressions(const ir::Graph& graph) {
  const auto is_unit = [](Dim size) { return size.is_symbolic() && size.hint() == 1; };
  const auto has_unit = [&](const ir::Layout& layout) { return std::ranges::any_of(layout.sizes, is_unit); };
  if (!graph.symbols || std::ranges::none_of(graph.layouts, has_unit)) return std::nullopt;
  ir::Graph made = graph;
  for (ir::Layout& layout : made.layouts)
    for (Dim& size : layout.sizes)
      if (is_unit(size)) size = size.fixed();
  return made;
}

/// Sets LoopStep::where.
static void find_places(Program& program) {
  for (Step& step : program.steps) {
    auto* loop = std::get_if<LoopStep>(&step);
    for (size_t i = 0; loop && i < loop->table.size(); ++i) {
      const auto& [id, elements] = loop->table[i];
      const Slot& slot = program.slots[id];
      const int64_t element = ir::size_of(slot.dtype);
      LoopStep::Where where{kNoSlot, kNoSlot, elements * element, element};
      if (slot.kind == SlotKind::Input) {
        where.input = slot.index;
      } else if (slot.kind == SlotKind::Temp) {
        where.bytes += slot.offset;
        loop->temp = id;
      } else {
        where.slot = id;
      }
      loop->where.push_back(where);
    }
  }
}

Program plan_staged(const ir::Graph& graph, const PlanOptions& options, const std::vector<Body>& bodies) {
  return ProgramBuilder(graph, options, bodies).run();
}

bool takes_any_trip(const ir::Graph& graph, const PlanOptions& options) {
  const ir::Symbols::Scope symbols(graph.symbols.get());
  const auto plain = without_unit_expressions(graph);
  try {
    static_cast<void>(staged(plain ? *plain : graph, options));
  } catch (const std::runtime_error&) {
    return false;
  }
  return true;
}

Program plan(const ir::Graph& graph, const PlanOptions& options) {
  const ir::Symbols::Scope symbols(graph.symbols.get());
  const auto plain = without_unit_expressions(graph);
  const ir::Graph& known = plain ? *plain : graph;
  const Staged made = staged(known, options);
  Program program = plan_staged(made.of(known), options, made.bodies);
  roll(program);
  if (!options.no_library) roll_steps(program, made.of(known));
  share_rounds(program, options);
  if (!graph.symbols) find_places(program);
  program.own_products = options.own_products;
  program.no_library = options.no_library;
  program.for_cuda = options.cuda;
  return program;
}

}  // namespace fastjit::plan
