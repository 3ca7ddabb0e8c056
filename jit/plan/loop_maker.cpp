#include "plan/loop_maker.h"

#include <algorithm>
#include <memory>

#include "pass/slice.h"
#include "plan/hoist.h"
#include "plan/products.h"
#include "plan/updates.h"
#include "plan/work.h"

namespace fastjit::plan {

using ir::NodeId;
using ir::Op;

namespace {

using Of = Source::Of;
using Kind = PlacedValue::Kind;

/// Which of the loop's operands stands for what is there before it.
struct From {
  enum class In : uint8_t { Fixed, Packed, Tables } in;
  uint32_t index;
};

/// The number of the value in a list, to which it is added if it is not there.
template <class T>
uint32_t index_in(std::vector<T>& list, T value) {
  const auto found = std::ranges::find(list, value);
  const auto index = static_cast<uint32_t>(found - list.begin());
  if (found == list.end()) list.push_back(std::move(value));
  return index;
}

// What products made before a loop may hold. Those of all rounds grow with their number, and read their weights no
// faster than those of some.
constexpr int64_t kMostHoisted = 208 << 10;  // bytes
constexpr int64_t kFewestHoisted = 16;       // rounds: what a loop costs beside them

/// How many rounds a loop may have for what its products hold; all where it holds more than these anyway: weights that
/// are laid out for it, or what each round has made.
int64_t most_rounds(const MadeLoop& made) {
  int64_t bytes = 0;
  for (const Hoisted& hoisted : made.hoisted) bytes += hoisted.bytes;
  const auto is_of_all = [](const PlacedValue& placed) { return placed.kind != PlacedValue::Kind::Base; };
  const bool keeps_more = !made.packed.empty() || std::ranges::any_of(made.placed, is_of_all);
  if (keeps_more || bytes * made.rounds.trip <= kMostHoisted) return made.rounds.trip;
  return std::max(kMostHoisted / bytes, kFewestHoisted);
}

class LoopMaker {
 public:
  LoopMaker(const ir::Graph& graph, const Sequence& sequence, Rounds rounds, const Wanted& wanted,
            const PlanOptions& options)
      : graph_(graph),
        options_(options),
        around_(graph.symbols ? *graph.symbols : none_),
        sequence_(sequence),
        wanted_(wanted),
        values_(rounds.period, ir::kNoNode) {
    made_.rounds = std::move(rounds);
  }

  std::optional<MadeLoop> run(bool at_most, const MadeLoop* like) {
    if (!find_carried() || !find_placed()) return std::nullopt;
    find_hoisted();
    if (!find_outside()) return std::nullopt;
    made_.most = most_rounds(made_);
    if (at_most && made_.most < rounds().trip) return std::move(made_);
    if (!make_body()) return std::nullopt;
    const bool is_any = rounds().count.is_symbolic();
    if (is_any && (!tables_.empty() || guards_)) return std::nullopt;  // as many values as the recorded call read
    auto body = like && is_as(*like) ? std::optional(like->body) : plan(is_any && !options_.no_library);
    if (!body || (body->has_calls && !tables_.empty())) return std::nullopt;
    body->calls = std::move(calls_);
    body->guards = guards_.value_or(0);
    made_.asked = std::make_shared<const ir::Graph>(std::move(body_));
    made_.attr.trip = rounds().count;
    made_.attr.scratch = body->scratch;
    made_.attr.body = body->graph;
    made_.body = std::move(*body);
    return std::move(made_);
  }

 private:
  const Rounds& rounds() const { return made_.rounds; }
  uint32_t period() const { return made_.rounds.period; }
  NodeId node(int64_t round, uint32_t at) const { return rounds().node(sequence_, round, at); }
  Op op(uint32_t at) const { return graph_[node(0, at)].op; }

