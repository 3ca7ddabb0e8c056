#include "dispatch/run/executor.h"

#include <ATen/CPUFunctions.h>
#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "dispatch/run/parallel.h"
#include "dispatch/run/pool.h"
#include "dispatch/run/steps.h"
#include "plan/team.h"

namespace fastjit::dispatch {
namespace {

// In a program with calls of torch's, what dies in the call, or in that of its way back, takes memory from where
// torch's calls take theirs, so that what one leaves the other has. Not so what is small, which the pool has at hand,
// and what malloc would map anew each time.
bool is_plain(size_t bytes) { return bytes >= 32 << 10 && bytes < 32 << 20; }

// This thread's Keep slots; grows, never shrinks.
char* thread_scratch(int64_t bytes) {
  struct Buffer {
    char* data = nullptr;
    int64_t size = 0;
    ~Buffer() { std::free(data); }
  };
  thread_local Buffer buffer;
  if (bytes > buffer.size) {
    std::free(buffer.data);
    buffer.size = (bytes + 4095) / 4096 * 4096;
    buffer.data = static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(buffer.size)));
    if (!buffer.data) {
      buffer.size = 0;
      throw std::bad_alloc();
    }
  }
  return buffer.data;
}

// Without the dispatcher: the arguments are known to be plain CPU tensors.
struct CpuProducts {
  static void mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { at::cpu::mm_out(out, a, b); }
  static void bmm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { at::cpu::bmm_out(out, a, b); }
  template <class... Args>
  static void addmm(at::Tensor& out, const Args&... args) {
    at::cpu::addmm_out(out, args...);
  }
  template <class... Args>
  static void baddbmm(at::Tensor& out, const Args&... args) {
    at::cpu::baddbmm_out(out, args...);
  }
};

class CpuRun : public Run<CpuRun, CpuProducts, c10::DispatchKey::CPU> {
 public:
  CpuRun(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
         const uint64_t* scalars)
      : Run(executable, program, inputs, scalars) {}

 private:
  friend Run;
  using Run::step;

  char* take_arena() {
    const bool plain = exe_.calls_torch && is_plain(static_cast<size_t>(program_.arena_bytes));
    held_arena_ = (plain ? plain_allocate : pool_allocate)(program_.arena_bytes);
    return static_cast<char*>(held_arena_.get());
  }
  void drop_arena() { held_arena_.clear(); }
  void take_over(Stopped&) {}
  void hand_over(Stopped&) {}
  double* number(SlotId id) { return reinterpret_cast<double*>(address(id)); }

  static at::Tensor empty(const plan::Slot& s) {
    const at::ScalarType dtype = capture::to_torch(s.dtype);
    const size_t bytes = at::detail::computeStorageNbytes(s.sizes, s.strides, c10::elementSize(dtype));
    return pool_tensor(dtype, s.sizes, s.strides, s.brief && is_plain(bytes) ? plain_allocate : pool_allocate);
  }

  // `row` > 0 shifts every operand by that many steps of dim 0: one tile of a matmul epilogue.
  struct Launch {
    backend::KernelArgs args;
    c10::SmallVector<void*, 12> ptrs;
    c10::SmallVector<uint64_t, 8> scalars;
    c10::SmallVector<int64_t, 6> sizes;
    backend::KernelFn entry;
    int64_t scratch;
  };

  int64_t scratch_of(const plan::KernelStep& s) const {
    return static_cast<int64_t>(program_.kernels[s.kernel].scratch.size()) * s.scratch_stride;
  }

