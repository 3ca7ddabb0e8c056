#pragma once
// What running a program has in common on every device: slots as tensors, calls left to torch, results. `Self` adds
// memory (allocate, empty) and the steps with kernels; nothing here is virtual, since every hit passes through.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <bit>
#include <sstream>

#include "dispatch/run/compact.h"
#include "dispatch/run/executor.h"
#include "plan/repeat.h"

namespace fastjit::dispatch {

template <class Self, class Products, c10::DispatchKey kKey>
class Run {
 public:
  Run(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
      const uint64_t* scalars)
      : exe_(executable), program_(program), inputs_(inputs), scalars_(scalars), tensors_(program.tensors) {}

  void all_steps() {
    for (const plan::Step& step : program_.steps) std::visit([this](const auto& s) { self().step(s); }, step);
  }

  // Those from number `begin` on and before number `end`, as plan::for_each_number() counts them.
  void some_steps_and_give_up(at::Tensor* const* given_up, uint32_t begin, uint32_t end) {
    auto last = std::ranges::lower_bound(exe_.last_uses, begin, {}, &LastUse::step);
    const auto give_up = [&](uint32_t at) {
      for (; last != exe_.last_uses.end() && last->step == at; ++last) {
        if (!given_up[last->input]) continue;
        for (const uint32_t alias : last->aliases) tensors_[alias].reset();
        given_up[last->input]->reset();
      }
    };
    plan::for_each_number(program_, begin, end, [&](uint32_t, const auto& each) { self().step(each); }, give_up);
  }

  // False: stopped at a guard.
  bool checked_steps(ValueCheck& check) {
    const auto take = [&](const auto& step) {
      if constexpr (std::is_same_v<decltype(step), const plan::RepeatStep&>)
        return checked_rounds(step, check);
      else
        return checked(step, check);
    };
    for (const plan::Step& step : program_.steps)
      if (!std::visit(take, step)) return false;
    return found_.empty() || !check.late || !check.late->is_asked() || take_found(check);
  }

  void collect(Tensors& outputs) {
    outputs.resize(program_.outputs.size());
    for (size_t i = 0; i < program_.outputs.size(); ++i)
      if (program_.slots[program_.outputs[i]].kind != SlotKind::Input) outputs[i] = tensor(program_.outputs[i]);
    for (size_t i = 0; i < exe_.result_versions.size(); ++i)
      if (exe_.result_versions[i] >= 0) set_version(outputs[i], exe_.result_versions[i]);
    for (size_t i = 0; i < exe_.view_creations.size(); ++i) set_view_creation(outputs[i], exe_.view_creations[i]);
  }

  // A step that writes into the result's memory counts as a write where eager may have had none, and the other way.
  static void set_version(const at::Tensor& t, int64_t version) {
    at::TensorImpl* impl = t.unsafeGetTensorImpl();
    if (impl->is_inference() || impl->version_counter().current_version() == version) return;
    c10::VariableVersion counter = impl->version_counter();  // a copy that shares the count
    counter.set_version(version);
  }

  void know(char* const* first_elements) { first_elements_ = first_elements; }
  /// Where an earlier run of the program has stopped.
  void go_on(Stopped& from) {
    if (from.step == 0) return;
    tensors_ = std::move(from.tensors);
    generators_ = std::move(from.generators);
    self().take_over(from);
    arena_ = static_cast<char*>(from.arena.get());
    self().held_arena_ = std::move(from.arena);
  }
  void stop(Stopped& at) {
    at.tensors = std::move(tensors_);
    at.generators = std::move(generators_);
    self().hand_over(at);
    at.arena = std::move(self().held_arena_);
  }

  /// Into `outputs` those of the part, which nothing here has any more.
  void hand_out(const Part& part, Tensors& outputs) {
    for (const uint32_t number : part.outputs)
      if (slot(program_.outputs[number]).kind != SlotKind::Input) outputs[number] = tensor(program_.outputs[number]);
    for (const uint32_t alias : part.tensors) tensors_[alias].reset();
    for (const uint32_t number : part.outputs) {
      at::Tensor& t = outputs[number];
      if (t.defined() && t.has_storage() && t.storage().use_count() > 1) t = t.clone();
    }
  }

