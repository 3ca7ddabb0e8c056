#include "capture/record/trace.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "support/mix.h"

namespace fastjit::capture {
namespace {

bool is_lazy(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

// A nested tensor of C++ that an operator of the call made: torch runs what takes it, and its sizes depend on data.
bool is_own_nested(const at::Tensor& tensor, bool made) {
  return made && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.key_set().has(c10::DispatchKey::Python);
}

// Python's number, on the CPU whatever the device of the call: wrapped, or made a tensor of by the binding.
bool is_number(const at::Tensor& tensor, bool made) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_wrapped_number()) return true;
  return !made && tensor.is_cpu() && impl->dim() == 0 && impl->pyobj_slot()->load_pyobj() == nullptr;
}

// Devices and dispatch keys under which an operator does something other than plain arithmetic on this tensor's memory.
std::string why_unusual(const at::Tensor& tensor, c10::Device device, bool made) {
  const bool is_on_host = tensor.is_cpu() && device.is_cuda();
  if (tensor.device() != device && !is_on_host) return "is on " + tensor.device().str();
  if (tensor.is_nested() && !is_own_nested(tensor, made)) return "is nested";
  if (tensor.layout() != at::kStrided) return "is not strided";
  if (tensor.is_quantized()) return "is quantized";
  if (!made && is_lazy(tensor)) return kLazy;
  const c10::DispatchKeySet keys = tensor.key_set();
  for (c10::DispatchKey key :
       {c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
        c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::ZeroTensor})
    if (keys.has(key)) return std::string("has dispatch key ") + c10::toString(key);
  if (!tensor.has_storage()) return "has no storage";
  return {};
}

template <class T>
c10::Scalar load(const at::Tensor& tensor) {
  return c10::Scalar(*static_cast<const T*>(tensor.const_data_ptr()));
}

}  // namespace

std::optional<c10::Scalar> read_number(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return std::nullopt;
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return load<double>(tensor);
    case at::kFloat:
      return load<float>(tensor);
    case at::kHalf:
      return load<at::Half>(tensor);
    case at::kBFloat16:
      return load<at::BFloat16>(tensor);
    case at::kLong:
      return load<int64_t>(tensor);
    case at::kInt:
      return load<int32_t>(tensor);
    case at::kShort:
      return load<int16_t>(tensor);
    case at::kChar:
      return load<int8_t>(tensor);
    case at::kByte:
      return load<uint8_t>(tensor);
    case at::kBool:
      return load<bool>(tensor);
    case at::kComplexDouble:
      return load<c10::complex<double>>(tensor);
    default:
      return std::nullopt;
  }
}

uint32_t Trace::find(const c10::TensorImpl* impl) const {
  auto it = tensor_ids.find(impl);
  return it == tensor_ids.end() ? kNone : it->second;
}

const Source* Trace::root(uint32_t tensor) const {
  const uint32_t known = tensor < tensors.size() ? tensors[tensor].root : kNone;
  return known == kNone ? nullptr : &roots[known];
}

void Trace::add_root(Source root) {
  uint32_t& known = tensors[root.before.tensor].root;
  if (known == kNone) known = static_cast<uint32_t>(roots.size());
  roots.push_back(std::move(root));
}

bool Trace::is_constant(const Use& use) const {
  if (use.tensor == kNone || use.number) return true;
  const Source* source = root(use.tensor);
  return source ? source->constant : tensors[use.tensor].constant;
}

bool Trace::takes_constants(const Event& event) const {
  return std::ranges::all_of(event.args, [&](const CallValue& item) {
    return std::ranges::all_of(item.uses, [&](const Use& use) { return is_constant(use); });
  });
}

// A nested tensor has no sizes as others have: what is noted says how many dims it has.
static TensorMeta nested_meta(const at::Tensor& tensor) {
  const std::vector<int64_t> sizes(static_cast<size_t>(tensor.dim()), 2);
  return {tensor.scalar_type(), sizes, ir::row_major(sizes), false};
}

