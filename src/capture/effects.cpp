#include "capture/effects.h"

#include <algorithm>
#include <array>

#include "capture/lower.h"

namespace fastjit::capture {
namespace {

struct EffectRow {
  std::string_view op;  // without the overload, unless only some overloads are meant
  Effect effect;
};

constexpr std::array kEffects{
    EffectRow{"aten::is_same_size", Effect::Metadata},
    EffectRow{"aten::size", Effect::Metadata},
    EffectRow{"aten::sym_size", Effect::Metadata},
    EffectRow{"aten::stride", Effect::Metadata},
    EffectRow{"aten::sym_stride", Effect::Metadata},
    EffectRow{"aten::numel", Effect::Metadata},
    EffectRow{"aten::sym_numel", Effect::Metadata},
    EffectRow{"aten::dim", Effect::Metadata},
    EffectRow{"aten::is_floating_point", Effect::Metadata},
    EffectRow{"aten::is_complex", Effect::Metadata},
    EffectRow{"aten::is_signed", Effect::Metadata},
    EffectRow{"aten::is_conj", Effect::Metadata},
    EffectRow{"aten::is_neg", Effect::Metadata},
    EffectRow{"aten::is_inference", Effect::Metadata},
    EffectRow{"aten::is_leaf", Effect::Metadata},
    EffectRow{"aten::is_pinned", Effect::Metadata},
    EffectRow{"aten::output_nr", Effect::Metadata},
    EffectRow{"aten::result_type", Effect::Metadata},
    EffectRow{"aten::can_cast", Effect::Metadata},
    EffectRow{"aten::promote_types", Effect::Metadata},
    EffectRow{"aten::item", Effect::Read},
    EffectRow{"aten::_local_scalar_dense", Effect::Read},
    EffectRow{"aten::is_nonzero", Effect::Read},
    EffectRow{"aten::equal", Effect::Test},
    EffectRow{"aten::allclose", Effect::Test},
    // numpy() shows nothing but these, and tolist() where nobody tells of it; called by hand they do nothing.
    EffectRow{"aten::resolve_conj", Effect::Value},
    EffectRow{"aten::resolve_neg", Effect::Value},
    EffectRow{"aten::tensor_split.tensor_indices_or_sections", Effect::DataSized},
    EffectRow{"aten::repeat_interleave.self_Tensor", Effect::DataSized},
    EffectRow{"aten::repeat_interleave.Tensor", Effect::DataSized},
    EffectRow{"aten::where", Effect::DataSized},  // the overload with one argument only: the others have names
    EffectRow{"aten::nonzero_numpy", Effect::DataSized},
    EffectRow{"aten::argwhere", Effect::DataSized},
    EffectRow{"aten::one_hot", Effect::DataSized},
    EffectRow{"aten::bincount", Effect::DataSized},
    EffectRow{"aten::_pack_padded_sequence", Effect::DataSized},
    EffectRow{"aten::_pad_packed_sequence", Effect::DataSized},
    EffectRow{"aten::ctc_loss", Effect::DataSized},
    EffectRow{"aten::_has_compatible_shallow_copy_type", Effect::Replaces},
    EffectRow{"aten::set_", Effect::Replaces},
    EffectRow{"aten::set_data", Effect::Replaces},
    EffectRow{"aten::resize_", Effect::Replaces},
    EffectRow{"aten::resize_as_", Effect::Replaces},
    EffectRow{"aten::_resize_output_", Effect::Replaces},
    EffectRow{"aten::swap_tensors", Effect::Replaces},
};

// Without overloads, sorted. No operator that reads a value or gives sizes that depend on data belongs here.
constexpr std::string_view kOpaque[] = {
    "aten::_adaptive_avg_pool2d",
    "aten::_convolution",
    "aten::_log_softmax",
    "aten::_native_batch_norm_legit_no_training",
    "aten::_softmax",
    "aten::adaptive_avg_pool1d",
    "aten::adaptive_avg_pool2d",
    "aten::add",
    "aten::addmm",
    "aten::amax",
    "aten::argmax",
    "aten::avg_pool2d",
    "aten::baddbmm",
    "aten::batch_norm",
    "aten::bmm",
    "aten::cat",
    "aten::chunk",
    "aten::clone",
    "aten::contiguous",
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::conv_transpose1d",
    "aten::conv_transpose2d",
    "aten::conv_transpose3d",
    "aten::convolution",
    "aten::div",
    "aten::embedding",
    "aten::expand",
    "aten::expand_as",
    "aten::flatten",
    "aten::gelu",
    "aten::max_pool2d",
    "aten::mean",
    "aten::mm",
    "aten::mul",
    "aten::narrow",
    "aten::native_group_norm",
    "aten::native_layer_norm",
    "aten::permute",
    "aten::relu",
    "aten::reshape",
    "aten::scaled_dot_product_attention",
    "aten::select",
    "aten::sigmoid",
    "aten::silu",
    "aten::slice",
    "aten::split",
    "aten::split_with_sizes",
    "aten::squeeze",
    "aten::stack",
    "aten::sub",
    "aten::sum",
    "aten::t",
    "aten::tanh",
    "aten::transpose",
    "aten::unbind",
    "aten::unflatten",
    "aten::unsqueeze",
    "aten::upsample_bilinear2d",
    "aten::upsample_nearest2d",
    "aten::view",
};
static_assert(std::ranges::is_sorted(kOpaque));

// Arguments that are written though the schema does not say so: the running statistics of normalisation in training.
struct HiddenWrite {
  std::string_view op, argument, flag;
};
constexpr std::array kHiddenWrites{
    HiddenWrite{"aten::batch_norm", "running_mean", "training"},
    HiddenWrite{"aten::batch_norm", "running_var", "training"},
    HiddenWrite{"aten::_batch_norm_impl_index", "running_mean", "training"},
    HiddenWrite{"aten::_batch_norm_impl_index", "running_var", "training"},
    HiddenWrite{"aten::native_batch_norm", "running_mean", "training"},
    HiddenWrite{"aten::native_batch_norm", "running_var", "training"},
    HiddenWrite{"aten::instance_norm", "running_mean", "use_input_stats"},
    HiddenWrite{"aten::instance_norm", "running_var", "use_input_stats"},
    HiddenWrite{"aten::batch_norm_update_stats", "running_mean", ""},
    HiddenWrite{"aten::batch_norm_update_stats", "running_var", ""},
};

bool flag_is_set(const Event& event, std::string_view flag) {
  if (flag.empty()) return true;
  const auto& arguments = event.op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == flag) return !event.args[i].constant.isBool() || event.args[i].constant.toBool();
  return true;
}

}  // namespace

