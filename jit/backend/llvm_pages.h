#pragma once
// The pages that kernels lie in, for ORC's slab memory manager.
#include <llvm/ADT/BitmaskEnum.h>
#include <llvm/ExecutionEngine/Orc/MemoryMapper.h>

#include <map>
#include <memory>

namespace fastjit::backend {

LLVM_ENABLE_BITMASK_ENUMS_IN_NAMESPACE();

/// Of code and constants alike, so that a kernel is one run of pages and neighbours share a mapping.
constexpr llvm::orc::MemProt kKernelMemory = llvm::orc::MemProt::Read | llvm::orc::MemProt::Exec;

/// LLVM's mapper for this process, whose slabs it takes. What it does with them differs in three ways:
/// - A kernel is put together elsewhere and copied, and its pages are writable meanwhile and executable after, never
///   both. Those of a dead kernel stay as they are until they are used again, so that a hole splits no mapping.
/// - The memory of a dead kernel goes back to the system; its addresses do not.
/// - A link that fails gives no addresses back: LLVM's mapper would unmap the slab that they begin, with its
/// neighbours. Used by one thread at a time.
class KernelPages final : public llvm::orc::InProcessMemoryMapper {
 public:
  using InProcessMemoryMapper::InProcessMemoryMapper;
  static llvm::Expected<std::unique_ptr<llvm::orc::MemoryMapper>> create();

#if LLVM_VERSION_MAJOR >= 21
  char* prepare(llvm::jitlink::LinkGraph& graph, llvm::orc::ExecutorAddr, size_t size) override;
#else
  char* prepare(llvm::orc::ExecutorAddr, size_t size) override;
#endif
  void initialize(AllocInfo& info, OnInitializedFunction done) override;
  void deinitialize(llvm::ArrayRef<llvm::orc::ExecutorAddr> bases, OnDeinitializedFunction done) override;
  void release(llvm::ArrayRef<llvm::orc::ExecutorAddr> bases, OnReleasedFunction done) override;

 private:
  std::map<llvm::orc::ExecutorAddr, size_t> sizes_;
};

}  // namespace fastjit::backend
