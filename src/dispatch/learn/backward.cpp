#include "dispatch/learn/backward.h"

#include <map>

#include "pass/split.h"
#include "support/error.h"

namespace fastjit::dispatch {
namespace {

using capture::InputSource;

/// All that programs of one way back have in common.
struct Blueprint {
  std::unique_ptr<const Compilation> like;  // of no graph
  std::vector<capture::CallTemplate> calls;
  std::vector<capture::NumberOp> numbers;
  std::vector<uint64_t> bits;  // per input of the graph: the result whose gradient it is, or none
  c10::Device device;
};

bool is_gradient(const InputSource& source) { return source.kind == InputSource::Kind::Gradient; }

// What of a capture's graph waits for gradients: inputs, and the outputs from `begin` on.
struct Late {
  std::vector<bool> inputs;
  size_t begin, count;
};

pass::SplitAt where_to_split(const capture::Derivative& derivative, size_t outputs, const Late& late) {
  pass::SplitAt at;
  at.late_inputs = late.inputs;
  at.late_outputs.assign(outputs, false);
  std::fill_n(at.late_outputs.begin() + static_cast<ptrdiff_t>(late.begin), late.count, true);
  at.kept_inputs = derivative.kept_inputs;
  for (size_t i = 0; i < derivative.found_inputs.size(); ++i)
    at.kept_inputs[i] = at.kept_inputs[i] || derivative.found_inputs[i];
  at.kept_inputs.resize(late.inputs.size(), false);
  at.kept_outputs = derivative.kept_results;
  at.kept_outputs.resize(outputs - late.count, false);
  return at;
}

// What autograd is to bring: tensors like those that it was recorded with, and like the sums in place of which a graph
// that is cut has inputs.
std::vector<Backward::Result> results_of(const capture::Capture& captured, const pass::CutAt& whole) {
  std::vector<Backward::Result> results;
  const capture::Derivative& derivative = *captured.derivative;
  for (size_t i = 0; i < derivative.results.size(); ++i)
    results.push_back({derivative.results[i], derivative.dtypes[i], {}, {}, {}});
  std::map<uint32_t, uint32_t> totals;  // inputs of the graph that is cut -> results
  for (size_t i = 0; i < whole.inputs.size(); ++i) totals.emplace(whole.inputs[i], derivative.inner[i]);
  const auto lies_as = [&](uint32_t result, const ir::Layout& layout) {
    results[result].sizes = ir::hints(layout.sizes);
    results[result].strides = ir::hints(layout.strides);
    results[result].layout = layout;
  };
  const ir::Graph& graph = whole.graph;
  for (ir::NodeId id = 0; id < graph.nodes.size(); ++id) {
    const uint32_t input = graph[id].attr;
    if (graph[id].op != ir::Op::Input) continue;
    if (const auto total = totals.find(input); total != totals.end())
      lies_as(total->second, graph.layout(id));
    else if (is_gradient(captured.inputs[input]) && results[captured.inputs[input].index].sizes.empty())
      lies_as(captured.inputs[input].index, graph.layout(id));
  }
  return results;
}

/// The second half of a capture's graph, and whose gradients go into it and come out.
struct SecondHalf {
  ir::Graph graph;
  std::vector<Given> given;               // per input; of gradients, the result among Derivative::results
  std::vector<bool> late, never;          // per input: it is a gradient; it is one of an inner result's alone
  std::vector<Backward::Source> sources;  // per output
  std::vector<uint32_t> inner;            // per output that is an inner result's gradient, behind the others
  std::vector<uint64_t> reached_by;       // per output: bits of Derivative::results
};

// How far in a result lies: those of one depth are not computed from each other. Each is as far in as it can be: what
// several are computed from is gone through once for all of them that are of one depth.
std::vector<int> depths(const SecondHalf& half, size_t results) {
  const size_t first = half.sources.size() - half.inner.size();
  const auto each = [&](const auto& visit) {  // of an inner result and one that autograd comes to it from
    for (size_t round = 0; round < half.inner.size(); ++round)
      for (size_t i = 0; i < half.inner.size(); ++i)
        for (size_t outer = 0; outer < results; ++outer)
          if (half.reached_by[first + i] >> outer & 1) visit(half.inner[i], outer);
  };
  std::vector<int> least(results, 0);
  each([&](size_t inner, size_t outer) { least[inner] = std::max(least[inner], least[outer] + 1); });
  std::vector<int> depth(results, *std::ranges::max_element(least));
  each([&](size_t inner, size_t outer) { depth[outer] = std::min(depth[outer], depth[inner] - 1); });
  return depth;
}

// One node: what gradients of these results make alone.
void add_node(Cut& out, const SecondHalf& half, const std::vector<Backward::Result>& results,
              const std::vector<uint32_t>& of) {
  std::vector<bool> missing = half.late;
  for (size_t i = 0; i < missing.size(); ++i)
    if (std::ranges::find(of, half.given[i].index) != of.end() && !half.never[i]) missing[i] = false;
  const auto reached_by = [&](size_t output) {
    uint64_t bits = 0;
    for (size_t i = 0; i < of.size(); ++i) bits |= (half.reached_by[output] >> of[i] & 1) << i;
    return bits;
  };
  std::vector<bool> reached;
  for (size_t i = 0; i < half.graph.outputs.size(); ++i) reached.push_back(reached_by(i) != 0);
  pass::Pruned pruned = pass::prune(half.graph, half.late, missing, reached);
  auto node = std::make_shared<Backward>();
  for (const uint32_t result : of) node->results.push_back(results[result]);
  std::vector<uint64_t> bits;
  for (const uint32_t input : pruned.inputs) {
    Given given = half.given[input];
    if (half.late[input]) given.index = static_cast<uint32_t>(std::ranges::find(of, given.index) - of.begin());
    bits.push_back(half.late[input] ? uint64_t{1} << given.index : 0);
    node->given.push_back(std::move(given));
  }
  const std::vector<std::vector<uint64_t>> uses = pass::uses_beside(pruned.graph, bits);
  for (size_t i = 0; i < uses.size(); ++i)
    if (!bits[i]) node->given[i].uses = uses[i];
  for (size_t i = 0; i < pruned.outputs.size(); ++i)
    if (pruned.outputs[i] >= 0)
      node->sources.push_back({half.sources[i].is_result, half.sources[i].index, reached_by(i)});
  node->again = out.way->again;
  node->graph = std::move(pruned.graph);
  out.nodes.push_back(std::move(node));
}

uint64_t bits_of(const std::vector<uint32_t>& results) {
  uint64_t bits = 0;
  for (const uint32_t result : results) bits |= uint64_t{1} << result;
  return bits;
}

// Autograd calls Python code once, with the sum of what comes to it, or with zeros, or not at all. A node that has it
// for all of its results, and no other node, does too. Else the graph says what it makes of parts of that sum, and of
// gradients that are missing, if it only scales and adds.
void refuse_partial(const capture::Derivative& derivative, const SecondHalf& half,
                    const std::vector<std::vector<uint32_t>>& nodes) {
  const auto is_as_called = [&](const capture::FunctionOnWay& function) {
    return std::ranges::all_of(nodes, [&](const std::vector<uint32_t>& of) {
      return !(function.reached_by & bits_of(of)) || function.reached_by == bits_of(of);
    });
  };
  bool is_one_partial = false, is_none_given = false;
  for (const capture::FunctionOnWay& function : derivative.python) {
    if (is_as_called(function)) continue;
    is_one_partial = true;
    is_none_given = is_none_given || function.is_given_none;
  }
  if (is_one_partial && (is_none_given || !pass::is_linear(half.graph, half.late)))
    throw support::Unable(
        "a torch.autograd.Function is behind some of its results and not behind others, and its "
        "backward does more than scale and add up gradients",
        "return one result that requires grad, and detach() the others");
}

// Its programs ask of symbols of its own: the call's are those of another program.
void set_sizes(Backward& node) {
  const ir::Symbols& symbols = *node.graph.symbols;
  for (uint32_t i = 0; i < symbols.size(); ++i) node.recorded.push_back(symbols.value(i));
  std::vector<uint32_t> wanted;
  for (const Backward::Result& result : node.results)
    for (const auto* dims : {&result.layout.sizes, &result.layout.strides})
      for (const ir::Dim dim : *dims) wanted.push_back(dim.expr());
  node.shapes = symbols.code(wanted);
  node.graph = ir::at_sizes(node.graph, node.recorded);
}

Given given_by(const pass::Handed& handed, const std::vector<uint32_t>& moved) {
  switch (handed.from) {
    case pass::Handed::From::Input:
      return {Given::From::Input, moved[handed.index]};
    case pass::Handed::From::Output:
      return {Given::From::Result, handed.index};
    case pass::Handed::From::Extra:
      return {Given::From::Extra, handed.index};
    case pass::Handed::From::Late:
      break;
  }
  return {Given::From::Gradient, handed.index};
}

// A gradient is there once nothing touches its memory any more, and nothing reads what it is the gradient of: who waits
// for it may write to both. Those that share memory are there together.
std::vector<uint32_t> source_ends(const Backward& node, const BackwardProgram& program) {
  using Which = std::pair<Given::From, uint32_t>;
  std::map<Which, uint32_t> reads;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const Given& given = node.given[program.inputs[i]];
    reads[{given.from, given.index}] = program.ends.inputs[i];
  }
  std::vector<uint32_t> ends(node.sources.size(), 0);
  std::map<plan::SlotId, uint32_t> shared;  // by root
  const auto output_of = [&](size_t source) -> const Ends::Output& {
    return program.ends.outputs[static_cast<size_t>(program.gradients[source])];
  };
  for (size_t i = 0; i < ends.size(); ++i) {
    if (program.gradients[i] < 0) continue;
    const Backward::Source& source = node.sources[i];
    const auto read = reads.find({source.is_result ? Given::From::Result : Given::From::Input, source.index});
    uint32_t& latest = shared[output_of(i).root];
    latest = std::max({latest, output_of(i).end, read == reads.end() ? 0 : read->second});
  }
  for (size_t i = 0; i < ends.size(); ++i)
    if (program.gradients[i] >= 0) ends[i] = shared[output_of(i).root];
  return ends;
}

// As Blueprint has them.
std::vector<uint64_t> bits_of(const Backward& node) {
  std::vector<uint64_t> bits;
  for (const Given& given : node.given)
    bits.push_back(given.from == Given::From::Gradient ? uint64_t{1} << given.index : 0);
  return bits;
}

// `bits`: as Blueprint has them; `graph`: the node's, at some sizes.
pass::Pruned asked_for(const Backward& node, const std::vector<uint64_t>& bits, const BackwardRequest& request,
                       const ir::Graph& graph) {
  const ir::Symbols::Scope scope(graph.symbols.get());
  std::vector<bool> late, missing;
  for (const uint64_t bit : bits) {
    late.push_back(bit != 0);
    missing.push_back(bit != 0 && !(bit & request.results));
  }
  std::vector<bool> wanted = request.sources;
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = wanted[i] && (node.sources[i].reached_by & request.results);
  return pass::prune(graph, late, missing, wanted);
}

// Of a program for any size: what is asked of sizes here is asked of its own symbols.
std::unique_ptr<BackwardProgram> make(const Backward& node, const Blueprint& blueprint, const BackwardRequest& request,
                                      std::span<const int64_t> wanted_sizes) {
  // A graph with the rounds of the recorded call says nothing of a call with other ones.
  const std::span<const int64_t> sizes = node.runs_any_trip() ? std::span(node.recorded) : wanted_sizes;
  const ir::Graph sized = sizes.empty() ? ir::Graph() : ir::at_sizes(node.graph, sizes);
  const ir::Graph& graph = sizes.empty() ? node.graph : sized;
  pass::Pruned pruned = asked_for(node, blueprint.bits, request, graph);
  const ir::Symbols::Scope scope(graph.symbols.get());
  const std::unique_ptr<Compilation> compilation = blueprint.like->like(std::move(pruned.graph));
  compilation->make(Compilation::Place::Here);
  if (!compilation->made) throw std::bad_alloc();
  if (compilation->made->error) std::rethrow_exception(compilation->made->error);
  auto executable = std::make_unique<Executable>();
  executable->calls = blueprint.calls;
  executable->numbers = blueprint.numbers;
  fill(*executable, *compilation->made);
  if (blueprint.device.is_cuda()) executable->load_on_cuda(blueprint.device.index());
  executable->prepare();
  executable->last_uses = last_uses(executable->program);
  auto program = std::make_unique<BackwardProgram>();
  if (graph.symbols) {
    executable->relay();
    program->sized = std::make_unique<Sized>(sizes);
    program->sized->set_program(*graph.symbols, executable->program, compilation->options,
                                compilation->made->graph.scalars);
  }
  program->inputs = std::move(pruned.inputs);
  program->gradients = std::move(pruned.outputs);
  program->ends = ends_of(executable->program, program->inputs.size());
  program->source_ends = source_ends(node, *program);
  program->executable = std::move(executable);
  return program;
}

// Of a call with one result, what eager's way back reads and a program does not.
void add_checked(Backward& node, const capture::Capture& captured, const std::vector<uint32_t>& moved) {
  const capture::Derivative& derivative = *captured.derivative;
  const auto add = [&](Given::From from, uint32_t index) {
    const auto is_it = [&](const Given& given) { return given.from == from && given.index == index; };
    if (std::ranges::none_of(node.given, is_it))
      node.given.push_back({.from = from, .index = index, .is_checked = true, .uses = {1}});
  };
  for (size_t i = 0; i < moved.size() && i < derivative.kept_inputs.size(); ++i)
    if (derivative.kept_inputs[i] && !is_gradient(captured.inputs[i])) add(Given::From::Input, moved[i]);
  // What is detached from something that autograd keeps is a result too, and written like it.
  for (uint32_t i = 0; i < derivative.kept_results.size(); ++i)
    if (derivative.kept_results[i]) add(Given::From::Result, i);
}

}  // namespace

