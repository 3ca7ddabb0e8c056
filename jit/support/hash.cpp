#include "support/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace fastjit::support {

Digest xxh3_128(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

void store(const Digest& digest, char (&bytes)[16]) {
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(digest.high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<char>(digest.low >> (56 - 8 * i));
  }
}

Digest load_digest(const char* bytes) {
  Digest digest;
  for (int i = 0; i < 8; ++i) {
    digest.high = digest.high << 8 | static_cast<unsigned char>(bytes[i]);
    digest.low = digest.low << 8 | static_cast<unsigned char>(bytes[8 + i]);
  }
  return digest;
}

std::string hex(const Digest& digest) {
  static constexpr char kHex[] = "0123456789abcdef";
  char bytes[16];
  store(digest, bytes);
  std::string out;
  out.reserve(32);
  for (const char byte : bytes) {
    out += kHex[static_cast<unsigned char>(byte) >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

}  // namespace fastjit::support
