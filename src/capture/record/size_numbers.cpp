// Sizes that Python has as ints, and what it does with them.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "capture/record/data_sizes.h"
#include "capture/record/recorder.h"

namespace fastjit::capture {
namespace {

// Whether it is a tensor of the trace whose sizes are what they seem.
bool is_ordinary(const Trace& trace, uint32_t id) {
  if (id == kNone) return false;
  const TensorRecord& record = trace.tensors[id];
  return record.unusual.empty() && !record.is_nested && !record.layered;
}

// The same where data does not decide them, or Python has them as numbers.
bool is_plain(const Trace& trace, uint32_t id) {
  return is_ordinary(trace, id) && (!trace.made_dims_of(id) || trace.sizes_as_numbers.contains(id));
}

// Such a tensor; kNone: it is none.
uint32_t find_plain(const Trace& trace, const at::Tensor& tensor) {
  const uint32_t id = trace.find(tensor.unsafeGetTensorImpl());
  return is_plain(trace, id) && !is_wrapper(tensor) ? id : kNone;
}

// Whether it has given all slices of length 1 along the dim that is its last argument.
bool gives_parts(const Event& event) {
  if (!event.finished || event.args.empty()) return false;
  if (event.name == "aten::unbind.int") return event.args.size() == 2;
  return event.name == "aten::split.Tensor" && event.args.size() == 3 && event.args[1].constant.isInt() &&
         event.args[1].constant.toInt() == 1;
}

}  // namespace

// Whether its sizes may be others in another call.
bool Recorder::Impl::has_free_sizes(uint32_t tensor) const {
  const Source* root = trace.root(tensor);
  return !root || (root->argument < inputs.free_sizes.size() && inputs.free_sizes[root->argument] != 0);
}

int64_t Recorder::sized_tensor(const at::Tensor& tensor) const {
  const bool follows = impl_->follows_sizes() && impl_->recording;
  const uint32_t id = follows ? find_plain(impl_->trace, tensor) : kNone;
  return id != kNone && impl_->has_free_sizes(id) ? static_cast<int64_t>(id) : -1;
}

int64_t Recorder::found_tensor(const at::Tensor& tensor, int dim) {
  Trace& trace = impl_->trace;
  const bool may_find = impl_->inputs.finds_sizes && impl_->recording && trace.device.is_cpu();
  const uint32_t id = trace.find(tensor.unsafeGetTensorImpl());
  if (!may_find || !is_ordinary(trace, id) || is_wrapper(tensor) || tensor.requires_grad()) return -1;
  const DataDims read = dim < 0 ? ~DataDims{0} : bit(static_cast<size_t>(dim));
  if (!(trace.dims_of(id) & read)) return -1;
  impl_->add_size_event(tensor, id, kSizeRead);
  trace.sizes_as_numbers.insert(id);
  trace.follows_found = true;
  return static_cast<int64_t>(id);
}

void Recorder::size_given(int64_t tensor, int dim, PyObject* number) {
  Trace& trace = impl_->trace;
  const auto id = static_cast<uint32_t>(tensor);
  if (!number) return impl_->note_sizes_read(id);
  const Source* root = trace.root(id);
  const std::string owner = root ? root->name : "a tensor";
  trace.size_numbers.emplace(static_cast<uint32_t>(impl_->inputs.scalars.size()),
                             SizeNumber{.tensor = id, .dim = dim, .line = impl_->lines.now()});
  impl_->inputs.scalars.emplace_back(number,
                                     dim < 0 ? owner + ".numel()" : owner + ".size(" + std::to_string(dim) + ")");
}

void Recorder::size_computed(PyObject* number, std::string name, support::IntArithmetic op,
                             std::vector<support::SizeOperand> operands) {
  impl_->trace.size_numbers.emplace(static_cast<uint32_t>(impl_->inputs.scalars.size()),
                                    SizeNumber{.op = op, .operands = std::move(operands), .line = impl_->lines.now()});
  impl_->inputs.scalars.emplace_back(number, std::move(name));
}

void Recorder::size_compared(int comparison, support::SizeOperand a, support::SizeOperand b) {
  impl_->trace.size_tests.push_back({comparison, a, b});
}

void Recorder::sizes_used(std::vector<support::SizeOperand> ints) {
  impl_->trace.size_uses.push_back({std::move(ints)});
  impl_->open_sizes = true;
}

bool Recorder::indexed(const at::Tensor& tensor, std::vector<support::IndexItem> items) {
  Trace& trace = impl_->trace;
  if (!impl_->recording) return false;
  const auto has_size = [](const support::IndexItem& item) {
    return item.start.is_size() || item.stop.is_size() || item.step.is_size();
  };
  const bool may_find = std::ranges::any_of(items, has_size);  // else it asks one thing only, see slice_taken()
  if (find_plain(trace, tensor) == kNone && (!may_find || found_tensor(tensor, -1) < 0)) return false;
  trace.index_uses.push_back({{trace.use(tensor), std::move(items)}});
  impl_->open_index = true;
  return true;
}

int64_t Recorder::loop_begun(const support::LoopRange& range) {
  if (!impl_->recording || !impl_->inputs.for_any_size()) return -1;
  impl_->trace.loops.push_back({.range = range, .line = impl_->lines.now()});
  return std::ssize(impl_->trace.loops) - 1;
}

PartsGiven Recorder::parts_given(PyObject* parts) const {
  constexpr PartsGiven kNotGiven;
  const Trace& trace = impl_->trace;
  if (!impl_->recording || !impl_->inputs.for_any_size() || trace.events.empty()) return kNotGiven;
  const Event& event = trace.events.back();
  if (!gives_parts(event)) return kNotGiven;
  const std::span<const Use> results = flat_results(event);
  const auto is_it = [&](PyObject* part, const Use& result) {
    return THPVariable_Check(part) && result.tensor != kNone &&
           trace.find(THPVariable_Unpack(part).unsafeGetTensorImpl()) == result.tensor;
  };
  PyObject** const items = PySequence_Fast_ITEMS(parts);
  if (!std::equal(items, items + PyTuple_GET_SIZE(parts), results.begin(), results.end(), is_it)) return kNotGiven;
  const Use& whole = event.args[0].uses[0];
  if (!is_plain(trace, whole.tensor) || !impl_->has_free_sizes(whole.tensor)) return kNotGiven;
  const auto rank = static_cast<int64_t>(whole.meta->sizes.size());
  const int64_t dim = event.args.back().constant.toInt();
  return {std::ssize(trace.events) - 1, whole.tensor, static_cast<int>(dim < 0 ? dim + rank : dim)};
}

void Recorder::walk_begun(int64_t loop, int64_t event) {
  impl_->trace.loops[static_cast<size_t>(loop)].parts.push_back(static_cast<uint32_t>(event));
}

PythonLoop::Begin Recorder::Impl::next_round() const {
  return {static_cast<uint32_t>(trace.events.size()), static_cast<uint32_t>(inputs.scalars.size()),
          static_cast<uint32_t>(trace.tensors.size()), trace.size_tests.size()};
}

bool Recorder::is_of_round(const at::Tensor& tensor) const {
  const std::vector<PythonLoop>& loops = impl_->trace.loops;
  const uint32_t id = impl_->trace.find(tensor.unsafeGetTensorImpl());
  if (id == kNone || loops.empty() || loops.back().begins.empty()) return false;
  const std::vector<PythonLoop::Begin>& begins = loops.back().begins;
  const size_t now = begins.size() - 1;
  for (const uint32_t event : loops.back().parts) {
    const std::span<const Use> parts = flat_results(impl_->trace.events[event]);
    if (parts[now].tensor == id || (now > 0 && parts[now - 1].tensor == id)) return true;
  }
  for (const std::vector<uint32_t>& list : loops.back().lists)
    if (list[now] == id || (now > 0 && list[now - 1] == id)) return true;
  return id >= begins[begins.size() - std::min<size_t>(begins.size(), 2)].tensor;
}

void Recorder::round_begun(int64_t loop, PyObject* index) {
  const auto which = static_cast<uint32_t>(loop);
  impl_->trace.loops[which].begins.push_back(impl_->next_round());
  if (!index) return;
  impl_->trace.size_numbers.emplace(static_cast<uint32_t>(impl_->inputs.scalars.size()),
                                    SizeNumber{.loop = which, .line = impl_->lines.now()});
  impl_->inputs.scalars.emplace_back(index, "the index of a loop");
}

void Recorder::loop_ended(int64_t loop, int64_t alike_from, bool last_differs) {
  PythonLoop& ended = impl_->trace.loops[static_cast<size_t>(loop)];
  ended.begins.push_back(impl_->next_round());
  ended.alike_from = alike_from;
  ended.last_differs = last_differs;
}

void Recorder::list_walked(int64_t loop, const std::vector<at::Tensor>& items) {
  std::vector<uint32_t>& list = impl_->trace.loops[static_cast<size_t>(loop)].lists.emplace_back();
  for (const at::Tensor& item : items) list.push_back(impl_->trace.find(item.unsafeGetTensorImpl()));
}

void Recorder::rounds_used(int64_t loop, size_t before, size_t count, bool reversed) {
  impl_->trace.rounds_uses.push_back({{static_cast<uint32_t>(loop), before, count, reversed}});
  impl_->open_rounds = true;
}

void Recorder::Impl::free_int(uint32_t scalar) {
  inputs.free_ints.resize(inputs.scalars.size(), false);
  inputs.free_ints[scalar] = true;
  trace.size_numbers.emplace(scalar, SizeNumber{.is_given = true});
}

bool Recorder::is_size_number(size_t number) const {
  return impl_->trace.size_numbers.contains(static_cast<uint32_t>(number));
}

}  // namespace fastjit::capture
