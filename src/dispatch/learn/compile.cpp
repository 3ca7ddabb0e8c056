#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <pybind11/pybind11.h>

#include <array>
#include <bit>
#include <cstdio>
#include <functional>

#include "dispatch/learn/backward.h"
#include "dispatch/learn/compile.h"
#include "dispatch/learn/recording.h"
#include "dispatch/learn/refuse.h"
#include "dispatch/run/pool.h"
#include "pass/constants.h"
#include "pass/number_lists.h"
#include "pass/recompute.h"
#include "runtime/fork_gate.h"
#include "support/beside.h"
#include "support/error.h"
#include "support/log.h"

namespace fastjit::dispatch {
namespace {

constexpr uint32_t kPlanning = 0xFFFFFFFFu;  // where a size is asked for: see Symbols::at()

// Programs for CUDA are the same on every machine: nothing in their plans depends on the host.
backend::Target target_for(c10::Device device, plan::PlanOptions& options) {
  if (device.is_cuda()) {
    options.cuda = true;
    return {backend::Target::Kind::Cuda, backend::Isa::Avx2, backend::cuda_sm(device.index())};
  }
  const backend::Target target{backend::Target::Kind::Cpu, backend::host_isa(), 0};
  options.own_products = true;
  options.lanes = backend::lanes_for(target.isa);
  options.threads = at::get_num_threads();
  return target;
}

// What `fastjit cache show` says of the graph that a kernel was compiled for first; that of a whole model would be most
// of every one of its entries.
std::function<std::string()> entry_text(const ir::Graph& graph) {
  constexpr size_t kMostNodes = 256;
  if (graph.nodes.size() > kMostNodes)
    return [nodes = graph.nodes.size()] {
      return "# the captured graph has " + std::to_string(nodes) + " nodes; inspect(\"ir\") of the function shows it\n";
    };
  return [&graph] { return ir::print(graph); };
}

using Origins = std::array<uint64_t, 3>;  // kernels by runtime::Source

// "f(f32[4]): 2 kernels compiled, 1 loaded from disk in 5.2 ms"
void log_origins(const Function& function, const Variant& variant, const Origins& origins, double ms) {
  if (!support::log_on(support::Channel::Compile)) return;
  constexpr std::pair<runtime::Source, const char*> kWords[] = {{runtime::Source::Compiled, " compiled"},
                                                                {runtime::Source::Disk, " loaded from disk"},
                                                                {runtime::Source::Memory, " reused from memory"}};
  std::string what;
  for (const auto& [source, words] : kWords) {
    const uint64_t count = origins[static_cast<size_t>(source)];
    if (!count) continue;
    const char* noun = !what.empty() ? "" : count == 1 ? " kernel" : " kernels";
    what += (what.empty() ? "" : ", ") + std::to_string(count) + noun + words;
  }
  char time[32];
  std::snprintf(time, sizeof time, " in %.2f ms", ms);
  support::log(support::Channel::Compile, function.options.name + "(" + variant.key.spec.signature() +
                                              "): " + (what.empty() ? "no kernel needed" : what) + time);
}

/// Loads or compiles them side by side.
std::vector<runtime::KernelResult> get_kernels(const std::vector<plan::KernelPlan>& plans, const Compilation& of,
                                               Compilation::Place place) {
  constexpr size_t kMostThreads = 4, kFewKernels = 4;  // so few are loaded from disk in the time that a thread takes
  const bool here = place == Compilation::Place::Here;
  std::vector<runtime::KernelResult> results(plans.size());
  auto get = [&](size_t i) {
    if (!here && runtime::is_background_stopped()) throw std::runtime_error("the process ends");
    results[i] = runtime::get_kernel(plans[i], of.target, of.origin, of.mode);
  };
  size_t done = 0;
  while (done < std::min(plans.size(), kFewKernels)) {
    get(done++);
    if (results[done - 1].source == runtime::Source::Compiled) break;
  }
  const size_t threads = here ? support::idle_cores(kMostThreads) : 1;
  support::side_by_side(plans.size() - done, threads, [&](size_t i) { get(done + i); });
  return results;
}

// What this thread knows and others do not is settled here: the number of threads, the device.
std::shared_ptr<Pending> begin(const Function& function, const Variant& variant, c10::Device device, ir::Graph graph) {
  auto pending = std::make_shared<Pending>();
  auto compilation = std::make_shared<Compilation>();
  compilation->options.numerics = function.options.numerics;
  pending->device = device;
  compilation->target = target_for(device, compilation->options);
  compilation->context = context_for(function, device);
  compilation->mode = function.options.cache;
  compilation->captured = std::move(graph);
  compilation->origin = {function.options.name, variant.key.spec.signature(), entry_text(compilation->captured)};
  pending->compilation = std::move(compilation);
  return pending;
}

void make_checkpoints_again(capture::Capture& captured) {
  if (captured.checkpoints.empty()) return;
  const ir::Symbols::Scope scope(captured.graph.symbols.get());
  captured.graph = pass::recompute(captured.graph, captured.checkpoints);
}

at::Tensor tensor_of(const pass::NumberList& list) {
  at::Tensor made = at::detail::empty_cpu({static_cast<int64_t>(list.bits.size())}, capture::to_torch(list.dtype));
  const auto fill = [&]<class T>(T* to) {
    for (const uint64_t bits : list.bits)
      *to++ = ir::is_float(list.dtype) ? static_cast<T>(std::bit_cast<double>(bits)) : static_cast<T>(bits);
  };
  switch (list.dtype) {
    case ir::DType::F32:
      fill(made.mutable_data_ptr<float>());
      break;
    case ir::DType::F64:
      fill(made.mutable_data_ptr<double>());
      break;
    case ir::DType::I32:
      fill(made.mutable_data_ptr<int32_t>());
      break;
    default:
      fill(made.mutable_data_ptr<int64_t>());
  }
  return made;
}

// Per input of the graph: the tensor, if it is the same in every call.
std::vector<at::Tensor> constant_inputs(const capture::Capture& captured) {
  std::vector<at::Tensor> tensors(captured.inputs.size());
  for (size_t i = 0; i < captured.inputs.size(); ++i) {
    if (captured.inputs[i].kind != capture::InputSource::Kind::Captured) continue;
    const at::Tensor& tensor = unpack(captured.captured[captured.inputs[i].index]);
    const auto is_it = [&](const at::Tensor& one) { return one.is_same(tensor); };
    if (std::ranges::any_of(captured.constants, is_it)) tensors[i] = tensor;
  }
  return tensors;
}

// A graph in two: what each call does of it, and what is the same in all of them.
struct Parted {
  ir::Graph rest;  // has the results of `once`, and the lists, for its last inputs
  std::optional<ir::Graph> once;
  std::vector<pass::NumberList> lists;
};

// `inputs`: those of the graph that are constant.
Parted parted_graph(ir::Graph graph, const std::vector<at::Tensor>& inputs) {
  std::vector<bool> constant;
  for (const at::Tensor& input : inputs) constant.push_back(input.defined());
  Parted parted{std::move(graph), {}, {}};
  if (auto parts = pass::fold_constants(parted.rest, constant)) {
    parted.rest = std::move(parts->rest);
    parted.once = std::move(parts->part);
  }
  if (auto listed = pass::list_numbers(parted.rest)) {
    parted.rest = std::move(listed->rest);
    parted.lists = std::move(listed->lists);
  }
  return parted;
}

// Of a call that does not go back: what the second half keeps is eager's.
void take_constants_out(const Recording& recording, Pending& pending) {
  std::vector<at::Tensor> inputs = constant_inputs(recording.captured_graph);
  Parted parted = parted_graph(std::move(pending.compilation->captured), inputs);
  pending.compilation->captured = std::move(parted.rest);
  for (const pass::NumberList& list : parted.lists) pending.numbers.push_back(tensor_of(list));
  if (!parted.once) return;
  pending.constants = pending.compilation->like(std::move(*parted.once));
  pending.constant_inputs = std::move(inputs);
}

std::shared_ptr<Pending> begin(Recording& recording) {
  Variant& variant = *recording.variant;
  pool_expire();
  const c10::Device device = recording.device;
  make_checkpoints_again(recording.captured_graph);
  Cut way = cut(recording.captured_graph, recording.function.options.name, context_for(recording.function, device));
  if (recording.rehearsed)
    for (const auto& node : way.nodes)
      node->changed = [facts = recording.rehearsed] {
        const pybind11::gil_scoped_acquire gil;
        return facts->check() ? std::string() : facts->first_failure();
      };
  const std::shared_ptr<Pending> pending =
      begin(recording.function, variant, device, std::move(recording.captured_graph.graph));
  if (way.way)
    pending->compilation->context.channels_last = false;  // chosen for both ways
  else if (device.is_cpu())
    take_constants_out(recording, *pending);
  pending->executable = std::make_unique<Executable>();
  pending->executable->calls = std::move(recording.captured_graph.calls);
  pending->executable->numbers = std::move(recording.captured_graph.numbers);
  pending->executable->result_versions = std::move(recording.captured_graph.result_versions);
  pending->executable->view_creations = std::move(recording.captured_graph.view_creations);
  if (way.way) pending->executable->extras = way.way->extras;
  pending->values = std::move(recording.captured_graph.guards);
  pending->reads_values = recording.captured_graph.reads_values;
  variant.program.inputs = recording.captured_graph.inputs;
  if (variant.program.sized) variant.program.sized->find_inputs(variant.program.inputs);
  pending->back = way.way;
  if (way.way) make_like(way, *pending->compilation, *pending->executable, device);
  return pending;
}

// All that the variant needs. An error of one part is one of the call's.
void make_all(Compilation& compilation, Compilation* constants, const WayBack* back,
              Compilation::Place place) noexcept {
  compilation.make(place);
  if (!compilation.made || compilation.made->error) return;
  try {
    if (constants) {
      constants->make(place);
      if (!constants->made) throw std::bad_alloc();
      if (constants->made->error) std::rethrow_exception(constants->made->error);
    }
    if (back) back->make_ahead();
  } catch (...) {
    compilation.made->error = std::current_exception();
  }
}

void make_in_background(Pending& pending) {
  const auto make = [compilation = pending.compilation, constants = pending.constants, back = pending.back] {
    make_all(*compilation, constants.get(), back.get(), Compilation::Place::Background);
  };
  pending.job = std::make_shared<runtime::BackgroundJob>(make);
  runtime::run_in_background(pending.job);
}

// What the program is made of beside the calls of torch's, which stay as they are.
void take(Function& function, Variant& variant, Executable& executable, Compilation::Made& made) {
  Origins origins{};
  for (const runtime::KernelResult& result : made.kernels) {
    ++origins[static_cast<size_t>(result.source)];
    variant.inspection.keys.push_back(result.key);
  }
  fill(executable, made);
  function.stats.compiles += origins[static_cast<size_t>(runtime::Source::Compiled)];
  function.stats.disk_hits += origins[static_cast<size_t>(runtime::Source::Disk)];
  function.stats.memory_hits += origins[static_cast<size_t>(runtime::Source::Memory)];
  log_origins(function, variant, origins, made.ms);
}

// Tensors of the variant's own are its next inputs. They are found as the call's constants are.
void add_inputs(Variant& variant, const ir::Graph& graph, std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) {
    const auto object = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor));
    const auto place = static_cast<uint32_t>(variant.guards.captured.size());
    variant.guards.captured.add(object.ptr(), graph.inputs[variant.program.inputs.size()].name);
    variant.guards.held.push_back(std::move(tensor));  // which keeps its object
    variant.program.inputs.push_back({capture::InputSource::Kind::Captured, place});
  }
}

