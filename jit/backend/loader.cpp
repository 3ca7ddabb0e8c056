// Executable memory for kernels. Slabs of address space are handed out by the page; a kernel's pages are writable while
// its image is written and executable afterwards, never both. Neighbouring kernels share a mapping, so thousands of
// them cost a handful. A linker library is not needed: images are position independent (see elf_object.h).
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "backend/compiler.h"
#include "backend/elf_object.h"
#include "support/fork.h"

namespace fastjit::backend {
namespace {

constexpr size_t kPage = 4096, kSlabPages = 512;

std::runtime_error refused(const char* what) {
  return std::runtime_error(std::string("no executable memory: ") + what + ": " + std::strerror(errno));
}

struct Slab {
  char* memory;
  std::vector<bool> used;  // per page
  size_t live = 0;         // pages
};
struct Range {
  Slab* slab;
  size_t first, pages;
  char* memory() const { return slab->memory + first * kPage; }
};

class Slabs {
 public:
  /// Lives for ever: kernels may die after static destructors have begun.
  static Slabs& instance() {
    static Slabs* slabs = [] {
      auto* made = new Slabs;
      support::hold_over_fork(made->lock_);
      return made;
    }();
    return *slabs;
  }

  Range take(std::span<const char> object, const ObjectImage& image) {
    const std::lock_guard hold(lock_);
    const Range range = reserve((image.size + kPage - 1) / kPage);
    const size_t bytes = range.pages * kPage;
    // Pages of a dead kernel are still executable; they become writable here and lose that.
    if (mprotect(range.memory(), bytes, PROT_READ | PROT_WRITE) != 0) throw give_up(range, "mprotect");
    std::memset(range.memory(), 0xCC, bytes);  // int3 wherever no code stands
    write_image(object, image, range.memory());
    if (mprotect(range.memory(), bytes, PROT_READ | PROT_EXEC) != 0) throw give_up(range, "mprotect");
    return range;
  }

  void drop(const Range& range) {
    const std::lock_guard hold(lock_);
    release(range);
  }

 private:
  std::runtime_error give_up(const Range& range, const char* what) {
    const std::runtime_error error = refused(what);
    release(range);
    return error;
  }

  Range reserve(size_t pages) {
    for (Slab& slab : slabs_)
      for (size_t first = 0, run = 0; first + run < slab.used.size();) {
        if (slab.used[first + run]) {
          first += run + 1;
          run = 0;
        } else if (++run == pages) {
          return mark(slab, first, pages);
        }
      }
    const size_t total = pages > kSlabPages ? pages : kSlabPages;
    void* memory = mmap(nullptr, total * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw refused("mmap");
    slabs_.push_back({static_cast<char*>(memory), std::vector<bool>(total, false), 0});
    return mark(slabs_.back(), 0, pages);
  }

  Range mark(Slab& slab, size_t first, size_t pages) {
    for (size_t i = 0; i < pages; ++i) slab.used[first + i] = true;
    slab.live += pages;
    return {&slab, first, pages};
  }

  // An empty slab goes back to the system unless it is the only one.
  void release(const Range& range) {
    for (size_t i = 0; i < range.pages; ++i) range.slab->used[range.first + i] = false;
    range.slab->live -= range.pages;
    if (range.slab->live || slabs_.size() == 1) return;
    munmap(range.slab->memory, range.slab->used.size() * kPage);
    slabs_.remove_if([&](const Slab& slab) { return &slab == range.slab; });
  }

  std::mutex lock_;
  std::list<Slab> slabs_;
};

class LoadedKernel final : public Kernel {
 public:
  explicit LoadedKernel(const Range& range) : range_(range) { entry = reinterpret_cast<KernelFn>(range.memory()); }
  ~LoadedKernel() override { Slabs::instance().drop(range_); }
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

 private:
  Range range_;
};

}  // namespace

std::shared_ptr<const Kernel> load_cpu(std::span<const char> object) {
  ObjectImage image;
  const std::string wrong = read_object(object, image);
  if (!wrong.empty()) throw std::runtime_error("kernel object refused: " + wrong);
  return std::make_shared<LoadedKernel>(Slabs::instance().take(object, image));
}

}  // namespace fastjit::backend
