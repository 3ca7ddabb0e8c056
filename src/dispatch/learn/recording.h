#pragma once
// One watched call and what was learnt from it. Private to learn.cpp, recording.cpp, compile.cpp and
// check_recording.cpp.
#include <Python.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/capture.h"
#include "dispatch/call/function.h"
#include "observe/observe.h"

namespace fastjit::dispatch {

/// Everything one recording holds together.
struct Recording {
  Recording(Function& f, const Modes& m) : function(f), modes(m) {}
  void meet(PyObject* tensor, const char* name);  // facts lead to it
  void number_derived(observe::Derivation& how);  // tells the recorder, and puts the expression into its text
  void size_derived(const observe::Derivation& how);
  void number_computed(const observe::Derivation& how);
  void number_tested(const observe::Derivation& how);
  bool uses_generator(observe::Host::OnState what, PyObject* generator, PyObject* operand);
  bool unwatched(bool ended);  // see observe::Host::on_unwatched
  bool is_own_grad(PyObject* tensor) const;
  bool grad_set(PyObject* tensor, PyObject* value);
  std::string goes_back(PyObject* tensors);  // see observe::Host::on_backward
  std::string find_grads();                  // that the call has set; not empty: why a program cannot
  /// At its first use library code imports, registers and fills caches: the next call may be another matter.
  bool is_first_use(bool in_library) const;
  bool hand_over(const observe::Obstacle& met);  // what the rest of the call calls may be parts; see on_unsound
  Function& function;
  Modes modes;
  std::shared_ptr<Variant> variant = std::make_shared<Variant>();
  std::vector<PyObject*> captured;
  std::vector<std::string> captured_names;
  std::unordered_set<PyObject*> met;                           // what `captured` holds
  std::vector<std::pair<PyObject*, std::string>> bare_owners;  // tensors that have no gradient, with names of that
  std::unordered_map<PyObject*, PyObject*> owners;             // gradients that the call read -> whose they are
  struct Leaf {
    at::Tensor grad;  // when it was met
    std::string name;
  };
  std::unordered_map<PyObject*, Leaf> leaves_met;  // tensors that require grad, to which facts lead
  std::unordered_set<PyObject*> gone_back_to;      // of these, where backward() in the call ended
  std::vector<PyObject*> grads_set;                // of these, those that have another gradient when the call ends
  std::vector<at::Tensor> grads;                   // these, without those that have none then
  capture::Recorder* recorder = nullptr;
  c10::Device device{c10::kCPU};         // once the call has ended: that of its program
  std::function<bool()> arguments_hold;  // that what the call was given still looks as the variant's spec says
  bool at_limit = false;                 // the recording ended since too much was recorded or read
  size_t operators_before = 0;           // when what runs unwatched began
  Modes modes_before;
  std::vector<at::Tensor> kept;  // captured tensors and arguments: the call may store something else in their places
  std::vector<PyObject*> leaves;
  std::vector<at::Tensor> results;  // these
  std::vector<PyObject*> numbers;   // of the call, read out of tensors, and derived from others
  std::vector<std::string> number_names;
  std::vector<size_t> found;  // numbers that the call found where they differ from call to call
  observe::Observation observation;
  std::shared_ptr<observe::ReadSet> rehearsed;  // what Python code of the way back read; null: there is none
  capture::Capture captured_graph;
  std::shared_ptr<void> rest;  // watches it
  std::string unsound, advice;
  std::string fixes_sizes;                    // not empty: why no size that differs from call to call is any size
  std::vector<int> number_places;             // per number: among those that the variant is matched with, or -1
  std::vector<const CallSpec*> known_calls;   // numbers that differ from theirs may be read at run time
  std::vector<observe::NumberPlace> varying;  // and so may numbers that the call finds there
};

/// A host that tells the recording of tensors that facts lead to, and of those that Python makes of constants.
observe::Host host_of(Recording& recording);
/// What was observed about the call's tensors is compared at each hit from now on.
void require(CallSpec& spec, const observe::Observation& seen);

/// Runs the function under both observers and settles what may differ between calls of the variant. Null if it raised.
PyObject* observe_call(Recording& recording, PyObject* const* args, size_t nargsf, PyObject* kwnames);

/// Turns the captured graph into the variant's program. Throws what planning and code generation throw.
void compile(Recording& recording);
/// The same in the background: the variant is pending until then.
void compile_later(Recording& recording);

inline double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace fastjit::dispatch
