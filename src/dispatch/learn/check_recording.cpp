// FASTJIT_CHECK=record: hits are recorded again, and the two recordings compared.
#include <algorithm>
#include <sstream>

#include "dispatch/call/value_tree.h"
#include "dispatch/learn/compile.h"
#include "dispatch/learn/recording.h"

namespace fastjit::dispatch {
namespace {

// The first line in which two lists of lines differ, in words; empty if they are the same.
std::string first_difference(const std::vector<std::string>& then, const std::vector<std::string>& now) {
  for (size_t i = 0; i < std::max(then.size(), now.size()); ++i) {
    const std::string a = i < then.size() ? then[i] : "nothing", b = i < now.size() ? now[i] : "nothing";
    if (a != b) return "'" + a + "' then, '" + b + "' now";
  }
  return "";
}

// The nodes, without the places they come from: one program may be recorded from several.
std::vector<std::string> program_of(const ir::Graph& graph) {
  std::vector<std::string> lines;
  std::istringstream stream(ir::print(graph));
  for (std::string line; std::getline(stream, line);) lines.push_back(line.substr(0, line.rfind(" @ ")));
  return lines;
}

std::vector<std::string> facts_of(const Variant& variant) {
  return variant.guards.facts ? variant.guards.facts->describe() : std::vector<std::string>{};
}

std::vector<std::string> effects_of(const Variant& variant) {
  return variant.program.replay ? variant.program.replay->describe() : std::vector<std::string>{};
}

/// What passes make of the recording, as they did for the program.
ir::Graph made_anew(const Variant& known, const Recording& recording) {
  const pass::PassContext context = context_for(recording.function, device_of(known));
  const capture::Capture& captured = recording.captured_graph;
  const bool folds = !known.program.back && device_of(known).is_cpu();
  return pass::run(folds ? without_constants(captured) : captured.graph, context);
}

void count_checked(Function& function, const Variant& known) {
  ++function.stats.hits;
  function.variants.count_served(known);
}

}  // namespace

PyObject* check_recording(FunctionObject* self, const Variant& known, PyObject* const* numbers, PyObject* const* args,
                          size_t nargsf, PyObject* kwnames) {
  Function& function = *self->function;
  const std::string why = Derived::Numbers(known.program.derived, numbers, known.number_count()).why();
  if (!why.empty()) return run_eager(function, why, args, nargsf, kwnames);
  Recording recording(function, known.key.modes);
  recording.known_calls.push_back(&known.key.spec);
  if (known.guards.facts) known.guards.facts->varying(recording.varying);
  PyObject* result = observe_call(recording, args, nargsf, kwnames);
  if (!result) return nullptr;
  // Tensors that happen to be one object in this call are one input of its recording: another program, as right.
  if (recording.unsound.empty() && !known.key.spec.same_objects(recording.variant->key.spec))
    return count_checked(function, known), result;
  std::string difference = recording.unsound.empty() ? "" : "it is unsound now: " + recording.unsound;
  if (difference.empty()) difference = first_difference(facts_of(known), facts_of(*recording.variant));
  const std::vector<capture::ValueGuard>& values = recording.captured_graph.guards;
  // Where sizes depend on data, another call finds others.
  const bool has_data_sizes = std::ranges::any_of(recording.captured_graph.calls, &capture::CallTemplate::by_data);
  // A number may be ambiguous where it happens to equal another one; such a recording bakes it in and tells less.
  const bool comparable =
      known.number_count() == recording.variant->number_count() && known.guards.values.size() == values.size();
  if (difference.empty() && comparable)
    difference = first_difference(effects_of(known), effects_of(*recording.variant));
  if (difference.empty() && comparable && !same_values(known.guards.values, values))
    difference = "it read other values of tensors";
  const bool has_rounds = !known.inspection.captured.traced.empty();  // as many as its recording had
  if (difference.empty() && comparable && !has_data_sizes && !has_rounds)
    difference = first_difference(program_of(known.inspection.graph), program_of(made_anew(known, recording)));
  if (difference.empty() && comparable)
    difference = first_difference({known.program.recipe.text()}, {recording.variant->program.recipe.text()});
  if (difference.empty()) {
    count_checked(function, known);
    return result;
  }
  Py_DECREF(result);
  PyErr_Format(PyExc_AssertionError,
               "fastjit: FASTJIT_CHECK=record: the guards of %s held, but a new recording differs: %s",
               function.options.name.c_str(), difference.c_str());
  return nullptr;
}

}  // namespace fastjit::dispatch
