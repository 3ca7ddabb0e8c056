#pragma once
// Runs a program step by step on plain memory, with the arithmetic of reference.h: the two differ by the order of sums
// only.
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "plan/program.h"
#include "plan/repeat.h"
#include "reference.h"

namespace fastjit::test {

inline std::vector<Values> make_inputs(const ir::Graph& g, std::mt19937& random) {
  std::vector<Values> inputs(g.inputs.size());
  for (ir::NodeId id = 0; id < g.nodes.size(); ++id)
    if (g[id].op == ir::Op::Input)
      for (int64_t i = 0; i < g.layout(id).numel(); ++i)
        inputs[g[id].attr].push_back({static_cast<double>(static_cast<int>(random() % 33)) / 8 - 2, 0});
  return inputs;
}

/// Empty where they are alike, but for the order of sums.
inline std::string difference(const std::vector<Values>& a, const std::vector<Values>& b, const char* what) {
  for (size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size()) return std::string(what) + " " + std::to_string(t) + ": sizes differ";
    for (size_t i = 0; i < a[t].size(); ++i) {
      const Num x = a[t][i], y = b[t][i];
      const bool same =
          x.f == y.f || (std::isnan(x.f) && std::isnan(y.f)) || std::fabs(x.f - y.f) <= 1e-9 * (1 + std::fabs(x.f));
      if (!same || x.i != y.i)
        return std::string(what) + " " + std::to_string(t) + "[" + std::to_string(i) + "]: " + std::to_string(x.f) +
               "/" + std::to_string(x.i) + " against " + std::to_string(y.f) + "/" + std::to_string(y.i);
    }
  }
  return "";
}

inline std::string difference(const Outcome& expected, const Outcome& got) {
  std::string fault = difference(expected.outputs, got.outputs, "output");
  if (fault.empty()) fault = difference(expected.inputs, got.inputs, "input");
  if (fault.empty() && expected.guards.size() != got.guards.size()) fault = "a guard is missing";
  if (fault.empty()) fault = difference(expected.guards, got.guards, "guard");
  return fault;
}

/// Runs programs. Every load checks that its slot is alive; temporaries share one arena of cells, one a byte, where a
/// store spoils the bytes behind its first.
class Machine {
 public:
  Machine(const ir::Graph& graph, const plan::Program& program, uint32_t seed)
      : graph_(graph), program_(program), random_(seed) {}

  Outcome run(const std::vector<Values>& inputs, const std::vector<Num>& scalars) {
    scalars_ = scalars;
    arena_ = std::make_shared<Values>(static_cast<size_t>(program_.arena_bytes));
    tensors_.resize(program_.slots.size());
    for (plan::SlotId id = 0; id < program_.slots.size(); ++id) {
      const plan::Slot& slot = program_.slots[id];
      if (slot.kind != plan::SlotKind::Input) continue;
      allocate(id);
      fill(id, inputs[slot.index]);
    }
    plan::for_each_step(program_, [this](const auto& step) { execute(step); });
    Outcome outcome;
    outcome.guards = std::move(guards_);
    for (const plan::SlotId id : program_.outputs) outcome.outputs.push_back(read(id));
    outcome.inputs = inputs;
    for (plan::SlotId id = 0; id < program_.slots.size(); ++id)
      if (program_.slots[id].kind == plan::SlotKind::Input) outcome.inputs[program_.slots[id].index] = read(id);
    return outcome;
  }

 private:
  struct Tensor {
    std::shared_ptr<Values> cells;
    int64_t offset = 0, scale = 1;
    bool freed = false;
  };

