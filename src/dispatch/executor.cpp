#include "dispatch/executor.h"

#include <ATen/CPUFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdlib>

#include "dispatch/parallel.h"
#include "dispatch/pool.h"

namespace fastjit::dispatch {
namespace {

using plan::SlotId;
using plan::SlotKind;

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

class Run {
 public:
  Run(const Executable& executable, const at::Tensor* const* inputs, const uint64_t* scalars)
      : exe_(executable),
        program_(executable.program),
        inputs_(inputs),
        scalars_(scalars),
        tensors_(executable.program.slots.size()) {
    if (program_.arena_bytes > 0) arena_ = pool_allocate(program_.arena_bytes);
  }

  void all_steps() {
    for (const plan::Step& step : program_.steps) std::visit([this](const auto& s) { this->step(s); }, step);
  }

  void collect(Tensors& outputs) {
    outputs.resize(program_.outputs.size());
    for (size_t i = 0; i < program_.outputs.size(); ++i)
      if (program_.slots[program_.outputs[i]].kind != SlotKind::Input) outputs[i] = tensor(program_.outputs[i]);
  }

  void bump_versions() {
    for (const ir::Store& store : exe_.stores) {
      at::TensorImpl* impl = inputs_[store.input]->unsafeGetTensorImpl();
      if (impl->is_inference()) continue;
      for (uint32_t i = 0; i < store.bumps; ++i) impl->bump_version();
    }
  }

 private:
  const plan::Slot& slot(SlotId id) const { return program_.slots[id]; }

  // The slot as a tensor; allocated at its first use.
  const at::Tensor& tensor(SlotId id) {
    const plan::Slot& s = slot(id);
    if (s.kind == SlotKind::Input) return *inputs_[s.index];
    at::Tensor& t = tensors_[id];
    if (!t.defined()) {
      if (s.kind == SlotKind::Alias)
        t = alias(s);
      else
        t = pool_tensor(capture::to_torch(s.dtype), s.sizes, s.strides);
    }
    return t;
  }

  at::Tensor alias(const plan::Slot& s) {
    const at::Tensor& base = tensor(s.base);
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(base.storage()), base.key_set() & c10::DispatchKeySet(c10::DispatchKey::CPU), base.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(s.sizes, s.strides);
    t.unsafeGetTensorImpl()->set_storage_offset(base.storage_offset() + s.offset);
    return t;
  }

