#include "plan/lives.h"

#include <algorithm>

#include "plan/body.h"
#include "plan/late.h"
#include "plan/work.h"

namespace fastjit::plan {

Lives::Lives(Former& former, const Order& order, const Steps& steps, const Results& results, const PlanOptions& options)
    : former_(former),
      graph_(former.graph()),
      order_(order),
      steps_(steps),
      results_(results),
      options_(options),
      temps_(steps.size() + 1, 0),
      dying_(steps.size()),
      written_over_(steps.size()) {
  find_tensors();
  find_lives();
  find_cats();
  find_large();
  find_in_place();
  find_dying();
  find_arena();
}

void Lives::find_tensors() {
  for (const auto& [call, results] : results_)
    for (const ir::NodeId id : results) {
      if (id == ir::kNoNode) continue;
      const BufferId place = order_.place_of(id);
      if (place != id) tensors_.insert(place);
      const ir::Node& node = graph_[call];
      const bool product = node.op == ir::Op::Contract;
      if (product) places_.insert(place);
      if (node.op == ir::Op::Loop) {
        if (!is_handed(graph_, id)) continue;
        tensors_.insert(id);
        lent_.insert(id);
        continue;
      }
      const bool is_own = product ? graph_.contracts[node.attr].kind != ir::Product::Convolution
                                  : graph_.externs[node.attr].kind == ir::ExternKind::Number;
      if (!is_own) lent_.insert(place);
    }
  for (const ir::NodeId id : graph_.outputs) {
    kept_.insert(former_.world().storage[id]->buffer);
    tensors_.insert(former_.world().storage[id]->buffer);
  }
  for (const Item& item : former_.items()) {
    if (!item.is_extern() || order_.may_refuse(item)) continue;
    if (order_.is_loop(item)) {
      if (calls_torch(item)) find_tensors_of_rounds(item);
      continue;
    }
    const bool product = graph_[item.external].op == ir::Op::Contract;
    for (const auto& operand : item.operands) {
      if (!operand) continue;
      tensors_.insert(operand->buffer);
      if (!product) lent_.insert(operand->buffer);
    }
    if (product) continue;
    for (const uint32_t index : graph_.externs[graph_[item.external].attr].written) {
      if (item.operands[index]) written_.insert(order_.base(item.operands[index]->buffer));
      if (const auto found = results_.find(item.external); found != results_.end())
        written_.insert(found->second.begin(), found->second.end());
    }
  }
}

/// Rounds give torch's calls what the loop is given.
void Lives::find_tensors_of_rounds(const Item& loop) {
  for (size_t i = 0; i < loop.operands.size(); ++i) {
    const BufferId buffer = loop.operands[i]->buffer;
    tensors_.insert(buffer);
    lent_.insert(buffer);
    if (former_.is_placed(loop.external, i)) written_.insert(order_.base(buffer));
  }
}

bool Lives::calls_torch(const Item& item) const {
  if (!item.is_extern() || order_.may_refuse(item)) return false;
  if (order_.is_loop(item)) return plan::calls_torch(graph_.loops[graph_[item.external].attr]);
  return !order_.is(item, ir::ExternKind::View);
}

/// A Cat that another one begins with lies there.
void Lives::find_cats() {
  for (const auto& [buffer, life] : lives_) {
    const ir::NodeId whole = former_.whole(buffer);
    if (whole == ir::kNoNode) continue;
    homes_[buffer] = whole;
    in_cat_.insert({buffer, whole});
    if (tensors_.contains(buffer)) tensors_.insert(whole);
  }
}

/// Temporaries that are worth memory of their own beside calls of torch's, and those whose sizes such a call finds: the
/// arena is there before.
void Lives::find_large() {
  if (std::ranges::none_of(former_.items(), [&](const Item& item) { return calls_torch(item); })) return;
  for (const auto& [buffer, life] : lives_) {
    if (!is_temp(buffer) || graph_[buffer.node].op == ir::Op::Loop) continue;
    const int64_t bytes = graph_.layout(buffer.node).numel().hint() * ir::size_of(graph_[buffer.node].dtype);
    if (bytes >= options_.own_bytes || late_in(graph_, graph_.sizes(buffer.node)) != 0) tensors_.insert(buffer);
  }
}

BufferId Lives::home(BufferId buffer) const {
  for (auto found = homes_.find(buffer); found != homes_.end(); found = homes_.find(buffer)) buffer = found->second;
  return buffer;
}

bool Lives::is_temp(BufferId buffer) const {
  if (tensors_.contains(buffer)) return false;
  const ir::Op op = graph_[buffer.node].op;
  return !buffer.is_own() || !is_tensor(op) || op == ir::Op::Final || graph_.is_number(buffer.node);
}

void Lives::touch(BufferId buffer, size_t step, bool load) {
  for (;;) {
    work();
    Life& life = lives_[buffer];
    life.first = std::min(life.first, step);
    if (step > life.last) life.last_loads = 0;
    life.last = std::max(life.last, step);
    if (step == life.last) life.last_loads += load;
    const BufferId base = order_.base(buffer);
    const ir::NodeId whole = former_.whole(buffer);
    if (base == buffer && whole == ir::kNoNode) return;
    buffer = whole == ir::kNoNode ? base : BufferId(whole);
  }
}

void Lives::find_lives() {
  auto visit = [&](const Item& item, size_t step) {
    for (const Access& access : item.draft.accesses) touch(access.buffer, step, true);
    for (const Root& root : item.roots)
      for (const Storage& dest : root.dests) touch(dest.buffer, step, false);
    for (const auto& operand : item.operands)
      if (operand) touch(operand->buffer, step, true);
    if (order_.is_loop(item)) touch(item.external, step, false);  // what its rounds take beside that
    if (const auto found = results_.find(item.external); item.is_extern() && found != results_.end())
      for (const ir::NodeId id : found->second)
        if (id != ir::kNoNode) touch(order_.place_of(id), step, false);
  };
  for (size_t step = 0; step < steps_.size(); ++step)
    for (const uint32_t index : steps_[step]) {
      visit(former_.items()[index], step);
      if (const uint32_t epilogue = order_.epilogue_of(index); epilogue != Order::kNoItem)
        visit(former_.items()[epilogue], step);
    }
}

/// What dies in the kernel that makes a value of the same form, element by element, gives it its place.
void Lives::find_in_place() {
  for (size_t step = 0; step < steps_.size(); ++step)
    for (const uint32_t index : steps_[step]) {
      const uint32_t epilogue = order_.epilogue_of(index);
      try_in_place(former_.items()[index], step);
      if (epilogue != Order::kNoItem) try_in_place(former_.items()[epilogue], step);
    }
}

/// Memory of the program's own, which no view of torch's leads to. (What calls have kept, OwnStep finds.)
bool Lives::may_take(BufferId old) const {
  if (in_cat_.contains(old) || kept_.contains(old) || written_.contains(old) || order_.base(old) != old) return false;
  return !old.is_own() || graph_[old.node].op != ir::Op::Input;
}

void Lives::try_in_place(const Item& item, size_t step) {
  for (const Root& root : item.roots) {
    if (root.dests.size() != 1 || root.full != item.frame.has_reduced()) continue;
    const Storage& dest = root.dests[0];
    const ir::DType dtype = graph_[root.value].dtype;
    if (kept_.contains(dest.buffer) || places_.contains(dest.buffer) || dest.buffer != root.value ||
        homes_.contains(dest.buffer))
      continue;
    const Linear address = root_address(former_.world(), item.frame, root, dest.strides);
    for (const Access& access : item.draft.accesses) {
      const BufferId old = home(access.buffer);
      if (!may_take(old) || !may_take(access.buffer) || (is_temp(old) && !is_temp(dest.buffer)) ||
          !access.is_at(address) || access.dtype != dtype || lives_[old].last != step || lives_[old].last_loads != 1 ||
          !identical(graph_.layout(old.node).numel(), graph_.layout(root.value).numel()) ||
          former_.producers(access.buffer).size() != 1)
        continue;
      const auto which = static_cast<size_t>(&root - item.roots.data());
      if (is_loaded_after(item.draft, which, [&](BufferId loaded) { return home(loaded) == old; })) continue;
      homes_[dest.buffer] = old;
      if (lent_.contains(old)) written_over_[step].push_back(old);
      if (lent_.contains(dest.buffer)) lent_.insert(old);
      if (written_.contains(dest.buffer)) written_.insert(old);
      lives_[old].last = lives_[dest.buffer].last;
      lives_[old].last_loads = lives_[dest.buffer].last_loads;
      break;
    }
  }
}

void Lives::find_dying() {
  BufferSet kept;
  for (const BufferId buffer : kept_) kept.insert(home(buffer));
  for (const auto& [buffer, life] : lives_)
    if (!kept.contains(buffer) && !is_temp(buffer) && !homes_.contains(buffer)) dying_[life.last].push_back(buffer);
}

void Lives::find_arena() {
  for (const auto& [buffer, life] : lives_) {
    if (!is_temp(buffer) || homes_.contains(buffer)) continue;
    ++temps_[life.first];
    --temps_[life.last + 1];
  }
  for (size_t step = 1; step < temps_.size(); ++step) temps_[step] += temps_[step - 1];
}

bool Lives::leaves_arena(size_t step) {
  if (temps_[step] > 0) return false;
  const bool used = std::any_of(temps_.begin() + static_cast<std::ptrdiff_t>(arena_left_),
                                temps_.begin() + static_cast<std::ptrdiff_t>(step), [](int n) { return n > 0; });
  arena_left_ = step;
  return used;
}

}  // namespace fastjit::plan