  void bind(const plan::KernelStep& s, Launch& launch, int64_t row = 0, int64_t rows = -1) {
    const size_t rank = s.sizes.size();
    launch.ptrs.resize(s.operands.size());
    for (size_t i = 0; i < s.operands.size(); ++i) {
      const int64_t shift = row ? row * s.strides[i * rank] : 0;
      launch.ptrs[i] = address(plan::Place{s.operands[i], s.offsets[i] + shift});
    }
    launch.scalars.clear();
    for (uint32_t scalar : s.scalars) launch.scalars.push_back(scalars_[scalar]);
    const int64_t* sizes = s.sizes.data();
    if (rows >= 0) {
      launch.sizes.assign(s.sizes.begin(), s.sizes.end());
      launch.sizes[0] = rows;
      sizes = launch.sizes.data();
    }
    launch.entry = exe_.kernels[s.kernel]->entry;
    launch.scratch = scratch_of(s);
    launch.args = {launch.ptrs.data(), sizes,  s.strides.data(), launch.scalars.data(), nullptr,
                   s.scratch_stride,   s.block};
  }

  static void part(const Launch& launch, int64_t begin, int64_t end) {
    if (launch.scratch == 0) return launch.entry(&launch.args, begin, end);
    backend::KernelArgs args = launch.args;
    args.scratch = thread_scratch(launch.scratch);
    launch.entry(&args, begin, end);
  }

  static void execute(const Launch& launch, int64_t units, int64_t grain) {
    if (units <= 0) return;
    if (units <= grain) return part(launch, 0, units);
    parallel_for(0, units, std::max<int64_t>(grain, 1), [&](int64_t begin, int64_t end) { part(launch, begin, end); });
  }

  void step(const plan::KernelStep& s) {
    Launch launch;
    bind(s, launch);
    execute(launch, s.units, s.grain);
  }

  void step(const plan::ParallelStep& s) {
    std::vector<Launch> launches(s.launches.size());
    std::vector<int64_t> starts{0};
    bool split = false;
    for (size_t i = 0; i < launches.size(); ++i) {
      bind(s.launches[i], launches[i]);
      starts.push_back(starts.back() + s.launches[i].units);
      split |= s.launches[i].units > s.launches[i].grain;
    }
    const auto range = [&](int64_t begin, int64_t end) {
      for (size_t i = 0; i < launches.size(); ++i) {
        const int64_t from = std::max(begin, starts[i]), to = std::min(end, starts[i + 1]);
        if (from < to) part(launches[i], from - starts[i], to - starts[i]);
      }
    };
    if (split)
      parallel_for(0, starts.back(), 1, range);
    else
      range(0, starts.back());
  }

  char* round_address(const plan::LoopStep& s, size_t next) {
    return s.where.empty() ? address(s.table[next]) : address(s.where[next]);
  }

  using Run::address;
  [[gnu::always_inline]] char* address(const plan::LoopStep::Where& where) {
    if (where.input != plan::kNoSlot) [[likely]]
      return data_of_input(where.input, where.element) + where.bytes;
    return (where.slot == plan::kNoSlot ? arena_ : address(where.slot)) + where.bytes;
  }

  // One launch, which is told where to look in each round.
  void run_inside(const plan::LoopStep& s) {
    Launch launch;
    bind(s.body[0], launch);
    const size_t columns = s.jumps.size(), trip = static_cast<size_t>(s.trip);
    const std::unique_ptr<void*[]> lists = std::make_unique_for_overwrite<void*[]>(columns * trip);
    const auto fill = [&](const auto& places) {
      for (size_t round = 0, next = 0; round < trip; ++round)
        for (size_t column = 0; column < columns; ++column, ++next)
          lists[column * trip + round] = address(places[next]);
    };
    s.where.empty() ? fill(s.table) : fill(s.where);
    for (size_t column = 0; column < columns; ++column) launch.ptrs[s.jumps[column].operand] = &lists[column * trip];
    execute(launch, s.body[0].units, s.body[0].grain);
  }

