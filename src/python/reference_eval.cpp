#include "python/reference_eval.h"

#include <ATen/ATen.h>

#include <bit>
#include <stdexcept>

#include "capture/lower/lower.h"

namespace fastjit::capture {
namespace {

using at::Tensor;
using ir::Op;

// torch has no fused multiply-add of three tensors.
Tensor fma_of(const Tensor& a, const Tensor& b, const Tensor& c) {
  auto in = at::broadcast_tensors({a, b, c});
  for (Tensor& t : in) t = t.contiguous();
  Tensor out = at::empty_like(in[0]);
  auto run = [&]<class T>(T) {
    for (int64_t i = 0; i < out.numel(); ++i)
      out.data_ptr<T>()[i] =
          std::fma(in[0].const_data_ptr<T>()[i], in[1].const_data_ptr<T>()[i], in[2].const_data_ptr<T>()[i]);
  };
  a.scalar_type() == at::kFloat ? run(float{}) : run(double{});
  return out;
}

Tensor unary(Op op, const Tensor& a) {
  switch (op) {
    case Op::Neg:
      return at::neg(a);
    case Op::Abs:
      return at::abs(a);
    case Op::Sqrt:
      return at::sqrt(a);
    case Op::Rsqrt:
      return at::rsqrt(a);
    case Op::Floor:
      return at::floor(a);
    case Op::Ceil:
      return at::ceil(a);
    case Op::Trunc:
      return at::trunc(a);
    case Op::Round:
      return at::round(a);
    case Op::Exp:
      return at::exp(a);
    case Op::Exp2:
      return at::exp2(a);
    case Op::Expm1:
      return at::expm1(a);
    case Op::Log:
      return at::log(a);
    case Op::Log2:
      return at::log2(a);
    case Op::Log10:
      return at::log10(a);
    case Op::Log1p:
      return at::log1p(a);
    case Op::Sin:
      return at::sin(a);
    case Op::Cos:
      return at::cos(a);
    case Op::Tan:
      return at::tan(a);
    case Op::Asin:
      return at::asin(a);
    case Op::Acos:
      return at::acos(a);
    case Op::Atan:
      return at::atan(a);
    case Op::Sinh:
      return at::sinh(a);
    case Op::Cosh:
      return at::cosh(a);
    case Op::Tanh:
      return at::tanh(a);
    case Op::Asinh:
      return at::asinh(a);
    case Op::Acosh:
      return at::acosh(a);
    case Op::Atanh:
      return at::atanh(a);
    case Op::Erf:
      return at::erf(a);
    case Op::Erfc:
      return at::erfc(a);
    case Op::Erfinv:
      return at::erfinv(a);
    case Op::Sigmoid:
      return at::sigmoid(a);
    case Op::Not:
      return at::bitwise_not(a);
    case Op::SignBit:
      return at::signbit(a);
    default:
      throw std::invalid_argument("reference: no unary op " + std::string(ir::text(op)));
  }
}

Tensor binary(Op op, const Tensor& a, const Tensor& b) {
  const bool integral = !a.is_floating_point();
  switch (op) {
    case Op::Add:
      return at::add(a, b);
    case Op::Sub:
      return at::sub(a, b);
    case Op::Mul:
      return at::mul(a, b);
    case Op::Div:
      return integral ? at::div(a, b, "trunc") : at::div(a, b);
    case Op::FloorDiv:
      return at::div(a, b, "floor");
    case Op::Remainder:
      return at::remainder(a, b);
    case Op::Fmod:  // exact; torch's f32 kernel gives NaN for large quotients
      return integral ? at::fmod(a, b) : at::fmod(a.to(at::kDouble), b.to(at::kDouble)).to(a.scalar_type());
    case Op::Min:
      return at::minimum(a, b);
    case Op::Max:
      return at::maximum(a, b);
    case Op::FMin:
      return at::fmin(a, b);
    case Op::FMax:
      return at::fmax(a, b);
    case Op::Copysign:
      return at::copysign(a, b);
    case Op::Pow:
      return at::pow(a, b);
    case Op::Atan2:
      return at::atan2(a, b);
    case Op::Hypot:
      return at::hypot(a, b);
    case Op::And:
      return at::bitwise_and(a, b);
    case Op::Or:
      return at::bitwise_or(a, b);
    case Op::Xor:
      return at::bitwise_xor(a, b);
    case Op::Shl:
      return at::bitwise_left_shift(a, b);
    case Op::Shr:
      return at::bitwise_right_shift(a, b);
    case Op::Eq:
      return at::eq(a, b);
    case Op::Ne:
      return at::ne(a, b);
    case Op::Lt:
      return at::lt(a, b);
    case Op::Le:
      return at::le(a, b);
    case Op::Gt:
      return at::gt(a, b);
    case Op::Ge:
      return at::ge(a, b);
    default:
      throw std::invalid_argument("reference: no binary op " + std::string(ir::text(op)));
  }
}

Tensor reduced(const ir::ReduceAttr& attr, Tensor a, at::ScalarType result) {
  std::vector<int64_t> dims(attr.dims.begin(), attr.dims.end());
  const bool all = static_cast<int64_t>(dims.size()) == a.dim();
  switch (attr.kind) {
    case ir::ReduceKind::Sum:
      return dims.empty() ? a.to(result) : at::sum(a, dims, false, result);
    case ir::ReduceKind::Prod:
      for (size_t i = dims.size(); i-- > 0;) a = at::prod(a, dims[i], false, result);
      return a.to(result);
    case ir::ReduceKind::Max:
      return dims.empty() ? a : at::amax(a, dims);
    case ir::ReduceKind::Min:
      return dims.empty() ? a : at::amin(a, dims);
    case ir::ReduceKind::ArgMax:
      return all ? at::argmax(a) : at::argmax(a, dims.at(0));
    case ir::ReduceKind::ArgMin:
      return all ? at::argmin(a) : at::argmin(a, dims.at(0));
    case ir::ReduceKind::Dot:
      break;  // of two operands
    case ir::ReduceKind::Any:
      return dims.empty() ? a : at::any(a, at::OptionalIntArrayRef(dims));
    case ir::ReduceKind::All:
      return dims.empty() ? a : at::all(a, at::OptionalIntArrayRef(dims));
  }
  throw std::invalid_argument("reference: unknown reduction");
}

// map(i) for all i below `sizes`, as explicit indices.
c10::List<std::optional<Tensor>> indices_of(const ir::IndexMap& map, const std::vector<int64_t>& sizes) {
  c10::List<std::optional<Tensor>> index;
  for (const ir::Affine& row : map.dims) {
    Tensor at_dim = at::full(sizes, row.offset.hint(), at::kLong);
    for (auto [dim, coef] : row.terms) {
      std::vector<int64_t> shape(sizes.size(), 1);
      shape[dim] = sizes[dim];
      at_dim = at_dim + at::arange(sizes[dim], at::kLong).view(shape) * coef.hint();
    }
    index.push_back(at_dim);
  }
  return index;
}

// out[i] = in[map(i)].
Tensor viewed(const Tensor& a, const ir::IndexMap& map, const std::vector<int64_t>& sizes) {
  return map.dims.empty() ? a.expand(sizes).contiguous() : a.index(indices_of(map, sizes));
}

// `base`, but out[map(i)] = value[i].
Tensor updated(const Tensor& base, const Tensor& value, const ir::IndexMap& map) {
  if (map.dims.empty()) return value.clone().reshape({});
  return base.index_put(indices_of(map, value.sizes().vec()), value);
}

Tensor value_of(const ir::Graph& graph, ir::NodeId id, const std::vector<Tensor>& values,
                const std::vector<Tensor>& inputs, const std::vector<Tensor>& scalars) {
  const ir::Node& node = graph[id];
  const std::vector<int64_t> sizes = ir::hints(graph.sizes(id));
  const at::ScalarType type = to_torch(node.dtype);
  auto in = [&](size_t k) { return values[node.in[k]]; };
  switch (node.op) {
    case Op::Input:
      return inputs.at(node.attr);
    case Op::Scalar:
      return scalars.at(node.attr);
    case Op::Const: {
      const uint64_t bits = graph.constants[node.attr];
      return ir::is_float(node.dtype) ? at::full({}, std::bit_cast<double>(bits), type)
                                      : at::full({}, static_cast<int64_t>(bits), at::kLong).to(type);
    }
    case Op::Iota: {
      std::vector<int64_t> shape(sizes.size(), 1);
      shape[node.attr] = sizes[node.attr];
      return at::arange(sizes[node.attr], at::kLong).view(shape).expand(sizes).contiguous();
    }
    case Op::Undef:
      return at::zeros(sizes, type);
    case Op::Fma:
      return fma_of(in(0), in(1), in(2));
    case Op::Where:
      return at::where(in(0), in(1), in(2));
    case Op::Convert:
      return in(0).to(type);
    case Op::View:
      return viewed(in(0), graph.maps[node.attr], sizes);
    case Op::Update:
      return updated(in(0), in(1), graph.maps[node.attr]);
    case Op::Gather:
      return in(0).index_select(node.attr, in(1).reshape(-1)).reshape(sizes);
    case Op::Reshape:
      return in(0).reshape(sizes);
    case Op::Cat: {
      std::vector<Tensor> parts;
      for (ir::NodeId part : graph.lists[node.attr].operands) parts.push_back(values[part]);
      return at::cat(parts, graph.lists[node.attr].dim);
    }
    case Op::Reduce:
      return reduced(graph.reduces[node.attr], in(0), type);
    case Op::Dot: {
      const std::vector<uint8_t>& dims = graph.reduces[node.attr].dims;
      return at::sum(in(0) * in(1), std::vector<int64_t>(dims.begin(), dims.end()));
    }
    case Op::Contract:
    case Op::Extern:
    case Op::Result:
    case Op::Loop:  // only the planner makes loops
    case Op::Final:
      throw std::invalid_argument("reference: extern steps are not evaluated");
    default:
      return ir::info(node.op).arity == 1 ? unary(node.op, in(0)) : binary(node.op, in(0), in(1));
  }
}

}  // namespace

std::vector<Tensor> evaluate(const ir::Graph& graph, const std::vector<Tensor>& inputs,
                             const std::vector<Tensor>& scalars, const std::vector<ir::NodeId>& wanted) {
  std::vector<bool> needed(graph.nodes.size());
  for (ir::NodeId id : wanted) needed[id] = true;
  for (size_t id = graph.nodes.size(); id-- > 0;)
    if (needed[id])
      for (ir::NodeId operand : graph.operands(static_cast<ir::NodeId>(id))) needed[operand] = true;
  std::vector<Tensor> values(graph.nodes.size());
  for (size_t id = 0; id < graph.nodes.size(); ++id) {
    if (!needed[id]) continue;
    values[id] = value_of(graph, static_cast<ir::NodeId>(id), values, inputs, scalars);
    if (values[id].scalar_type() != to_torch(graph.nodes[id].dtype) ||
        values[id].sizes() != at::IntArrayRef(ir::hints(graph.sizes(static_cast<ir::NodeId>(id)))))
      throw std::invalid_argument("reference: node " + std::to_string(id) + " " +
                                  std::string(ir::text(graph.nodes[id].op)) +
                                  " has another type or shape than declared");
  }
  std::vector<Tensor> out;
  for (ir::NodeId id : wanted) out.push_back(values[id]);
  return out;
}

}  // namespace fastjit::capture
