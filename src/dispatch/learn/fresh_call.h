#pragma once
#include <Python.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "dispatch/call/spec.h"
#include "observe/ref.h"

namespace fastjit::dispatch {

/// A call with numbers of its arguments replaced by fresh objects of equal value, so that an address names each. What
/// lists, dictionaries and instances of the caller's hold is replaced in them, until restore().
class FreshCall {
 public:
  std::vector<PyObject*> args;  // as vectorcall takes them, borrowed; those that are new are kept by this
  std::vector<PyObject*> fresh;
  std::vector<PyObject*> originals;  // per fresh: what it stands for
  std::vector<std::string> names;    // per fresh: "a", "state['step']"
  std::vector<bool> varying;         // per fresh: see varying_numbers()

  FreshCall() = default;
  FreshCall(const FreshCall&) = delete;
  ~FreshCall() { restore(); }

  /// Fills an empty call from vectorcall's arguments, which `spec` describes. Ints that Python shares are replaced
  /// where they vary only: most are sizes and flags, and a copy may be handed out. So are numbers in containers: they
  /// are the caller's. Throws pybind11::error_already_set without memory.
  void make(PyObject* const* given, Py_ssize_t total, const CallSpec& spec, const std::vector<std::string>& arguments,
            const std::vector<bool>& varying_numbers);
  /// What has been left as make() put it becomes what it was.
  void restore() noexcept;

 private:
  struct Walk;
  /// An item of a list, or an entry of a dictionary.
  struct Place {
    observe::Ref container, key;
    Py_ssize_t index;
    observe::Ref before, now;
  };
  std::vector<Place> places_;
  std::vector<observe::Ref> made_;
};

/// Per number of the call that `now` describes: whether it had another value in a known call, or is symbolic there.
std::vector<bool> varying_numbers(const std::vector<const CallSpec*>& known, const CallSpec& now);

}  // namespace fastjit::dispatch
