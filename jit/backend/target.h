#pragma once
// What a kernel is compiled for. CPU targets are named ISA levels, never CPU names: two machines that have a level
// share its kernels.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastjit::backend {

enum class Isa : uint8_t {
  Avx2,
  Avx512
};  // Avx2: AVX2 + FMA + F16C + BMI2 (x86-64-v3); Avx512: adds F, BW, DQ, VL, CD (x86-64-v4)

struct Target {
  enum class Kind : uint8_t { Cpu, Cuda } kind = Kind::Cpu;
  Isa isa = Isa::Avx2;
  int sm = 0;  // 80, 90, 100 for Cuda
  bool operator==(const Target&) const = default;
};

std::string_view text(Isa isa);          // "avx2", "avx512"
std::string text(const Target& target);  // "cpu-avx512", "sm_90"
bool host_has(Isa isa);                  // cpuid and xgetbv
Isa host_isa();          // best level the host has; FASTJIT_ISA may lower it. Throws support::Unable below AVX2.
int lanes_for(Isa isa);  // 8 or 16: f32 lanes of a vector register

}  // namespace fastjit::backend
