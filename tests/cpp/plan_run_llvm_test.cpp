// Planner and code generator together: random graphs, planned, compiled and run on real memory, against the graph.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/compiler.h"
#include "pass/pass.h"
#include "plan/program.h"
#include "plan/repeat.h"
#include "plan_random.h"
#include "reference.h"

namespace fastjit::test {
namespace {

class Runner {
 public:
  Runner(const ir::Graph& graph, const plan::Program& program, backend::Isa isa)
      : graph_(graph), program_(program), arena_(static_cast<size_t>(program.arena_bytes) + 64) {
    for (const plan::KernelPlan& kernel : program.kernels)
      kernels_.push_back(backend::load_cpu(backend::compile_cpu(kernel, {backend::Target::Kind::Cpu, isa, 0}).object));
    slots_.resize(program.slots.size());
    scratch_.resize(static_cast<size_t>(program.scratch_bytes) + 64);
  }

  Outcome run(const std::vector<Values>& inputs, const std::vector<Num>& scalars) {
    scalars_ = &scalars;
    for (plan::SlotId id = 0; id < slots_.size(); ++id)
      if (program_.slots[id].kind == plan::SlotKind::Input) fill(id, inputs[program_.slots[id].index]);
    plan::for_each_step(program_, [this](const auto& step) { execute(step); });
    Outcome outcome;
    for (const plan::SlotId id : program_.outputs) outcome.outputs.push_back(read(id));
    outcome.inputs = inputs;
    for (plan::SlotId id = 0; id < slots_.size(); ++id)
      if (program_.slots[id].kind == plan::SlotKind::Input) outcome.inputs[program_.slots[id].index] = read(id);
    return outcome;
  }

 private:
  struct Memory {
    std::shared_ptr<std::vector<char>> bytes;
    char* first = nullptr;
  };

