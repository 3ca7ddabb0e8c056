// LLVM on the CPU: module -> object. One context a compile; the target machines are shared under one lock.
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Triple.h>

#include <chrono>
#include <map>
#include <mutex>
#include <stdexcept>

#include "backend/compiler.h"
#include "codegen/emit_llvm.h"
#include "support/fork.h"

namespace fastjit::backend {
namespace {

// Levels are LLVM's own x86-64-v3 and v4; without -prefer-256-bit zmm registers would stay unused.
struct Machine {
  const char *cpu, *features;
};
constexpr Machine kMachines[] = {{"x86-64-v3", "+f16c,+fma"}, {"x86-64-v4", "+f16c,+fma,-prefer-256-bit"}};
constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

std::mutex& compile_lock() {
  static std::mutex* const lock = [] {
    auto* made = new std::mutex;
    support::hold_over_fork(*made);
    return made;
  }();
  return *lock;
}

llvm::TargetMachine& machine_for(Isa isa) {
  static std::map<Isa, std::unique_ptr<llvm::TargetMachine>> machines;
  auto& machine = machines[isa];
  if (machine) return *machine;
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
  std::string error;
  const llvm::Triple triple(kTriple);
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) throw std::runtime_error("LLVM: " + error);
  llvm::TargetOptions options;
  options.ExceptionModel = llvm::ExceptionHandling::None;
  const Machine& row = kMachines[static_cast<size_t>(isa)];
  machine.reset(target->createTargetMachine(triple, row.cpu, row.features, options, llvm::Reloc::PIC_,
                                            llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, true));
  if (!machine) throw std::runtime_error("LLVM: no target machine for " + std::string(row.cpu));
  return *machine;
}

std::unique_ptr<llvm::Module> make_module(llvm::LLVMContext& context, const plan::KernelPlan& plan,
                                          llvm::TargetMachine& machine, Isa isa) {
  const std::string wrong = plan::verify(plan);
  if (!wrong.empty()) throw std::runtime_error("illegal kernel plan: " + wrong);
  auto module = codegen::emit_kernel(context, plan, isa, kEntrySymbol);
  module->setTargetTriple(machine.getTargetTriple());
  module->setDataLayout(machine.createDataLayout());
  std::string error;
  llvm::raw_string_ostream stream(error);
  if (llvm::verifyModule(*module, &stream)) throw std::runtime_error("LLVM refuses the module: " + stream.str());
  return module;
}

std::string print(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

std::string generate(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type) {
  llvm::SmallString<0> bytes;
  bytes.reserve(16384);
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, type, true))
    throw std::runtime_error("LLVM cannot write this kind of file");
  passes.run(module);
  return std::string(bytes);
}

}  // namespace

Compiled compile_cpu(const plan::KernelPlan& plan, const Target& target, bool want_assembly) {
  const auto start = std::chrono::steady_clock::now();
  const std::lock_guard hold(compile_lock());
  llvm::TargetMachine& machine = machine_for(target.isa);
  Compiled out;
  {
    llvm::LLVMContext context;
    auto module = make_module(context, plan, machine, target.isa);
    out.source = print(*module);
    out.object = generate(*module, machine, llvm::CodeGenFileType::ObjectFile);
  }
  if (want_assembly) {  // code generation changes the module, so the text comes from a fresh one
    llvm::LLVMContext context;
    auto module = make_module(context, plan, machine, target.isa);
    out.assembly = generate(*module, machine, llvm::CodeGenFileType::AssemblyFile);
  }
  out.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return out;
}

std::string llvm_ir(const plan::KernelPlan& plan, const Target& target) {
  const std::lock_guard hold(compile_lock());
  llvm::LLVMContext context;
  return print(*make_module(context, plan, machine_for(target.isa), target.isa));
}

bool has_llvm() { return true; }
std::string llvm_version() { return LLVM_VERSION_STRING; }

}  // namespace fastjit::backend
