#pragma once
// Runs a program: allocates its outputs, launches kernels, calls the library. Obeys the plan and decides nothing.
#include <ATen/ATen.h>
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cuda_driver.h"
#include "backend/kernel.h"
#include "capture/calls.h"
#include "dispatch/run/last_uses.h"
#include "dispatch/run/undo.h"
#include "plan/program.h"

namespace fastjit::dispatch {

/// What a program on a CUDA device needs beside its kernels.
struct CudaCode {
  c10::DeviceIndex device = 0;
  backend::CudaContext context = nullptr;
  std::vector<backend::CudaFunction> functions;  // per Program::kernels
  c10::Allocator* allocator = nullptr;           // torch's for the device; null: a torch without CUDA
};

/// A program with everything it needs at run time. Immutable after prepare(); shared by threads.
struct Executable {
  plan::Program program;
  std::vector<std::shared_ptr<const backend::Kernel>> kernels;  // per Program::kernels
  std::unique_ptr<const CudaCode> cuda;                         // null: runs on the CPU
  std::vector<capture::CallTemplate> calls;
  std::vector<capture::NumberOp> numbers;
  std::vector<ir::ExternAttr> externs;
  std::vector<ir::Store> stores;
  std::vector<bool> numbers_on_host;     // per slot: a number that a program on a device computes; else empty
  std::vector<bool> relaid;              // per slot: a call's result that the program wants with other strides
  std::vector<int64_t> result_versions;  // as Capture's
  std::vector<int8_t> view_creations;    // as Capture's
  size_t extras = 0;                     // last outputs of the program, which only the way back sees
  Changes changes;                       // by its steps, in order
  std::vector<LastUse> last_uses;        // found where callers give up inputs
  bool writes = false;                   // something visible to the caller is written before the program ends
  bool calls_torch = false;              // some step is a call of torch's
  bool releases_gil = false;  // it may take long: Python code of others, and of operators in it, may run meanwhile

  /// Derives the flags above from the program; call once, when everything else is there.
  void prepare();
  /// After prepare(): results of calls may come with any strides, and are copied where the plan is for others. Nothing
  /// may write to them.
  void relay();
  /// Loads the kernels into the primary context of a CUDA device. Throws std::runtime_error.
  void load_on_cuda(c10::DeviceIndex device);
  bool on_host(plan::SlotId slot) const { return !numbers_on_host.empty() && numbers_on_host[slot]; }
  int kernel_launches() const { return static_cast<int>(program.made.size()); }
  int steps() const { return static_cast<int>(program.steps.size()); }

 private:
  void find_numbers();
  void mark_extras();
};

/// What went differently from the recording although every guard held (an operator's output metadata): the call
/// restarts in eager.
struct Restart {
  std::string why;
};

using Tensors = c10::SmallVector<at::Tensor, 8>;

/// Autograd takes the tensor, if it is a view, for one that was made as torch's CreationMeta of this number says;
/// capture::kAsMade: as it is.
void set_view_creation(const at::Tensor& tensor, int8_t creation);

/// Of a program with sizes that its run finds: it becomes the program at these sizes on the way.
class LateSizes {
 public:
  using Found = std::pair<uint32_t, int64_t>;  // the symbol, and what it is
  virtual ~LateSizes() = default;
  /// False: the program is not for these.
  virtual bool take(std::span<const Found> found) = 0;
  /// Whether something hangs on them beside tensors: a guard, or a number.
  virtual bool is_asked() const = 0;
};

/// What a program's guards found. It stops at the first value that differs: `seen` are its elements. Or it stops where
/// it is not for the sizes that it finds, behind so many guards that held.
struct ValueCheck {
  const std::vector<capture::ValueGuard>& expected;
  LateSizes* late = nullptr;  // of a program that finds sizes
  bool guards_only = false;   // stops after the last guard: nothing has been written by then but what Undo puts back
  size_t held = 0;
  std::vector<uint64_t> seen{};
  bool is_of_other_sizes = false;
};

/// Runs on `inputs` (one per graph input) and `scalars` (bits per graph scalar). outputs[i] is left undefined where
/// Program::outputs[i] is an Input slot. Throws what an operator throws, or Restart. Needs no GIL.
/// `program`: the executable's own, or that at other sizes. `first_elements`: where that of each input is, null where
/// the run is to find it; or null.
void run(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
         const uint64_t* scalars, Tensors& outputs, char* const* first_elements = nullptr);
/// The same. Of each input, null or what owns it: it is reset once the run needs it no more. `given_up` null: none is.
void run_and_give_up(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
                     at::Tensor* const* given_up, const uint64_t* scalars, Tensors& outputs);
/// A run that stops on its way, and goes on later, on another thread maybe.
struct Stopped {
  static constexpr uint32_t kEnd = 0xFFFFFFFFu;
  uint32_t step = 0;                         // the next one, as plan::for_each_number() counts them; 0: none has run
  c10::SmallVector<at::Tensor, 12> tensors;  // that it has made so far
  std::vector<at::Generator> generators;
  std::unordered_map<plan::SlotId, double> numbers;
  c10::DataPtr arena;
};
/// Up to which step it goes now (kEnd: to its end), and the outputs that are there then.
struct Part {
  uint32_t end = Stopped::kEnd;
  std::vector<uint32_t> outputs{};
  std::vector<uint32_t> tensors{};  // of the run, in the memory of these outputs
};
/// As run_and_give_up() of a program that writes to none of the caller's memory, from where it has stopped. No step
/// after the part's end may touch the memory of its outputs.
void run_part(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
              at::Tensor* const* given_up, const uint64_t* scalars, const Part& part, Stopped& at, Tensors& outputs);
/// As run() with guards. False: it stopped, as `check` tells.
bool run_checked(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
                 const uint64_t* scalars, Tensors& outputs, ValueCheck& check);

}  // namespace fastjit::dispatch
