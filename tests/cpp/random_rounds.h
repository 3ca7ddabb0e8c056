#pragma once
// Programs of rounds that are alike, for re-rolling.
#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace fastjit::test {

inline ir::Layout dense(std::vector<ir::Dim> sizes) {
  std::vector<ir::Dim> strides = ir::row_major(sizes);
  return {std::move(sizes), std::move(strides)};
}

/// x[at, ...].
inline ir::IndexMap row_map(ir::Dim at, size_t rank) {
  ir::IndexMap map{{{at, {}}}};
  for (uint8_t d = 0; d < rank; ++d) map.dims.push_back({0, {{d, 1}}});
  return map;
}

/// x[:, at].
inline ir::IndexMap column_map(ir::Dim at) { return {{{0, {{0, 1}}}, {at, {}}}}; }

/// A program of rounds that are drawn once and repeated: what is drawn for one is what every round does.
class RandomRounds {
 public:
  /// `calls`: some steps are calls of torch's. `traced`: what is drawn does not hang on how many rounds there are,
  /// which may follow from sizes: see ir::Graph::traced.
  RandomRounds(uint32_t seed, ir::Dim trip, bool calls, ir::Dim rows = 3, ir::Dim columns = 4,
               std::shared_ptr<ir::Symbols> symbols = nullptr, bool traced = false)
      : random_(seed),
        trip_(trip),
        rounds_(trip.hint()),
        calls_(calls),
        traced_(traced),
        rows_(rows),
        columns_(columns) {
    g_.symbols = std::move(symbols);
    if (trip.is_symbolic()) g_.traced.push_back({trip});
  }

  ir::Graph make() {
    const std::vector<ir::Dim> value{rows_, columns_};
    auto input = [&](std::vector<ir::Dim> sizes) { return g_.input(ir::DType::F32, dense(std::move(sizes)), {"x"}); };
    sequence_ = input({trip_, rows_, columns_});
    fixed_ = input(value);
    scalar_ = g_.scalar(ir::DType::F64, {"s", true});
    for (int64_t i = 0; i < (traced_ ? 1 : rounds_); ++i) {
      biases_.push_back(input({columns_}));
      weights_.push_back(input({columns_, columns_}));
    }
    const uint32_t states = 1 + draw() % 3;
    for (uint32_t i = 0; i < states; ++i) state_.push_back(first_state(i));
    const ir::NodeId memory = input({trip_, rows_, columns_});
    base_ = draw() % 2 ? memory : g_.undef(ir::DType::F32, dense({trip_, rows_, columns_}));
    wide_ = g_.fresh_copy(input({rows_, trip_}), ir::row_major(std::vector<ir::Dim>{rows_, trip_}));
    draw_round();
    for (int64_t round = 0; round < rounds_; ++round) one(round);
    g_.set_line(0);
    finish(memory);
    return std::move(g_);
  }

 private:
  struct Step {
    uint32_t kind, a, b, op;
  };

  ir::NodeId first_state(uint32_t which) {
    switch (draw() % 3) {
      case 0:
        return g_.expand(g_.constant(ir::DType::F32, 0.5), {rows_, columns_});
      case 1:
        return g_.input(ir::DType::F32, dense({rows_, columns_}), {"h" + std::to_string(which)});
      default:
        return g_.pointwise(ir::Op::Neg, {fixed_});
    }
  }

  uint32_t draw() { return static_cast<uint32_t>(random_()); }
  ir::Dim index(int64_t round) const { return round + 1 == rounds_ ? trip_ - 1 : ir::Dim(round); }
  size_t own(int64_t round) const { return traced_ ? 0 : static_cast<size_t>(round); }

  void draw_round() {
    const uint32_t count = 8 + draw() % 16;
    for (uint32_t i = 0; i < count; ++i) steps_.push_back({draw() % (calls_ ? 14 : 12), draw(), draw(), draw() % 4});
    for (size_t i = 0; i < state_.size(); ++i) next_.push_back(draw());
    stores_ = draw() % 2;
    writes_column_ = draw() % 2;
    sweeps_ = draw() % 4 == 0;
    kept_ = draw();
  }