  void bump_versions() {
    for (const ir::Store& store : exe_.stores) {
      at::TensorImpl* impl = inputs_[store.input]->unsafeGetTensorImpl();
      if (impl->is_inference()) continue;
      for (uint32_t i = 0; i < store.bumps; ++i) impl->bump_version();
    }
  }

 protected:
  using SlotId = plan::SlotId;
  using SlotKind = plan::SlotKind;

  Self& self() { return static_cast<Self&>(*this); }
  const plan::Slot& slot(SlotId id) const { return program_.slots[id]; }

  // The slot as a tensor; allocated at its first use.
  const at::Tensor& tensor(SlotId id) {
    const plan::Slot& s = slot(id);
    if (s.kind == SlotKind::Input) return *inputs_[s.index];
    at::Tensor& t = tensors_[s.index];
    if (!t.defined()) {
      if (s.kind == SlotKind::Alias)
        t = alias(s, s.base, s.offset);
      else
        t = exe_.on_host(id) ? number_on_host() : self().empty(s);
    }
    return t;
  }

  static at::Tensor number_on_host() { return at::empty({}, at::TensorOptions(at::kDouble)); }

  at::Tensor alias(const plan::Slot& s, SlotId of, int64_t offset) {
    const at::Tensor& base = tensor(of);
    constexpr c10::DispatchKeySet kKeys({kKey, c10::DispatchKey::CPU});  // of a device, or of the host beside it
    at::Tensor t =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), base.key_set() & kKeys, base.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(s.sizes, s.strides);
    t.unsafeGetTensorImpl()->set_storage_offset(base.storage_offset() + offset);
    return t;
  }

  char* address(SlotId id) {
    const plan::Slot& s = slot(id);
    if (s.kind == SlotKind::Input) return data_of_input(s.index, ir::size_of(s.dtype));
    if (s.kind == SlotKind::Temp && arena_) return arena_ + s.offset;
    return address_of_made(id);
  }
  // Apart, for the loops over the others.
  [[gnu::noinline]] char* address_of_made(SlotId id) {
    const plan::Slot& s = slot(id);
    if (s.kind == SlotKind::Temp) {
      arena_ = self().take_arena();
      return arena_ + s.offset;
    }
    if (s.kind == SlotKind::Alias) return address(s.base) + s.offset * ir::size_of(s.dtype);
    return static_cast<char*>(tensor(id).unsafeGetTensorImpl()->mutable_data());
  }
  char* address(const plan::Place& place) {
    return address(place.slot) + place.offset * ir::size_of(slot(place.slot).dtype);
  }

  // As its mutable_data(), which asks by a virtual call whether there is a storage: of an input the key says so.
  [[gnu::always_inline]] char* data_of_input(uint32_t input, int64_t element) const {
    if (first_elements_ && first_elements_[input]) return first_elements_[input];
    const c10::TensorImpl* impl = inputs_[input]->unsafeGetTensorImpl();
    char* data = static_cast<char*>(impl->unsafe_storage().unsafeGetStorageImpl()->mutable_data());
    return data + impl->storage_offset() * element;
  }

  void step(const plan::RepeatStep& s) {
    plan::for_each_step(s, [this](const auto& each) { self().step(each); });
  }

  void step(const plan::AliasStep& s) { tensors_[slot(s.slot).index] = alias(slot(s.slot), s.base, s.offset); }

  void step(const plan::HandStep& s) {
    at::Tensor given = s.keeps ? tensor(s.from) : std::move(tensors_[slot(s.from).index]);
    tensors_[slot(s.to).index] = std::move(given);
  }

  void step(const plan::FreeStep& s) {
    if (s.slot != plan::kNoSlot) return tensors_[slot(s.slot).index].reset();
    self().drop_arena();
    arena_ = nullptr;
  }

  void step(const plan::OwnStep& s) { make_own(s.slot, slot(s.slot).kind); }

