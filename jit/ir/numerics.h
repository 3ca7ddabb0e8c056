#pragma once
// How much rounding a program may leave out; every fact about it is a row of numerics.def.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fastjit::ir {

enum class Numerics : uint8_t {
#define NUMERICS(name, text) name,
#include "ir/numerics.def"
#undef NUMERICS
};

inline constexpr std::array kNumerics{
#define NUMERICS(name, text) std::string_view(text),
#include "ir/numerics.def"
#undef NUMERICS
};

constexpr std::string_view text(Numerics numerics) { return kNumerics[static_cast<size_t>(numerics)]; }

constexpr std::optional<Numerics> parse_numerics(std::string_view text) {
  for (size_t i = 0; i < kNumerics.size(); ++i)
    if (kNumerics[i] == text) return static_cast<Numerics>(i);
  return std::nullopt;
}

}  // namespace fastjit::ir
