#pragma once
// What a compiled kernel looks like to its caller: the binary interface between generated code and the runtime.
#include <cstdint>
#include <memory>
#include <string>

namespace fastjit::backend {

/// Arguments of one launch. Generated CPU code reads this struct at fixed offsets.
///
/// Work is a range of *units*. With rank r and K kept dims of sizes n0..n(K-1):
///   vec_dim Kept (then it is dim K-1):  outer = n0*...*n(K-2);  blocks = ceil(n(K-1) / block);
///       unit u is block u / outer of row u % outer: the kept dims before the last are decoded from u % outer, and the
///       last one runs over [b*block, min((b+1)*block, n(K-1))). Block-major order is what tiles a transposed operand.
///   tiled (then tile_dim is K-2):  n0*...*n(K-3) times ceil(n(K-2) / block) * ceil(n(K-1) / block) units, the last
///       factor counting fastest: each a square of both dims, clipped at their ends. `block` is the plan's `tile`.
///   otherwise:  unit u is one kept point, decoded from u (row-major over the kept dims); `block` is not read.
/// Where the plan has several `rows`, ceil(n / rows) takes the place of row_dim()'s size n: a unit is that many points.
/// With no kept dim there is one unit.
struct KernelArgs {
  void* const* ptrs;       // one per operand: address of its element at index 0 of every dim; of a listed operand, of a
                           // list with that address in each round
  const int64_t* sizes;    // one per dim
  const int64_t* strides;  // operand-major, [operand * rank + dim], in elements; read only for StrideClass::Any. Behind
                           // them the steps of gathered operands, one each
  const uint64_t* scalars;  // one per run-time scalar: bits of a double or an int64
  char* scratch;            // this thread's Keep slots: slot s starts at scratch + s * scratch_stride
  int64_t scratch_stride;   // bytes, a multiple of 64
  int64_t block;            // see above; a multiple of lanes unless it is the whole size
};

using KernelFn = void (*)(const KernelArgs*, int64_t begin, int64_t end);

/// A loaded kernel. Its code lives as long as the object.
class Kernel {
 public:
  virtual ~Kernel() = default;
  KernelFn entry = nullptr;  // null for GPU kernels
};

}  // namespace fastjit::backend