  void allocate(plan::SlotId id) {
    const plan::Slot& slot = program_.slots[id];
    int64_t extent = 1;
    for (size_t d = 0; d < slot.sizes.size(); ++d) extent += (slot.sizes[d] - 1) * slot.strides[d];
    tensors_[id].cells = std::make_shared<Values>(static_cast<size_t>(std::max<int64_t>(extent, 0)));
  }
  Tensor& tensor(plan::SlotId id) {
    const plan::Slot& slot = program_.slots[id];
    Tensor& t = tensors_[id];
    if (t.freed) throw std::logic_error("slot s" + std::to_string(id) + " is used after it was freed");
    if (slot.kind == plan::SlotKind::Alias) {
      const auto made = aliases_.find(id);
      const plan::Place of = made == aliases_.end() ? plan::Place{slot.base, slot.offset} : made->second;
      t = tensor(of.slot);
      t.offset += of.offset;
    } else if (slot.kind == plan::SlotKind::Temp) {
      if (slot.offset % 64) throw std::logic_error("a temporary is not aligned");
      t = {arena_, slot.offset, ir::size_of(slot.dtype)};
    } else if (!t.cells) {
      if (slot.kind != plan::SlotKind::Tensor)
        throw std::logic_error("slot s" + std::to_string(id) + " is used before it is made");
      allocate(id);
    }
    return t;
  }
  Num& cell(Tensor& t, int64_t element) {
    return t.cells->at(static_cast<size_t>(t.scale == 1 ? t.offset + element : t.offset + element * t.scale));
  }
  void write_cell(Tensor& t, int64_t element, Num value) {
    Num* first = &cell(t, element);
    if (t.cells == arena_)
      for (int64_t b = 1; b < t.scale; ++b) (&cell(t, element))[b] = Num{};
    *first = value;
  }
  Values read(plan::SlotId id) {
    Values out;
    Tensor& t = tensor(id);
    each_index(program_.slots[id].sizes,
               [&](const auto& index) { out.push_back(cell(t, dot_index(program_.slots[id].strides, index))); });
    if (ir::is_floating(program_.slots[id].dtype))
      for (Num& number : out) number.i = 0;
    return out;
  }
  void fill(plan::SlotId id, const Values& values) {
    Tensor& t = tensor(id);
    size_t next = 0;
    each_index(program_.slots[id].sizes,
               [&](const auto& index) { write_cell(t, dot_index(program_.slots[id].strides, index), values[next++]); });
  }

