#pragma once
// Slow and obviously right: runs a graph node by node. Floats of every type are computed as doubles. Extern calls are a
// few fakes, by name. reference_machine.h runs programs.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fastjit::test {

/// A number: `f` for floating types, `i` for the others.
struct Num {
  double f = std::numeric_limits<double>::quiet_NaN();
  int64_t i = 0x5EADBEEF;
};

inline Num wrap(ir::DType type, int64_t i) {
  switch (type) {
    case ir::DType::I8:
      return {0, static_cast<int8_t>(i)};
    case ir::DType::I16:
      return {0, static_cast<int16_t>(i)};
    case ir::DType::I32:
      return {0, static_cast<int32_t>(i)};
    case ir::DType::U8:
      return {0, static_cast<uint8_t>(i)};
    case ir::DType::Bool:
      return {0, i != 0};
    default:
      return {0, i};
  }
}

/// The pointwise ops that the tests of the planner use.
inline Num apply(ir::Op op, ir::DType from, ir::DType to, Num a, Num b, Num c) {
  using ir::Op;
  const bool is_float = ir::is_floating(from);
  auto number = [&](double f, int64_t i) { return is_float ? Num{f, 0} : wrap(to, i); };
  auto flag = [](bool value) { return Num{0, value}; };
  auto u = [](int64_t i) { return static_cast<uint64_t>(i); };
  switch (op) {
    case Op::Add:
      return number(a.f + b.f, static_cast<int64_t>(u(a.i) + u(b.i)));
    case Op::Sub:
      return number(a.f - b.f, static_cast<int64_t>(u(a.i) - u(b.i)));
    case Op::Mul:
      return number(a.f * b.f, static_cast<int64_t>(u(a.i) * u(b.i)));
    case Op::Div:
      return {a.f / b.f, 0};
    case Op::Neg:
      return number(-a.f, static_cast<int64_t>(-u(a.i)));
    case Op::Abs:
      return number(std::fabs(a.f), a.i < 0 ? static_cast<int64_t>(-u(a.i)) : a.i);
    case Op::Min:
      return number(std::min(a.f, b.f), std::min(a.i, b.i));
    case Op::Max:
      return number(std::max(a.f, b.f), std::max(a.i, b.i));
    case Op::Exp:
      return {std::exp(a.f), 0};
    case Op::Tanh:
      return {std::tanh(a.f), 0};
    case Op::Erf:
      return {std::erf(a.f), 0};
    case Op::Rsqrt:
      return {1 / std::sqrt(a.f), 0};
    case Op::Sigmoid:
      return {1 / (1 + std::exp(-a.f)), 0};
    case Op::Lt:
      return flag(is_float ? a.f < b.f : a.i < b.i);
    case Op::Gt:
      return flag(is_float ? a.f > b.f : a.i > b.i);
    case Op::Where:
      return a.i ? b : c;
    case Op::Convert:
      if (to == ir::DType::Bool) return flag(is_float ? a.f != 0 : a.i != 0);
      if (ir::is_floating(to)) return {is_float ? a.f : static_cast<double>(a.i), 0};
      return is_float ? wrap(to, std::isfinite(a.f) ? static_cast<int64_t>(std::clamp(a.f, -1e15, 1e15)) : 0)
                      : wrap(to, a.i);
    default:
      throw std::logic_error("reference: op " + std::string(ir::text(op)));
  }
}

/// Folds elements in row-major order.
struct Fold {
  ir::ReduceKind kind;
  bool is_float;
  Num value;
  int64_t at = 0, seen = 0;

