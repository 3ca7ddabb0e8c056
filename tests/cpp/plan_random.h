#pragma once
// Random graphs for the planner: pointwise, broadcast, views, reshapes, cats, reductions, extern calls and stores.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "ir/graph.h"
#include "plan_graphs.h"

namespace fastjit::test {

class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed) : random_(seed) {}

  ir::Graph make() {
    static const std::vector<std::vector<ir::Dim>> kShapes{{6, 4}, {6, 1}, {4},    {2, 3, 4}, {24},  {},
                                                           {1, 4}, {3, 8}, {5, 7}, {4, 6},    {0, 4}};
    const int inputs = 1 + pick(4);
    const auto& base = kShapes[static_cast<size_t>(pick(kShapes.size()))];
    for (int i = 0; i < inputs; ++i) add_input(pick(3) ? base : kShapes[static_cast<size_t>(pick(kShapes.size()))]);
    pool_.push_back(g_.constant(ir::DType::F32, 0.5));
    if (pick(2)) pool_.push_back(g_.convert(g_.scalar(ir::DType::F64, {"s", true}), ir::DType::F32));
    const int steps = 1 + pick(14);
    for (int i = 0; i < steps; ++i) step();
    finish();
    return std::move(g_);
  }

 private:
  using Id = ir::NodeId;
  int pick(size_t n) { return static_cast<int>(random_() % n); }
  std::vector<ir::Dim> sizes(Id id) { return {g_.sizes(id).begin(), g_.sizes(id).end()}; }
  int64_t numel(Id id) { return g_.layout(id).numel().hint(); }
  Id any() {
    for (;;) {
      const Id id = pool_[pool_.size() > 6 && pick(3) ? pool_.size() - 1 - static_cast<size_t>(pick(6))
                                                      : static_cast<size_t>(pick(pool_.size()))];
      if (!gone_.contains(id)) return id;
    }
  }
  Id any_float() {
    const Id id = any();
    return ir::is_floating(g_[id].dtype) ? id : g_.convert(id, ir::DType::F32);
  }
  void push(Id id) {
    if (numel(id) <= 600 && g_[id].rank <= 5) pool_.push_back(id);
  }

  void add_input(std::vector<ir::Dim> shape) {
    std::vector<ir::Dim> strides = ir::row_major(shape);
    if (shape.size() == 2 && pick(4) == 0) strides = {1, shape[0]};
    if (pick(5) == 0)
      for (ir::Dim& stride : strides) stride *= 2;
    inputs_.push_back(g_.input(ir::DType::F32, {shape, strides}, {"x" + std::to_string(inputs_.size())}));
    pool_.push_back(inputs_.back());
  }

  void step() {
    switch (pick(20)) {
      case 0:
      case 1:
      case 2:
        return binary();
      case 3:
      case 4:
        return unary();
      case 5:
      case 6:
        return view();
      case 7:
      case 8:
        return reshape();
      case 9:
        return cat();
      case 10:
      case 11:
      case 12:
        return reduce();
      case 13:
        return iota();
      case 14:
        return external();
      case 15:
        return normalise();
      case 16:
      case 17:
        return update();
      case 18:
      case 19:
        return gather();
    }
  }
  void unary() {
    static constexpr ir::Op kOps[]{ir::Op::Tanh, ir::Op::Neg, ir::Op::Sigmoid, ir::Op::Abs, ir::Op::Erf};
    push(g_.pointwise(kOps[pick(5)], {any_float()}));
  }
  void binary() {
    static constexpr ir::Op kOps[]{ir::Op::Add, ir::Op::Sub, ir::Op::Mul, ir::Op::Max};
    const Id a = any_float();
    for (int tries = 0; tries < 8; ++tries) {
      const Id b = any_float();
      try {
        ir::broadcast(g_.sizes(a), g_.sizes(b));
      } catch (const std::invalid_argument&) {
        continue;
      }
      Id result = g_.pointwise(kOps[pick(4)], {a, b});
      if (pick(6) == 0) result = g_.pointwise(ir::Op::Where, {g_.pointwise(ir::Op::Lt, {a, b}), result, a});
      return push(result);
    }
  }
  void view() {
    const Id a = any();
    const std::vector<ir::Dim> from = sizes(a);
    std::vector<ir::Dim> to = from;
    std::vector<size_t> order(from.size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = d;
    if (pick(2)) std::shuffle(order.begin(), order.end(), random_);
    ir::IndexMap map;
    map.dims.resize(from.size());
    for (size_t d = 0; d < from.size(); ++d) {  // dim d of the operand becomes dim order[d] of the result
      ir::Affine& row = map.dims[d];
      ir::Dim& size = to[order[d]] = from[d];
      const auto dim = static_cast<uint8_t>(order[d]);
      const int kind = from[d] > 1 ? pick(6) : 0;
      if (kind == 1)
        row = {size - 1, {{dim, -1}}};
      else if (kind == 2)
        row = {1, {{dim, 1}}}, size -= 1;
      else if (kind == 3)
        row = {pick(2), {{dim, 2}}}, size /= 2;
      else if (from[d] == 1 && pick(2))
        size = 3;
      else
        row = {0, {{dim, 1}}};
    }
    push(g_.view(a, map, to));
  }
  void reshape() {
    const Id a = any();
    std::vector<ir::Dim> to;
    int64_t left = numel(a);
    for (const int64_t factor : {2, 3, 4, 6, 1})
      if (left > 0 && left % factor == 0 && pick(2)) to.push_back(factor), left /= factor;
    to.insert(to.begin() + pick(to.size() + 1), left);
    push(g_.reshape(a, to));
  }
  void cat() {
    std::vector<Id> parts{any()};
    if (g_[parts[0]].rank == 0) return;
    int dim = pick(g_[parts[0]].rank);
    if (!cats_.empty() && pick(2)) {  // one that grows: by its parts, or as a part
      const auto& [earlier, before, along] = cats_[static_cast<size_t>(pick(cats_.size()))];
      const std::vector<Id> begin = pick(3) ? before : std::vector{earlier};
      if (std::ranges::none_of(begin, [&](Id id) { return gone_.contains(id); })) parts = begin, dim = along;
    }
    const Id a = parts[0];
    for (int i = pick(3); i > 0; --i) {
      const Id b = pick(2) ? any() : a;
      std::vector<ir::Dim> x = sizes(a), y = sizes(b);
      if (g_[a].dtype != g_[b].dtype || x.size() != y.size()) continue;
      x[static_cast<size_t>(dim)] = y[static_cast<size_t>(dim)] = 0;
      if (x == y) parts.push_back(b);
    }
    const Id made = g_.cat(parts, dim);
    cats_.push_back({made, parts, dim});
    push(made);
  }
  std::vector<uint8_t> some_dims(Id a) {
    std::vector<uint8_t> dims;
    for (uint8_t d = 0; d < g_[a].rank; ++d)
      if (pick(2)) dims.push_back(d);
    if (dims.empty() && g_[a].rank > 0) dims.push_back(static_cast<uint8_t>(pick(g_[a].rank)));
    return dims;
  }
  void reduce() {
    using ir::ReduceKind;
    Id a = any_float();
    if (g_[a].rank == 0) return;
    const auto dims = some_dims(a);
    const int kind = pick(6);
    if (kind == 5)
      return push(g_.reduce(pick(2) ? ReduceKind::Any : ReduceKind::All,
                            g_.pointwise(ir::Op::Gt, {a, pool_[0] == a ? a : g_.constant(ir::DType::F32, 0.25)}), dims,
                            ir::DType::Bool));
    if (kind == 0 || numel(a) == 0) return push(g_.reduce(ReduceKind::Sum, a, dims, g_[a].dtype));
    if (kind == 1) return push(g_.reduce(ReduceKind::Max, a, dims, g_[a].dtype));
    if (kind == 2) return push(g_.reduce(ReduceKind::Prod, g_.pointwise(ir::Op::Tanh, {a}), dims, g_[a].dtype));
    if (kind == 3) return push(g_.reduce(ReduceKind::ArgMax, a, {dims[0]}, ir::DType::I64));
    push(g_.reduce(ReduceKind::Min, a, dims, g_[a].dtype));
  }
  /// x - mean and the like: a reduction used again over what it reduced.
  void normalise() {
    const Id a = any_float();
    if (g_[a].rank == 0 || numel(a) == 0) return;
    const auto dims = some_dims(a);
    std::vector<ir::Dim> one = sizes(a);
    for (const uint8_t d : dims) one[d] = 1;
    auto spread = [&](Id id) { return g_.expand(g_.reshape(id, one), sizes(a)); };
    Id e = g_.pointwise(ir::Op::Sub, {a, spread(g_.reduce(ir::ReduceKind::Max, a, dims, g_[a].dtype))});
    if (pick(2)) {
      e = g_.pointwise(ir::Op::Exp, {e});
      e = g_.pointwise(ir::Op::Div, {e, spread(g_.reduce(ir::ReduceKind::Sum, e, dims, g_[a].dtype))});
    }
    push(e);
  }
  /// Writes to a region of a value, of which an earlier one or itself may be read again.
  void update() {
    Id base = updates_.empty() || pick(3) == 0 ? any() : updates_.back();
    if (gone_.contains(base) || ir::is_raw(g_[base].dtype) || numel(base) == 0) return;
    std::vector<ir::Dim> region = sizes(base);
    ir::IndexMap map;
    for (size_t d = 0; d < region.size(); ++d) {
      const auto dim = static_cast<uint8_t>(d);
      const int64_t size = region[d].hint();
      const int kind = size > 1 ? pick(5) : 0;
      if (kind == 1) region[d] = 1, map.dims.push_back({pick(static_cast<size_t>(size)), {}});
      if (kind == 2) region[d] = size - 1, map.dims.push_back({pick(2), {{dim, 1}}});
      if (kind == 3) region[d] = size / 2, map.dims.push_back({pick(2), {{dim, 2}}});
      if (kind == 0 || kind == 4) map.dims.push_back({0, {{dim, 1}}});
    }
    Id value = g_.view(base, map, region);  // the region itself, or one beside it, or a number
    if (const int kind = pick(4); kind == 1) {
      ir::IndexMap other = map;
      for (ir::Affine& row : other.dims) row.offset = 0;
      value = g_.view(base, other, region);
    } else if (kind == 2 || kind == 3) {
      for (int tries = 0; tries < 4; ++tries) {
        const Id from = any();
        if (g_[from].dtype != g_[base].dtype) continue;
        try {
          value = g_.expand(from, region);
          break;
        } catch (const std::invalid_argument&) {
        }
      }
    }
    if (ir::is_float(g_[base].dtype) && pick(4)) value = g_.pointwise(pick(2) ? ir::Op::Neg : ir::Op::Tanh, {value});
    if (pick(3) == 0) push(value);
    updates_.push_back(g_.update(base, value, map));
    push(updates_.back());
  }
  /// By positions that are computed, or that a reduction has found.
  void gather() {
    const Id table = any();
    if (g_[table].rank == 0 || numel(table) == 0) return;
    const auto dim = static_cast<size_t>(pick(g_[table].rank));
    const ir::Dim size = sizes(table)[dim];
    Id index = g_.constant_int(ir::DType::I64, pick(static_cast<size_t>(size.hint())));
    const int kind = pick(4);
    if (kind == 1 && g_[table].dtype == ir::DType::F32)
      index = g_.reduce(ir::ReduceKind::ArgMax, table, {static_cast<uint8_t>(dim)}, ir::DType::I64);
    if (kind > 1) {
      const std::vector<std::vector<ir::Dim>> shapes{{3}, {2, 4}, {6}, {1}, {6, 4}};
      const auto& shape = shapes[static_cast<size_t>(pick(shapes.size()))];
      const Id last = g_.constant_int(ir::DType::I64, size.hint() - 1);
      index = g_.pointwise(ir::Op::Min, {g_.iota({shape, {}}, pick(shape.size())), last});
      if (pick(2)) index = g_.pointwise(ir::Op::Sub, {last, index});
    }
    if (kind == 3) {  // found in values
      const Id a = any_float();
      const Id is_high = g_.pointwise(ir::Op::Gt, {a, g_.constant(g_[a].dtype, 0.3)});
      const Id last = g_.constant_int(ir::DType::I64, size.hint() - 1);
      index = g_.pointwise(ir::Op::Min, {g_.convert(is_high, ir::DType::I64), last});
    }
    push(g_.gather(table, index, dim));
  }
  void iota() {
    const Id a = any_float();
    if (g_[a].rank == 0) return;
    const Id index = g_.iota(g_.layout(a), pick(g_[a].rank));
    push(g_.pointwise(ir::Op::Add, {a, g_.convert(index, g_[a].dtype)}));
  }

  void external() {
    const Id a = any_float();
    ir::ExternAttr attr;
    attr.operands = {a};
    const int kind = pick(5);
    if (kind == 4) {
      attr.kind = ir::ExternKind::Guard;
      attr.name = "b at model.py:9";
      attr.call = guards_++;
      attr.outputs = 0;
      g_.external(attr);
      return;
    }
    if (kind == 0) {  // a product
      const Id b = any_float();
      if (g_[a].rank != 2 || g_[b].rank != 2 || sizes(a)[1] != sizes(b)[0]) return;
      return push(product(g_, a, b));
    }
    if (kind == 1) {
      if (g_[a].op == ir::Op::Const) return;
      attr.kind = ir::ExternKind::View;
      attr.name = "fake::view";
      ir::Layout layout = g_.layout(a);
      std::reverse(layout.sizes.begin(), layout.sizes.end());
      std::reverse(layout.strides.begin(), layout.strides.end());
      const Id result = g_.result(g_.external(attr), 0, g_[a].dtype, layout);
      alias_of_[result] = a;
      return push(result);
    }
    if (kind == 2 && may_write(a)) {
      attr.name = "fake::write";
      attr.written = {0};
      const Id result = g_.result(g_.external(attr), 0, g_[a].dtype, g_.layout(a));
      if (g_[a].op == ir::Op::Input || pick(2)) gone_.insert(a);
      forget_views(a);
      written_.insert(a);
      fixed_.insert(result);
      return push(result);
    }
    attr.name = "fake::op";
    if (pick(2)) attr.operands.push_back(any_float());
    push(g_.result(g_.external(attr), 0, g_[a].dtype, {sizes(a), ir::row_major(sizes(a))}));
  }
  /// Only tensors of their own: inputs, and values that somebody computed.
  bool may_write(Id a) {
    const ir::Op op = g_[a].op;
    return op == ir::Op::Input || (is_pointwise(op) && numel(a) > 0);
  }
  void forget_views(Id a) {
    for (const auto& [view, base] : alias_of_)
      if (base == a || gone_.contains(base)) gone_.insert(view);
  }

  void finish() {
    for (const Id input : inputs_) {
      if (pick(3) || gone_.contains(input) || written_.contains(input)) continue;
      for (int tries = 0; tries < 6; ++tries) {
        const Id value = pick(4) ? pool_.back() : any();
        if (gone_.contains(value) || sizes(value) != sizes(input) || g_[value].dtype != g_[input].dtype) continue;
        g_.stores.push_back({g_[input].attr, value, 1});
        for (const auto& [view, base] : alias_of_)
          if (base == input || fixed_.contains(view)) fixed_.insert(view);
        break;
      }
    }
    for (const auto& [view, base] : alias_of_) fixed_.insert(view);
    const int outputs = 1 + pick(3);
    for (int i = 0; i < outputs; ++i) {
      Id id = i == 0 && !gone_.contains(pool_.back()) ? pool_.back() : any();
      if (fixed_.contains(id)) continue;
      if (g_[id].rank == 2 && pick(4) == 0 && g_[id].op != ir::Op::Input)
        id = g_.fresh_copy(id, {1, max(sizes(id)[0], 1)});
      g_.outputs.push_back(id);
    }
  }

  std::mt19937 random_;
  ir::Graph g_;
  std::vector<Id> pool_, inputs_, updates_;
  std::set<Id> gone_, written_, fixed_;
  std::map<Id, Id> alias_of_;
  struct Parts {
    Id made;
    std::vector<Id> parts;
    int dim;
  };
  std::vector<Parts> cats_;
  uint32_t guards_ = 0;
};

}  // namespace fastjit::test