  std::optional<Body> plan(bool calls) {
    return plan_body(body_, rounds().count, made_.attr.carried, calls, options_, around_);
  }
  bool is_as(const MadeLoop& like) const;
  bool make_body();
  bool find_carried();
  bool find_placed();
  bool is_chain(uint32_t last) const;
  void find_hoisted();
  /// Whether kernels compute this product, if the right factor lies `by_rows`.
  bool is_own(uint32_t at, bool by_rows) const {
    return options_.own_products && is_own_product(graph_, node(1, at), options_.costs, options_.no_library, by_rows);
  }
  bool packs(uint32_t at, size_t k) const { return is_packed(graph_, sequence_, rounds(), at, k, options_.costs); }
  bool find_outside();
  bool take_outside(uint32_t at, size_t k);
  void make_inputs();
  void add_input(ir::DType dtype, ir::Layout layout, const std::string& name);
  void add_input(NodeId like, const std::string& name);
  void add_input(ir::DType dtype, std::vector<ir::Dim> sizes, const std::string& name);
  void add_placed(const PlacedValue& placed);
  NodeId rows_of(uint32_t at);
  bool make(uint32_t at);
  NodeId operand(uint32_t at, size_t k);
  NodeId seen(std::span<const NodeId> per_round, NodeId base);
  NodeId copy_constant(NodeId id);
  NodeId copy_node(std::span<const NodeId> per_round, std::vector<NodeId> operands);
  void take_guard(std::span<const NodeId> per_round);
  std::optional<uint32_t> map_of(std::span<const NodeId> per_round);
  std::vector<NodeId> nodes_at(uint32_t at) const;
  void make_outputs();
  void add_output(NodeId value);
  void make_stores();
  void store(NodeId now);
  NodeId with_part(NodeId now, const CatOfRounds& of, CatOfRounds::Part part);
  ir::NodeId& input_of(uint32_t placed) { return inputs_[made_.attr.carried + placed]; }

