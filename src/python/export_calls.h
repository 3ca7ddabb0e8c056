#pragma once
#include <pybind11/pybind11.h>

#include "dispatch/run/executor.h"
#include "ir/graph.h"
#include "plan/program.h"

namespace fastjit::dispatch {

/// The steps of torch's in an exported program, as what the C interface of libtorch takes. It knows tensors, numbers of
/// a fixed type, text, and lists of these, but no number that may be whole or not (Scalar), and no generator.
class ExportedCalls {
 public:
  /// `graph` is what `program` was planned from; `calls` are its templates. They stay where they are.
  ExportedCalls(const ir::Graph& graph, const plan::Program& program, const std::vector<capture::CallTemplate>& calls);

  /// A step as a row: the operator, its arguments with the slots of its tensors, its results. Throws py::value_error
  /// with the reason where it cannot be exported.
  pybind11::dict row(const plan::ExternStep& step) const;
  pybind11::dict row(const plan::ContractStep& step) const;

  /// Whether the program has steps of torch's.
  bool any() const;
  /// Per slot: the slot that is the same tensor, since an operator wrote to it and gave it back; else kNoSlot.
  const std::vector<plan::SlotId>& same() const { return same_; }
  /// The inputs that the steps write to.
  const std::vector<uint32_t>& written() const { return written_; }

 private:
  struct Call;
  pybind11::dict row(const Call& call) const;
  void add_results(const Call& call, pybind11::dict& row) const;
  void note_writes(const plan::ExternStep& step);
  uint32_t input_under(plan::SlotId slot) const;

  const ir::Graph& graph_;
  const plan::Program& program_;
  const std::vector<capture::CallTemplate>& calls_;
  std::vector<plan::SlotId> same_, viewed_;  // viewed_: per slot that a view of torch's fills, what it looks at
  std::vector<uint32_t> written_;
};

/// "aten::sort at model.py:9".
std::string named_with_line(const ir::Graph& graph, const std::string& name, ir::Op op, uint32_t attr);

}  // namespace fastjit::dispatch
