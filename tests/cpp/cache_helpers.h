#pragma once
// Folders and entries for the tests of the cache.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "cache/store.h"

namespace fastjit::test {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/fastjit-test-XXXXXX";
    path = mkdtemp(name);
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  std::string path;
};

inline std::string key_of(const std::string& name) {
  return cache::encode({{"domain", "fastjit kernel"}, {"plan", "plan of " + name + "\nkept 0\nload 0 f32\nstore 1"}});
}

inline std::string digest_of(const std::string& key) { return support::hex(support::xxh3_128(key)); }

inline cache::Entry entry_of(const std::string& name, size_t object_bytes = 2200) {
  cache::Entry entry;
  entry.key = key_of(name);
  entry.meta = {{"function", "model." + name},
                {"signature", "f32[*,1024]"},
                {"target", "cpu-avx2"},
                {"compile_ms", "4.4"},
                {"created", "1"}};
  entry.ir = "%0 = input f32\n%1 = tanh %0\n";
  entry.source = "define void @fj_mul_f32() { ret void }\n";
  uint64_t state = 88172645463325252u + name.size();
  for (const char c : name) state = state * 31 + static_cast<unsigned char>(c);
  for (size_t i = 0; i < object_bytes; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    entry.object += static_cast<char>(state);
  }
  return entry;
}

inline std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_all(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  chmod(path.c_str(), 0600);
}

inline std::string entry_path(const std::string& root, const std::string& name) {
  const std::string digest = digest_of(key_of(name));
  return root + "/" + cache::entry_folder(digest) + "/" + cache::entry_name(digest);
}

inline std::unique_ptr<cache::Store> open_store(const std::string& path, cache::Limits limits = {}) {
  std::string problem;
  auto store = cache::Store::open(path, limits, problem);
  EXPECT_TRUE(store) << problem;
  return store;
}

inline bool put(cache::Store& store, const cache::Entry& entry) { return store.put(entry, digest_of(entry.key)); }

inline bool holds(cache::Store& store, const cache::Entry& entry) {
  const auto hit = store.get(entry.key, digest_of(entry.key));
  return hit && std::string(hit->view.object.begin(), hit->view.object.end()) == entry.object;
}

inline size_t count_entries(const std::string& root) {
  size_t count = 0;
  for (const auto& item : fs::recursive_directory_iterator(root)) count += item.path().extension() == ".fj";
  return count;
}

/// Runs `body` in a child; true when it ends with status 0 within `seconds`.
inline bool in_child(const std::function<bool()>& body, unsigned seconds = 20) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    bool ok = false;
    try {
      ok = body();
    } catch (...) {
    }
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

inline uint64_t faults(cache::Fault fault) { return cache::counters().faults[static_cast<size_t>(fault)]; }

}  // namespace fastjit::test
