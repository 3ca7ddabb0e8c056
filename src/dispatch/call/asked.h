#pragma once
// The state of generators of random numbers that Python code draws from, kept while a hit may still start again in
// eager, which must find what the call found.
#include <Python.h>

#include <cstddef>
#include <memory>

#include "observe/observe.h"

namespace fastjit::dispatch {

class AskedState {
 public:
  /// Keeps the states of these generators. GIL held.
  AskedState(bool random, bool numpy);
  /// False: a state could not be read, and nothing may be drawn.
  bool known() const { return known_; }
  void put_back() const;

 private:
  static constexpr size_t kRandomBytes = 625 * sizeof(uint32_t);
  PyObject* random_ = nullptr;     // borrowed: its module holds it
  std::unique_ptr<char[]> words_;  // of that one
  observe::Ref numpy_generator_, numpy_state_;
  bool known_ = true;
};

}  // namespace fastjit::dispatch