  Fold(ir::ReduceKind kind, ir::DType from) : kind(kind), is_float(ir::is_floating(from)) {
    const bool one = kind == ir::ReduceKind::Prod || kind == ir::ReduceKind::All;
    value = {kind == ir::ReduceKind::Prod && is_float ? 1.0 : 0.0, one};
  }
  void add(Num x) {
    using ir::ReduceKind;
    const bool greater = is_float ? x.f > value.f : x.i > value.i, less = is_float ? x.f < value.f : x.i < value.i;
    switch (kind) {
      case ReduceKind::Sum:
      case ReduceKind::Dot:  // of products
        value = {value.f + x.f, value.i + x.i};
        break;
      case ReduceKind::Prod:
        value = {value.f * x.f, static_cast<int64_t>(static_cast<uint64_t>(value.i) * static_cast<uint64_t>(x.i))};
        break;
      case ReduceKind::Any:
        value.i |= x.i;
        break;
      case ReduceKind::All:
        value.i &= x.i;
        break;
      case ReduceKind::Max:
      case ReduceKind::ArgMax:
        if (seen == 0 || greater) {
          value = x;
          at = seen;
        }
        break;
      case ReduceKind::Min:
      case ReduceKind::ArgMin:
        if (seen == 0 || less) {
          value = x;
          at = seen;
        }
        break;
    }
    ++seen;
  }
  Num result() const { return kind == ir::ReduceKind::ArgMax || kind == ir::ReduceKind::ArgMin ? Num{0, at} : value; }
};

/// Calls `body` with every index of the box, in row-major order.
inline void each_index(const std::vector<int64_t>& sizes,
                       const std::function<void(const std::vector<int64_t>&)>& body) {
  for (const int64_t size : sizes)
    if (size == 0) return;
  std::vector<int64_t> index(sizes.size(), 0);
  for (;;) {
    body(index);
    auto d = static_cast<int64_t>(sizes.size()) - 1;
    while (d >= 0 && ++index[static_cast<size_t>(d)] == sizes[static_cast<size_t>(d)])
      index[static_cast<size_t>(d--)] = 0;
    if (d < 0) return;
  }
}

inline int64_t dot_index(const std::vector<int64_t>& strides, const std::vector<int64_t>& index) {
  int64_t sum = 0;
  for (size_t d = 0; d < index.size(); ++d) sum += strides[d] * index[d];
  return sum;
}

inline std::vector<int64_t> row_major(const std::vector<int64_t>& sizes) {
  return ir::hints(ir::row_major(std::vector<ir::Dim>(sizes.begin(), sizes.end())));
}

using Values = std::vector<Num>;  // of one tensor, in row-major order

struct Outcome {
  std::vector<Values> outputs, inputs;  // inputs: their contents after the call
  std::vector<Values> guards;           // what each guard compares, in order
};

/// The fakes, on values. fake::op adds its operands up; fake::view reverses the dims; fake::write doubles its first
/// operand and adds one; aten::mm and aten::addmm are themselves.
inline Values fake_call(const std::string& name, const std::vector<Values>& in,
                        const std::vector<std::vector<int64_t>>& sizes) {
  if (name == "aten::mm" || name == "aten::addmm") {
    const size_t a = in.size() - 2, b = in.size() - 1;
    const int64_t m = sizes[a][0], k = sizes[a][1], n = sizes[b][1];
    Values out(static_cast<size_t>(m * n), Num{0, 0});
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = a == 1 ? in[0][static_cast<size_t>(j)].f : 0;
        for (int64_t t = 0; t < k; ++t)
          sum += in[a][static_cast<size_t>(i * k + t)].f * in[b][static_cast<size_t>(t * n + j)].f;
        out[static_cast<size_t>(i * n + j)].f = sum;
      }
    return out;
  }
  if (name == "fake::view") {
    std::vector<int64_t> reversed(sizes[0].rbegin(), sizes[0].rend()), strides = row_major(sizes[0]);
    std::reverse(strides.begin(), strides.end());
    Values out;
    each_index(reversed,
               [&](const auto& index) { out.push_back(in[0][static_cast<size_t>(dot_index(strides, index))]); });
    return out;
  }
  Values out = in[0];
  for (size_t i = 0; i < out.size(); ++i) {
    if (name == "fake::write") out[i] = {2 * out[i].f + 1, 2 * out[i].i + 1};
    for (size_t k = 1; k < in.size(); ++k)
      if (!in[k].empty()) out[i] = {out[i].f + in[k][i % in[k].size()].f, out[i].i + in[k][i % in[k].size()].i};
  }
  return out;
}

