// The method follows XLA's ComputeGloballyUnfusible (recompute only what reads no more than its result) and cuts trees
// as Kundu and Misra do (SIAM J. Comput. 6, 1977: the heaviest operand first), chains at a place that their text names.
#include "plan/choose.h"

#include <algorithm>
#include <array>

#include "plan/work.h"
#include "support/mix.h"

namespace fastjit::plan {

namespace {

using support::mix;

/// A node and how it is looked at: 0 as it is, else a hash of the views in between.
struct Key {
  ir::NodeId node;
  uint64_t through;
  auto operator<=>(const Key&) const = default;
};

/// What a load touches, in elements; a broadcast operand once.
struct Stream {
  Key key;
  int64_t points;
  bool operator<(const Stream& other) const { return key < other.key; }
  bool operator==(const Stream& other) const { return key == other.key; }
};

/// Hashes of a value's last 1, 2, ... 8 levels of operations: they name a place in a chain by what stands there,
/// wherever the chain began.
using Window = std::array<uint64_t, 8>;

/// At how many points a value is computed if it is not stored, and in how many places: as it is, and through each view.
struct Spread {
  int64_t direct = 0, viewed = 0;  // points
  uint32_t places = 0;             // views
  int64_t points() const { return direct + viewed; }
};

template <class T>
void make_set(std::vector<T>& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

class Chooser {
 public:
  Chooser(const ir::Graph& graph, const std::vector<bool>& live, const std::vector<bool>& needed, const Costs& costs)
      : graph_(graph),
        live_(live),
        costs_(costs),
        anchors_(graph.nodes.size(), ir::kNoNode),
        many_(graph.nodes.size(), false),
        spread_(graph.nodes.size()),
        streams_(graph.nodes.size()),
        cones_(graph.nodes.size()),
        windows_(graph.nodes.size()) {
    out_.why.assign(graph.nodes.size(), Why::Free);
    out_.structure.assign(graph.nodes.size(), 0);
    for (ir::NodeId id = 0; id < graph.nodes.size(); ++id)
      if (needed[id]) out_.why[id] = Why::Needed;
  }

  Choice run() {
    mark_parts();
    find_anchors();
    find_spread();
    for (ir::NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (live_[id]) visit(id);
    return std::move(out_);
  }

 private:
  void mark_parts();
  void find_anchors();
  void find_spread();
  bool is_spread(ir::NodeId id) const;
  int64_t cost_again(ir::NodeId id) const;
  void read_by(ir::NodeId value, ir::NodeId kernel);
  void visit(ir::NodeId id);
  void settle(ir::NodeId id);
  void cut(ir::NodeId id);
  ir::NodeId place_to_cut(ir::NodeId id) const;
  uint64_t hash_own(ir::NodeId id) const;
  void hash_window(ir::NodeId id);
  void hash_structure(ir::NodeId id);
  Why verdict(ir::NodeId id) const;
  bool is_step(ir::NodeId id) const { return graph_[id].op == ir::Op::Extern || graph_[id].op == ir::Op::Loop; }
  bool in_memory(ir::NodeId id) const { return is_stored(out_.why[id]) || is_tensor(graph_[id].op); }
  bool too_much(ir::NodeId id) const {
    return cones_[id].size() > Bounds::cone || streams_[id].size() > Bounds::streams;
  }
  bool half_full(ir::NodeId id) const {
    return cones_[id].size() >= Bounds::cone / 2 || streams_[id].size() >= Bounds::streams / 2;
  }
  int64_t points(ir::NodeId id) const { return graph_.layout(id).numel().hint(); }  // any choice is right
  int64_t bytes(ir::NodeId id) const { return points(id) * ir::size_of(graph_[id].dtype); }

  const ir::Graph& graph_;
  const std::vector<bool>& live_;
  const Costs& costs_;
  Choice out_;
  std::vector<ir::NodeId> anchors_;  // the one value in memory, or call, that reads this
  std::vector<bool> many_;           // several do
  std::vector<Spread> spread_;
  std::vector<std::vector<Stream>> streams_;  // loads that computing it takes, sorted
  std::vector<std::vector<Key>> cones_;       // operations and views that computing it takes, sorted
  std::vector<Window> windows_;               // hashes of the last operations below it, whatever is stored
};

/// A part of a Cat is written into its slice, and the value of an Update into its region, by a kernel of its own: of
/// what others read too, by the one that computes it.
void Chooser::mark_parts() {
  std::vector<uint32_t> readers(graph_.nodes.size(), 0);
  for (ir::NodeId id = 0; id < graph_.nodes.size(); ++id)
    for (const ir::NodeId in : graph_.operands(id))
      if (live_[id] && in != ir::kNoNode) ++readers[in];
  for (ir::NodeId id = 0; id < graph_.nodes.size(); ++id) {
    if (!live_[id] || (graph_[id].op != ir::Op::Cat && graph_[id].op != ir::Op::Update)) continue;
    for (const ir::NodeId part : graph_.operands(id).subspan(graph_[id].op == ir::Op::Update))
      if (ir::is_pointwise(graph_[part].op) && points(part) > 0) out_.why[part] = Why::Needed;
    if (graph_[id].op != ir::Op::Update) continue;
    ir::NodeId value = graph_[id].in[1];
    while (ir::is_view(graph_[value].op) && points(graph_[value].in[0]) == points(value)) value = graph_[value].in[0];
    if (ir::is_pointwise(graph_[value].op) && readers[value] > 1 && points(value) > 0) out_.why[value] = Why::Needed;
  }
}

void Chooser::read_by(ir::NodeId value, ir::NodeId kernel) {
  if (kernel == ir::kNoNode) return;
  if (anchors_[value] == ir::kNoNode) anchors_[value] = kernel;
  many_[value] = many_[value] || anchors_[value] != kernel;
}

void Chooser::find_anchors() {
  for (ir::NodeId id = static_cast<ir::NodeId>(graph_.nodes.size()); id-- > 0;) {
    if (!live_[id]) continue;
    if (in_memory(id) || many_[id] || is_step(id)) anchors_[id] = id;
    for (const ir::NodeId in : graph_.operands(id))
      if (in != ir::kNoNode) read_by(in, anchors_[id]);
  }
}

void Chooser::find_spread() {
  for (ir::NodeId id = static_cast<ir::NodeId>(graph_.nodes.size()); id-- > 0;) {
    if (!live_[id]) continue;
    const Spread& own = spread_[id];
    for (const ir::NodeId in : graph_.operands(id)) {
      if (in == ir::kNoNode) continue;
      Spread& read = spread_[in];
      if (ir::is_view(graph_[id].op)) {
        read.viewed += own.points();
        read.places += own.places + (own.direct > 0);
      } else {
        const bool is_again = ir::is_pointwise(graph_[id].op) && !in_memory(id);
        read.direct = std::max({read.direct, points(id), is_again ? own.points() : 0});
      }
    }
  }
}

/// In picoseconds, at each of its points.
int64_t Chooser::cost_again(ir::NodeId id) const {
  int64_t again = 0;
  for (const Key& key : cones_[id])
    again += costs_.compute(work_of(graph_[key.node].op)) * std::min(points(id), points(key.node));
  return again;
}

/// A kernel computes what it reads in one place where it needs it, which costs no launch and hardly a longer text.
bool Chooser::is_spread(ir::NodeId id) const {
  constexpr uint32_t kPlaces = 4;
  const Spread& spread = spread_[id];
  const int64_t own = points(id);
  if (own == 0 || spread.places < kPlaces || !costs_.is_spread(own, spread.viewed / spread.places)) return false;
  const int64_t stored = costs_.write(bytes(id)) + costs_.read(bytes(id)) + costs_.launch;
  return cost_again(id) * (spread.viewed / own) > stored;
}

/// Of the node without its operands.
uint64_t Chooser::hash_own(ir::NodeId id) const {
  const ir::Node& node = graph_[id];
  const uint64_t hash = mix(static_cast<uint64_t>(node.op) + 1, static_cast<uint64_t>(node.dtype));
  return node.op == ir::Op::Const ? mix(hash, graph_.constants[node.attr]) : hash;
}

void Chooser::hash_window(ir::NodeId id) {
  const uint64_t own = hash_own(id);
  Window& window = windows_[id];
  window.fill(own);
  for (const ir::NodeId in : graph_.operands(id))
    for (size_t k = 1; in != ir::kNoNode && k < window.size(); ++k) window[k] += mix(own, windows_[in][k - 1]);
}

/// How the value is made of values in memory: those count by type alone.
void Chooser::hash_structure(ir::NodeId id) {
  const uint64_t own = hash_own(id);
  const auto of = [&](ir::NodeId in) {
    return in_memory(in) ? static_cast<uint64_t>(graph_[in].dtype) : out_.structure[in];
  };
  // A dim of size 1 makes a view of what is a reshape without it, which is no other arithmetic.
  if (ir::is_view(graph_[id].op)) {
    out_.structure[id] = of(graph_[id].in[0]);
    return;
  }
  uint64_t sum = 0;
  for (const ir::NodeId in : graph_.operands(id)) {
    const uint64_t below = of(in);
    sum = ir::is_commutative(graph_[id].op) ? sum + mix(own, below) : mix(sum, below);
  }
  out_.structure[id] = mix(own, sum);
}

void Chooser::visit(ir::NodeId id) {
  hash_window(id);
  const ir::Op op = graph_[id].op;
  if (is_step(id) || is_tensor(op) || op == ir::Op::Cat || op == ir::Op::Update) return;
  settle(id);
  if (ir::is_pointwise(op) && too_much(id)) cut(id);
  if ((ir::is_pointwise(op) || op == ir::Op::Gather) && out_.why[id] == Why::Free) out_.why[id] = verdict(id);
}

/// Gathers what computing the value takes.
void Chooser::settle(ir::NodeId id) {
  std::vector<Stream>& streams = streams_[id];
  std::vector<Key>& cone = cones_[id];
  streams.clear();
  cone.clear();
  const bool moves = !ir::is_pointwise(graph_[id].op);
  const int64_t points = this->points(id);
  const auto operands = graph_.operands(id);
  for (size_t k = 0; k < operands.size(); ++k) {
    const ir::NodeId in = operands[k];
    // Whoever gathers again reads the index again beside the elements, and that is little where they lie in rows.
    const bool is_index = graph_[id].op == ir::Op::Gather && k == 1;
    if (in_memory(in)) {
      streams.push_back({{in, 0}, is_index ? 0 : this->points(in)});
    } else {
      streams.insert(streams.end(), streams_[in].begin(), streams_[in].end());
      if (is_index)
        std::for_each(streams.end() - std::ssize(streams_[in]), streams.end(), [](Stream& s) { s.points = 0; });
      cone.insert(cone.end(), cones_[in].begin(), cones_[in].end());
    }
  }
  if (moves) {
    for (Stream& stream : streams)
      stream = {{stream.key.node, mix(stream.key.through, id)}, std::min(stream.points, points)};
    for (Key& key : cone) key.through = mix(key.through, id);
  }
  cone.push_back({id, 0});
  work(streams.size() + cone.size());
  make_set(streams);
  make_set(cone);
  hash_structure(id);
}

/// Makes values below this one stored until one kernel holds what is left. Every other value that is made of those is
/// seen anew.
void Chooser::cut(ir::NodeId id) {
  while (too_much(id)) {
    const ir::NodeId place = place_to_cut(id);
    if (place == ir::kNoNode) return;
    out_.why[place] = Why::Long;
    ir::NodeId last = ir::kNoNode;
    for (const Key& key : std::vector<Key>(cones_[id])) {
      if (key.node > place && key.node != last && key.node != id) settle(key.node);
      last = key.node;
    }
    settle(id);
  }
}

/// Down the heaviest operands, of the places that leave at least half a kernel on the far side: the one that stores
/// fewest bytes, then the one its own text names, then the latest. A periodic chain is so cut once a period.
ir::NodeId Chooser::place_to_cut(ir::NodeId id) const {
  ir::NodeId best = ir::kNoNode, at = id;
  auto rank = [&](ir::NodeId place) { return std::pair(bytes(place), windows_[place].back()); };
  auto load = [&](ir::NodeId in) { return std::pair(cones_[in].size() + 2 * streams_[in].size(), out_.structure[in]); };
  for (;;) {
    ir::NodeId heaviest = ir::kNoNode;
    for (const ir::NodeId in : graph_.operands(at))
      if (!in_memory(in) && (heaviest == ir::kNoNode || load(in) > load(heaviest))) heaviest = in;
    if (heaviest == ir::kNoNode || (best != ir::kNoNode && !half_full(heaviest))) return best;
    at = heaviest;
    if (ir::is_pointwise(graph_[at].op) && (best == ir::kNoNode || rank(at) < rank(best))) best = at;
  }
}

Why Chooser::verdict(ir::NodeId id) const {
  const int64_t points = this->points(id);
  if (points == 0) return Why::Free;
  if (!many_[id]) return is_spread(id) ? Why::Spread : Why::Free;
  int64_t read = 0, left = 0;
  ir::NodeId last = ir::kNoNode;
  for (const Stream& stream : streams_[id]) {
    if (stream.key.node != last) left = this->points(stream.key.node);
    last = stream.key.node;
    read += std::min(stream.points, left);
    left -= std::min(stream.points, left);
  }
  if (costs_.reads_more(read, points)) return Why::Join;
  const bool dear = cost_again(id) > costs_.write(bytes(id)) + costs_.read(bytes(id)) + costs_.launch;
  return dear ? Why::Dear : Why::Again;
}

}  // namespace

std::string_view text(Why why) {
  switch (why) {
    case Why::Free:
      return "computed by the one kernel that reads it";
    case Why::Again:
      return "computed again by each kernel that reads it: storing it would move more bytes";
    case Why::Needed:
      return "stored: a result, a call or a reduction needs it in memory";
    case Why::Join:
      return "stored: it joins values that several kernels would have to read again";
    case Why::Dear:
      return "stored: several kernels read it, and computing it again costs more than reading it";
    case Why::Spread:
      return "stored: it is read in several places, each broadcast to many more points than it has";
    case Why::Long:
      return "stored: one kernel holds no more of the long chain that it stands in";
  }
  return "";
}

Choice choose(const ir::Graph& graph, const std::vector<bool>& live, const std::vector<bool>& needed,
              const Costs& costs) {
  return Chooser(graph, live, needed, costs).run();
}

}  // namespace fastjit::plan
