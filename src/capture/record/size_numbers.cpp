// Sizes that Python has as ints, and what it does with them.
#include "capture/record/recorder.h"

namespace fastjit::capture {
namespace {

// A tensor of the trace whose sizes are what they seem; kNone: it is none.
uint32_t find_plain(const Trace& trace, const at::Tensor& tensor) {
  const uint32_t id = trace.find(tensor.unsafeGetTensorImpl());
  if (id == kNone || trace.made_dims_of(id) || is_wrapper(tensor)) return kNone;
  const TensorRecord& record = trace.tensors[id];
  return !record.unusual.empty() || record.is_nested || record.layered ? kNone : id;
}

}  // namespace

int64_t Recorder::sized_tensor(const at::Tensor& tensor) const {
  const Trace& trace = impl_->trace;
  const std::vector<uint64_t>& free = impl_->inputs.free_sizes;
  const uint32_t id = !impl_->inputs.for_any_size() || !impl_->recording ? kNone : find_plain(trace, tensor);
  if (id == kNone) return -1;
  const Source* root = trace.root(id);
  const bool is_free = !root || (root->argument < free.size() && free[root->argument] != 0);
  return is_free ? static_cast<int64_t>(id) : -1;
}

void Recorder::size_given(int64_t tensor, int dim, PyObject* number) {
  Trace& trace = impl_->trace;
  const auto id = static_cast<uint32_t>(tensor);
  if (!number) return static_cast<void>(trace.sizes_read.insert(id));
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
  if (!impl_->recording || find_plain(trace, tensor) == kNone) return false;
  trace.index_uses.push_back({{trace.use(tensor), std::move(items)}});
  impl_->open_index = true;
  return true;
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
