#ifndef FJ_ARRAY_H
#define FJ_ARRAY_H
/* Arrays as models that fastjit exported take them. */
#include <stddef.h>
#include <stdint.h>

enum {
  FJ_F32 = 1,
  FJ_F64 = 2,
  FJ_F16 = 3,  /* bits of an IEEE half */
  FJ_BF16 = 4, /* the upper half of an f32 */
  FJ_I8 = 5,
  FJ_I16 = 6,
  FJ_I32 = 7,
  FJ_I64 = 8,
  FJ_U8 = 9,
  FJ_BOOL = 10 /* a byte: 0 or 1 */
};

typedef struct {
  void* data;                 /* the element whose indices are all 0 */
  int32_t kind, rank;         /* FJ_F64, …; up to 8 dims */
  int64_t size[8], stride[8]; /* strides in elements; that of a dim of size 1 is not read */
} fj_array;

/* What a model takes as an array. */
typedef struct {
  const char* name;
  int32_t kind, rank;
  int64_t size[8], stride[8];
  int32_t written; /* an argument that a call writes to */
} fj_spec;

typedef struct {
  int32_t abi;     /* of these structs: 1 */
  const char* isa; /* "avx2" or "avx512": what the CPU must have */
  int32_t inputs, outputs;
  const fj_spec *in, *out;
} fj_info;

/* An array as the model takes it, at `data`. */
static inline fj_array fj_of(const fj_spec* spec, void* data) {
  fj_array array = {data, spec->kind, spec->rank, {0}, {0}};
  for (int d = 0; d < spec->rank; ++d) {
    array.size[d] = spec->size[d];
    array.stride[d] = spec->stride[d];
  }
  return array;
}
#endif