  ir::NodeId value_of(const Step& step, int64_t round) {
    const ir::NodeId a = values_[step.a % values_.size()], b = values_[step.b % values_.size()];
    switch (step.kind) {
      case 0:
        return g_.view(sequence_, row_map(index(round), 2), {rows_, columns_});
      case 1:
        return g_.pointwise(ir::Op::Mul, {a, g_.expand(biases_[own(round)], {rows_, columns_})});
      case 2:
        return g_.pointwise(ir::Op::Sub, {a, fixed_});
      case 3:
        return g_.pointwise(ir::Op::Add, {a, g_.expand(g_.convert(scalar_, ir::DType::F32), {rows_, columns_})});
      case 4:
        return product(a, weights_[own(round)]);
      case 5:
        return row_sum(a);
      case 6:  // what an earlier round may have written
        return stores_ ? g_.view(base_, row_map(trip_ - 1 - index(round), 2), {rows_, columns_}) : a;
      case 10:  // the same for all rounds but for where the left factor lies
        return matrix_product(g_.view(sequence_, row_map(index(round), 2), {rows_, columns_}), step);
      case 11:
        return matrix_product(a, step);
      case 12:
        return call(a);
      case 13:
        return matrix_product(a, step, weights_[own(round)]);
      case 7:
        return g_.pointwise(ir::Op::Max, {a, g_.expand(g_.constant(ir::DType::F32, -1.0), {rows_, columns_})});
      default:
        return g_.pointwise(std::array{ir::Op::Add, ir::Op::Sub, ir::Op::Mul, ir::Op::Min}[step.op], {a, b});
    }
  }

  /// By one weight of all rounds, which lies by rows or by columns, with a bias or without. Halved three times, so that
  /// values stay small.
  ir::NodeId matrix_product(ir::NodeId left, const Step& step) { return matrix_product(left, step, weights_[0]); }
  ir::NodeId matrix_product(ir::NodeId left, const Step& step, ir::NodeId right) {
    if (step.op % 2)
      right = g_.with_strides(g_.view(right, {{{0, {{1, 1}}}, {0, {{0, 1}}}}}, {columns_, columns_}), {1, columns_});
    ir::ContractAttr attr{ir::Product::Mm, static_cast<uint32_t>(g_.contracts.size()), "aten::mm", {left, right}, true};
    if (step.op / 2) {
      attr.kind = ir::Product::Addmm;
      attr.name = "aten::addmm";
      attr.operands.insert(attr.operands.begin(), biases_[0]);
    }
    const ir::NodeId product = g_.contract(std::move(attr), ir::DType::F32, dense({rows_, columns_}));
    return g_.pointwise(ir::Op::Mul, {product, g_.expand(g_.constant(ir::DType::F32, 0.125), {rows_, columns_})});
  }

  ir::NodeId call(ir::NodeId a) {
    ir::ExternAttr attr;
    attr.name = "fake::op";
    attr.operands = {a};
    return g_.result(g_.external(attr), 0, ir::DType::F32, g_.layout(a));
  }

  ir::NodeId row_sum(ir::NodeId a) {
    const ir::NodeId sum = g_.reduce(ir::ReduceKind::Sum, a, {1}, ir::DType::F32);
    return g_.expand(g_.reshape(sum, {rows_, 1}), {rows_, columns_});
  }

  ir::NodeId product(ir::NodeId a, ir::NodeId weight) {
    const ir::NodeId left = g_.view(a, {{{0, {{0, 1}}}, {0, {{2, 1}}}}}, {rows_, columns_, columns_});
    const ir::NodeId right = g_.view(weight, {{{0, {{1, 1}}}, {0, {{2, 1}}}}}, {rows_, columns_, columns_});
    // Halved, so that values stay small.
    return g_.pointwise(ir::Op::Mul,
                        {g_.dot(left, right, {2}), g_.expand(g_.constant(ir::DType::F32, 0.125), {rows_, columns_})});
  }