/// map(index).
inline std::vector<int64_t> mapped(const ir::IndexMap& map, const std::vector<int64_t>& index) {
  std::vector<int64_t> out;
  for (const ir::Affine& row : map.dims) {
    out.push_back(row.offset.hint());
    for (const auto& [dim, coefficient] : row.terms) out.back() += coefficient.hint() * index[dim];
  }
  return out;
}

inline Outcome run_graph(const ir::Graph& g, std::vector<Values> inputs, const std::vector<Num>& scalars);

/// What the loop's finals are.
inline std::vector<Values> run_loop(const ir::LoopAttr& loop, const std::vector<Values>& all,
                                    const std::vector<Num>& scalars) {
  const uint32_t single = loop.carried + loop.placed + loop.fixed;
  std::vector<Values> in, lasts;
  for (uint32_t i = 0; i < single; ++i) in.push_back(all[loop.operands[i]]);
  in.resize(single + loop.tables);
  for (int64_t round = 0; round < loop.trip.hint(); ++round) {
    for (uint32_t i = 0; i < loop.tables; ++i)
      in[single + i] = all[loop.operands[single + static_cast<size_t>(i * loop.trip.hint() + round)]];
    std::vector<int64_t> at;
    for (size_t i = 0; loop.body->symbols && i < loop.body->symbols->size(); ++i)
      at.push_back(loop.body->symbols->value(i));
    if (!at.empty()) at.back() = ir::LoopAttr::kFirstRound + round;
    Outcome made = run_graph(at.empty() ? *loop.body : ir::at_sizes(*loop.body, at), in, scalars);
    for (uint32_t i = 0; i < loop.carried; ++i) in[i] = made.outputs[i];
    for (uint32_t i = loop.carried; i < loop.carried + loop.placed; ++i) in[i] = made.inputs[i];
    lasts.assign(made.outputs.begin() + loop.carried, made.outputs.end());
  }
  in.resize(loop.carried + loop.placed);
  in.insert(in.end(), lasts.begin(), lasts.end());
  return in;
}

