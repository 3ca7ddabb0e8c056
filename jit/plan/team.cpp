#include "plan/team.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "ir/strides.h"
#include "plan/work.h"

namespace fastjit::plan {

namespace {

/// Where slots lie: bytes of the arena, or all of what another slot holds.
struct Memory {
  SlotId slot = kNoSlot;  // kNoSlot: the arena
  int64_t begin = 0, end = 0;
};

/// Memory that launches touch.
class Touched {
 public:
  void add(const Memory& memory) {
    if (memory.slot != kNoSlot) {
      slots_.insert(memory.slot);
      return;
    }
    auto [begin, end] = std::pair(memory.begin, memory.end);
    auto next = arena_.upper_bound(begin);
    if (next != arena_.begin() && std::prev(next)->second >= begin) --next;
    for (; next != arena_.end() && next->first <= end; next = arena_.erase(next)) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
    }
    arena_.emplace(begin, end);
  }

  bool meets(const Memory& memory) const {
    if (memory.slot != kNoSlot) return slots_.contains(memory.slot);
    const auto behind = arena_.lower_bound(memory.end);
    return behind != arena_.begin() && std::prev(behind)->second > memory.begin;
  }

 private:
  std::map<int64_t, int64_t> arena_;  // where stretches begin -> where they end, with gaps between them
  std::set<SlotId> slots_;
};

/// More would be threads of several sockets, or more than the process may run at once.
constexpr int kMost = 8;

class Sharer {
 public:
  Sharer(const Program& program, const PlanOptions& options) : program_(program), options_(options) {}

  void run(LoopStep& loop) {
    find_places(loop);
    find_waits(loop);
    loop.team = best_size(loop);
  }

 private:
  struct Launch {
    std::vector<Memory> read, written;
    double alone = 0;  // picoseconds that one thread takes
  };

  Memory memory_of(SlotId id) const {
    while (program_.slots[id].kind == SlotKind::Alias) id = program_.slots[id].base;
    const Slot& slot = program_.slots[id];
    if (slot.kind != SlotKind::Temp) return {id, 0, 0};
    const int64_t extent = ir::extent(slot.sizes, slot.strides);
    return {kNoSlot, slot.offset, slot.offset + extent * ir::size_of(slot.dtype)};
  }

  void add(LoopStep::Operand of, SlotId slot, const LoopStep& loop) {
    const Operand& operand = program_.kernels[loop.body[of.launch].kernel].operands[of.operand];
    Launch& launch = launches_[of.launch];
    launch.read.push_back(memory_of(slot));  // an output may be loaded too
    if (operand.output) launch.written.push_back(memory_of(slot));
  }

  void find_places(const LoopStep& loop) {
    launches_.assign(loop.body.size(), {});
    for (uint32_t i = 0; i < loop.body.size(); ++i) {
      launches_[i].alone = serial_time(program_.kernels[loop.body[i].kernel], loop.body[i], options_.costs);
      for (uint32_t k = 0; k < loop.body[i].operands.size(); ++k) add({i, k}, loop.body[i].operands[k], loop);
    }
    for (size_t column = 0; column < loop.jumps.size(); ++column) {
      SlotId last = kNoSlot;  // most tables take turns between two
      SlotId before = kNoSlot;
      for (size_t at = column; at < loop.table.size(); at += loop.jumps.size()) {
        const SlotId slot = loop.table[at].slot;
        if (slot != last && slot != before) add(loop.jumps[column], slot, loop);
        before = std::exchange(last, slot);
      }
    }
  }

  static bool meet(const std::vector<Memory>& memory, const Touched& touched) {
    work(memory.size());
    return std::ranges::any_of(memory, [&](const Memory& each) { return touched.meets(each); });
  }

  /// A launch waits for all before it, unless it shares no memory with any since the last that waited. The second time
  /// around, what is before the first launch is the last round.
  void find_waits(LoopStep& loop) const {
    loop.waits.assign(launches_.size(), false);
    Touched read, written;
    for (size_t i = 0; i < 2 * launches_.size(); ++i) {
      const size_t at = i % launches_.size();
      const Launch& launch = launches_[at];
      if (meet(launch.written, read) || meet(launch.read, written)) loop.waits[at] = true;
      if (loop.waits[at]) read = written = {};
      for (const Memory& memory : launch.read) read.add(memory);
      for (const Memory& memory : launch.written) written.add(memory);
    }
  }

  static double parts(const KernelStep& launch, int threads) {
    return static_cast<double>(std::clamp<int64_t>(launch.units, 1, threads));
  }

  /// By so many threads, in picoseconds; each more makes them wait longer for each other.
  double round_of(const LoopStep& loop, int threads) const {
    double sum = 0;
    for (size_t i = 0; i < loop.body.size(); ++i) {
      sum += launches_[i].alone / parts(loop.body[i], threads);
      if (loop.waits[i]) sum += static_cast<double>(options_.costs.barrier) * threads / 2;
    }
    return sum;
  }

  /// Each launch as it is cut.
  double round_alone(const LoopStep& loop) const {
    double sum = 0;
    for (size_t i = 0; i < loop.body.size(); ++i) {
      const KernelStep& launch = loop.body[i];
      const double whole = launches_[i].alone;
      sum += launch.units > launch.grain
                 ? whole / parts(launch, options_.threads) + static_cast<double>(options_.costs.split)
                 : whole;
    }
    return sum;
  }

  /// 0: none is worth it.
  int best_size(const LoopStep& loop) const {
    int best = 0;
    const double alone = round_alone(loop);
    double least = alone / 1.25;
    for (int threads = 2; threads <= std::min(options_.threads, kMost); threads *= 2)
      if (const double shared = round_of(loop, threads); shared < least) {
        best = threads;
        least = shared;
      }
    const double gained = (alone - least) * static_cast<double>(loop.trip);
    return gained > 2 * static_cast<double>(options_.costs.serial) ? best : 0;
  }

  const Program& program_;
  const PlanOptions& options_;
  std::vector<Launch> launches_;
};

}  // namespace

bool takes_threads(const Program& program) {
  bool any = false;
  for_each_launch(program, [&](const KernelStep& step) { any |= step.units > step.grain; });
  for (const Step& step : program.steps)
    if (const auto* loop = std::get_if<LoopStep>(&step)) any |= loop->team > 0;
  return any;
}

void share_rounds(Program& program, const PlanOptions& options) {
  if (options.cuda || options.threads < 2) return;
  for (Step& step : program.steps)
    if (auto* loop = std::get_if<LoopStep>(&step); loop && !loop->inside) Sharer(program, options).run(*loop);
}

}  // namespace fastjit::plan
