#include "dispatch/learn/backward.h"

#include "pass/split.h"

namespace fastjit::dispatch {
namespace {

using capture::InputSource;

/// All that programs of one way back have in common.
struct Blueprint {
  ir::Graph graph;
  pass::PassContext context;
  plan::PlanOptions options;
  backend::Target target;
  std::string function, signature;
  runtime::CacheMode mode;
  std::vector<capture::CallTemplate> calls;
  std::vector<capture::NumberOp> numbers;
  std::vector<uint64_t> bits;  // per input of the graph: the result whose gradient it is, or none
};

bool is_gradient(const InputSource& source) { return source.kind == InputSource::Kind::Gradient; }

pass::SplitAt where_to_cut(const capture::Capture& captured) {
  const capture::Derivative& derivative = *captured.derivative;
  pass::SplitAt at;
  for (const InputSource& source : captured.inputs) at.late_inputs.push_back(is_gradient(source));
  const size_t shown = derivative.kept_results.size(), gradients = derivative.sources.size();
  at.late_outputs.assign(captured.graph.outputs.size(), false);
  std::fill_n(at.late_outputs.begin() + static_cast<ptrdiff_t>(shown), gradients, true);
  at.kept_inputs = derivative.kept_inputs;
  at.kept_inputs.resize(captured.inputs.size(), false);
  at.kept_outputs = derivative.kept_results;
  at.kept_outputs.resize(captured.graph.outputs.size() - gradients, false);
  return at;
}

std::vector<int64_t> numbers(std::span<const ir::Dim> dims) {
  std::vector<int64_t> out;
  for (const ir::Dim dim : dims) out.push_back(dim.hint());
  return out;
}

// What autograd is to bring: tensors like those that it was recorded with.
std::vector<Backward::Result> results_of(const capture::Capture& captured) {
  std::vector<Backward::Result> results;
  for (const uint32_t output : captured.derivative->results) results.push_back({output, {}, {}, {}});
  for (ir::NodeId id = 0; id < captured.graph.nodes.size(); ++id) {
    const ir::Node& node = captured.graph[id];
    if (node.op != ir::Op::Input || !is_gradient(captured.inputs[node.attr])) continue;
    Backward::Result& result = results[captured.inputs[node.attr].index];
    result.dtype = capture::to_torch(node.dtype);
    result.sizes = numbers(captured.graph.layout(id).sizes);
    result.strides = numbers(captured.graph.layout(id).strides);
  }
  return results;
}

std::vector<Given> given_to(const pass::Halves& halves, const capture::Capture& captured,
                            const std::vector<uint32_t>& moved) {
  std::vector<Given> given;
  std::vector<uint64_t> bits;
  for (const pass::Handed& handed : halves.handed) {
    using From = pass::Handed::From;
    const uint32_t gradient = handed.from == From::Late ? captured.inputs[handed.index].index : 0;
    bits.push_back(handed.from == From::Late ? uint64_t{1} << gradient : 0);
    switch (handed.from) {
      case From::Input:
        given.push_back({Given::From::Input, moved[handed.index], {}});
        break;
      case From::Output:
        given.push_back({Given::From::Result, handed.index, {}});
        break;
      case From::Extra:
        given.push_back({Given::From::Extra, handed.index, {}});
        break;
      case From::Late:
        given.push_back({Given::From::Gradient, gradient, {}});
        break;
    }
  }
  const std::vector<std::vector<uint64_t>> uses = pass::uses_beside(halves.second, bits);
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i].from != Given::From::Gradient) given[i].uses = uses[i];
  return given;
}

std::unique_ptr<BackwardProgram> make(const Blueprint& blueprint, const BackwardRequest& request) {
  std::vector<bool> late, missing;
  for (const uint64_t bit : blueprint.bits) {
    late.push_back(bit != 0);
    missing.push_back(bit != 0 && !(bit & request.results));
  }
  pass::Pruned pruned = pass::prune(blueprint.graph, late, missing, request.sources);
  Compilation compilation;
  compilation.captured = std::move(pruned.graph);
  compilation.context = blueprint.context;
  compilation.options = blueprint.options;
  compilation.target = blueprint.target;
  compilation.mode = blueprint.mode;
  compilation.origin = {blueprint.function, blueprint.signature, entry_text(compilation.captured)};
  compilation.make(Compilation::Place::Here);
  if (!compilation.made) throw std::bad_alloc();
  if (compilation.made->error) std::rethrow_exception(compilation.made->error);
  auto executable = std::make_unique<Executable>();
  executable->program = std::move(compilation.made->program);
  executable->externs = compilation.made->graph.externs;
  executable->calls = blueprint.calls;
  executable->numbers = blueprint.numbers;
  for (runtime::KernelResult& kernel : compilation.made->kernels)
    executable->kernels.push_back(std::move(kernel.kernel));
  executable->prepare();
  auto program = std::make_unique<BackwardProgram>();
  program->executable = std::move(executable);
  program->inputs = std::move(pruned.inputs);
  program->gradients = std::move(pruned.outputs);
  return program;
}

}  // namespace

WayBack cut(capture::Capture& captured, const std::string& function) {
  if (!captured.derivative) return {};
  pass::Halves halves = pass::split(captured.graph, where_to_cut(captured));
  std::vector<uint32_t> moved(captured.inputs.size(), 0);
  std::vector<InputSource> inputs;
  for (const uint32_t input : halves.first_inputs) {
    moved[input] = static_cast<uint32_t>(inputs.size());
    inputs.push_back(captured.inputs[input]);
  }
  auto backward = std::make_shared<Backward>();
  backward->function = function;
  backward->given = given_to(halves, captured, moved);
  backward->results = results_of(captured);
  for (const uint32_t source : captured.derivative->sources) backward->sources.push_back(moved[source]);
  const size_t shown = captured.graph.outputs.size() - captured.derivative->sources.size();
  backward->extras = halves.first.outputs.size() - shown;
  captured.graph = std::move(halves.first);
  captured.inputs = std::move(inputs);
  return {std::move(backward), std::move(halves.second)};
}

void make_like(WayBack way, const Compilation& like, const Executable& executable) {
  auto blueprint = std::make_shared<Blueprint>();
  for (const Given& given : way.backward->given)
    blueprint->bits.push_back(given.from == Given::From::Gradient ? uint64_t{1} << given.index : 0);
  blueprint->graph = std::move(way.graph);
  blueprint->context = like.context;
  blueprint->options = like.options;
  blueprint->target = like.target;
  blueprint->function = like.origin.function;
  blueprint->signature = like.origin.signature;
  blueprint->mode = like.mode;
  blueprint->calls = executable.calls;
  blueprint->numbers = executable.numbers;
  way.backward->make = [blueprint](const BackwardRequest& request) { return make(*blueprint, request); };
}

}  // namespace fastjit::dispatch
