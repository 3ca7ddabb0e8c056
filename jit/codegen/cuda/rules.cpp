// One row per pointwise op of op.def; a missing or doubled row does not compile.
#include "codegen/cuda/rules.h"

#include <array>
#include <stdexcept>

#include "codegen/cuda/prelude.h"

namespace fastjit::codegen {
namespace {

using ir::DClass;
using ir::DType;
using ir::Op;

/// $a $b $c: operands. $T: their type. $U: the unsigned type in which it wraps. $f: suffix of float functions and
/// literals ("f" or nothing). An empty text: the op takes no such type.
struct Rule {
  Op op;
  std::string_view real, integer, boolean;
};

constexpr std::string_view kFunction = "@";  // the op's own name is CUDA's: name$f(operands)

constexpr Rule kRules[] = {
    {Op::Add, "$a + $b", "($T)(($U)$a + ($U)$b)", "$a | $b"},
    {Op::Sub, "$a - $b", "($T)(($U)$a - ($U)$b)", "$a ^ $b"},
    {Op::Mul, "$a * $b", "($T)(($U)$a * ($U)$b)", "$a & $b"},
    {Op::Div, "$a / $b", "fj_div<$T, $U>($a, $b)", ""},
    {Op::FloorDiv, "fj_floor_divide($a, $b)", "fj_floor_div<$T, $U>($a, $b)", ""},
    {Op::Remainder, "fj_remainder($a, $b)", "fj_floor_mod<$T>($a, $b)", ""},
    {Op::Fmod, kFunction, "fj_mod<$T>($a, $b)", ""},
    {Op::Neg, "-$a", "($T)(($U)0 - ($U)$a)", "$a"},
    {Op::Abs, "fabs$f($a)", "$a < 0 ? ($T)(($U)0 - ($U)$a) : $a", "$a"},
    {Op::Min, "fj_min($a, $b)", "$a < $b ? $a : $b", "$a & $b"},
    {Op::Max, "fj_max($a, $b)", "$a > $b ? $a : $b", "$a | $b"},
    {Op::FMin, "fj_fmin($a, $b)", "$a < $b ? $a : $b", "$a & $b"},
    {Op::FMax, "fj_fmax($a, $b)", "$a > $b ? $a : $b", "$a | $b"},
    {Op::Sqrt, kFunction, "", ""},
    {Op::Rsqrt, "1.0$f / sqrt$f($a)", "", ""},
    {Op::Floor, kFunction, "", ""},
    {Op::Ceil, kFunction, "", ""},
    {Op::Trunc, kFunction, "", ""},
    {Op::Round, "rint$f($a)", "", ""},
    {Op::Copysign, kFunction, "", ""},
    {Op::Fma, kFunction, "", ""},
    {Op::Exp, kFunction, "", ""},
    {Op::Exp2, kFunction, "", ""},
    {Op::Expm1, kFunction, "", ""},
    {Op::Log, kFunction, "", ""},
    {Op::Log2, kFunction, "", ""},
    {Op::Log10, kFunction, "", ""},
    {Op::Log1p, kFunction, "", ""},
    {Op::Sin, kFunction, "", ""},
    {Op::Cos, kFunction, "", ""},
    {Op::Tan, kFunction, "", ""},
    {Op::Asin, kFunction, "", ""},
    {Op::Acos, kFunction, "", ""},
    {Op::Atan, kFunction, "", ""},
    {Op::Sinh, kFunction, "", ""},
    {Op::Cosh, kFunction, "", ""},
    {Op::Tanh, kFunction, "", ""},
    {Op::Asinh, kFunction, "", ""},
    {Op::Acosh, kFunction, "", ""},
    {Op::Atanh, kFunction, "", ""},
    {Op::Erf, kFunction, "", ""},
    {Op::Erfc, kFunction, "", ""},
    {Op::Erfinv, kFunction, "", ""},
    {Op::Sigmoid, "fj_sigmoid($a)", "", ""},
    {Op::Pow, kFunction, "", ""},
    {Op::Atan2, kFunction, "", ""},
    {Op::Hypot, kFunction, "", ""},
    {Op::ExpRough, "exp$f($a)", "", ""},
    {Op::And, "", "($T)($a & $b)", "$a & $b"},
    {Op::Or, "", "($T)($a | $b)", "$a | $b"},
    {Op::Xor, "", "($T)($a ^ $b)", "$a ^ $b"},
    {Op::Not, "", "($T)~$a", "!$a"},
    {Op::Shl, "", "fj_shl<$T, $U>($a, $b)", ""},
    {Op::Shr, "", "fj_shr<$T>($a, $b)", ""},
    {Op::Eq, "$a == $b", "$a == $b", "$a == $b"},
    {Op::Ne, "$a != $b", "$a != $b", "$a != $b"},
    {Op::Lt, "$a < $b", "$a < $b", "$a < $b"},
    {Op::Le, "$a <= $b", "$a <= $b", "$a <= $b"},
    {Op::Gt, "$a > $b", "$a > $b", "$a > $b"},
    {Op::Ge, "$a >= $b", "$a >= $b", "$a >= $b"},
    {Op::SignBit, "fj_signbit($a)", "$a < 0", "false"},
    {Op::Where, "$a ? $b : $c", "$a ? $b : $c", "$a ? $b : $c"},
    {Op::Convert, "", "", ""},  // cuda_convert
};

constexpr int rows_of(Op op) {
  int rows = 0;
  for (const Rule& rule : kRules) rows += rule.op == op;
  return rows;
}
constexpr bool one_row_each() {
  for (size_t i = 0; i < ir::kOpCount; ++i)
    if (rows_of(static_cast<Op>(i)) != (ir::is_pointwise(static_cast<Op>(i)) ? 1 : 0)) return false;
  return true;
}
static_assert(one_row_each(), "every pointwise op of op.def has exactly one row here");

struct TypeRow {
  DType type;
  std::string_view text, memory, wrap;
};
constexpr TypeRow kTypes[] = {
    {DType::F32, "float", "float", ""},
    {DType::F64, "double", "double", ""},
    {DType::F16, "unsigned short", "unsigned short", ""},
    {DType::BF16, "unsigned short", "unsigned short", ""},
    {DType::I8, "signed char", "signed char", "unsigned"},
    {DType::I16, "short", "short", "unsigned"},
    {DType::I32, "int", "int", "unsigned"},
    {DType::I64, "long long", "long long", "unsigned long long"},
    {DType::U8, "unsigned char", "unsigned char", "unsigned"},
    {DType::Bool, "bool", "unsigned char", ""},
};
constexpr bool types_in_order() {
  for (size_t i = 0; i < ir::kComputedTypes; ++i)
    if (kTypes[i].type != static_cast<DType>(i)) return false;
  return std::size(kTypes) == ir::kComputedTypes;
}
static_assert(types_in_order(), "one row per computed dtype, in dtype.def's order");

const TypeRow& row(DType type) { return kTypes[static_cast<size_t>(type)]; }

std::string fill(std::string_view form, DType type, const std::string args[3]) {
  std::string out;
  for (size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '$') {
      out += form[i];
      continue;
    }
    const char hole = form[++i];
    if (hole == 'T')
      out += row(type).text;
    else if (hole == 'U')
      out += row(type).wrap;
    else if (hole == 'f')
      out += type == DType::F32 ? "f" : "";
    else
      out += args[hole - 'a'];
  }
  return out;
}

std::string function_form(Op op) {
  static constexpr std::string_view kHoles[] = {"", "$f($a)", "$f($a, $b)", "$f($a, $b, $c)"};
  return std::string(ir::text(op)) + std::string(kHoles[ir::info(op).arity]);
}

std::string cast(std::string_view to, const std::string& value) { return "(" + std::string(to) + ")" + value; }

}  // namespace

