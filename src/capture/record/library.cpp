#include "capture/record/library.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <string>

namespace fastjit::capture {
namespace {

constexpr std::string_view kSpace = "aten/";
constexpr uint8_t kCpu = 1, kCuda = 2;
/// Dispatch keys, and the devices whose tensors lead to a kernel registered under them. Others serve tensors that no
/// program takes; torch itself registers hundreds for Meta, and since 2.14 some for CUDA.
struct DispatchKey {
  std::string_view name;
  uint8_t devices;
};
constexpr std::array<DispatchKey, 12> kKeys{{{"CPU", kCpu},
                                             {"CUDA", kCuda},
                                             {"AutogradCPU", kCpu},
                                             {"AutogradCUDA", kCuda},
                                             {"Autograd", kCpu | kCuda},
                                             {"AutocastCPU", kCpu},
                                             {"AutocastCUDA", kCuda},
                                             {"ADInplaceOrView", kCpu | kCuda},
                                             {"BackendSelect", kCpu | kCuda},
                                             {"CompositeImplicitAutograd", kCpu | kCuda},
                                             {"CompositeExplicitAutograd", kCpu | kCuda},
                                             {"CompositeExplicitAutogradNonFunctional", kCpu | kCuda}}};

using Overridden = std::map<std::string, uint8_t, std::less<>>;  // "atan", "add.Tensor" -> devices

PyObject* registered = nullptr;
Py_ssize_t known_size = 0;
uint32_t state = 0;
Overridden overridden;

Overridden read() {
  Overridden found;
  const auto names = pybind11::reinterpret_steal<pybind11::object>(PySequence_List(registered));
  if (!names) throw std::bad_alloc();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names.ptr()); ++i) {
    PyObject* name = PyList_GET_ITEM(names.ptr(), i);
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &size) : nullptr;
    std::string_view rest = text ? std::string_view(text, static_cast<size_t>(size)) : std::string_view();
    const size_t end = rest.rfind('/');
    const auto key = std::ranges::find(kKeys, rest.substr(end + 1), &DispatchKey::name);
    if (!rest.starts_with(kSpace) || key == kKeys.end()) continue;
    found[std::string(rest.substr(kSpace.size(), end - kSpace.size()))] |= key->devices;
  }
  PyErr_Clear();
  return found;
}

}  // namespace

void register_library(PyObject* kernels) {
  registered = Py_NewRef(kernels);
  known_size = PySet_GET_SIZE(registered);
  overridden = read();
}

uint32_t library_state() noexcept {
  if (!registered || PySet_GET_SIZE(registered) == known_size) return state;
  known_size = PySet_GET_SIZE(registered);
  try {
    Overridden now = read();
    if (now != overridden) ++state;
    overridden = std::move(now);
  } catch (const std::exception&) {  // no memory: what is there is not known
    PyErr_Clear();
    ++state;
  }
  return state;
}

static uint8_t reached_by(bool on_cuda) { return on_cuda ? kCpu | kCuda : kCpu; }  // numbers are on the CPU

bool has_library_kernels(bool on_cuda) noexcept {
  return std::ranges::any_of(overridden, [&](const auto& one) { return one.second & reached_by(on_cuda); });
}

bool has_library_kernel(std::string_view operator_name, bool on_cuda) {
  constexpr std::string_view kPrefix = "aten::";
  if (overridden.empty() || !operator_name.starts_with(kPrefix)) return false;
  operator_name.remove_prefix(kPrefix.size());
  const auto found = overridden.find(operator_name);
  return found != overridden.end() && (found->second & reached_by(on_cuda));
}

}  // namespace fastjit::capture
