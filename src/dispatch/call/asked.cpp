#include "dispatch/call/asked.h"

#include <cstring>

#include "observe/known_functions.h"

namespace fastjit::dispatch {
namespace {

using observe::imported;
using observe::Ref;

// Modules/_randommodule.c: an int and 624 words behind the header. Whoever subclasses it adds behind that.
char* words_of(PyObject* random) { return reinterpret_cast<char*>(random) + sizeof(PyObject); }

// Whether getstate() finds there what is read there: the place in the sequence last, as it gives it.
bool has_known_layout(PyObject* random) {
  const Ref state = Ref::steal(PyObject_CallMethod(random, "getstate", nullptr));
  PyObject* words = state && PyTuple_Check(state.get()) && PyTuple_GET_SIZE(state.get()) == 3
                        ? PyTuple_GET_ITEM(state.get(), 1)
                        : nullptr;
  if (!words || !PyTuple_Check(words) || PyTuple_GET_SIZE(words) != 625) return false;
  uint32_t found[625];
  std::memcpy(found, words_of(random), sizeof found);
  for (Py_ssize_t i = 0; i < 625; ++i)
    if (PyLong_AsUnsignedLong(PyTuple_GET_ITEM(words, i)) != found[i < 624 ? i + 1 : 0]) return false;
  return true;
}

// The generator behind random.random; null where it is not as known.
PyObject* random_generator() {
  static PyObject* const one = [] {
    const Ref found = imported("random:_inst");
    PyObject* known = found && has_known_layout(found.get()) ? Py_NewRef(found.get()) : nullptr;
    PyErr_Clear();
    return known;
  }();
  return one;
}

}  // namespace

AskedState::AskedState(bool random, bool numpy) {
  if (random) {
    random_ = random_generator();
    if (random_) {
      words_ = std::make_unique<char[]>(kRandomBytes);
      std::memcpy(words_.get(), words_of(random_), kRandomBytes);
    }
    known_ = random_ != nullptr;
  }
  if (!numpy) return;
  numpy_generator_ = imported("numpy.random.mtrand:_rand");
  if (numpy_generator_)
    numpy_state_ = Ref::steal(PyObject_CallMethod(numpy_generator_.get(), "get_state", "O", Py_False));
  known_ = known_ && numpy_state_;
  PyErr_Clear();
}

void AskedState::put_back() const {
  if (random_) std::memcpy(words_of(random_), words_.get(), kRandomBytes);
  if (!numpy_state_) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (!Ref::steal(PyObject_CallMethod(numpy_generator_.get(), "set_state", "O", numpy_state_.get())))
    PyErr_WriteUnraisable(numpy_generator_.get());
  PyErr_Restore(type, value, traceback);
}

}  // namespace fastjit::dispatch
