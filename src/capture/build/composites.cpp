// Operators whose C++ code calls others and looks at sizes: for which the program follows it for any size, and what it
// gives to those that it calls.
#include <algorithm>
#include <array>
#include <unordered_set>

#include "capture/build/build.h"
#include "capture/build/given.h"
#include "capture/ops/torch_release.h"
#include "capture/record/effects.h"
#include "ir/strides.h"

namespace fastjit::capture {
namespace {

using ir::Dim;
using Dims = std::vector<Dim>;

Dim product(std::span<const Dim> dims) {
  Dim count = 1;
  for (const Dim dim : dims) count *= dim;
  return count;
}

Dims joined(std::span<const Dim> head, std::initializer_list<Dim> tail) {
  Dims all(head.begin(), head.end());
  all.insert(all.end(), tail);
  return all;
}

// A question of should_fold(): the dims but for the last lie as one in memory.
bool is_foldable(const ir::Layout& layout) {
  for (size_t d = 0; d + 2 < layout.sizes.size(); ++d)
    if (layout.strides[d] != layout.strides[d + 1] * layout.sizes[d + 1]) return false;
  return true;
}

// Tensor::is_contiguous(): strides of dims of one element mean nothing.
bool is_contiguous(const ir::Layout& layout) {
  Dim step = 1;
  for (size_t d = layout.sizes.size(); d-- > 0;) {
    if (layout.sizes[d] == 1) continue;
    if (layout.strides[d] != step) return false;
    step *= layout.sizes[d];
  }
  return true;
}

// linear() in aten/src/ATen/native/Linear.cpp, with a bias.
std::vector<Given> of_linear(const ir::Layout& input, const ir::Layout& weight) {
  const std::span<const Dim> lead(input.sizes.data(), input.sizes.size() - 1);
  constexpr std::string_view kLast = since(2, 15) ? "aten::_unsafe_view" : "aten::view";
  return {{"aten::view", {product(lead), input.sizes.back()}}, {kLast, joined(lead, {weight.sizes[0]})}};
}

// _matmul_impl() in aten/src/ATen/native/LinearAlgebra.cpp where one factor is folded to a matrix.
std::vector<Given> of_folded(const ir::Layout& larger, const ir::Layout& smaller, bool is_transposed) {
  const std::span<const Dim> lead(larger.sizes.data(), larger.sizes.size() - 1);
  Dims out(lead.begin(), lead.end());
  if (smaller.sizes.size() == 2) out.push_back(smaller.sizes[is_transposed ? 0 : 1]);
  return {{"aten::reshape", {product(lead), larger.sizes.back()}}, {"aten::_unsafe_view", out}};
}

// The same where both are batches.
std::vector<Given> of_batched(const ir::Layout& a, const ir::Layout& b) {
  const auto batch_of = [](const ir::Layout& layout) {
    const size_t rank = layout.sizes.size();
    return std::span<const Dim>(layout.sizes.data(), rank - std::min<size_t>(rank, 2));
  };
  const size_t ranks[] = {a.sizes.size(), b.sizes.size()};
  const Dim n = ranks[0] > 1 ? a.sizes[ranks[0] - 2] : Dim(1), m1 = a.sizes.back();
  const Dim m2 = ranks[1] > 1 ? b.sizes[ranks[1] - 2] : b.sizes[0], p = ranks[1] > 1 ? b.sizes.back() : Dim(1);
  const bool is_pair = ranks[0] == 3 && ranks[1] == 3;
  if (is_pair) static_cast<void>(a.sizes[0] == b.sizes[0]);
  const Dims batch = ir::broadcast(batch_of(a), batch_of(b));
  const Dim count = product(batch);
  const bool by_vector = ranks[1] == 1;
  Dims out = batch;
  if (ranks[0] > 1) out.push_back(n);
  if (ranks[1] > 1) out.push_back(p);
  return {{"aten::expand", joined(batch, {n, m1})},
          {"aten::reshape", {count, n, m1}},
          {"aten::expand", by_vector ? joined(batch, {m2}) : joined(batch, {m2, p})},
          {"aten::reshape", by_vector ? Dims{count, m2} : Dims{count, m2, p}},
          {"aten::_unsafe_view", out}};
}

// Composites whose C++ code takes the same path for all sizes of two or more, and gives numbers that rows do without.
bool is_same_for_all_sizes(std::string_view name) {
  static const std::unordered_set<std::string_view> names{
      "aten::__and__.Scalar",
      "aten::__and__.Tensor",
      "aten::__iand__.Scalar",
      "aten::__iand__.Tensor",
      "aten::__ior__.Scalar",
      "aten::__ior__.Tensor",
      "aten::__ixor__.Scalar",
      "aten::__ixor__.Tensor",
      "aten::__or__.Scalar",
      "aten::__or__.Tensor",
      "aten::__xor__.Scalar",
      "aten::__xor__.Tensor",
      "aten::_batch_norm_impl_index",
      "aten::_convolution",
      "aten::absolute",
      "aten::adaptive_avg_pool1d",
      "aten::adaptive_avg_pool2d",
      "aten::adjoint",
      "aten::alpha_dropout",
      "aten::arctan2",
      "aten::avg_pool1d",
      "aten::batch_norm",
      "aten::binary_cross_entropy_with_logits",
      "aten::clip",
      "aten::clip.Tensor",
      "aten::concat",
      "aten::concatenate",
      "aten::conj",
      "aten::contiguous",
      "aten::conv1d",
      "aten::conv2d",
      "aten::conv3d",
      "aten::conv_transpose1d",
      "aten::conv_transpose2d.input",
      "aten::conv_transpose3d.input",
      "aten::convolution",
      "aten::cosine_embedding_loss",
      "aten::cross_entropy_loss",
      "aten::detach",
      "aten::divide.Scalar",
      "aten::divide.Tensor",
      "aten::dropout",
      "aten::feature_dropout",
      "aten::greater.Scalar",
      "aten::greater.Tensor",
      "aten::greater_equal.Scalar",
      "aten::greater_equal.Tensor",
      "aten::group_norm",
      "aten::gru_cell",
      "aten::hinge_embedding_loss",
      "aten::hstack",
      "aten::isfinite",
      "aten::layer_norm",
      "aten::less.Scalar",
      "aten::less.Tensor",
      "aten::less_equal.Scalar",
      "aten::less_equal.Tensor",
      "aten::log_sigmoid",
      "aten::log_softmax.int",
      "aten::lstm_cell",
      "aten::mT",
      "aten::margin_ranking_loss",
      "aten::matrix_H",
      "aten::max_pool1d",
      "aten::max_pool2d",
      "aten::moveaxis.int",
      "aten::moveaxis.intlist",
      "aten::movedim.int",
      "aten::movedim.intlist",
      "aten::multiply.Scalar",
      "aten::multiply.Tensor",
      "aten::negative",
      "aten::nll_loss",
      "aten::nll_loss2d",
      "aten::nll_loss_nd",
      "aten::pad",
      "aten::real",
      "aten::relu6",
      "aten::relu6_",
      "aten::rms_norm",
      "aten::rnn_relu_cell",
      "aten::rnn_tanh_cell",
      "aten::rsub.Scalar",
      "aten::selu",
      "aten::silu",
      "aten::softmax.int",
      "aten::split.sizes",
      "aten::square",
      "aten::subtract.Scalar",
      "aten::subtract.Tensor",
      "aten::swapaxes",
      "aten::swapdims",
      "aten::to.device",
      "aten::to.dtype",
      "aten::to.dtype_layout",
      "aten::to.other",
      "aten::true_divide.Scalar",
      "aten::true_divide.Tensor",
      "aten::type_as",
      "aten::vstack",
      "aten::where.Scalar",
      "aten::where.ScalarOther",
      "aten::where.ScalarSelf",
  };
  return names.contains(name);
}

}  // namespace

// What the composite gives to the views that it makes; its questions become guards. Nothing: it is not known here.
static std::optional<std::vector<Given>> given_by(const Trace& trace, uint32_t index,
                                                  const std::vector<ir::Layout>& in) {
  const Event& composite = trace.events[index];
  if (composite.name == kAttention) return of_attention(trace, index, in);
  if (composite.name == kPlainAttention) return of_plain_attention(composite, in);
  if (composite.name == kLstm) return of_lstm(trace, index);
  if (composite.name == kInstanceNorm) return of_instance_norm(composite, in);
  const bool is_linear = composite.name == "aten::linear";
  if ((!is_linear && composite.name != "aten::matmul") || in.size() < 2) return std::nullopt;
  const ir::Layout &a = in[0], &b = in[1];
  const size_t most = std::max(a.sizes.size(), b.sizes.size()), least = std::min(a.sizes.size(), b.sizes.size());
  if (most <= 2) return std::vector<Given>();
  if (is_linear) {
    const bool has_bias = in.size() > 2, is_flat = has_bias && is_contiguous(a);
    if (is_flat != runs(trace, index, "aten::addmm")) return std::nullopt;
    return is_flat ? of_linear(a, b) : std::vector<Given>();  // else matmul(), which is entered, too
  }
  // should_fold(): a gradient that the second factor needs, as the key knows, or how the larger one lies.
  const bool folds = runs(trace, index, "aten::mm") || runs(trace, index, "aten::mv"),
             is_transposed = b.sizes.size() > a.sizes.size();
  ir::Layout larger = is_transposed ? b : a;
  const size_t last = most - 1;
  if (is_transposed) std::swap(larger.sizes[last], larger.sizes[last - 1]);
  if (is_transposed) std::swap(larger.strides[last], larger.strides[last - 1]);
  if (least <= 2 && a.sizes.size() != 2) static_cast<void>(is_foldable(larger));
  if (folds && least > 2) return std::nullopt;
  return folds ? of_folded(larger, is_transposed ? a : b, is_transposed) : of_batched(a, b);
}

// These give a list of sizes to the operator that they call as they got it.
void GraphBuilder::hands_on(uint32_t index) {
  const Event& composite = trace_.events[index];
  constexpr std::array<std::string_view, 4> kNames{"aten::layer_norm", "aten::rms_norm", "aten::pad",
                                                   "aten::split.sizes"};
  if (std::ranges::find(kNames, composite.name) == kNames.end()) return;
  const Dims sizes = sizes_given(index, 1);
  const uint32_t child = index + 1;
  if (sizes.empty() || child >= composite.end || trace_.events[child].args.size() < 2) return;
  const CallValue& item = trace_.events[child].args[1];
  if (item.kind != CallValue::Kind::Constant || item.constant != composite.args[1].constant) return;
  given_lists_[{child, 1}] = sizes;
  take_place(index, 1);
}

// tensor_split() in aten/src/ATen/native/TensorShape.cpp: the first parts have one element more.
bool GraphBuilder::follows_parts(uint32_t index) {
  const Event& composite = trace_.events[index];
  const auto in = layouts_of(composite);
  if (composite.name != "aten::tensor_split.sections" || in.size() != 1 || !sizes_given(index, 1).empty()) return false;
  const int64_t count = composite.args[1].constant.toInt(), dim = composite.args[2].constant.toInt();
  const int64_t rank = std::ssize(in[0].sizes), at = dim < 0 ? dim + rank : dim;
  if (count < 1 || at < 0 || at >= rank) return false;
  Dim start = 0;
  int64_t k = 0;
  for (uint32_t child = index + 1; child < composite.end; child = trace_.events[child].end, ++k) {
    const Event& event = trace_.events[child];
    const Dim end = start + (in[0].sizes[static_cast<size_t>(at)] + (count - 1 - k)) / count;
    if (event.name != "aten::slice.Tensor" || event.args[3].constant != c10::IValue(end.hint())) return false;
    given_lists_[{child, 2}] = {start};
    given_lists_[{child, 3}] = {end};
    start = end;
  }
  return k == count;
}

// cross_entropy_loss() in aten/src/ATen/native/LossNLL.cpp divides by the batch where targets are probabilities, and by
// the count of classes where labels are smoothed.
static bool is_divided_by_sizes(const Event& composite, const std::vector<ir::Layout>& in) {
  if (composite.name != "aten::cross_entropy_loss" || in.size() < 2 || composite.args.size() < 6) return false;
  const auto& target = composite.args[1];
  const auto is_any = [](const ir::Layout& layout) { return std::ranges::any_of(layout.sizes, &Dim::is_symbolic); };
  if (at::isFloatingType(target.uses[0].meta->dtype)) return is_any(in[0]);
  const ir::Layout& input = in[0];
  const size_t classes = input.sizes.size() > 1 ? 1 : 0;
  return composite.args[5].constant.toDouble() != 0 && input.sizes[classes].is_symbolic();
}

// Whether the program follows the composite for any size.
bool GraphBuilder::follows(uint32_t index) {
  const Event& composite = trace_.events[index];
  if (!composite.op) return false;
  if (follows_parts(index) || std::ranges::find(trace_.loops, index, &PythonLoop::layer) != trace_.loops.end())
    return true;
  if (is_divided_by_sizes(composite, layouts_of(composite))) return false;
  if (is_same_for_all_sizes(composite.name)) return hands_on(index), true;
  const auto given = given_by(trace_, index, layouts_of(composite));
  if (!given) return false;
  size_t next = 0;
  for (uint32_t child = index + 1; child < composite.end; child = trace_.events[child].end) {
    const Event& event = trace_.events[child];
    if (next == given->size() || event.name != (*given)[next].op) continue;
    const auto& [op, sizes, argument] = (*given)[next++];
    const c10::IValue& recorded = event.args[argument].constant;
    if (!recorded.isIntList() || recorded.toIntVector() != ir::hints(sizes)) return false;
    given_lists_[{child, argument}] = sizes;
  }
  return next == given->size();
}

// Tensor::is_contiguous(format).
static bool is_contiguous(const ir::Layout& layout, int64_t format) {
  constexpr auto kPlain = static_cast<int64_t>(at::MemoryFormat::Contiguous);
  if (format == kPlain || layout.sizes.size() < 4) return is_contiguous(layout);
  ir::Layout turned;  // the channels last
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    const size_t from = d == 0 ? 0 : d + 1 == layout.sizes.size() ? 1 : d + 1;
    turned.sizes.push_back(layout.sizes[from]);
    turned.strides.push_back(layout.strides[from]);
  }
  return is_contiguous(turned);
}

