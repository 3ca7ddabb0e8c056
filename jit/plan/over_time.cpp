#include "plan/over_time.h"

#include <algorithm>
#include <utility>

namespace fastjit::plan {

namespace {

class Inward {
 public:
  Inward(const LoopSlots& slots, const SizedLoop& loop)
      : slots_(slots),
        loop_(loop),
        step_(loop.step),
        launch_(step_.body[0]),
        dims_(loop.body[0]),
        plan_(slots.body.program.kernels[launch_.kernel]) {}

  std::optional<OverTime> run() {
    if (!has_fitting_loops()) return std::nullopt;
    find_motions();
    if (!is_near() || !find_carries() || !keep_order()) return std::nullopt;
    OverTime made{plan_, loop_};
    make_plan(made.plan);
    make_loop(made.loop);
    return made;
  }

 private:
  struct Motion {
    Dim delta = 0;
    bool jumps = false;
    std::vector<SlotId> slots;                                    // in which it lies: more than one only if it jumps
    bool stays() const { return identical(delta, 0) && !jumps; }  // and what is carried
  };

  size_t rank() const { return plan_.dims.size(); }
  bool has_fitting_loops() const;
  void find_motions();
  bool is_near() const;
  bool find_carries();
  bool carry(uint32_t from, uint32_t to);
  bool lies_alike(uint32_t a, uint32_t b) const;
  bool is_loaded(uint32_t operand) const;
  bool keep_order();
  bool keeps_order(uint32_t stored, uint32_t loaded);
  bool rounds_are_apart(uint32_t stored) const;
  bool is_carried(uint32_t from, uint32_t to) const {
    return std::ranges::find(carries_, Carry{from, to}) != carries_.end();
  }
  bool hands_on(uint32_t to) const { return std::ranges::find(carries_, to, &Carry::to) != carries_.end(); }
  Dim stride(uint32_t operand, size_t dim) const { return dims_.strides[operand * rank() + dim]; }
  template <class Number, class Stride>
  std::vector<Number> with_time(const std::vector<Number>& strides, Stride along_time) const;
  void make_plan(KernelPlan& plan) const;
  void make_loop(SizedLoop& loop) const;

