#pragma once
// Random graphs whose sizes are symbols, and the same graphs at other sizes: what was chosen with symbols is kept, and
// done again with numbers.
#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "ir/graph.h"
#include "plan_graphs.h"

namespace fastjit::test {

/// Choices of a generator, which it makes once and then repeats.
class Choices {
 public:
  explicit Choices(uint32_t seed) : random_(seed) {}
  size_t pick(size_t n) {
    return next([&] { return random_() % n; });
  }
  /// Of the sizes that the choices are made with.
  template <class Ask>
  bool decide(Ask ask) {
    return next([&] { return static_cast<size_t>(ask()); }) != 0;
  }
  void rewind() { at_ = 0; }

 private:
  template <class Make>
  size_t next(Make make) {
    if (at_ == made_.size()) made_.push_back(make());
    return made_[at_++];
  }
  std::mt19937 random_;
  std::vector<size_t> made_;
  size_t at_ = 0;
};

/// Views, reshapes, cats, reductions, calls and stores of inputs with sizes out of `sizes`.
class SizedRandomGraph {
 public:
  using Id = ir::NodeId;
  using Sizes = std::vector<ir::Dim>;

  SizedRandomGraph(Choices& choices, const Sizes& sizes, std::shared_ptr<ir::Symbols> symbols)
      : choices_(choices), sizes_(sizes) {
    g_.symbols = std::move(symbols);
  }

  ir::Graph make() {
    const size_t inputs = 1 + pick(3);
    const Sizes base = shape();
    for (size_t i = 0; i < inputs; ++i) add_input(pick(3) ? base : shape());
    pool_.push_back(g_.constant(ir::DType::F32, 0.5));
    const size_t steps = 1 + pick(12);
    for (size_t i = 0; i < steps; ++i) step();
    finish();
    return std::move(g_);
  }

 private:
  size_t pick(size_t n) { return choices_.pick(n); }
  template <class Ask>
  bool decide(Ask ask) {
    return choices_.decide(ask);
  }
  Sizes sizes(Id id) const { return {g_.sizes(id).begin(), g_.sizes(id).end()}; }
  size_t rank(Id id) const { return g_[id].rank; }
  bool is_float(Id id) const { return ir::is_floating(g_[id].dtype); }
  Id any() {
    for (;;) {
      const bool recent = pool_.size() > 6 && pick(3);
      const Id id = pool_[recent ? pool_.size() - 1 - pick(6) : pick(pool_.size())];
      if (!in(gone_, id)) return id;
    }
  }
  Id any_float() {
    const Id id = any();
    return is_float(id) ? id : g_.convert(id, ir::DType::F32);
  }
  void push(Id id) {
    if (rank(id) <= 4 && decide([&] { return g_.layout(id).numel().hint() <= 500; })) pool_.push_back(id);
  }
  /// At other sizes more values may be one.
  bool in(const std::vector<Id>& ids, Id id) {
    return decide([&] { return std::ranges::count(ids, id) > 0; });
  }
  bool are_identical(const Sizes& a, const Sizes& b) {
    return decide([&] { return ir::identical(a, b); });
  }

  Sizes shape() {
    Sizes made(1 + pick(3));
    for (ir::Dim& size : made) size = pick(5) ? sizes_[pick(sizes_.size())] : ir::Dim(std::array{1, 3, 4, 8}[pick(4)]);
    return made;
  }
  void add_input(const Sizes& shape) {
    Sizes strides = ir::row_major(shape);
    if (shape.size() == 2 && pick(3) == 0) strides = {1, shape[0]};
    if (shape.size() == 3 && pick(3) == 0) strides = {shape[1] * shape[2], 1, shape[1]};
    if (pick(5) == 0)
      for (ir::Dim& stride : strides) stride *= 2;
    inputs_.push_back(g_.input(ir::DType::F32, {shape, strides}, {"x" + std::to_string(inputs_.size())}));
    pool_.push_back(inputs_.back());
  }