Cut cut(capture::Capture& captured, const std::string& function, const pass::PassContext& context) {
  if (!captured.derivative) return {};
  const ir::Symbols::Scope scope(captured.graph.symbols.get());
  const capture::Derivative& derivative = *captured.derivative;
  const size_t shown = derivative.kept_results.size(), sources = derivative.sources.size();
  std::vector<uint32_t> ends;
  for (size_t i = 0; i < derivative.inner.size(); ++i) ends.push_back(static_cast<uint32_t>(shown + sources + i));
  pass::CutAt whole = pass::cut_at(captured.graph, ends);
  if (pass::Changed laid = pass::layouts(whole.graph, context)) whole.graph = std::move(*laid);
  Late late{{}, shown, sources + ends.size()};
  for (const InputSource& source : captured.inputs) late.inputs.push_back(is_gradient(source));
  late.inputs.resize(whole.graph.inputs.size(), true);
  const size_t outputs = whole.graph.outputs.size();
  pass::Halves halves = pass::split(whole.graph, where_to_split(derivative, outputs, late));

  const std::vector<Backward::Result> results = results_of(captured, whole);
  std::vector<uint32_t> moved(captured.inputs.size(), 0);
  std::vector<InputSource> inputs;
  for (const uint32_t input : halves.first_inputs) {
    moved[input] = static_cast<uint32_t>(inputs.size());
    inputs.push_back(captured.inputs[input]);
  }
  SecondHalf half{std::move(halves.second), {}, {}, {}, {}, derivative.inner, derivative.reached_by};
  for (const pass::Handed& handed : halves.handed) {
    Given given = given_by(handed, moved);
    const bool is_late = given.from == Given::From::Gradient, is_total = is_late && handed.index >= moved.size();
    if (is_total)
      given.index =
          derivative.inner[static_cast<size_t>(std::ranges::find(whole.inputs, handed.index) - whole.inputs.begin())];
    else if (is_late)
      given.index = captured.inputs[handed.index].index;
    half.late.push_back(is_late);
    half.never.push_back(is_late && !is_total &&
                         std::ranges::find(derivative.inner, given.index) != derivative.inner.end());
    given.is_found = handed.from == pass::Handed::From::Input && handed.index < derivative.found_inputs.size() &&
                     derivative.found_inputs[handed.index];
    half.given.push_back(std::move(given));
  }
  for (const uint32_t source : derivative.sources) half.sources.push_back({false, moved[source]});
  for (const uint32_t inner : derivative.inner) half.sources.push_back({true, derivative.results[inner]});

  Cut out;
  out.way = std::make_shared<WayBack>();
  out.way->views = derivative.views;
  for (capture::ResultView& view : out.way->views)
    if (view.is_of_input) view.base = moved[view.base];
  out.way->extras = halves.first.outputs.size() - (outputs - late.count);
  const std::vector<int> depth = depths(half, results.size());
  std::vector<std::vector<uint32_t>> nodes;
  for (int at = *std::ranges::max_element(depth); at >= 0; --at) {
    std::vector<uint32_t>& of = nodes.emplace_back();
    for (uint32_t result = 0; result < results.size(); ++result)
      if (depth[result] == at) of.push_back(result);
  }
  refuse_partial(derivative, half, nodes);
  for (const std::vector<uint32_t>& of : nodes) {
    add_node(out, half, results, of);
    for (const capture::FunctionOnWay& function : derivative.python)
      for (size_t i = 0; i < of.size(); ++i) out.nodes.back()->python |= (function.reached_by >> of[i] & 1) << i;
    out.nodes.back()->function = function;
    out.nodes.back()->is_over = derivative.is_over;
  }
  if (results.size() == 1 && !derivative.is_over) add_checked(*out.nodes[0], captured, moved);
  captured.graph = std::move(halves.first);
  captured.inputs = std::move(inputs);
  return out;
}