static bool is_as(const TensorMeta& meta, const at::Tensor& tensor) {
  if (tensor.is_nested()) return true;
  return meta.dtype == tensor.scalar_type() && tensor.sizes() == meta.sizes && tensor.strides() == meta.strides &&
         meta.wrapped_number == tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// What it met before the first tensor on a CUDA device is on the CPU.
void Trace::meet_device(const at::Tensor& tensor) {
  if (!device.is_cpu() || !tensor.is_cuda()) return;
  device = tensor.device();
  for (uint32_t storage = 0; storage < storages.size(); ++storage) host.insert(storage);
}

SharedMeta Trace::shared_meta(const at::Tensor& tensor) {
  const bool wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  uint64_t hash = support::mix(static_cast<uint64_t>(tensor.scalar_type()), wrapped_number);
  for (const at::IntArrayRef numbers : {tensor.sizes(), tensor.strides()})
    for (const int64_t number : numbers) hash = support::mix(hash, static_cast<uint64_t>(number));
  const uint32_t known = metas_by_hash_.find(hash, [&](uint32_t at) { return is_as(*metas_[at], tensor); });
  if (known != support::HashIndex::kNone) return metas_[known];
  metas_by_hash_.add(hash, static_cast<uint32_t>(metas_.size()));
  metas_.push_back(TensorMeta{tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(), wrapped_number});
  return metas_.back();
}

Use Trace::use(const at::Tensor& tensor, bool made) {
  Use out;
  if (!tensor.defined()) return out;
  meet_device(tensor);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  auto [it, fresh] = tensor_ids.emplace(impl, static_cast<uint32_t>(tensors.size()));
  out.tensor = it->second;
  if (fresh)
    tensors.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                       why_unusual(tensor, device, made),
                       {},
                       -1,
                       {},
                       at::GradMode::is_enabled(),
                       c10::InferenceMode::is_enabled(),
                       tensor.is_nested(),
                       is_wrapper(tensor)});
  if (fresh) has_layers |= tensors.back().layered;
  // The operator that gives one sets the bit after its own parts were seen.
  tensors[out.tensor].lazy = is_lazy(tensor);
  if (!tensors[out.tensor].unusual.empty()) {
    out.meta = TensorMeta{tensor.scalar_type(), {}, {}, false};
    return out;
  }
  SharedMeta& meta = tensors[out.tensor].meta;
  if (fresh && tensor.is_nested())
    meta = nested_meta(tensor);
  else if (fresh || !is_as(*meta, tensor))
    meta = shared_meta(tensor);
  out.meta = meta;
  out.offset = tensor.storage_offset();
  out.view = tensor.is_view();
  if (out.view)
    out.creation = static_cast<int8_t>(torch::autograd::impl::get_view_autograd_meta(tensor)->get_creation_meta());
  out.requires_grad = tensor.requires_grad();
  out.version = impl->is_inference() ? -1 : static_cast<int64_t>(impl->version_counter().current_version());
  const c10::Storage& storage = impl->unsafe_storage();
  c10::StorageImpl* memory = storage.unsafeGetStorageImpl();
  auto [place, first] = storage_ids.emplace(memory, static_cast<uint32_t>(storages.size()));
  out.storage = place->second;
  if (first) {
    const auto begin = reinterpret_cast<uintptr_t>(storage.data());
    storages.push_back(
        {c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl()), begin, begin + storage.nbytes()});
    if (device.is_cuda() && tensor.is_cpu() && !is_number(tensor, made)) host.insert(out.storage);
  }
  out.bare = impl->pyobj_slot()->load_pyobj() == nullptr;
  if (out.meta->sizes.empty() && out.meta->wrapped_number) {
    out.number = read_number(tensor);
  } else if (out.meta->sizes.empty() && out.bare && out.version >= 0) {
    // Handed to an outermost operator without a Python object: the binding made it from a number. It stays that number
    // until it is written.
    TensorRecord& record = tensors[out.tensor];
    if (fresh && !made) record.number = read_number(tensor), record.number_version = out.version;
    if (record.number_version == out.version) out.number = record.number;
  }
  return out;
}

void adopt_unknown(Trace& trace) {
  std::unordered_set<uint32_t> made;
  for (const Event& event : trace.events) {
    for (const CallValue& item : event.args)
      for (const Use& use : item.uses) {
        if (event.parent != kNone || use.tensor == kNone || use.number || use.bare) continue;
        if (made.contains(use.tensor) || trace.root(use.tensor)) continue;
        auto alive = trace.tensors[use.tensor].impl.lock();
        PyObject* object = alive ? alive->pyobj_slot()->load_pyobj() : nullptr;
        if (!object) continue;
        const std::string name = "captured" + std::to_string(trace.roots.size());
        trace.add_root({use, at::Tensor(std::move(alive)), object, kNone, name});
      }
    for (const CallValue& item : event.results)
      for (const Use& use : item.uses) made.insert(use.tensor);
  }
}

bool is_wrapper(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  return keys.has(c10::DispatchKey::FuncTorchBatched) || keys.has(c10::DispatchKey::FuncTorchGradWrapper);
}

bool is_layered(const Trace& trace, const Event& event) {
  if (!event.op || !trace.has_layers) return false;
  for (const std::vector<CallValue>* items : {&event.args, &event.results})
    for (const CallValue& item : *items)
      for (const Use& use : item.uses)
        if (use.tensor != kNone && trace.tensors[use.tensor].layered) return true;
  return false;
}

bool takes_grad(const Event& event) {
  return std::ranges::any_of(event.args, [](const CallValue& item) {
    return std::ranges::any_of(item.uses, [](const Use& use) { return use.tensor != kNone && use.requires_grad; });
  });
}

bool is_argument(const Event& event, uint32_t tensor) {
  return std::ranges::any_of(event.args, [&](const CallValue& item) {
    return std::ranges::find(item.uses, tensor, &Use::tensor) != item.uses.end();
  });
}

bool is_backward(const Event& event) { return !event.op && event.name.starts_with("autograd::engine::"); }

std::string label_of(const Event& event, const std::string& line) {
  const std::string_view base = base_name(event.name);
  const std::string_view verb = base == "aten::is_nonzero"                                    ? "bool"
                                : base == "aten::item" || base == "aten::_local_scalar_dense" ? "item"
                                : base.starts_with("aten::")                                  ? base.substr(6)
                                                                                              : base;
  return (event.target.empty() ? std::string(verb) : event.target) + " at " + line;
}

std::string where(const Trace& trace, const Event& event) {
  const std::string name(event.name.substr(0, event.name.find('.')));
  return event.line ? name + " at " + trace.lines[event.line] : name;
}

std::span<const Use> flat_results(const Event& event) {
  return event.results.size() == 1 ? std::span<const Use>(event.results[0].uses) : event.flat;
}

bool is_workspace(const Use& result, const Event& event) {
  return event.facts.is(OpFlag::Workspace) && flat_results(event).back().tensor == result.tensor;
}

}  // namespace fastjit::capture
