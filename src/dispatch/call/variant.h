#pragma once
// What a function has learned from one recorded call.
#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "dispatch/call/captured.h"
#include "dispatch/call/derived.h"
#include "dispatch/call/modes.h"
#include "dispatch/call/recipe.h"
#include "dispatch/call/replay.h"
#include "dispatch/run/backward.h"
#include "dispatch/run/executor.h"
#include "dispatch/run/sized.h"
#include "observe/observe.h"
#include "pass/pass.h"

namespace fastjit::dispatch {

/// Which calls a variant is for, by what they pass and the modes they come in.
struct VariantKey {
  CallSpec spec;
  Modes modes;
};

/// What must still be as it was when the call was recorded.
struct Guards {
  std::unique_ptr<observe::ReadSet> facts;  // null with pure=True
  CapturedTensors captured;
  std::vector<at::Tensor> held;  // captured tensors that no fact keeps: constants, and all with pure=True
  // The values it read out of tensors, in order. Of one that stays eager: those that led to it; it serves calls that
  // read the same.
  std::vector<capture::ValueGuard> values;
};

/// What a hit runs, and how its inputs and its result are made.
struct HitProgram {
  std::unique_ptr<Executable> executable;  // null: stays eager because of `reason`
  Recipe recipe;
  size_t hidden_results = 0;       // tensors behind those of the result, of which autograd takes these for views
  size_t result_values = 0;        // numbers among the program's outputs, behind the tensors
  std::unique_ptr<Replay> replay;  // null: the call has no effect on Python objects
  std::vector<capture::InputSource> inputs;
  std::vector<uint8_t> scalar_is_float;  // per graph scalar
  Derived derived;                       // numbers of the call behind those of its arguments
  std::vector<uint32_t> scalar_number;   // per graph scalar: which symbolic number of the call
  std::vector<double> scalar_limit;      // per graph scalar: finite values beyond +-limit run eagerly (eager raises)
  std::vector<std::string> scalar_name;  // per graph scalar
  bool without_grad = false;             // grad mode is off while it runs, though on for the caller
  bool in_inference_mode = false;        // inference mode is on while it runs, though off for the caller
  std::shared_ptr<WayBack> back;         // null: no result of it requires grad
  std::vector<PyObject*> gone_back_to;   // leaves that backward() in the call ends at, borrowed: facts keep them
  std::vector<PyObject*> grads_set;      // tensors whose gradients the call leaves, borrowed: facts keep them
  std::vector<bool> grads_made;          // per one of these: it is an output behind those of the result; else None
  std::unique_ptr<Sized> sized;          // null: it is for one size
  bool checks_overlap = false;           // the program writes: written inputs may not overlap others
  int device = -1;                       // the CUDA device it runs on; -1: the CPU
  uint32_t operators = 0;                // that eager dispatches in such a call
};

/// What a person may want to see of one variant. Texts are made when someone asks for them.
struct Inspection {
  ir::Graph captured;                                     // before the passes
  ir::Graph graph;                                        // after them
  std::string ir() const { return ir::print(captured); }  // without the way back
  std::vector<std::string> keys;                          // kernel keys, for `cache show`
  std::vector<std::string> fixed_sizes;                   // of capture::Capture
  double compile_ms = 0, record_ms = 0;
};

struct Pending;

/// One thing the function knows how to do (or knows that it cannot): a program, or a reason to stay eager.
struct Variant {
  VariantKey key;
  Guards guards;
  HitProgram program;
  std::string reason;                // empty: calls run the program
  std::shared_ptr<Pending> pending;  // the program is being compiled in the background; `reason` says so
  std::shared_ptr<Pending> anew;     // so is the same program for larger sizes; until then the old plan runs
  uint64_t retry_at = 0;             // calls of the function after which `reason` may have passed; 0: never
  Inspection inspection;
  std::shared_ptr<const capture::WayNumbers> way;  // null: the recorded call went no way back
  size_t found_numbers = 0;                        // Guards::facts finds so many at each hit
  uint64_t hits = 0;
  uint64_t arguments = 0;  // argument_hash() of the recorded call
  // By Variants: the call of the function that used it last, which of its recordings this is (0: none), whether it is
  // among its variants still, and bytes_of() when that was last asked.
  uint64_t used = 0, recording = 0;
  bool listed = false;
  size_t bytes = 0;

  /// Numbers of a call that the program may use: of its arguments, and behind them those that facts find. The derived
  /// ones follow.
  size_t number_count() const { return key.spec.number_count() + found_numbers; }
  /// Fills in those that facts find, after ReadSet::check(). False: a program has no room for one.
  bool find_numbers(PyObject** numbers) const noexcept {
    return found_numbers == 0 || guards.facts->numbers(numbers + key.spec.number_count());
  }
  /// Calls like it run eagerly, whatever the facts say.
  void drop_program() {
    program = {};
    guards.facts = nullptr;
    found_numbers = 0;
  }
  /// The tensor that a program input is in a call with these tensors; borrowed.
  PyObject* input(const capture::InputSource& source, PyObject* const* tensors) const noexcept {
    return source.kind == capture::InputSource::Kind::Argument ? tensors[source.index]
                                                               : guards.captured.object(source.index);
  }
  /// Where its first element is, when serves() has just said yes; null where nothing is known.
  char* first_element(const capture::InputSource& source) const {
    return source.kind == capture::InputSource::Kind::Argument ? nullptr : guards.captured.first_element(source.index);
  }
  /// Whether the call's tensors and the captured ones are on `device`, when the rest of the call matched.
  bool on_its_device(PyObject* const* tensors) const noexcept;
};

/// An estimate of the memory that goes with the variant: its key, facts, program and graphs, and constant tensors that
/// nobody else has. Kernels are left out, since programs share them and the process keeps them.
size_t bytes_of(const Variant& variant);

}  // namespace fastjit::dispatch
