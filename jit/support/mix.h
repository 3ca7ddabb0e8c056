#pragma once
// Hashes for tables in memory, put together word by word. Nothing that is kept on disk depends on them.
#include <cstdint>

namespace fastjit::support {

constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace fastjit::support
