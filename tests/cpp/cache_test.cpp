// The disk cache: faults are misses, writers race, folders are hostile, limits hold.
#include <sys/resource.h>
#include <sys/stat.h>
#include <utime.h>

#include <array>
#include <chrono>
#include <csignal>
#include <thread>

#include "cache_helpers.h"

namespace fastjit {
namespace {

using cache::Fault;
using test::TempDir;

TEST(Store, PutThenGetAcrossStores) {
  const TempDir dir;
  const cache::Entry entry = test::entry_of("gelu");
  EXPECT_TRUE(test::put(*test::open_store(dir.path + "/new/cache"), entry));
  const auto store = test::open_store(dir.path + "/new/cache");
  EXPECT_TRUE(test::holds(*store, entry));
  EXPECT_FALSE(store->get(test::key_of("other"), test::digest_of(test::key_of("other"))));
  struct stat info;
  ASSERT_EQ(stat((dir.path + "/new/cache").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(test::entry_path(dir.path + "/new/cache", "gelu").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TRUE(test::fs::exists(dir.path + "/new/cache/CACHEDIR.TAG"));
  EXPECT_TRUE(test::fs::is_empty(dir.path + "/new/cache/tmp"));
}

TEST(Store, AFolderWithOtherFilesIsNotTagged) {
  const TempDir dir;
  test::write_all(dir.path + "/thesis", "to be backed up");
  EXPECT_TRUE(test::put(*test::open_store(dir.path), test::entry_of("gelu")));
  EXPECT_FALSE(test::fs::exists(dir.path + "/CACHEDIR.TAG"));
}

TEST(Store, ModesDoNotDependOnTheUmask) {
  const TempDir dir;
  const mode_t before = umask(0);
  test::put(*test::open_store(dir.path + "/c"), test::entry_of("gelu"));
  umask(before);
  struct stat info;
  for (const std::string& path : {dir.path + "/c", dir.path + "/c/tmp", test::entry_path(dir.path + "/c", "gelu")}) {
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u) << path;
  }
}

/// Damages the file, expects a miss with this reason, and the damaged file gone exactly when `removed`.
void expect_miss(const std::function<void(const std::string&)>& damage, Fault reason, bool removed) {
  const TempDir dir;
  const auto store = test::open_store(dir.path);
  const cache::Entry entry = test::entry_of("gelu");
  ASSERT_TRUE(test::put(*store, entry));
  const std::string path = test::entry_path(dir.path, "gelu");
  damage(path);
  const uint64_t before = test::faults(reason);
  EXPECT_FALSE(test::holds(*store, entry)) << text(reason);
  EXPECT_EQ(test::faults(reason), before + 1) << text(reason);
  EXPECT_EQ(!test::fs::exists(test::fs::symlink_status(path)), removed) << text(reason);
  test::fs::remove_all(path);
  EXPECT_TRUE(test::put(*store, entry));
  EXPECT_TRUE(test::holds(*store, entry));
  EXPECT_NE(test::read_all(dir.path + "/stats").find("fault " + std::string(text(reason)) + " 1 "), std::string::npos);
}

TEST(Store, DamagedEntriesAreMissesAndRemoved) {
  const auto edit = [](auto change) {
    return [change](const std::string& path) {
      std::string bytes = test::read_all(path);
      change(bytes);
      test::write_all(path, bytes);
    };
  };
  expect_miss(edit([](std::string& bytes) { bytes[bytes.size() / 2] ^= 1; }), Fault::Checksum, true);
  expect_miss(edit([](std::string& bytes) { bytes.resize(bytes.size() / 2); }), Fault::Truncated, true);
  expect_miss(edit([](std::string& bytes) { bytes.clear(); }), Fault::Truncated, true);
  expect_miss(edit([](std::string& bytes) { bytes += "more"; }), Fault::Malformed, true);
  expect_miss(edit([](std::string& bytes) { bytes[0] = 'X'; }), Fault::NotAnEntry, true);
  expect_miss(edit([](std::string& bytes) { bytes[8] = 7; }), Fault::ForeignVersion, false);
  expect_miss(edit([](std::string& bytes) { bytes = cache::encode(test::entry_of("other")); }), Fault::KeyMismatch,
              true);
}

TEST(Store, UnsafeFilesAreNotRead) {
  expect_miss([](const std::string& path) { chmod(path.c_str(), 0666); }, Fault::Unsafe, false);
  expect_miss([](const std::string& path) { test::fs::create_hard_link(path, path + ".other"); }, Fault::Unsafe, false);
  expect_miss(
      [](const std::string& path) {
        test::fs::rename(path, path + ".real");
        test::fs::create_symlink(path + ".real", path);
      },
      Fault::Unsafe, false);
  expect_miss(
      [](const std::string& path) {
        test::fs::remove(path);
        mkfifo(path.c_str(), 0600);
      },
      Fault::Unsafe, false);
  expect_miss(
      [](const std::string& path) {
        test::fs::remove(path);
        test::fs::create_directory(path);
      },
      Fault::Unsafe, false);
  if (geteuid() == 0) {
    expect_miss([](const std::string& path) { EXPECT_EQ(chown(path.c_str(), 12345, 12345), 0); }, Fault::Unsafe, false);
  }
}

TEST(Folder, UnsafeFoldersAreRefused) {
  const TempDir dir;
  std::string problem;
  const auto refused = [&](const std::string& path) {
    return !cache::Store::open(path, {}, problem) && !problem.empty();
  };
  test::fs::create_directory(dir.path + "/real");
  test::fs::create_symlink(dir.path + "/real", dir.path + "/link");
  EXPECT_TRUE(refused(dir.path + "/link"));
  test::write_all(dir.path + "/file", "x");
  EXPECT_TRUE(refused(dir.path + "/file"));
  EXPECT_TRUE(refused(dir.path + "/file/below"));
  chmod((dir.path + "/real").c_str(), 0777);
  EXPECT_TRUE(refused(dir.path + "/real"));
  EXPECT_TRUE(test::fs::is_empty(dir.path + "/real"));
  EXPECT_TRUE(refused("/proc/nothing/here"));
  if (geteuid() == 0) {
    test::fs::create_directory(dir.path + "/theirs");
    ASSERT_EQ(chown((dir.path + "/theirs").c_str(), 12345, 12345), 0);
    EXPECT_TRUE(refused(dir.path + "/theirs"));
  }
}

TEST(Folder, IsFoundFromTheEnvironmentOnly) {
  const auto located = [](const char* own, const char* xdg, const char* home) {
    std::string path;
    int pipes[2];
    EXPECT_EQ(pipe(pipes), 0);
    EXPECT_TRUE(test::in_child([&] {
      const auto set = [](const char* name, const char* value) { value ? setenv(name, value, 1) : unsetenv(name); };
      set("FASTJIT_CACHE_DIR", own), set("XDG_CACHE_HOME", xdg), set("HOME", home);
      const std::string found = cache::locate().path;
      return write(pipes[1], found.data(), found.size()) == static_cast<ssize_t>(found.size());
    }));
    close(pipes[1]);
    char text[256];
    const ssize_t size = read(pipes[0], text, sizeof text);
    close(pipes[0]);
    return std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  };
  EXPECT_EQ(located("/a/b", "/x", "/h"), "/a/b");
  EXPECT_EQ(located("relative", "/x", "/h"), "");
  EXPECT_EQ(located(nullptr, "/x", "/h"), "/x/fastjit");
  EXPECT_EQ(located(nullptr, "relative", "/h"), "/h/.cache/fastjit");
  EXPECT_EQ(located("", "", "relative"), "");
  EXPECT_EQ(located(nullptr, nullptr, nullptr), "");
}

TEST(Folder, AFolderThatCannotBeWrittenIsReadOnly) {
  const TempDir dir;
  chmod(dir.path.c_str(), 0755);
  const cache::Entry entry = test::entry_of("gelu");
  const uid_t user = geteuid() == 0 ? 12345 : geteuid();
  EXPECT_TRUE(test::in_child([&] {
    const std::string root = dir.path + "/c";
    test::fs::create_directory(root);
    if (geteuid() == 0 && (chown(root.c_str(), user, user) != 0 || setresuid(user, user, user) != 0)) return false;
    if (!test::put(*test::open_store(root), entry)) return false;
    chmod((root + "/tmp").c_str(), 0500);
    chmod(root.c_str(), 0500);
    const auto store = test::open_store(root);
    const bool reads = test::holds(*store, entry), writes = test::put(*store, test::entry_of("more"));
    return reads && !writes && !store->writable();
  }));
}

TEST(Store, AFailedWriteLeavesNothingAndPausesWrites) {
  const TempDir dir;
  const auto store = test::open_store(dir.path);
  const std::string digest = test::digest_of(test::key_of("gelu"));
  test::write_all(dir.path + "/" + cache::entry_folder(digest), "in the way of the folder");
  EXPECT_FALSE(test::put(*store, test::entry_of("gelu")));
  EXPECT_TRUE(test::fs::is_empty(dir.path + "/tmp"));
  EXPECT_FALSE(store->writable());
}

TEST(Store, AFullDiskLeavesNothing) {
  const TempDir dir;
  EXPECT_TRUE(test::in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const auto store = test::open_store(dir.path);
    const struct rlimit limit = {1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    return !test::put(*store, test::entry_of("gelu")) && test::count_entries(dir.path) == 0 &&
           test::fs::is_empty(dir.path + "/tmp");
  }));
}

TEST(Store, WritersOnTheSameKeysAgree) {
  const TempDir dir;
  std::array<pid_t, 8> children{};
  for (pid_t& child : children) {
    if ((child = fork()) == 0) {
      alarm(30);
      cache::reset_counters();
      bool ok = true;
      const auto store = test::open_store(dir.path);
      for (int round = 0; round < 40 && ok; ++round) {
        for (int key = 0; key < 8 && ok; ++key) {
          const cache::Entry entry = test::entry_of("k" + std::to_string(key));
          const auto hit = store->get(entry.key, test::digest_of(entry.key));
          ok = (!hit || std::string(hit->view.object.begin(), hit->view.object.end()) == entry.object) &&
               test::put(*store, entry);
        }
      }
      const cache::Counters seen = cache::counters();
      for (const uint64_t count : seen.faults) ok = ok && count == 0;
      _exit(ok ? 0 : 1);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_EQ(test::count_entries(dir.path), 8u);
  EXPECT_TRUE(test::fs::is_empty(dir.path + "/tmp"));
}

TEST(Store, KilledWritersLeaveNoBadEntry) {
  const TempDir dir;
  uint64_t random = 7;
  for (int round = 0; round < 300; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      const auto store = test::open_store(dir.path);
      for (int i = 0;; ++i) test::put(*store, test::entry_of("k" + std::to_string(i % 16), 60000));
    }
    random = random * 6364136223846793005u + 1442695040888963407u;
    usleep(static_cast<useconds_t>(random >> 33) % 3000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  cache::reset_counters();
  const auto store = test::open_store(dir.path);
  for (int i = 0; i < 16; ++i) {
    const cache::Entry entry = test::entry_of("k" + std::to_string(i), 60000);
    const auto hit = store->get(entry.key, test::digest_of(entry.key));
    if (!hit) continue;
    EXPECT_EQ(std::string(hit->view.object.begin(), hit->view.object.end()), entry.object);
  }
  for (size_t i = 0; i < cache::kFaultCount; ++i)
    EXPECT_EQ(cache::counters().faults[i], 0u) << text(static_cast<Fault>(i));

  // What the killed left behind is removed once it is an hour old.
  const std::string digits(32, 'a'), young = std::string(32, 'b') + ".tmp";
  const std::vector<std::string> others = {"thesis.tmp", "apt.lock", digits.substr(1) + ".tmp", digits + "a.lock"};
  test::write_all(dir.path + "/tmp/" + digits + ".tmp", "left behind");
  test::write_all(dir.path + "/tmp/" + digits + ".lock", "");
  test::write_all(dir.path + "/tmp/" + young, "being written");
  for (const std::string& name : others) test::write_all(dir.path + "/tmp/" + name, "of another program");
  for (const auto& item : test::fs::directory_iterator(dir.path + "/tmp")) {
    const struct utimbuf old = {time(nullptr) - 7200, time(nullptr) - 7200};
    if (item.path().filename() != young) utime(item.path().c_str(), &old);
  }
  EXPECT_TRUE(cache::collect(store->root(), {}));
  EXPECT_EQ(std::distance(test::fs::directory_iterator(dir.path + "/tmp"), {}), 5);
  for (const std::string& name : others) EXPECT_TRUE(test::fs::exists(dir.path + "/tmp/" + name)) << name;
}

TEST(Eviction, LeastRecentlyUsedGoFirst) {
  const TempDir dir;
  const auto store = test::open_store(dir.path, {1LL << 30, 20});
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(test::put(*store, test::entry_of("k" + std::to_string(i))));
    const struct utimbuf age = {time(nullptr) - 10000 + i, time(nullptr) - 10000 + i};
    utime(test::entry_path(dir.path, "k" + std::to_string(i)).c_str(), &age);
  }
  EXPECT_EQ(test::count_entries(dir.path), 20u);
  ASSERT_TRUE(test::put(*store, test::entry_of("new")));
  EXPECT_EQ(test::count_entries(dir.path), 18u);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(test::holds(*store, test::entry_of("k" + std::to_string(i)))) << i;
  for (int i = 3; i < 20; ++i) EXPECT_TRUE(test::holds(*store, test::entry_of("k" + std::to_string(i)))) << i;
  EXPECT_TRUE(test::holds(*store, test::entry_of("new")));
}

TEST(Eviction, BytesStayBelowTheLimit) {
  const TempDir dir;
  constexpr int64_t kLimit = 100000;
  const auto store = test::open_store(dir.path, {kLimit, 16384});
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(test::put(*store, test::entry_of("k" + std::to_string(i))));
    if (i % 20 == 0) {
      int64_t bytes = 0;
      for (const auto& item : test::fs::recursive_directory_iterator(dir.path)) {
        if (item.path().extension() == ".fj") bytes += static_cast<int64_t>(item.file_size());
      }
      EXPECT_LE(bytes, kLimit);
    }
  }
  EXPECT_FALSE(test::put(*store, test::entry_of("larger than the cache", kLimit)));
}

TEST(Eviction, AReplacedEntryIsKept) {
  const TempDir dir;
  const auto store = test::open_store(dir.path);
  ASSERT_TRUE(test::put(*store, test::entry_of("gelu")));
  const std::string path = test::entry_path(dir.path, "gelu");
  struct stat judged;
  ASSERT_EQ(stat(path.c_str(), &judged), 0);
  ASSERT_TRUE(test::put(*store, test::entry_of("gelu")));
  EXPECT_FALSE(cache::unlink_if_same(AT_FDCWD, path.c_str(), judged));
  EXPECT_TRUE(test::fs::exists(path));
}

TEST(Eviction, ALostOrDamagedTotalIsSummedAgain) {
  const TempDir dir;
  const auto store = test::open_store(dir.path, {1LL << 30, 10});
  for (const char* text : {"", "garbage", "usage -5 -5 -5"}) {
    for (int i = 0; i < 9; ++i) test::put(*store, test::entry_of("k" + std::to_string(i)));
    test::write_all(dir.path + "/usage", text);
    test::put(*store, test::entry_of("one more"));
    EXPECT_TRUE(test::read_all(dir.path + "/usage").starts_with("usage 10 ")) << test::read_all(dir.path + "/usage");
    test::fs::remove(test::entry_path(dir.path, "one more"));
  }
}

TEST(Stats, TornLinesAreSkippedAndTheLogIsCompacted) {
  const TempDir dir;
  const auto store = test::open_store(dir.path);
  const std::string digest(32, 'a');
  test::write_all(
      dir.path + "/stats",
      "load " + digest + " 2 100\nload aa\n\xff\x01 garbage\nfault checksum x 1\nload " + digest + " 3 200\n");
  cache::compact_stats(store->root());
  EXPECT_EQ(test::read_all(dir.path + "/stats"), "load " + digest + " 5 200\n");
  std::string big;
  while (static_cast<int64_t>(big.size()) < cache::kStatsMaxBytes) big += "load " + digest + " 1 300\n";
  test::write_all(dir.path + "/stats", big);
  cache::count_load(&store->root(), digest);
  EXPECT_LT(test::read_all(dir.path + "/stats").size(), 200u);
}

TEST(Stats, APlantedFifoDoesNotBlock) {
  const TempDir dir;
  const auto store = test::open_store(dir.path);
  ASSERT_EQ(mkfifo((dir.path + "/stats").c_str(), 0600), 0);
  cache::count_load(&store->root(), std::string(32, 'a'));
}

TEST(Lock, IsExclusiveBoundedAndDiesWithItsHolder) {
  const TempDir dir;
  const auto store = test::open_store(dir.path);
  const std::string digest(32, 'a');
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const auto mine = test::open_store(dir.path);
    const cache::KeyLock lock = mine->lock(digest, 1000);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(store->lock(digest, 30).state(), cache::KeyLock::State::TimedOut);
  EXPECT_EQ(store->lock(std::string(32, 'b'), 30).state(), cache::KeyLock::State::Held);
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  EXPECT_EQ(store->lock(digest, 1000).state(), cache::KeyLock::State::Held);
  EXPECT_TRUE(test::fs::is_empty(dir.path + "/tmp"));
}

}  // namespace
}  // namespace fastjit
