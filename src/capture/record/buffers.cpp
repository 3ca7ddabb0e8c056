// Weights of a recurrent layer lie in one buffer, which cuDNN takes whole: torch makes a tensor of it by setting the
// storage of an empty one. In programs that is a view of the weights.
#include <torch/library.h>

#include "capture/record/recorder.h"

namespace fastjit::capture {
namespace {

// Raises where they lie otherwise than when the call was recorded: eager then copies them, with a warning.
at::Tensor as_buffer(at::TensorList parts, at::IntArrayRef offsets, int64_t size) {
  const at::Tensor& first = parts.at(0);
  for (size_t i = 0; i < parts.size(); ++i)
    TORCH_CHECK(parts[i].storage().is_alias_of(first.storage()) && parts[i].storage_offset() == offsets[i],
                "fastjit: weights that lay in one buffer when the call was recorded do not");
  TORCH_CHECK(first.storage().nbytes() >= static_cast<size_t>(size) * first.element_size(),
              "fastjit: the buffer of weights is smaller than when the call was recorded");
  constexpr c10::DispatchKeySet kDevices({c10::DispatchKey::CPU, c10::DispatchKey::CUDA});
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(first.storage()), first.key_set() & kDevices,
                                                            first.dtype());
  out.unsafeGetTensorImpl()->set_sizes_contiguous({size});
  return out;
}

}  // namespace

void Recorder::Impl::as_buffer(Event& event, const c10::IValue& result) {
  const at::Tensor& tensor = result.toTensor();
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const uint32_t before = trace.find(impl);
  const auto memory = trace.storage_ids.find(tensor.storage().unsafeGetStorageImpl());
  const bool is_own = before != kNone && !trace.root(before) && impl->pyobj_slot()->load_pyobj() == nullptr &&
                      c10::multiply_integers(event.args[0].uses[0].meta->sizes) == 0;
  const bool is_whole = tensor.dim() == 1 && tensor.is_contiguous() && tensor.storage_offset() == 0;
  if (!is_own || !is_whole || memory == trace.storage_ids.end()) return;
  CallValue parts{CallValue::Kind::TensorList, {}, {}};
  c10::List<int64_t> offsets;
  for (const Source& root : trace.roots) {
    if (root.before.storage != memory->second || root.before.meta->dtype != tensor.scalar_type()) continue;
    parts.uses.push_back(trace.use(root.tensor));
    offsets.push_back(root.before.offset);
  }
  if (parts.uses.empty()) return;
  trace.tensor_ids.erase(impl);
  event.op = c10::Dispatcher::singleton().findSchemaOrThrow("fastjit::as_buffer", "");
  event.name = *trace.names.insert("fastjit::as_buffer").first;
  event.facts = OpFlag::MayRaise;
  event.args = {
      std::move(parts), {CallValue::Kind::Constant, {}, offsets}, {CallValue::Kind::Constant, {}, tensor.numel()}};
  event.results[0] = item(tensor, true);
}

}  // namespace fastjit::capture

TORCH_LIBRARY_FRAGMENT(fastjit, library) {
  library.def("as_buffer(Tensor[] parts, int[] offsets, int size) -> Tensor",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, fastjit::capture::as_buffer));
}
