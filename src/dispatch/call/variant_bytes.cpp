// What a variant weighs.
#include "dispatch/call/variant.h"

namespace fastjit::dispatch {
namespace {

template <class T>
size_t weight(const std::vector<T>& items) {
  return items.capacity() * sizeof(T);
}

size_t weight(const std::vector<std::string>& texts) {
  size_t sum = texts.capacity() * sizeof(std::string);
  for (const std::string& text : texts) sum += text.capacity();
  return sum;
}

// Of a tensor that would go with the variant: with pure=True it holds the tensors of the model, too, which do not.
size_t weight(const at::Tensor& tensor) {
  const bool is_only_here =
      tensor.defined() && tensor.use_count() == 1 && tensor.has_storage() && tensor.storage().use_count() == 1;
  return is_only_here ? tensor.storage().nbytes() : 0;
}

// Facts say which objects they refer to, and not what they take. A fact has a name, a place and words to compare with.
size_t weight(const observe::ReadSet& facts) {
  constexpr size_t kPerReference = 192;
  size_t references = 0;
  facts.traverse([](PyObject*, void* count) { return ++*static_cast<size_t*>(count), 0; }, &references);
  return references * kPerReference;
}

size_t weight(const CallSpec& spec) {
  size_t sum = weight(spec.specs());
  for (const ArgSpec& arg : spec.specs()) sum += weight(arg.tensor.sizes) + weight(arg.tensor.strides);
  return sum;
}

size_t weight(const ir::Graph& graph) {
  size_t sum = weight(graph.nodes) + weight(graph.layouts) + weight(graph.constants) + weight(graph.maps) +
               weight(graph.reduces) + weight(graph.lists) + weight(graph.contracts) + weight(graph.externs) +
               weight(graph.lines) + weight(graph.inputs) + weight(graph.scalars) + weight(graph.stores);
  for (const ir::ListAttr& list : graph.lists) sum += weight(list.operands);
  for (const ir::ExternAttr& external : graph.externs) sum += weight(external.operands);
  return sum;
}

size_t weight(const plan::KernelStep& step) {
  return weight(step.operands) + weight(step.offsets) + weight(step.sizes) + weight(step.strides) +
         weight(step.scalars);
}

size_t weight(const plan::Program& program) {
  size_t sum = weight(program.slots) + weight(program.kernels) + weight(program.steps) + weight(program.made) +
               weight(program.verdicts);
  for (const plan::Slot& slot : program.slots) sum += weight(slot.sizes) + weight(slot.strides);
  for (const plan::KernelPlan& kernel : program.kernels)
    sum += weight(kernel.operands) + weight(kernel.code) + weight(kernel.phases);
  for (const auto& nodes : program.made) sum += weight(nodes);
  plan::for_each_launch(program, [&](const plan::KernelStep& step) { sum += sizeof step + weight(step); });
  for (const plan::Step& step : program.steps) {
    if (const auto* loop = std::get_if<plan::LoopStep>(&step))
      sum +=
          weight(loop->walks) + weight(loop->jumps) + weight(loop->table) + weight(loop->turns) + weight(loop->where);
    if (const auto* repeat = std::get_if<plan::RepeatStep>(&step)) {
      sum += weight(repeat->body) + weight(repeat->columns) + weight(repeat->varying);
      for (const plan::RepeatStep::Column& column : repeat->columns) sum += weight(column.listed);
    }
  }
  return sum;
}

size_t weight(const Executable& executable) {
  size_t sum = sizeof executable + weight(executable.program) + weight(executable.calls) + weight(executable.numbers) +
               weight(executable.externs);
  for (const capture::CallTemplate& call : executable.calls) {
    sum += weight(call.args) + weight(call.holes) + weight(call.results);
    for (const capture::TensorMeta& result : call.results) sum += weight(result.sizes) + weight(result.strides);
  }
  return sum;
}

}  // namespace

size_t bytes_of(const Variant& variant) {
  constexpr size_t kPerCaptured = 56 + sizeof(std::string);  // see CapturedTensors
  size_t sum = sizeof variant + weight(variant.key.spec) + variant.guards.captured.size() * kPerCaptured;
  if (variant.guards.facts) sum += weight(*variant.guards.facts);
  for (const at::Tensor& tensor : variant.guards.held) sum += weight(tensor);
  for (const capture::ValueGuard& value : variant.guards.values)
    sum += sizeof value + value.label.capacity() + weight(value.expected);
  if (variant.program.executable) sum += weight(*variant.program.executable);
  if (variant.program.back)
    for (const auto& node : variant.program.back->nodes)
      if (!node->is_over) sum += weight(node->graph) + weight(*node->program(node->whole()).executable);
  return sum + weight(variant.program.inputs) + weight(variant.inspection.captured) + weight(variant.inspection.graph) +
         weight(variant.inspection.keys);
}

}  // namespace fastjit::dispatch
