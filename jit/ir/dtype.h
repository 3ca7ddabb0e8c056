#pragma once
// Element types of the IR; every fact about one is a row of dtype.def.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fastjit::ir {

enum class DType : uint8_t {
#define DTYPE(name, text, bytes, cls) name,
#include "ir/dtype.def"
#undef DTYPE
};

enum class DClass : uint8_t { Float, Half, Int, UInt, Bool, Raw };

struct DTypeInfo {
  std::string_view text;
  uint8_t bytes;
  DClass cls;
};

inline constexpr std::array kDTypes{
#define DTYPE(name, text, bytes, cls) DTypeInfo{text, bytes, DClass::cls},
#include "ir/dtype.def"
#undef DTYPE
};
inline constexpr size_t kDTypeCount = kDTypes.size();

constexpr const DTypeInfo& info(DType t) { return kDTypes[static_cast<size_t>(t)]; }
constexpr std::string_view text(DType t) { return info(t).text; }
constexpr int size_of(DType t) { return info(t).bytes; }
constexpr bool is_float(DType t) { return info(t).cls == DClass::Float; }
constexpr bool is_half(DType t) { return info(t).cls == DClass::Half; }
constexpr bool is_floating(DType t) { return is_float(t) || is_half(t); }
constexpr bool is_integer(DType t) { return info(t).cls == DClass::Int || info(t).cls == DClass::UInt; }
constexpr bool is_signed(DType t) { return info(t).cls != DClass::UInt && info(t).cls != DClass::Bool; }
constexpr bool is_raw(DType t) { return info(t).cls == DClass::Raw; }

/// How many types kernels compute with: those in front of the raw ones.
inline constexpr size_t kComputedTypes = [] {
  size_t count = 0;
  while (count < kDTypeCount && kDTypes[count].cls != DClass::Raw) ++count;
  return count;
}();

/// The type whose text is `text`, or nothing.
constexpr std::optional<DType> parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kDTypeCount; ++i)
    if (kDTypes[i].text == text) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace fastjit::ir
