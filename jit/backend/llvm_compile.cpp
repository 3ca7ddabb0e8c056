// LLVM on the CPU: module -> object. One context a compile; target machines stand in lanes, one thread in each.
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Triple.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "backend/compiler.h"
#include "backend/llvm_guard.h"
#include "codegen/llvm/emit.h"
#include "support/fork.h"

namespace fastjit::backend {
namespace {

// Levels are LLVM's own x86-64-v3 and v4; without -prefer-256-bit zmm registers would stay unused.
struct Machine {
  const char *cpu, *features;
};
constexpr Machine kMachines[] = {{"x86-64-v3", "+f16c,+fma"}, {"x86-64-v4", "+f16c,+fma,-prefer-256-bit"}};
constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

/// What one thread at a time compiles with. Never destroyed: its machines may be half made.
struct Lane {
  std::mutex lock;
  std::map<Isa, llvm::TargetMachine*> machines;
};
constexpr size_t kLanes = 4;

struct Lanes {
  std::array<Lane, kLanes> all;
  std::mutex targets;  // LLVM's list of targets has no lock of its own; taken inside a lane

  static Lanes& get() {
    static auto* const lanes = new Lanes;
    return *lanes;
  }

 private:
  Lanes() {
    for (Lane& lane : all) support::hold_over_fork(lane.lock);
    support::hold_over_fork(targets);
  }
};

/// A free lane, or the one that other threads are least likely to wait for.
std::pair<Lane*, std::unique_lock<std::mutex>> take_lane() {
  for (Lane& lane : Lanes::get().all)
    if (std::unique_lock hold(lane.lock, std::try_to_lock); hold) return {&lane, std::move(hold)};
  static std::atomic<size_t> next = 0;
  Lane& lane = Lanes::get().all[next++ % kLanes];
  return {&lane, std::unique_lock(lane.lock)};
}

/// Passes of LLVM's code generator that kernels do without; by option, since nothing else turns them off. Loop strength
/// reduction takes 40 % of a compile and its kernels are no faster (docs/architecture.md has the figures): their loops
/// count up already, and their pointers walk.
void leave_out_passes() {
  auto& options = llvm::cl::getRegisteredOptions();
  if (const auto found = options.find("disable-lsr"); found != options.end())
    static_cast<llvm::cl::opt<bool>*>(found->second)->setValue(true);
}

const llvm::Target& x86() {
  const std::lock_guard hold(Lanes::get().targets);
  [[maybe_unused]] static const bool chosen = (leave_out_passes(), true);
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(llvm::Triple(kTriple), error);
  if (!target) throw std::runtime_error("LLVM: " + error);
  return *target;
}

llvm::TargetMachine& machine_for(Lane& lane, Isa isa) {
  auto*& machine = lane.machines[isa];
  if (machine) return *machine;
  llvm::TargetOptions options;
  options.ExceptionModel = llvm::ExceptionHandling::None;
  const Machine& row = kMachines[static_cast<size_t>(isa)];
  machine = x86().createTargetMachine(llvm::Triple(kTriple), row.cpu, row.features, options, llvm::Reloc::PIC_,
                                      llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, true);
  if (!machine) throw std::runtime_error("LLVM: no target machine for " + std::string(row.cpu));
  return *machine;
}

/// What one module is made of. Where LLVM ends early, here too, its objects are left behind: they may be half made.
struct Job {
  llvm::LLVMContext& context = *new llvm::LLVMContext;
  llvm::Module& module = *new llvm::Module("fastjit", context);
  llvm::legacy::PassManager& passes = *new llvm::legacy::PassManager;
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream{bytes};

  Job() = default;
  Job(const Job&) = delete;
  ~Job() {
    delete &passes;
    delete &module;
    delete &context;
  }
};

void fill(llvm::Module& module, const plan::KernelPlan& plan, llvm::TargetMachine& machine, Isa isa,
          const std::string& entry) {
  const std::string wrong = plan::verify(plan);
  if (!wrong.empty()) throw std::runtime_error("illegal kernel plan: " + wrong);
  codegen::emit_kernel(module, plan, isa, entry);
  module.setTargetTriple(machine.getTargetTriple());
  module.setDataLayout(machine.createDataLayout());
  std::string error;
  llvm::raw_string_ostream stream(error);
  if (llvm::verifyModule(module, &stream)) throw std::runtime_error("LLVM refuses the module: " + stream.str());
}

std::string print(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

std::string generate(Job& job, llvm::TargetMachine& machine, llvm::CodeGenFileType type) {
  job.bytes.reserve(16384);
  if (machine.addPassesToEmitFile(job.passes, job.stream, nullptr, type, true))
    throw std::runtime_error("LLVM cannot write this kind of file");
  job.passes.run(job.module);
  return std::string(job.bytes.data(), job.bytes.size());
}

/// `use` is given the module for the plan.
void with_module(const plan::KernelPlan& plan, Isa isa, const std::string& entry,
                 const std::function<void(Job&, llvm::TargetMachine&)>& use) {
  const auto [lane, hold] = take_lane();
  with_llvm(Use::Compile, [&, lane = lane] {
    llvm::TargetMachine& machine = machine_for(*lane, isa);
    Job* job = new Job;
    try {
      fill(job->module, plan, machine, isa, entry);
      use(*job, machine);
    } catch (const std::runtime_error&) {  // ours: LLVM is as it was
      delete job;
      throw;
    }
    delete job;
  });
}

}  // namespace

Compiled compile_cpu(const plan::KernelPlan& plan, const Target& target, bool want_assembly) {
  const auto start = std::chrono::steady_clock::now();
  Compiled out;
  with_module(plan, target.isa, plan::name(plan), [&](Job& job, llvm::TargetMachine& machine) {
    out.object = generate(job, machine, llvm::CodeGenFileType::ObjectFile);
  });
  if (want_assembly) {  // code generation changes the module, so the text comes from a fresh one
    with_module(plan, target.isa, plan::name(plan), [&](Job& job, llvm::TargetMachine& machine) {
      out.assembly = generate(job, machine, llvm::CodeGenFileType::AssemblyFile);
    });
  }
  out.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return out;
}

std::string compile_cpu_as(const std::string& entry, const plan::KernelPlan& plan, const Target& target) {
  std::string object;
  with_module(plan, target.isa, entry, [&](Job& job, llvm::TargetMachine& machine) {
    object = generate(job, machine, llvm::CodeGenFileType::ObjectFile);
  });
  return object;
}

std::string llvm_ir(const plan::KernelPlan& plan, const Target& target) {
  std::string text;
  with_module(plan, target.isa, plan::name(plan), [&](Job& job, llvm::TargetMachine&) { text = print(job.module); });
  return text;
}

bool has_llvm() { return true; }
std::string llvm_version() { return LLVM_VERSION_STRING; }

}  // namespace fastjit::backend