  void execute(const plan::HandStep& step) {
    tensors_[step.to] = tensor(step.from);
    if (!step.keeps) tensors_[step.from] = {};
  }
  void execute(const plan::AliasStep& step) { aliases_[step.slot] = {step.base, step.offset}; }
  // An alias that is wanted again is made again.
  void execute(const plan::FreeStep& step) {
    if (step.slot == plan::kNoSlot) {
      arena_ = std::make_shared<Values>(static_cast<size_t>(program_.arena_bytes));
      return;
    }
    tensors_[step.slot] = {};
    tensors_[step.slot].freed = program_.slots[step.slot].kind != plan::SlotKind::Alias;
  }
  // The planner keeps nothing that shares the memory, so that no copy is made.
  void execute(const plan::OwnStep& step) {
    const auto& cells = tensor(step.slot).cells;
    for (plan::SlotId id = 0; id < tensors_.size(); ++id)
      if (id != step.slot && tensors_[id].cells == cells)
        throw std::logic_error("s" + std::to_string(step.slot) + " is written over, and s" + std::to_string(id) +
                               " lies there");
  }
  void execute(const plan::NumberStep&) { FAIL() << "no graph here has numbers"; }
  void execute(const plan::GuardStep& step) {
    if (stored_) throw std::logic_error("an input is stored before a guard");
    if (step.guard != guards_.size()) throw std::logic_error("a guard is not in its place");
    Values values;
    Tensor& t = tensor(step.slot);
    each_index(step.sizes,
               [&](const auto& index) { values.push_back(cell(t, step.offset + dot_index(step.strides, index))); });
    if (ir::is_floating(program_.slots[step.slot].dtype))
      for (Num& number : values) number.i = 0;
    guards_.push_back(std::move(values));
  }
  void execute(const plan::ParallelStep& step) {
    std::vector<const plan::KernelStep*> launches;
    for (const plan::KernelStep& launch : step.launches) launches.push_back(&launch);
    std::shuffle(launches.begin(), launches.end(), random_);
    for (const plan::KernelStep* launch : launches) execute(*launch);
  }
  void execute(const plan::LoopStep& step) {
    if (step.inside) return execute_inside(step);
    if (!step.waits.empty()) return execute_team(step);
    plan::for_each_round(step, [&](const plan::KernelStep& launch) { execute(launch); });
  }
  /// Of a product made for all rounds the left factor has more rows than eager's.
  Values call(const std::string& name, const std::vector<ir::NodeId>& nodes, const std::vector<plan::SlotId>& operands,
              size_t left = SIZE_MAX) {
    std::vector<Values> in;
    std::vector<std::vector<int64_t>> sizes;
    for (size_t i = 0; i < operands.size(); ++i) {
      const plan::Slot& slot = program_.slots[operands[i]];
      const ir::Layout& layout = graph_.layout(nodes[i]);
      std::vector<int64_t> wanted = ir::hints(layout.sizes);
      if (i == left) wanted[wanted.size() - 2] = slot.sizes[slot.sizes.size() - 2];
      if (slot.kind == plan::SlotKind::Temp || slot.sizes != wanted || slot.strides != ir::hints(layout.strides))
        throw std::logic_error("an extern call did not get eager's tensor");
      in.push_back(read(operands[i]));
      sizes.push_back(slot.sizes);
    }
    return fake_call(name, in, sizes);
  }
  void execute(const plan::ExternStep& step) {
    const ir::ExternAttr& attr = graph_.externs[step.external];
    const Values out = call(attr.name, attr.operands, step.operands);
    if (!attr.written.empty()) fill(step.operands[0], out);
    if (step.results.empty() || step.results[0] == plan::kNoSlot) return;
    const plan::SlotId result = step.results[0];
    if (attr.kind == ir::ExternKind::View || !attr.written.empty()) {
      tensors_[result] = tensor(step.operands[0]);
    } else {
      tensors_[result].freed = false;
      allocate(result);
      fill(result, out);
    }
  }
  void execute(const plan::ContractStep& step) {
    const ir::ContractAttr& attr = graph_.contracts.at(step.call);
    const Values out = call(attr.name, attr.operands, step.operands, step.operands.size() - 2);
    tensors_[step.result].freed = false;
    const plan::Slot& slot = program_.slots[step.result];
    if (slot.kind != plan::SlotKind::Tensor || slot.strides != row_major(slot.sizes))
      throw std::logic_error("a product needs a contiguous tensor");
    Tensor& t = tensor(step.result);
    const int64_t rows = slot.sizes[0], width = slot.sizes[1];
    const int64_t tile = step.rows_per_tile > 0 ? step.rows_per_tile : std::max<int64_t>(rows, 1);
    for (int64_t first = 0; first < rows; first += tile) {
      const int64_t last = std::min(rows, first + tile);
      for (int64_t i = first * width; i < last * width; ++i) write_cell(t, i, out[static_cast<size_t>(i)]);
      for (plan::KernelStep launch : step.epilogue) {
        if (step.rows_per_tile > 0) {
          launch.sizes[0] = last - first;
          for (size_t k = 0; k < launch.offsets.size(); ++k)
            launch.offsets[k] += first * launch.strides[k * launch.sizes.size()];
        }
        execute(launch);
      }
    }
  }

  /// Slots of tensors that live one after the other are one: what only stores to it makes the next.
  void make_again(const plan::KernelPlan& kernel, const plan::KernelStep& step) {
    std::vector<bool> loaded(step.operands.size(), false);
    for (const plan::Instr& instr : kernel.code)
      if (plan::is_load(instr)) loaded[instr.imm] = true;
    for (size_t k = 0; k < step.operands.size(); ++k)
      if (kernel.operands[k].output && !loaded[k]) tensors_[step.operands[k]].freed = false;
  }

