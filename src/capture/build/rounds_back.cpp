// Autograd's way back through loops of any number of rounds: which part of what all rounds have left one is given.
#include <algorithm>
#include <memory>
#include <ranges>
#include <tuple>

#include "capture/build/build.h"
#include "capture/build/way_sizes.h"
#include "capture/lower/util.h"
#include "capture/record/loops_back.h"

namespace fastjit::capture {

using ir::Dim;

// Whether the loop goes back through rounds, or another one through its own.
bool GraphBuilder::is_gone_back(uint32_t which) const {
  return trace_.loops[which].back_of != kNone ||
         std::ranges::find(trace_.loops, which, &PythonLoop::back_of) != trace_.loops.end();
}

// Whether what autograd does in its rounds is known for any number of them.
bool GraphBuilder::is_known_back(uint32_t which) const {
  return !way_ || is_gone_back(which) || is_left_out(trace_, trace_.loops[which]);
}

bool GraphBuilder::goes_back(uint32_t which) const {
  return which != kNone && trace_.loops[which].back_of != kNone && traced_[which] != ir::TracedRound::kNone;
}

void GraphBuilder::enter_way_back(uint32_t which) {
  const PythonLoop& back = trace_.loops[which];
  const uint32_t through = traced_[back.back_of];
  if (through == ir::TracedRound::kNone) return;
  traced_[which] = static_cast<uint32_t>(graph_.traced.size());
  graph_.traced.push_back({graph_.traced[through].trip, static_cast<uint32_t>(back.alike_from), back.last_differs});
  make_in({});
  for (uint32_t other = 0; other < trace_.loops.size(); ++other)
    if (is_before(other, which)) keep_for(which, other);
}

// Whether the loop has ended when the other one begins, and has as many rounds.
bool GraphBuilder::is_before(uint32_t which, uint32_t other) const {
  if (which == other || traced_[which] == ir::TracedRound::kNone) return false;
  const PythonLoop &one = trace_.loops[which], &next = trace_.loops[other];
  return is_gone_back(which) && one.begins.back().event <= next.begins.front().event && one.rounds() == next.rounds() &&
         ir::identical(graph_.traced[traced_[which]].trip, graph_.traced[traced_[other]].trip);
}

// Of what rounds of the other loop have made, what those of the loop are given. What is not kept they find where it
// is, and so they are not alike, if they are given what another round has made each.
void GraphBuilder::keep_for(uint32_t which, uint32_t other) {
  for (const RoundsGiven& given : given_to_rounds(trace_, trace_.loops[which], trace_.loops[other]))
    keep(given.made, which, other, given.falls);
}

// What the rounds of the other loop have made, each one of these.
void GraphBuilder::keep(const std::vector<Use>& alike, uint32_t which, uint32_t other, bool falls) {
  Kept kept{.falls = falls};
  for (const Use& one : alike) {
    if (one.tensor == kNone || parts_.contains(one.tensor) || pieced_.contains(one.tensor)) return;
    refresh(one);
    const State& state = states_[one.tensor];
    if (state.node == ir::kNoNode || state.mask != ir::kNoNode) return;
    kept.nodes.push_back(state.node);
  }
  const Dim trip = graph_.traced[traced_[other]].trip;
  const auto is_first = [&](ir::NodeId node) { return node == kept.nodes.front(); };
  if (!std::ranges::all_of(kept.nodes, is_first) && !find_walk(kept, trip)) {
    kept.steps.clear();
    kept.whole = as_rows(kept.nodes, trip);
    if (kept.whole == ir::kNoNode) return;
  }
  for (uint32_t round = 0; round < alike.size(); ++round)
    kept_in_[{which, alike[round].tensor}] = {static_cast<uint32_t>(kept_.size()), round};
  kept_.push_back(std::move(kept));
}

// Whether they are views of one value, each round's begins as much further on, and seen alike.
bool GraphBuilder::find_walk(Kept& kept, Dim trip) const {
  const auto op_of = [&](ir::NodeId id) { return graph_[id].op; };
  std::vector<ir::NodeId> nodes = kept.nodes;
  const auto all = [&](const auto& is_so) { return std::ranges::all_of(nodes, is_so); };
  while (all(
      [&](ir::NodeId id) { return op_of(id) == ir::Op::Reshape && graph_[id].layout == graph_[nodes[0]].layout; })) {
    kept.seen.push_back(nodes[0]);
    for (ir::NodeId& id : nodes) id = graph_[id].in[0];
  }
  const auto map_of_view = [&](ir::NodeId id) -> const ir::IndexMap& { return graph_.maps[graph_[id].attr]; };
  const ir::Node& first = graph_[nodes[0]];
  const auto is_like = [&](ir::NodeId id) {
    const ir::Node& node = graph_[id];
    return node.op == ir::Op::View && node.in[0] == first.in[0] && node.layout == first.layout &&
           std::ranges::equal(map_of_view(id).dims, map_of_view(nodes[0]).dims, &ir::Affine::has_terms_of);
  };
  if (!all(is_like)) return false;
  const bool is_argument = op_of(first.in[0]) == ir::Op::Input;  // though a round may have met it first
  if (!is_argument && graph_.round_of(first.in[0]).loop != ir::TracedRound::kNone) return false;
  for (size_t row = 0; row < map_of_view(nodes[0]).dims.size(); ++row) {
    const auto offset = [&](size_t round) { return map_of_view(nodes[round]).dims[row].offset; };
    const Dim step = offset(1) - offset(0);
    for (size_t round = 0; round + 1 < nodes.size(); ++round)
      if (!ir::identical(offset(round), offset(0) + static_cast<int64_t>(round) * step)) return false;
    if (!ir::identical(offset(nodes.size() - 1), offset(0) + (trip - 1) * step)) return false;
    kept.steps.push_back(step);
  }
  kept.nodes = std::move(nodes);
  return true;
}

// Where, in what all rounds of a loop have left, that of round `round` lies as the round at hand counts. It is as many
// rounds from the begin, or where the one falls as the other rises from the end; the other way round in the last one.
Dim GraphBuilder::place_of(uint32_t round, bool falls) const {
  const auto rounds = static_cast<int64_t>(trace_.loops[round_.loop].rounds());
  const bool is_last = round_.round + 1 == rounds;
  if (is_last == falls) return round;
  return graph_.traced[traced_[round_.loop]].trip - (rounds - round);
}

bool GraphBuilder::is_kept(const Use& use) const {
  return goes_back(round_.loop) && kept_in_.contains({round_.loop, use.tensor});
}

// The operator at hand finds the node in place of the tensor.
void GraphBuilder::lend(uint32_t tensor, ir::NodeId node) {
  if (node == states_[tensor].node) return;
  lent_.emplace_back(tensor, states_[tensor]);
  states_[tensor].real = ir::kNoNode;
  states_[tensor].node = node;
}

bool GraphBuilder::is_lent(uint32_t tensor) const {
  return std::ranges::find(lent_, tensor, &std::pair<uint32_t, State>::first) != lent_.end();
}

void GraphBuilder::take_kept(const Use& use) {
  const auto& [which, round] = kept_in_.at({round_.loop, use.tensor});
  const Kept& kept = kept_[which];
  const Dim place = place_of(round, kept.falls);
  if (kept.whole != ir::kNoNode) return lend(use.tensor, row_of(kept.whole, 0, place, false));
  if (kept.steps.empty()) return;
  const ir::NodeId first = kept.nodes.front();
  ir::IndexMap map = graph_.maps[graph_[first].attr];
  for (size_t row = 0; row < map.dims.size(); ++row) map.dims[row].offset += place * kept.steps[row];
  const auto sizes_of = [&](ir::NodeId id) {
    return std::vector<Dim>(graph_.sizes(id).begin(), graph_.sizes(id).end());
  };
  ir::NodeId node = graph_.view(graph_[first].in[0], std::move(map), sizes_of(first));
  for (const ir::NodeId seen : kept.seen | std::views::reverse) node = graph_.reshape(node, sizes_of(seen));
  lend(use.tensor, node);
}

// What the loop walks that the round goes back through.
void GraphBuilder::take_part_back(const Use& use, const Part& part) {
  const auto& [which, round, whole, dim] = part;
  const PythonLoop& loop = trace_.loops[which];
  const auto last = static_cast<uint32_t>(loop.rounds()) - 1;
  const int64_t back = static_cast<int64_t>(last) - round_.round;
  if (which != trace_.loops[round_.loop].back_of || std::abs(back - round) > 1) return fix_loop(which);
  const bool keeps_dim = use.meta->sizes.size() == graph_.sizes(whole).size();
  const Dim place = loop.falls ? place_of(last - round, false) : place_of(round, true);
  lend(use.tensor, row_of(whole, dim, place, keeps_dim));
}

// The operator has written to it: it is what it was given no more.
void GraphBuilder::keep_written(uint32_t tensor) {
  std::erase_if(lent_, [&](const auto& lent) { return lent.first == tensor; });
  for (uint32_t which = 0; which < trace_.loops.size(); ++which) kept_in_.erase({which, tensor});
  shares_.erase(tensor);
}

// Element `place` of a dim, which stays as one of size 1 or goes.
ir::NodeId GraphBuilder::row_of(ir::NodeId whole, size_t dim, Dim place, bool keeps_dim) {
  std::vector<Dim> sizes(graph_.sizes(whole).begin(), graph_.sizes(whole).end());
  const auto at = static_cast<std::ptrdiff_t>(dim);
  keeps_dim ? static_cast<void>(sizes[dim] = 1) : static_cast<void>(sizes.erase(sizes.begin() + at));
  ir::IndexMap map = ir::identity_map(sizes.size());
  if (keeps_dim) map.dims.erase(map.dims.begin() + at);
  map.dims.insert(map.dims.begin() + at, ir::Affine{place, {}});
  return graph_.view(whole, std::move(map), std::move(sizes));
}

// Whether the operator gives one of the rounds on the way back its part of a tensor: the round takes it from there.
bool GraphBuilder::gives_share(const Event& event) {
  if (round_.loop != kNone || (event.name != "aten::select.int" && event.name != "aten::narrow")) return false;
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  for (uint32_t which = 0; which < trace_.loops.size(); ++which)
    for (const Shares& shares : trace_.loops[which].shares) {
      const auto found = std::ranges::find(shares.events, index);
      if (found == shares.events.end()) continue;
      enter_loop(which);
      if (!goes_back(which)) return false;
      meet(event.args[0].uses[0], event);
      const ir::NodeId whole = value(event.args[0].uses[0], event).node;
      const auto rank = static_cast<int64_t>(graph_[whole].rank);
      Share share{.loop = which, .whole = whole, .falls = shares.falls};
      share.round = static_cast<uint32_t>(found - shares.events.begin());
      share.dim = static_cast<size_t>(wrap_dim(event.args[1].constant.toInt(), rank));
      share.before = shares.before;
      share.is_row = event.args.size() == 3;  // of select, not of narrow
      give_share(event, share);
      return true;
    }
  return false;
}

void GraphBuilder::give_share(const Event& event, const Share& share) {
  const Use& made = flat_results(event)[0];
  set_result(made, part_of(share, 0), event);
  shares_[made.tensor] = share;
}

// Whether the operator is one of those by which a round gets its row of the gradient of what all rounds wrote into.
bool GraphBuilder::gives_slice(const Event& event) {
  if (!goes_back(round_.loop)) return false;
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  for (const Slices& slices : trace_.loops[round_.loop].slices) {
    if (!slices.has(round_.round, index)) continue;
    const auto rounds = static_cast<uint32_t>(slices.begins.size());
    if (index == slices.begins[0]) {
      const Use& whole = event.args[0].uses[0];
      meet(whole, event);
      wholes_sliced_[index] = value(whole, event).node;
    }
    if (index != slices.made[round_.round]) return true;
    Share share{.loop = round_.loop, .whole = wholes_sliced_.at(slices.begins[0]), .falls = slices.falls};
    share.round = slices.falls ? rounds - 1 - round_.round : round_.round;
    share.dim = slices.dim;
    share.before = slices.before;
    give_share(event, share);
    return true;
  }
  return false;
}

ir::NodeId GraphBuilder::part_of(const Share& share, Dim place) {
  if (share.is_row) return row_of(share.whole, share.dim, place + share.before, false);
  std::vector<Dim> sizes(graph_.sizes(share.whole).begin(), graph_.sizes(share.whole).end());
  const Dim count = graph_.traced[traced_[share.loop]].trip + share.before, length = sizes[share.dim] / count;
  if (sizes[share.dim] != count * length) fix_loop(share.loop);
  sizes[share.dim] = length;
  ir::IndexMap map = ir::identity_map(sizes.size());
  map.dims[share.dim].offset = (place + share.before) * length;
  return graph_.view(share.whole, std::move(map), std::move(sizes));
}

void GraphBuilder::take_share(const Use& use) {
  const Share& share = shares_.at(use.tensor);
  const Dim trip = graph_.traced[traced_[share.loop]].trip;
  const bool is_first = share.round == 0, is_last = share.round + 1 == trip.hint(),
             is_inside = round_.loop == share.loop;
  const bool is_apart = share.is_row && graph_.sizes(share.whole)[share.dim] != trip + share.before;
  if ((!is_inside && !is_first && !is_last) || is_apart) return fix_loop(share.loop);
  lend(use.tensor, part_of(share, is_inside ? place_of(share.round, share.falls) : is_first ? Dim(0) : trip - 1));
}

// Whether the operator makes zeros but for what a round on the way back puts there, or adds such up: the whole is made
// once, where somebody reads it.
bool GraphBuilder::makes_pieces(const Event& event) {
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  if (!goes_back(round_.loop)) return false;
  for (const Pieces& pieces : trace_.loops[round_.loop].pieces) {
    if (pieces.events[round_.round] != index) continue;
    Pieced made{.loop = round_.loop, .falls = pieces.falls};
    const Use& given = event.args[0].uses[0];
    meet(given, event);
    made.rows.emplace(round_.round, value(given, event).node);
    const auto rank = static_cast<int64_t>(event.args[1].constant.toIntVector().size());
    made.dim = static_cast<size_t>(wrap_dim(event.args[2].constant.toInt(), rank));
    hold_pieces(flat_results(event)[0], std::move(made));
    return true;
  }
  return adds_pieces(event);
}

void GraphBuilder::hold_pieces(const Use& use, Pieced made) {
  State& state = states_[use.tensor];
  state = State{};
  state.known = true;
  state.meta = use.meta;
  pieced_[use.tensor] = std::move(made);
}

bool GraphBuilder::adds_pieces(const Event& event) {
  const bool is_sum = event.name == "aten::add.Tensor" || event.name == "aten::add_.Tensor";
  if (!is_sum || pieced_.empty()) return false;
  const Use &a = event.args[0].uses[0], &b = event.args[1].uses[0];
  const auto one = pieced_.find(a.tensor), other = pieced_.find(b.tensor);
  if (one == pieced_.end() && other == pieced_.end()) return false;
  const Use& result = flat_results(event)[0];
  if (one != pieced_.end() && other != pieced_.end() && one->second.loop == other->second.loop) {
    if (!can_join(one->second, other->second)) return false;
    // In place, as all rounds but the first two do it, it stays where it is.
    Pieced made = result.tensor == a.tensor ? std::move(one->second) : one->second;
    join(made, other->second);
    hold_pieces(result, std::move(made));
    return true;
  }
  // The first piece of a round is added to what was there.
  const bool is_first = one != pieced_.end() && one->second.loop == round_.loop;
  const auto piece = is_first ? one : other;
  if (piece == pieced_.end()) return false;
  Pieced made = piece->second;
  if (made.has_base() || made.loop != round_.loop || made.rows.size() != 1 || round_.round != 0) return false;
  const auto rest = is_first ? other : one;
  if (rest != pieced_.end()) {
    made.others = std::make_shared<const Pieced>(rest->second);
  } else {
    meet(is_first ? b : a, event);
    made.base = value(is_first ? b : a, event).node;
  }
  hold_pieces(result, std::move(made));
  return true;
}

// Whether what is put together in one loop can be one: of a row that both have, the round at hand makes the sum.
bool GraphBuilder::can_join(const Pieced& to, const Pieced& more) const {
  const auto is_new = [&](const auto& row) {
    return !to.rows.contains(row.first) || (row.first == round_.round && !ir::is_half(graph_[row.second].dtype));
  };
  return to.dim == more.dim && to.falls == more.falls && !(to.has_base() && more.has_base()) &&
         std::ranges::all_of(more.rows, is_new);
}

void GraphBuilder::join(Pieced& to, const Pieced& more) {
  if (more.has_base()) std::tie(to.base, to.others) = std::tie(more.base, more.others);
  for (const auto& [round, node] : more.rows) {
    const auto [row, is_new] = to.rows.emplace(round, node);
    if (!is_new) row->second = graph_.pointwise(ir::Op::Add, {row->second, node});
  }
}

// Somebody reads what the rounds have put together.
void GraphBuilder::settle_pieces(const Use& use) {
  const auto found = pieced_.find(use.tensor);
  if (found == pieced_.end()) return;
  const Pieced made = std::move(found->second);
  pieced_.erase(found);
  put_together_.insert(use.tensor);
  State& state = states_[use.tensor];
  state.node = put_together(made);
  state.meta = with_layout(use.meta, graph_.layout(state.node));
}

ir::NodeId GraphBuilder::put_together(const Pieced& made) {
  const Dim trip = graph_.traced[traced_[made.loop]].trip;
  std::vector<ir::NodeId> rows;
  for (const auto& [round, node] : made.rows) rows.push_back(node);
  const ir::NodeId row = rows[0];
  std::vector<Dim> sizes(graph_.sizes(row).begin(), graph_.sizes(row).end());
  const auto dim = static_cast<std::ptrdiff_t>(made.dim);
  sizes.insert(sizes.begin() + dim, trip);
  const bool is_whole =
      rows.size() == trace_.loops[made.loop].rounds() && round_.loop == kNone && !ir::is_half(graph_[row].dtype);
  const ir::NodeId all = is_whole ? as_rows(rows, trip) : ir::kNoNode;
  if (all == ir::kNoNode) {  // the graph is made again, for so many rounds
    fix_loop(made.loop);
    return graph_.expand(graph_.constant(ir::DType::F32, 0), std::move(sizes));
  }
  ir::IndexMap map = ir::identity_map(sizes.size());
  std::rotate(map.dims.begin(), map.dims.begin() + dim, map.dims.begin() + dim + 1);
  if (made.falls) map.dims[0] = {trip - 1, {{static_cast<uint8_t>(made.dim), -1}}};
  ir::NodeId node = graph_.view(all, std::move(map), std::move(sizes));
  const ir::NodeId base = made.others ? put_together(*made.others) : made.base;
  if (base != ir::kNoNode) node = graph_.pointwise(ir::Op::Add, {base, node});
  // Eager has added zeros to each element.
  return graph_.pointwise(ir::Op::Add, {node, graph_.constant(graph_[node].dtype, 0)});
}

}  // namespace fastjit::capture
