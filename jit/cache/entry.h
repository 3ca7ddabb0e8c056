#pragma once
// The bytes of one cache entry: docs/cache-format.md. Nothing here touches a file or trusts a byte before its checksum.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/hash.h"

namespace fastjit::cache {

inline constexpr uint16_t kFormat = 1;
inline constexpr size_t kHeaderBytes = 64;
inline constexpr size_t kChecksumBytes = 16;
inline constexpr size_t kObjectAlign = 16;
inline constexpr size_t kMaxEntryBytes = 64u << 20;

enum class Kind : uint16_t { CpuElf = 1, Cubin = 2 };

enum class Fault : uint8_t {
#define FAULT(id, name, meaning) id,
#include "cache/fault.def"
#undef FAULT
};
#define FAULT(id, name, meaning) +1
inline constexpr size_t kFaultCount = 0
#include "cache/fault.def"
    ;
#undef FAULT

std::string_view text(Fault fault);
std::string_view meaning(Fault fault);

/// Named byte strings in order. Each name and value is written with its length first, so no two lists share their
/// bytes.
using Fields = std::vector<std::pair<std::string, std::string>>;
std::string encode(const Fields& fields);
std::optional<Fields> decode_fields(std::string_view bytes);

struct Entry {
  Kind kind = Kind::CpuElf;
  std::string key;     // encoded fields: everything the object depends on
  Fields meta;         // for people: function, signature, target, compile_ms, created
  std::string ir;      // text of the captured graph
  std::string source;  // generated LLVM IR or CUDA C++
  std::string object;  // what is loaded
};

/// The whole file. Equal entries give equal bytes.
std::string encode(const Entry& entry);

/// An entry inside the bytes of its file.
struct EntryView {
  Kind kind = Kind::CpuElf;
  support::Digest digest;
  std::string_view meta, key, ir, source;
  std::span<const char> object;  // kObjectAlign-aligned when the file's bytes are
};

/// Checks everything but the meaning of key and object. Safe on any bytes.
std::optional<Fault> decode(std::string_view file, EntryView& view);

}  // namespace fastjit::cache
