#include "capture/record/loops_back.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <unordered_map>

#include "capture/record/loops_of_layers.h"
#include "capture/record/slices_back.h"

namespace fastjit::capture {
namespace {

constexpr size_t kFewestRounds = 5;  // of which three are alike

bool are_like(const std::vector<CallValue>& a, const std::vector<CallValue>& b) {
  return std::ranges::equal(a, b, [](const CallValue& x, const CallValue& y) {
    const auto is_there = [](const Use& u, const Use& v) { return (u.tensor == kNone) == (v.tensor == kNone); };
    return x.kind == y.kind && std::ranges::equal(x.uses, y.uses, is_there);
  });
}

bool have_like_sizes(std::span<const Use> a, std::span<const Use> b) {
  return std::ranges::equal(a, b, [](const Use& x, const Use& y) {
    return x.tensor == kNone || y.tensor == kNone ? x.tensor == y.tensor
                                                  : x.meta->dtype == y.meta->dtype && x.meta->sizes == y.meta->sizes;
  });
}

/// Whether both rounds ran operators of the same names, in the same nesting.
bool are_like(const Trace& trace, const PythonLoop& loop, uint32_t a, uint32_t b) {
  const auto count = [&](uint32_t round) { return loop.begins[round + 1].event - loop.begins[round].event; };
  if (count(a) != count(b)) return false;
  for (uint32_t event = loop.begins[a].event; event < loop.begins[a + 1].event; ++event) {
    const Event &x = trace.events[event], &y = trace.events[in_round(loop, event, a, b)];
    const bool is_nested = x.parent != kNone && x.parent >= loop.begins[a].event;
    const bool is_alike = x.name == y.name && in_round(loop, x.end, a, b) == y.end && are_like(x.args, y.args) &&
                          (!is_nested || in_round(loop, x.parent, a, b) == y.parent);
    if (!is_alike || !have_like_sizes(flat_results(x), flat_results(y))) return false;
  }
  return true;
}

/// Whether operators of autograd's formulas were given the same numbers in both rounds, but for which part it is that
/// pieces and slices have.
bool have_same_numbers(const Trace& trace, const PythonLoop& loop, uint32_t a, uint32_t b) {
  const auto is_piece = [&](uint32_t event) {
    return std::ranges::any_of(loop.pieces, [&](const Pieces& pieces) { return pieces.events[a] == event; });
  };
  const auto is_of_slice = [&](uint32_t event) {
    return std::ranges::any_of(loop.slices, [&](const Slices& slices) { return slices.has(a, event); });
  };
  const auto is_same = [](const CallValue& x, const CallValue& y) {
    if (x.kind == CallValue::Kind::Constant) return x.constant == y.constant;
    return std::ranges::equal(x.uses, y.uses, [](const Use& u, const Use& v) {
      if (!u.number || !v.number) return !u.number && !v.number;
      if (u.number->type() != v.number->type() || u.number->isComplex()) return false;
      return u.number->isFloatingPoint() ? u.number->toDouble() == v.number->toDouble()
                                         : u.number->toLong() == v.number->toLong();
    });
  };
  for (uint32_t event = loop.begins[a].event; event < loop.begins[a + 1].event; ++event) {
    if (is_piece(event)) {
      event = trace.events[event].end - 1;
      continue;
    }
    if (is_of_slice(event)) continue;
    if (!std::ranges::equal(trace.events[event].args, trace.events[in_round(loop, event, a, b)].args, is_same))
      return false;
  }
  return true;
}

/// Of a node of autograd's, or of an operator that it follows.
bool is_numbered(const Event& event) { return event.node >= 0; }

/// Per round of the loop the number of the first node of autograd's that was made in it or later; empty: a round made
/// none.
std::vector<int64_t> nodes_of_rounds(const Trace& trace, const PythonLoop& loop) {
  std::vector<int64_t> begins;
  for (size_t round = 0; round + 1 < loop.begins.size(); ++round) {
    const auto begin = trace.events.begin() + loop.begins[round].event;
    const auto end = trace.events.begin() + loop.begins[round + 1].event;
    const auto first = std::find_if(begin, end, is_numbered);
    if (first == end || std::any_of(begin, end, is_backward)) return {};
    begins.push_back(first->node);
  }
  const auto behind = trace.events.begin() + loop.begins.back().event;
  const auto next = std::find_if(behind, trace.events.end(), is_numbered);
  const bool is_call = next != trace.events.end() && !is_backward(*next);
  begins.push_back(is_call ? next->node : INT64_MAX);
  return begins;
}

/// Where the way back through these rounds begins, one after the other, and where the last one ends. Empty: autograd
/// does not go through all of them, or more than once.
std::vector<uint32_t> events_of_rounds(const Trace& trace, uint32_t from, const std::vector<int64_t>& nodes) {
  const size_t rounds = nodes.size() - 1;
  std::vector<uint32_t> begins;
  uint32_t end = 0;
  for (uint32_t i = from; i < trace.events.size(); i = std::max(trace.events[i].end, i + 1)) {
    const Event& event = trace.events[i];
    if (!is_backward(event) || event.node < nodes.front() || event.node >= nodes.back()) continue;
    const auto round = static_cast<size_t>(std::ranges::upper_bound(nodes, event.node) - nodes.begin()) - 1;
    const size_t back = rounds - 1 - round;
    if (back == begins.size())
      begins.push_back(i);
    else if (back + 1 != begins.size())
      return {};
    end = std::max(event.end, i + 1);
  }
  if (begins.size() != rounds) return {};
  begins.push_back(end);
  return begins;
}

/// Per event: how many tensors had been met before it.
std::vector<uint32_t> tensors_before(const Trace& trace) {
  std::vector<uint32_t> before;
  uint32_t met = 0;
  const auto meet = [&](const Use& use) {
    if (use.tensor != kNone) met = std::max(met, use.tensor + 1);
  };
  for (const Event& event : trace.events) {
    before.push_back(met);
    for (const CallValue& item : event.args) std::ranges::for_each(item.uses, meet);
    std::ranges::for_each(flat_results(event), meet);
  }
  before.push_back(met);
  return before;
}

/// How rounds go with those of another loop, or the next ones: where later ones go with earlier ones, it falls.
class Relation {
 public:
  explicit Relation(size_t rounds) : last_(static_cast<int64_t>(rounds) - 1) {}
  void add(int64_t round, int64_t other) {
    const auto are_near = [](int64_t a, int64_t b) { return std::abs(a - b) <= 1; };
    any_ = true;
    rises_ = rises_ && are_near(round, other);
    falls_ = falls_ && are_near(last_ - round, other);
  }
  /// Nothing: it is neither so nor the other way round.
  std::optional<bool> falls() const { return any_ && rises_ != falls_ ? std::optional(falls_) : std::nullopt; }