  void make_own(SlotId id, SlotKind kind) {
    at::Tensor& t = tensors_[slot(id).index];
    if (!t.defined() || is_alone(t, kind)) return;
    const at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor own = like(t, slot(id));
    own.copy_(t);
    t = std::move(own);
  }

  // Memory for the slot where a call's tensor is.
  at::Tensor like(const at::Tensor& t, const plan::Slot& s) const {
    if (kKey == c10::DispatchKey::CPU || !t.is_cpu()) return static_cast<const Self&>(*this).empty(s);
    return at::empty_strided(s.sizes, s.strides, t.options());
  }

  // Nobody else can reach the tensor's memory. What a call gave may lie in memory that only the call knows of, unless
  // it comes from torch's own allocator.
  static bool is_alone(const at::Tensor& t, SlotKind kind) {
    if (t.use_count() != 1 || t.storage().use_count() != 1) return false;
    if (kind != SlotKind::Extern) return true;
    const c10::Allocator* allocator = c10::GetAllocator(t.device().type());
    return allocator && allocator->raw_deleter() && t.storage().data_ptr().get_deleter() == allocator->raw_deleter();
  }

  void step(const plan::GuardStep&) {}  // checked() compares

  template <class AnyStep>
  bool checked(const AnyStep& one, ValueCheck& check) {
    constexpr bool kIsGuard = std::is_same_v<AnyStep, plan::GuardStep>;
    constexpr bool kUsesSizes = !kIsGuard && !std::is_same_v<AnyStep, plan::FreeStep>;
    if (kUsesSizes && !found_.empty() && !take_found(check)) return false;
    self().step(one);
    if constexpr (kIsGuard) {
      if (!holds(one, check)) return false;
      if (++check.held < check.expected.size() || !check.guards_only) return true;
      static_cast<void>(found_.empty() || take_found(check));
      return false;
    }
    return true;
  }

  bool checked_rounds(const plan::RepeatStep& repeat, ValueCheck& check) {
    const auto take = [&](const auto& step) { return checked(step, check); };
    plan::Round round(repeat);
    for (int64_t i = 0; i < repeat.trip; ++i) {
      round.set(i);
      for (const plan::RoundStep& step : round.steps())
        if (!std::visit(take, step)) return false;
    }
    return true;
  }

  void step(const plan::NumberStep& s) {
    double given[2] = {};
    for (size_t i = 0; i < s.operands.size(); ++i) given[i] = self().number(s.operands[i].slot)[s.operands[i].offset];
    const auto result = exe_.numbers[s.number].compute(given, scalars_);
    if (!result) throw Restart{"the number " + exe_.numbers[s.number].label + " is computed otherwise by Python"};
    *self().number(s.result) = *result;
  }

  // What comes next may be of the sizes that calls have found. False: the program is for others.
  bool take_found(ValueCheck& check) {
    check.is_of_other_sizes = !check.late || !check.late->take(found_);
    if (check.is_of_other_sizes) return false;
    found_.clear();
    for (const auto& [id, tmpl] : unchecked_) {
      const at::Tensor& t = tensor(id);
      if (t.sizes() != at::IntArrayRef(slot(id).sizes) || t.strides() != at::IntArrayRef(slot(id).strides))
        throw Restart{"the result of " + c10::toString(tmpl->op.operator_name()) + " lies otherwise than recorded"};
    }
    unchecked_.clear();
    return true;
  }

  bool holds(const plan::GuardStep& guard, ValueCheck& check) {
    const capture::ValueGuard& asked = check.expected[guard.guard];
    std::vector<uint64_t>& seen = check.seen;
    seen.clear();
    if (asked.of != capture::ValueGuard::Of::Elements) {
      asked.read(tensor(guard.slot).sizes(), seen);
      return seen == asked.expected;
    }
    const ir::DType dtype = slot(guard.slot).dtype;
    const char* place = address({guard.slot, guard.offset});
    capture::for_each_element(guard.sizes, guard.strides, [&](int64_t offset) {
      seen.push_back(capture::value_bits(place + offset * ir::size_of(dtype), dtype));
    });
    return seen == asked.expected;
  }

