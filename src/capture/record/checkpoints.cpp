// torch.utils.checkpoint, told by the read observer. Around the hooks for saved tensors that it sets stand others: they
// call these, so that the recorded call leaves what eager's does, and keep what they pack. Where autograd goes back
// while the call is recorded, it finds that, and nothing is run again.
#include "capture/record/checkpoints.h"

#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <pybind11/pybind11.h>

#include <algorithm>

#include "capture/record/effects.h"
#include "capture/record/recorder.h"

namespace fastjit::capture {
namespace {

namespace py = pybind11;

c10::SafePyObject held(py::object object) { return {object.release().ptr(), getPyInterpreter()}; }

py::object call_unseen(const py::object& function, const py::object& argument) {
  const at::DisableRecordFunctionGuard no_events;
  PyThreadState* state = PyThreadState_Get();
  PyThreadState_EnterTracing(state);
  PyObject* result = PyObject_CallOneArg(function.ptr(), argument.ptr());
  PyThreadState_LeaveTracing(state);
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

py::object pack_hook(std::shared_ptr<SavedTensors> saved, py::object hook) {
  return py::cpp_function([saved, hook](const py::object& tensor) {
    py::object packed = call_unseen(hook, tensor);
    if (saved->is_open) saved->tensors.push_back(THPVariable_Unpack(tensor.ptr()));
    return py::make_tuple(std::move(packed), saved->tensors.size());
  });
}

py::object unpack_hook(std::shared_ptr<SavedTensors> saved, py::object hook) {
  return py::cpp_function([saved, hook](const py::tuple& packed) {
    const auto count = packed[1].cast<size_t>();
    if (!saved->is_open || !count) return hook(packed[0]);
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(saved->tensors[count - 1]));
  });
}

int64_t next_node() { return static_cast<int64_t>(at::sequence_number::peek()); }

/// Memory that is not a checkpoint's own.
class Before {
 public:
  explicit Before(const Trace& trace) {
    for (const Source& root : trace.roots) roots_.insert(root.before.storage);
  }
  bool has(uint32_t storage, const Checkpoint& checkpoint) const {
    return storage < checkpoint.storages || roots_.contains(storage);
  }

 private:
  std::unordered_set<uint32_t> roots_;  // storages: some are met only when a checkpoint reads them
};

template <class Visit>
void for_each_written(const Event& event, Visit visit) {
  if (!event.op) return;
  for (const size_t argument : written_arguments(event))
    for (const Use& use : event.args[argument].uses)
      if (use.storage != kNone) visit(use.storage);
}

}  // namespace

CheckpointEvents::CheckpointEvents(const Trace& trace) {
  if (trace.checkpoints.empty()) return;
  const auto went_back = [&](const Event& event) {  // autograd numbers its nodes as they are made
    for (uint32_t i = 0; i < trace.checkpoints.size(); ++i)
      if (event.node >= trace.checkpoints[i].first_node && event.node < trace.checkpoints[i].last_node) return i + 1;
    return 0u;
  };
  made_in_.resize(trace.events.size());
  back_of_.resize(trace.events.size());
  for (uint32_t i = 0; i < trace.checkpoints.size(); ++i)
    std::fill(made_in_.begin() + trace.checkpoints[i].begin, made_in_.begin() + trace.checkpoints[i].end, i + 1);
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (event.parent != kNone) back_of_[i] = back_of_[event.parent];
    if (is_backward(event)) back_of_[i] = went_back(event);
  }
}

std::string Recorder::Impl::why_not_again() const {
  if (trace.checkpoints.empty()) return "";
  if (trace.makes_data_sizes) return "sizes depend on data in a call that goes through torch.utils.checkpoint";
  const Before before(trace);
  std::unordered_set<uint32_t> read;  // storages
  uint32_t now = 0;                   // the checkpoint that the event is in
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    while (now < trace.checkpoints.size() && i >= trace.checkpoints[now].end) ++now;
    const Event& event = trace.events[i];
    if (now < trace.checkpoints.size() && i >= trace.checkpoints[now].begin)
      for (const CallValue& item : event.args)
        for (const Use& use : item.uses)
          if (use.storage != kNone && before.has(use.storage, trace.checkpoints[now])) read.insert(use.storage);
    bool is_written = false;
    for_each_written(event, [&](uint32_t storage) { is_written |= read.contains(storage); });
    if (is_written)
      return std::string(event.name) + " at " + place_of(event.line) +
             " writes to what torch.utils.checkpoint reads again";
  }
  return "";
}

std::string Recorder::why_not_back() const { return impl_->why_not_again(); }

void Recorder::checkpoint_begun(bool draws_others) {
  Trace& trace = impl_->trace;
  auto [pack, unpack] = at::SavedTensorDefaultHooks::pop_hooks();
  const auto hook = [](const c10::SafePyObject& object) {
    return py::reinterpret_borrow<py::object>(object.ptr(getPyInterpreter()));
  };
  at::SavedTensorDefaultHooks::push_hooks(held(pack_hook(impl_->saved, hook(pack))),
                                          held(unpack_hook(impl_->saved, hook(unpack))));
  if (impl_->open_checkpoints++) return static_cast<void>(trace.checkpoints.back().draws_others |= draws_others);
  const auto event = static_cast<uint32_t>(trace.events.size());
  const auto storages = static_cast<uint32_t>(trace.storages.size());
  trace.checkpoints.push_back({event, event, next_node(), next_node(), storages, draws_others});
}

void Recorder::checkpoint_saves(const at::Tensor& tensor) {
  if (!impl_->open_checkpoints) impl_->trace.checkpoint_saved.insert(impl_->trace.use(tensor).storage);
}

std::string Recorder::checkpoint_ended() {
  if (--impl_->open_checkpoints) return "";
  const Trace& trace = impl_->trace;
  Checkpoint& last = impl_->trace.checkpoints.back();
  last.end = static_cast<uint32_t>(trace.events.size());
  last.last_node = next_node();
  const Before before(trace);
  for (uint32_t i = last.begin; i < last.end; ++i) {
    const Event& event = trace.events[i];
    if (event.facts.is(OpFlag::Draws) && last.draws_others)
      return std::string(event.name) + " draws random numbers in torch.utils.checkpoint(preserve_rng_state=False)";
    bool is_twice = false;
    for_each_written(event, [&](uint32_t storage) { is_twice |= before.has(storage, last); });
    if (is_twice) return std::string(event.name) + " in torch.utils.checkpoint writes to what was there before, twice,";
  }
  return "";
}

}  // namespace fastjit::capture