 private:
  const int64_t last_;
  bool any_ = false, rises_ = true, falls_ = true;
};

/// Visits (round, tensor) of all that operators in the rounds are given.
template <class Visit>
void for_each_given(const Trace& trace, const PythonLoop& loop, Visit visit) {
  for (uint32_t round = 0; round < loop.rounds(); ++round)
    for (uint32_t event = loop.begins[round].event; event < loop.begins[round + 1].event; ++event)
      for (const CallValue& item : trace.events[event].args)
        for (const Use& use : item.uses)
          if (use.tensor != kNone) visit(round, use.tensor);
}

/// Whether it gives the next part behind so many of the tensor that `first` gives one of.
bool gives_next_part(const Event& event, const Event& first, int64_t before) {
  const bool is_select = event.name == "aten::select.int";
  if ((!is_select && event.name != "aten::narrow") || event.name != first.name) return false;
  const int64_t length = is_select ? 1 : event.args[3].constant.toInt();
  return event.args[0].uses[0].tensor == first.args[0].uses[0].tensor &&
         event.args[1].constant == first.args[1].constant &&
         (is_select || event.args[3].constant == first.args[3].constant) &&
         event.args[2].constant.toInt() == before * length;
}

/// What the formula of torch.stack or cat gives to each round: parts of one tensor. Nothing: it is another, or for
/// others.
std::optional<Shares> shares_of(const Trace& trace, uint32_t formula, const PythonLoop& back) {
  std::vector<uint32_t> parts;
  for (uint32_t i = formula + 1; i < trace.events[formula].end; i = std::max(trace.events[i].end, i + 1)) {
    const Event& event = trace.events[i];
    if (event.name == "aten::add.Tensor" || event.name == "aten::add_.Tensor") continue;  // with others' gradients
    if (!gives_next_part(event, parts.empty() ? event : trace.events[parts[0]], std::ssize(parts))) return std::nullopt;
    parts.push_back(i);
  }
  if (parts.size() < back.rounds()) return std::nullopt;
  const size_t before = parts.size() - back.rounds();
  parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(before));
  std::unordered_map<uint32_t, int64_t> places;
  for (int64_t i = 0; i < std::ssize(parts); ++i)
    places.emplace(flat_results(trace.events[parts[static_cast<size_t>(i)]])[0].tensor, i);
  Relation relation(back.rounds());
  for_each_given(trace, back, [&](uint32_t round, uint32_t tensor) {
    if (const auto place = places.find(tensor); place != places.end()) relation.add(round, place->second);
  });
  if (!relation.falls()) return std::nullopt;
  return Shares{std::move(parts), static_cast<uint32_t>(before), *relation.falls()};
}

/// The derivatives of selects, the first of each round, the second and so on, where each has its round's part of a
/// tensor of as many.
std::vector<Pieces> pieces_in(const Trace& trace, const PythonLoop& back) {
  std::vector<Pieces> all;
  for (uint32_t round = 0; round < back.rounds(); ++round) {
    size_t which = 0;
    for (uint32_t i = back.begins[round].event; i < back.begins[round + 1].event; ++i) {
      if (trace.events[i].name != "aten::select_backward") continue;
      if (round == 0) all.emplace_back();
      if (which == all.size()) return {};
      all[which++].events.push_back(i);
    }
    if (which != all.size()) return {};
  }
  std::erase_if(all, [&](Pieces& pieces) {
    bool rises = true;
    pieces.falls = true;
    for (uint32_t round = 0; round < back.rounds(); ++round) {
      const std::vector<CallValue>& args = trace.events[pieces.events[round]].args;
      const auto sizes = args[1].constant.toIntVector();
      const auto dim = args[2].constant.toInt(), index = args[3].constant.toInt();
      const int64_t size = sizes[static_cast<size_t>(dim < 0 ? dim + std::ssize(sizes) : dim)];
      const bool is_of_all = size == static_cast<int64_t>(back.rounds());
      rises = rises && is_of_all && index == round;
      pieces.falls = pieces.falls && is_of_all && index == size - 1 - round;
    }
    return !rises && !pieces.falls;
  });
  return all;
}

/// A list that the formula of torch.unbind is given, with what each round has for its row.
void find_rows(Trace& trace, uint32_t which) {
  const PythonLoop& back = trace.loops[which];
  for (uint32_t i = back.begins.back().event; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (event.name != "aten::stack" || event.parent == kNone || !is_backward(trace.events[event.parent])) continue;
    const auto& uses = event.args[0].uses;
    if (uses.size() != back.rounds()) continue;
    const auto has = [&](uint32_t round, const Use& use) {
      return use.tensor != kNone && use.tensor >= back.begins[round].tensor &&
             use.tensor < back.begins[round + 1].tensor;
    };
    bool falls = true, rises = true;
    for (uint32_t round = 0; round < back.rounds(); ++round) {
      falls = falls && has(round, uses[back.rounds() - 1 - round]);
      rises = rises && has(round, uses[round]);
    }
    if (falls != rises) trace.rounds_uses.push_back({{which, 0, uses.size(), falls}, true, {i}});
  }
}

std::optional<PythonLoop> way_back_through(const Trace& trace, uint32_t which, const std::vector<uint32_t>& met) {
  const PythonLoop& loop = trace.loops[which];
  if (!loop.is_known() || loop.rounds() < kFewestRounds) return std::nullopt;
  for (uint32_t round = 1; round < loop.rounds(); ++round)
    if (!are_like(trace, loop, 0, round)) return std::nullopt;
  const std::vector<int64_t> nodes = nodes_of_rounds(trace, loop);
  if (nodes.empty()) return std::nullopt;
  const std::vector<uint32_t> events = events_of_rounds(trace, loop.begins.back().event, nodes);
  if (events.empty()) return std::nullopt;
  PythonLoop back{.range = loop.range,
                  .alike_from = 1,
                  .last_differs = true,
                  .line = loop.line,
                  .layer = loop.layer,
                  .back_of = which};
  for (const uint32_t event : events)
    back.begins.push_back({event, loop.begins.back().number, met[event], loop.begins.back().test});
  back.pieces = pieces_in(trace, back);
  back.slices = slices_in(trace, back);
  for (uint32_t round = kSameBack + 1; round + 1 < back.rounds(); ++round)
    if (!are_like(trace, back, kSameBack, round) || !have_same_numbers(trace, back, kSameBack, round))
      return std::nullopt;
  for (uint32_t i = loop.begins.back().event; i < events.front(); ++i) {
    if (!is_backward(trace.events[i])) continue;
    if (std::optional<Shares> shares = shares_of(trace, i, back)) back.shares.push_back(std::move(*shares));
  }
  return back;
}

}  // namespace