  // Lists in a template are shared between calls: each call fills a copy.
  static c10::IValue copy_of_list(const c10::IValue& list) {
    if (list.isTensorList()) return list.toTensorList().copy();
    return list.toList().copy();
  }

  // As the recorded call made it.
  const at::Generator& made_generator(uint32_t which) {
    if (generators_.size() <= which) generators_.resize(which + 1);
    if (!generators_[which].defined()) generators_[which] = at::detail::createCPUGenerator();
    return generators_[which];
  }

  c10::IValue number_of(const capture::CallTemplate::NumberHole& hole, const std::vector<SlotId>& operands) {
    if (hole.operand >= 0) return *self().number(operands[static_cast<size_t>(hole.operand)]);
    const uint64_t bits = scalars_[hole.scalar];
    return hole.is_float ? c10::IValue(std::bit_cast<double>(bits)) : c10::IValue(static_cast<int64_t>(bits));
  }

  void call(const capture::CallTemplate& tmpl, const std::vector<SlotId>& operands, torch::jit::Stack& stack) {
    stack.assign(tmpl.args.begin(), tmpl.args.end());
    int64_t list = -1;
    for (size_t i = 0; i < tmpl.holes.size(); ++i) {
      const auto [arg, item] = tmpl.holes[i];
      const at::Tensor value = operands[i] == plan::kNoSlot ? at::Tensor() : tensor(operands[i]);
      if (item < 0) {
        stack[arg] = value;
        continue;
      }
      if (list != arg) stack[arg] = copy_of_list(tmpl.args[arg]);
      list = arg;
      if (stack[arg].isTensorList())
        stack[arg].toTensorList().set(static_cast<size_t>(item), value);
      else
        stack[arg].toList().set(static_cast<size_t>(item), value.defined() ? c10::IValue(value) : c10::IValue());
    }
    for (const auto& [arg, which] : tmpl.made_generators) stack[arg] = made_generator(which);
    for (const capture::CallTemplate::NumberHole& hole : tmpl.numbers) {
      const c10::IValue number = number_of(hole, operands);
      if (hole.element < 0) {
        stack[hole.arg] = number;
        continue;
      }
      if (list != hole.arg) stack[hole.arg] = copy_of_list(tmpl.args[hole.arg]);
      list = hole.arg;
      if (stack[hole.arg].isIntList())
        stack[hole.arg].toIntList().set(static_cast<size_t>(hole.element), number.toInt());
      else
        stack[hole.arg].toList().set(static_cast<size_t>(hole.element), number);
    }
    std::optional<capture::CastScope> casts;
    if (tmpl.casts) casts.emplace(*tmpl.casts);
    if constexpr (kKey == c10::DispatchKey::CPU)
      if (tmpl.by_data && compacted(tmpl.op, stack)) return;
    if (!tmpl.makes_no_view && !tmpl.with_grad_mode) return tmpl.op.callBoxed(stack);
    const at::AutoGradMode mode(tmpl.with_grad_mode || at::GradMode::is_enabled());
    const at::AutoDispatchBelowADInplaceOrView guard;
    tmpl.op.callBoxed(stack);
  }

  static bool is_data_sized(const capture::CallTemplate& tmpl, size_t which) {
    return which < tmpl.data_dims.size() && tmpl.data_dims[which] != 0;
  }

  // All but the sizes that each call finds; `found`: these dims, the last bit for all behind it.
  static void check_rank(const at::Tensor& t, const capture::CallTemplate& tmpl, size_t which, uint64_t found) {
    const capture::TensorMeta& recorded = tmpl.results[which];
    const std::string name = c10::toString(tmpl.op.operator_name());
    if (t.scalar_type() != recorded.dtype || t.dim() != static_cast<int64_t>(recorded.sizes.size()))
      throw Restart{"the result of " + name + " has another dtype or rank"};
    for (size_t d = 0; d < recorded.sizes.size(); ++d)
      if (!(found >> std::min<size_t>(d, 63) & 1) && t.size(static_cast<int64_t>(d)) != recorded.sizes[d])
        throw Restart{"the result of " + name + " has a size that data decides, unlike when it was recorded"};
  }

