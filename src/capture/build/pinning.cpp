// Which storages must be real memory: those written in a way that values of whole tensors cannot express.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "capture/build/build.h"
#include "capture/record/effects.h"
#include "support/work.h"

namespace fastjit::capture {
namespace {

struct Extent {
  int64_t begin = 0, end = 0;  // addresses; equal where there are no elements
};

Extent extent_of(const Trace& trace, const Use& use) {
  const auto item = static_cast<int64_t>(c10::elementSize(use.meta->dtype));
  int64_t last = 0;
  for (size_t d = 0; d < use.meta->sizes.size(); ++d) {
    if (use.meta->sizes[d] == 0) return {};
    last += (use.meta->sizes[d] - 1) * use.meta->strides[d];
  }
  const int64_t begin = static_cast<int64_t>(trace.storages[use.storage].begin) + use.offset * item;
  return {begin, begin + (last + 1) * item};
}

bool overlap(const Extent& a, const Extent& b) { return a.begin < b.end && b.begin < a.end; }

// The tensors of one storage, for writes that are asked for in the order of the steps.
class Neighbours {
 public:
  Neighbours(const Trace& trace, const Analysis& analysis, std::vector<uint32_t> tensors)
      : trace_(trace), analysis_(analysis), tensors_(std::move(tensors)) {
    std::ranges::stable_sort(tensors_, {}, [&](uint32_t tensor) { return analysis_.created[tensor]; });
    for (uint32_t tensor : tensors_)
      leaves_ |= analysis.last_use[tensor] == static_cast<int64_t>(analysis.steps.size());
  }

  // A write in place to a whole tensor whose other names are not looked at any more.
  bool is_exact(int64_t at, uint32_t target, bool storage_has_root) {
    if (storage_has_root && !trace_.root(target)) return false;
    // A written view that leaves the call, or whose base does, keeps its place in the base.
    const bool is_view = analysis_.created[tensors_.front()] < analysis_.created[target];
    if (is_view && leaves_ && !trace_.root(target)) return false;
    for (; next_ < tensors_.size() && analysis_.created[tensors_[next_]] < at; ++next_) {
      const Extent extent = extent_of(trace_, analysis_.first[tensors_[next_]]);
      longest_ = std::max(longest_, extent.end - extent.begin);
      alive_.emplace(extent.begin, std::pair(extent.end, tensors_[next_]));
    }
    const Extent mine = extent_of(trace_, analysis_.first[target]);
    for (auto it = alive_.lower_bound(mine.begin - longest_); it != alive_.end() && it->first < mine.end;) {
      support::count_work();
      const auto [end, other] = it->second;
      if (analysis_.last_use[other] < at) {
        it = alive_.erase(it);
        continue;
      }
      if (other != target && overlap({it->first, end}, mine)) return false;
      ++it;
    }
    return true;
  }

 private:
  const Trace& trace_;
  const Analysis& analysis_;
  std::vector<uint32_t> tensors_;                               // by the step that made them
  size_t next_ = 0;                                             // of them: the first that was not there yet
  std::multimap<int64_t, std::pair<int64_t, uint32_t>> alive_;  // by begin: end and tensor
  int64_t longest_ = 0;
  bool leaves_ = false;  // one of them is a result
};

void mark_written(const Trace& trace, Analysis& analysis, const Forced& forced) {
  const size_t count = trace.storages.size();
  std::vector<std::vector<uint32_t>> members(count);
  for (uint32_t t = 0; t < trace.tensors.size(); ++t)
    if (analysis.storage[t] != kNone) members[analysis.storage[t]].push_back(t);
  std::vector<char> has_root(count, 0), is_shared(count, 0);  // shared: no parts of it can have a new value
  for (const Source& root : trace.roots)
    is_shared[root.before.storage] |= root.constant || std::exchange(has_root[root.before.storage], 1);
  for (const auto& [tensor, dims] : trace.data_sized)
    if (analysis.data_sizes != DataSizes::Found && analysis.storage[tensor] != kNone)
      is_shared[analysis.storage[tensor]] = 1;
  std::vector<char> reached_anywhere(count, 0);  // by offsets of the storage, not of a tensor in it
  for (const Action& step : analysis.steps)
    if (trace.events[step.event].facts.is(OpFlag::ReachesStorage) && !step.row)
      for (uint32_t tensor : step.reads) reached_anywhere[analysis.storage[tensor]] = 1;

  std::map<uint32_t, Neighbours> neighbours;  // of the storages that are written
  for (size_t i = 0; i < analysis.steps.size(); ++i) {
    Action& step = analysis.steps[i];
    if (step.rebinds && forced.operators.contains(std::string(trace.events[step.event].name))) step.rebinds = false;
    for (uint32_t target : step.writes) {
      const uint32_t storage = analysis.storage[target];
      analysis.written[storage] = 1;
      analysis.last_write[storage] = static_cast<int64_t>(i);
      if (analysis.pinned[storage]) continue;
      if (step.rebinds && !reached_anywhere[storage]) {
        auto known = neighbours.find(storage);
        if (known == neighbours.end())
          known = neighbours.emplace(storage, Neighbours(trace, analysis, std::move(members[storage]))).first;
        if (known->second.is_exact(static_cast<int64_t>(i), target, has_root[storage] != 0)) continue;
        if (!is_shared[storage] && !forced.storages.contains(storage)) {
          analysis.parted[storage] = 1;
          continue;
        }
      }
      analysis.pinned[storage] = 1;
    }
  }
}

// Storages of arguments that share memory with a written one: their order of reads and writes is kept by real memory.
// One sweep over the addresses; what is open at a place is known by storage.
class SharedMemory {
 public:
  SharedMemory(const Trace& trace, Analysis& analysis) : analysis_(analysis), leader_(trace.storages.size()) {
    std::iota(leader_.begin(), leader_.end(), 0u);
    std::vector<std::pair<Extent, const Source*>> roots;
    for (const Source& root : trace.roots)
      if (const Extent extent = extent_of(trace, root.before); extent.begin < extent.end)
        roots.emplace_back(extent, &root);
    std::ranges::sort(roots, {}, [](const auto& entry) { return entry.first.begin; });
    for (const auto& [extent, root] : roots) open(extent, root->before);
  }

