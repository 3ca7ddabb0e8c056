#pragma once
// Slow and obviously right: runs a graph node by node, and a program step by step on plain memory. Floats of every type
// are computed as doubles, so that the two differ by the order of sums only. Extern calls are a few fakes, by name.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "plan/program.h"

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

using Values = std::vector<Num>;  // of one tensor, in row-major order

struct Outcome {
  std::vector<Values> outputs, inputs;  // inputs: their contents after the call
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
    std::vector<int64_t> reversed(sizes[0].rbegin(), sizes[0].rend()), strides = ir::row_major(sizes[0]);
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

inline Outcome run_graph(const ir::Graph& g, std::vector<Values> inputs, const std::vector<Num>& scalars) {
  using ir::Op;
  std::vector<Values> all(g.nodes.size());
  const std::vector<Values> old = inputs;
  for (ir::NodeId id = 0; id < g.nodes.size(); ++id) {
    const ir::Node& node = g[id];
    const std::vector<int64_t> sizes(g.sizes(id).begin(), g.sizes(id).end());
    Values& out = all[id];
    auto at = [&](ir::NodeId in, const std::vector<int64_t>& index) {  // broadcasting
      std::vector<int64_t> inner(index.end() - g[in].rank, index.end());
      for (size_t d = 0; d < inner.size(); ++d) inner[d] = g.sizes(in)[d] == 1 ? 0 : inner[d];
      return all[in][static_cast<size_t>(dot_index(ir::row_major(g.sizes(in)), inner))];
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
    else if (node.op == Op::Reshape)
      out = all[node.in[0]];
    else if (is_pointwise(node.op)) {
      each_index(sizes, [&](const auto& index) {
        Num args[3];
        for (int k = 0; k < ir::info(node.op).arity; ++k) args[k] = at(node.in[k], index);
        out.push_back(apply(node.op, g[node.in[0]].dtype, node.dtype, args[0], args[1], args[2]));
      });
    } else if (node.op == Op::View) {
      each_index(sizes, [&](const auto& index) {
        std::vector<int64_t> inner;
        for (const ir::Affine& row : g.maps[node.attr].dims) {
          inner.push_back(row.offset);
          for (const auto& [dim, coefficient] : row.terms) inner.back() += coefficient * index[dim];
        }
        out.push_back(at(node.in[0], inner));
      });
    } else if (node.op == Op::Cat) {
      const ir::ListAttr& list = g.lists[node.attr];
      each_index(sizes, [&](std::vector<int64_t> index) {
        size_t part = 0;
        const auto d = static_cast<size_t>(list.dim);
        while (index[d] >= g.sizes(list.operands[part])[d]) index[d] -= g.sizes(list.operands[part++])[d];
        out.push_back(all[list.operands[part]]
                         [static_cast<size_t>(dot_index(ir::row_major(g.sizes(list.operands[part])), index))]);
      });
    } else if (node.op == Op::Reduce) {
      const ir::ReduceAttr& attr = g.reduces[node.attr];
      std::vector<int64_t> reduced;
      for (const uint8_t dim : attr.dims) reduced.push_back(g.sizes(node.in[0])[dim]);
      each_index(sizes, [&](const auto& kept) {
        Fold fold(attr.kind, g[node.in[0]].dtype);
        each_index(reduced, [&](const auto& gone) {
          std::vector<int64_t> index;
          for (size_t d = 0, k = 0, r = 0; d < g.sizes(node.in[0]).size(); ++d)
            index.push_back(std::count(attr.dims.begin(), attr.dims.end(), d) ? gone[r++] : kept[k++]);
          fold.add(at(node.in[0], index));
        });
        out.push_back(fold.result());
      });
    } else if (node.op == Op::Result) {
      const ir::ExternAttr& attr = g.externs[g[node.in[0]].attr];
      std::vector<Values> in;
      std::vector<std::vector<int64_t>> shapes;
      for (const ir::NodeId operand : attr.operands) {
        in.push_back(all[operand]);
        shapes.emplace_back(g.sizes(operand).begin(), g.sizes(operand).end());
      }
      out = fake_call(attr.name, in, shapes);
      if (ir::is_floating(node.dtype))
        for (Num& number : out) number.i = 0;
      if (!attr.written.empty() && g[attr.operands[0]].op == Op::Input) inputs[g[attr.operands[0]].attr] = out;
    }
  }
  Outcome outcome;
  for (const ir::Store& store : g.stores) inputs[store.input] = all[store.value];
  for (const ir::NodeId id : g.outputs) outcome.outputs.push_back(g[id].op == Op::Input ? inputs[g[id].attr] : all[id]);
  outcome.inputs = std::move(inputs);
  return outcome;
}

/// Runs programs. Every load checks that its slot is alive; temporaries share one arena of cells, one a byte, where a
/// store spoils the bytes behind its first.
class Machine {
 public:
  Machine(const ir::Graph& graph, const plan::Program& program, uint32_t seed)
      : graph_(graph), program_(program), random_(seed) {}

  Outcome run(const std::vector<Values>& inputs, const std::vector<Num>& scalars) {
    scalars_ = scalars;
    arena_ = std::make_shared<Values>(static_cast<size_t>(program_.arena_bytes));
    tensors_.resize(program_.slots.size());
    for (plan::SlotId id = 0; id < program_.slots.size(); ++id) {
      const plan::Slot& slot = program_.slots[id];
      if (slot.kind != plan::SlotKind::Input) continue;
      allocate(id);
      fill(id, inputs[slot.index]);
    }
    for (const plan::Step& step : program_.steps) std::visit([&](const auto& s) { execute(s); }, step);
    Outcome outcome;
    for (const plan::SlotId id : program_.outputs) outcome.outputs.push_back(read(id));
    outcome.inputs = inputs;
    for (plan::SlotId id = 0; id < program_.slots.size(); ++id)
      if (program_.slots[id].kind == plan::SlotKind::Input) outcome.inputs[program_.slots[id].index] = read(id);
    return outcome;
  }

 private:
  struct Tensor {
    std::shared_ptr<Values> cells;
    int64_t offset = 0, scale = 1;
    bool freed = false;
  };

  void allocate(plan::SlotId id) {
    const plan::Slot& slot = program_.slots[id];
    int64_t extent = 1;
    for (size_t d = 0; d < slot.sizes.size(); ++d) extent += (slot.sizes[d] - 1) * slot.strides[d];
    tensors_[id].cells = std::make_shared<Values>(static_cast<size_t>(std::max<int64_t>(extent, 0)));
  }
  Tensor& tensor(plan::SlotId id) {
    const plan::Slot& slot = program_.slots[id];
    Tensor& t = tensors_[id];
    if (t.freed) throw std::logic_error("slot s" + std::to_string(id) + " is used after it was freed");
    if (slot.kind == plan::SlotKind::Alias) {
      t = tensor(slot.base);
      t.offset += slot.offset;
    } else if (slot.kind == plan::SlotKind::Temp) {
      if (slot.offset % 64) throw std::logic_error("a temporary is not aligned");
      t = {arena_, slot.offset, ir::size_of(slot.dtype)};
    } else if (!t.cells) {
      if (slot.kind != plan::SlotKind::Tensor)
        throw std::logic_error("slot s" + std::to_string(id) + " is used before it is made");
      allocate(id);
    }
    return t;
  }
  Num& cell(Tensor& t, int64_t element) {
    return t.cells->at(static_cast<size_t>(t.scale == 1 ? t.offset + element : t.offset + element * t.scale));
  }
  void write_cell(Tensor& t, int64_t element, Num value) {
    Num* first = &cell(t, element);
    if (t.cells == arena_)
      for (int64_t b = 1; b < t.scale; ++b) (&cell(t, element))[b] = Num{};
    *first = value;
  }
  Values read(plan::SlotId id) {
    Values out;
    Tensor& t = tensor(id);
    each_index(program_.slots[id].sizes,
               [&](const auto& index) { out.push_back(cell(t, dot_index(program_.slots[id].strides, index))); });
    if (ir::is_floating(program_.slots[id].dtype))
      for (Num& number : out) number.i = 0;
    return out;
  }
  void fill(plan::SlotId id, const Values& values) {
    Tensor& t = tensor(id);
    size_t next = 0;
    each_index(program_.slots[id].sizes,
               [&](const auto& index) { write_cell(t, dot_index(program_.slots[id].strides, index), values[next++]); });
  }

  void execute(const plan::FreeStep& step) { tensors_[step.slot].freed = true; }
  void execute(const plan::ParallelStep& step) {
    std::vector<const plan::KernelStep*> launches;
    for (const plan::KernelStep& launch : step.launches) launches.push_back(&launch);
    std::shuffle(launches.begin(), launches.end(), random_);
    for (const plan::KernelStep* launch : launches) execute(*launch);
  }
  Values call(uint32_t external, const std::vector<plan::SlotId>& operands) {
    std::vector<Values> in;
    std::vector<std::vector<int64_t>> sizes;
    const ir::ExternAttr& attr = graph_.externs[external];
    for (size_t i = 0; i < operands.size(); ++i) {
      const plan::Slot& slot = program_.slots[operands[i]];
      const ir::Layout& layout = graph_.layout(attr.operands[i]);
      if (slot.kind == plan::SlotKind::Temp || slot.sizes != layout.sizes || slot.strides != layout.strides)
        throw std::logic_error("an extern call did not get eager's tensor");
      in.push_back(read(operands[i]));
      sizes.push_back(slot.sizes);
    }
    return fake_call(attr.name, in, sizes);
  }
  void execute(const plan::ExternStep& step) {
    const ir::ExternAttr& attr = graph_.externs[step.external];
    const Values out = call(step.external, step.operands);
    if (!attr.written.empty()) fill(step.operands[0], out);
    if (step.results.empty() || step.results[0] == plan::kNoSlot) return;
    const plan::SlotId result = step.results[0];
    if (attr.kind == ir::ExternKind::View || !attr.written.empty()) {
      tensors_[result] = tensor(step.operands[0]);
    } else {
      allocate(result);
      fill(result, out);
    }
  }
  void execute(const plan::MatmulStep& step) {
    const Values out = call(step.external, step.operands);
    const plan::Slot& slot = program_.slots[step.result];
    if (slot.kind != plan::SlotKind::Tensor || slot.strides != ir::row_major(slot.sizes))
      throw std::logic_error("a product needs a contiguous tensor");
    Tensor& t = tensor(step.result);
    const int64_t rows = slot.sizes[0], width = slot.sizes[1];
    const int64_t tile = step.rows_per_tile > 0 ? step.rows_per_tile : std::max<int64_t>(rows, 1);
    for (int64_t first = 0; first < rows; first += tile) {
      const int64_t last = std::min(rows, first + tile);
      for (int64_t i = first * width; i < last * width; ++i) write_cell(t, i, out[static_cast<size_t>(i)]);
      for (plan::KernelStep launch : step.epilogue) {
        if (step.rows_per_tile > 0) {
          launch.sizes[0] = last - first;
          for (size_t k = 0; k < launch.offsets.size(); ++k)
            launch.offsets[k] += first * launch.strides[k * launch.sizes.size()];
        }
        execute(launch);
      }
    }
  }

  void execute(const plan::KernelStep& step) {
    const plan::KernelPlan& kernel = program_.kernels[step.kernel];
    if (const std::string fault = plan::verify(kernel); !fault.empty()) throw std::logic_error(fault);
    const size_t rank = step.sizes.size(), kept = static_cast<size_t>(kernel.kept());
    for (size_t k = 0; k < kernel.operands.size(); ++k)
      for (size_t d = 0; d < rank; ++d) {
        const int64_t stride = step.strides[k * rank + d];
        const plan::StrideClass expected = kernel.operands[k].strides[d];
        if ((expected == plan::StrideClass::Zero && stride != 0) ||
            (expected == plan::StrideClass::Unit && stride != 1))
          throw std::logic_error("a stride is not of its class");
      }
    const std::vector<int64_t> outer(step.sizes.begin(), step.sizes.begin() + static_cast<std::ptrdiff_t>(kept));
    const std::vector<int64_t> inner(step.sizes.begin() + static_cast<std::ptrdiff_t>(kept), step.sizes.end());
    std::vector<std::vector<int64_t>> points;
    each_index(outer, [&](const auto& index) { points.push_back(index); });
    if (kernel.vec_is_kept() && (step.block <= 0 || (step.block % kernel.lanes != 0 && step.block != outer.back())))
      throw std::logic_error("a block is not whole vectors");
    if (kernel.tile > 0 && step.block != kernel.tile) throw std::logic_error("a block is not a tile");
    const int64_t units = plan::unit_count(kernel, step.sizes.data(), step.block);
    if (units != step.units && step.grain == 0) throw std::logic_error("wrong number of units");
    std::shuffle(points.begin(), points.end(), random_);
    for (const auto& point : points) run_point(kernel, step, point, inner);
  }

  void run_point(const plan::KernelPlan& kernel, const plan::KernelStep& step, const std::vector<int64_t>& point,
                 const std::vector<int64_t>& inner) {
    std::vector<Num> values(kernel.code.size());
    std::vector<std::vector<Num>> scratch(kernel.scratch.size());
    for (const plan::Phase& phase : kernel.phases) {
      std::map<uint32_t, Fold> folds;
      for (const uint32_t id : phase.elem)
        if (kernel.code[id].code == plan::Code::Reduce)
          folds.emplace(id, Fold(kernel.code[id].kind, kernel.code[kernel.code[id].args[0]].dtype));
      size_t at = 0;
      if (kernel.is_row_kernel())
        each_index(inner, [&](const auto& reduced) {
          std::vector<int64_t> index = point;
          index.insert(index.end(), reduced.begin(), reduced.end());
          for (const uint32_t id : phase.elem) {
            const plan::Instr& instr = kernel.code[id];
            if (instr.code == plan::Code::Reduce)
              folds.at(id).add(values[instr.args[0]]);
            else if (instr.code == plan::Code::Keep)
              scratch[instr.imm].resize(at + 1), scratch[instr.imm][at] = values[instr.args[0]];
            else if (instr.code == plan::Code::Recall)
              values[id] = scratch[instr.imm].at(at);
            else
              values[id] = run_instr(kernel, step, instr, values, index);
          }
          ++at;
        });
      for (const auto& [id, fold] : folds) values[id] = fold.result();
      std::vector<int64_t> index = point;
      index.resize(step.sizes.size(), 0);
      for (const uint32_t id : phase.row) values[id] = run_instr(kernel, step, kernel.code[id], values, index);
    }
  }

  Num run_instr(const plan::KernelPlan& kernel, const plan::KernelStep& step, const plan::Instr& instr,
                const std::vector<Num>& values, const std::vector<int64_t>& index) {
    auto address = [&] {
      const size_t rank = index.size();
      int64_t sum = step.offsets[instr.imm];
      for (size_t d = 0; d < rank; ++d) sum += step.strides[instr.imm * rank + d] * index[d];
      return sum;
    };
    switch (instr.code) {
      case plan::Code::Load:
        return cell(tensor(step.operands[instr.imm]), address());
      case plan::Code::Store:
        write_cell(tensor(step.operands[instr.imm]), address(), values[instr.args[0]]);
        return {};
      case plan::Code::Scalar:
        return scalars_[step.scalars[instr.imm]];
      case plan::Code::Const:
        return ir::is_floating(instr.dtype) ? Num{std::bit_cast<double>(instr.imm), 0}
                                            : Num{0, static_cast<int64_t>(instr.imm)};
      case plan::Code::Index:
        return {0, index[instr.imm]};
      case plan::Code::Compute: {
        const Num b = ir::info(instr.op).arity > 1 ? values[instr.args[1]] : Num{},
                  c = ir::info(instr.op).arity > 2 ? values[instr.args[2]] : Num{};
        return apply(instr.op, kernel.code[instr.args[0]].dtype, instr.dtype, values[instr.args[0]], b, c);
      }
      default:
        throw std::logic_error("an instruction stands where it may not");
    }
  }

  const ir::Graph& graph_;
  const plan::Program& program_;
  std::mt19937 random_;
  std::vector<Num> scalars_;
  std::shared_ptr<Values> arena_;
  std::vector<Tensor> tensors_;
};

}  // namespace fastjit::test