  char* data(plan::SlotId id) {
    const plan::Slot& slot = program_.slots[id];
    Memory& memory = slots_[id];
    if (slot.kind == plan::SlotKind::Temp)
      return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(arena_.data()) + 63) / 64 * 64) + slot.offset;
    if (slot.kind == plan::SlotKind::Alias) {
      const auto made = aliases_.find(id);
      const plan::Place of = made == aliases_.end() ? plan::Place{slot.base, slot.offset} : made->second;
      return data(of.slot) + of.offset * ir::size_of(slot.dtype);
    }
    if (!memory.bytes) {
      int64_t extent = 1;
      for (size_t d = 0; d < slot.sizes.size(); ++d) extent += (slot.sizes[d] - 1) * slot.strides[d];
      memory.bytes = std::make_shared<std::vector<char>>(
          static_cast<size_t>(std::max<int64_t>(extent, 0) * ir::size_of(slot.dtype)));
      memory.first = memory.bytes->data();
    }
    return memory.first;
  }
  char* element(plan::SlotId id, const std::vector<int64_t>& index) {
    return data(id) + dot_index(program_.slots[id].strides, index) * ir::size_of(program_.slots[id].dtype);
  }
  template <class T>
  static void put(char* at, T value) {
    std::memcpy(at, &value, sizeof value);
  }
  template <class T>
  static T get(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  void fill(plan::SlotId id, const Values& values) {
    size_t next = 0;
    const ir::DType type = program_.slots[id].dtype;
    data(id);
    each_index(program_.slots[id].sizes, [&](const auto& index) {
      const Num value = values[next++];
      char* at = element(id, index);
      if (type == ir::DType::F32)
        put(at, static_cast<float>(value.f));
      else if (type == ir::DType::F64)
        put(at, value.f);
      else if (type == ir::DType::I64)
        put(at, value.i);
      else
        put(at, static_cast<uint8_t>(value.i));
    });
  }
  Values read(plan::SlotId id) {
    Values values;
    const ir::DType type = program_.slots[id].dtype;
    each_index(program_.slots[id].sizes, [&](const auto& index) {
      const char* at = element(id, index);
      if (type == ir::DType::F32)
        values.push_back({get<float>(at), 0});
      else if (type == ir::DType::F64)
        values.push_back({get<double>(at), 0});
      else if (type == ir::DType::I64)
        values.push_back({0, get<int64_t>(at)});
      else
        values.push_back({0, get<uint8_t>(at)});
    });
    return values;
  }

  void execute(const plan::HandStep& step) {
    data(step.from);
    slots_[step.to] = step.keeps ? slots_[step.from] : std::exchange(slots_[step.from], {});
  }
  void execute(const plan::AliasStep& step) { aliases_[step.slot] = {step.base, step.offset}; }
  void execute(const plan::FreeStep& step) {
    if (step.slot != plan::kNoSlot) freed_.push_back(std::exchange(slots_[step.slot], {}));
  }
  void execute(const plan::OwnStep&) {}
  void execute(const plan::GuardStep&) {}
  void execute(const plan::NumberStep&) { FAIL() << "no capture gives these programs numbers"; }
  void execute(const plan::LoopStep& step) {
    plan::for_each_round(step, [&](const plan::KernelStep& launch) { execute(launch); });
  }
  void execute(const plan::ParallelStep& step) {
    for (const plan::KernelStep& launch : step.launches) execute(launch);
  }
  Values call(const std::string& name, const std::vector<plan::SlotId>& operands) {
    std::vector<Values> in;
    std::vector<std::vector<int64_t>> sizes;
    for (const plan::SlotId id : operands) {
      in.push_back(read(id));
      sizes.push_back(program_.slots[id].sizes);
    }
    return fake_call(name, in, sizes);
  }
  void execute(const plan::ExternStep& step) {
    const ir::ExternAttr& attr = graph_.externs[step.external];
    const Values out = call(attr.name, step.operands);
    if (!attr.written.empty()) fill(step.operands[0], out);
    if (step.results.empty() || step.results[0] == plan::kNoSlot) return;
    if (attr.kind == ir::ExternKind::View || !attr.written.empty())
      slots_[step.results[0]].bytes = arena_owner_, slots_[step.results[0]].first = data(step.operands[0]);
    else
      fill(step.results[0], out);
  }
  void execute(const plan::ContractStep& step) {
    fill(step.result, call(graph_.contracts.at(step.call).name, step.operands));
    const plan::Slot& slot = program_.slots[step.result];
    const int64_t rows = slot.sizes[0], tile = step.rows_per_tile > 0 ? step.rows_per_tile : std::max<int64_t>(rows, 1);
    for (int64_t first = 0; first < rows; first += tile)
      for (plan::KernelStep launch : step.epilogue) {
        if (step.rows_per_tile > 0) {
          const int64_t now = std::min(tile, rows - first);
          launch.units = launch.units / rows * now;
          launch.sizes[0] = now;
          for (size_t k = 0; k < launch.offsets.size(); ++k) launch.offsets[k] += first * launch.strides[k * 2];
        }
        execute(launch);
      }
  }
  void execute(const plan::KernelStep& step) {
    const plan::KernelPlan& plan = program_.kernels[step.kernel];
    std::vector<void*> ptrs;
    for (size_t k = 0; k < step.operands.size(); ++k)
      ptrs.push_back(data(step.operands[k]) + step.offsets[k] * ir::size_of(plan.operands[k].dtype));
    std::vector<uint64_t> scalars;
    for (size_t k = 0; k < step.scalars.size(); ++k) {
      const Num value = (*scalars_)[step.scalars[k]];
      scalars.push_back(plan.scalars[k] == ir::DType::F64 ? std::bit_cast<uint64_t>(value.f)
                                                          : static_cast<uint64_t>(value.i));
    }
    const backend::KernelArgs args{ptrs.data(),     step.sizes.data(),   step.strides.data(), scalars.data(),
                                   scratch_.data(), step.scratch_stride, step.block};
    const int64_t middle = step.units / 2;
    kernels_[step.kernel]->entry(&args, middle, step.units);
    kernels_[step.kernel]->entry(&args, 0, middle);
  }

  const ir::Graph& graph_;
  const plan::Program& program_;
  std::vector<std::shared_ptr<const backend::Kernel>> kernels_;
  std::vector<Memory> slots_, freed_;            // what is freed stays for the views of it
  std::map<plan::SlotId, plan::Place> aliases_;  // that a step made: what they are of
  std::vector<char> arena_, scratch_;
  std::shared_ptr<std::vector<char>> arena_owner_ = std::make_shared<std::vector<char>>();
  const std::vector<Num>* scalars_ = nullptr;
};

std::string difference(const std::vector<Values>& a, const std::vector<Values>& b) {
  for (size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size()) return "sizes differ";
    for (size_t i = 0; i < a[t].size(); ++i) {
      const Num x = a[t][i], y = b[t][i];
      const bool same = x.f == y.f || (std::isnan(x.f) && std::isnan(y.f)) ||
                        std::fabs(x.f - y.f) <= 2e-5 * (1 + std::fabs(x.f)) || std::fabs(x.f) > 1e30;
      if (!same || x.i != y.i)
        return std::to_string(t) + "[" + std::to_string(i) + "]: " + std::to_string(x.f) + "/" + std::to_string(x.i) +
               " against " + std::to_string(y.f) + "/" + std::to_string(y.i);
    }
  }
  return "";
}

