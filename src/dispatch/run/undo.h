#pragma once
// What a program changes that its caller can see, and how to take it back: when a step raises after the first change,
// the call starts again in eager from where it began, so that eager's own error and eager's own changes result.
#include <ATen/ATen.h>
#include <ATen/core/Generator.h>

#include <exception>
#include <optional>
#include <vector>

#include "capture/calls.h"
#include "ir/graph.h"
#include "plan/program.h"

namespace fastjit::dispatch {

/// Elements of memory from a tensor's first element to its last one, both included; 0 for an empty tensor.
int64_t stretch_of(const at::Tensor& t);

/// Inputs that a program writes and random numbers that it draws, and what of that a later step may make undone.
struct Changes {
  struct Written {
    uint32_t input;
    bool kept = false;           // its contents are needed again if a step raises
    bool repeatable = false;     // written again, it is left as written once
    bool whole_storage = false;  // written through views that may reach beyond the tensor's own elements
  };
  std::vector<Written> written;           // by input
  std::vector<uint32_t> reach_beyond;     // inputs of which views are made, or copies, that may do so
  bool draws = false;                     // random numbers
  std::vector<at::Generator> generators;  // that its calls name; the device's own one comes on top
  bool undoable = false;                  // a step that may raise can follow a change: Undo is needed
  bool undoable_at_first = false;         // so can a call of torch's, which may raise at sizes that it has not met

  bool any() const { return !written.empty() || draws; }

  static Changes of(const plan::Program& program, const std::vector<capture::CallTemplate>& calls,
                    const std::vector<ir::ExternAttr>& externs);
};

/// States of the generators that a program draws from.
class Generators {
 public:
  Generators(const Changes& changes, c10::Device device);
  void put_back() const;
  bool operator==(const Generators& other) const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Contents, version counters and generators as they were when it was made.
class Undo {
 public:
  /// `all`: whatever step raises, not only those that may.
  Undo(const Changes& changes, const at::Tensor* const* inputs, c10::Device device, bool all);
  void put_back() const;

 private:
  struct Saved {
    at::Tensor memory, contents;  // contents: undefined where only the count is needed
    at::Tensor counted;           // undefined: an inference tensor, which has no count
    uint32_t version = 0;
  };
  std::vector<Saved> saved_;
  std::optional<Generators> generators_;
};

/// Memory is what may lack at every step, so that writes may have been made and cannot be taken back.
bool lacks_memory(const std::exception& error);

}  // namespace fastjit::dispatch
