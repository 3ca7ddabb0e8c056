#include "capture/library.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "observe/sets.h"

namespace fastjit::capture {
namespace {

constexpr std::string_view kSpace = "aten/";
// Others serve tensors that no program takes; torch itself registers hundreds for Meta.
constexpr std::array<std::string_view, 12> kKeys{"CPU",
                                                 "CUDA",
                                                 "AutogradCPU",
                                                 "AutogradCUDA",
                                                 "Autograd",
                                                 "AutocastCPU",
                                                 "AutocastCUDA",
                                                 "ADInplaceOrView",
                                                 "BackendSelect",
                                                 "CompositeImplicitAutograd",
                                                 "CompositeExplicitAutograd",
                                                 "CompositeExplicitAutogradNonFunctional"};

PyObject* registered = nullptr;
Py_ssize_t known_size = 0;
uint32_t state = 0;
std::set<std::string, std::less<>> overridden;  // "atan", "add.Tensor"

std::set<std::string, std::less<>> read() {
  std::set<std::string, std::less<>> found;
  for (const setentry& place : observe::set_places(registered)) {
    if (!observe::holds_item(place)) continue;
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(place.key) ? PyUnicode_AsUTF8AndSize(place.key, &size) : nullptr;
    std::string_view rest = text ? std::string_view(text, static_cast<size_t>(size)) : std::string_view();
    const size_t end = rest.rfind('/');
    if (!rest.starts_with(kSpace) || std::ranges::find(kKeys, rest.substr(end + 1)) == kKeys.end()) continue;
    found.emplace(rest.substr(kSpace.size(), end - kSpace.size()));
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
    std::set<std::string, std::less<>> now = read();
    if (now != overridden) ++state;
    overridden = std::move(now);
  } catch (const std::exception&) {  // no memory: what is there is not known
    ++state;
  }
  return state;
}

bool has_library_kernel(std::string_view operator_name) {
  constexpr std::string_view kPrefix = "aten::";
  if (overridden.empty() || !operator_name.starts_with(kPrefix)) return false;
  operator_name.remove_prefix(kPrefix.size());
  return overridden.contains(operator_name);
}

}  // namespace fastjit::capture