  // Python may have looked at the sizes of what no step uses.
  static void check_unused(const at::Tensor& t, const capture::CallTemplate& tmpl, size_t which) {
    if (!t.defined() || which >= tmpl.results.size()) return;
    if (is_data_sized(tmpl, which)) return check_rank(t, tmpl, which, tmpl.data_dims[which]);
    if (tmpl.results[which].symbolic) return check_rank(t, tmpl, which, ~uint64_t{0});
    if (t.sizes() == at::IntArrayRef(tmpl.results[which].sizes)) return;
    throw Restart{"the result of " + c10::toString(tmpl.op.operator_name()) +
                  " has other sizes than when it was recorded"};
  }

  static std::string text(c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
    std::ostringstream out;
    out << c10::toString(dtype) << sizes << " with strides " << strides;
    return out.str();
  }

  // What a call gave, into its slot. Strides other than those of the recording are the program's wish.
  void keep(SlotId id, at::Tensor got, const capture::CallTemplate& tmpl, size_t which) {
    at::Tensor& t = tensors_[slot(id).index] = std::move(got);
    if (which >= tmpl.results.size()) return;
    const capture::TensorMeta& recorded = tmpl.results[which];
    if (is_data_sized(tmpl, which)) {
      if (!tmpl.finds.empty()) unchecked_.emplace_back(id, &tmpl);
      return check_rank(t, tmpl, which, tmpl.data_dims[which]);
    }
    const bool is_like = t.scalar_type() == recorded.dtype && t.sizes() == at::IntArrayRef(slot(id).sizes);
    if (is_like && t.strides() == at::IntArrayRef(slot(id).strides)) return;
    if (!is_like || !exe_.relaid[id])
      throw Restart{"the result of " + c10::toString(tmpl.op.operator_name()) +
                    " has other sizes, strides or dtype than when it was recorded: " +
                    text(t.scalar_type(), t.sizes(), t.strides()) + ", not " +
                    text(recorded.dtype, slot(id).sizes, slot(id).strides)};
    t = like(t, slot(id)).copy_(t);
  }

  // With another number than the recorded one the operator may have given its argument back, as dropout(x, 0.0) does.
  void check_new(const at::Tensor& t, const plan::ExternStep& s) {
    const auto shares = [&](SlotId operand) {
      return operand != plan::kNoSlot && tensor(operand).has_storage() &&
             t.storage().is_alias_of(tensor(operand).storage());
    };
    if (t.defined() && t.has_storage() && std::ranges::any_of(s.operands, shares))
      throw Restart{"the result of an operator shares memory with an argument, unlike when it was recorded"};
  }

  void step(const plan::ExternStep& s) {
    const capture::CallTemplate& tmpl = exe_.calls[exe_.externs[s.external].call];
    torch::jit::Stack stack;
    call(tmpl, s.operands, stack);
    // A tensor list counts as its elements.
    size_t result = 0;
    const auto take = [&](const at::Tensor& t) {
      const SlotId place = result < s.results.size() ? s.results[result] : plan::kNoSlot;
      if (!tmpl.numbers.empty() && tmpl.makes_new) check_new(t, s);
      for (const capture::CallTemplate::Find& find : tmpl.finds)
        if (find.result == result && t.dim() > find.dim) found_.emplace_back(find.symbol, t.size(find.dim));
      if (place != plan::kNoSlot)
        keep(place, t, tmpl, result);
      else if (tmpl.by_data || !tmpl.numbers.empty())
        check_unused(t, tmpl, result);
      ++result;
    };
    for (const c10::IValue& value : stack) {
      if (value.isTensor())
        take(value.toTensor());
      else if (value.isTensorList())
        for (const at::Tensor& t : value.toTensorVector()) take(t);
      else if (value.isBool())  // for a guard
        take(at::scalar_tensor(value.toBool(), at::kBool));
    }
  }