  // `run(launch, step)` for each launch of each round: a round moves pointers and calls.
  template <class Run>
  void each_round(const plan::LoopStep& s, Run run) {
    struct Pointer {
      void** at;
      int64_t step;  // bytes: of a round, or of an element
    };
    c10::SmallVector<Launch, 2> launches(s.body.size());
    for (size_t i = 0; i < launches.size(); ++i) bind(s.body[i], launches[i]);
    const auto pointer = [&](plan::LoopStep::Operand of, int64_t elements) {
      const int64_t size = ir::size_of(slot(s.body[of.launch].operands[of.operand]).dtype);
      return Pointer{&launches[of.launch].ptrs[of.operand], elements * size};
    };
    c10::SmallVector<Pointer, 8> walks;
    c10::SmallVector<void**, 8> jumps;
    for (const auto& [of, delta] : s.walks) walks.push_back(pointer(of, delta));
    for (const plan::LoopStep::Operand of : s.jumps) jumps.push_back(pointer(of, 0).at);
    size_t next = jumps.size();
    for (int64_t round = 1;; ++round) {
      for (size_t i = 0; i < launches.size(); ++i) run(launches[i], i);
      if (round >= s.trip) return;
      for (const auto& [at, bytes] : walks) *at = static_cast<char*>(*at) + bytes;
      for (void** at : jumps) *at = round_address(s, next++);
    }
  }

  void step(const plan::LoopStep& s) {
    if (s.temp != plan::kNoSlot) address(s.temp);  // so that there is an arena
    if (s.inside) return run_inside(s);
    if (s.team > 0 && !team_rest.rests()) return run_team(s);
    each_round(s, [&](const Launch& launch, size_t i) { execute(launch, s.body[i].units, s.body[i].grain); });
  }

  // What the rounds use is there before; each thread goes through all of them with pointers of its own.
  void run_team(const plan::LoopStep& s) {
    int64_t scratch = 0;
    for (const plan::KernelStep& launch : s.body) {
      for (const plan::SlotId operand : launch.operands) address(operand);
      scratch = std::max(scratch, scratch_of(launch));
    }
    for (size_t next = 0; next < s.table.size(); ++next) round_address(s, next);
    Barrier barrier;
    std::atomic<bool> failed = false;
    parallel_team(s.team, [&](int index, int count) {
      try {
        thread_scratch(scratch);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      barrier.wait(count);
      if (failed) return;
      each_round(s, [&](const Launch& launch, size_t i) {
        if (s.waits[i]) barrier.wait(count);
        const int64_t units = s.body[i].units, begin = units * index / count, end = units * (index + 1) / count;
        if (begin < end) part(launch, begin, end);
      });
    });
    if (failed) throw std::bad_alloc();
    team_rest.note(barrier.has_slept());
  }

  void step(const plan::ContractStep& s) {
    if (s.kind == ir::Product::Convolution) {
      convolution(s);
      for (const plan::KernelStep& e : s.epilogue) step(e);
      return;
    }
    const auto [a, b, bias] = factors(s);
    at::Tensor out = tensor(s.result);
    if (s.rows_per_tile <= 0 || s.rows_per_tile >= out.size(0)) {
      product(s, out, a, b, bias);
      for (const plan::KernelStep& e : s.epilogue) step(e);
      return;
    }
    for (int64_t row = 0; row < out.size(0); row += s.rows_per_tile) {
      const int64_t rows = std::min(s.rows_per_tile, out.size(0) - row);
      at::Tensor tile = out.narrow(0, row, rows);
      const bool per_row_bias = bias.defined() && bias.dim() == 2 && bias.size(0) > 1;
      product(s, tile, a.narrow(0, row, rows), b, per_row_bias ? bias.narrow(0, row, rows) : bias);
      for (const plan::KernelStep& e : s.epilogue) {
        Launch launch;
        bind(e, launch, row, rows);
        // Units scale with the rows: the epilogue's outermost dim is the row.
        const int64_t units = e.units / std::max<int64_t>(e.sizes[0], 1) * rows;
        execute(launch, e.sizes.size() == 1 ? e.units : units, e.grain);
      }
    }
  }

  at::DataPtr held_arena_;
};

}  // namespace