  char* address(SlotId id) {
    const plan::Slot& s = slot(id);
    if (s.kind == SlotKind::Temp) return static_cast<char*>(arena_.get()) + s.offset;
    if (s.kind == SlotKind::Alias) return address(s.base) + s.offset * ir::size_of(s.dtype);
    return static_cast<char*>(tensor(id).unsafeGetTensorImpl()->mutable_data());
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

  void bind(const plan::KernelStep& s, Launch& launch, int64_t row = 0, int64_t rows = -1) {
    const size_t rank = s.sizes.size();
    launch.ptrs.resize(s.operands.size());
    for (size_t i = 0; i < s.operands.size(); ++i) {
      const int64_t shift = row ? row * s.strides[i * rank] : 0;
      launch.ptrs[i] = address(s.operands[i]) + (s.offsets[i] + shift) * ir::size_of(slot(s.operands[i]).dtype);
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
    launch.scratch = static_cast<int64_t>(program_.kernels[s.kernel].scratch.size()) * s.scratch_stride;
    launch.args = {launch.ptrs.data(), sizes,  s.strides.data(), launch.scalars.data(), nullptr,
                   s.scratch_stride,   s.block};
  }

  static void part(const Launch& launch, int64_t begin, int64_t end) {
    backend::KernelArgs args = launch.args;
    if (launch.scratch > 0) args.scratch = thread_scratch(launch.scratch);
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

  void step(const plan::FreeStep& s) { tensors_[s.slot].reset(); }

  // Lists in a template are shared between calls: each call fills a copy.
  static c10::IValue copy_of_list(const c10::IValue& list) {
    if (list.isTensorList()) return list.toTensorList().copy();
    return list.toList().copy();
  }

  void call(const capture::CallTemplate& tmpl, const std::vector<SlotId>& operands, torch::jit::Stack& stack) {
    stack.assign(tmpl.args.begin(), tmpl.args.end());
    int64_t list = -1;
    for (size_t i = 0; i < tmpl.holes.size(); ++i) {
      const auto [arg, item] = tmpl.holes[i];
      const at::Tensor value = operands[i] == plan::kNoSlot ? at::Tensor() : tensor(operands[i]);
      if (item < 0) {
        stack[arg] = value;
        continue;
      }
      if (list != arg) stack[arg] = copy_of_list(tmpl.args[arg]);
      list = arg;
      if (stack[arg].isTensorList())
        stack[arg].toTensorList().set(static_cast<size_t>(item), value);
      else
        stack[arg].toList().set(static_cast<size_t>(item), value.defined() ? c10::IValue(value) : c10::IValue());
    }
    tmpl.op.callBoxed(stack);
  }

  static void check(const at::Tensor& got, const capture::TensorMeta& expected, const std::string& name) {
    if (got.scalar_type() == expected.dtype && got.sizes() == at::IntArrayRef(expected.sizes) &&
        got.strides() == at::IntArrayRef(expected.strides))
      return;
    throw Restart{"the result of " + name + " has other sizes, strides or dtype than when it was recorded"};
  }

  void step(const plan::ExternStep& s) {
    const ir::ExternAttr& attr = exe_.externs[s.external];
    const capture::CallTemplate& tmpl = exe_.calls[attr.call];
    torch::jit::Stack stack;
    call(tmpl, s.operands, stack);
    // A tensor list counts as its elements.
    size_t result = 0;
    const auto take = [&](const at::Tensor& t) {
      if (result < s.results.size() && s.results[result] != plan::kNoSlot) {
        if (result < tmpl.results.size()) check(t, tmpl.results[result], attr.name);
        tensors_[s.results[result]] = t;
      }
      ++result;
    };
    for (const c10::IValue& value : stack) {
      if (value.isTensor())
        take(value.toTensor());
      else if (value.isTensorList())
        for (const at::Tensor& t : value.toTensorVector()) take(t);
    }
  }

  void product(const plan::MatmulStep& s, at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
               const at::Tensor& bias) {
    const ir::ExternAttr& attr = exe_.externs[s.external];
    const std::vector<c10::IValue>& args = exe_.calls[attr.call].args;
    if (attr.name == "aten::mm")
      at::cpu::mm_out(out, a, b);
    else if (attr.name == "aten::bmm")
      at::cpu::bmm_out(out, a, b);
    else if (attr.name == "aten::addmm")
      at::cpu::addmm_out(out, bias, a, b, args[3].toScalar(), args[4].toScalar());
    else
      at::cpu::baddbmm_out(out, bias, a, b, args[3].toScalar(), args[4].toScalar());
  }

  void step(const plan::MatmulStep& s) {
    const bool biased = s.operands.size() == 3;
    const at::Tensor& a = tensor(s.operands[biased ? 1 : 0]);
    const at::Tensor& b = tensor(s.operands[biased ? 2 : 1]);
    const at::Tensor bias = biased ? tensor(s.operands[0]) : at::Tensor();
    at::Tensor out = tensor(s.result);
    if (s.rows_per_tile <= 0 || s.rows_per_tile >= out.size(0)) {
      product(s, out, a, b, bias);
      for (const plan::KernelStep& e : s.epilogue) step(e);
      return;
    }
    for (int64_t row = 0; row < out.size(0); row += s.rows_per_tile) {
      const int64_t rows = std::min(s.rows_per_tile, out.size(0) - row);
      at::Tensor tile = out.narrow(0, row, rows);
      const bool per_row_bias = biased && bias.dim() == 2 && bias.size(0) > 1;
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

  const Executable& exe_;
  const plan::Program& program_;
  const at::Tensor* const* inputs_;
  const uint64_t* scalars_;
  c10::SmallVector<at::Tensor, 12> tensors_;
  at::DataPtr arena_;
};

}  // namespace

void Executable::prepare() {
  writes = !stores.empty();
  for (const plan::Step& step : program.steps) {
    if (const auto* external = std::get_if<plan::ExternStep>(&step))
      writes |= !externs[external->external].written.empty();
    const auto big = [](const plan::KernelStep& s) { return s.units > s.grain; };
    if (const auto* kernel = std::get_if<plan::KernelStep>(&step)) long_running |= big(*kernel);
    if (const auto* parallel = std::get_if<plan::ParallelStep>(&step))
      for (const plan::KernelStep& s : parallel->launches) long_running |= big(s);
    if (const auto* matmul = std::get_if<plan::MatmulStep>(&step))
      long_running |= program.slots[matmul->result].sizes.size() >= 2 && matmul->rows_per_tile > 0;
  }
}

int Executable::kernel_launches() const {
  int n = 0;
  for (const plan::Step& step : program.steps) {
    if (std::holds_alternative<plan::KernelStep>(step)) ++n;
    if (const auto* parallel = std::get_if<plan::ParallelStep>(&step)) n += static_cast<int>(parallel->launches.size());
    if (const auto* matmul = std::get_if<plan::MatmulStep>(&step)) n += static_cast<int>(matmul->epilogue.size());
  }
  return n;
}

void run(const Executable& executable, const at::Tensor* const* inputs, const uint64_t* scalars, Tensors& outputs) {
  Run call(executable, inputs, scalars);
  call.all_steps();
  call.bump_versions();
  call.collect(outputs);
}

}  // namespace fastjit::dispatch
