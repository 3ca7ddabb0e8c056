#include "dispatch/run/sized.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>

#include "ir/size_check.h"
#include "plan/team.h"

namespace fastjit::dispatch {
namespace {

const at::Tensor& unpack(PyObject* tensor) { return THPVariable_Unpack(tensor); }

constexpr size_t kKept = 4;  // programs at the sizes that came last
constexpr int64_t kFar = 8;  // times a size that the plan is made for

/// So many numbers, zero at first; few of them take no memory from elsewhere.
class Registers {
 public:
  explicit Registers(size_t count)
      : many_(count > few_.size() ? count : 0), data_(many_.empty() ? few_.data() : many_.data()) {}
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
  int64_t* data() { return data_; }
  int64_t& operator[](size_t i) { return data_[i]; }

 private:
  std::array<int64_t, 24> few_{};
  std::vector<int64_t> many_;
  int64_t* data_;
};

// 0, which no program lets in, in place of ints that are no symbols.
int64_t int_of(PyObject* number) noexcept {
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
  return may_be_symbol(value) ? value : 0;
}

// `none`: the program does not take it.
uint32_t input_of(const std::vector<capture::InputSource>& inputs, uint32_t argument, uint32_t none) {
  const auto found = std::ranges::find_if(inputs, [&](const capture::InputSource& source) {
    return source.kind == capture::InputSource::Kind::Argument && source.index == argument;
  });
  return found == inputs.end() ? none : static_cast<uint32_t>(found - inputs.begin());
}

}  // namespace

int64_t Sized::Place::of(PyObject* const* tensors, PyObject* const* numbers) const noexcept {
  return is_number() ? int_of(numbers[dim]) : of(unpack(tensors[argument]));
}

int64_t Sized::Place::of(const at::Tensor& tensor) const noexcept {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return is_stride ? impl->strides()[dim] : impl->sizes()[dim];
}

Sized::Sized(std::span<const int64_t> recorded) {
  for (const int64_t size : recorded) symbols_.push_back({kGiven, kGiven, 0, size});
}

void Sized::find_inputs(const std::vector<capture::InputSource>& inputs) {
  for (Place& symbol : symbols_) symbol.input = input_of(inputs, symbol.argument, kGiven);
}

Sized::Sized(std::span<const SizeOfArgument> symbols, const std::vector<std::pair<uint32_t, ir::Layout>>& layouts,
             const std::vector<capture::InputSource>& inputs, size_t given) {
  for (const auto& [argument, layout] : layouts) {
    const bool is_input = input_of(inputs, argument, kGiven) != kGiven;
    if (is_input) layouts_.emplace_back(argument, layout);
    for (uint32_t d = 0; d < layout.strides.size(); ++d)
      if (is_input && layout.strides[d].is_symbolic()) strides_.push_back({argument, d, layout.strides[d].expr()});
  }
  for (const SizeOfArgument& symbol : symbols)
    symbols_.push_back({symbol.argument, kGiven, symbol.dim, symbol.recorded, symbol.is_stride});
  finds_ints_ = std::ranges::any_of(symbols_, [&](const Place& one) { return one.is_number() && one.dim >= given; });
  find_inputs(inputs);
}

void Sized::set_program(const ir::Symbols& symbols, const plan::Program& base, plan::PlanOptions options,
                        const std::vector<ir::InputInfo>& scalars) {
  options_ = options;
  base_ = &base;
  guards_ = symbols.guards();
  std::vector<uint32_t> wanted;
  for (const StrideCheck& check : strides_) wanted.push_back(check.expr);
  for (const plan::SizedNumber& number : base.sized) wanted.push_back(number.expr);
  for (const ir::InputInfo& scalar : scalars) wanted.push_back(scalar.size.expr());
  code_ = symbols.code(wanted);
  for (StrideCheck& check : strides_) check.place = code_.place[check.expr];
  places_.clear();
  asks_late_ = std::ranges::any_of(code_.checks, [](const auto& check) { return check.late != 0; });
  for (const plan::SizedNumber& number : base.sized) places_.push_back(code_.place[number.expr]);
  scalars_.clear();
  for (const ir::InputInfo& scalar : scalars)
    scalars_.push_back(scalar.size.is_symbolic() ? code_.place[scalar.size.expr()] : kGiven);
  asks_late_ |= std::ranges::any_of(scalars_, [&](uint32_t at) { return at != kGiven && code_.is_late(at); });
  if (planned_.empty())
    for (const Place& symbol : symbols_) planned_.push_back(symbol.recorded);
  late_recorded_.clear();
  for (size_t i = code_.given; i < code_.symbols; ++i) late_recorded_.push_back(symbols.value(i));
  instances_.clear();
  instances_.push_back(std::make_unique<Instance>(this, base));
}

Sized::Instance::Instance(const Sized* of, const plan::Program& at)
    : sized(of),
      program(at),
      numbers(plan::places_of_sizes(program)),
      registers(of->code_.registers(), -1) {}  // of no call: they are written before they are used

// Numbers that hang on sizes not found yet are what they were: no step before that uses them.
bool Sized::Instance::take(std::span<const Found> found) {
  if (std::ranges::any_of(found, [](const Found& one) { return one.second < ir::Symbols::kLeast; })) return false;
  for (const auto& [symbol, size] : found) {
    is_settled &= registers[symbol] == size;
    registers[symbol] = size;
    known |= uint64_t{1} << (symbol - sized->code_.given);
  }
  if (!sized->code_.run_late(registers.data(), known)) return false;
  if (!is_settled) sized->settle(*this, true);
  for (size_t i = 0; i < sized->scalars_.size(); ++i)
    if (const uint32_t place = sized->scalars_[i]; place != kGiven && sized->code_.is_late(place))
      scalars[i] = static_cast<uint64_t>(registers[place]);
  return true;
}

// Gives the program what its registers say; `is_late`: what hangs on late symbols alone has changed.
void Sized::settle(Instance& instance, bool is_late) const {
  for (size_t i = 0; i < places_.size(); ++i)
    if (!is_late || code_.is_late(places_[i])) *instance.numbers[i] = instance.registers[places_[i]];
  plan::settle_launches(instance.program, options_);
  plan::settle_trips(instance.program);
  plan::share_rounds(instance.program, options_);
  instance.is_settled = true;
}

bool Sized::fits(PyObject* const* tensors, PyObject* const* numbers) const noexcept {
  Registers own(std::max(code_.registers(), symbols_.size()));
  const bool is_ready = !instances_.empty();  // else it is being compiled
  const int64_t* registers = is_ready ? instances_[0]->registers.data() : own.data();
  bool is_last = is_ready, is_recorded = true;
  for (size_t i = 0; i < symbols_.size(); ++i) {
    own[i] = symbols_[i].of(tensors, numbers);
    is_last &= own[i] == registers[i];
    is_recorded &= own[i] == symbols_[i].recorded;
  }
  if (failed() && has_late()) return false;
  if (!is_recorded && (failed() || !is_ready)) return false;
  if (!is_ready) return true;
  if (!is_last) {
    if (!code_.run(own.data())) return false;
    registers = own.data();
  }
  return std::ranges::all_of(strides_, [&](const StrideCheck& check) {
    return unpack(tensors[check.argument]).unsafeGetTensorImpl()->strides()[check.dim] == registers[check.place];
  });
}

std::string Sized::first_failure(PyObject* const* tensors, PyObject* const* numbers) const {
  if (instances_.empty()) return "the program is being compiled for other sizes";
  Registers registers(code_.registers());
  for (size_t i = 0; i < symbols_.size(); ++i) {
    registers[i] = symbols_[i].of(tensors, numbers);
    if (registers[i] < ir::Symbols::kLeast) return guards_[i];
  }
  if (!code_.run(registers.data()))
    for (size_t i = 0; i < code_.checks.size(); ++i)
      if (!code_.checks[i].late && !ir::holds(code_.checks[i].is, registers[code_.checks[i].place]))
        return guards_[code_.symbols + i];
  return failed() ? why_failed_ : "the strides of a tensor follow from its sizes";
}

Sized::Lease Sized::take(const at::Tensor* const* inputs, PyObject* const* numbers) const {
  Registers registers(code_.registers());
  for (size_t i = 0; i < symbols_.size(); ++i) {
    const Place& symbol = symbols_[i];
    registers[i] = symbol.is_number()       ? int_of(numbers[symbol.dim])
                   : symbol.input == kGiven ? symbol.recorded
                                            : symbol.of(*inputs[symbol.input]);
  }
  return take_at(registers.data());
}

Sized::Lease Sized::take(std::span<const int64_t> sizes) const {
  Registers registers(code_.registers());
  std::ranges::copy(sizes, registers.data());
  return take_at(registers.data());
}

// The symbols are there, but for late ones.
Sized::Lease Sized::take_at(int64_t* registers) const {
  const auto is_free = [](const auto& instance) { return instance->users == 0; };
  const auto known = std::ranges::find_if(instances_, [&](const auto& instance) {
    return std::equal(registers, registers + symbols_.size(), instance->registers.begin()) &&
           (!has_late() || (instance->registers[code_.given] >= 0 && is_free(instance)));
  });
  if (known != instances_.end()) {
    std::rotate(instances_.begin(), known, known + 1);
    far_calls_ += instances_[0]->is_far;
    return Lease(instances_[0].get());
  }
  std::ranges::copy(late_recorded_, registers + code_.given);
  if (!code_.run(registers) || (has_late() && !code_.run_late(registers, 0))) return {};
  auto place = std::find_if(instances_.rbegin(), instances_.rend(), is_free);
  if (instances_.size() < kKept || place == instances_.rend()) {
    instances_.push_back(std::make_unique<Instance>(this, *base_));
    place = instances_.rbegin();
  }
  Instance& instance = **place;
  std::copy_n(registers, code_.registers(), instance.registers.begin());
  settle(instance, false);
  instance.has_run = false;
  instance.is_long = plan::takes_threads(instance.program);
  instance.is_far = is_far(instance);
  far_calls_ += instance.is_far;
  std::rotate(instances_.begin(), std::prev(place.base()), place.base());
  return Lease(instances_[0].get());
}

// Of smaller sizes the plan costs little, whatever it is.
bool Sized::is_far(const Instance& instance) const {
  return !std::equal(planned_.begin(), planned_.end(), instance.registers.begin(),
                     [](int64_t planned, int64_t now) { return now / kFar < planned; });
}

void Sized::settle_plan(std::vector<int64_t> sizes) {
  planned_ = std::move(sizes);
  planned_.resize(symbols_.size());
  far_calls_ = 0;
  for (const auto& instance : instances_) instance->is_far = is_far(*instance);
}

bool Sized::in_use() const {
  return std::ranges::any_of(instances_, [](const auto& instance) { return instance->users > 0; });
}

}  // namespace fastjit::dispatch