  void pin() {
    std::map<uint32_t, int64_t> last;
    for (uint32_t storage : shared_) {
      int64_t& write = last.try_emplace(leader(storage), -1).first->second;
      write = std::max(write, analysis_.last_write[storage]);
    }
    for (uint32_t storage : shared_) {
      analysis_.pinned[storage] = 1;
      analysis_.last_write[storage] = last.at(leader(storage));
    }
  }

 private:
  struct Open {
    int64_t end = 0;       // the last address of any of its roots here
    int64_t used_end = 0;  // of those that a step or the result uses
  };

  void open(const Extent& extent, const Use& root) {
    const bool used = analysis_.last_use[root.tensor] >= 0;
    for (auto it = open_.begin(); it != open_.end();) {
      support::count_work();
      const auto& [storage, other] = *it;
      if (other.end <= extent.begin) {
        it = open_.erase(it);
        continue;
      }
      const bool other_used = other.used_end > extent.begin;
      if ((analysis_.written[storage] && used) || (analysis_.written[root.storage] && other_used))
        join(storage, root.storage);
      ++it;
    }
    Open& mine = open_[root.storage];
    mine.end = std::max(mine.end, extent.end);
    if (used) mine.used_end = std::max(mine.used_end, extent.end);
  }

  uint32_t leader(uint32_t storage) {
    while (leader_[storage] != storage) storage = leader_[storage] = leader_[leader_[storage]];
    return storage;
  }

  void join(uint32_t a, uint32_t b) {
    shared_.insert(a);
    shared_.insert(b);
    leader_[leader(a)] = leader(b);
  }

  Analysis& analysis_;
  std::vector<uint32_t> leader_;  // of each storage's group
  std::set<uint32_t> shared_;
  std::map<uint32_t, Open> open_;  // storages with roots that reach beyond the sweep's place
};

// A call that touches pinned memory runs in torch, and so what it writes is real memory too.
void spread(Analysis& analysis) {
  std::vector<std::vector<uint32_t>> readers(analysis.pinned.size());  // by storage: steps that write as well
  for (uint32_t i = 0; i < analysis.steps.size(); ++i)
    if (const Action& step = analysis.steps[i]; !step.writes.empty())
      for (uint32_t tensor : step.reads) readers[analysis.storage[tensor]].push_back(i);
  std::vector<uint32_t> todo;
  for (uint32_t storage = 0; storage < analysis.pinned.size(); ++storage)
    if (analysis.pinned[storage]) todo.push_back(storage);
  while (!todo.empty()) {
    const std::vector<uint32_t> steps = std::move(readers[todo.back()]);
    todo.pop_back();
    support::count_work(1 + steps.size());
    for (uint32_t i : steps)
      for (uint32_t target : analysis.steps[i].writes)
        if (const uint32_t storage = analysis.storage[target]; !std::exchange(analysis.pinned[storage], 1))
          todo.push_back(storage);
  }
}

}  // namespace

// What is on the CPU beside a device no kernel reaches.
static void pin_host(const Trace& trace, Analysis& analysis) {
  for (const uint32_t storage : trace.host) {
    analysis.pinned[storage] = 1;
    analysis.last_write[storage] = std::numeric_limits<int64_t>::max();
  }
}

void pin_storages(const Trace& trace, Analysis& analysis, const Forced& forced) {
  analysis.parted.assign(trace.storages.size(), 0);
  analysis.pinned.assign(trace.storages.size(), 0);
  analysis.written.assign(trace.storages.size(), 0);
  analysis.last_write.assign(trace.storages.size(), -1);
  mark_written(trace, analysis, forced);
  SharedMemory(trace, analysis).pin();
  pin_host(trace, analysis);
  spread(analysis);
  for (size_t storage = 0; storage < analysis.parted.size(); ++storage)
    if (analysis.pinned[storage]) analysis.parted[storage] = 0;
}

}  // namespace fastjit::capture
