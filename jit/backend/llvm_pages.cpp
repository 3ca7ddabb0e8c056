#include "backend/llvm_pages.h"

#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace fastjit::backend {

using llvm::orc::ExecutorAddr;

namespace {

llvm::Error refused(const char* what) {
  return llvm::createStringError(std::error_code(errno, std::generic_category()), "no executable memory: %s: %s", what,
                                 std::strerror(errno));
}

size_t whole_pages(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }

}  // namespace

llvm::Expected<std::unique_ptr<llvm::orc::MemoryMapper>> KernelPages::create() {
  auto page = llvm::sys::Process::getPageSize();
  if (!page) return page.takeError();
  return std::make_unique<KernelPages>(*page);
}

#if LLVM_VERSION_MAJOR >= 21
char* KernelPages::prepare(llvm::jitlink::LinkGraph& graph, ExecutorAddr, size_t size) {
  return graph.allocateBuffer(size).data();
}
#else
#error "kernels are linked with LLVM 21 or later"
#endif

void KernelPages::initialize(AllocInfo& info, OnInitializedFunction done) {
  size_t bytes = 0;
  for (const AllocInfo::SegInfo& part : info.Segments) {
    if (part.AG.getMemProt() != kKernelMemory)
      return done(llvm::createStringError("a kernel has memory that is not code or constants"));
    char* to = (info.MappingBase + part.Offset).toPtr<char*>();
    const size_t filled = part.ContentSize + part.ZeroFillSize, whole = whole_pages(filled, getPageSize());
    if (mprotect(to, whole, PROT_READ | PROT_WRITE) != 0) return done(refused("mprotect"));
    std::memcpy(to, part.WorkingMem, part.ContentSize);
    std::memset(to + part.ContentSize, 0, part.ZeroFillSize);
    std::memset(to + filled, 0xCC, whole - filled);  // int3 where no code stands
    if (mprotect(to, whole, PROT_READ | PROT_EXEC) != 0) return done(refused("mprotect"));
    bytes = part.Offset + whole;
  }
  if (!info.Actions.empty()) return done(llvm::createStringError("a kernel wants to be called when it is loaded"));
  sizes_[info.MappingBase] = bytes;
  done(info.MappingBase);
}

void KernelPages::deinitialize(llvm::ArrayRef<ExecutorAddr> bases, OnDeinitializedFunction done) {
  for (const ExecutorAddr base : bases)
    if (const auto found = sizes_.find(base); found != sizes_.end()) {
      madvise(base.toPtr<void*>(), found->second, MADV_DONTNEED);
      sizes_.erase(found);
    }
  done(llvm::Error::success());
}

void KernelPages::release(llvm::ArrayRef<ExecutorAddr>, OnReleasedFunction done) { done(llvm::Error::success()); }

}  // namespace fastjit::backend