  // The convolution makes its result, which the epilogue then finds in its place.
  void convolution(const plan::ContractStep& s) {
    const capture::CallTemplate& tmpl = exe_.calls[s.call];
    torch::jit::Stack stack;
    call(tmpl, s.operands, stack);
    keep(s.result, std::move(stack[0]).toTensor(), tmpl, 0);
    stack.clear();
    if (!s.epilogue.empty()) make_own(s.result, SlotKind::Extern);
  }

  // The operands of a product of matrices: its factors, and the bias or an undefined tensor.
  struct Factors {
    const at::Tensor &a, &b;
    at::Tensor bias;
  };
  Factors factors(const plan::ContractStep& s) {
    const bool biased = s.operands.size() == 3;
    return {tensor(s.operands[biased ? 1 : 0]), tensor(s.operands[biased ? 2 : 1]),
            biased ? tensor(s.operands[0]) : at::Tensor()};
  }

  // `Products` writes into `out`, which has the result's sizes.
  void product(const plan::ContractStep& s, at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
               const at::Tensor& bias) {
    const std::vector<c10::IValue>& args = exe_.calls[s.call].args;
    switch (s.kind) {
      case ir::Product::Mm:
        return Products::mm(out, a, b);
      case ir::Product::Bmm:
        return Products::bmm(out, a, b);
      case ir::Product::Addmm:
        return Products::addmm(out, bias, a, b, args[3].toScalar(), args[4].toScalar());
      case ir::Product::Baddbmm:
        return Products::baddbmm(out, bias, a, b, args[3].toScalar(), args[4].toScalar());
      case ir::Product::Convolution:
        throw std::logic_error("a convolution is no product of matrices");
    }
  }

  const Executable& exe_;
  const plan::Program& program_;
  const at::Tensor* const* inputs_;
  char* const* first_elements_ = nullptr;  // of inputs: see run()
  const uint64_t* scalars_;
  c10::SmallVector<at::Tensor, 12> tensors_;  // by Slot::index
  std::vector<at::Generator> generators_;     // of this run
  // Sizes that calls have found since the program was made for those found before, and the results that have them.
  c10::SmallVector<LateSizes::Found, 4> found_;
  c10::SmallVector<std::pair<SlotId, const capture::CallTemplate*>, 4> unchecked_;
  char* arena_ = nullptr;  // memory of the Temp slots from the first on that is used; Self holds it
};

/// A whole call. Throws what run() throws. `given_up`: that of run_and_give_up(), or null.
template <class Device>
void run_steps(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
               at::Tensor* const* given_up, const uint64_t* scalars, Tensors& outputs,
               char* const* first_elements = nullptr) {
  Device call(executable, program, inputs, scalars);
  call.know(first_elements);
  if (given_up)
    call.some_steps_and_give_up(given_up, 0, Stopped::kEnd);
  else
    call.all_steps();
  call.bump_versions();
  call.collect(outputs);
}

template <class Device>
void run_part_on(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
                 at::Tensor* const* given_up, const uint64_t* scalars, const Part& part, Stopped& at,
                 Tensors& outputs) {
  Device call(executable, program, inputs, scalars);
  call.go_on(at);
  call.some_steps_and_give_up(given_up, at.step, part.end);
  outputs.resize(program.outputs.size());
  call.hand_out(part, outputs);
  call.stop(at);
  at.step = part.end;
}

template <class Device>
bool run_checked_on(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
                    const uint64_t* scalars, Tensors& outputs, ValueCheck& check) {
  Device call(executable, program, inputs, scalars);
  if (!call.checked_steps(check)) return false;
  call.bump_versions();
  call.collect(outputs);
  return true;
}

/// On executable.cuda's device.
void run_cuda(const Executable& executable, const at::Tensor* const* inputs, at::Tensor* const* given_up,
              const uint64_t* scalars, Tensors& outputs);
void run_part_cuda(const Executable& executable, const at::Tensor* const* inputs, at::Tensor* const* given_up,
                   const uint64_t* scalars, const Part& part, Stopped& at, Tensors& outputs);
bool run_checked_cuda(const Executable& executable, const at::Tensor* const* inputs, const uint64_t* scalars,
                      Tensors& outputs, ValueCheck& check);

}  // namespace fastjit::dispatch
