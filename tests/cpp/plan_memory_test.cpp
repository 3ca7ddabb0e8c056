// What a program needs at most beside the caller's tensors: lifetimes, memory that is taken over, Cats that grow.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "plan/memory.h"
#include "plan/program.h"
#include "plan/repeat.h"
#include "plan_graphs.h"

namespace fastjit::test {
namespace {

using ir::Graph;
using ir::NodeId;
using ir::Op;

/// Plays the steps on storages that die with the last slot which holds them, as tensors do.
class Ledger {
 public:
  explicit Ledger(const Graph& graph, const plan::Program& program) : graph_(graph), program_(program) {
    plan::for_each_step(program, [this](const auto& step) { take(step); });
  }
  int64_t peak() const { return peak_ + program_.arena_bytes; }
  std::set<plan::SlotId> left() const {
    std::set<plan::SlotId> result;
    for (const auto& [slot, storage] : storage_of_) result.insert(slot);
    return result;
  }

 private:
  static int64_t bytes(const plan::Slot& slot) {
    int64_t extent = 1;
    for (size_t d = 0; d < slot.sizes.size(); ++d) extent += (slot.sizes[d] - 1) * slot.strides[d];
    return extent * ir::size_of(slot.dtype);
  }
  void hold(plan::SlotId id) {
    if (id == plan::kNoSlot || storage_of_.contains(id)) return;
    const plan::Slot& slot = program_.slots[id];
    if (slot.kind == plan::SlotKind::Input || slot.kind == plan::SlotKind::Temp) return;
    if (slot.kind == plan::SlotKind::Alias) {
      hold(slot.base);
      if (const auto base = storage_of_.find(slot.base); base != storage_of_.end()) share(id, base->second);
      return;
    }
    share(id, id);
    now_ += bytes(slot);
    peak_ = std::max(peak_, now_);
  }
  void share(plan::SlotId id, plan::SlotId storage) {
    storage_of_[id] = storage;
    ++holders_[storage];
  }
  void take(const plan::KernelStep& s) {
    std::ranges::for_each(s.operands, [this](plan::SlotId id) { hold(id); });
  }
  void take(const plan::LoopStep& s) {
    plan::for_each_round(s, [this](const plan::KernelStep& launch) { take(launch); });
  }
  void take(const plan::AliasStep& s) {
    take(plan::FreeStep{s.slot});
    hold(s.base);
    if (const auto base = storage_of_.find(s.base); base != storage_of_.end()) share(s.slot, base->second);
  }
  void take(const plan::HandStep& s) {
    take(plan::FreeStep{s.to});
    hold(s.from);
    if (const auto from = storage_of_.find(s.from); from != storage_of_.end()) share(s.to, from->second);
    if (!s.keeps) take(plan::FreeStep{s.from});
  }
  void take(const plan::ParallelStep& s) {
    for (const plan::KernelStep& launch : s.launches) take(launch);
  }
  void take(const plan::ExternStep& s) {
    for (const plan::SlotId id : s.operands) hold(id);
    const bool view = graph_.externs[s.external].kind == ir::ExternKind::View;
    for (const plan::SlotId id : s.results)
      if (view && id != plan::kNoSlot && storage_of_.contains(s.operands[0]))
        share(id, storage_of_.at(s.operands[0]));
      else
        hold(id);
  }
  void take(const plan::ContractStep& s) {
    for (const plan::SlotId id : s.operands) hold(id);
    hold(s.result);
    for (const plan::KernelStep& launch : s.epilogue) take(launch);
  }
  void take(const plan::GuardStep&) {}
  void take(const plan::NumberStep& s) { hold(s.result); }
  void take(const plan::OwnStep& s) { EXPECT_EQ(holders_[storage_of_.at(s.slot)], 1) << plan::text(program_); }
  void take(const plan::FreeStep& s) {
    const auto found = storage_of_.find(s.slot);  // none: the arena, or an alias that was not made
    if (found == storage_of_.end()) return;
    const plan::SlotId storage = found->second;
    storage_of_.erase(found);
    if (--holders_[storage] == 0) now_ -= bytes(program_.slots[storage]);
  }

