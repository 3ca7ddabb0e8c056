// The bytes of an entry: nothing damaged is ever accepted.
#include "cache/entry.h"

#include <gtest/gtest.h>

#include <memory>

#include "cache_helpers.h"
#include "support/env.h"
#include "support/log.h"

namespace fastjit {
namespace {

using cache::EntryView;
using cache::Fault;

std::optional<Fault> judge(const std::string& bytes) {
  // An exact heap copy, so that a sanitizer sees any read past the end.
  const std::unique_ptr<char[]> copy(new char[bytes.size() + !bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), copy.get());
  EntryView view;
  return cache::decode({copy.get(), bytes.size()}, view);
}

TEST(Entry, GivesBackWhatWasWritten) {
  const cache::Entry entry = test::entry_of("gelu");
  const std::string bytes = cache::encode(entry);
  EXPECT_EQ(bytes, cache::encode(entry));
  EntryView view;
  ASSERT_EQ(cache::decode(bytes, view), std::nullopt);
  EXPECT_EQ(view.key, entry.key);
  EXPECT_EQ(view.ir, entry.ir);
  EXPECT_EQ(view.source, entry.source);
  EXPECT_EQ(std::string(view.object.begin(), view.object.end()), entry.object);
  EXPECT_EQ(cache::decode_fields(view.meta), entry.meta);
  EXPECT_EQ(static_cast<size_t>(view.object.data() - bytes.data()) % cache::kObjectAlign, 0u);
}

TEST(Entry, EmptySectionsAreAnEntry) { EXPECT_EQ(judge(cache::encode(cache::Entry{})), std::nullopt); }

TEST(Entry, EveryBitFlipIsSeen) {
  for (const char* name : {"a", "gelu", "softmax"}) {
    std::string bytes = cache::encode(test::entry_of(name));
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      ASSERT_TRUE(judge(bytes)) << "bit " << bit << " of " << name;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    }
  }
}

TEST(Entry, EveryTruncationAndEveryExtensionIsSeen) {
  const std::string bytes = cache::encode(test::entry_of("gelu"));
  for (size_t size = 0; size < bytes.size(); ++size) ASSERT_EQ(judge(bytes.substr(0, size)), Fault::Truncated) << size;
  for (const size_t more : {1, 15, 16, 4096}) EXPECT_EQ(judge(bytes + std::string(more, '\0')), Fault::Malformed);
  EXPECT_EQ(judge(std::string(bytes.size(), '\0')), Fault::NotAnEntry);
}

TEST(Entry, RandomEditsAreSeen) {
  const std::string good = cache::encode(test::entry_of("gelu", 300));
  uint64_t state = 42;
  const auto random = [&] { return state ^= state << 13, state ^= state >> 7, state ^= state << 17; };
  for (int round = 0; round < 50000; ++round) {
    std::string bytes = good;
    for (uint64_t edits = 1 + random() % 16; edits > 0; --edits)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (bytes == good) continue;
    ASSERT_TRUE(judge(bytes)) << round;
  }
}

/// With the checksum made right again, lengths and padding must still hold: what a faulty writer could produce.
TEST(Entry, ForgedLengthsAreSeenUnderARightChecksum) {
  const std::string good = cache::encode(test::entry_of("gelu", 301));
  for (size_t at = 20; at < 40; ++at) {  // the five lengths
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      bytes.resize(bytes.size() - cache::kChecksumBytes);
      char sum[16];
      support::store(support::xxh3_128(bytes), sum);
      bytes.append(sum, sizeof sum);
      const auto fault = judge(bytes);
      // Within the padding, a length of the two texts for people (ir, source) can be another one and still add up.
      if (!fault && at >= 28 && at < 36) continue;
      EXPECT_TRUE(fault == Fault::Malformed || fault == Fault::KeyMismatch) << at << ":" << bit;
    }
  }
}

TEST(Entry, OtherVersionsAndKindsAreForeign) {
  std::string bytes = cache::encode(test::entry_of("gelu"));
  bytes[8] = 2;
  EXPECT_EQ(judge(bytes), Fault::ForeignVersion);
}

TEST(Entry, FieldListsWithEqualTextDiffer) {
  EXPECT_NE(cache::encode({{"a", "bc"}}), cache::encode({{"ab", "c"}}));
  EXPECT_NE(cache::encode({{"a", ""}, {"", "b"}}), cache::encode({{"a", "b"}, {"", ""}}));
  const std::string bytes = cache::encode({{"a", "bc"}, {"d", std::string("\0x", 2)}});
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(cache::decode_fields(bytes.substr(0, size)));
  EXPECT_FALSE(cache::decode_fields(bytes + "x"));
  EXPECT_FALSE(cache::decode_fields("\xff\xff\xff\xff" + bytes));
}

TEST(Hash, MatchesThePublishedVectorOfTheEmptyString) {
  EXPECT_EQ(support::hex(support::xxh3_128("")), "99aa06d3014798d86001c324468d497f");
}

TEST(Settings, SizesAndTheTable) {
  // tests/python/tools/test_cache_cli.py reads these rows and asks the command the same; -1: no size.
  static constexpr std::pair<const char*, int64_t> kSizes[] = {
      {"4096", 4096},
      {"500M", 524288000},
      {"1.5GiB", 1610612736},
      {"2gb", 2147483648},
      {"5MIB", 5242880},
      {"2 GiB", 2147483648},
      {".5K", 512},
      {"5.K", 5120},
      {"7b", 7},
      {"0", 0},
      {"", -1},
      {"x", -1},
      {"-1", -1},
      {"-0", -1},
      {"1X", -1},
      {"1 2", -1},
      {"nan", -1},
      {"inf", -1},
      {"9e99", -1},
      {"5Ki", -1},
      {"5iB", -1},
      {".", -1},
      {"99999999T", -1},
  };
  for (const auto& [text, bytes] : kSizes) EXPECT_EQ(support::parse_size(text), bytes) << text;
  EXPECT_EQ(support::parse_size(std::string(400, '9')), -1);
  unsetenv("FASTJIT_CACHE_MAX_ENTRIES");
  EXPECT_EQ(support::setting_int(support::Setting::CacheMaxEntries), 16384);
  setenv("FASTJIT_CACHE_MAX_ENTRIES", "12", 1);
  EXPECT_EQ(support::setting_int(support::Setting::CacheMaxEntries), 12);
  unsetenv("FASTJIT_CACHE_MAX_ENTRIES");
  for (const support::SettingRow& row : support::settings()) EXPECT_TRUE(row.name.starts_with("FASTJIT_")) << row.name;
}

TEST(Log, NamesFromOutsideAreEscaped) {
  EXPECT_EQ(support::printable("a\x1b[31m\n\xff\xc2\x9b"), "a\\x1b[31m\\x0a\\xff\\xc2\\x9b");
  EXPECT_EQ(support::printable("größe"), "größe");
}

}  // namespace
}  // namespace fastjit
