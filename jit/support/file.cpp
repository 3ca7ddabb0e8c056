#include "support/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "support/hash.h"

namespace fastjit::support {

int Fd::close() {
  const int fd = std::exchange(fd_, -1);
  return fd >= 0 && ::close(fd) != 0 && errno != EINTR ? errno : 0;
}

Fd open_dir(int at, const char* name) { return Fd(openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)); }

Fd open_read(int at, const char* name) {
  return Fd(openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

int read_exactly(int fd, char* bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t got = pread(fd, bytes + done, size - done, static_cast<off_t>(done));
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      return ENODATA;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put > 0) {
      bytes.remove_prefix(static_cast<size_t>(put));
    } else if (put == 0 || errno != EINTR) {
      return put == 0 ? ENOSPC : errno;
    }
  }
  return 0;
}

static int write_file(int dir, const char* name, std::string_view bytes) {
  Fd file(openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return errno;
  if (const int error = write_all(file.get(), bytes)) return error;
  struct stat info;
  if (fstat(file.get(), &info) != 0) return errno;
  if (info.st_size != static_cast<off_t>(bytes.size())) return EIO;
  return file.close();
}

int publish(int temp_dir, int dir, const std::string& name, std::string_view bytes) {
  const std::string temp = random_hex() + ".tmp";
  int error = write_file(temp_dir, temp.c_str(), bytes);
  if (error == EEXIST) return error;  // not ours to remove
  if (error == 0 && renameat(temp_dir, temp.c_str(), dir, name.c_str()) != 0) error = errno;
  if (error != 0) unlinkat(temp_dir, temp.c_str(), 0);
  return error;
}

int clear_name(int temp_dir, int dir, const char* name) {
  const std::string temp = random_hex() + ".tmp";
  if (renameat(dir, name, temp_dir, temp.c_str()) != 0) return errno;
  if (unlinkat(temp_dir, temp.c_str(), 0) != 0) unlinkat(temp_dir, temp.c_str(), AT_REMOVEDIR);
  return 0;
}

std::string random_hex() {
  char bytes[16];
  if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof bytes)) {
    // Early boot only. O_EXCL keeps a repeated name harmless.
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    char seed[64];
    const int length =
        snprintf(seed, sizeof seed, "%d %lld %ld", getpid(), static_cast<long long>(now.tv_sec), now.tv_nsec);
    return hex(xxh3_128({seed, static_cast<size_t>(length)}));
  }
  return hex(load_digest(bytes));
}

std::vector<std::string> list_dir(int dir) {
  std::vector<std::string> names;
  Fd copy = open_dir(dir, ".");
  if (!copy) return names;
  DIR* stream = fdopendir(copy.get());
  if (!stream) return names;
  copy.release();  // the stream owns it now
  while (const dirent* item = readdir(stream)) {
    if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0) names.emplace_back(item->d_name);
  }
  closedir(stream);
  return names;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace fastjit::support