// Runs the program of what is the same in every call.
void add_constants(Function& function, Variant& variant, const Pending& pending) {
  Executable once;
  take(function, variant, once, *pending.constants->made);
  once.prepare();
  std::vector<const at::Tensor*> inputs;
  for (const at::Tensor& tensor : pending.constant_inputs) inputs.push_back(&tensor);
  const c10::InferenceMode plain(false);
  Tensors made;
  run(once, once.program, inputs.data(), nullptr, made);
  add_inputs(variant, pending.compilation->captured, {made.begin(), made.end()});
}

// Once the program is whole.
void finish(Variant& variant, Executable& executable, Compilation& compilation) {
  executable.prepare();
  ir::Graph& graph = compilation.made->graph;
  if (graph.symbols)
    for (const auto& [symbol, place] : graph.symbols->fixed())
      if (place == kPlanning)
        variant.inspection.fixed_sizes.push_back(graph.symbols->name(symbol) + " is one size for the plan of kernels");
  if (variant.program.sized)
    variant.program.sized->set_program(*graph.symbols, executable.program, compilation.options, graph.scalars);
  variant.program.checks_overlap = executable.writes;
  variant.inspection.graph = std::move(graph);
}

}  // namespace

void fill(Executable& executable, Compilation::Made& made) {
  executable.program = std::move(made.program);
  executable.externs = made.graph.externs;
  executable.stores = made.graph.stores;
  executable.kernels.clear();
  for (runtime::KernelResult& result : made.kernels) executable.kernels.push_back(std::move(result.kernel));
}