std::string_view cuda_type(DType type) { return row(type).text; }
std::string_view cuda_memory_type(DType type) { return row(type).memory; }

std::string cuda_expression(Op op, DType type, const std::string args[3]) {
  for (const Rule& rule : kRules) {
    if (rule.op != op) continue;
    std::string_view form = type == DType::Bool ? rule.boolean : ir::is_floating(type) ? rule.real : rule.integer;
    if (form == kFunction) return fill(function_form(op), type, args);
    if (!form.empty()) return fill(form, type, args);
  }
  throw std::runtime_error("codegen: no CUDA rule for " + std::string(ir::text(op)) + " of " +
                           std::string(ir::text(type)));
}

std::string cuda_convert(const std::string& value, DType from, DType to) {
  if (from == to) return value;
  if (to == DType::Bool) return ir::is_half(from) ? "(" + value + " & 0x7fff) != 0" : value + " != 0";
  if (ir::is_half(from)) {
    const std::string number = (from == DType::F16 ? "fj_from_f16(" : "fj_from_bf16(") + value + ")";
    return cuda_convert(number, DType::F32, to);
  }
  if (ir::is_half(to))  // torch rounds to a half through float, also from double and from integers
    return (to == DType::F16 ? "fj_to_f16(" : "fj_to_bf16(") + cuda_convert(value, from, DType::F32) + ")";
  if (to == DType::U8 && ir::is_floating(from)) return "(unsigned char)(long long)" + value;  // as c10::convert
  return cast(cuda_type(to), value);
}

std::string cuda_helpers(std::string_view body) {
  std::array<bool, std::size(kCudaHelpers)> used{};
  for (size_t i = std::size(kCudaHelpers); i-- > 0;) {  // a helper uses earlier ones only
    auto names = [&](std::string_view text) {
      const std::string_view name = kCudaHelpers[i].name;
      for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1))
        if (text[at + name.size()] == '(' || text[at + name.size()] == '<') return true;
      return false;
    };
    used[i] = names(body);
    for (size_t k = i + 1; k < std::size(kCudaHelpers) && !used[i]; ++k)
      used[i] = used[k] && names(kCudaHelpers[k].text);
  }
  std::string out;
  for (size_t i = 0; i < std::size(kCudaHelpers); ++i)
    if (used[i]) out.append(kCudaHelpers[i].text).append("\n");
  return out;
}

}  // namespace fastjit::codegen
