#pragma once
// XXH3-128. It finds buckets and notices damage; it is no defence against an attacker, and nothing here relies on that:
// whole keys are compared byte for byte.
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace fastjit::support {

struct Digest {
  uint64_t high = 0, low = 0;
  auto operator<=>(const Digest&) const = default;
};

Digest xxh3_128(std::string_view bytes);
std::string hex(const Digest& digest);                // 32 lower-case digits, as xxhash prints it
void store(const Digest& digest, char (&bytes)[16]);  // big endian: xxhash's canonical form
Digest load_digest(const char* bytes);                // 16 of them

}  // namespace fastjit::support