std::unique_ptr<Compilation> Compilation::like(ir::Graph graph) const {
  auto other = std::make_unique<Compilation>();
  other->captured = std::move(graph);
  other->context = context;
  other->options = options;
  other->target = target;
  other->origin = {origin.function, origin.signature, entry_text(other->captured)};
  other->mode = mode;
  return other;
}

ir::Graph without_constants(const capture::Capture& captured) {
  return parted_graph(captured.graph, constant_inputs(captured)).rest;
}

pass::PassContext context_for(const Function& function, c10::Device device) {
  return {.numerics = function.options.numerics, .channels_last = device.is_cpu()};
}

bool takes_any_trip(const Function& function, const capture::Capture& captured) {
  plan::PlanOptions options;
  options.numerics = function.options.numerics;
  static_cast<void>(target_for(c10::kCPU, options));
  captured.graph.symbols->at(kPlanning);
  pass::PassContext context = context_for(function, c10::kCPU);
  const auto takes = [&](const ir::Graph& graph) { return plan::takes_any_trip(pass::run(graph, context), options); };
  if (!captured.derivative) return takes(captured.graph);
  capture::Capture halved = captured;
  try {
    const Cut way = cut(halved, function.options.name, context);
    context.channels_last = false;
    return takes(halved.graph) && std::ranges::all_of(graphs_of(way), takes);
  } catch (const support::Unable&) {
    return false;
  }
}

