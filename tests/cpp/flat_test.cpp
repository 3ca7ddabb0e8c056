// Hash tables of addresses: what a search costs must not depend on how an allocator spaces its objects.
#include "support/flat.h"

#include <gtest/gtest.h>

namespace fastjit::test {
namespace {

TEST(Flat, SearchesAreShortForEverySpacing) {
  constexpr size_t kKeys = 4096;
  for (size_t spacing = 16; spacing <= 8192; spacing += 16) {
    support::FlatSet<const char*> table;
    const char* first = reinterpret_cast<const char*>(0x7f6b3c000000);
    const uint64_t before = support::recording_work;
    for (size_t i = 0; i < kKeys; ++i) EXPECT_TRUE(table.insert(first + i * spacing).second);
    for (size_t i = 0; i < kKeys; ++i) EXPECT_TRUE(table.contains(first + i * spacing));
    EXPECT_EQ(table.size(), kKeys);
    // Half full, a search that fails takes 1.5 steps on average where places are drawn at random (Knuth, TAOCP 6.4).
    EXPECT_LT(support::recording_work - before, 3 * kKeys) << "objects " << spacing << " bytes apart";
  }
}

TEST(Flat, ErasedKeysHideNoOthers) {
  support::FlatMap<const char*, size_t> table;
  const char* first = reinterpret_cast<const char*>(0x1000);
  for (size_t i = 0; i < 1000; ++i) table.emplace(first + i, i);
  for (size_t i = 0; i < 1000; i += 3) table.erase(first + i);
  for (size_t i = 0; i < 1000; ++i) {
    const auto* found = table.find(first + i);
    if (i % 3 == 0) {
      EXPECT_EQ(found, table.end());
    } else {
      ASSERT_NE(found, table.end());
      EXPECT_EQ(found->second, i);
    }
  }
}

}  // namespace
}  // namespace fastjit::test
