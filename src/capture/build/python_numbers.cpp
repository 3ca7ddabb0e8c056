// Python's arithmetic on floats and what it asks of them (Objects/floatobject.c, Modules/mathmodule.c), as far as
// programs run it.
#include <bit>
#include <cerrno>
#include <cmath>

#include "capture/calls.h"

namespace fastjit::capture {
namespace {

constexpr double kMostExact = 9007199254740992;  // every int up to there is a float

// Where the C library's pow() is all that Python does; other bases have rules of their own.
std::optional<double> power(double base, double exponent) {
  const bool is_plain = base > 0 || (base == 0 && exponent >= 0);
  if (!is_plain || !std::isfinite(base) || !std::isfinite(exponent)) return std::nullopt;
  errno = 0;
  const double result = std::pow(base, exponent);
  const bool is_too_small = errno == ERANGE && result == 0;  // no error of Python's
  if ((errno != 0 && !is_too_small) || !std::isfinite(result)) return std::nullopt;
  return result;
}

}  // namespace

std::optional<double> NumberOp::compute(const double* given, const uint64_t* scalars) const {
  double x[2] = {0, 0};
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    switch (operand.from) {
      case Operand::From::Constant:
        x[i] = operand.value;
        break;
      case Operand::From::Step:
        x[i] = *given++;
        break;
      case Operand::From::Float:
        x[i] = std::bit_cast<double>(scalars[operand.scalar]);
        break;
      case Operand::From::Int:
        x[i] = static_cast<double>(static_cast<int64_t>(scalars[operand.scalar]));
        if (std::abs(x[i]) > kMostExact) return std::nullopt;
        break;
    }
  }
  const auto apply = [&]() -> std::optional<double> {
    switch (kind) {
      case Kind::Add:
        return x[0] + x[1];
      case Kind::Sub:
        return x[0] - x[1];
      case Kind::Mul:
        return x[0] * x[1];
      case Kind::Div:
        return x[1] == 0 ? std::nullopt : std::optional(x[0] / x[1]);
      case Kind::Pow:
        return power(x[0], x[1]);
      case Kind::Neg:
        return -x[0];
      case Kind::Sqrt:
        return x[0] >= 0 && std::isfinite(x[0]) ? std::optional(std::sqrt(x[0])) : std::nullopt;
    }
    return std::nullopt;
  };
  const std::optional<double> result = apply();
  if (result && std::isfinite(*result) && std::abs(*result) > limit) return std::nullopt;
  return result;
}

bool NumberTest::answer() const {
  const double a = operands[0].value, b = operands.back().value;
  switch (kind) {
    case support::Test::Lt:
      return a < b;
    case support::Test::Le:
      return a <= b;
    case support::Test::Eq:
      return a == b;
    case support::Test::Ne:
      return a != b;
    case support::Test::Gt:
      return a > b;
    case support::Test::Ge:
      return a >= b;
    case support::Test::IsNan:
      return std::isnan(a);
    case support::Test::IsInf:
      return std::isinf(a);
    case support::Test::IsFinite:
      return std::isfinite(a);
  }
  return false;
}

}  // namespace fastjit::capture
