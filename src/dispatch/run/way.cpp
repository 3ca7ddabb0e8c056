#include "dispatch/run/way.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>

namespace fastjit::dispatch {

Way::Way(const Backward& backward, const Numbers& numbers, const BackwardRequest& request)
    : backward_(&backward), results_(request.results), held_(backward.hold(request, numbers.sizes)) {
  if (!held_.at || !*held_.at) {
    scalars_ = numbers.scalars;
    return;
  }
  const Sized& sized = *program().sized;
  for (size_t i = 0; i < sized.scalars(); ++i)
    scalars_.push_back(sized.is_size(i) ? held_.at->scalar(i) : numbers.scalars[i]);
}

void Way::set_inputs(std::vector<at::Tensor> inputs, std::vector<bool> given_up) {
  inputs_ = std::move(inputs);
  given_up_ = std::move(given_up);
}

// `run` with places of the inputs, and of those that are given up, under the modes of a backward().
template <class Run>
void Way::run(const Run& run) {
  std::vector<const at::Tensor*> inputs;
  std::vector<at::Tensor*> given_up;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs.push_back(&inputs_[i]);
    given_up.push_back(given_up_[i] ? &inputs_[i] : nullptr);
  }
  const capture::CastMode casts = capture::CastMode::of_backward();  // as it was recorded
  std::optional<capture::CastScope> scope;
  if (casts != capture::CastMode::now()) scope.emplace(casts);
  try {
    run(inputs.data(), given_up.data());
  } catch (const Restart& restart) {
    throw std::runtime_error("fastjit: gradients of " + backward_->function + " cannot be computed: " + restart.why);
  }
}

void Way::run_all() {
  run([&](const auto* inputs, auto* given_up) {
    run_and_give_up(*program().executable, held_.plan(), inputs, given_up, scalars_.data(), made_);
  });
  is_done_ = true;
}

void Way::run_until(const std::vector<uint32_t>& parts, uint32_t part, bool is_last) {
  if (is_done_) return;
  if (at_.step == 0 && shares_across(parts)) return run_all();
  refuse_written();
  run([&](const auto* inputs, auto* given_up) {
    run_part(*program().executable, held_.plan(), inputs, given_up, scalars_.data(), next(parts, part, is_last), at_,
             made_);
  });
  versions_.clear();
  for (const at::Tensor& input : inputs_)
    versions_.push_back(input.defined() && !input.is_inference() ? input._version() : 0);
}

// The parts may be those of another program, whose gradients lie in other memory.
bool Way::shares_across(const std::vector<uint32_t>& parts) const {
  std::map<plan::SlotId, uint32_t> part_of;  // by root
  for (size_t i = 0; i < parts.size(); ++i) {
    if (program().gradients[i] < 0) continue;
    const plan::SlotId root = program().ends.outputs[static_cast<size_t>(program().gradients[i])].root;
    if (part_of.emplace(root, parts[i]).first->second != parts[i]) return true;
  }
  return false;
}

Part Way::next(const std::vector<uint32_t>& parts, uint32_t part, bool is_last) const {
  Part next;
  next.end = is_last ? Stopped::kEnd : at_.step;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int output = program().gradients[i];
    if (output < 0 || parts[i] != part) continue;
    next.end = std::max(next.end, program().source_ends[i]);
    const Ends::Output& ends = program().ends.outputs[static_cast<size_t>(output)];
    next.outputs.push_back(static_cast<uint32_t>(output));
    next.tensors.insert(next.tensors.end(), ends.tensors.begin(), ends.tensors.end());
  }
  return next;
}

// As autograd refuses it of what it has saved: whoever took gradients between two parts may have written to a tensor.
void Way::refuse_written() const {
  for (size_t i = 0; i < versions_.size(); ++i) {
    const Given& given = backward_->given[program().inputs[i]];
    const bool is_watched = !given.is_found && (given.from == Given::From::Input || given.from == Given::From::Result);
    if (!is_watched || program().ends.inputs[i] <= at_.step || inputs_[i].is_inference()) continue;
    const uint32_t now = inputs_[i]._version();
    if (now == versions_[i]) continue;
    throw std::runtime_error(
        "one of the variables needed for gradient computation has been modified by an inplace operation: [" +
        inputs_[i].toString() + " " + c10::str(inputs_[i].sizes()) + "] is at version " + std::to_string(now) +
        "; expected version " + std::to_string(versions_[i]) + " instead.");
  }
}

at::Tensor Way::gradient(size_t source) const {
  const int output = program().gradients[source];
  if (output < 0) return {};
  const plan::Program& plan = program().executable->program;
  const plan::Slot& slot = plan.slots[plan.outputs[static_cast<size_t>(output)]];
  return slot.kind == plan::SlotKind::Input ? inputs_[slot.index] : made_[static_cast<size_t>(output)];
}

void Way::let_go(const std::vector<uint32_t>& parts, uint32_t part) {
  for (size_t i = 0; i < parts.size() && !is_done_; ++i)
    if (parts[i] == part && program().gradients[i] >= 0) made_[static_cast<size_t>(program().gradients[i])].reset();
}

}  // namespace fastjit::dispatch
