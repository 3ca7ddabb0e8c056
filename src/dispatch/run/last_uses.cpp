#include "dispatch/run/last_uses.h"

#include <algorithm>
#include <set>
#include <utility>

#include "plan/repeat.h"

namespace fastjit::dispatch {
namespace {

using plan::SlotId;
using plan::SlotKind;

class Finder {
 public:
  explicit Finder(const plan::Program& program) : program_(program), last_(program.slots.size(), kNever) {}

  std::vector<LastUse> run() {
    find_last();
    for (const SlotId output : program_.outputs) last_[root(output)] = kNever;
    std::vector<std::vector<SlotId>> ends(steps_);
    for (SlotId id = 0; id < last_.size(); ++id)
      if (last_[id] != kNever && program_.slots[id].kind == SlotKind::Input) ends[last_[id]].push_back(id);
    std::vector<LastUse> out;
    const auto give_up = [&](uint32_t step) {
      for (const SlotId input : ends[step]) out.push_back({step, program_.slots[input].index, aliases_of(input)});
    };
    each_step([](uint32_t, const auto&) {}, give_up);
    return out;
  }

  Ends ends(size_t inputs) {
    find_last();
    const auto end = [&](SlotId root) { return last_[root] == kNever ? 0 : last_[root] + 1; };
    Ends out{std::vector<uint32_t>(inputs, 0), {}};
    for (SlotId id = 0; id < last_.size(); ++id)
      if (program_.slots[id].kind == SlotKind::Input) {
        uint32_t& latest = out.inputs[program_.slots[id].index];
        latest = std::max(latest, end(id));
      }
    for (const SlotId output : program_.outputs) {
      const SlotId id = root(output);
      out.outputs.push_back({end(id), id, aliases_of(id)});
      if (program_.slots[id].kind != SlotKind::Input) out.outputs.back().tensors.push_back(program_.slots[id].index);
    }
    return out;
  }

 private:
  static constexpr uint32_t kNever = 0xFFFFFFFFu;

  // Calls `take` with every step, when the aliases that it reads are what it reads, and `behind` as for_each_number().
  template <class Take, class Behind>
  void each_step(const Take& take, const Behind& behind) {
    base_.assign(program_.slots.size(), plan::kNoSlot);
    aliases_.clear();
    for (SlotId id = 0; id < program_.slots.size(); ++id)
      if (program_.slots[id].kind == SlotKind::Alias) set_base(id, program_.slots[id].base);
    const auto follow = [&](uint32_t step, const auto& each) {
      if constexpr (std::is_same_v<decltype(each), const plan::AliasStep&>) set_base(each.slot, each.base);
      take(step, each);
    };
    const auto count = [&](uint32_t step) {
      steps_ = step + 1;
      behind(step);
    };
    plan::for_each_number(program_, 0, UINT32_MAX, follow, count);
  }

  void set_base(SlotId alias, SlotId base) {
    if (base_[alias] != plan::kNoSlot) aliases_.erase({base_[alias], alias});
    aliases_.insert({base, alias});
    base_[alias] = base;
  }

  void find_last() {
    const auto note = [&](uint32_t step, const auto& each) {
      auto copy = each;
      plan::for_each_slot(copy, [&](SlotId id, int64_t*) { last_[root(id)] = step; });
    };
    each_step(note, [](uint32_t) {});
  }

  SlotId root(SlotId id) const {
    while (base_[id] != plan::kNoSlot) id = base_[id];
    return id;
  }

  std::vector<uint32_t> aliases_of(SlotId root) const {
    std::vector<uint32_t> out;
    for (std::vector<SlotId> todo{root}; !todo.empty();) {
      const SlotId base = todo.back();
      todo.pop_back();
      for (auto it = aliases_.lower_bound({base, 0}); it != aliases_.end() && it->first == base; ++it) {
        out.push_back(program_.slots[it->second].index);
        todo.push_back(it->second);
      }
    }
    return out;
  }

  const plan::Program& program_;
  std::vector<uint32_t> last_;                   // per slot
  std::vector<SlotId> base_;                     // per slot: that of an alias, as it is at the step
  std::set<std::pair<SlotId, SlotId>> aliases_;  // (base, alias)
  uint32_t steps_ = 0;
};

}  // namespace

std::vector<LastUse> last_uses(const plan::Program& program) { return Finder(program).run(); }

Ends ends_of(const plan::Program& program, size_t inputs) { return Finder(program).ends(inputs); }

}  // namespace fastjit::dispatch
