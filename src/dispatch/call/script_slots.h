// Attributes of a TorchScript object, which live in C++ where no guard of Python's sees them change.
#pragma once
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

#include "observe/ref.h"

namespace fastjit::dispatch {

/// What a function that was converted from TorchScript reads of its module: the function finds the values as globals,
/// which are brought up to date before a call where the module's differ from them.
class ScriptSlots {
 public:
  /// One attribute of the object (`parent` < 0) or of an object that an earlier path leads to.
  struct Path {
    int parent;
    std::string name;
  };
  /// `update()` makes the globals anew; called by refresh() only. Throws where there is no such attribute.
  ScriptSlots(PyObject* script_object, std::vector<Path> paths, PyObject* update);

  /// GIL held. False with an exception set.
  bool refresh() { return is_current() || make_anew(); }
  int traverse(visitproc visit, void* arg) const;

 private:
  struct Slot {
    const c10::ivalue::Object* owner;
    size_t index;
    c10::IValue kept;  // of a tensor and of an object only its address, which the globals and the owner keep alive
    const void* address;
  };
  bool is_current() const noexcept;
  bool make_anew();
  void find_slots();

  c10::intrusive_ptr<c10::ivalue::Object> root_;
  std::vector<Path> paths_;
  std::vector<Slot> slots_;
  observe::Ref update_;
};

}  // namespace fastjit::dispatch
