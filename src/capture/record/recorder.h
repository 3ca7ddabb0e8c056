#pragma once
// What the recorder keeps while it records.
#include <Python.h>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/record/blank.h"
#include "capture/record/checkpoints.h"
#include "capture/record/frames.h"
#include "capture/record/one_thread.h"
#include "capture/record/trace.h"
#include "support/env.h"

namespace fastjit::capture {

constexpr int64_t kMaxConstant = 4096;  // elements of a tensor that a program holds a copy of

struct Recorder::Impl {
  explicit Impl(CallInputs given) : inputs(std::move(given)), lines(inputs.stand_in_file) {
    trace.max_values = inputs.max_values;
  }

  Trace trace;
  BlankMemory blank{trace};
  CallInputs inputs;
  std::vector<uint32_t> open;  // events that have started and not ended
  bool open_sizes = false;     // the last of Trace::size_uses belongs to the instruction that runs now
  bool open_index = false;     // the same of Trace::index_uses
  bool open_rounds = false;    // the same of Trace::rounds_uses
  size_t open_uses = 0;        // how many of the last scalar uses belong to the instruction that runs now
  at::CallbackHandle handle = 0;
  bool recording = false, ends_hidden = false;  // ends_hidden: it was stopped inside an opaque operator
  uint64_t foreign = 0;                         // value of foreign_events when recording began
  std::optional<OneThread> one_thread;          // on a CUDA device
  bool masked = false;                          // a tensor was indexed by another one
  CallerLines lines;                            // per Trace::lines index - 1
  const int64_t max_operators = support::setting_int(support::Setting::RecordOperators);
  const int64_t max_bytes = support::setting_int(support::Setting::RecordBytes);
  int64_t operators = 0, bytes = 0;  // outermost ones; of all events, roughly
  size_t values = 0;                 // read out of tensors, also those that are in Trace::value_scalars
  struct Stacking {
    std::vector<at::Tensor> tensors;
    size_t events, values;  // before the call that stacks them
  };
  std::optional<Stacking> stacking;
  size_t storages_before = 0;   // autograd went back
  size_t open_checkpoints = 0;  // the last of Trace::checkpoints is open: how many there are in one another
  std::shared_ptr<SavedTensors> saved = std::make_shared<SavedTensors>();
  std::vector<at::Tensor> stacked;  // that no Python code has: nothing may take their addresses
  std::string value_limit;          // why no more may be, once there are too many
  struct Known {
    c10::OperatorHandle op;
    std::string_view name;
    OpFacts facts;
  };
  std::unordered_map<const char*, Known> handles;
  std::vector<PyObject*> constants;                            // of the roots that are constants; owned
  bool hides = false;                                          // what runs inside opaque operators is not recorded
  uint32_t opaque = kNone;                                     // the open event inside which nothing is
  std::unordered_map<uint64_t, std::vector<uint32_t>> givers;  // storage and offset -> events that gave a tensor there
  uint32_t sorted = 0;                                         // of so many events
  std::set<std::pair<uint32_t, std::string_view>> sizes_read;  // what size_read() told of
  std::set<std::tuple<uint32_t, int, int64_t>> slices_taken;   // what slice_taken() told of

  // Whether Python runs the operator that starts or has ended: an autograd.Function around it is none.
  bool is_outermost() const {
    return std::ranges::none_of(open, [&](uint32_t event) { return trace.events[event].op.has_value(); });
  }

  bool in_backward() const {
    return std::ranges::any_of(open, [&](uint32_t event) { return is_backward(trace.events[event]); });
  }

  // checkpoints.cpp
  /// Not empty: why running the checkpoints so far again would give something else than they gave.
  std::string why_not_again() const;
  // differentiate.cpp
  struct Way;
  std::string differentiate(const std::vector<at::Tensor>& results, const Rehearse& rehearse);
  std::string go_back(Way way, const std::vector<at::Tensor>& results, const Rehearse& rehearse);
  void identify(Event& event, const at::RecordFunction& record);
  void meet_saved(const c10::IValue& value);
  std::optional<Use> given_like(const Use& saved);
  void as_view(Event& event, const c10::IValue& result);
  void as_buffer(Event& event, const c10::IValue& result);  // buffers.cpp
  void hide_inside(uint32_t event);
  void show();
  void start(const at::RecordFunction& event);
  void end(const at::RecordFunction& event);
  void stop() noexcept;
  void leave() noexcept;  // where it began
  void count(const Event& event);
  void count_value(const Event& event);
  std::string place_of(uint32_t line) const;
  void pass_limit(const std::string& reason);
  void contents_read(const at::Tensor& tensor);
  void size_read(const at::Tensor& tensor, std::string_view name);
  void add_size_event(const at::Tensor& tensor, uint32_t known, std::string_view name);
  void slice_taken(const at::Tensor& tensor, int dim, int64_t stop);
  Event unseen(std::string_view name);
  Event as_if_run(const char* op);
  void free_int(uint32_t scalar);
  bool follows_sizes() const { return inputs.for_any_size() || trace.follows_found; }
  void note_sizes_read(uint32_t tensor);
  bool has_free_sizes(uint32_t tensor) const;
  PythonLoop::Begin next_round() const;
  void note_constants(const Event& event);
  void note_device();
  void note_sizes(uint32_t event);
  bool as_stack(Event& event, const at::Tensor& made);
  void lift(Use& made, const at::Tensor& source);
  Use constant(const at::Tensor& source);
  CallValue item(const c10::IValue& value, bool made);
  void check_generator(const at::Generator& generator);
  ~Impl() {
    leave();
    for (PyObject* object : constants) Py_DECREF(object);
  }
};

}  // namespace fastjit::capture
