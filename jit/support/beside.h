#pragma once
// Work that may run on idle cores beside the thread that asked for it.
#include <cstddef>
#include <functional>

namespace fastjit::support {

/// Calls `work(i)` for each i below `count`, from this thread and, as long as the call lasts, from up to `threads` - 1
/// others. Returns when all are done; then throws what the first of them, by number, threw. Where no thread can be made
/// the calling one does it all.
void side_by_side(size_t count, size_t threads, const std::function<void(size_t)>& work);

/// Cores that this process may run on, at most `most`.
size_t idle_cores(size_t most);

}  // namespace fastjit::support