TEST(PlanRun, CompiledRandomGraphsAgreeWithTheGraph) {
  int wrong = 0;
  for (uint32_t seed = 100000; seed < 100120 && wrong < 3; ++seed) {
    const ir::Graph g = RandomGraph(seed).make();
    std::mt19937 random(seed);
    std::vector<Values> inputs(g.inputs.size());
    for (ir::NodeId id = 0; id < g.nodes.size(); ++id)
      if (g[id].op == ir::Op::Input)
        for (int64_t i = 0; i < g.layout(id).numel(); ++i)
          inputs[g[id].attr].push_back({static_cast<double>(static_cast<int>(random() % 33)) / 8 - 2, 0});
    const std::vector<Num> scalars{{0.75, 3}, {1.5, 2}};
    plan::PlanOptions options;
    options.lanes = backend::lanes_for(backend::host_isa());
    options.costs.tile_bytes = seed % 2 ? 32 : 1 << 19;
    options.own_products = seed / 2 % 2;
    const plan::Program program = plan::plan(g, options);
    const Outcome expected = run_graph(g, inputs, scalars);
    const Outcome got = Runner(g, program, backend::host_isa()).run(inputs, scalars);
    const std::string fault = difference(expected.outputs, got.outputs) + difference(expected.inputs, got.inputs);
    EXPECT_EQ(fault, "") << "seed " << seed << "\n" << ir::print(g) << plan::text(program);
    wrong += !fault.empty();
  }
}

/// What a bfloat16 operation gives is the same whoever else reads a part of it in the same kernel.
TEST(PlanRun, AHalfsExpHasOneValueInEveryKernel) {
  using ir::DType, ir::NodeId, ir::Op;
  constexpr int64_t n = 100003;
  std::vector<Values> inputs(1);
  for (int64_t i = 0; i < n; ++i)
    inputs[0].push_back({static_cast<double>(static_cast<float>(i - n / 2) * 1.713e-3f), 0});
  for (const bool quotient : {false, true})
    for (const backend::Isa isa : {backend::Isa::Avx2, backend::Isa::Avx512}) {
      if (!backend::host_has(isa)) continue;
      std::vector<Values> results;
      for (const bool read_twice : {false, true}) {
        ir::Graph g;
        const NodeId x = g.input(DType::F32, {{n}, {1}}, {"x"});
        const NodeId exp = g.pointwise(Op::Exp, {x});
        const NodeId sum = g.pointwise(Op::Add, {g.constant(DType::F32, 1.0), exp});
        const NodeId made = quotient ? g.pointwise(Op::Div, {x, sum}) : exp;
        if (read_twice) g.outputs.push_back(g.pointwise(Op::Neg, {exp}));
        g.outputs.push_back(g.convert(g.convert(made, DType::BF16), DType::F32));
        const ir::Graph passed = pass::run(g, {});
        plan::PlanOptions options;
        options.lanes = backend::lanes_for(isa);
        const plan::Program program = plan::plan(passed, options);
        EXPECT_EQ(program.kernels.size(), 1u);
        results.push_back(Runner(passed, program, isa).run(inputs, {}).outputs.back());
      }
      int differ = 0;
      for (size_t i = 0; i < n; ++i) differ += results[0][i].f != results[1][i].f;
      EXPECT_EQ(differ, 0) << backend::text(isa) << (quotient ? ", in a quotient" : "");
    }
}