void Executable::relay() {
  const auto writes_none = [](const ir::ExternAttr& call) { return call.written.empty(); };
  if (std::ranges::all_of(externs, writes_none)) relaid.assign(relaid.size(), true);
}

void Executable::prepare() {
  changes = Changes::of(program, calls, externs);
  writes = !stores.empty() || !changes.written.empty();
  relaid.assign(program.slots.size(), false);
  const auto note = [&](plan::SlotId slot, const capture::CallTemplate& call, size_t which) {
    if (slot != plan::kNoSlot && which < call.results.size() &&
        program.slots[slot].strides != call.results[which].strides)
      relaid[slot] = true;
  };
  const auto note_step = [&](const auto& step) {
    using AnyStep = std::remove_cvref_t<decltype(step)>;
    calls_torch |= plan::kHasCall<AnyStep>;
    if constexpr (std::is_same_v<AnyStep, plan::ContractStep>) note(step.result, calls[step.call], 0);
    if constexpr (std::is_same_v<AnyStep, plan::ExternStep>)
      for (size_t i = 0; i < step.results.size(); ++i) note(step.results[i], calls[externs[step.external].call], i);
  };
  plan::for_each_step(program, note_step);
  releases_gil = calls_torch;  // as torch does around each of its operators
  if (calls_torch) mark_extras();
  if (cuda) return find_numbers();  // launches only queue work
  releases_gil |= plan::takes_threads(program);
}

void Executable::mark_extras() {
  const auto& outputs = program.outputs;
  for (size_t i = outputs.size() - std::min(extras, outputs.size()); i < outputs.size(); ++i)
    if (plan::Slot& slot = program.slots[outputs[i]]; slot.kind == plan::SlotKind::Tensor) slot.brief = true;
}

void Executable::find_numbers() {
  numbers_on_host.assign(program.slots.size(), false);
  plan::for_each_step(program, [&](const auto& step) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(step)>, plan::NumberStep>)
      numbers_on_host[step.result] = true;
  });
}

void set_view_creation(const at::Tensor& tensor, int8_t creation) {
  if (creation == capture::kAsMade || !tensor.defined() || !tensor.is_view()) return;
  torch::autograd::impl::get_view_autograd_meta(tensor)->set_creation_meta(
      static_cast<torch::autograd::CreationMeta>(creation));
}

static void run_whole(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
                      at::Tensor* const* given_up, const uint64_t* scalars, Tensors& outputs,
                      char* const* first_elements) {
  if (executable.cuda)
    run_cuda(executable, inputs, given_up, scalars, outputs);
  else
    run_steps<CpuRun>(executable, program, inputs, given_up, scalars, outputs, first_elements);
}

void run(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
         const uint64_t* scalars, Tensors& outputs, char* const* first_elements) {
  run_whole(executable, program, inputs, nullptr, scalars, outputs, first_elements);
}

void run_and_give_up(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
                     at::Tensor* const* given_up, const uint64_t* scalars, Tensors& outputs) {
  run_whole(executable, program, inputs, given_up, scalars, outputs, nullptr);
}

void run_part(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
              at::Tensor* const* given_up, const uint64_t* scalars, const Part& part, Stopped& at, Tensors& outputs) {
  if (executable.cuda)
    run_part_cuda(executable, inputs, given_up, scalars, part, at, outputs);
  else
    run_part_on<CpuRun>(executable, program, inputs, given_up, scalars, part, at, outputs);
}

bool run_checked(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
                 const uint64_t* scalars, Tensors& outputs, ValueCheck& check) {
  if (executable.cuda) return run_checked_cuda(executable, inputs, scalars, outputs, check);
  return run_checked_on<CpuRun>(executable, program, inputs, scalars, outputs, check);
}

}  // namespace fastjit::dispatch
