#include "dispatch/run/parallel.h"

#include <ATen/Parallel.h>

// at::parallel_for is a template of torch's headers: compiled without OpenMP it is a serial loop, and nothing says so.
#ifndef INTRA_OP_PARALLEL
#error "compile this file with the flags of torch's parallel backend (OpenMP)"
#endif

namespace fastjit::dispatch {

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  at::parallel_for(begin, end, grain, body);
}

}  // namespace fastjit::dispatch
