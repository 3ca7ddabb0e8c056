#include "dispatch/run/undo.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "capture/ops/aten.h"
#include "plan/repeat.h"

namespace fastjit::dispatch {
namespace {

using capture::OpFacts;
using capture::OpFlag;
using plan::SlotId;
using plan::SlotKind;
using Inputs = std::set<uint32_t>;

// Walks a program's steps in order and notes who touches which input.
class Analysis {
 public:
  Analysis(const plan::Program& program, const std::vector<capture::CallTemplate>& calls,
           const std::vector<ir::ExternAttr>& externs)
      : program_(program), calls_(calls), externs_(externs), extern_roots_(program.slots.size()) {}

  Changes run() {
    plan::for_each_step(program_, [this](const auto& step) { visit(step); });
    Changes out;
    for (auto& [input, access] : inputs_) {
      if (!access.writes) continue;
      const bool repeatable = access.writes == 1 && access.copied_into && !access.read_before;
      out.written.push_back({input, raises_after_write_ && !repeatable, repeatable, access.whole_storage});
    }
    out.reach_beyond.assign(reaches_beyond_.begin(), reaches_beyond_.end());
    out.draws = draws_;
    out.generators = std::move(generators_);
    out.undoable = raises_after_write_ || raises_after_draw_;
    out.undoable_at_first = calls_after_change_;
    return out;
  }

 private:
  struct Access {
    int writes = 0;            // steps
    bool copied_into = false;  // its one write only copies
    bool read_before = false;  // its one write, or in that very step
    bool whole_storage = false;
  };

  Inputs roots(SlotId id) const {
    const plan::Slot& slot = program_.slots[id];
    if (slot.kind == SlotKind::Input) return {slot.index};
    const auto made = alias_roots_.find(id);
    if (slot.kind == SlotKind::Alias) return made == alias_roots_.end() ? roots(slot.base) : made->second;
    return extern_roots_[id];
  }

  void read(SlotId id) {
    for (uint32_t input : roots(id))
      if (Access& access = inputs_[input]; !access.writes) access.read_before = true;
  }

  void write(const Inputs& targets, bool copied_into) {
    for (uint32_t input : targets) {
      Access& access = inputs_[input];
      access.copied_into = copied_into;
      access.whole_storage |= reaches_beyond_.contains(input);
      ++access.writes;
      written_ = true;
    }
  }

  void visit(const plan::KernelStep& s) {
    const plan::KernelPlan& kernel = program_.kernels[s.kernel];
    for (const plan::Instr& instr : kernel.code)
      if (plan::is_load(instr)) read(s.operands[instr.imm]);
    for (size_t i = 0; i < s.operands.size(); ++i)
      if (kernel.operands[i].output) write(roots(s.operands[i]), false);
  }

  void visit(const plan::ParallelStep& s) {
    for (const plan::KernelStep& launch : s.launches) visit(launch);
  }

  void visit(const plan::LoopStep& s) {
    plan::for_each_round(s, [this](const plan::KernelStep& launch) { visit(launch); });
  }

  void visit(const plan::ContractStep& s) {
    for (SlotId operand : s.operands)
      if (operand != plan::kNoSlot) read(operand);
    if (s.kind == ir::Product::Convolution) note_call();
    if (s.kind == ir::Product::Convolution && !calls_[s.call].facts.is(OpFlag::NeverRaises)) may_stop();
    extern_roots_[s.result].clear();
    for (const plan::KernelStep& launch : s.epilogue) visit(launch);
  }

  void visit(const plan::GuardStep&) { may_stop(); }
  void visit(const plan::NumberStep&) { may_stop(); }

  void visit(const plan::AliasStep& s) { alias_roots_[s.slot] = roots(s.base); }
  void visit(const plan::HandStep& s) { extern_roots_[s.to] = roots(s.from); }
  void visit(const plan::FreeStep&) {}
  void visit(const plan::OwnStep&) {}

