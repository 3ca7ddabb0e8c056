// See beside.h.
#include "support/beside.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace fastjit::support {

void side_by_side(size_t count, size_t threads, const std::function<void(size_t)>& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next = 0;
  auto run = [&] {
    for (size_t i = next++; i < count; i = next++) try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
  };
  std::vector<std::thread> others;
  try {
    while (others.size() + 1 < std::min(threads, count)) others.emplace_back(run);
  } catch (const std::system_error&) {  // no thread to be had: those that there are will do
  }
  run();
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

size_t idle_cores(size_t most) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::clamp<size_t>(static_cast<size_t>(CPU_COUNT(&set)), 1, most);
}

}  // namespace fastjit::support
