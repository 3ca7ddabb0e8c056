#include "capture/record/generator_calls.h"

#include <ATen/core/Generator.h>
#include <pybind11/pybind11.h>
#include <torch/library.h>

#include <mutex>

namespace fastjit::capture {
namespace {

void seed_generator(at::Generator generator, int64_t seed) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(static_cast<uint64_t>(seed));
}

at::Tensor generator_state(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

// It also tells devices that are not set up yet, in Python.
void manual_seed(int64_t seed) {
  const pybind11::gil_scoped_acquire gil;
  pybind11::module_::import("torch.random").attr("manual_seed")(seed);
}

// "Generator?" is the type that torch infers for at::Generator.
TORCH_LIBRARY(fastjit, library) {
  library.def("seed_generator(Generator? generator, int seed) -> ()", seed_generator);
  library.def("generator_state(Generator? generator) -> Tensor", generator_state);
  library.def("set_generator_state(Generator? generator, Tensor state) -> ()", set_generator_state);
  library.def("manual_seed(int seed) -> ()", manual_seed);
}

}  // namespace
}  // namespace fastjit::capture