  const Graph& graph_;
  const plan::Program& program_;
  std::map<plan::SlotId, plan::SlotId> storage_of_;
  std::map<plan::SlotId, int> holders_;
  int64_t now_ = 0, peak_ = 0;
};

/// A call of torch's with a new result of these sizes.
NodeId call(Graph& g, NodeId x, std::vector<ir::Dim> sizes = {}) {
  if (sizes.empty()) sizes = {g.sizes(x).begin(), g.sizes(x).end()};
  ir::ExternAttr attr;
  attr.name = "fake::op";
  attr.operands = {x};
  const ir::Layout layout{sizes, ir::row_major(sizes)};
  return g.result(g.external(attr), 0, ir::DType::F32, layout);
}

constexpr int64_t kValue = 64 * 1024;  // bytes of [64, 256]

int64_t peak(const Graph& g, const plan::PlanOptions& options = {}) {
  const plan::Program p = plan::plan(g, options);
  const Ledger ledger(g, p);
  EXPECT_EQ(ledger.left(), std::set<plan::SlotId>(p.outputs.begin(), p.outputs.end())) << plan::text(p);
  return ledger.peak();
}

TEST(PlanMemory, WhatACallMadeIsWrittenOverByTheKernelThatReadsItLast) {
  Graph g;
  NodeId x = tensor(g, {64, 256});
  for (int i = 0; i < 6; ++i) x = call(g, g.pointwise(Op::Tanh, {x}));
  g.outputs = {g.pointwise(Op::Neg, {x})};
  EXPECT_EQ(peak(g), 2 * kValue) << "a call's operand and its result";
}

TEST(PlanMemory, AResidualStreamIsWrittenOver) {
  Graph g;
  NodeId x = call(g, tensor(g, {64, 256}));
  for (int i = 0; i < 6; ++i) {
    const NodeId branch = call(g, g.pointwise(Op::Tanh, {call(g, g.pointwise(Op::Tanh, {x}))}));
    x = g.pointwise(Op::Add, {x, branch});
  }
  g.outputs = {call(g, x)};
  EXPECT_EQ(peak(g), 3 * kValue) << "the stream, and the operand and the result of a call beside it";
}

TEST(PlanMemory, AnAliasDiesWithWhatItIsOf) {
  Graph g;
  NodeId x = tensor(g, {64, 256});
  for (int i = 0; i < 6; ++i) x = g.reshape(call(g, g.reshape(g.pointwise(Op::Tanh, {x}), {256, 64})), {64, 256});
  g.outputs = {g.pointwise(Op::Neg, {x})};
  EXPECT_EQ(peak(g), 2 * kValue);
}

TEST(PlanMemory, LargeTemporariesLieIdleBesideNoCall) {
  Graph g;
  const NodeId x = tensor(g, {64, 256});
  NodeId large = x;
  for (int i = 0; i < 3; ++i) {  // sums that need the whole value before: temporaries
    const NodeId sum = g.reduce(ir::ReduceKind::Sum, g.pointwise(Op::Tanh, {large}), {0}, ir::DType::F32);
    large = g.pointwise(Op::Exp, {g.pointwise(Op::Sub, {large, g.expand(g.reshape(sum, {1, 256}), {64, 256})})});
  }
  const NodeId small = g.reduce(ir::ReduceKind::Sum, large, {1}, ir::DType::F32);
  NodeId grown = g.pointwise(Op::Neg, {small});
  for (int i = 0; i < 2; ++i) grown = call(g, grown, {256, 256});
  g.outputs = {g.reduce(ir::ReduceKind::Sum, grown, {0, 1}, ir::DType::F32)};
  EXPECT_LT(peak(g), 2 * 4 * kValue + kValue) << "the two large results, and little else";
}

/// Each layer reads all that the layers before it made.
Graph dense(int layers, int64_t batch) {
  Graph g;
  std::vector<NodeId> parts{call(g, tensor(g, {batch, 16, 256}))};
  for (int i = 0; i < layers; ++i) {
    const NodeId all = parts.size() == 1 ? parts[0] : g.cat(parts, 1);
    parts.push_back(call(g, g.pointwise(Op::Tanh, {all}), {batch, 16, 256}));
  }
  g.outputs = {g.reduce(ir::ReduceKind::Sum, g.cat(parts, 1), {0, 1, 2}, ir::DType::F32)};
  return g;
}

TEST(PlanMemory, TheArenaIsNotHeldThroughCallsThatNeedNothingInIt) {
  Graph g;
  NodeId x = tensor(g, {64, 256});
  auto gate = [&](ir::ReduceKind kind) {
    const NodeId rows = g.pointwise(Op::Exp, {g.reduce(kind, x, {1}, ir::DType::F32)});
    return g.expand(g.reshape(rows, {64, 1}), {64, 256});
  };
  for (int i = 0; i < 4; ++i) {
    const NodeId sum = gate(ir::ReduceKind::Sum), most = gate(ir::ReduceKind::Max);  // 256 bytes each
    x = call(g, g.pointwise(Op::Mul, {g.pointwise(Op::Mul, {call(g, x), sum}), most}));
  }
  g.outputs = {x};
  plan::PlanOptions options;
  auto drops = [&](int64_t own_bytes) {
    options.own_bytes = own_bytes;
    const plan::Program p = plan::plan(g, options);
    EXPECT_EQ(p.arena_bytes, 512) << plan::text(p);
    int64_t count = 0;
    plan::for_each_step(p, [&](const auto& step) {
      if constexpr (std::is_same_v<decltype(step), const plan::FreeStep&>) count += step.slot == plan::kNoSlot;
    });
    return count;
  };
  EXPECT_EQ(drops(300), 4);
  EXPECT_EQ(drops(600), 0) << "so small an arena is not worth it";
}

TEST(PlanMemory, ACatThatGrowsIsOneBuffer) {
  constexpr int64_t kPart = 16 * 256 * 4;
  for (const int64_t batch : {1, 3}) {
    const Graph g = dense(12, batch);
    const plan::Program p = plan::plan(g, {});
    EXPECT_LE(Ledger(g, p).peak(), (13 + 12 + 2) * kPart * batch + 4096) << "batch " << batch;
    int64_t written = 0;
    plan::for_each_step(p, [&](const auto& step) {
      for (const plan::KernelStep& s : plan::launches_of(step))
        written += plan::traffic(p.kernels[s.kernel], s).written;
    });
    EXPECT_LE(written, (13 + 13 * 12 / 2) * kPart * batch + 4096) << "each part once, and what each layer's call reads";
  }
}

/// Layers that torch's library computes the products of are one loop, which frees in each round what the layers freed.
TEST(PlanMemory, ALoopOfLayersHoldsNoMoreThanTheLayers) {
  const auto layers = [](int count) {
    Graph g;
    NodeId x = tensor(g, {64, 256});
    for (int i = 0; i < count; ++i) {
      const NodeId w = tensor(g, {256, 256});
      const NodeId y = g.pointwise(Op::Tanh, {product(g, x, g.view(w, {{{0, {{1, 1}}}, {0, {{0, 1}}}}}, {256, 256}))});
      x = g.pointwise(Op::Add, {x, product(g, y, tensor(g, {256, 256}))});
    }
    g.outputs = {x};
    return g;
  };
  const auto is_loop = [](const plan::Step& step) { return std::holds_alternative<plan::RepeatStep>(step); };
  const Graph few = layers(3);
  const int64_t least = Ledger(few, plan::plan(few, {})).peak();
  EXPECT_GE(least, 2 * kValue);
  std::set<size_t> steps, slots;
  for (const int count : {20, 40, 80}) {
    const Graph g = layers(count);
    const plan::Program p = plan::plan(g, {});
    EXPECT_EQ(std::ranges::count_if(p.steps, is_loop), 1) << plan::text(p);
    EXPECT_EQ(Ledger(g, p).peak(), least) << plan::text(p);
    EXPECT_EQ(Ledger(g, p).left(), std::set<plan::SlotId>(p.outputs.begin(), p.outputs.end())) << plan::text(p);
    steps.insert(p.steps.size());
    slots.insert(p.slots.size() - g.inputs.size());
  }
  EXPECT_EQ(steps.size(), 1u);
  EXPECT_EQ(slots.size(), 1u);
}

/// What an epilogue needs is made when the product's turn comes, not before the first of all products.
TEST(PlanMemory, WhatAnEpilogueNeedsIsMadeWhenItsTurnComes) {
  Graph g;
  NodeId x = tensor(g, {96, 64});
  for (int i = 0; i < 6; ++i) {
    const NodeId scale = g.pointwise(Op::Exp, {tensor(g, {64})});
    x = g.pointwise(Op::Mul, {product(g, x, tensor(g, {64, 64})), g.expand(g.reshape(scale, {1, 64}), {96, 64})});
  }
  g.outputs = {x};
  const plan::Program p = plan::plan(g, {});
  EXPECT_EQ(p.arena_bytes, 64 * 4) << "one scale at a time\n" << plan::text(p);
}

/// Forty products of kernels' own, each with a factor that is made of what is there from the start: it waits until it
/// is next.
TEST(PlanMemory, WhatIsReadyEarlyWaitsForItsTurn) {
  constexpr int64_t kSize = 128, kBytes = kSize * kSize * 4;
  const auto seen = [](Graph& g, NodeId factor, uint8_t row, uint8_t column) {
    return g.view(factor, {{{0, {{row, 1}}}, {0, {{column, 1}}}}}, {kSize, kSize, kSize});
  };
  Graph g;
  NodeId x = tensor(g, {kSize, kSize});
  for (int i = 0; i < 40; ++i) {
    const NodeId scale = g.reduce(ir::ReduceKind::Sum, tensor(g, {8, kSize}), {0}, ir::DType::F32);
    const NodeId early = g.pointwise(Op::Exp, {g.pointwise(Op::Mul, {tensor(g, {kSize, kSize}), scale})});
    x = g.dot(seen(g, x, 0, 2), seen(g, early, 2, 1), {2});
  }
  g.outputs = {x};
  const plan::Program p = plan::plan(g, {});
  EXPECT_LT(Ledger(g, p).peak(), 16 * kBytes) << plan::text(p);
}

/// Zeros that several tensors begin with are filled one by one, each where it is written over.
TEST(PlanMemory, ZerosAreFilledWhereTheyAreWrittenOver) {
  Graph g;
  const NodeId zeros = g.expand(g.constant(ir::DType::F32, 0), {66, 256});
  NodeId x = tensor(g, {16, 256});
  for (int i = 0; i < 12; ++i) {
    const NodeId placed = g.update(zeros, x, {{{20, {{0, 1}}}, {0, {{1, 1}}}}});
    const auto rows = [&](int64_t from) { return g.view(placed, {{{from, {{0, 1}}}, {0, {{1, 1}}}}}, {16, 256}); };
    x = product(g, g.pointwise(Op::Add, {rows(18), rows(22)}), tensor(g, {256, 256}));
  }
  g.outputs = {x};
  const plan::Program p = plan::plan(g, {});
  EXPECT_LT(Ledger(g, p).peak(), 5 * 66 * 256 * 4) << plan::text(p);
}

TEST(Arena, PiecesThatAreAliveTogetherNeverOverlapAtOtherSizes) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const bool crowded = round % 20 == 0;  // more pieces alive at once than the packer looks at
    ir::Symbols symbols;
    const ir::Symbols::Scope scope(&symbols);
    const std::vector<ir::Dim> dims{symbols.add(40, "n"), symbols.add(300, "m"), 64, 1000};
    std::vector<plan::Piece> pieces(crowded ? 300 : 1 + random() % 30);
    std::vector<ir::Dim> sizes;
    for (plan::Piece& piece : pieces) {
      sizes.push_back(dims[random() % 4] * (random() % 3 ? ir::Dim(1 + random() % 5) : dims[random() % 4]));
      piece.bytes = sizes.back().hint();
      piece.first = static_cast<int64_t>(random() % 40);
      piece.last = piece.first + static_cast<int64_t>(random() % (crowded ? 40 : 10));
    }
    plan::pack_arena(pieces);
    const std::vector<ir::Dim> offsets = plan::offsets_of(pieces, sizes);
    std::vector<uint32_t> wanted;
    for (const ir::Dim dim : offsets) wanted.push_back(dim.expr());
    for (const ir::Dim dim : sizes) wanted.push_back(dim.expr());
    const ir::SizeCode code = symbols.code(wanted);
    for (int sample = 0; sample < 20; ++sample) {
      std::vector<int64_t> registers{int64_t{2} << random() % 12, static_cast<int64_t>(2 + random() % 2000)};
      if (sample == 0) registers = {40, 300};
      registers.resize(code.registers());
      ASSERT_TRUE(code.run(registers.data())) << "no guards";
      const auto at = [&](ir::Dim dim) { return dim.is_symbolic() ? registers[code.place[dim.expr()]] : dim.hint(); };
      for (size_t i = 0; i < pieces.size(); ++i) {
        EXPECT_EQ(at(offsets[i]) % 64, 0);
        EXPECT_LE(at(offsets[i]) + at(sizes[i]), at(offsets.back()));
        for (size_t j = 0; j < i; ++j) {
          const bool together = pieces[i].first <= pieces[j].last && pieces[j].first <= pieces[i].last;
          const bool apart =
              at(offsets[i]) + at(sizes[i]) <= at(offsets[j]) || at(offsets[j]) + at(sizes[j]) <= at(offsets[i]);
          EXPECT_TRUE(!together || apart) << i << " and " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fastjit::test