void Compilation::make(Place place) noexcept {
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<Made> now;
  try {
    now = std::make_unique<Made>();
    {
      const runtime::InsideGate gate;
      if (captured.symbols) captured.symbols->at(kPlanning);
      now->graph = pass::run(captured, context);
      now->program = plan::plan(now->graph, options);
    }
    now->kernels = get_kernels(now->program.kernels, *this, place);
  } catch (...) {
    if (now) now->error = std::current_exception();
  }
  if (now) now->ms = ms_since(start);
  made = std::move(now);
}

void install(Function& function, Variant& variant, Pending& pending) {
  if (!pending.compilation->made) throw std::bad_alloc();
  Compilation::Made& made = *pending.compilation->made;
  if (made.error) std::rethrow_exception(made.error);
  const auto start = std::chrono::steady_clock::now();
  Executable& executable = *pending.executable;
  variant.inspection.keys.clear();
  take(function, variant, executable, made);
  if (pending.constants) add_constants(function, variant, pending);
  add_inputs(variant, pending.compilation->captured, std::move(pending.numbers));
  if (pending.compilation->target.kind == backend::Target::Kind::Cuda) {
    variant.program.device = pending.device.index();
    executable.load_on_cuda(pending.device.index());
  }
  finish(variant, executable, *pending.compilation);
  variant.program.executable = std::move(pending.executable);
  variant.program.back = std::move(pending.back);
  variant.guards.values = std::move(pending.values);
  variant.inspection.captured = std::move(pending.compilation->captured);
  variant.inspection.compile_ms = made.ms + ms_since(start);
  function.stats.compile_ms += variant.inspection.compile_ms;
}

void compile(Recording& recording) {
  const std::shared_ptr<Pending> pending = begin(recording);
  {
    const pybind11::gil_scoped_release release;
    make_all(*pending->compilation, pending->constants.get(), pending->back.get(), Compilation::Place::Here);
  }
  install(recording.function, *recording.variant, *pending);
}

void compile_later(Recording& recording) {
  std::shared_ptr<Pending> pending = begin(recording);
  make_in_background(*pending);
  recording.variant->reason = kBeingCompiled;
  recording.variant->pending = std::move(pending);
}

// A plan that lets in other sizes than the one there is of no use.
void plan_anew(Function& function, Variant& variant) {
  Sized& sized = *variant.program.sized;
  // A graph with the rounds of the recorded call says nothing of a call with other ones.
  if (!variant.inspection.captured.traced.empty()) return sized.settle_plan(sized.latest());
  if (!variant.anew) {
    variant.anew = begin(function, variant, c10::kCPU, ir::at_sizes(variant.inspection.captured, sized.latest()));
    variant.anew->sizes = sized.latest();
    return make_in_background(*variant.anew);
  }
  runtime::tend_background();
  if (!variant.anew->job->done() || sized.in_use()) return;
  const std::shared_ptr<Pending> anew = std::exchange(variant.anew, nullptr);
  const std::unique_ptr<Compilation::Made>& made = anew->compilation->made;
  sized.settle_plan(std::move(anew->sizes));
  if (!made || made->error || made->graph.symbols->guards() != sized.guards()) return;
  variant.inspection.keys.clear();
  take(function, variant, *variant.program.executable, *made);
  finish(variant, *variant.program.executable, *anew->compilation);
  function.stats.compile_ms += made->ms;
}

void settle_ready(Function& function) {
  const auto all = function.variants.all();
  for (const std::shared_ptr<Variant>& variant : all) {
    const std::shared_ptr<Pending> pending = variant->pending;
    const bool ready = pending && pending->job->done() && pending->compilation->made &&
                       !pending->compilation->made->error &&
                       pending->compilation->target.kind != backend::Target::Kind::Cuda;
    if (ready) settle(function, variant);
  }
  runtime::tend_background();
}

}  // namespace fastjit::dispatch