  const ir::Graph& graph_;
  const PlanOptions& options_;
  ir::Symbols none_;
  ir::Symbols& around_;
  const Sequence& sequence_;
  const Wanted& wanted_;
  MadeLoop made_;
  ir::Graph body_;
  ir::Dim round_;
  std::vector<NodeId> values_;                        // per node of a round: in the body
  std::map<uint32_t, NodeId> before_;                 // node of a round -> what it is before the first
  std::map<uint32_t, uint32_t> carried_;              // node of a round -> input
  std::map<uint32_t, uint32_t> hoists_;               // node of a round -> which of the hoisted
  std::map<uint32_t, uint32_t> bases_;                // the last Update of a Base -> which of the placed
  std::vector<NodeId> fixed_;                         // bases that are the same in all rounds
  std::vector<std::vector<NodeId>> tables_;           // those of each round
  std::map<std::pair<uint32_t, size_t>, From> from_;  // per operand from outside that is no constant
  std::vector<NodeId> inputs_;                        // of the body
  std::map<NodeId, NodeId> constants_;
  std::vector<uint32_t> calls_;     // per call of the body: its number here
  std::optional<uint32_t> guards_;  // values that guards of a round ask for
  bool failed_ = false;
};

/// Whether its body is the plan of the same work, without calls of torch's, in as many rounds.
bool LoopMaker::is_as(const MadeLoop& like) const {
  static_assert(std::has_unique_object_representations_v<ir::Node>);
  const ir::Graph &a = body_, &b = *like.asked;
  const auto bytes = [](const ir::Graph& of) { return std::as_bytes(std::span(of.nodes)); };
  const auto are_alike = [](const ir::ContractAttr& x, const ir::ContractAttr& y) {
    return x.kind == y.kind && x.operands == y.operands && x.unscaled == y.unscaled && !x.window && !y.window;
  };
  const auto is_same_store = [](const ir::Store& x, const ir::Store& y) { return x.value == y.value; };
  return !like.body.has_calls && ir::identical(rounds().count, like.attr.trip) && a.externs.empty() &&
         b.externs.empty() && made_.attr.carried == like.attr.carried && made_.attr.placed == like.attr.placed &&
         std::ranges::equal(bytes(a), bytes(b)) && a.layouts == b.layouts && a.constants == b.constants &&
         a.maps == b.maps && a.reduces == b.reduces && a.lists == b.lists && a.outputs == b.outputs &&
         std::ranges::equal(a.contracts, b.contracts, are_alike) &&
         std::ranges::equal(a.stores, b.stores, is_same_store);
}

bool LoopMaker::make_body() {
  body_.symbols = around_.for_body();
  const ir::Symbols::Scope scope(body_.symbols.get());
  round_ = body_.symbols->add(ir::LoopAttr::kFirstRound, "round") - ir::LoopAttr::kFirstRound;
  body_.scalars = graph_.scalars;
  make_inputs();
  for (uint32_t at = 0; at < period(); ++at)
    if (!make(at)) return false;
  make_outputs();
  make_stores();
  return true;
}

/// Values that go from one round to the next, each of which begins as one value.
bool LoopMaker::find_carried() {
  for (const Source& source : rounds().sources) {
    if (source.of != Of::Before) continue;
    const auto [found, fresh] = before_.try_emplace(source.at, source.first);
    if (!fresh && found->second != source.first) return false;
  }
  return true;
}

/// Whether Updates of a round lead from what this one was in the round before to what it is now, each stored over the
/// one before.
bool LoopMaker::is_chain(uint32_t last) const {
  for (uint32_t at = last;;) {
    if (op(at) != Op::Update || is_sweep(graph_, node(1, at))) return false;
    const Source& base = rounds().sources_of(at)[0];
    if (base.of == Of::Before) return base.at == last;
    if (base.of == Of::Outside) return false;
    at = base.at;
  }
}

bool LoopMaker::find_placed() {
  for (const auto& [at, first] : before_) {
    if (is_chain(at)) {
      if (graph_[first].layout != graph_[node(0, at)].layout || wanted_.all[at]) return false;
      bases_[at] = static_cast<uint32_t>(made_.placed.size());
      made_.placed.push_back({Kind::Base, at, first});
    } else {
      carried_[at] = static_cast<uint32_t>(carried_.size());
    }
  }
  for (uint32_t at = 0; at < period(); ++at)
    if (wanted_.all[at]) {
      if (op(at) == Op::Update || op(at) == Op::Undef) return false;
      made_.placed.push_back({Kind::Gather, at});
    }
  for (const CatOfRounds& cat : wanted_.cats) made_.placed.push_back({Kind::Cat, cat.parts[0].at, ir::kNoNode, cat});
  return true;
}

std::vector<NodeId> LoopMaker::nodes_at(uint32_t at) const {
  std::vector<NodeId> nodes(static_cast<size_t>(rounds().trip));
  for (size_t round = 0; round < nodes.size(); ++round) nodes[round] = node(static_cast<int64_t>(round), at);
  return nodes;
}

bool LoopMaker::find_outside() {
  for (uint32_t at = 0; at < period(); ++at)
    for (size_t k = 0; k < rounds().sources_of(at).size() && !hoists_.contains(at); ++k)
      if (rounds().sources_of(at)[k].of == Of::Outside && !take_outside(at, k)) return false;
  return true;
}

/// Larger products than kernels compute keep the library's bits, which depend on the number of rows. What all rounds
/// together make must not be memory that one of them would never take.
void LoopMaker::find_hoisted() {
  constexpr int64_t kMostBytes = 32 << 20;
  for (uint32_t at = 0; at < period(); ++at) {
    const NodeId first = node(0, at);
    if (op(at) != Op::Contract) continue;
    const ir::Dim bytes = graph_.layout(first).numel() * ir::size_of(graph_[first].dtype);
    if (bytes.hint() * rounds().trip > kMostBytes) continue;
    std::optional<Hoisted> made = hoisted(graph_, sequence_, rounds(), at);
    const bool by_rows = packs(at, rounds().sources_of(at).size() - 1);
    if (!made || !is_own(at, by_rows)) continue;
    if (rounds().count.is_symbolic() && bytes * rounds().count > kMostBytes) continue;
    made->bytes = bytes.hint();
    hoists_[at] = static_cast<uint32_t>(made_.hoisted.size());
    made_.hoisted.push_back(std::move(*made));
  }
}

static bool is_constant(Op op) { return op == Op::Const || op == Op::Scalar || op == Op::Iota; }

bool LoopMaker::take_outside(uint32_t at, size_t k) {
  const auto nodes = rounds().operands_at(at, k);
  work(nodes.size());
  if (op(at) == Op::Contract && packs(at, k) && is_own(at, true)) {
    from_[{at, k}] = {From::In::Packed, index_in(made_.packed, nodes[0])};
    return true;
  }
  std::vector<NodeId> bases(is_one_node(nodes) ? 1 : nodes.size());
  for (size_t i = 0; i < bases.size(); ++i) bases[i] = base_of(graph_, sequence_, nodes[i]);
  const bool is_one = is_one_node(bases);
  if (std::ranges::any_of(bases, [&](NodeId id) { return is_constant(graph_[id].op); })) return is_one;
  const auto is_like_first = [&](NodeId id) {
    return graph_[id].layout == graph_[bases[0]].layout && graph_[id].dtype == graph_[bases[0]].dtype;
  };
  if (!std::ranges::all_of(bases, is_like_first)) return false;
  if (is_one)
    from_[{at, k}] = {From::In::Fixed, index_in(fixed_, bases[0])};
  else
    from_[{at, k}] = {From::In::Tables, index_in(tables_, std::move(bases))};
  return true;
}

void LoopMaker::add_input(ir::DType dtype, ir::Layout layout, const std::string& name) {
  inputs_.push_back(body_.input(dtype, std::move(layout), {name + std::to_string(inputs_.size())}));
}

void LoopMaker::add_input(NodeId like, const std::string& name) {
  add_input(graph_[like].dtype, graph_.layout(like), name);
}

/// By rows.
void LoopMaker::add_input(ir::DType dtype, std::vector<ir::Dim> sizes, const std::string& name) {
  std::vector<ir::Dim> strides = ir::row_major(sizes);
  add_input(dtype, ir::Layout{std::move(sizes), std::move(strides)}, name);
}

void LoopMaker::add_placed(const PlacedValue& placed) {
  if (placed.kind == Kind::Base) return add_input(placed.base, "placed");
  if (placed.kind == Kind::Cat) return add_input(placed.cat.cat, "placed");
  const auto each = graph_.sizes(node(0, placed.at));
  std::vector<ir::Dim> sizes{rounds().trip};
  sizes.insert(sizes.end(), each.begin(), each.end());
  add_input(graph_[node(0, placed.at)].dtype, std::move(sizes), "placed");
}

void LoopMaker::make_inputs() {
  ir::LoopAttr& attr = made_.attr;
  attr.carried = static_cast<uint32_t>(carried_.size());
  attr.placed = static_cast<uint32_t>(made_.placed.size());
  attr.fixed = static_cast<uint32_t>(fixed_.size() + made_.packed.size() + made_.hoisted.size());
  attr.tables = static_cast<uint32_t>(tables_.size());
  for (const auto& [at, input] : carried_) {
    add_input(node(0, at), "carried");
    attr.operands.push_back(before_[at]);
  }
  for (const PlacedValue& placed : made_.placed) {
    add_placed(placed);
    attr.operands.push_back(placed.base);
  }
  for (const NodeId base : fixed_) {
    add_input(base, "fixed");
    attr.operands.push_back(base);
  }
  for (const NodeId packed : made_.packed) {
    add_input(graph_[packed].dtype, graph_.layout(packed).sizes, "fixed");
    attr.operands.push_back(packed);
  }
  for (Hoisted& hoisted : made_.hoisted) {
    const auto each = graph_.sizes(node(0, hoisted.at));
    std::vector<ir::Dim> sizes(each.begin(), each.end());
    sizes[sizes.size() - 2] *= rounds().count;
    add_input(graph_[node(0, hoisted.at)].dtype, std::move(sizes), "fixed");
    hoisted.operand = static_cast<uint32_t>(attr.operands.size());
    attr.operands.push_back(ir::kNoNode);
  }
  for (const std::vector<NodeId>& table : tables_) {
    add_input(table[0], "table");
    attr.operands.insert(attr.operands.end(), table.begin(), table.end());
  }
}

/// The map of such a node with offsets that follow the round. Nothing: they do not.
std::optional<uint32_t> LoopMaker::map_of(std::span<const NodeId> per_round) {
  ir::IndexMap map = graph_.maps[graph_[per_round[0]].attr];
  const auto same = [&](NodeId id) { return graph_[id].attr == graph_[per_round[0]].attr; };
  if (!std::ranges::all_of(per_round, same)) {
    std::vector<const ir::IndexMap*> maps;
    maps.reserve(per_round.size());
    for (const NodeId id : per_round) maps.push_back(&graph_.maps[graph_[id].attr]);
    const std::optional<WalkingMap> walking = walking_map(maps, rounds().count);
    if (!walking) return std::nullopt;
    for (size_t row = 0; row < map.dims.size(); ++row)
      if (!ir::identical(walking->steps[row], 0)) map.dims[row].offset += walking->steps[row] * round_;
  }
  body_.maps.push_back(std::move(map));
  return static_cast<uint32_t>(body_.maps.size() - 1);
}

/// Each round's guard asks for a value so many further than the one before, as all guards of the rounds do.
void LoopMaker::take_guard(std::span<const NodeId> per_round) {
  const auto value = [&](size_t round) { return graph_.externs[graph_[per_round[round]].attr].call; };
  if (!guards_) guards_ = value(1) - value(0);
  for (size_t round = 0; round < per_round.size(); ++round)
    failed_ = failed_ || value(round) != value(0) + round * *guards_;
}

NodeId LoopMaker::copy_node(std::span<const NodeId> per_round, std::vector<NodeId> operands) {
  const ir::Node& like = graph_[per_round[0]];
  ir::Node made = like;
  made.layout = body_.intern(graph_.layouts[like.layout]);
  made.line = 0;
  const auto push = [](auto& table, auto value) {
    table.push_back(std::move(value));
    return static_cast<uint32_t>(table.size() - 1);
  };
  if (like.op == Op::Cat) {
    made.attr = push(body_.lists, ir::ListAttr{graph_.lists[like.attr].dim, std::move(operands)});
    return body_.append(made);
  }
  if (like.op == Op::Contract) {
    ir::ContractAttr attr = graph_.contracts[like.attr];
    attr.operands = std::move(operands);
    made.attr = push(body_.contracts, std::move(attr));
    return body_.append(made);
  }
  if (like.op == Op::Extern) {
    ir::ExternAttr attr = graph_.externs[like.attr];
    attr.operands = std::move(operands);
    made.attr = push(body_.externs, attr);
    calls_.push_back(like.attr);
    if (attr.kind == ir::ExternKind::Guard) take_guard(per_round);
    return body_.append(made);
  }
  std::ranges::fill(made.in, ir::kNoNode);
  std::ranges::copy(operands, made.in);
  if (like.op == Op::View || like.op == Op::Update) {
    const auto map = map_of(per_round);
    failed_ = failed_ || !map;
    made.attr = map.value_or(0);
  } else if (like.op == Op::Reduce || like.op == Op::Dot) {
    made.attr = push(body_.reduces, graph_.reduces[like.attr]);
  } else if (like.op == Op::Const) {
    made.attr = push(body_.constants, graph_.constants[like.attr]);
  }
  return body_.append(made);
}

/// A constant, or views of one.
NodeId LoopMaker::copy_constant(NodeId id) {
  const auto [found, fresh] = constants_.try_emplace(id, ir::kNoNode);
  if (!fresh) return found->second;
  std::vector<NodeId> operands;
  for (const NodeId in : graph_.operands(id)) operands.push_back(copy_constant(in));
  return constants_[id] = copy_node(std::span(&id, 1), std::move(operands));
}

/// `base`, of the body, as these nodes see it, one a round.
NodeId LoopMaker::seen(std::span<const NodeId> per_round, NodeId base) {
  std::vector<std::vector<NodeId>> levels(seen_through(graph_, sequence_, per_round[0]).views.size());
  const auto is_view = [&](NodeId id) { return ir::is_view(graph_[id].op) && !sequence_.looped[id]; };
  for (std::vector<NodeId>& level : levels) level.reserve(per_round.size());
  for (NodeId id : per_round) {
    for (std::vector<NodeId>& level : levels) {
      failed_ = failed_ || !is_view(id);
      if (failed_) return base;
      level.push_back(id);
      id = graph_[id].in[0];
    }
    failed_ = failed_ || is_view(id);
  }
  for (; !levels.empty() && !failed_; levels.pop_back()) {
    const ir::Node& first = graph_[levels.back()[0]];
    for (const NodeId id : levels.back())
      failed_ = failed_ || graph_[id].op != first.op || graph_[id].layout != first.layout;
    if (!failed_) base = copy_node(levels.back(), {base});
  }
  return base;
}

NodeId LoopMaker::operand(uint32_t at, size_t k) {
  const Source& source = rounds().sources_of(at)[k];
  if (source.of == Of::Round) return values_[source.at];
  if (source.of == Of::Before) {
    const auto base = bases_.find(source.at);
    return base != bases_.end() ? input_of(base->second) : inputs_[carried_[source.at]];
  }
  auto per_round = rounds().operands_at(at, k);
  const auto from = from_.find({at, k});
  if (from == from_.end()) {
    failed_ = failed_ || !is_one_node(per_round);
    return copy_constant(per_round[0]);
  }
  if (is_one_node(per_round)) per_round = per_round.first(1);
  const uint32_t first = made_.attr.carried + made_.attr.placed;
  const auto& [in, index] = from->second;
  if (in == From::In::Packed) return inputs_[first + fixed_.size() + index];
  return seen(per_round, inputs_[first + (in == From::In::Tables ? made_.attr.fixed : 0) + index]);
}

/// This round's rows of the product that was made for all.
NodeId LoopMaker::rows_of(uint32_t at) {
  const Hoisted& hoisted = made_.hoisted[hoists_[at]];
  const auto sizes = graph_.sizes(node(0, at));
  ir::IndexMap map = ir::identity_map(sizes.size());
  const size_t row = sizes.size() - 2;
  map.dims[row].offset = sizes[row] * round_;
  return body_.view(inputs_[hoisted.operand], std::move(map), {sizes.begin(), sizes.end()});
}

bool LoopMaker::make(uint32_t at) {
  if (hoists_.contains(at)) {
    values_[at] = rows_of(at);
    return true;
  }
  std::vector<NodeId> operands;
  for (size_t k = 0; k < rounds().sources_of(at).size(); ++k) operands.push_back(operand(at, k));
  if (failed_) return false;
  values_[at] = copy_node(nodes_at(at), std::move(operands));
  return !failed_;
}

/// Each output is a tensor of its own.
void LoopMaker::add_output(NodeId value) {
  const bool is_own = body_[value].op != Op::Input && std::ranges::count(body_.outputs, value) == 0;
  body_.outputs.push_back(is_own ? value : body_.fresh_copy(value, body_.layout(value).strides));
}

void LoopMaker::make_outputs() {
  for (const auto& [at, input] : carried_) {
    made_.finals[at] = input;
    add_output(values_[at]);
  }
  for (uint32_t at = 0; at < period(); ++at) {
    if (const auto base = bases_.find(at); base != bases_.end()) made_.finals[at] = made_.attr.carried + base->second;
    if (!wanted_.last[at] || wanted_.all[at] || made_.finals.contains(at)) continue;
    made_.finals[at] = made_.attr.carried + made_.attr.placed + made_.attr.lasts++;
    add_output(values_[at]);
  }
}

void LoopMaker::store(NodeId now) {
  const auto which = static_cast<uint32_t>(body_.stores.size());
  body_.stores.push_back({made_.attr.carried + which, now, 0});
}

/// `now` with the round's part of the Cat, looked at as it is there.
NodeId LoopMaker::with_part(NodeId now, const CatOfRounds& of, CatOfRounds::Part part) {
  const ir::ListAttr& list = graph_.lists[graph_[of.cat].attr];
  const auto dim = static_cast<size_t>(list.dim);
  const auto length = [&](size_t operand) { return graph_.sizes(list.operands[operand])[dim]; };
  NodeId value = values_[part.at];
  std::vector<NodeId> views;
  for (NodeId id = list.operands[part.first]; id != node(0, part.at); id = graph_[id].in[0]) views.push_back(id);
  for (; !views.empty(); views.pop_back()) value = copy_node(std::span(&views.back(), 1), {value});
  ir::Dim before = 0, step = 0;
  for (uint32_t i = 0; i < part.first; ++i) before += length(i);
  for (int64_t i = 0; i < of.stride; ++i) step += length(part.first + static_cast<size_t>(i));
  for (int64_t i = of.stride; i < 0; ++i) step -= length(static_cast<size_t>(part.first + i));
  ir::IndexMap map = ir::identity_map(graph_.sizes(of.cat).size());
  map.dims[dim].offset = before + step * round_;
  return body_.update(now, value, std::move(map));
}

void LoopMaker::make_stores() {
  for (const PlacedValue& placed : made_.placed) {
    const auto which = static_cast<uint32_t>(body_.stores.size());
    if (placed.kind == Kind::Base) {
      store(values_[placed.at]);
    } else if (placed.kind == Kind::Cat) {
      NodeId now = input_of(which);
      for (const CatOfRounds::Part part : placed.cat.parts) now = with_part(now, placed.cat, part);
      store(now);
    } else {
      made_.gathers[placed.at] = made_.attr.carried + which;
      const NodeId value = values_[placed.at];
      store(body_.update(input_of(which), value, gathered_at(round_, body_[value].rank)));
    }
  }
}

}  // namespace

ir::IndexMap gathered_at(ir::Dim round, size_t rank) { return pass::slice_map(rank, 0, round); }

bool CatOfRounds::is_round(size_t operand) const {
  return std::ranges::any_of(parts, [&](const Part& part) {
    const int64_t distance = static_cast<int64_t>(operand) - part.first, round = distance / stride;
    return distance % stride == 0 && round >= 0 && round < trip;
  });
}

std::optional<MadeLoop> make_loop(const ir::Graph& graph, const Sequence& sequence, Rounds rounds, const Wanted& wanted,
                                  const PlanOptions& options, bool at_most, const MadeLoop* like) {
  return LoopMaker(graph, sequence, std::move(rounds), wanted, options).run(at_most, like);
}

}  // namespace fastjit::plan
