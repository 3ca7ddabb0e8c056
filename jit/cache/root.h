#pragma once
// The folder of the disk cache: where it is, whether it may be trusted, and what lies in it.
//   <root>/CACHEDIR.TAG   <root>/ab/<32 hex digits>.fj   <root>/tmp/{<random>.tmp,<digest>.lock}   <root>/stats
//   <root>/usage
#include <memory>
#include <string>

#include "support/file.h"
#include "support/hash.h"

namespace fastjit::cache {

struct Location {
  std::string path;     // absolute, or "" when there is none
  std::string source;   // the setting it came from
  std::string problem;  // why there is none
};

/// FASTJIT_CACHE_DIR, else $XDG_CACHE_HOME/fastjit, else $HOME/.cache/fastjit. Never looks at the working directory or
/// the user database.
Location locate();

struct Folder {
  std::string path;
  support::Fd dir, temp;  // temp: <root>/tmp
  bool network = false;   // NFS and the like: locks are not relied on

  std::string problem;  // only when dir is not open
  explicit operator bool() const { return static_cast<bool>(dir); }
};

/// Opens the root and makes what is missing. Refused: not a folder, a symlink, another owner, or writable by group or
/// others. A root that cannot be written but can be read is opened without `temp`.
Folder open_root(const std::string& path);

std::string entry_folder(const std::string& digest_hex);  // "ab"
std::string entry_name(const std::string& digest_hex);    // "<digest>.fj"
bool is_entry_folder(const std::string& name);
bool is_entry_name(const std::string& name);
bool is_temp_name(const std::string& name);  // "<32 hex digits>.tmp"
bool is_lock_name(const std::string& name);  // "<digest>.lock"

}  // namespace fastjit::cache