  void one(int64_t round) {
    if (trip_.is_symbolic()) g_.set_line(g_.intern_line("rounds", {0, static_cast<uint32_t>(round)}));
    values_ = state_;
    values_.push_back(g_.view(sequence_, row_map(index(round), 2), {rows_, columns_}));
    for (const Step& step : steps_) values_.push_back(bounded(value_of(step, round)));
    const size_t old = traced_ ? state_.size() : 0;  // of a traced loop each round hands on what it has made
    for (size_t i = 0; i < state_.size(); ++i) state_[i] = values_[old + next_[i] % (values_.size() - old)];
    if (stores_) base_ = g_.update(base_, values_.back(), row_map(index(round), 2));
    if (writes_column_) {
      const ir::NodeId sum = g_.reduce(ir::ReduceKind::Max, values_.back(), {1}, ir::DType::F32);
      wide_ = g_.update(wide_, sum, column_map(index(round)));
    }
    if (sweeps_) {
      const ir::Dim inner = rows_ - 1;
      const auto part = [&](int64_t from) {
        return g_.view(grid(), {{{from, {{0, 1}}}, {0, {{1, 1}}}}}, {inner, columns_});
      };
      grid_ = g_.update(grid(), g_.pointwise(ir::Op::Max, {part(0), part(1)}), {{{1, {{0, 1}}}, {0, {{1, 1}}}}});
    }
    gathered_.push_back(values_[kept_ % values_.size()]);
    before_.push_back(values_[0]);
  }

  ir::NodeId& grid() {
    if (grid_ == ir::kNoNode) grid_ = g_.fresh_copy(fixed_, ir::row_major(std::vector<ir::Dim>{rows_, columns_}));
    return grid_;
  }

  ir::NodeId bounded(ir::NodeId value) {
    const auto limit = [&](double at) { return g_.expand(g_.constant(ir::DType::F32, at), {rows_, columns_}); };
    return g_.pointwise(ir::Op::Min, {g_.pointwise(ir::Op::Max, {value, limit(-4)}), limit(4)});
  }

  void give(ir::NodeId value) {
    const bool is_own = g_[value].op != ir::Op::Input && !std::count(g_.outputs.begin(), g_.outputs.end(), value);
    g_.outputs.push_back(is_own ? value : g_.fresh_copy(value, g_.layout(value).strides));
  }

  void finish(ir::NodeId memory) {
    for (const ir::NodeId state : state_)
      if (draw() % 2) give(state);
    if (stores_ && draw() % 2) give(base_);
    if (stores_ && g_[memory].op == ir::Op::Input && draw() % 2) g_.stores.push_back({g_[memory].attr, base_, 1});
    if (writes_column_) give(wide_);
    if (sweeps_) give(grid_);
    if (draw() % 2) {  // torch.stack, of all or of some with another before them
      std::vector<ir::NodeId> parts;
      if (draw() % 3 == 0) parts.push_back(g_.reshape(fixed_, {1, rows_, columns_}));
      const bool both = traced_ && draw() % 2;  // what a round has got, too
      for (size_t i = 0; i < gathered_.size(); ++i) {
        if (both) parts.push_back(g_.reshape(before_[i], {1, rows_, columns_}));
        parts.push_back(g_.reshape(gathered_[i], {1, rows_, columns_}));
      }
      if (draw() % 2 && !traced_) std::reverse(parts.begin(), parts.end());  // as the way back collects gradients
      const int64_t each = both ? 2 : 1, others = static_cast<int64_t>(parts.size()) - each * rounds_;
      give(g_.cat(parts, 0, each * trip_ + others));
    }
    const size_t one = draw() % gathered_.size();
    if (draw() % 2) give(g_.pointwise(ir::Op::Neg, {traced_ ? gathered_.back() : gathered_[one]}));
    if (g_.outputs.empty()) give(values_.back());
  }

  std::mt19937 random_;
  const ir::Dim trip_;
  const int64_t rounds_;
  const bool calls_, traced_;
  const ir::Dim rows_, columns_;
  ir::Graph g_;
  ir::NodeId sequence_ = 0, fixed_ = 0, scalar_ = 0, base_ = 0, wide_ = 0, grid_ = ir::kNoNode;
  std::vector<ir::NodeId> biases_, weights_, state_, values_, gathered_, before_;
  std::vector<Step> steps_;
  std::vector<uint32_t> next_;
  uint32_t kept_ = 0;
  bool stores_ = false, writes_column_ = false, sweeps_ = false;
};

}  // namespace fastjit::test