void find_ways_back(Trace& trace) {
  if (!trace.checkpoints.empty() || std::ranges::none_of(trace.events, is_backward)) return;
  const std::vector<uint32_t> met = tensors_before(trace);
  const size_t of_python = trace.loops.size(), lists = trace.rounds_uses.size();
  add_loops_of_layers(trace, met);
  std::vector<PythonLoop> backs;
  const auto count = static_cast<uint32_t>(trace.loops.size());
  for (uint32_t which = 0; which < count; ++which) {
    std::optional<PythonLoop> back = way_back_through(trace, which, met);
    if (back) backs.push_back(std::move(*back));
    // What is left of a layer's steps has the length of this call.
    if (back || which < of_python) continue;
    trace.loops.resize(of_python);
    trace.rounds_uses.resize(lists);
    std::erase_if(backs, [&](const PythonLoop& one) { return one.back_of >= of_python; });
    break;
  }
  for (PythonLoop& back : backs) {
    trace.loops.push_back(std::move(back));
    find_rows(trace, static_cast<uint32_t>(trace.loops.size()) - 1);
  }
}

bool is_left_out(const Trace& trace, const PythonLoop& loop) {
  constexpr size_t kFewest = 4;
  if (!loop.is_known() || loop.back_of != kNone || loop.rounds() < kFewest) return false;
  for (uint32_t round = 2; round + 1 < loop.rounds(); ++round)
    if (!are_like(trace, loop, 1, round)) return false;
  const auto begin = trace.events.begin() + loop.begins.front().event;
  const auto behind = trace.events.begin() + loop.begins.back().event;
  const auto first = std::find_if(begin, behind, is_numbered);
  const auto next = std::find_if(behind, trace.events.end(), is_numbered);
  if (first == behind || next == trace.events.end() || is_backward(*next)) return first == behind;
  return std::none_of(next, trace.events.end(), [&](const Event& event) {
    return is_backward(event) && event.node >= first->node && event.node < next->node;
  });
}

