#include "capture/lower/util.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>

namespace fastjit::capture {
namespace {

ScalarType promote(ScalarType a, ScalarType b) {
  if (a == ScalarType::Undefined) return b;
  if (b == ScalarType::Undefined) return a;
  return c10::promoteTypes(a, b);
}

// `higher` wins unless `lower` is of a higher kind (bool < integer < float < complex).
ScalarType combine(ScalarType higher, ScalarType lower) {
  if (c10::isComplexType(higher)) return higher;
  if (c10::isFloatingType(higher)) {
    if (c10::isComplexType(lower)) return c10::toComplexType(higher);
    return higher;
  }
  if (higher == ScalarType::Bool || c10::isFloatingType(lower) || c10::isComplexType(lower))
    return promote(higher, lower);
  return higher != ScalarType::Undefined ? higher : lower;
}

double round_to_half(double value, ScalarType type) {
  const auto single = static_cast<float>(value);
  return type == ScalarType::Half ? static_cast<float>(c10::Half(single)) : static_cast<float>(c10::BFloat16(single));
}

}  // namespace

void Promotion::add(const TensorMeta& meta) {
  if (meta.wrapped_number) return add_number(meta.dtype);
  ScalarType& slot = meta.sizes.empty() ? zero_ : dim_;
  slot = promote(slot, meta.dtype);
}

void Promotion::add_number(ScalarType type) {
  if (c10::isComplexType(type)) throw NotLowered{};
  if (c10::isFloatingType(type)) type = default_dtype();
  wrapped_ = promote(wrapped_, type);
}

ScalarType Promotion::result() const { return combine(dim_, combine(zero_, wrapped_)); }

ScalarType default_dtype() { return c10::get_default_dtype_as_scalartype(); }
bool is_half(ScalarType type) { return type == ScalarType::Half || type == ScalarType::BFloat16; }
bool is_integral(ScalarType type) { return c10::isIntegralType(type, /*includeBool=*/true); }

DType compute_type(ScalarType type) {
  if (is_half(type)) return DType::F32;
  if (auto ir = to_ir(type)) return *ir;
  throw NotLowered{};
}

ir::Dim numel(const TensorMeta& meta) { return meta.layout().numel(); }

Expr number(Expr like, ir::Dim count) {
  if (!count.is_symbolic()) return number(like, static_cast<double>(count.hint()));
  return convert({like.graph, like.graph->size(count)}, like.type());
}

std::optional<double> constant_of(Expr value) {
  const ir::Node& node = (*value.graph)[value.id];
  if (node.op != Op::Const) return std::nullopt;
  const uint64_t bits = value.graph->constants[node.attr];
  return ir::is_float(node.dtype) ? std::bit_cast<double>(bits) : static_cast<double>(static_cast<int64_t>(bits));
}

Expr cast(Expr value, DType to) {
  ir::Graph& graph = *value.graph;
  const ir::Node node = graph[value.id];
  if (node.dtype == to) return value;
  if (node.op == Op::Const && !ir::is_half(to)) {
    const uint64_t bits = graph.constants[node.attr];
    const bool from_float = ir::is_float(node.dtype);
    if (ir::is_float(to))
      return {&graph, graph.constant(to, from_float         ? std::bit_cast<double>(bits)
                                         : to == DType::F32 ? static_cast<float>(static_cast<int64_t>(bits))
                                                            : static_cast<double>(static_cast<int64_t>(bits)))};
    if (!from_float) return {&graph, graph.constant_int(to, static_cast<int64_t>(bits))};
    const double number = std::bit_cast<double>(bits);
    if (to == DType::Bool) return {&graph, graph.constant_int(to, number != 0)};
    if (std::fabs(number) < 127) return {&graph, graph.constant_int(to, static_cast<int64_t>(number))};
  }
  return convert(value, to);
}

ir::IndexMap identity_map(size_t rank) {
  ir::IndexMap map;
  for (size_t d = 0; d < rank; ++d) map.dims.push_back({0, {{static_cast<uint8_t>(d), 1}}});
  return map;
}

double largest(ScalarType type) {
  switch (type) {
    case ScalarType::Half:
      return std::numeric_limits<at::Half>::max();
    case ScalarType::BFloat16:
      return std::numeric_limits<at::BFloat16>::max();
    case ScalarType::Float:
      return std::numeric_limits<float>::max();
    case ScalarType::Long:
      return static_cast<double>(std::numeric_limits<int64_t>::max());
    case ScalarType::Int:
      return std::numeric_limits<int32_t>::max();
    case ScalarType::Short:
      return std::numeric_limits<int16_t>::max();
    case ScalarType::Char:
      return std::numeric_limits<int8_t>::max();
    case ScalarType::Byte:
      return std::numeric_limits<uint8_t>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

bool holds_all_of(ScalarType to, ScalarType from) {
  if (to == from || to == ScalarType::Bool || from == ScalarType::Bool) return true;
  if (to == ScalarType::Byte || (is_integral(to) && !is_integral(from))) return false;
  return largest(from) <= largest(to);
}

int64_t wrap_dim(int64_t dim, int64_t rank) {
  const int64_t count = std::max<int64_t>(rank, 1);
  if (dim < -count || dim >= count) throw NotLowered{};
  return dim < 0 ? dim + count : dim;
}

const Arg& Call::arg(size_t i) const {
  if (i >= call_.args.size()) throw NotLowered{};
  return call_.args[i];
}

bool Call::has(size_t i) const {
  if (i >= call_.args.size()) return false;
  const Arg& a = call_.args[i];
  return a.kind != Arg::Kind::None &&
         !(a.kind == Arg::Kind::Constant && a.scalar == ir::kNoNode && a.constant.isNone());
}

const Value& Call::tensor(size_t i) const {
  const Arg& a = arg(i);
  if (a.kind != Arg::Kind::Tensor || a.tensor.node == ir::kNoNode) throw NotLowered{};
  return a.tensor;
}

Expr Call::node(size_t i) const { return {&graph, tensor(i).node}; }

int64_t Call::integer(size_t i) const { return size(i).fixed(); }

ir::Dim Call::size(size_t i) const {
  const Arg& a = arg(i);
  if (a.kind != Arg::Kind::Constant || !a.constant.isInt()) throw NotLowered{};
  if (a.dims.empty() && a.scalar != ir::kNoNode) throw NotLowered{};
  a.takes_dims = true;
  return a.dims.empty() ? ir::Dim(a.constant.toInt()) : a.dims[0];
}

bool Call::flag(size_t i) const {
  const Arg& a = arg(i);
  if (a.kind == Arg::Kind::None) return false;
  if (a.kind != Arg::Kind::Constant || a.scalar != ir::kNoNode || !a.constant.isBool()) throw NotLowered{};
  return a.constant.toBool();
}

std::string Call::text(size_t i) const {
  const Arg& a = arg(i);
  if (a.kind != Arg::Kind::Constant || !a.constant.isString()) throw NotLowered{};
  return a.constant.toStringRef();
}

std::vector<int64_t> Call::integers(size_t i) const {
  std::vector<int64_t> out;
  for (const ir::Dim dim : shape(i)) out.push_back(dim.fixed());
  return out;
}

Shape Call::shape(size_t i) const {
  const Arg& a = arg(i);
  if (a.kind == Arg::Kind::Constant && a.constant.isInt()) return {size(i)};
  if (a.kind != Arg::Kind::Constant || a.scalar != ir::kNoNode || !a.constant.isIntList()) throw NotLowered{};
  a.takes_dims = true;
  if (!a.dims.empty()) return a.dims;
  const std::vector<int64_t> plain = a.constant.toIntVector();
  return {plain.begin(), plain.end()};
}

ScalarType Call::dtype(size_t i) const {
  const Arg& a = arg(i);
  if (a.kind != Arg::Kind::Constant || !a.constant.isInt()) throw NotLowered{};
  return a.constant.toScalarType();
}

std::optional<double> Call::known(size_t i) const {
  const Arg& a = arg(i);
  if (a.kind == Arg::Kind::Tensor) return a.tensor.node == ir::kNoNode ? std::nullopt : constant_of(node(i));
  if (a.kind != Arg::Kind::Constant || a.scalar != ir::kNoNode) return std::nullopt;
  if (a.constant.isDouble()) return a.constant.toDouble();
  if (a.constant.isInt()) return static_cast<double>(a.constant.toInt());
  if (a.constant.isBool()) return a.constant.toBool();
  return std::nullopt;
}

double Call::real(size_t i) const {
  if (auto value = known(i)) return *value;
  throw NotLowered{};
}

ScalarType Call::promoted(std::initializer_list<size_t> args) const {
  Promotion promotion;
  for (size_t i : args) {
    const Arg& a = arg(i);
    if (a.kind == Arg::Kind::Tensor)
      promotion.add(a.tensor.meta);
    else if (a.kind == Arg::Kind::Constant && a.scalar != ir::kNoNode)
      promotion.add_number(graph[a.scalar].dtype == DType::F64 ? ScalarType::Double : ScalarType::Long);
    else if (a.kind == Arg::Kind::Constant && a.constant.isScalar())
      promotion.add_number(a.constant.toScalar().type());
    else if (a.kind != Arg::Kind::None)
      throw NotLowered{};
  }
  const ScalarType type = promotion.result();
  compute_type(type);  // refuses what the IR lacks
  return type;
}

ScalarType Call::promoted_float(std::initializer_list<size_t> args) const {
  const ScalarType type = promoted(args);
  return is_integral(type) ? default_dtype() : type;
}

Expr Call::rounded(Expr value, ScalarType type) const {
  if (!is_half(type)) return value;
  if (auto number_ = constant_of(value)) return {&graph, graph.constant(DType::F32, round_to_half(*number_, type))};
  return convert(convert(value, *to_ir(type)), DType::F32);
}

Expr Call::as(const Value& value, ScalarType type) const {
  if (value.node == ir::kNoNode) throw NotLowered{};
  const DType compute = compute_type(type);
  const Expr e{&graph, value.node};
  if (!is_half(type)) return cast(e, compute);
  if (auto number_ = constant_of(e)) return {&graph, graph.constant(DType::F32, round_to_half(*number_, type))};
  return convert(convert(e, *to_ir(type)), DType::F32);
}

Expr Call::as(size_t i, ScalarType type) const {
  const Arg& a = arg(i);
  if (a.kind == Arg::Kind::Tensor) return as(a.tensor, type);
  if (a.kind != Arg::Kind::Constant) throw NotLowered{};
  Value value;
  if (a.scalar != ir::kNoNode)
    value.node = a.scalar;
  else if (a.constant.isDouble())
    value.node = graph.constant(DType::F64, a.constant.toDouble());
  else if (a.constant.isInt())
    value.node = graph.constant_int(DType::I64, a.constant.toInt());
  else if (a.constant.isBool())
    value.node = graph.constant_int(DType::Bool, a.constant.toBool());
  return as(value, type);
}

Expr Call::moved(size_t i, ScalarType type) const {
  const Arg& a = arg(i);
  const auto to = to_ir(type);
  if (!to) throw NotLowered{};
  if (a.kind == Arg::Kind::Tensor && a.tensor.node != ir::kNoNode && graph[a.tensor.node].dtype == *to) return node(i);
  return convert(as(i, type), *to);
}

Expr Call::as_scalar_operand(size_t i, ScalarType type) const {
  const Arg& a = arg(i);
  const bool one = a.kind != Arg::Kind::Tensor || numel(a.tensor.meta) == 1;
  return as(i, one && is_half(type) ? ScalarType::Float : type);
}

std::optional<ir::Dim> Call::index_bound(ir::NodeId node) const {
  static const PickedOf kNone;
  return capture::index_bound(graph, call_.picked ? *call_.picked : kNone, node);
}

const TensorMeta& Call::result(size_t k) const {
  if (k >= call_.results.size()) throw NotLowered{};
  return call_.results[k];
}

Shape Call::sizes_like(Expr x, size_t k) const {
  Shape out;
  size_t next = 0;
  const auto own = x.sizes();
  for (const int64_t size : result(k).sizes) {
    while (size != 1 && next < own.size() && own[next] == 1) ++next;
    if (size != 1 && next == own.size()) throw NotLowered{};
    out.push_back(size == 1 ? ir::Dim(1) : own[next++]);
  }
  return out;
}

void Call::give(Expr value) {
  const TensorMeta& want = result(call_.out.size());
  const auto type = to_ir(want.dtype);
  if (!type) throw NotLowered{};
  value = cast(value, *type);
  Shape sizes = want.layout().sizes;
  const auto own = value.sizes();
  for (size_t back = 1; back <= std::min(own.size(), sizes.size()); ++back)  // the graph knows them better
    if (const ir::Dim size = own[own.size() - back]; size.hint() == sizes[sizes.size() - back].hint())
      sizes[sizes.size() - back] = size;
  call_.out.push_back(graph.expand(value.id, std::move(sizes)));
}

bool Call::give_empty() {
  const auto is_sized = [](const Value& value) {
    return value.meta->symbolic && std::ranges::any_of(value.meta->symbolic->sizes, &ir::Dim::is_symbolic);
  };
  for (const Arg& a : call_.args)  // nobody knows which size would be another one
    if (is_sized(a.tensor) || std::ranges::any_of(a.list, is_sized)) return false;
  for (const TensorMeta& meta : call_.results)
    if (!to_ir(meta.dtype) || numel(meta) != 0) return false;
  for (const TensorMeta& meta : call_.results) {
    const Expr zero{&graph, graph.constant_int(DType::I64, 0)};
    const DType type = compute_type(meta.dtype);
    give(is_integral(meta.dtype) ? cast(zero, type) : Expr{&graph, graph.constant(type, 0)});
  }
  return !call_.results.empty();
}

}  // namespace fastjit::capture