// These give their argument, or a view of it, where it lies as they want it, else a copy: as sizes decide.
void GraphBuilder::settle_copies() {
  if (!scope_) return;
  static const std::unordered_set<std::string_view> reshapes{"aten::reshape", "aten::reshape_as",
                                                             "aten::flatten.using_ints"};
  for (uint32_t index = 0; index < trace_.events.size(); ++index) {
    const Event& event = trace_.events[index];
    const bool is_same = event.name == "aten::contiguous";
    if ((!is_same && !reshapes.contains(event.name)) || event.results.size() != 1) continue;
    const Use &given = event.args[0].uses[0], &made = event.results[0].uses[0];
    if (given.tensor == kNone || made.tensor == kNone) continue;
    const auto in = layout_of(given.tensor), out = layout_of(made.tensor);
    if (!in || !out) continue;
    graph_.symbols->at(index);
    if (is_same)
      static_cast<void>(is_contiguous(*in, event.args[1].constant.toInt()));
    else
      static_cast<void>(ir::reshape_strides(in->sizes, in->strides, out->sizes));
  }
}

// What an operator is about to write over, as autograd keeps it: whatever the sizes are.
static bool is_kept_by_autograd(const Trace& trace, const Event& event) {
  if (event.name != "aten::clone" || event.parent == kNone) return false;
  const Event& writer = trace.events[event.parent];
  return writer.op && !writer.facts.is(OpFlag::Composite) && !written_arguments(writer).empty();
}

// Around the event: operators whose C++ code decided what to run inside.
void GraphBuilder::enter(const Event& event) {
  if (!scope_) return;
  std::vector<uint32_t> outer;
  for (uint32_t parent = event.parent; parent != kNone && entered_.insert(parent).second;
       parent = trace_.events[parent].parent)
    outer.push_back(parent);
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  const bool is_on_way = is_on_sized_way(index);  // where the numbers of each operator are known
  const bool is_kept = is_kept_by_autograd(trace_, event);
  for (size_t i = outer.size(); i-- > 0;) {
    graph_.symbols->at(outer[i]);
    const bool is_writer = is_kept && outer[i] == event.parent;
    if (!is_on_way && !is_writer && !follows(outer[i])) fix_sizes(trace_.events[outer[i]]);
  }
  graph_.symbols->at(index);
  if (is_on_way) place_way_sizes(index);
}

}  // namespace fastjit::capture