  const LoopSlots& slots_;
  const SizedLoop& loop_;
  const LoopStep& step_;
  const KernelStep& launch_;
  const LaunchDims& dims_;
  const KernelPlan& plan_;
  std::vector<Motion> motions_;  // per operand
  std::vector<Carry> carries_;
};

bool Inward::has_fitting_loops() const {
  if (plan_.has_gathers()) return false;
  if (plan_.is_small()) return true;
  const auto is_packed = [](const Operand& operand) {
    return std::ranges::any_of(operand.strides,
                               [](StrideClass s) { return s == StrideClass::Packed || s == StrideClass::Back; });
  };
  return !plan_.is_row_kernel() && plan_.tile == 0 && rank() < 16 && std::ranges::none_of(plan_.operands, is_packed);
}

void Inward::find_motions() {
  for (const SlotId slot : launch_.operands) motions_.push_back({0, false, {slot}});
  for (size_t i = 0; i < step_.walks.size(); ++i) motions_[step_.walks[i].of.operand].delta = loop_.deltas[i];
  for (size_t column = 0; column < step_.jumps.size(); ++column) {
    Motion& motion = motions_[step_.jumps[column].operand];
    motion.jumps = true;
    for (size_t at = column; at < step_.table.size(); at += step_.jumps.size())
      motion.slots.push_back(step_.table[at].slot);
    std::ranges::sort(motion.slots);
    motion.slots.erase(std::ranges::unique(motion.slots).begin(), motion.slots.end());
  }
}

/// Rounds far from each other are waited for: a prefetcher follows lines within a page. 1000 rounds of f32 inside a
/// kernel and row by row: of 256, 25 and 40 us; of 1000, both 108; of 1020, 265 and 117 (AMD EPYC with AVX-512, two
/// cores).
bool Inward::is_near() const {
  constexpr int64_t kFar = 2048;
  for (size_t k = 0; k < motions_.size(); ++k)
    if (!plan_.is_small() && std::abs(motions_[k].delta.hint()) * ir::size_of(plan_.operands[k].dtype) >= kFar)
      return false;
  return true;
}

bool Inward::is_loaded(uint32_t operand) const {
  return std::ranges::any_of(plan_.code, [&](const Instr& instr) { return is_load(instr) && instr.imm == operand; });
}

bool Inward::lies_alike(uint32_t a, uint32_t b) const {
  if (plan_.operands[a].dtype != plan_.operands[b].dtype) return false;
  if (plan_.is_small()) return plan_.extent(a) == plan_.extent(b);
  for (size_t dim = 0; dim < rank(); ++dim)
    if (!identical(stride(a, dim), stride(b, dim)) || plan_.operands[a].strides[dim] != plan_.operands[b].strides[dim])
      return false;
  return true;
}

/// What is stored to `to` is from now on handed on in registers. A small plan has only whole operands there.
bool Inward::carry(uint32_t from, uint32_t to) {
  if (plan_.is_small() && plan_.extent(to) != plan_.points()) return from == Carry::kNone;
  if (from != Carry::kNone && !lies_alike(from, to)) return false;
  carries_.push_back({from, to});
  return true;
}

bool Inward::find_carries() {
  const Program& body = slots_.body.program;
  const std::vector<SlotId>& operands = slots_.body.launches[0].operands;
  std::vector<uint32_t> from(slots_.attr.carried, Carry::kNone), to(slots_.attr.carried, Carry::kNone);
  for (uint32_t k = 0; k < operands.size(); ++k) {
    const Slot& slot = body.slots[operands[k]];
    const auto output = std::ranges::find(body.outputs, operands[k]);
    const auto which = static_cast<size_t>(output - body.outputs.begin());
    const bool is_to = plan_.operands[k].output && slot.kind != SlotKind::Input && which < to.size();
    const bool is_from = slot.kind == SlotKind::Input && slot.index < from.size();
    if (!is_to && !is_from) continue;
    uint32_t& found = is_to ? to[which] : from[slot.index];
    const bool is_whole =
        slots_.body.launches[0].offsets[k] == 0 &&
        std::ranges::none_of(slots_.body.moving, [&](const Body::Moving& each) { return each.of.operand == k; });
    if (!is_whole || found != Carry::kNone) return false;
    found = k;
    motions_[k] = {0, false, {is_to ? slots_.finals[which] : launch_.operands[k]}};
  }
  for (size_t which = 0; which < to.size(); ++which)
    if (to[which] == Carry::kNone || std::ranges::count(body.outputs, body.outputs[which]) != 1 ||
        !carry(from[which], to[which]))
      return false;
  return true;
}

/// Whether all rounds of one point may run before the next point, with loads of what does not move before the first.
bool Inward::keep_order() {
  const bool may_jump = plan_.is_small() && !loop_.trip.is_symbolic();
  if (!may_jump && std::ranges::any_of(motions_, &Motion::jumps)) return false;
  for (uint32_t stored = 0; stored < motions_.size(); ++stored) {
    if (!plan_.operands[stored].output) continue;
    if (!plan_.is_small() && !rounds_are_apart(stored)) return false;
    for (uint32_t other = 0; other < motions_.size(); ++other)
      if (!keeps_order(stored, other)) return false;
    if (motions_[stored].stays() && !hands_on(stored) && !carry(Carry::kNone, stored)) return false;
  }
  return true;
}

bool Inward::keeps_order(uint32_t stored, uint32_t other) {
  const Motion &a = motions_[stored], &b = motions_[other];
  if (stored == other) return !is_loaded(stored) || !a.stays() || (!hands_on(stored) && carry(stored, stored));
  std::vector<SlotId> both;
  std::ranges::set_intersection(a.slots, b.slots, std::back_inserter(both));
  if (both.empty() || is_carried(other, stored)) return true;
  if (plan_.operands[other].output || !is_loaded(other)) return false;
  if (plan_.is_small()) return !b.stays();
  // The very element, in the same round.
  return !a.stays() && identical(a.delta, b.delta) && identical(dims_.offsets[stored], dims_.offsets[other]) &&
         lies_alike(stored, other);
}

/// No element is stored to by two points: of one element, only the order of rounds counts.
bool Inward::rounds_are_apart(uint32_t stored) const {
  const auto distance_of = [](Dim stride) { return stride.hint() < 0 ? -stride : stride; };
  std::vector<std::pair<Dim, Dim>> moves;  // stride, size
  for (size_t dim = 0; dim < rank(); ++dim)
    if (dims_.sizes[dim].hint() > 1) moves.emplace_back(distance_of(stride(stored, dim)), dims_.sizes[dim]);
  if (const Dim delta = motions_[stored].delta; !identical(delta, 0))
    moves.emplace_back(distance_of(delta), loop_.trip);
  std::ranges::stable_sort(moves, {},
                           [](const auto& move) { return std::pair(move.first.hint(), move.second.hint()); });
  Dim reach = 0;
  for (const auto& [distance, size] : moves) {
    if (distance <= reach) return false;
    reach += distance * (size - 1);
  }
  return true;
}

/// Of each operand one stride more.
template <class Number, class Stride>
std::vector<Number> Inward::with_time(const std::vector<Number>& strides, Stride along_time) const {
  std::vector<Number> made;
  for (size_t k = 0; k < motions_.size(); ++k) {
    for (size_t dim = 0; dim < rank(); ++dim) made.push_back(strides[k * rank() + dim]);
    made.push_back(along_time(k));
  }
  return made;
}

void Inward::make_plan(KernelPlan& plan) const {
  plan.dims.push_back(DimKind::Time);
  plan.carries = carries_;
  for (size_t k = 0; k < plan.operands.size(); ++k) {
    const Dim delta = motions_[k].delta;
    plan.operands[k].listed = motions_[k].jumps;
    plan.operands[k].strides.push_back(identical(delta, 0)                       ? StrideClass::Zero
                                       : identical(delta, 1) && !plan.is_small() ? StrideClass::Unit
                                                                                 : StrideClass::Any);
  }
  if (!plan.is_small()) {
    std::swap(plan.phases[0].elem, plan.phases[0].row);
    return;
  }
  plan.sizes.push_back(1);
  plan.strides = with_time(plan_.strides, [](size_t) { return int64_t{0}; });
}

void Inward::make_loop(SizedLoop& loop) const {
  LoopStep& step = loop.step;
  step.inside = true;
  step.walks.clear();
  loop.deltas.clear();
  KernelStep& launch = step.body[0];
  LaunchDims& dims = loop.body[0];
  dims.sizes.push_back(loop.trip);
  dims.strides = with_time(dims_.strides, [this](size_t k) { return motions_[k].delta; });
  launch.sizes = hints(dims.sizes);
  launch.strides = hints(dims.strides);
  Columns columns;
  std::vector<LoopStep::Operand> jumps;
  for (size_t column = 0; column < step_.jumps.size(); ++column) {
    const uint32_t k = step_.jumps[column].operand;
    if (!motions_[k].jumps) {  // carried: it lies where it begins or ends
      launch.operands[k] = motions_[k].slots[0];
      continue;
    }
    jumps.push_back(step_.jumps[column]);
    columns.emplace_back();
    for (size_t at = column; at < step_.table.size(); at += step_.jumps.size())
      columns.back().push_back({step_.table[at].slot, loop_.places[at]});
  }
  step.jumps = std::move(jumps);
  step.table.clear();
  step.turns.clear();
  loop.places.clear();
  fill_table(loop, columns);
}

}  // namespace

std::optional<OverTime> over_time(const LoopSlots& slots, const SizedLoop& loop) {
  if (loop.step.body.size() != 1) return std::nullopt;
  return Inward(slots, loop).run();
}

bool fits_over_time(const ir::LoopAttr& attr, const Body& body) {
  const LoopSlots slots = slots_apart(attr, body);
  return over_time(slots, loop_step(slots)).has_value();
}

}  // namespace fastjit::plan
