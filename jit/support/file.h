#pragma once
// Files below an open directory: no call here follows a symlink in the last component, and nothing throws.
#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fastjit::support {

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { close(); }
  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  /// 0, or the errno of close (a full network disk says so only here).
  int close();

 private:
  int fd_ = -1;
};

Fd open_dir(int at, const char* name);   // O_DIRECTORY | O_NOFOLLOW; errno says why not
Fd open_read(int at, const char* name);  // O_RDONLY | O_NOFOLLOW | O_NONBLOCK (a planted FIFO must not block)

/// Reads exactly `size` bytes from the start. 0, or errno; ENODATA for a file that ended early.
int read_exactly(int fd, char* bytes, size_t size);
int write_all(int fd, std::string_view bytes);  // 0 or errno

/// Writes `bytes` to a new random file in `temp_dir` and renames it to `dir`/`name`: readers see the old file, the new
/// one, or none, never a part. 0 or errno; on an error nothing is left behind.
int publish(int temp_dir, int dir, const std::string& name, std::string_view bytes);

/// Makes room under a name: what is there goes to `temp_dir` under a random name and, unless it is a folder with
/// something in it, is removed. 0 or errno.
int clear_name(int temp_dir, int dir, const char* name);

std::string random_hex();                                    // 128 random bits
std::vector<std::string> list_dir(int dir);                  // names, without . and ..
bool same_file(const struct stat& a, const struct stat& b);  // inode, size and mtime

}  // namespace fastjit::support
