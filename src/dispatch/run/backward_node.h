#pragma once
// The node in autograd's graph that a way back hangs on results. See backward.h.
#include <memory>
#include <span>

#include "dispatch/run/backward.h"

namespace fastjit::dispatch {

/// Makes the results of `backward` among `outputs` require grad. `extras`: outputs that only nodes see; `sizes`: by
/// symbol, none where the program is for one size. Where a hook takes a parameter's gradient as soon as it is there, as
/// DistributedDataParallel's do, the way back goes on in parts, and gradients arrive between them.
void hang_node(const std::shared_ptr<const Backward>& backward, Tensors& outputs, std::span<const at::Tensor> extras,
               const at::Tensor* const* inputs, std::span<const uint64_t> scalars, std::span<const int64_t> sizes);

}  // namespace fastjit::dispatch
