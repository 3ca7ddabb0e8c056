#pragma once
// Device helpers of generated CUDA kernels, as text: a kernel's source holds those that it names. Plain C++ apart from
// the intrinsics, so that the same text also compiles on the host (tests/cuda/host_shim.h).
#include <string_view>

namespace fastjit::codegen {

struct CudaHelper {
  std::string_view name, text;
};

/// A helper uses earlier ones only.
inline constexpr CudaHelper kCudaHelpers[] = {
    {"fj_from_f16",
     R"(// IEEE half to float, exact: on a host, the exponent is moved by a multiplication, which also normalises denormals.
__device__ inline float fj_from_f16(unsigned short bits) {
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#else
  const unsigned magnitude = (unsigned)(bits & 0x7fff) << 13;
  const unsigned sign = (unsigned)(bits & 0x8000) << 16;
  const unsigned finite = __float_as_uint(__uint_as_float(magnitude) * 0x1p112f);
  return __uint_as_float(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
#endif
}
)"},
    {"fj_to_f16", R"(// Float to half, half to even.
__device__ inline unsigned short fj_to_f16(float x) {
#ifdef __CUDA_ARCH__
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#else
  const unsigned bits = __float_as_uint(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
  if (magnitude < 0x38800000u)  // below the smallest normal: the addition rounds at the right place
    return (unsigned short)(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u));
  return (unsigned short)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
#endif
}
)"},
    {"fj_from_bf16",
     R"(__device__ inline float fj_from_bf16(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
)"},
    {"fj_to_bf16", R"(// Float to bfloat16, half to even.
__device__ inline unsigned short fj_to_bf16(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned short half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#else
  const unsigned bits = __float_as_uint(x);
  return x != x ? (unsigned short)0x7fc0 : (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
)"},
    {"fj_min", R"(// The NaN if either is one.
template <class T>
__device__ inline T fj_min(T a, T b) {
  return a != a ? a : a < b ? a : b;
}
)"},
    {"fj_max", R"(// The NaN if either is one.
template <class T>
__device__ inline T fj_max(T a, T b) {
  return a != a ? a : a > b ? a : b;
}
)"},
    {"fj_fmin", R"(// The other one if one is NaN.
template <class T>
__device__ inline T fj_fmin(T a, T b) {
  return a != a ? b : b < a ? b : a;
}
)"},
    {"fj_fmax", R"(// The other one if one is NaN.
template <class T>
__device__ inline T fj_fmax(T a, T b) {
  return a != a ? b : b > a ? b : a;
}
)"},
    {"fj_signbit", R"(__device__ inline bool fj_signbit(float x) { return __float_as_int(x) < 0; }
__device__ inline bool fj_signbit(double x) { return __double_as_longlong(x) < 0; }
)"},
    {"fj_sigmoid", R"(// Neither side overflows.
__device__ inline float fj_sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
__device__ inline double fj_sigmoid(double x) {
  const double e = exp(-fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
)"},
    {"fj_fmod", R"(__device__ inline float fj_fmod(float a, float b) { return fmodf(a, b); }
__device__ inline double fj_fmod(double a, double b) { return fmod(a, b); }
)"},
    {"fj_remainder", R"(// Python's %: the sign of the divisor.
template <class T>
__device__ inline T fj_remainder(T a, T b) {
  const T mod = fj_fmod(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}
)"},
    {"fj_floor_divide", R"(// Python's // on floats, by eager's formula.
template <class T>
__device__ inline T fj_floor_divide(T a, T b) {
  if (b == 0) return a / b;
  const T mod = fj_fmod(a, b);
  T quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= (T)1;
  if (quotient == 0) return (T)copysign((T)0, a / b);
  const T whole = (T)floor(quotient);
  return quotient - whole > (T)0.5 ? whole + (T)1 : whole;
}
)"},
    {"fj_div", R"(// Rounds to zero; wraps at the lowest number divided by -1.
template <class T, class U>
__device__ inline T fj_div(T a, T b) {
  return (T)-1 < (T)0 && b == (T)-1 ? (T)((U)0 - (U)a) : (T)(a / b);
}
)"},
    {"fj_mod", R"(template <class T>
__device__ inline T fj_mod(T a, T b) {
  return (T)-1 < (T)0 && b == (T)-1 ? (T)0 : (T)(a % b);
}
)"},
    {"fj_floor_mod", R"(// Python's %: the sign of the divisor.
template <class T>
__device__ inline T fj_floor_mod(T a, T b) {
  const T mod = fj_mod<T>(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? (T)(mod + b) : mod;
}
)"},
    {"fj_floor_div", R"(// Python's //.
template <class T, class U>
__device__ inline T fj_floor_div(T a, T b) {
  const T mod = fj_mod<T>(a, b), quotient = fj_div<T, U>(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? (T)(quotient - 1) : quotient;
}
)"},
    {"fj_shl", R"(// A count outside the type gives 0.
template <class T, class U>
__device__ inline T fj_shl(T a, T count) {
  return count >= 0 && (unsigned long long)count < 8 * sizeof(T) ? (T)((U)a << count) : (T)0;
}
)"},
    {"fj_shr", R"(// A count outside the type gives the sign fill.
template <class T>
__device__ inline T fj_shr(T a, T count) {
  const bool inside = count >= 0 && (unsigned long long)count < 8 * sizeof(T);
  if (!((T)-1 < (T)0)) return inside ? (T)(a >> count) : (T)0;
  return (T)(a >> (inside ? count : (T)(8 * sizeof(T) - 1)));
}
)"},
    {"FjFour", R"(template <class T>
struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) FjFour {
  T at[4];
};
)"},
    {"fj_load4", R"(template <bool whole, class T>
__device__ inline FjFour<T> fj_load4(const T* from) {
  if (whole) return *(const FjFour<T>*)from;
  FjFour<T> four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.at[i] = from[i];
  return four;
}
)"},
    {"fj_store4", R"(template <bool whole, class T>
__device__ inline void fj_store4(T* to, const FjFour<T>& four) {
  if (whole) {
    *(FjFour<T>*)to = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = four.at[i];
}
)"},
    {"fj_sum4", R"(__device__ inline float fj_sum4(const FjFour<float>& four) {
  return (four.at[0] + four.at[1]) + (four.at[2] + four.at[3]);
}
)"},
    {"fj_divide", R"(// By the n that was given, of numbers below 2^31 (Granlund and Montgomery, PLDI 1994).
struct FjDivisor {
  unsigned magic, shift;
};
__device__ inline unsigned fj_divide(unsigned x, FjDivisor by) { return (__umulhi(x, by.magic) + x) >> by.shift; }
)"},
    {"FjSum", R"(template <class T>
struct FjSum {
  T total;
  __device__ void start() { total = 0; }
  __device__ void add(T x, long long) { total += x; }
  __device__ void merge(const FjSum& other) { total += other.total; }
  __device__ T result() const { return total; }
};
)"},
    {"FjSumIntegers", R"(// Wraps.
template <class T>
struct FjSumIntegers {
  unsigned long long total;
  __device__ void start() { total = 0; }
  __device__ void add(T x, long long) { total += (unsigned long long)x; }
  __device__ void merge(const FjSumIntegers& other) { total += other.total; }
  __device__ T result() const { return (T)total; }
};
)"},
    {"FjSumExact",
     R"(// A running sum and the error of its roundings (Knuth's two-sum). An infinite sum stands as it is.
template <class T>
struct FjSumExact {
  T total, error;
  __device__ void start() { total = error = 0; }
  __device__ void add(T x, long long) { put(x, 0); }
  __device__ void merge(const FjSumExact& other) { put(other.total, other.error); }
  __device__ void put(T x, T x_error) {
    const T sum = total + x, part = sum - total;
    error = (error + x_error) + ((total - (sum - part)) + (x - part));
    total = sum;
  }
  __device__ T result() const { return error == error ? total + error : total; }
};
)"},
    {"FjProd", R"(template <class T>
struct FjProd {
  T total;
  __device__ void start() { total = 1; }
  __device__ void add(T x, long long) { total *= x; }
  __device__ void merge(const FjProd& other) { total *= other.total; }
  __device__ T result() const { return total; }
};
)"},
    {"FjProdIntegers", R"(// Wraps.
template <class T>
struct FjProdIntegers {
  unsigned long long total;
  __device__ void start() { total = 1; }
  __device__ void add(T x, long long) { total *= (unsigned long long)x; }
  __device__ void merge(const FjProdIntegers& other) { total *= other.total; }
  __device__ T result() const { return (T)total; }
};
)"},
    {"FjMost", R"(// The greatest (Low: least) element; the NaN if there is one.
template <class T, bool Low>
struct FjMost {
  T best;
  __device__ void start(T least) { best = least; }
  __device__ void add(T x, long long) {
    if (x != x || (Low ? x < best : x > best)) best = x;
  }
  __device__ void merge(const FjMost& other) { add(other.best, 0); }
  __device__ T result() const { return best; }
};
)"},
    {"FjBest", R"(// The greatest (Low: least) element and where it stands; the first NaN, else the first hit wins.
template <class T, bool Low>
struct FjBest {
  T best;
  long long at;  // -1: nothing seen
  __device__ void start() {
    best = 0;
    at = -1;
  }
  __device__ void add(T x, long long index) {
    const bool better = (x != x && best == best) || (Low ? x < best : x > best);
    const bool equal = x == best || (x != x && best != best);
    if (at < 0 || better || (equal && index < at)) {
      best = x;
      at = index;
    }
  }
  __device__ void merge(const FjBest& other) {
    if (other.at >= 0) add(other.best, other.at);
  }
  __device__ long long index() const { return at; }
};
)"},
    {"FjAny", R"(template <class T>
struct FjAny {
  bool value;
  __device__ void start() { value = false; }
  __device__ void add(bool x, long long) { value |= x; }
  __device__ void merge(const FjAny& other) { value |= other.value; }
  __device__ bool result() const { return value; }
};
)"},
    {"FjAll", R"(template <class T>
struct FjAll {
  bool value;
  __device__ void start() { value = true; }
  __device__ void add(bool x, long long) { value &= x; }
  __device__ void merge(const FjAll& other) { value &= other.value; }
  __device__ bool result() const { return value; }
};
)"},
    {"fj_shuffle", R"(// The state of the lane whose number differs in the bits of `across`.
template <class State>
__device__ inline State fj_shuffle(const State& mine, unsigned across) {
  union {
    State state;
    unsigned words[(sizeof(State) + 3) / 4];
  } given, got;
  given.state = mine;
#pragma unroll
  for (unsigned i = 0; i < sizeof(given.words) / 4; ++i)
    got.words[i] = __shfl_xor_sync(0xffffffffu, given.words[i], across);
  return got.state;
}
)"},
    {"fj_warp_merge", R"(// Merges the states of every `lanes` neighbours, a power of two; each of them gets the result.
template <class State>
__device__ inline void fj_warp_merge(State& mine, unsigned lanes) {
  for (unsigned across = lanes / 2; across > 0; across /= 2) mine.merge(fj_shuffle(mine, across));
}
)"},
    {"fj_block_merge",
     R"(// Merges the block's states in a tree of fixed order; every thread gets the result. blockDim.x is a power of two,
// at least 32 and at most 256.
template <class State>
__device__ inline void fj_block_merge(State& mine) {
  static __shared__ State states[8];
  const unsigned warps = blockDim.x / 32;
  fj_warp_merge(mine, 32);
  if (warps == 1) return;
  if (threadIdx.x % 32 == 0) states[threadIdx.x / 32] = mine;
  __syncthreads();
  mine = states[threadIdx.x % warps];
  fj_warp_merge(mine, warps);
  __syncthreads();
}
)"},
    {"fj_scratch", R"(// Of the block: shared memory, where none was given.
extern "C" __shared__ long long fj_shared[];
__device__ inline char* fj_scratch(char* given, long long bytes) {
  return given ? given + blockIdx.x * bytes : (char*)fj_shared;
}
)"},
};

}  // namespace fastjit::codegen