Effect effect_of(const Event& event) {
  const std::string_view base = base_name(event.name);
  for (const EffectRow& row : kEffects) {
    if (row.op == "aten::where" && event.name != row.op) continue;
    if (row.op == event.name || row.op == base) return row.effect;
  }
  return Effect::None;
}

bool data_sized_by_tag(const Event& event) {
  if (base_name(event.name) == "aten::index") return false;
  return event.op->hasTag(at::Tag::dynamic_output_shape) || event.op->hasTag(at::Tag::data_dependent_output);
}

bool is_opaque(std::string_view name) {
  if (!std::ranges::binary_search(kOpaque, base_name(name))) return false;
  const LowerRow* row = find_lowering(name);
  return !row || row->level != Level::Decompose;  // split.sizes is entered
}

std::vector<size_t> written_arguments(const Event& event) {
  std::vector<size_t> written;
  const auto& arguments = event.op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    bool writes = alias && alias->isWrite();
    for (const HiddenWrite& row : kHiddenWrites)
      writes |= row.op == event.name && row.argument == arguments[i].name() && flag_is_set(event, row.flag);
    if (writes) written.push_back(i);
  }
  return written;
}

bool allocates(const Event& event) {
  return event.name.starts_with("aten::empty") || event.name.starts_with("aten::new_empty");
}

std::string functional_name(std::string_view name) {
  const std::string_view base = base_name(name);
  const std::string overload(name.substr(base.size()));
  constexpr std::string_view kDunder = "aten::__i";
  if (base.starts_with(kDunder) && base.ends_with("__"))
    return "aten::__" + std::string(base.substr(kDunder.size())) + overload;
  if (!base.ends_with('_') || base.ends_with("__")) return {};
  return std::string(base.substr(0, base.size() - 1)) + overload;
}

}  // namespace fastjit::capture
