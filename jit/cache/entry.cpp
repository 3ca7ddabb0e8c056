#include "cache/entry.h"

#include <array>
#include <cstring>

namespace fastjit::cache {

static constexpr char kMagic[8] = {'F', 'J', 'I', 'T', 'K', 'R', 'N', '\0'};

// Offsets of the header, all fields little endian.
enum At : size_t {
  kAtMagic = 0,
  kAtFormat = 8,
  kAtKind = 10,
  kAtTotal = 12,
  kAtLengths = 20,
  kAtDigest = 40,
  kAtZero = 56
};
static constexpr size_t kSections = 5;  // meta, key, ir, source, object
static_assert(kAtLengths + 4 * kSections == kAtDigest && kAtZero + 8 == kHeaderBytes);

struct FaultRow {
  std::string_view name, meaning;
};
static constexpr std::array<FaultRow, kFaultCount> kFaults = {{
#define FAULT(id, name, meaning) {name, meaning},
#include "cache/fault.def"
#undef FAULT
}};

std::string_view text(Fault fault) { return kFaults[static_cast<size_t>(fault)].name; }
std::string_view meaning(Fault fault) { return kFaults[static_cast<size_t>(fault)].meaning; }

template <class T>
static void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
}

template <class T>
static T get(std::string_view bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return static_cast<T>(value);
}

std::string encode(const Fields& fields) {
  std::string out;
  put<uint32_t>(out, static_cast<uint32_t>(fields.size()));
  for (const auto& [name, value] : fields) {
    for (const std::string* part : {&name, &value}) {
      put<uint32_t>(out, static_cast<uint32_t>(part->size()));
      out += *part;
    }
  }
  return out;
}

std::optional<Fields> decode_fields(std::string_view bytes) {
  const auto take = [&](std::string& out) {
    if (bytes.size() < 4) return false;
    const auto length = get<uint32_t>(bytes, 0);
    if (length > bytes.size() - 4) return false;
    out.assign(bytes.substr(4, length));
    bytes.remove_prefix(4 + static_cast<size_t>(length));
    return true;
  };
  if (bytes.size() < 4) return std::nullopt;
  const auto count = get<uint32_t>(bytes, 0);
  bytes.remove_prefix(4);
  if (count > bytes.size() / 8) return std::nullopt;
  Fields fields(count);
  for (auto& [name, value] : fields) {
    if (!take(name) || !take(value)) return std::nullopt;
  }
  if (!bytes.empty()) return std::nullopt;
  return fields;
}

static size_t align_up(size_t size) { return (size + kObjectAlign - 1) / kObjectAlign * kObjectAlign; }

static void put_digest(std::string& out, const support::Digest& digest) {
  char bytes[16];
  support::store(digest, bytes);
  out.append(bytes, sizeof bytes);
}

std::string encode(const Entry& entry) {
  const std::string meta = encode(entry.meta);
  const std::string* sections[kSections] = {&meta, &entry.key, &entry.ir, &entry.source, &entry.object};
  const size_t text = meta.size() + entry.key.size() + entry.ir.size() + entry.source.size();
  const size_t object_at = align_up(kHeaderBytes + text);
  const size_t total = object_at + entry.object.size() + kChecksumBytes;

  std::string out;
  out.reserve(total);
  out.append(kMagic, sizeof kMagic);
  put<uint16_t>(out, kFormat);
  put<uint16_t>(out, static_cast<uint16_t>(entry.kind));
  put<uint64_t>(out, total);
  for (const std::string* section : sections) put<uint32_t>(out, static_cast<uint32_t>(section->size()));
  put_digest(out, support::xxh3_128(entry.key));
  put<uint64_t>(out, 0);
  for (const std::string* section : sections) {
    if (section == &entry.object) out.resize(object_at);
    out += *section;
  }
  put_digest(out, support::xxh3_128(out));
  return out;
}

static bool all_zero(std::string_view bytes) { return bytes.find_first_not_of('\0') == std::string_view::npos; }

/// Cuts the sections out of a file whose checksum is right.
static std::optional<Fault> cut(std::string_view file, EntryView& view) {
  size_t lengths[kSections], text = kHeaderBytes;
  for (size_t i = 0; i < kSections; ++i) lengths[i] = get<uint32_t>(file, kAtLengths + 4 * i);
  for (size_t i = 0; i + 1 < kSections; ++i) text += lengths[i];  // five 32-bit lengths cannot overflow 64 bits
  const size_t object_at = align_up(text);
  if (object_at + lengths[kSections - 1] + kChecksumBytes != file.size()) return Fault::Malformed;
  if (!all_zero(file.substr(kAtZero, 8)) || !all_zero(file.substr(text, object_at - text))) return Fault::Malformed;

  size_t at = kHeaderBytes;
  std::string_view* const parts[] = {&view.meta, &view.key, &view.ir, &view.source};
  for (size_t i = 0; i + 1 < kSections; ++i) {
    *parts[i] = file.substr(at, lengths[i]);
    at += lengths[i];
  }
  view.object = {file.data() + object_at, lengths[kSections - 1]};
  view.digest = support::load_digest(file.data() + kAtDigest);
  if (view.digest != support::xxh3_128(view.key)) return Fault::KeyMismatch;
  return std::nullopt;
}

std::optional<Fault> decode(std::string_view file, EntryView& view) {
  if (file.size() > kMaxEntryBytes) return Fault::TooLarge;
  if (file.size() < kHeaderBytes + kChecksumBytes) return Fault::Truncated;
  if (memcmp(file.data() + kAtMagic, kMagic, sizeof kMagic) != 0) return Fault::NotAnEntry;
  if (get<uint16_t>(file, kAtFormat) != kFormat) return Fault::ForeignVersion;
  const auto total = get<uint64_t>(file, kAtTotal);
  if (total > file.size()) return Fault::Truncated;
  if (total < file.size()) return Fault::Malformed;

  const std::string_view body = file.substr(0, file.size() - kChecksumBytes);
  if (support::load_digest(file.data() + body.size()) != support::xxh3_128(body)) return Fault::Checksum;
  const auto kind = get<uint16_t>(file, kAtKind);
  if (kind != static_cast<uint16_t>(Kind::CpuElf) && kind != static_cast<uint16_t>(Kind::Cubin))
    return Fault::ForeignVersion;
  view.kind = static_cast<Kind>(kind);
  return cut(file, view);
}

}  // namespace fastjit::cache