std::vector<ir::Graph> graphs_of(const Cut& cut) {
  constexpr size_t kMostResults = 3;
  std::vector<ir::Graph> graphs;
  for (const std::shared_ptr<Backward>& node : cut.nodes) {
    if (node->results.size() > kMostResults) throw support::Unable("its way back may begin in too many ways", "");
    const std::vector<uint64_t> bits = bits_of(*node);
    BackwardRequest request = node->whole();
    for (const uint64_t all = request.results; request.results > 0; --request.results)
      if ((request.results & all) == request.results)
        graphs.push_back(asked_for(*node, bits, request, node->graph).graph);
  }
  return graphs;
}

void make_like(Cut& cut, const Compilation& like, const Executable& executable, c10::Device device) {
  for (const std::shared_ptr<Backward>& made : cut.nodes) {
    Backward& node = *made;
    if (node.graph.symbols) set_sizes(node);
    auto blueprint = std::make_shared<Blueprint>(Blueprint{{}, {}, {}, {}, device});
    blueprint->bits = bits_of(node);
    blueprint->like = like.like({});
    blueprint->calls = executable.calls;
    blueprint->numbers = executable.numbers;
    node.make = [&node, blueprint](const BackwardRequest& request, std::span<const int64_t> sizes) {
      return make(node, *blueprint, request, sizes);  // the node has this
    };
    cut.way->nodes.push_back(made);
  }
}

}  // namespace fastjit::dispatch
