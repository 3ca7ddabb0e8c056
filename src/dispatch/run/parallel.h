#pragma once
// Torch's own thread pool: torch.set_num_threads and OMP_NUM_THREADS hold, and no second pool competes for the cores.
#include <cstdint>

#include <c10/util/FunctionRef.h>

namespace fastjit::dispatch {

/// `body(from, to)` on parts of [begin, end), each of at least `grain` units. Runs in the calling thread when it is
/// already inside a parallel region. An exception of `body` is thrown here.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

}  // namespace fastjit::dispatch