namespace {

/// The operators of the rounds, each with a number that it has in every round.
template <class Visit>
void for_each_operator(const Trace& trace, const PythonLoop& loop, Visit visit) {
  std::vector<int64_t> nodes;
  if (loop.back_of != kNone) nodes = nodes_of_rounds(trace, trace.loops[loop.back_of]);
  for (uint32_t round = 0; round < loop.rounds(); ++round) {
    int64_t number = -1;
    for (uint32_t event = loop.begins[round].event; event < loop.begins[round + 1].event; ++event) {
      constexpr int64_t kMost = 1 << 16;  // operators of a formula
      // On the way back not all rounds add to other gradients, which is the last that a formula's evaluation does.
      const bool begins = loop.back_of != kNone && is_backward(trace.events[event]);
      number = begins ? (trace.events[event].node - nodes[loop.rounds() - 1 - round]) * kMost : number + 1;
      visit(round, event, number);
    }
  }
}

}  // namespace

std::vector<RoundsGiven> given_to_rounds(const Trace& trace, const PythonLoop& to, const PythonLoop& from) {
  using Place = std::pair<int64_t, uint32_t>;  // operator, result
  struct Made {
    uint32_t round;
    Place place;
  };
  std::unordered_map<uint32_t, Made> made;  // by tensor
  std::map<Place, std::vector<const Use*>> in_rounds;
  for_each_operator(trace, from, [&](uint32_t round, uint32_t event, int64_t number) {
    const std::span<const Use> results = flat_results(trace.events[event]);
    for (uint32_t result = 0; result < results.size(); ++result) {
      if (results[result].tensor == kNone) continue;
      const Place place{number, result};
      made.try_emplace(results[result].tensor, Made{round, place});
      std::vector<const Use*>& all = in_rounds[place];
      all.resize(from.rounds());
      all[round] = &results[result];
    }
  });
  std::map<Place, Relation> relations;
  for_each_given(trace, to, [&](uint32_t round, uint32_t tensor) {
    const auto found = made.find(tensor);
    if (found != made.end())
      relations.try_emplace(found->second.place, from.rounds()).first->second.add(round, found->second.round);
  });
  std::vector<RoundsGiven> out;
  for (const auto& [place, relation] : relations) {
    const std::vector<const Use*>& all = in_rounds.at(place);
    const std::optional<bool> falls = relation.falls();
    if (!falls || std::ranges::find(all, nullptr) != all.end()) continue;
    RoundsGiven& given = out.emplace_back(std::vector<Use>(), *falls);
    for (const Use* use : all) given.made.push_back(*use);
  }
  return out;
}

}  // namespace fastjit::capture
