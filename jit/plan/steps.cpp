// The steps of a program, from its items and what must run before what.
#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

#include "plan/order.h"
#include "plan/work.h"

namespace fastjit::plan {

namespace {

/// Takes items off the list of what is left, in the order that steps() says.
class Queue {
 public:
  Queue(const std::vector<Item>& items, const Precedence& order)
      : items_(items),
        order_(order),
        next_(order.size()),
        missing_(order.size(), 0),
        needs_made_(order.size(), 0),
        wanted_(order.size(), false) {
    for (uint32_t i = 0; i < order.size(); ++i) {
      if (order.home(i) != i) continue;
      left_.insert(i);
      for (const uint32_t other : order.needs(i))
        if (const uint32_t earlier = order.home(other); earlier != i) {
          next_[earlier].push_back(i);
          ++missing_[i];
          if (!is_source(earlier)) ++needs_made_[i];
        }
      if (items[i].is_extern()) calls_.insert(i);
    }
    for (uint32_t i = 0; i < order.size(); ++i)
      if (order.home(i) == i && missing_[i] == 0) add(i);
    for (uint32_t i = 0; i < order.size(); ++i)
      if (order.home(i) == i && needs_made_[i] == 0) make_due(i);
  }

  bool is_empty() const { return left_.empty(); }

  std::vector<uint32_t> take() {
    const std::vector<uint32_t> batch = choose();
    if (batch.empty()) throw std::runtime_error("planner: the items of the program depend on each other in a circle");
    for (const uint32_t item : batch) {
      for (std::set<uint32_t>* list : {&left_, &kernels_, &sources_, &ready_calls_, &calls_, &urgent_})
        list->erase(item);
      for (const uint32_t later : next_[item]) {
        work();
        if (!is_source(item) && --needs_made_[later] == 0) make_due(later);
        if (--missing_[later] == 0) add(later);
      }
    }
    return batch;
  }

 private:
  void add(uint32_t item) {
    const bool waits = is_source(item) && !next_[item].empty();
    (items_[item].is_extern() ? ready_calls_ : waits ? sources_ : kernels_).insert(item);
    if (wanted_[item]) urgent_.insert(item);
  }

  std::vector<uint32_t> choose() {
    if (calls_.empty()) return next_kernels(kernels_.end());
    // A call whose epilogue needs a later one does not keep the others waiting, nor does it hurry what that one needs.
    const uint32_t first = *(ready_calls_.empty() ? calls_ : ready_calls_).begin();
    std::vector<uint32_t> batch = next_kernels(kernels_.lower_bound(first));
    if (!batch.empty()) return batch;
    if (ready_calls_.contains(first)) return {first};
    want(first);
    for (const uint32_t item : urgent_)
      if (!items_[item].is_extern()) batch.push_back(item);
    if (batch.empty() && !urgent_.empty()) batch.push_back(*urgent_.begin());
    return batch;
  }

  /// A kernel that needs nothing of the program's: it copies what is given, or fills memory.
  bool is_source(uint32_t item) const { return !items_[item].is_extern() && order_.needs(item).empty(); }

  // What is made long before its turn only takes memory.
  static constexpr uint32_t kAhead = 8;
  static bool is_large(const Item& item) {
    constexpr int64_t kElements = 8192;
    return item.frame.kept.hint() * static_cast<int64_t>(item.roots.size()) >= kElements;
  }

  /// The kernels that are ready before `end`, and sources beside the last of those that their reader needs: what they
  /// make is not alive before.
  std::vector<uint32_t> next_kernels(std::set<uint32_t>::const_iterator end) {
    const uint32_t turn = *left_.begin();  // as recorded
    std::vector<uint32_t> batch;
    for (auto item = kernels_.cbegin(); item != end; ++item)
      if (batch.empty() || *item <= turn + kAhead || !is_large(items_[*item])) batch.push_back(*item);
    std::unordered_map<uint32_t, size_t> made;  // by reader: what it needs of this batch
    for (const uint32_t item : batch)
      if (!is_source(item))
        for (const uint32_t later : next_[item]) ++made[later];
    for (const auto& [later, count] : made)
      if (needs_made_[later] == count) std::ranges::copy(waiting_for(later), std::back_inserter(batch));
    std::ranges::sort(batch);
    const auto twice = std::ranges::unique(batch);  // what several need
    batch.erase(twice.begin(), twice.end());
    return batch;
  }

  /// All that the item needs is there but what sources make.
  void make_due(uint32_t item) {
    for (const uint32_t source : waiting_for(item)) {
      sources_.erase(source);
      kernels_.insert(source);
    }
  }

  std::vector<uint32_t> waiting_for(uint32_t reader) const {
    std::vector<uint32_t> found;
    for (const uint32_t other : order_.needs(reader))
      if (const uint32_t source = order_.home(other); sources_.contains(source)) found.push_back(source);
    return found;
  }

  /// The call's turn has come, but its epilogue needs something: that is next.
  void want(uint32_t call) {
    std::vector<uint32_t> stack{call};
    while (!stack.empty()) {
      work();
      const uint32_t item = stack.back();
      stack.pop_back();
      if (wanted_[item]) continue;
      wanted_[item] = true;
      if (kernels_.contains(item) || sources_.contains(item) || ready_calls_.contains(item)) urgent_.insert(item);
      for (const uint32_t other : order_.needs(item)) stack.push_back(order_.home(other));
    }
  }

  const std::vector<Item>& items_;
  const Precedence& order_;
  std::vector<std::vector<uint32_t>> next_;
  std::vector<size_t> missing_;
  std::vector<size_t> needs_made_;  // of these, what is not ready from the start
  std::vector<bool> wanted_;
  std::set<uint32_t> left_, calls_;                              // all that have not run, and the calls of these
  std::set<uint32_t> kernels_, sources_, ready_calls_, urgent_;  // ready
};

}  // namespace

/// Recorded order as far as possible: kernels that are ready and stand before the next call run together, then the
/// call. What belongs to later calls waits for its turn, and so does what only copies or fills, so that its results are
/// not alive before they are of use. A product whose epilogue needs a later call waits for that.
std::vector<std::vector<uint32_t>> Order::steps() const {
  std::vector<std::vector<uint32_t>> result;
  for (Queue queue(former_.items(), order_); !queue.is_empty();) result.push_back(queue.take());
  return result;
}

}  // namespace fastjit::plan
