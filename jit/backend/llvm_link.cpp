// Links kernels with LLVM's ORC: an execution session a process, JITLink under its object layer, memory by slabs, a
// resource tracker a kernel. Nothing of it is set up before the first kernel is linked.
#include <llvm/ExecutionEngine/JITLink/ELF_x86_64.h>
#include <llvm/ExecutionEngine/Orc/MapperJITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/ExecutionEngine/Orc/SelfExecutorProcessControl.h>

#include <mutex>
#include <stdexcept>
#include <vector>

#include "backend/compiler.h"
#include "backend/llvm_guard.h"
#include "backend/llvm_pages.h"
#include "support/fork.h"
#include "support/log.h"

namespace fastjit::backend {
namespace {

namespace orc = llvm::orc;
namespace jitlink = llvm::jitlink;

constexpr size_t kSlabBytes = size_t{2} << 20;
constexpr uint64_t kPartAlign = 64;  // of every part, whatever the object says: aligned loads must not fault
constexpr size_t kBuriedBetweenSweeps = 256;

/// The code of one kernel. `number` is its symbol's name while it lives: several kernels may have one name of their
/// own.
struct Linked {
  orc::ResourceTrackerSP tracker;
  unsigned number = 0;
  Linked* next = nullptr;  // among the dead
};

std::runtime_error failed(const std::string& why) {
  return std::runtime_error("kernel could not be linked: " + support::printable(why));
}

template <class T>
T take(llvm::Expected<T> value) {
  if (!value) throw failed(llvm::toString(value.takeError()));
  return std::move(*value);
}

/// What is linked into. Never destroyed: kernels may die after static destructors have begun. Used by one thread at a
/// time, inside with_llvm.
class Session {
 public:
  Session()
      : session_(make_control()),
        memory_(kSlabBytes, take(KernelPages::create())),
        layer_(session_, memory_),
        kernels_(session_.createBareJITDylib("kernels")) {
    session_.setErrorReporter([this](llvm::Error error) { reported_ = llvm::toString(std::move(error)); });
  }

  /// Fills `linked` and gives the entry's address.
  KernelFn link(std::span<const char> object, Linked& linked) {
    reported_.clear();
    linked.number = number();
    const orc::SymbolStringPtr name = session_.intern("k" + std::to_string(linked.number));
    auto graph = take(jitlink::createLinkGraphFromELFObject_x86_64(
        llvm::MemoryBufferRef({object.data(), object.size()}, "kernel"), session_.getSymbolStringPool()));
    prepare(*graph, name);
    linked.tracker = kernels_.createResourceTracker();
    if (llvm::Error error = layer_.add(linked.tracker, std::move(graph)))
      throw failed(llvm::toString(std::move(error)));
    auto found = session_.lookup({&kernels_}, name);
    if (!found) {
      const std::string what = llvm::toString(found.takeError());
      throw failed(reported_.empty() ? what : reported_);
    }
    return found->getAddress().toPtr<KernelFn>();
  }

  /// `linked` may be filled in part only.
  void remove(Linked& linked) {
    if (linked.tracker) llvm::consumeError(linked.tracker->remove());
    linked.tracker = nullptr;
    if (linked.number) free_numbers_.push_back(linked.number);
    linked.number = 0;
    if (++buried_ % kBuriedBetweenSweeps == 0) session_.getSymbolStringPool()->clearDeadEntries();
  }

 private:
  static std::unique_ptr<orc::ExecutorProcessControl> make_control() {
    return take(orc::SelfExecutorProcessControl::Create(nullptr, std::make_unique<orc::InPlaceTaskDispatcher>()));
  }

  unsigned number() {
    if (free_numbers_.empty()) return ++numbers_;
    const unsigned number = free_numbers_.back();
    free_numbers_.pop_back();
    return number;
  }

  static void prepare(jitlink::LinkGraph& graph, const orc::SymbolStringPtr& name) {
    for (jitlink::Section& section : graph.sections()) section.setMemProt(kKernelMemory);
    for (jitlink::Block* block : graph.blocks()) block->setAlignment(kPartAlign);
    for (jitlink::Symbol* symbol : graph.defined_symbols())
      if (symbol->getScope() != jitlink::Scope::Local) symbol->setName(name);
  }

  orc::ExecutionSession session_;
  orc::MapperJITLinkMemoryManager memory_;
  orc::ObjectLinkingLayer layer_;
  orc::JITDylib& kernels_;
  std::string reported_;
  std::vector<unsigned> free_numbers_;
  unsigned numbers_ = 0;
  size_t buried_ = 0;
};

/// The session under a lock, which fork() takes, so that a child finds ORC at rest.
class Linker {
 public:
  static Linker& instance() {
    static Linker* linker = [] {
      auto* made = new Linker;
      support::hold_over_fork(made->lock_);
      return made;
    }();
    return *linker;
  }

  Linked* link(std::span<const char> object, KernelFn& entry) {
    const std::lock_guard hold(lock_);
    Linked* linked = nullptr;
    with_llvm(Use::Link, [&] {
      bury();
      if (!session_) session_ = new Session;
      linked = new Linked;
      try {
        entry = session_->link(object, *linked);
      } catch (const std::runtime_error&) {
        session_->remove(*linked);
        delete linked;
        throw;
      }
    });
    return linked;
  }

  /// Where LLVM cannot be used now, the memory goes back with the next kernel that is linked.
  void drop(Linked* linked) noexcept {
    const std::lock_guard hold(lock_);
    linked->next = dead_;
    dead_ = linked;
    try {
      with_llvm(Use::Link, [&] { bury(); });
    } catch (const std::exception&) {  // no memory, or LLVM has ended
    }
  }

 private:
  void bury() {
    while (Linked* linked = dead_) {
      dead_ = linked->next;
      session_->remove(*linked);
      delete linked;
    }
  }

  std::mutex lock_;
  Session* session_ = nullptr;
  Linked* dead_ = nullptr;
};

class LinkedKernel final : public Kernel {
 public:
  explicit LinkedKernel(std::span<const char> object) : linked_(Linker::instance().link(object, entry)) {}
  ~LinkedKernel() override { Linker::instance().drop(linked_); }
  LinkedKernel(const LinkedKernel&) = delete;
  LinkedKernel& operator=(const LinkedKernel&) = delete;

 private:
  Linked* linked_;
};

}  // namespace

std::shared_ptr<const Kernel> load_cpu(std::span<const char> object) {
  const std::string wrong = validate_object(object);
  if (!wrong.empty()) throw std::runtime_error("kernel object refused: " + wrong);
  return std::make_shared<LinkedKernel>(object);
}

}  // namespace fastjit::backend
