#pragma once
// From what was captured to a program: at once, or in the background. Private to learn.cpp, compile.cpp and what runs
// or shows variants.
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "backend/target.h"
#include "dispatch/call/function.h"
#include "pass/pass.h"
#include "plan/program.h"
#include "runtime/background.h"

namespace fastjit::dispatch {

inline constexpr const char* kBeingCompiled = "its program is being compiled in the background";

/// The part that knows neither Python nor torch. What is given is not changed by make(), which may begin anew in a
/// forked child.
struct Compilation {
  ir::Graph captured;
  pass::PassContext context;
  plan::PlanOptions options;
  backend::Target target;
  runtime::Origin origin;
  runtime::CacheMode mode = runtime::CacheMode::On;

  struct Made {
    ir::Graph graph;  // after the passes
    plan::Program program;
    std::vector<runtime::KernelResult> kernels;
    double ms = 0;
    std::exception_ptr error;  // set: nothing else is
  };
  std::unique_ptr<Made> made;  // null before make(), and where there was no memory even for that

  enum class Place : uint8_t { Here, Background };  // several threads, or one that gives up when the process ends
  /// Without the GIL. Throws nothing.
  void make(Place place) noexcept;
  /// Of another graph, which is to be compiled in the same way.
  std::unique_ptr<Compilation> like(ir::Graph graph) const;
};

/// Gives a program what was made of it: all but the calls of torch's, which it has. Executable::prepare() comes next.
void fill(Executable& executable, Compilation::Made& made);

/// What is compiled of a call that does not go back, on the CPU: the graph without what is the same in every call.
ir::Graph without_constants(const capture::Capture& captured);

pass::PassContext context_for(const Function& function, c10::Device device);
/// Whether programs on the CPU can be had of the capture, and of its way back, in which loops of ir::Graph::traced run
/// any number of rounds.
bool takes_any_trip(const Function& function, const capture::Capture& captured);

/// A variant between its recording and its program. Only touched under the GIL.
struct Pending {
  std::shared_ptr<Compilation> compilation;
  std::shared_ptr<Compilation> constants;   // a program that runs once: its results are the last inputs; null: none
  std::vector<at::Tensor> constant_inputs;  // what it is given: per input of its graph, those that it reads
  std::vector<at::Tensor> numbers;          // lists of them, which are inputs behind these
  std::unique_ptr<Executable> executable;   // what the recording gave of it
  std::shared_ptr<WayBack> back;            // of a call with gradients
  std::vector<capture::ValueGuard> values;
  c10::Device device{c10::kCPU};
  std::shared_ptr<runtime::BackgroundJob> job;
  std::vector<int64_t> sizes;                   // of plan_anew(): those that the plan is made for
  bool reads_values = false, has_path = false;  // it read values of tensors; Variant::values are those that led to it

  Pending() = default;
  ~Pending() {
    if (job) job->abandon();
  }
  Pending(const Pending&) = delete;
};

/// Gives the variant its program. Throws what make() and the device threw.
void install(Function& function, Variant& variant, Pending& pending);

enum class Settled : uint8_t { Waits, Ready, Eager, Raises };
/// Of a pending variant: whether its program is there by now, which the variant then has. Eager: it could not be
/// compiled, which is counted for this call. Raises: and `on_unsupported` says that this is an error.
Settled settle(Function& function, const std::shared_ptr<Variant>& variant);

/// Of a program for any size, to which calls come with sizes far above those that it was planned for: plans it for the
/// ones that came last, in the background, and takes the new plan once it is there and no run of the old one is under
/// way. Cheap between these two.
void plan_anew(Function& function, Variant& variant);

/// Gives programs that are there to the variants that wait for them, for who looks at the function.
void settle_ready(Function& function);

}  // namespace fastjit::dispatch