inline Outcome run_graph(const ir::Graph& g, std::vector<Values> inputs, const std::vector<Num>& scalars) {
  using ir::Op;
  std::vector<Values> all(g.nodes.size());
  const std::vector<Values> old = inputs;
  Outcome outcome;
  std::vector<Values> finals;  // of the last loop
  for (ir::NodeId id = 0; id < g.nodes.size(); ++id) {
    const ir::Node& node = g[id];
    const std::vector<int64_t> sizes = ir::hints(g.sizes(id));
    Values& out = all[id];
    auto called = [&](const std::string& name, const std::vector<ir::NodeId>& operands) {
      std::vector<Values> in;
      std::vector<std::vector<int64_t>> shapes;
      for (const ir::NodeId operand : operands) {
        in.push_back(all[operand]);
        shapes.push_back(ir::hints(g.sizes(operand)));
      }
      Values made = fake_call(name, in, shapes);
      if (ir::is_floating(node.dtype))
        for (Num& number : made) number.i = 0;
      return made;
    };
    auto at = [&](ir::NodeId in, const std::vector<int64_t>& index) {  // broadcasting
      std::vector<int64_t> inner(index.end() - g[in].rank, index.end());
      for (size_t d = 0; d < inner.size(); ++d) inner[d] = g.sizes(in)[d] == 1 ? 0 : inner[d];
      return all[in][static_cast<size_t>(dot_index(row_major(ir::hints(g.sizes(in))), inner))];
    };
    if (node.op == Op::Input)
      out = old[node.attr];
    else if (node.op == Op::Scalar)
      out = {scalars[node.attr]};
    else if (node.op == Op::Const) {
      const uint64_t bits = g.constants[node.attr];
      out = {ir::is_floating(node.dtype) ? Num{std::bit_cast<double>(bits), 0} : Num{0, static_cast<int64_t>(bits)}};
    } else if (node.op == Op::Iota)
      each_index(sizes, [&](const auto& index) { out.push_back({0, index[node.attr]}); });
    else if (node.op == Op::Undef)
      each_index(sizes, [&](const auto&) { out.push_back({}); });
    else if (node.op == Op::Reshape)
      out = all[node.in[0]];
    else if (is_pointwise(node.op)) {
      each_index(sizes, [&](const auto& index) {
        Num args[3];
        for (int k = 0; k < ir::info(node.op).arity; ++k) args[k] = at(node.in[k], index);
        out.push_back(apply(node.op, g[node.in[0]].dtype, node.dtype, args[0], args[1], args[2]));
      });
    } else if (node.op == Op::View) {
      each_index(sizes, [&](const auto& index) { out.push_back(at(node.in[0], mapped(g.maps[node.attr], index))); });
    } else if (node.op == Op::Gather) {
      const auto dim = static_cast<std::ptrdiff_t>(node.attr), taken = std::ptrdiff_t{g[node.in[1]].rank};
      each_index(sizes, [&](const auto& index) {
        std::vector<int64_t> from = index;
        const auto first = from.begin() + dim;
        const int64_t which = at(node.in[1], {index.begin() + dim, index.begin() + dim + taken}).i;
        from.insert(from.erase(first, first + taken), which);
        out.push_back(at(node.in[0], from));
      });
    } else if (node.op == Op::Update) {
      out = all[node.in[0]];
      each_index(ir::hints(g.sizes(node.in[1])), [&](const auto& index) {
        const int64_t place = dot_index(row_major(sizes), mapped(g.maps[node.attr], index));
        out[static_cast<size_t>(place)] = at(node.in[1], index);
      });
    } else if (node.op == Op::Cat) {
      const ir::ListAttr& list = g.lists[node.attr];
      each_index(sizes, [&](std::vector<int64_t> index) {
        size_t part = 0;
        const auto d = static_cast<size_t>(list.dim);
        while (index[d] >= g.sizes(list.operands[part])[d]) index[d] -= g.sizes(list.operands[part++])[d].hint();
        out.push_back(all[list.operands[part]]
                         [static_cast<size_t>(dot_index(row_major(ir::hints(g.sizes(list.operands[part]))), index))]);
      });
    } else if (node.op == Op::Reduce || node.op == Op::Dot) {
      const ir::ReduceAttr& attr = g.reduces[node.attr];
      std::vector<int64_t> reduced;
      for (const uint8_t dim : attr.dims) reduced.push_back(g.sizes(node.in[0])[dim].hint());
      each_index(sizes, [&](const auto& kept) {
        Fold fold(attr.kind, g[node.in[0]].dtype);
        each_index(reduced, [&](const auto& gone) {
          std::vector<int64_t> index;
          for (size_t d = 0, k = 0, r = 0; d < g.sizes(node.in[0]).size(); ++d)
            index.push_back(std::count(attr.dims.begin(), attr.dims.end(), d) ? gone[r++] : kept[k++]);
          const Num value = at(node.in[0], index);
          fold.add(node.op == Op::Reduce ? value : Num{value.f * at(node.in[1], index).f, 0});
        });
        out.push_back(fold.result());
      });
    } else if (node.op == Op::Loop) {
      finals = run_loop(g.loops[node.attr], all, scalars);
    } else if (node.op == Op::Final) {
      out = finals[node.attr];
    } else if (node.op == Op::Contract) {
      const ir::ContractAttr& attr = g.contracts[node.attr];
      out = called(attr.name, attr.operands);
    } else if (node.op == Op::Extern) {
      const ir::ExternAttr& attr = g.externs[node.attr];
      if (attr.kind == ir::ExternKind::Guard) outcome.guards.push_back(all[attr.operands[0]]);
      if (!attr.written.empty() && g[attr.operands[0]].op == Op::Input)
        inputs[g[attr.operands[0]].attr] = called(attr.name, attr.operands);
    } else if (node.op == Op::Result) {
      const ir::ExternAttr& attr = g.externs[g[node.in[0]].attr];
      out = called(attr.name, attr.operands);
    }
  }
  for (const ir::Store& store : g.stores) inputs[store.input] = all[store.value];
  for (const ir::NodeId id : g.outputs) outcome.outputs.push_back(g[id].op == Op::Input ? inputs[g[id].attr] : all[id]);
  outcome.inputs = std::move(inputs);
  return outcome;
}

}  // namespace fastjit::test
