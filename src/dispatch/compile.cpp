#include <ATen/Parallel.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstdio>
#include <functional>
#include <limits>

#include "backend/target.h"
#include "dispatch/pool.h"
#include "dispatch/recording.h"
#include "dispatch/refuse.h"
#include "plan/program.h"
#include "runtime/engine.h"
#include "support/beside.h"
#include "support/log.h"

namespace fastjit::dispatch {
namespace {

// Products up to half of this keep one library call: MKL in row tiles cost 4 to 9 % at 512 and 1024, more than the
// epilogue gained.
constexpr int64_t kTileAbove = int64_t{64} << 20;
// Programs for CUDA are the same on every machine: nothing in their plans depends on the host.
backend::Target target_for(c10::Device device, plan::PlanOptions& options) {
  if (device.is_cuda()) {
    options.cuda = true;
    options.l2_bytes = std::numeric_limits<int64_t>::max();
    return {backend::Target::Kind::Cuda, backend::Isa::Avx2, backend::cuda_sm(device.index())};
  }
  const backend::Target target{backend::Target::Kind::Cpu, backend::host_isa(), 0};
  options.lanes = backend::lanes_for(target.isa);
  options.threads = at::get_num_threads();
  options.l2_bytes = kTileAbove;
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
void log_origins(const Function& function, const Variant& variant, const Origins& origins) {
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
  std::snprintf(time, sizeof time, " in %.2f ms", variant.compile_ms);
  support::log(support::Channel::Compile, function.options.name + "(" + variant.spec.signature() +
                                              "): " + (what.empty() ? "no kernel needed" : what) + time);
}

/// Loads or compiles them side by side.
std::vector<runtime::KernelResult> get_kernels(const Executable& executable, const backend::Target& target,
                                               const runtime::Origin& origin, runtime::CacheMode mode) {
  constexpr size_t kMostThreads = 4, kFewKernels = 4;  // so few are loaded from disk in the time that a thread takes
  const std::vector<plan::KernelPlan>& plans = executable.program.kernels;
  std::vector<runtime::KernelResult> results(plans.size());
  const pybind11::gil_scoped_release release;
  auto get = [&](size_t i) { results[i] = runtime::get_kernel(plans[i], target, origin, mode); };
  size_t done = 0;
  while (done < std::min(plans.size(), kFewKernels)) {
    get(done++);
    if (results[done - 1].source == runtime::Source::Compiled) break;
  }
  support::side_by_side(plans.size() - done, support::idle_cores(kMostThreads), [&](size_t i) { get(done + i); });
  return results;
}

}  // namespace

void compile(Recording& recording) {
  Function& function = recording.function;
  Variant& variant = *recording.variant;
  const auto start = std::chrono::steady_clock::now();
  pool_expire();
  const pass::PassContext context{function.options.numerics};
  ir::Graph graph = pass::run(recording.captured_graph.graph, context);
  plan::PlanOptions options;
  options.numerics = function.options.numerics;
  const c10::Device device = device_of(variant.spec.flat().tensors);
  const backend::Target target = target_for(device, options);
  auto executable = std::make_unique<Executable>();
  executable->program = plan::plan(graph, options);
  executable->calls = std::move(recording.captured_graph.calls);
  variant.values = std::move(recording.captured_graph.guards);
  executable->externs = graph.externs;
  executable->stores = graph.stores;
  executable->result_versions = std::move(recording.captured_graph.result_versions);
  const runtime::Origin origin{function.options.name, variant.spec.signature(),
                               entry_text(recording.captured_graph.graph)};
  std::vector<runtime::KernelResult> results = get_kernels(*executable, target, origin, function.options.cache);
  Origins origins{};
  for (runtime::KernelResult& result : results) {
    ++origins[static_cast<size_t>(result.source)];
    variant.keys.push_back(result.key);
    executable->kernels.push_back(std::move(result.kernel));
  }
  function.stats.compiles += origins[static_cast<size_t>(runtime::Source::Compiled)];
  function.stats.disk_hits += origins[static_cast<size_t>(runtime::Source::Disk)];
  function.stats.memory_hits += origins[static_cast<size_t>(runtime::Source::Memory)];
  if (device.is_cuda()) {
    variant.device = device.index();
    executable->load_on_cuda(device.index());
  }
  executable->prepare();
  variant.checks_overlap = executable->writes;
  variant.executable = std::move(executable);
  variant.inspection.captured = std::move(recording.captured_graph.graph);
  variant.inspection.graph = std::move(graph);
  variant.inputs = recording.captured_graph.inputs;
  variant.compile_ms = ms_since(start);
  function.stats.compile_ms += variant.compile_ms;
  log_origins(function, variant, origins);
}

}  // namespace fastjit::dispatch