  void step() {
    switch (pick(16)) {
      case 0:
      case 1:
      case 2:
        return binary();
      case 3:
        return unary();
      case 4:
      case 5:
        return view();
      case 6:
      case 7:
      case 8:
        return reshape();
      case 9:
      case 10:
        return cat();
      case 11:
      case 12:
        return reduce();
      case 13:
        return iota();
      case 14:
        return external();
      case 15:
        return normalise();
    }
  }
  void unary() {
    static constexpr ir::Op kOps[]{ir::Op::Tanh, ir::Op::Neg, ir::Op::Sigmoid, ir::Op::Abs};
    push(g_.pointwise(kOps[pick(4)], {any_float()}));
  }
  /// Sometimes of sizes that are equal by chance.
  bool broadcasts(Id a, Id b, bool by_chance) {
    return decide([&] {
      const Sizes x = sizes(a), y = sizes(b);
      for (size_t i = 1; i <= std::min(x.size(), y.size()); ++i) {
        const ir::Dim p = x[x.size() - i], q = y[y.size() - i];
        const bool fits = by_chance ? p.hint() == q.hint() : ir::identical(p, q);
        if (!fits && !ir::identical(p, 1) && !ir::identical(q, 1)) return false;
      }
      return true;
    });
  }
  void binary() {
    static constexpr ir::Op kOps[]{ir::Op::Add, ir::Op::Sub, ir::Op::Mul, ir::Op::Max};
    const Id a = any_float();
    for (int tries = 0; tries < 6; ++tries) {
      const Id b = any_float();
      if (!broadcasts(a, b, pick(16) == 0)) continue;
      Id result = g_.pointwise(kOps[pick(4)], {a, b});
      if (pick(6) == 0) result = g_.pointwise(ir::Op::Where, {g_.pointwise(ir::Op::Lt, {a, b}), result, a});
      return push(result);
    }
  }
  void view() {
    const Id a = any();
    const Sizes from = sizes(a);
    Sizes to = from;
    std::vector<size_t> order(from.size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = d;
    for (size_t d = order.size(); d > 1; --d) std::swap(order[d - 1], order[pick(d)]);
    ir::IndexMap map;
    map.dims.resize(from.size());
    for (size_t d = 0; d < from.size(); ++d) {  // dim d of the operand becomes dim order[d] of the result
      ir::Affine& row = map.dims[d];
      ir::Dim& size = to[order[d]] = from[d];
      const auto dim = static_cast<uint8_t>(order[d]);
      size_t kind = decide([&] { return from[d].hint() > 2; }) ? pick(10) : 0;
      if (kind > 0 && from[d] < (kind == 4 ? 2 : 1)) kind = 0;  // never here: what is asked is guarded
      if (kind == 1)
        row = {size - 1, {{dim, -1}}};
      else if (kind == 2)
        row = {1, {{dim, 1}}}, size -= 1;
      else if (kind == 3)
        row = {static_cast<int64_t>(pick(2)), {{dim, 2}}}, size /= 2;
      else if (kind == 4)
        row = {0, {{dim, 1}}}, size = 2;
      else if (decide([&] { return ir::identical(from[d], 1); }) && pick(2))
        size = pick(2) ? ir::Dim(3) : sizes_[pick(sizes_.size())];
      else
        row = {0, {{dim, 1}}};
    }
    push(g_.view(a, map, to));
  }
  void reshape() {
    const Id a = any();
    Sizes to = sizes(a);
    const size_t kind = pick(6);
    if (kind == 0) {
      to = {g_.layout(a).numel()};
    } else if (kind <= 2 && to.size() > 1) {  // two become one
      const size_t d = pick(to.size() - 1);
      to[d] *= to[d + 1];
      to.erase(to.begin() + static_cast<std::ptrdiff_t>(d) + 1);
    } else if (kind == 3) {
      to.insert(to.begin() + static_cast<std::ptrdiff_t>(pick(to.size() + 1)), 1);
    } else if (!to.empty()) {  // one becomes two, if need be where it is a multiple by chance
      const size_t d = pick(to.size());
      const ir::Dim by = pick(6) == 0 ? ir::Dim(2) : sizes_[pick(sizes_.size())];
      const bool by_chance = pick(16) == 0;
      if (!decide([&] {
            if (to[d].hint() % by.hint() != 0 || to[d].hint() == by.hint()) return false;
            return by_chance || ir::identical(to[d] / by * by, to[d]);
          }))
        return;
      const ir::Dim times = to[d] / by;
      to[d] = times;
      to.insert(to.begin() + static_cast<std::ptrdiff_t>(d + pick(2)), by);
    }
    push(g_.reshape(a, to));
  }
  void cat() {
    std::vector<Id> parts{any()};
    if (rank(parts[0]) == 0) return;
    size_t dim = pick(rank(parts[0]));
    if (!cats_.empty() && pick(2)) {  // one that grows: by its parts, or as a part
      const auto& [earlier, before, along] = cats_[pick(cats_.size())];
      const std::vector<Id> begin = pick(3) ? before : std::vector{earlier};
      if (std::ranges::none_of(begin, [&](Id id) { return in(gone_, id); })) parts = begin, dim = along;
    }
    const Id a = parts[0];
    for (size_t i = pick(3); i > 0; --i) {
      const Id b = pick(2) ? any() : a;
      Sizes x = sizes(a), y = sizes(b);
      if (g_[a].dtype != g_[b].dtype || x.size() != y.size()) continue;
      x[dim] = y[dim] = 0;
      if (are_identical(x, y)) parts.push_back(b);
    }
    const Id made = g_.cat(parts, static_cast<int64_t>(dim));
    cats_.push_back({made, parts, dim});
    push(made);
  }
  std::vector<uint8_t> some_dims(Id a) {
    std::vector<uint8_t> dims;
    for (uint8_t d = 0; d < rank(a); ++d)
      if (pick(2)) dims.push_back(d);
    if (dims.empty()) dims.push_back(static_cast<uint8_t>(pick(rank(a))));
    return dims;
  }
  void reduce() {
    using ir::ReduceKind;
    const Id a = any_float();
    if (rank(a) == 0) return;
    const auto dims = some_dims(a);
    switch (pick(5)) {
      case 0:
        return push(g_.reduce(ReduceKind::Sum, a, dims, ir::DType::F32));
      case 1:
        return push(g_.reduce(ReduceKind::Max, a, dims, ir::DType::F32));
      case 2:
        return push(g_.reduce(ReduceKind::Prod, g_.pointwise(ir::Op::Tanh, {a}), dims, ir::DType::F32));
      case 3:
        return push(g_.reduce(ReduceKind::ArgMax, a, pick(3) ? std::vector{dims[0]} : all_dims(a), ir::DType::I64));
      case 4:
        return push(g_.reduce(ReduceKind::Any, g_.pointwise(ir::Op::Gt, {a, g_.constant(ir::DType::F32, 0.25)}), dims,
                              ir::DType::Bool));
    }
  }
  std::vector<uint8_t> all_dims(Id a) const {
    std::vector<uint8_t> dims(rank(a));
    for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<uint8_t>(d);
    return dims;
  }
  /// x - max and the like: a reduction used again over what it reduced.
  void normalise() {
    const Id a = any_float();
    if (rank(a) == 0) return;
    const auto dims = some_dims(a);
    Sizes one = sizes(a);
    for (const uint8_t d : dims) one[d] = 1;
    const auto spread = [&](Id id) { return g_.expand(g_.reshape(id, one), sizes(a)); };
    Id e = g_.pointwise(ir::Op::Sub, {a, spread(g_.reduce(ir::ReduceKind::Max, a, dims, ir::DType::F32))});
    if (pick(2)) {
      e = g_.pointwise(ir::Op::Exp, {e});
      e = g_.pointwise(ir::Op::Div, {e, spread(g_.reduce(ir::ReduceKind::Sum, e, dims, ir::DType::F32))});
    }
    push(e);
  }
  void iota() {
    const Id a = any_float();
    if (rank(a) == 0) return;
    const Id index = g_.iota(g_.layout(a), static_cast<int>(pick(rank(a))));
    if (pick(2)) return push(index);
    push(g_.pointwise(ir::Op::Add, {a, g_.convert(index, ir::DType::F32)}));
  }

  void external() {
    const Id a = any_float();
    ir::ExternAttr attr;
    attr.operands = {a};
    switch (pick(5)) {
      case 0: {  // a product
        const Id b = any_float();
        if (rank(a) != 2 || rank(b) != 2 || !are_identical({sizes(a)[1]}, {sizes(b)[0]})) return;
        return push(product(g_, a, b));
      }
      case 1: {
        if (rank(a) == 0) return;
        attr.kind = ir::ExternKind::View;
        attr.name = "fake::view";
        ir::Layout layout = g_.layout(a);
        std::ranges::reverse(layout.sizes);
        std::ranges::reverse(layout.strides);
        const Id result = g_.result(g_.external(attr), 0, g_[a].dtype, layout);
        views_.push_back({result, a});
        return push(result);
      }
      case 2: {
        const ir::Op op = g_[a].op;
        if ((op != ir::Op::Input && !ir::is_pointwise(op)) || rank(a) == 0) return;
        attr.name = "fake::write";
        attr.written = {0};
        const Id result = g_.result(g_.external(attr), 0, g_[a].dtype, g_.layout(a));
        if (op == ir::Op::Input || pick(2)) gone_.push_back(a);
        for (const auto& [view, base] : views_)
          if (base == a || std::ranges::count(gone_, base)) gone_.push_back(view);
        written_.push_back(a);
        fixed_.push_back(result);
        return push(result);
      }
      case 3:
        attr.kind = ir::ExternKind::Guard;
        attr.name = "b at model.py:9";
        attr.call = guards_++;
        attr.outputs = 0;
        g_.external(attr);
        return;
      case 4:
        attr.name = "fake::op";
        if (pick(2)) attr.operands.push_back(any_float());
        return push(g_.result(g_.external(attr), 0, g_[a].dtype, {sizes(a), ir::row_major(sizes(a))}));
    }
  }

  void finish() {
    for (const Id input : inputs_) {
      if (pick(3) || in(gone_, input) || in(written_, input)) continue;
      for (int tries = 0; tries < 6; ++tries) {
        const Id value = pick(4) ? pool_.back() : any();
        if (in(gone_, value) || g_[value].dtype != g_[input].dtype || !are_identical(sizes(value), sizes(input)))
          continue;
        g_.stores.push_back({g_[input].attr, value, 1});
        break;
      }
    }
    for (const auto& [view, base] : views_) fixed_.push_back(view);
    const size_t outputs = 1 + pick(3);
    for (size_t i = 0; i < outputs; ++i) {
      Id id = i == 0 && !in(gone_, pool_.back()) ? pool_.back() : any();
      if (in(fixed_, id)) continue;
      if (rank(id) == 2 && pick(4) == 0 && g_[id].op != ir::Op::Input)
        id = g_.fresh_copy(id, {1, max(sizes(id)[0], 1)});
      g_.outputs.push_back(id);
    }
  }

  Choices& choices_;
  const Sizes& sizes_;
  ir::Graph g_;
  std::vector<Id> pool_, inputs_, gone_, written_, fixed_;
  struct View {
    Id view, base;
  };
  std::vector<View> views_;
  struct Parts {
    Id made;
    std::vector<Id> parts;
    size_t dim;
  };
  std::vector<Parts> cats_;
  uint32_t guards_ = 0;
};

}  // namespace fastjit::test
