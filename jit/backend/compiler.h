#pragma once
// From a plan to bytes, and from bytes to something callable. The LLVM half exists only with FASTJIT_LLVM=ON.
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backend/kernel.h"
#include "backend/target.h"
#include "plan/kernel_plan.h"

namespace fastjit::backend {

/// A relocatable object (CPU) or a cubin (CUDA), and the text that it was made of, or that was asked for.
struct Compiled {
  std::string object;
  std::string source;    // CUDA C++; none on a CPU: llvm_ir() makes that text
  std::string assembly;  // only when asked for (CPU: assembly; CUDA: PTX)
  double compile_ms = 0;
};

/// Whether a symbol may be the entry of a kernel: plan::name gives such names. Takes untrusted text.
constexpr bool is_entry_name(std::string_view symbol) {
  constexpr size_t kLongest = 127;
  if (!symbol.starts_with(plan::kNamePrefix) || symbol.size() > kLongest) return false;
  for (const char c : symbol)
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_') return false;
  return true;
}

/// Compiles `plan` for a CPU level with LLVM. Equal (plan, target) give equal object bytes. Thread-safe.
/// Throws std::runtime_error with LLVM's message. Absent from builds without LLVM (see has_llvm).
Compiled compile_cpu(const plan::KernelPlan& plan, const Target& target, bool want_assembly = false);
/// The object alone, its entry under this name: kernels of one program, whose own names may be equal, go into one
/// library.
std::string compile_cpu_as(const std::string& entry, const plan::KernelPlan& plan, const Target& target);

/// The same module before optimisation, as text.
std::string llvm_ir(const plan::KernelPlan& plan, const Target& target);

/// Empty when `object` is a self-contained ELF64 x86-64 kernel that may be linked: allow-listed sections and
/// relocations, no undefined symbol, sizes within limits, the entry symbol present; else the reason. Reads untrusted
/// bytes.
std::string validate_object(std::span<const char> object);

/// Validates, links with LLVM and makes executable (never writable and executable at once). Thread-safe. Throws
/// support::Unable where LLVM cannot be used (now, or in this build), std::runtime_error for what is wrong with
/// `object`.
std::shared_ptr<const Kernel> load_cpu(std::span<const char> object);

bool has_llvm();
std::string llvm_version();  // "22.1.8", or "" without LLVM

/// Identity of this build of the engine (hash of its sources): part of every kernel key.
std::string_view engine_build_id();

}  // namespace fastjit::backend
