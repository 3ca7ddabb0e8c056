// What stands in the way of the disk cache is put aside, waits end, limits hold beside other writers.
#include <sys/file.h>
#include <sys/stat.h>
#include <utime.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "cache_helpers.h"

namespace {
std::atomic<bool> fstat_fails{false};
}

// The engine is linked statically, so its calls come here.
extern "C" int fstat(int file, struct stat* info) noexcept {
  if (fstat_fails) {
    errno = EIO;
    return -1;
  }
  return fstatat(file, "", info, AT_EMPTY_PATH);
}

namespace fastjit {
namespace {

using cache::Fault;
using cache::KeyLock;
using test::TempDir;

void make_old(const std::string& path) {
  const struct utimbuf old = {time(nullptr) - 7200, time(nullptr) - 7200};
  ASSERT_EQ(utime(path.c_str(), &old), 0) << path;
}

TEST(Lock, IsGivenUpWhereTheFileCannotBeJudged) {
  const TempDir dir;
  EXPECT_TRUE(test::in_child(
      [&] {
        const auto store = test::open_store(dir.path);
        fstat_fails = true;
        const bool given_up = store->lock(std::string(32, 'a'), 10).state() == KeyLock::State::Unavailable;
        fstat_fails = false;
        return given_up && store->lock(std::string(32, 'a'), 10).state() == KeyLock::State::Held;
      },
      5));
}

// The file is another one each time that it is looked at: whoever replaces it is not waited for.
TEST(Lock, IsGivenUpWhereTheFileKeepsChanging) {
  const TempDir dir;
  EXPECT_TRUE(test::in_child(
      [&] {
        const auto store = test::open_store(dir.path);
        const std::string path = dir.path + "/tmp/" + std::string(32, 'a') + ".lock";
        std::atomic<bool> stop{false};
        std::thread remover([&] {
          while (!stop) unlink(path.c_str());
        });
        for (int i = 0; i < 20; ++i) store->lock(std::string(32, 'a'), 5);
        stop = true;
        remover.join();
        return true;
      },
      10));
}

TEST(Store, TheNextPutRemovesOldFilesOfCrashedWriters) {
  const TempDir dir;
  const auto store = test::open_store(dir.path);
  ASSERT_TRUE(test::put(*store, test::entry_of("first")));  // the daily collection has been
  const std::string tmp = dir.path + "/tmp/", a(32, 'a'), b(32, 'b'), c(32, 'c');
  for (const std::string& name : {a + ".tmp", a + ".lock", b + ".tmp", std::string("thesis.tmp")})
    test::write_all(tmp + name, "left behind");
  test::fs::create_directories(tmp + c + ".tmp");
  for (const std::string& name : {a + ".tmp", a + ".lock", c + ".tmp", std::string("thesis.tmp")}) make_old(tmp + name);
  ASSERT_TRUE(test::put(*store, test::entry_of("second")));
  EXPECT_FALSE(test::fs::exists(tmp + a + ".tmp"));
  EXPECT_FALSE(test::fs::exists(tmp + a + ".lock"));
  EXPECT_FALSE(test::fs::exists(tmp + c + ".tmp"));
  EXPECT_TRUE(test::fs::exists(tmp + b + ".tmp"));  // may still be written
  EXPECT_TRUE(test::fs::exists(tmp + "thesis.tmp"));
}

TEST(Store, AFolderAtThePathOfAnEntryIsPutAside) {
  for (const bool empty : {true, false}) {
    const TempDir dir;
    const auto store = test::open_store(dir.path);
    const cache::Entry entry = test::entry_of("gelu");
    const std::string path = test::entry_path(dir.path, "gelu");
    test::fs::create_directories(path);
    if (!empty) test::write_all(path + "/thesis", "of somebody");
    EXPECT_FALSE(test::holds(*store, entry));
    EXPECT_TRUE(test::put(*store, entry)) << empty;
    EXPECT_TRUE(store->writable());
    EXPECT_TRUE(test::holds(*store, entry));
    size_t kept = 0;
    for (const auto& item : test::fs::recursive_directory_iterator(dir.path + "/tmp"))
      kept += item.path().filename() == "thesis";
    EXPECT_EQ(kept, empty ? 0u : 1u);  // what is not ours is never removed
    EXPECT_EQ(test::fs::is_empty(dir.path + "/tmp"), empty);
  }
}

/// Puts 30 entries where 10 are allowed; true when no more than 10 are there.
bool stays_below(const std::string& root) {
  const auto store = test::open_store(root, {1LL << 30, 10});
  for (int i = 0; i < 30; ++i)
    if (!test::put(*store, test::entry_of("k" + std::to_string(i)))) return false;
  return test::count_entries(root) <= 10;
}

TEST(Eviction, WhatStandsAtTheTotalsDoesNotStopIt) {
  const std::vector<std::pair<const char*, std::function<void(const std::string&)>>> cases = {
      {"folder", [](const std::string& path) { test::fs::create_directory(path); }},
      {"full folder", [](const std::string& path) { test::write_all(path + "/thesis", "of somebody"); }},
      {"symlink", [](const std::string& path) { test::fs::create_symlink("/etc/hostname", path); }},
      {"fifo", [](const std::string& path) { mkfifo(path.c_str(), 0600); }},
      {"far off",
       [](const std::string& path) {
         char line[73];
         const auto now = static_cast<long long>(time(nullptr));
         snprintf(line, sizeof line, "usage %-20d %-20d %-20lld", -1000000, -1000000, now);
         test::write_all(path, line + std::string(73 - strlen(line), ' '));
       }},
  };
  for (const auto& [what, plant] : cases) {
    const TempDir dir;
    test::open_store(dir.path);
    plant(dir.path + "/usage");
    EXPECT_TRUE(test::in_child([&] { return stays_below(dir.path); })) << what;
    EXPECT_TRUE(test::fs::is_regular_file(dir.path + "/usage")) << what;
  }
}

TEST(Eviction, UnreadableTotalsDoNotStopIt) {
  const TempDir dir;
  chmod(dir.path.c_str(), 0755);
  const uid_t user = geteuid() == 0 ? 12345 : geteuid();
  EXPECT_TRUE(test::in_child([&] {
    const std::string root = dir.path + "/c";
    test::fs::create_directory(root);
    if (geteuid() == 0 && (chown(root.c_str(), user, user) != 0 || setresuid(user, user, user) != 0)) return false;
    test::write_all(root + "/usage", "");
    chmod((root + "/usage").c_str(), 0);
    return stays_below(root);
  }));
}

TEST(Eviction, AWriterWhoseEntriesAreNotCountedStops) {
  const TempDir dir;
  const auto store = test::open_store(dir.path, {1LL << 30, 10});
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(test::put(*store, test::entry_of("k" + std::to_string(i))));
  const int holder = open((dir.path + "/usage").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(holder, LOCK_EX | LOCK_NB), 0);
  EXPECT_TRUE(test::put(*store, test::entry_of("not counted")));
  const uint64_t before = test::faults(Fault::LockTimeout);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(test::put(*store, test::entry_of("more" + std::to_string(i))));
  EXPECT_EQ(test::faults(Fault::LockTimeout), before + 1);  // the others are not tried
  EXPECT_EQ(test::count_entries(dir.path), 11u);
  close(holder);
}

TEST(Eviction, EntriesOfOneWriterAreCountedOnce) {
  const TempDir dir;
  const auto store = test::open_store(dir.path);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(test::put(*store, test::entry_of("k" + std::to_string(i))));
  EXPECT_TRUE(test::read_all(dir.path + "/usage").starts_with("usage 3 ")) << test::read_all(dir.path + "/usage");
}

// All writers are stopped while their entries are counted.
TEST(Eviction, TheLimitIsPassedByNoMoreThanTheWriters) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer delays the signals that stop the writers";
#endif
  constexpr size_t kLimit = 40, kWriters = 4;
  const TempDir dir;
  test::open_store(dir.path);
  std::array<pid_t, kWriters> writers{};
  for (size_t w = 0; w < kWriters; ++w) {
    if ((writers[w] = fork()) == 0) {
      alarm(60);
      const auto store = test::open_store(dir.path, {1LL << 30, kLimit});
      for (int i = 0;; ++i) test::put(*store, test::entry_of(std::to_string(w) + ":" + std::to_string(i), 100));
    }
  }
  size_t most = 0;
  for (int round = 0; round < 300; ++round) {
    usleep(1000);
    for (const pid_t writer : writers) kill(writer, SIGSTOP);
    int status = 0;
    for (const pid_t writer : writers) ASSERT_EQ(waitpid(writer, &status, WUNTRACED), writer);
    most = std::max(most, test::count_entries(dir.path));
    for (const pid_t writer : writers) kill(writer, SIGCONT);
  }
  for (const pid_t writer : writers) {
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
  }
  EXPECT_GT(most, kLimit / 2);
  EXPECT_LE(most, kLimit + kWriters);
}

}  // namespace
}  // namespace fastjit