  void visit(const plan::ExternStep& s) {
    const ir::ExternAttr& attr = externs_[s.external];
    const capture::CallTemplate& call = calls_[attr.call];
    const OpFacts& facts = call.facts;
    const bool view = attr.kind == ir::ExternKind::View;
    Inputs targets;
    for (size_t i = 0; i < s.operands.size(); ++i) {
      if (s.operands[i] == plan::kNoSlot) continue;
      const bool written = std::ranges::find(attr.written, i) != attr.written.end();
      if (written) targets.merge(roots(s.operands[i]));
      if (!written && !view) read(s.operands[i]);
    }
    // What a call gives back lies in what it writes; a view lies in its first operand.
    const Inputs memory = view && !s.operands.empty() ? roots(s.operands[0]) : targets;
    if (facts.is(OpFlag::ReachesStorage) && !s.operands.empty()) reaches_beyond_.merge(roots(s.operands[0]));
    for (SlotId result : s.results)
      if (result != plan::kNoSlot) extern_roots_[result] = memory;
    const bool plain_view = view && !facts.is(OpFlag::Foreign);
    const bool may_raise = plain_view ? facts.is(OpFlag::MayRaise) : !facts.is(OpFlag::NeverRaises);
    if (!plain_view) note_call();
    write(targets, facts.is(OpFlag::CopiesInto));
    draws_ |= facts.is(OpFlag::Draws) && call.made_generators.empty();  // those are the run's own
    for (const c10::IValue& value : call.args)
      if (value.isGenerator()) generators_.push_back(value.toGenerator());
    if (may_raise || !call.numbers.empty()) may_stop();  // another number may be one that it refuses
  }

  void note_call() { calls_after_change_ |= written_ || draws_; }

  void may_stop() {
    raises_after_write_ |= written_;
    raises_after_draw_ |= draws_;
  }

  const plan::Program& program_;
  const std::vector<capture::CallTemplate>& calls_;
  const std::vector<ir::ExternAttr>& externs_;
  std::map<SlotId, Inputs> alias_roots_;  // of the aliases that a step makes
  std::vector<Inputs> extern_roots_;      // per slot: the inputs in whose memory an extern step's result lies
  std::map<uint32_t, Access> inputs_;
  Inputs reaches_beyond_;
  bool written_ = false, draws_ = false, raises_after_write_ = false, raises_after_draw_ = false;
  bool calls_after_change_ = false;
  std::vector<at::Generator> generators_;
};

// The tensor's memory under a tensor of its own, whose writes no counter sees.
at::Tensor alias(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  const c10::DispatchKey device = t.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  at::Tensor out =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(t.storage()), c10::DispatchKeySet(device), t.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  out.unsafeGetTensorImpl()->set_storage_offset(offset);
  return out;
}

// What Undo copies: the tensor's elements; where these overlap, the stretch of memory they lie in.
at::Tensor memory_of(const at::Tensor& t, bool whole_storage) {
  if (whole_storage) {
    const auto elements = static_cast<int64_t>(t.storage().nbytes() / t.element_size());
    return alias(t, {elements}, {1}, 0);
  }
  const int64_t stretch = stretch_of(t);
  if (t.numel() && stretch <= t.numel()) return alias(t, {stretch}, {1}, t.storage_offset());
  return alias(t, t.sizes(), t.strides(), t.storage_offset());
}

}  // namespace

int64_t stretch_of(const at::Tensor& t) {
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += std::max<int64_t>(t.size(d) - 1, 0) * t.stride(d);
  return t.numel() ? last + 1 : 0;
}

Changes Changes::of(const plan::Program& program, const std::vector<capture::CallTemplate>& calls,
                    const std::vector<ir::ExternAttr>& externs) {
  return Analysis(program, calls, externs).run();
}

Generators::Generators(const Changes& changes, c10::Device device) {
  if (!changes.draws) return;
  std::vector<at::Generator> all = changes.generators;
  all.push_back(at::globalContext().defaultGenerator(device));
  for (at::Generator& generator : all) {
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

void Generators::put_back() const {
  for (auto [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

bool Generators::operator==(const Generators& other) const {
  return std::ranges::equal(states_, other.states_,
                            [](const auto& a, const auto& b) { return a.second.equal(b.second); });
}

Undo::Undo(const Changes& changes, const at::Tensor* const* inputs, c10::Device device, bool all) {
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const Changes::Written& written : changes.written) {
    const at::Tensor& input = *inputs[written.input];
    Saved saved;
    if (written.kept || (all && !written.repeatable)) {
      saved.memory = memory_of(input, written.whole_storage);
      saved.contents = saved.memory.clone();
    }
    if (!input.is_inference()) {
      saved.counted = input;
      saved.version = input.unsafeGetTensorImpl()->version_counter().current_version();
    }
    saved_.push_back(std::move(saved));
  }
  generators_.emplace(changes, device);
}

void Undo::put_back() const {
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const Saved& saved : saved_) {
    if (saved.contents.defined()) saved.memory.copy_(saved.contents);
    if (!saved.counted.defined()) continue;
    // version_counter() gives a copy that shares the count.
    c10::VariableVersion counter = saved.counted.unsafeGetTensorImpl()->version_counter();
    counter.set_version(saved.version);
  }
  generators_->put_back();
}

bool lacks_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) || dynamic_cast<const c10::OutOfMemoryError*>(&error) ||
         std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;
}

}  // namespace fastjit::dispatch