  void execute(const plan::KernelStep& step) {
    const plan::KernelPlan& kernel = program_.kernels[step.kernel];
    if (const std::string fault = plan::verify(kernel); !fault.empty()) throw std::logic_error(fault);
    const size_t rank = step.sizes.size(), kept = static_cast<size_t>(kernel.kept());
    make_again(kernel, step);
    for (size_t k = 0; k < kernel.operands.size(); ++k)
      for (size_t d = 0; d < rank; ++d) {
        const int64_t stride = step.strides[k * rank + d];
        const plan::StrideClass expected = kernel.operands[k].strides[d];
        if ((expected == plan::StrideClass::Zero && stride != 0) ||
            (expected == plan::StrideClass::Unit && stride != 1) ||
            (expected == plan::StrideClass::Packed &&
             (stride != kernel.rows || step.sizes[static_cast<size_t>(kernel.row_dim())] != kernel.rows)) ||
            (expected == plan::StrideClass::Back && stride != -1))
          throw std::logic_error("a stride is not of its class");
      }
    const std::vector<int64_t> outer(step.sizes.begin(), step.sizes.begin() + static_cast<std::ptrdiff_t>(kept));
    const std::vector<int64_t> inner(step.sizes.begin() + static_cast<std::ptrdiff_t>(kept),
                                     step.sizes.end() - (kernel.is_over_time() ? 1 : 0));
    std::vector<std::vector<int64_t>> points;
    each_index(outer, [&](const auto& index) { points.push_back(index); });
    if (kernel.vec_is_kept() && (step.block <= 0 || (step.block % kernel.lanes != 0 && step.block != outer.back())))
      throw std::logic_error("a block is not whole vectors");
    if (kernel.tile > 0 && step.block != kernel.tile) throw std::logic_error("a block is not a tile");
    const int64_t units = plan::unit_count(kernel, step.sizes.data(), step.block);
    if (units != step.units && step.grain == 0) throw std::logic_error("wrong number of units");
    std::shuffle(points.begin(), points.end(), random_);
    if (!kernel.is_over_time()) {
      for (const auto& point : points) run_point(kernel, step, point, inner);
      return;
    }
    if (kernel.is_small()) return run_rounds(kernel, [&](int64_t) { return step; }, points, inner);
    for (const auto& point : points) run_rounds(kernel, [&](int64_t) { return step; }, {point}, inner);
  }

  /// All rounds of these points, of which each reads what the round before handed on.
  template <class StepOfRound>
  void run_rounds(const plan::KernelPlan& kernel, StepOfRound step_of, const std::vector<std::vector<int64_t>>& points,
                  const std::vector<int64_t>& inner) {
    rounds_.emplace();
    const int64_t trip = step_of(0).sizes.back();
    for (rounds_->round = 0; rounds_->round < trip; ++rounds_->round) {
      rounds_->before = std::exchange(rounds_->now, {});
      const plan::KernelStep step = step_of(rounds_->round);
      for (const auto& point : points) run_point(kernel, step, point, inner);
    }
    const plan::KernelStep last = step_of(trip - 1);
    for (const auto& [at, value] : rounds_->now)
      write_cell(tensor(last.operands[at.first]), last.offsets[at.first] + at.second, value);
    rounds_.reset();
  }

  /// Launches of threads that wait for each other here and there: of those between two waits any may come first.
  void execute_team(const plan::LoopStep& loop) {
    std::vector<plan::KernelStep> together;
    const auto run_together = [&] {
      std::shuffle(together.begin(), together.end(), random_);
      for (const plan::KernelStep& launch : together) execute(launch);
      together.clear();
    };
    size_t i = 0;
    plan::for_each_round(loop, [&](const plan::KernelStep& launch) {
      if (loop.waits[i++ % loop.waits.size()]) run_together();
      together.push_back(launch);
    });
    run_together();
  }

  /// One launch that is told where its operands lie in each round.
  void execute_inside(const plan::LoopStep& loop) {
    const plan::KernelPlan& kernel = program_.kernels[loop.body[0].kernel];
    if (const std::string fault = plan::verify(kernel); !fault.empty()) throw std::logic_error(fault);
    const auto& sizes = loop.body[0].sizes;
    const auto kept = static_cast<std::ptrdiff_t>(kernel.kept());
    std::vector<std::vector<int64_t>> points;
    each_index({sizes.begin(), sizes.begin() + kept}, [&](const auto& index) { points.push_back(index); });
    const auto step_of = [&](int64_t round) {
      std::vector<plan::KernelStep> launches = loop.body;
      plan::set_round(loop, round, launches);
      return launches[0];
    };
    run_rounds(kernel, step_of, points, {sizes.begin() + kept, sizes.end() - 1});
  }

