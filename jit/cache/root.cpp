#include "cache/root.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "support/env.h"
#include "support/log.h"

namespace fastjit::cache {

static constexpr std::string_view kTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder is the kernel cache of FastJIT. It can be deleted at any time.\n";
static constexpr const char* kTagName = "CACHEDIR.TAG";

static std::string variable(const char* name) {
  const char* value = secure_getenv(name);
  return value ? value : "";
}

Location locate() {
  if (getauxval(AT_SECURE) != 0) return {"", "", "this is a set-uid program"};
  const std::string own = support::setting_text(support::Setting::CacheDir);
  if (!own.empty()) {
    if (own[0] != '/') {
      const std::string shown = support::printable(own.substr(0, 60));
      return {"", "FASTJIT_CACHE_DIR", "FASTJIT_CACHE_DIR='" + shown + "' is not an absolute path"};
    }
    return {own, "FASTJIT_CACHE_DIR", ""};
  }
  const std::string xdg = variable("XDG_CACHE_HOME");  // a relative one is to be ignored, says its specification
  if (!xdg.empty() && xdg[0] == '/') return {xdg + "/fastjit", "XDG_CACHE_HOME", ""};
  const std::string home = variable("HOME");
  if (!home.empty() && home[0] == '/') return {home + "/.cache/fastjit", "HOME", ""};
  return {"", "", "neither FASTJIT_CACHE_DIR nor HOME is set"};
}

static int make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    if (mkdir(path.substr(0, end).c_str(), 0700) != 0 && errno != EEXIST && errno != EACCES && errno != EROFS)
      return errno;
  }
  return mkdir(path.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
}

static bool is_network(int fd) {
  static constexpr long kNetwork[] = {0x6969 /* nfs */, 0xFF534D42 /* cifs */, 0xFE534D42 /* smb2 */,
                                      0x517B /* smb */, 0x01021997 /* 9p */,   0x0BD00BD0 /* lustre */,
                                      0x00C36400 /* ceph */};
  struct statfs info;
  return fstatfs(fd, &info) == 0 && std::ranges::find(kNetwork, static_cast<long>(info.f_type)) != std::end(kNetwork);
}

static std::string judge(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return strerror(errno);
  if (info.st_uid != geteuid()) return "it belongs to another user";
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others may write to it (chmod go-w)";
  return "";
}

Folder open_root(const std::string& given) {
  Folder root;
  root.path = given;
  while (root.path.size() > 1 && root.path.back() == '/') root.path.pop_back();
  const int made = make_folders(root.path);
  support::Fd dir = support::open_dir(AT_FDCWD, root.path.c_str());
  if (!dir) {
    root.problem = made != 0                            ? strerror(made)
                   : errno == ENOTDIR || errno == ELOOP ? "it is not a folder, or a symlink"
                                                        : strerror(errno);
    return root;
  }
  root.problem = judge(dir.get());
  if (!root.problem.empty()) return root;
  root.network = is_network(dir.get());
  const bool was_empty = support::list_dir(dir.get()).empty();
  const bool made_temp = mkdirat(dir.get(), "tmp", 0700) == 0 || errno == EEXIST;
  if (made_temp && faccessat(dir.get(), "tmp", W_OK, AT_EACCESS) == 0) root.temp = support::open_dir(dir.get(), "tmp");
  root.dir = std::move(dir);
  if (root.temp && was_empty) support::publish(root.temp.get(), root.dir.get(), kTagName, kTag);
  return root;
}

std::string entry_folder(const std::string& digest_hex) { return digest_hex.substr(0, 2); }
std::string entry_name(const std::string& digest_hex) { return digest_hex + ".fj"; }

static bool all_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_entry_folder(const std::string& name) { return name.size() == 2 && all_hex(name); }

static bool is_digits_and(std::string_view end, std::string_view name) {
  return name.size() == 32 + end.size() && name.ends_with(end) && all_hex(name.substr(0, 32));
}

bool is_entry_name(const std::string& name) { return is_digits_and(".fj", name); }
bool is_temp_name(const std::string& name) { return is_digits_and(".tmp", name); }
bool is_lock_name(const std::string& name) { return is_digits_and(".lock", name); }

}  // namespace fastjit::cache
