#include "python/stance.h"

#include <algorithm>
#include <array>
#include <string>

#include "support/env.h"

namespace fastjit::dispatch {
namespace {

namespace py = pybind11;

const bool kDisabled = support::setting_flag(support::Setting::Disable);
constexpr std::array kNames = {"default", "eager", "error_on_compile"};  // as Stance

struct Block {
  Stance stance;
  py::object outer;  // the block around it, or None
  bool over = false;
};

// Holds the innermost block; made by the first one.
PyObject* variable = nullptr;

// The innermost block that has not ended, or None. Blocks may end in another order than they began in, and in another
// context than the tasks that were started in them run in.
py::object innermost() {
  PyObject* found;
  if (PyContextVar_Get(variable, Py_None, &found) < 0) throw py::error_already_set();
  auto block = py::reinterpret_steal<py::object>(found);
  while (!block.is_none() && block.cast<py::capsule>().get_pointer<Block>()->over)
    block = py::object(block.cast<py::capsule>().get_pointer<Block>()->outer);
  return block;
}

void set_innermost(const py::object& block) {
  Py_XDECREF(PyContextVar_Set(variable, block.ptr()));
  if (PyErr_Occurred()) throw py::error_already_set();
}

constexpr const char* kChoose = "choose 'default', 'eager' or 'error_on_compile'";

// Text as a message shows it.
std::string excerpt(const py::object& text) {
  constexpr Py_ssize_t kMost = 60;
  const std::string shown = py::repr(text[py::slice(0, kMost, 1)]);
  return PyUnicode_GET_LENGTH(text.ptr()) > kMost ? shown + "..." : shown;
}

py::capsule enter(const py::object& name) {
  if (!PyUnicode_Check(name.ptr()))
    throw py::type_error(std::string("a stance is text, not an object of type ") + Py_TYPE(name.ptr())->tp_name + "; " +
                         kChoose);
  const auto found = std::ranges::find_if(kNames, [&](const char* known) { return name.equal(py::str(known)); });
  if (found == kNames.end()) throw py::value_error("unknown stance " + excerpt(name) + "; " + kChoose);
  if (!variable) variable = PyContextVar_New("fastjit.stance", nullptr);
  if (!variable) throw py::error_already_set();
  py::capsule block(new Block{static_cast<Stance>(found - kNames.begin()), innermost()},
                    [](void* made) { delete static_cast<Block*>(made); });
  set_innermost(block);
  return block;
}

void leave(const py::capsule& block) {
  block.get_pointer<Block>()->over = true;
  set_innermost(innermost());
}

}  // namespace

Stance stance() {
  if (kDisabled) return Stance::Eager;
  if (!variable) return Stance::Default;
  const py::object block = innermost();
  return block.is_none() ? Stance::Default : block.cast<py::capsule>().get_pointer<Block>()->stance;
}

void bind_stance(py::module_& module) {
  module.def("enter_stance", &enter);
  module.def("leave_stance", &leave);
}

}  // namespace fastjit::dispatch
