// From graph nodes to the instructions of one kernel.
#include "plan/emit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "plan/work.h"
#include "support/mix.h"

namespace fastjit::plan {

namespace {

using support::mix;

constexpr size_t kFewInstructions = 16;  // most kernels have no more: what holds them is made once

uint64_t identity_bits(ir::ReduceKind kind) { return kind == ir::ReduceKind::All || kind == ir::ReduceKind::Prod; }

}  // namespace

Emitter::Emitter(const World& world, const Space& frame, std::span<const Root> roots, bool allow_keep)
    : world_(world), graph_(world.graph), frame_(frame), roots_(roots), allow_keep_(allow_keep) {
  draft_.code.reserve(kFewInstructions);
  draft_.section.reserve(kFewInstructions);
  memos_.reserve(kFewInstructions);
  maps_.reserve(kFewInstructions / 2);
}

const Root* Emitter::find_root(ir::NodeId id) const {
  for (const Root& root : roots_)
    if (root.value == id && !root.copy) return &root;
  return nullptr;
}

std::nullopt_t Emitter::refuse(Obstacle obstacle) {
  if (!obstacle_) obstacle_ = obstacle;
  return std::nullopt;
}

std::nullopt_t Emitter::refuse(const Unraveled& failed) {
  return failed.split ? refuse(*failed.split) : refuse(Mismatch{});
}

uint32_t Emitter::intern(const Map& map) {
  uint64_t hash = static_cast<uint64_t>(map.rows);
  for (const Dim cell : map.cells) hash = mix(mix(hash, static_cast<uint64_t>(cell.hint())), cell.expr());
  const uint32_t known = known_maps_.find(hash, [&](uint32_t at) { return maps_[at] == map; });
  if (known != support::HashIndex::kNone) return known;
  known_maps_.add(hash, static_cast<uint32_t>(maps_.size()));
  maps_.push_back(map);
  return static_cast<uint32_t>(maps_.size() - 1);
}

int Emitter::depth(ir::NodeId id) {
  if (!frame_.has_reduced()) return 0;
  if (const auto found = depths_.find(id); found != depths_.end()) return found->second;
  int result = 0;
  if (find_root(id) || !world_.is_strided(id, roots_)) {
    if (++nesting_ > Bounds::nesting && is_pointwise(graph_[id].op)) refuse(MustStore{id});
    for (const ir::NodeId in : graph_.operands(id))
      if (!obstacle_) result = std::max(result, depth(in));
    if (is_loop(graph_, id)) ++result;
    --nesting_;
  }
  return depths_[id] = result;
}

bool Emitter::visible(uint32_t value, int section) const {
  const int home = draft_.section[value];
  return home == section || (home % 2 == 1 && home < section);
}

/// A value that does not move along the reduced dims is computed once per kept point, as early as it is known.
int Emitter::hoisted(ir::NodeId id, const Map& map, int section) {
  if (!frame_.has_reduced()) return section;
  for (int d = 0; d < frame_.rank(); ++d)
    if (frame_.kinds[static_cast<size_t>(d)] == DimKind::Reduced)
      for (int r = 0; r < map.rows; ++r)
        if (map.at(r, d) != 0) return section;
  if (const int below = depth(id); below > 0) return row_section(below - 1);
  return section % 2 == 0 && section > 0 ? section - 1 : section;
}

uint32_t Emitter::add(Instr instr, int section) {
  uint64_t hash = mix(static_cast<uint64_t>(instr.code) << 8 | static_cast<uint64_t>(instr.dtype),
                      static_cast<uint64_t>(instr.op) << 8 | static_cast<uint64_t>(instr.kind));
  for (const uint32_t arg : instr.args) hash = mix(hash, arg);
  hash = mix(hash, instr.imm);
  const uint32_t known = interned_.find(hash, [&](uint32_t value) {
    return visible(value, section + (instr.code == Code::Reduce)) && draft_.code[value] == instr;
  });
  if (known != support::HashIndex::kNone) return known;
  const auto value = static_cast<uint32_t>(draft_.code.size());
  bool heavy = instr.code == Code::Compute && is_expensive(instr.op);
  if (instr.code == Code::Compute)
    for (int i = 0; i < info(instr.op).arity; ++i)
      heavy = heavy || (draft_.heavy[instr.args[i]] && draft_.section[instr.args[i]] == section);
  draft_.code.push_back(instr);
  draft_.heavy.push_back(heavy);
  draft_.section.push_back(static_cast<uint8_t>(instr.code == Code::Reduce ? section + 1 : section));
  if (draft_.lists.size() <= static_cast<size_t>(section)) draft_.lists.resize(static_cast<size_t>(section) + 1);
  std::vector<uint32_t>& list = draft_.lists[static_cast<size_t>(section)];
  if (list.empty()) list.reserve(kFewInstructions);
  list.push_back(value);
  interned_.add(hash, value);
  return value;
}

uint32_t Emitter::constant(ir::DType dtype, uint64_t bits, int section) {
  return add({.code = Code::Const, .dtype = dtype, .imm = bits}, section);
}

/// Remembers `value` of an earlier phase per reduced index and brings it back.
uint32_t Emitter::recall(uint32_t value, int section) {
  const ir::DType dtype = draft_.code[value].dtype;
  auto [slot, fresh] = kept_.try_emplace(value, static_cast<uint32_t>(draft_.scratch.size()));
  if (fresh) {
    draft_.scratch.push_back(dtype);
    add({.code = Code::Keep, .dtype = dtype, .args = {value, 0, 0}, .imm = slot->second}, draft_.section[value]);
  }
  return add({.code = Code::Recall, .dtype = dtype, .imm = slot->second}, section);
}

Emitter::Value Emitter::emit(ir::NodeId id, const Map& map, int section) {
  work();
  section = hoisted(id, map, section);
  if (obstacle_) return std::nullopt;
  const uint32_t under = intern(map);
  const uint64_t hash = mix(id, under);
  std::optional<uint32_t> earlier;
  const uint32_t known = known_.find(hash, [&](uint32_t at) {
    const Memo& memo = memos_[at];
    if (memo.node != id || memo.map != under) return false;
    if (visible(memo.value, section)) return true;
    const int home = draft_.section[memo.value];
    if (home % 2 == 0 && home < section && draft_.heavy[memo.value]) earlier = memo.value;
    return false;
  });
  if (known != support::HashIndex::kNone) return memos_[known].value;
  const bool too_large = ++nesting_ > Bounds::nesting || draft_.code.size() > Bounds::code;
  if (too_large && is_pointwise(graph_[id].op) && !find_root(id) && !world_.storage[id]) return refuse(MustStore{id});
  const bool keep = earlier && section % 2 == 0 && allow_keep_ && frame_.reduced.hint() <= Bounds::keep;
  const Value value = keep ? recall(*earlier, section) : make(id, map, section);
  --nesting_;
  if (value) {
    known_.add(hash, static_cast<uint32_t>(memos_.size()));
    memos_.push_back({id, under, *value});
  }
  return value;
}

Emitter::Value Emitter::make(ir::NodeId id, const Map& map, int section) {
  const ir::Node& node = graph_[id];
  if (const Root* root = find_root(id)) {
    if (map != root_maps_[static_cast<size_t>(root - roots_.data())]) return refuse(Mismatch{});
  }
  if (const Storage* own = world_.stored(id, roots_)) return load(*own, node.dtype, map, section);
  if (const auto storage = world_.strided(id, roots_)) return load(*storage, node.dtype, map, section);
  if (is_pointwise(node.op)) return make_pointwise(id, map, section);
  switch (node.op) {
    case ir::Op::Const:
      return constant(node.dtype, graph_.constants[node.attr], section);
    case ir::Op::Scalar: {
      auto& scalars = draft_.scalars;
      auto at = static_cast<size_t>(std::find(scalars.begin(), scalars.end(), node.attr) - scalars.begin());
      if (at == scalars.size()) {
        scalars.push_back(node.attr);
        draft_.scalar_types.push_back(node.dtype);
      }
      return add({.code = Code::Scalar, .dtype = node.dtype, .imm = at}, section);
    }
    case ir::Op::Iota: {
      const auto row = map.cells.begin() + static_cast<std::ptrdiff_t>(node.attr) * map.cols;
      return affine(Linear(row, row + map.cols), section);
    }
    case ir::Op::View:
      return make_view(id, map, section);
    case ir::Op::Reshape:
      return make_reshape(id, map, section);
    case ir::Op::Reduce:
    case ir::Op::Dot:
      return make_reduce(id, map, section);
    case ir::Op::Gather:
      return make_gather(id, map, section);
    default:
      return refuse(MustStore{id});
  }
}

/// Which access it is.
uint64_t Emitter::access_at(const Storage& storage, ir::DType dtype, const Map& map, std::optional<Dim> step) {
  Access access{storage.buffer, dtype, dot(storage.strides, map), step};
  access.address.resize(static_cast<size_t>(frame_.rank()) + 1, 0);
  access.address.back() += storage.offset;
  auto& all = draft_.accesses;
  const auto same = std::find_if(all.begin(), all.end(), [&](const Access& other) {
    const bool is_read_alike = step ? other.step && identical(*other.step, *step) : !other.step;
    return is_read_alike && other.buffer == access.buffer && identical(other.address, access.address);
  });
  const auto index = static_cast<uint64_t>(same - all.begin());
  if (same == all.end()) all.push_back(std::move(access));
  return index;
}

uint32_t Emitter::load(const Storage& storage, ir::DType dtype, const Map& map, int section) {
  return add({.code = Code::Load, .dtype = dtype, .imm = access_at(storage, dtype, map, std::nullopt)}, section);
}

/// The I64 value of an affine function of the iteration dims. Its numbers are constants of the kernel.
uint32_t Emitter::affine(const Linear& index, int section) {
  constexpr ir::DType type = ir::DType::I64;
  std::optional<uint32_t> sum;
  auto plus = [&](uint32_t term) {
    sum = sum ? add({.code = Code::Compute, .dtype = type, .op = ir::Op::Add, .args = {*sum, term, 0}}, section) : term;
  };
  for (int d = 0; d < frame_.rank(); ++d) {
    const int64_t coefficient = index[static_cast<size_t>(d)].fixed();
    if (coefficient == 0) continue;
    uint32_t term = add({.code = Code::Index, .dtype = type, .imm = static_cast<uint64_t>(d)}, section);
    if (coefficient != 1) {
      const uint32_t factor = constant(type, static_cast<uint64_t>(coefficient), section);
      term = add({.code = Code::Compute, .dtype = type, .op = ir::Op::Mul, .args = {term, factor, 0}}, section);
    }
    plus(term);
  }
  if (const int64_t offset = index.back().fixed(); offset != 0 || !sum)
    plus(constant(type, static_cast<uint64_t>(offset), section));
  return *sum;
}

/// Whether an expensive value would be computed again for each of the many points it is spread over.
bool Emitter::spreads(ir::NodeId inner, Dim outer_points, uint32_t value) const {
  const int64_t points = world_.numel(inner).hint();
  if (!draft_.heavy[value] || !world_.costs.is_spread(points, outer_points.hint())) return false;
  const bool once_per_row = frame_.has_reduced() && draft_.section[value] % 2 == 1;
  return !once_per_row && !world_.costs.is_small((frame_.kept * frame_.reduced).hint()) && !find_root(inner);
}

Emitter::Value Emitter::make_pointwise(ir::NodeId id, const Map& map, int section) {
  const ir::Node& node = graph_[id];
  Instr instr{.code = Code::Compute, .dtype = node.dtype, .op = node.op};
  std::array<ir::NodeId, 4> operands = std::to_array(node.in);
  // Interning sorts commutative operands by age, which differs between equal computations that share one of them.
  auto small = [&](ir::NodeId in) {
    return std::tuple(-world_.numel(in).hint(), graph_[in].op == ir::Op::Const, world_.structure[in]);
  };
  if (is_commutative(node.op) && small(operands[1]) < small(operands[0])) std::swap(operands[0], operands[1]);
  for (size_t i = 0; i < static_cast<size_t>(info(node.op).arity); ++i) {
    const ir::NodeId in = operands[i];
    const bool same = identical(graph_.sizes(in), graph_.sizes(id));
    const Value value = same ? emit(in, map, section) : emit(in, broadcast_map(map, graph_.sizes(in)), section);
    if (!value) return std::nullopt;
    if (spreads(in, world_.numel(id), *value)) return refuse(MustStore{in});
    instr.args[i] = *value;
  }
  if (is_expensive(node.op)) {
    const int times = ++makes_[uint64_t{id} << 8 | static_cast<uint64_t>(section)];
    if (times > Bounds::copies && !world_.costs.is_small((frame_.kept * frame_.reduced).hint()))
      return refuse(MustStore{id});
  }
  return add(instr, section);
}

Emitter::Value Emitter::make_view(ir::NodeId id, const Map& map, int section) {
  const ir::NodeId in = graph_[id].in[0];
  const Value value = emit(in, below(graph_.maps[graph_[id].attr], map), section);
  return value && spreads(in, world_.numel(id), *value) ? refuse(MustStore{in}) : value;
}

Emitter::Value Emitter::make_reshape(ir::NodeId id, const Map& map, int section) {
  const Linear position = dot(ir::row_major(graph_.sizes(id)), map);
  if (const auto packed = world_.packed.find(id); packed != world_.packed.end())
    return load({packed->second, 0, ir::row_major(graph_.sizes(id))}, graph_[id].dtype, map, section);
  ir::NodeId in = graph_[id].in[0];
  while (graph_[in].op == ir::Op::Reshape && !find_root(in) && !world_.is_strided(in, roots_)) in = graph_[in].in[0];
  const Unraveled inner = unravel(position, graph_.sizes(in), frame_);
  if (inner.split) return refuse(*inner.split);
  return inner.map ? emit(in, *inner.map, section) : refuse(MustStore{id});
}

/// The table is in memory, whole, before the kernel begins.
Emitter::Value Emitter::make_gather(ir::NodeId id, const Map& map, int section) {
  const ir::Node& node = graph_[id];
  const auto [table, index] = std::pair(node.in[0], node.in[1]);
  const int dim = static_cast<int>(node.attr), taken = graph_[index].rank;
  std::optional<Storage> storage = world_.strided(table, roots_);
  if (const auto packed = world_.packed.find(table); !storage && packed != world_.packed.end())
    storage = Storage{packed->second, 0, ir::row_major(graph_.sizes(table))};
  if (!storage) return world_.is_strided(table, {}) ? refuse(Mismatch{}) : refuse(MustStore{table});
  Map at(graph_[table].rank, map.cols), inner(taken, map.cols);
  for (int c = 0; c < map.cols; ++c) {
    for (int r = 0; r < at.rows; ++r) at.at(r, c) = r == dim ? Dim(0) : map.at(r < dim ? r : r + taken - 1, c);
    for (int r = 0; r < taken; ++r) inner.at(r, c) = map.at(dim + r, c);
  }
  const Value value = emit(index, inner, section);
  if (!value) return std::nullopt;
  if (spreads(index, world_.numel(id), *value)) return refuse(MustStore{index});
  const uint64_t access = access_at(*storage, node.dtype, at, storage->strides[node.attr]);
  return add({.code = Code::Gather, .dtype = node.dtype, .args = {*value, 0, 0}, .imm = access}, section);
}

Emitter::Value Emitter::make_reduce(ir::NodeId id, const Map& map, int section) {
  const ir::Node& node = graph_[id];
  const ir::ReduceAttr& attr = graph_.reduces[node.attr];
  const ir::NodeId in = node.in[0];
  const auto sizes = graph_.sizes(in);
  if (world_.numel(in) == 0) {
    const uint64_t bits = identity_bits(attr.kind);
    const bool is_double = is_floating(node.dtype) && bits;
    return constant(node.dtype, is_double ? std::bit_cast<uint64_t>(1.0) : bits, section);
  }
  std::vector<Dim> reduced_sizes;
  for (const uint8_t dim : attr.dims) reduced_sizes.push_back(sizes[dim]);
  Linear position(static_cast<size_t>(frame_.rank()) + 1, 0);
  const bool trivial = count(reduced_sizes) == 1;
  if (trivial && ir::gives_position(attr.kind)) return constant(node.dtype, 0, section);
  if (!trivial) {
    if (!find_root(id)) return refuse(MustStore{id});
    if (!identical(count(reduced_sizes), frame_.reduced)) return refuse(Mismatch{});
    for (size_t d = 0; d < frame_.sizes.size(); ++d)
      if (frame_.kinds[d] == DimKind::Reduced) position[d] = frame_.part[d];
  }
  const Unraveled reduced = unravel(position, reduced_sizes, frame_);
  if (!reduced.map) return refuse(reduced);
  Map inner(static_cast<int>(sizes.size()), map.cols);
  for (int r = 0, kept = 0, gone = 0; r < inner.rows; ++r) {
    const bool is_reduced = std::find(attr.dims.begin(), attr.dims.end(), r) != attr.dims.end();
    for (int c = 0; c < map.cols; ++c) inner.at(r, c) = is_reduced ? reduced.map->at(gone, c) : map.at(kept, c);
    ++(is_reduced ? gone : kept);
  }
  const bool is_dot = node.op == ir::Op::Dot;
  int at = section;
  if (!trivial) at = elem_section(is_dot ? std::max(depth(in), depth(node.in[1])) : depth(in));
  const Value value = emit(in, inner, at);
  const Value factor = is_dot && value ? emit(node.in[1], inner, at) : value;
  if (!factor) return std::nullopt;
  const uint32_t second = is_dot ? *factor : 0;
  if (!trivial)
    return add({.code = Code::Reduce, .dtype = node.dtype, .kind = attr.kind, .args = {*value, second}}, at);
  if (!is_dot) return value;
  return add({.code = Code::Compute, .dtype = node.dtype, .op = ir::Op::Mul, .args = {*value, second}}, at);
}

Emitter::Outcome Emitter::run() {
  // Reductions first, lowest phase first, so that later phases can recall what earlier ones computed.
  std::vector<std::pair<int, size_t>> order;
  for (size_t i = 0; i < roots_.size(); ++i) {
    const ir::NodeId id = roots_[i].value;
    const bool reduces = frame_.has_reduced() && is_loop(graph_, id);
    order.emplace_back(reduces ? depth(id) : std::numeric_limits<int>::max(), i);
  }
  std::sort(order.begin(), order.end());
  for (const Root& root : roots_) {
    Unraveled map = unravel_root(world_, frame_, root);
    if (!map.map) refuse(map);
    root_maps_.push_back(std::move(map.map).value_or(Map(0, 0)));
  }
  draft_.values.resize(roots_.size());
  draft_.homes.resize(roots_.size());
  for (const auto& [phase, i] : order) {
    const Root& root = roots_[i];
    const int below = depth(root.value);
    const int section = !frame_.has_reduced() ? row_section(0)
                        : root.full           ? elem_section(below)
                                              : row_section(std::max(below - 1, 0));
    draft_.homes[i] = static_cast<uint8_t>(section);
    const Value value = emit(root.value, root_maps_[i], section);
    if (!value) return std::visit([](auto obstacle) { return Outcome(obstacle); }, *obstacle_);
    draft_.values[i] = *value;
  }
  return std::move(draft_);
}

}  // namespace fastjit::plan