/// The rows that a unit lacks at the end are its last one again, in place too.
TEST(PlanRun, NarrowRowsInPlace) {
  using ir::DType, ir::NodeId, ir::Op;
  for (const backend::Isa isa : {backend::Isa::Avx2, backend::Isa::Avx512})
    for (const DType dtype : {DType::F32, DType::F64})
      for (const int64_t rows : {8, 9, 10, 11})
        for (const int64_t columns : {1, 3, 7, 8, 15}) {
          if (!backend::host_has(isa)) continue;
          ir::Graph g;
          const NodeId x = g.input(dtype, {{rows, 16}, {16, 1}}, {"x"});
          const ir::IndexMap right{{{0, {{0, 1}}}, {1, {{1, 1}}}}};
          const NodeId part = g.view(x, right, {rows, columns});
          g.stores.push_back({0, g.update(x, g.pointwise(Op::Add, {part, part}), right), 1});
          plan::PlanOptions options;
          options.lanes = backend::lanes_for(isa);
          const plan::Program program = plan::plan(g, options);
          EXPECT_EQ(program.kernels[0].rows > 1, columns > 1 && columns <= options.lanes) << plan::text(program);
          std::vector<Values> inputs(1);
          for (int64_t i = 0; i < rows * 16; ++i) inputs[0].push_back({static_cast<double>(i), 0});
          const Outcome expected = run_graph(g, inputs, {}), got = Runner(g, program, isa).run(inputs, {});
          EXPECT_EQ(difference(expected.inputs, got.inputs), "") << rows << " x " << columns << plan::text(program);
        }
}

/// Few columns, forwards and backwards, one for all rows and each row's own: vectors along the rows, which are
/// shuffled.
TEST(PlanRun, PackedRows) {
  using ir::DType, ir::NodeId, ir::Op;
  for (const backend::Isa isa : {backend::Isa::Avx2, backend::Isa::Avx512})
    for (const DType dtype : {DType::F32, DType::F64, DType::U8, DType::I64})
      for (const int64_t columns : {2, 3, 4})
        for (const int64_t rows : {32, 35, 63, 64, 101}) {
          if (!backend::host_has(isa)) continue;
          ir::Graph g;
          const NodeId x = g.input(dtype, {{rows, columns}, {columns, 1}}, {"x"});
          const NodeId y = g.input(dtype, {{columns}, {1}}, {"y"});
          const NodeId z = g.input(dtype, {{rows, columns}, {1, rows}}, {"z"});
          const NodeId back = g.view(x, {{{0, {{0, 1}}}, {columns - 1, {{1, -1}}}}}, {rows, columns});
          const DType type = ir::is_half(dtype) ? DType::F32 : dtype;
          const auto whole = [&](NodeId id) { return g.convert(g.expand(id, {rows, columns}), type); };
          const NodeId sum = g.pointwise(Op::Add, {g.pointwise(Op::Mul, {whole(back), whole(y)}), whole(z)});
          g.outputs = {g.convert(sum, dtype)};
          plan::PlanOptions options;
          options.lanes = backend::lanes_for(isa);
          const plan::Program program = plan::plan(g, options);
          ASSERT_EQ(program.kernels.size(), 1u) << plan::text(program);
          const plan::KernelPlan& kernel = program.kernels[0];
          EXPECT_EQ(std::ranges::count_if(kernel.operands,
                                          [](const auto& it) { return it.strides[1] == plan::StrideClass::Packed; }),
                    2)
              << plan::text(program);
          EXPECT_EQ(plan::verify(kernel), "");
          const auto number = [&](int64_t n) { return Num{static_cast<double>(n), n}; };
          std::vector<Values> inputs(3);
          for (int64_t i = 0; i < rows * columns; ++i) {
            inputs[0].push_back(number(i % 11));
            inputs[2].push_back(number(i % 7));
          }
          for (int64_t i = 0; i < columns; ++i) inputs[1].push_back(number(i + 2));
          const Outcome expected = run_graph(g, inputs, {}), got = Runner(g, program, isa).run(inputs, {});
          EXPECT_EQ(difference(expected.outputs, got.outputs), "") << rows << " x " << columns << plan::text(program);
        }
}

}  // namespace
}  // namespace fastjit::test