  void run_point(const plan::KernelPlan& kernel, const plan::KernelStep& step, const std::vector<int64_t>& point,
                 const std::vector<int64_t>& inner) {
    std::vector<Num> values(kernel.code.size());
    std::vector<std::vector<Num>> scratch(kernel.scratch.size());
    for (const plan::Phase& phase : kernel.phases) {
      std::map<uint32_t, Fold> folds;
      for (const uint32_t id : phase.elem)
        if (kernel.code[id].code == plan::Code::Reduce)
          folds.emplace(id, Fold(kernel.code[id].kind, kernel.code[kernel.code[id].args[0]].dtype));
      size_t at = 0;
      if (kernel.is_row_kernel())
        each_index(inner, [&](const auto& reduced) {
          std::vector<int64_t> index = point;
          index.insert(index.end(), reduced.begin(), reduced.end());
          if (rounds_) index.push_back(rounds_->round);
          for (const uint32_t id : phase.elem) {
            const plan::Instr& instr = kernel.code[id];
            if (instr.code == plan::Code::Reduce)
              folds.at(id).add(plan::arity(instr) == 2 ? Num{values[instr.args[0]].f * values[instr.args[1]].f, 0}
                                                       : values[instr.args[0]]);
            else if (instr.code == plan::Code::Keep)
              scratch[instr.imm].resize(at + 1), scratch[instr.imm][at] = values[instr.args[0]];
            else if (instr.code == plan::Code::Recall)
              values[id] = scratch[instr.imm].at(at);
            else
              values[id] = run_instr(kernel, step, instr, values, index);
          }
          ++at;
        });
      for (const auto& [id, fold] : folds) values[id] = fold.result();
      std::vector<int64_t> index = point;
      index.resize(step.sizes.size(), 0);
      if (rounds_) index.back() = rounds_->round;
      for (const uint32_t id : phase.row) values[id] = run_instr(kernel, step, kernel.code[id], values, index);
    }
  }

  Num run_instr(const plan::KernelPlan& kernel, const plan::KernelStep& step, const plan::Instr& instr,
                const std::vector<Num>& values, const std::vector<int64_t>& index) {
    auto from_first = [&] {
      const size_t rank = index.size();
      int64_t sum = 0;
      for (size_t d = 0; d < rank; ++d) sum += step.strides[instr.imm * rank + d] * index[d];
      return sum;
    };
    auto address = [&] { return step.offsets[instr.imm] + from_first(); };
    switch (instr.code) {
      case plan::Code::Load:
        for (const auto& [from, to] : kernel.carries)
          if (from == instr.imm && rounds_->round > 0) return rounds_->before.at({to, from_first()});
        return cell(tensor(step.operands[instr.imm]), address());
      case plan::Code::Gather: {
        const int64_t further = values[instr.args[0]].i * step.strides[kernel.step_of(instr.imm)];
        return cell(tensor(step.operands[instr.imm]), address() + further);
      }
      case plan::Code::Store:
        stored_ |= program_.slots[step.operands[instr.imm]].kind == plan::SlotKind::Input;
        for (const plan::Carry& carry : kernel.carries)
          if (carry.to == instr.imm) {
            rounds_->now[{carry.to, from_first()}] = values[instr.args[0]];
            return {};
          }
        write_cell(tensor(step.operands[instr.imm]), address(), values[instr.args[0]]);
        return {};
      case plan::Code::Scalar:
        return scalars_[step.scalars[instr.imm]];
      case plan::Code::Const:
        return ir::is_floating(instr.dtype) ? Num{std::bit_cast<double>(instr.imm), 0}
                                            : Num{0, static_cast<int64_t>(instr.imm)};
      case plan::Code::Index:
        return {0, index[instr.imm]};
      case plan::Code::Compute: {
        const Num b = ir::info(instr.op).arity > 1 ? values[instr.args[1]] : Num{},
                  c = ir::info(instr.op).arity > 2 ? values[instr.args[2]] : Num{};
        return apply(instr.op, kernel.code[instr.args[0]].dtype, instr.dtype, values[instr.args[0]], b, c);
      }
      default:
        throw std::logic_error("an instruction stands where it may not");
    }
  }

  const ir::Graph& graph_;
  const plan::Program& program_;
  std::mt19937 random_;
  std::vector<Num> scalars_;
  std::shared_ptr<Values> arena_;
  std::vector<Tensor> tensors_;
  std::map<plan::SlotId, plan::Place> aliases_;  // that a step made: what they are of
  std::vector<Values> guards_;                   // what each guard saw
  struct Rounds {
    using Handed = std::map<std::pair<uint32_t, int64_t>, Num>;  // operand, elements from its first
    int64_t round = 0;
    Handed before, now;
  };
  std::optional<Rounds> rounds_;  // of a kernel over time
  bool stored_ = false;           // some input is written
};

}  // namespace fastjit::test
