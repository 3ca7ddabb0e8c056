// CPU levels by feature bits. CPU names are never consulted: hypervisors and new models make them lie.
#include "backend/target.h"

#include <cpuid.h>

#include <algorithm>
#include <iterator>

#include "support/env.h"
#include "support/error.h"
#include "support/log.h"

namespace fastjit::backend {
namespace {

struct Bits {
  uint32_t ecx1 = 0, ebx7 = 0, xcr0 = 0, ext_ecx = 0;
};

// xgetbv says which registers the operating system saves; without that a feature bit means nothing.
Bits read_bits() {
  Bits bits;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return bits;
  bits.ecx1 = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) bits.ebx7 = b;
  if (__get_cpuid(0x80000001u, &a, &b, &c, &d)) bits.ext_ecx = c;
  if (bits.ecx1 & (1u << 27)) {
    uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    bits.xcr0 = low;
  }
  return bits;
}

constexpr uint32_t bit(int n) { return 1u << n; }

// One row a level: every bit named must be set.
struct Level {
  Isa isa;
  std::string_view text;
  uint32_t ecx1, ebx7, ext_ecx, xcr0;
  int lanes;
};
constexpr Level kLevels[] = {
    {Isa::Avx2, "avx2",
     bit(0) | bit(9) | bit(12) | bit(13) | bit(19) | bit(20) | bit(22) | bit(23) | bit(27) | bit(28) |
         bit(29),               // SSE3 SSSE3 FMA CX16 SSE4.1 SSE4.2 MOVBE POPCNT OSXSAVE AVX F16C
     bit(3) | bit(5) | bit(8),  // BMI1 AVX2 BMI2
     bit(0) | bit(5),           // LAHF LZCNT
     bit(1) | bit(2), 8},       // xmm, ymm
    {Isa::Avx512, "avx512",
     bit(0) | bit(9) | bit(12) | bit(13) | bit(19) | bit(20) | bit(22) | bit(23) | bit(27) | bit(28) | bit(29),
     bit(3) | bit(5) | bit(8) | bit(16) | bit(17) | bit(28) | bit(30) | bit(31),  // and F DQ CD BW VL
     bit(0) | bit(5), bit(1) | bit(2) | bit(5) | bit(6) | bit(7), 16},            // and masks, zmm0-15, zmm16-31
};
const Level& level(Isa isa) { return kLevels[static_cast<size_t>(isa)]; }

}  // namespace

std::string_view text(Isa isa) { return level(isa).text; }

std::string text(const Target& target) {
  if (target.kind == Target::Kind::Cuda) return "sm_" + std::to_string(target.sm);
  return "cpu-" + std::string(text(target.isa));
}

bool host_has(Isa isa) {
  static const Bits bits = read_bits();
  const Level& want = level(isa);
  auto all = [](uint32_t have, uint32_t need) { return (have & need) == need; };
  return all(bits.ecx1, want.ecx1) && all(bits.ebx7, want.ebx7) && all(bits.ext_ecx, want.ext_ecx) &&
         all(bits.xcr0, want.xcr0);
}

Isa host_isa() {
  if (!host_has(Isa::Avx2))
    throw support::Unable("this CPU lacks AVX2, FMA, F16C or BMI2 (x86-64-v3)",
                          "use a CPU that has them; on_unsupported='eager' silences this");
  const Isa best = host_has(Isa::Avx512) ? Isa::Avx512 : Isa::Avx2;
  const std::string wish = support::setting_word(support::Setting::Isa);
  const auto* row = std::ranges::find(kLevels, wish, &Level::text);
  if (row == std::end(kLevels) || row->isa <= best) return row == std::end(kLevels) ? best : row->isa;
  support::warn_once("FASTJIT_ISA='" + wish + "': this CPU lacks it; using " + std::string(text(best)));
  return best;
}

int lanes_for(Isa isa) { return level(isa).lanes; }

}  // namespace fastjit::backend
