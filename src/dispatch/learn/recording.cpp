#include "dispatch/learn/recording.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "capture/record/running.h"
#include "dispatch/call/this_thread.h"
#include "dispatch/learn/asked.h"
#include "dispatch/learn/compile.h"
#include "dispatch/learn/free_sizes.h"
#include "dispatch/learn/fresh_call.h"
#include "dispatch/learn/generator.h"
#include "dispatch/learn/messages.h"
#include "dispatch/learn/refuse.h"
#include "dispatch/learn/rehearsal.h"
#include "dispatch/learn/stand_in.h"
#include "dispatch/learn/torch_objects.h"
#include "observe/judge/doors.h"
#include "support/env.h"

namespace fastjit::dispatch {
namespace {

void on_tensor(void* context, PyObject* tensor, const char* name) {
  static_cast<Recording*>(context)->meet(tensor, name);
}

PyObject* on_grad(void* context, PyObject* tensor, const char* name) {
  auto* recording = static_cast<Recording*>(context);
  if (!unpack(tensor).is_leaf()) return nullptr;  // torch warns of it
  PyObject* grad = gradient_of(tensor);
  if (grad == Py_None) {
    recording->bare_owners.emplace_back(tensor, name);
    return grad;
  }
  if (recording->owners.contains(grad)) return recording->owners[grad] == tensor ? grad : nullptr;
  if (!is_plain_tensor(grad) || recording->recorder->knows(unpack(grad))) return nullptr;
  recording->owners.emplace(grad, tensor);
  on_tensor(context, grad, name);
  return grad;
}

// Numbers read out of tensors or that follow from sizes, from `first` on, that the result holds. One that something
// else refers to as well is no longer symbolic.
std::vector<uint32_t> result_values(Recording& recording, size_t first, const Stored& stored) {
  std::vector<uint32_t> out;
  std::unordered_map<const PyObject*, Py_ssize_t> stores;
  for (const auto& value : stored.values) ++stores[value];
  std::unordered_map<uint32_t, Py_ssize_t> leaves;
  for (uint32_t number : recording.variant->program.recipe.numbers()) ++leaves[number];
  const auto times = [](const auto& counts, const auto& key) {
    const auto it = counts.find(key);
    return it == counts.end() ? Py_ssize_t{0} : it->second;
  };
  for (auto number = static_cast<uint32_t>(first); number < recording.numbers.size(); ++number) {
    const Py_ssize_t held = times(stores, recording.numbers[number]), inside = times(leaves, number);
    if (inside > 0) out.push_back(number);
    if (recording.observation.references[number] != inside + held) recording.observation.symbolic[number] = false;
  }
  return out;
}

// Objects that facts and the call's key hold: each call that the variant serves finds the same ones.
std::unordered_set<PyObject*> kept_objects(const Recording& recording) {
  std::unordered_set<PyObject*> kept;
  const auto add = [](PyObject* held, void* all) {
    PyObject* object = PyWeakref_CheckRefExact(held) ? PyWeakref_GET_OBJECT(held) : held;
    if (object != Py_None) static_cast<std::unordered_set<PyObject*>*>(all)->insert(object);
    return 0;
  };
  if (recording.observation.facts) recording.observation.facts->traverse(add, &kept);
  for (const ArgSpec& spec : recording.variant->key.spec.specs())
    if (spec.kind == ArgKind::Object) kept.insert(referent(spec));
  for (PyObject* instance : recording.variant->key.spec.flat().instances) kept.erase(instance);
  return kept;
}

// Alike but for their values.
bool is_like(const at::Tensor& a, const at::Tensor& b) {
  const bool lies_alike =
      a.layout() == at::kStrided && b.layout() == at::kStrided && a.sizes() == b.sizes() && a.strides() == b.strides();
  return lies_alike && a.dtype() == b.dtype() && a.key_set() == b.key_set() && a.requires_grad() == b.requires_grad() &&
         a.is_leaf() == b.is_leaf() && a.is_view() == b.is_view();
}

// What is called so that the observer sees the call begin: the function itself, or one that calls it.
struct Entry {
  PyObject* callable;
  std::vector<PyObject*> args;  // those of keywords behind the others
  std::string refused;          // not empty: why it is not watched
};

Entry entry_of(const Function& function, const FreshCall& call, Py_ssize_t nargs, PyObject* kwnames,
               observe::Observer* observer) {
  Entry entry{function.callable, call.args, ""};
  if (!observer || begins_in_python(function.callable)) return entry;
  entry.refused = observer->refuses(function.callable);
  PyObject* instead = entry.refused.empty() ? stand_in(nargs, kwnames) : nullptr;
  if (!instead && entry.refused.empty()) entry.refused = "a keyword of the call is no plain identifier";
  if (!instead) return entry;
  entry.callable = instead;
  entry.args.insert(entry.args.begin(), function.callable);
  return entry;
}

capture::CallInputs inputs_of(Recording& recording, const FreshCall& call, const std::vector<std::string>& names) {
  const bool pure = recording.function.options.pure;
  capture::CallInputs inputs;
  for (PyObject* tensor : recording.variant->key.spec.flat().tensors) inputs.tensors.push_back(unpack(tensor));
  inputs.free_sizes = free_sizes(recording, names);
  for (const auto& known : recording.function.variants.all())
    if (known->way && known->key.spec.same_but_sizes(recording.variant->key.spec, true))
      inputs.ways.push_back(known->way);
  for (size_t i = 0; i < call.fresh.size(); ++i) inputs.scalars.emplace_back(call.fresh[i], call.names[i]);
  inputs.varying = call.varying;
  inputs.free_ints = free_ints(recording, call);
  for (PyObject* argument : call.args)
    if (is_generator(argument)) inputs.generators.push_back(reinterpret_cast<THPGenerator*>(argument)->cdata);
  inputs.tensor_names = tensor_names(recording.variant->key.spec, names);
  inputs.stand_in_file = observe::kStandInFile;
  inputs.adopt_unknown = pure;
  inputs.finds_sizes = !pure && std::ranges::none_of(recording.function.variants.all(), [](const auto& variant) {
    return variant->program.sized && variant->program.sized->has_late() && variant->program.sized->failed();
  });
  constexpr uint32_t kMostRefused = 3;  // each costs a plan, and building the graph again
  if (recording.function.refused_loops < kMostRefused)
    inputs.takes_any_trip = [&function = recording.function](const capture::Capture& captured) {
      const bool takes = takes_any_trip(function, captured);
      function.refused_loops += !takes;
      return takes;
    };
  inputs.max_values = recording.function.is_part ? capture::kFewValues : recording.function.max_values;
  inputs.constants_are_facts = !pure;  // the observer judges what torch.tensor() is given
  return inputs;
}

std::unique_ptr<observe::Observer> make_observer(Recording& recording, const FreshCall& call) {
  observe::Host host = host_of(recording);
  host.on_grad = on_grad;
  host.is_own_grad = [](void* context, PyObject* tensor) {
    return static_cast<Recording*>(context)->is_own_grad(tensor);
  };
  host.on_grad_set = [](void* context, PyObject* tensor, PyObject* value) {
    return static_cast<Recording*>(context)->grad_set(tensor, value);
  };
  host.on_backward = [](void* context, PyObject* tensors) {
    return static_cast<Recording*>(context)->goes_back(tensors);
  };
  host.on_scalar_use = [](void* context, size_t scalar, bool alone, bool forwards, int element) {
    static_cast<Recording*>(context)->recorder->scalar_used(scalar, alone, forwards, element);
  };
  host.on_scalar_use_end = [](void* context, bool entered) {
    static_cast<Recording*>(context)->recorder->scalar_use_ended(entered);
  };
  host.on_number = [](void* context, PyObject* number) {
    return static_cast<Recording*>(context)->recorder->number_read(number);
  };
  host.on_derived = [](void* context, observe::Derivation& how) {
    static_cast<Recording*>(context)->number_derived(how);
  };
  host.on_found_number = [](void* context, PyObject* number, const char* name) {
    auto* recording = static_cast<Recording*>(context);
    const bool is_free = may_be_free(*recording, number, name);
    recording->found.push_back(recording->recorder->numbers().size());
    recording->recorder->number_given(number, name, is_free);
    return is_free;
  };
  host.on_contents_read = [](void* context, PyObject* tensor) {
    static_cast<Recording*>(context)->recorder->contents_read(unpack(tensor));
  };
  host.on_data = [](void* context, PyObject* tensor, PyObject* data) {
    return is_plain_tensor(data) && static_cast<Recording*>(context)->recorder->data_read(unpack(tensor), unpack(data));
  };
  host.on_gradients = [](void* context) { return static_cast<Recording*>(context)->recorder->why_not_back(); };
  host.on_checkpoint = [](void* context, bool draws_others) {
    static_cast<Recording*>(context)->recorder->checkpoint_begun(draws_others);
  };
  host.on_checkpoint_end = [](void* context) { return static_cast<Recording*>(context)->recorder->checkpoint_ended(); };
  host.on_checkpoint_saves = [](void* context, PyObject* tensor) {
    static_cast<Recording*>(context)->recorder->checkpoint_saves(unpack(tensor));
  };
  host.on_leaf = [](void* context, PyObject* tensor) {
    return static_cast<Recording*>(context)->recorder->leaf_made(unpack(tensor));
  };
  host.is_own_data = [](void* context, PyObject* tensor, PyObject* data) {
    return is_plain_tensor(data) &&
           static_cast<Recording*>(context)->recorder->is_own_data(unpack(tensor), unpack(data));
  };
  host.on_generator = [](void* context, observe::Host::OnState what, PyObject* generator, PyObject* operand) {
    return static_cast<Recording*>(context)->uses_generator(what, generator, operand);
  };
  host.on_array_read = [](void* context) { static_cast<Recording*>(context)->recorder->array_read(); };
  host.on_array = [](void* context, PyObject* tensor, const void* data, bool is_new) {
    if (unpack(tensor).const_data_ptr() == data)
      static_cast<Recording*>(context)->recorder->array_shared(unpack(tensor), is_new);
  };
  host.on_stack = [](void* context, PyObject* tensors) {
    std::vector<at::Tensor> stacked;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(tensors); ++i)
      stacked.push_back(unpack(PySequence_Fast_ITEMS(tensors)[i]));
    static_cast<Recording*>(context)->recorder->stacking(std::move(stacked));
  };
  host.is_made = [](void* context, PyObject* tensor) {
    return is_plain_tensor(tensor) && static_cast<Recording*>(context)->recorder->made(unpack(tensor));
  };
  host.counts_own_writes = [](void* context, PyObject* tensor) {
    return is_plain_tensor(tensor) && static_cast<Recording*>(context)->recorder->counts_own_writes(unpack(tensor));
  };
  host.on_size_read = [](void* context, PyObject* tensor, int dim) {
    static_cast<Recording*>(context)->recorder->size_read(unpack(tensor), dim);
  };
  host.same_sizes = [](void* context, PyObject* a, PyObject* b) {
    return static_cast<Recording*>(context)->recorder->same_sizes(unpack(a), unpack(b));
  };
  host.on_slice = [](void* context, PyObject* tensor, int dim, int64_t stop) {
    static_cast<Recording*>(context)->recorder->slice_taken(unpack(tensor), dim, stop);
  };
  host.on_contiguous = [](void* context, PyObject* tensor, PyObject* format) {
    const bool is_format = format && THPMemoryFormat_Check(format);
    static_cast<Recording*>(context)->recorder->contiguous_asked(
        unpack(tensor),
        is_format ? reinterpret_cast<THPMemoryFormat*>(format)->memory_format : at::MemoryFormat::Contiguous);
  };
  host.on_sizes = [](void* context, PyObject* tensor) {
    return static_cast<Recording*>(context)->recorder->sized_tensor(unpack(tensor));
  };
  host.on_found_sizes = [](void* context, PyObject* tensor, int dim) {
    return static_cast<Recording*>(context)->recorder->found_tensor(unpack(tensor), dim);
  };
  host.on_size = [](void* context, int64_t tensor, int dim, PyObject* number) {
    static_cast<Recording*>(context)->recorder->size_given(tensor, dim, number);
  };
  host.on_sizes_used = [](void* context, const std::vector<observe::SizeOperand>& ints) {
    static_cast<Recording*>(context)->recorder->sizes_used(ints);
  };
  host.on_index = [](void* context, PyObject* tensor, const std::vector<observe::IndexItem>& items) {
    return static_cast<Recording*>(context)->recorder->indexed(unpack(tensor), items);
  };
  host.on_loop = [](void* context, const observe::LoopRange& range) {
    return static_cast<Recording*>(context)->recorder->loop_begun(range);
  };
  host.on_parts = [](void* context, PyObject* parts) {
    const capture::PartsGiven given = static_cast<Recording*>(context)->recorder->parts_given(parts);
    return observe::Host::Parts{given.event, given.tensor, given.dim};
  };
  host.on_walk = [](void* context, int64_t loop, int64_t event) {
    static_cast<Recording*>(context)->recorder->walk_begun(loop, event);
  };
  host.on_round = [](void* context, int64_t loop, PyObject* index) {
    static_cast<Recording*>(context)->recorder->round_begun(loop, index);
  };
  host.on_loop_end = [](void* context, int64_t loop, int64_t alike_from, bool last_differs) {
    static_cast<Recording*>(context)->recorder->loop_ended(loop, alike_from, last_differs);
  };
  host.is_next = [](void* context, PyObject* a, PyObject* b) {
    return static_cast<Recording*>(context)->recorder->is_of_round(unpack(b)) && is_like(unpack(a), unpack(b));
  };
  host.on_rounds_used = [](void* context, int64_t loop, size_t before, PyObject* list, bool reversed) {
    const auto count = static_cast<size_t>(PyList_GET_SIZE(list));
    static_cast<Recording*>(context)->recorder->rounds_used(loop, before, count, reversed);
  };
  host.on_walk_list = [](void* context, int64_t loop, PyObject* list) {
    std::vector<at::Tensor> items;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) items.push_back(unpack(PyList_GET_ITEM(list, i)));
    static_cast<Recording*>(context)->recorder->list_walked(loop, items);
  };
  host.on_unwatched = [](void* context, bool ended) { return static_cast<Recording*>(context)->unwatched(ended); };
  host.values_read = [](void* context) { return static_cast<Recording*>(context)->recorder->values_read(); };
  host.on_unsound = [](void* context, const observe::Obstacle& met) {
    return static_cast<Recording*>(context)->hand_over(met);
  };
  host.on_limit = [](void* context, const std::string& reason) {
    auto* recording = static_cast<Recording*>(context);
    recording->at_limit = true;
    recording->recorder->give_up(reason);
  };
  host.max_instructions = static_cast<uint64_t>(support::setting_int(support::Setting::RecordInstructions));
  host.filled_before = recording.function.state;
  auto observer = observe::make_observer(host);
  for (size_t i = 0; i < call.fresh.size(); ++i)
    observer->watch_scalar(call.fresh[i], call.originals[i], recording.recorder->is_size_number(i));
  observer->vary(std::move(recording.varying));
  for (PyObject* instance : recording.variant->key.spec.flat().instances) observer->describe(instance);
  for (PyObject* argument : call.args) observer->pass(argument);
  return observer;
}

// Runs the function under both observers. Null if it raised.
PyObject* watched_call(Recording& recording, FreshCall& call, size_t nargsf, PyObject* kwnames,
                       const std::vector<std::string>& names) {
  Function& function = recording.function;
  if (!prepare_recording()) return nullptr;
  const RecordingFlag flag;
  std::unique_ptr<observe::Observer> observer;
  capture::CallInputs inputs = inputs_of(recording, call, names);
  inputs.on_limit = [&recording, &observer](const std::string& reason) {
    if (recording.unsound.empty()) recording.unsound = reason;
    recording.at_limit = true;
    if (observer) observer->give_up(reason);
  };
  capture::Recorder recorder(std::move(inputs));
  recording.recorder = &recorder;
  recording.arguments_hold = [&] {
    const CallSpec& spec = recording.variant->key.spec;
    std::vector<PyObject*> tensors(spec.object_count()), numbers(spec.number_count());
    return spec.match(call.args.data(), PyVectorcall_NARGS(nargsf), kwnames, tensors.data(), numbers.data());
  };
  if (!function.options.pure) observer = make_observer(recording, call);
  const Entry entry = entry_of(function, call, PyVectorcall_NARGS(nargsf), kwnames, observer.get());
  recording.unsound = entry.refused;
  if (observer && entry.refused.empty() && !observer->start(entry.callable)) recording.unsound = "tracer active";
  std::optional<observe::DoorWatch> doors;
  if (!observer) doors.emplace(&capture::runs_operator);
  PyObject* result = PyObject_Vectorcall(entry.callable, entry.args.data(),
                                         entry.args.size() - (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), kwnames);
  call.restore();
  recording.rest = nullptr;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);  // stop() looks at objects, which clears what the call raised
  if (observer) recording.observation = observer->stop();
  if (doors) recording.observation.unsound = doors->found();
  doors.reset();
  PyErr_Restore(type, value, traceback);
  if (!result) return nullptr;
  std::string why;
  CallSpec& spec = recording.variant->key.spec;
  const auto argument = [&](PyObject* object) { return spec.make_target(object); };
  for (const observe::SideEffect& effect : recording.observation.effects)
    if (effect.of_argument && argument(effect.target.get()) < 0 && recording.unsound.empty())
      recording.unsound = "store to " + effect.label + " at " + effect.where + ", which is an argument in two places";
  const Stored stored = stored_values(recording.observation.effects);
  recording.numbers = recorder.numbers();
  for (size_t i = 0; i < recording.numbers.size(); ++i) recording.number_names.push_back(recorder.number_name(i));
  if (!recording.variant->program.recipe.build(result, recording.numbers, recording.leaves, why, stored,
                                               recording.observation, kept_objects(recording), argument) &&
      recording.unsound.empty())
    recording.unsound = why;
  for (PyObject* leaf : recording.leaves) recording.results.push_back(unpack(leaf));
  std::vector<bool>& symbolic = recording.observation.symbolic;
  symbolic.resize(std::max(symbolic.size(), call.fresh.size()), false);
  require(spec, recording.observation);
  if (recording.unsound.empty() && recording.observation.unsound.empty()) {
    const std::vector<at::Tensor> bases = recorder.bases_of(recording.results);
    recording.results.insert(recording.results.end(), bases.begin(), bases.end());
    recording.variant->program.hidden_results = bases.size();
    recorder.differentiate(recording.results,
                           [&](const auto& contexts, const auto& go) { return rehearse(recording, contexts, go); });
    recording.unsound = recording.find_grads();
    recorder.leaves_gradients(recording.grads);
  }
  std::vector<at::Tensor> outputs = recording.results;
  outputs.insert(outputs.end(), recording.grads.begin(), recording.grads.end());
  const std::vector<uint32_t> values = result_values(recording, call.fresh.size(), stored);
  recording.captured_graph =
      recorder.finish(outputs, values, recording.observation.symbolic, function.options.numerics);
  recording.device = recorder.device();
  if (recording.unsound.empty()) recording.unsound = refuse_device("a tensor is", recording.device, recording.advice);
  if (recording.unsound.empty() && recording.device.is_cuda() && recording.captured_graph.graph.symbols)
    recording.unsound = kOnDevice;
  if (recording.unsound.empty()) recording.unsound = recording.observation.unsound;
  if (recording.unsound.empty()) recording.unsound = recording.captured_graph.unsound;
  return result;
}

// Numbers that the call found and that the program holds as constants are facts by value.
void fix_numbers(Recording& recording) {
  observe::Observation& seen = recording.observation;
  if (!seen.facts) return;
  for (size_t i = seen.found_numbers.size(); i-- > 0;)  // from the last: the places of the others stay
    if (!recording.captured_graph.bound_scalars[seen.found_numbers[i]])
      if (std::string state = seen.facts->fix_number(i); seen.state.empty() && !state.empty()) {
        seen.state = std::move(state);
        seen.state_is_constant = true;
      }
}

// Ints that differ from call to call and that the program holds as constants: sizes or indices may follow from them.
void note_fixed_ints(Recording& recording, const FreshCall& call) {
  const auto note = [&](size_t number) {
    if (!recording.captured_graph.bound_scalars[number] && PyLong_CheckExact(recording.numbers[number]))
      recording.function.fixed_ints.insert(recording.number_names[number]);
  };
  for (size_t fresh = 0; fresh < call.fresh.size(); ++fresh)
    if (call.varying[fresh]) note(fresh);
  std::ranges::for_each(recording.found, note);
}

// Numbers of which the variant takes any value: the program reads them at run time, or nothing reads them.
void settle_scalars(Recording& recording, const FreshCall& call, const Schedule& schedule) {
  Variant& variant = *recording.variant;
  const capture::Capture& captured = recording.captured_graph;
  std::vector<int> place(recording.numbers.size(), -1), value = place, size = place;
  const std::vector<PyObject*> flat = variant.key.spec.flat().numbers;
  std::vector<std::pair<size_t, size_t>> symbolic;  // (number among the flattened arguments, fresh index)
  for (uint32_t fresh = 0; fresh < call.fresh.size(); ++fresh)
    if (captured.bound_scalars[fresh])
      symbolic.emplace_back(std::find(flat.begin(), flat.end(), call.fresh[fresh]) - flat.begin(), fresh);
  std::sort(symbolic.begin(), symbolic.end());
  for (size_t i = 0; i < symbolic.size(); ++i) place[symbolic[i].second] = static_cast<int>(i);
  auto next = static_cast<int>(symbolic.size());
  for (const size_t found : recording.observation.found_numbers)
    if (captured.bound_scalars[found]) place[found] = next++, ++variant.found_numbers;
  recording.number_places = place;
  for (size_t i = 0; i < schedule.uses.size(); ++i) {
    if (!schedule.uses[i]) continue;
    observe::Derivation& how = recording.observation.derivations[i];
    if (how.scalar != observe::Derivation::kUnwatched) place[how.scalar] = next;
    ++next;
    variant.program.derived.add(std::move(how), place, *schedule.uses[i]);
  }
  for (uint32_t number : captured.scalar_args) {
    if (number == capture::Capture::kSize) {
      variant.program.scalar_number.push_back(number);
      variant.program.scalar_is_float.push_back(false);
      variant.program.scalar_name.emplace_back();
      continue;
    }
    variant.program.scalar_number.push_back(static_cast<uint32_t>(place[number]));
    variant.program.scalar_is_float.push_back(PyFloat_CheckExact(recording.numbers[number]));
    variant.program.scalar_name.push_back(recording.number_names[number]);
  }
  variant.program.scalar_limit = captured.scalar_limits;
  for (uint32_t number : captured.result_values) value[number] = static_cast<int>(variant.program.result_values++);
  for (const auto& [number, scalar] : captured.result_sizes) size[number] = static_cast<int>(scalar);
  variant.program.recipe.renumber({place, value, size}, recording.numbers);
  for (auto [number, fresh] : symbolic) variant.key.spec.make_symbolic(number);
}

void settle_sizes(Recording& recording, uint64_t hash) {
  std::vector<std::string>& fixed = recording.variant->inspection.fixed_sizes;
  fixed = std::move(recording.captured_graph.fixed_sizes);
  if (!recording.fixes_sizes.empty()) fixed.push_back("each size is recorded: " + recording.fixes_sizes);
  const capture::Capture& captured = recording.captured_graph;
  if (!captured.graph.symbols) return;
  std::vector<SizeOfArgument> symbols;
  for (const auto& [argument, dim, is_stride] : captured.symbols) {
    const bool is_number = argument == capture::SizeSymbol::kNumber;
    const int64_t recorded = captured.graph.symbols->value(symbols.size());
    if (is_number)
      symbols.push_back({SizeOfArgument::kNumber, static_cast<uint32_t>(recording.number_places[dim]), recorded});
    else
      symbols.push_back({argument, dim, recorded, is_stride});
  }
  const size_t given = recording.variant->key.spec.number_count();
  auto sized = std::make_unique<Sized>(symbols, captured.layouts, captured.inputs, given);
  for (const auto& [argument, layout] : sized->layouts())
    recording.variant->key.spec.free_sizes(argument, layout, hash);
  recording.variant->program.sized = std::move(sized);
}

// A tensor that facts lead to, each in its way.
void add_captured(Recording& recording, PyObject* object, const std::string& name) {
  CapturedTensors& captured = recording.variant->guards.captured;
  std::vector<observe::Replaced>& all = recording.observation.replaced;
  const auto replaced = std::ranges::find(all, object, &observe::Replaced::tensor);
  if (replaced != all.end()) return captured.add_in(std::move(*replaced), name);
  const auto owner = recording.owners.find(object);
  if (owner == recording.owners.end()) return captured.add(object, name);
  captured.add_grad_of(owner->second, object, name);
}

void take_captured(Recording& recording) {
  Variant& variant = *recording.variant;
  const capture::Capture& capture = recording.captured_graph;
  for (size_t i = 0; i < capture.inputs.size(); ++i) {
    if (capture.inputs[i].kind != capture::InputSource::Kind::Captured) continue;
    PyObject* object = capture.captured[capture.inputs[i].index];
    add_captured(recording, object, capture.graph.inputs[i].name);
    if (recording.function.options.pure) variant.guards.held.push_back(unpack(object));
  }
  variant.guards.held.insert(variant.guards.held.end(), capture.constants.begin(), capture.constants.end());
  // Of other tensors that the call found it may have read the metadata. They are compared after the facts, which say
  // that they are alive.
  if (!recording.observation.facts) return;
  std::unordered_set<PyObject*> compared;
  for (const capture::InputSource& input : capture.inputs)
    if (input.kind == capture::InputSource::Kind::Captured) compared.insert(capture.captured[input.index]);
  for (size_t i = 0; i < recording.captured.size(); ++i) {
    PyObject* object = recording.captured[i];
    if (compared.insert(object).second) add_captured(recording, object, recording.captured_names[i]);
  }
  for (const auto& [owner, name] : recording.bare_owners) variant.guards.captured.add_grad_of(owner, Py_None, name);
}

// Whether a program is needed for more than tensors of the result.
bool does_anything(const capture::Capture& capture) {
  const auto writes = [](const ir::ExternAttr& call) { return !call.written.empty(); };
  return !capture.result_values.empty() || !capture.guards.empty() || !capture.graph.stores.empty() ||
         std::ranges::any_of(capture.graph.externs, writes);
}

}  // namespace

observe::Host host_of(Recording& recording) {
  observe::Host host = torch_host();
  host.on_tensor = on_tensor;
  host.on_constant = [](void* context, PyObject* tensor) {
    return static_cast<Recording*>(context)->recorder->constant_made(unpack(tensor));
  };
  host.has_data_sizes = [](void* context) { return static_cast<Recording*>(context)->recorder->has_data_sizes(); };
  host.context = &recording;
  return host;
}

void require(CallSpec& spec, const observe::Observation& seen) {
  for (auto [a, b] : seen.identities) spec.require_identity(a, b);
  for (PyObject* tensor : seen.bare) spec.require_bare(tensor);
}

void Recording::meet(PyObject* tensor, const char* name) {
  if (!met.insert(tensor).second) return;
  captured.push_back(tensor);
  captured_names.emplace_back(name);
  kept.push_back(unpack(tensor));
  recorder->add_captured(tensor, unpack(tensor), name);
  if (unpack(tensor).requires_grad() && unpack(tensor).is_leaf())
    leaves_met.emplace(tensor, Leaf{grad_of(tensor), name});
}

void Recording::number_derived(observe::Derivation& how) {
  std::vector<std::string> names;
  std::vector<uint32_t> operands;
  for (const auto& operand : how.operands) {
    const auto scalar = static_cast<uint32_t>(operand.scalar);
    names.push_back(operand.scalar < 0 ? "" : recorder->number_name(scalar));
    if (operand.scalar >= 0) operands.push_back(scalar);
  }
  how.text = text(how, names);
  how.after_operators = recorder->operators() > 0;
  if (how.test) return number_tested(how);
  if (how.of_size && !how.of_tensor) return size_derived(how);
  if (how.scalar == observe::Derivation::kUnwatched) return;
  if (how.of_tensor) return number_computed(how);
  if (how.of_asked) return recorder->number_given(how.number.get(), how.text);
  recorder->number_derived(how.number.get(), how.text, std::move(operands));
}

// A float that follows from sizes is computed by the program, as one is that follows from a tensor's value.
void Recording::size_derived(const observe::Derivation& how) {
  const bool is_test = how.scalar == observe::Derivation::kUnwatched;
  if (!is_test && PyFloat_CheckExact(how.number.get())) return number_computed(how);
  std::vector<support::SizeOperand> operands;
  for (const auto& operand : how.operands) {
    PyObject* value = operand.value.get();
    operands.push_back({operand.scalar, PyLong_Check(value) ? PyLong_AsLongLong(value) : support::kNoInt});
  }
  PyErr_Clear();
  if (is_test) return recorder->size_compared(how.comparison, operands[0], operands[1]);
  recorder->size_computed(how.number.get(), how.text, *how.integers, std::move(operands));
}

void Recording::number_computed(const observe::Derivation& how) {
  capture::NumberOp op{*how.arithmetic, {}, std::numeric_limits<double>::infinity(), how.text};
  std::vector<int> operands;
  for (const auto& operand : how.operands) {
    using From = capture::NumberOp::Operand::From;
    operands.push_back(operand.scalar);
    op.operands.push_back({operand.scalar < 0 ? From::Constant : From::Step, PyFloat_AsDouble(operand.value.get())});
  }
  recorder->number_computed(how.number.get(), std::move(op), std::move(operands));
}

void Recording::number_tested(const observe::Derivation& how) {
  capture::NumberTest test{*how.test, how.text, {}};
  for (const auto& operand : how.operands)
    test.operands.push_back({operand.scalar, PyFloat_AsDouble(operand.value.get())});
  recorder->number_tested(std::move(test));
}

bool Recording::unwatched(bool ended) {
  if (ended) return recorder->operators() == operators_before && current_modes() == modes_before && arguments_hold();
  operators_before = recorder->operators();
  modes_before = current_modes();
  return true;
}

bool Recording::is_first_use(bool in_library) const { return in_library && function.stats.calls == 1; }

// The functions that are being called would meet the obstacle again; where it is that too many values were read, those
// that read more than half of them.
bool Recording::hand_over(const observe::Obstacle& met) {
  const bool may_pass = is_first_use(met.in_library);
  if (may_pass && modes.grad()) return true;  // the rest, an optimizer's step for one, is looked at for numbers
  std::vector<observe::Obstacle::Open> failed;
  const size_t most = recorder->reads_too_many() ? recorder->values_read() / 2 : at_limit ? 0 : SIZE_MAX;
  if (!may_pass)
    std::ranges::copy_if(met.open, std::back_inserter(failed),
                         [&](const auto& call) { return call.values_before < most; });
  rest = Parts::watch_rest(function, failed, met.instances);
  if (!rest) return may_pass;
  recorder->give_up("the read observer has given up");
  this_thread().recording = false;
  return false;
}

RecordingFlag::RecordingFlag() { this_thread().recording = true; }
RecordingFlag::~RecordingFlag() { this_thread().recording = false; }

PyObject* observe_call(Recording& recording, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Function& function = recording.function;
  const Modes& modes = recording.modes;
  const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  const std::vector<std::string> names = argument_names(function.callable, nargs, kwnames);
  FreshCall call;
  std::string why;
  if (function.options.pure) {
    call.args.assign(args, args + total);
  } else {
    CallSpec given;
    given.build(args, nargs, kwnames, function.by_content, why);
    call.make(args, total, given, names, varying_numbers(recording.known_calls, given));
  }
  recording.variant->key.modes = modes;
  recording.variant->key.spec.build(call.args.data(), nargs, kwnames, function.by_content, why);
  for (PyObject* tensor : recording.variant->key.spec.flat().tensors) recording.kept.push_back(unpack(tensor));
  // Casts that autocast keeps would come from outside of the recording. Programs cast anew.
  at::autocast::clear_cache();
  const auto start = std::chrono::steady_clock::now();
  PyObject* result = watched_call(recording, call, nargsf, kwnames, names);
  if (!result) return nullptr;
  recording.variant->program.operators = recording.captured_graph.operators;
  recording.variant->way = recording.captured_graph.way;
  recording.variant->inspection.record_ms = ms_since(start);
  function.stats.record_ms += recording.variant->inspection.record_ms;
  if (recording.unsound.empty() && !(current_modes() == modes))
    recording.unsound = "it changes a mode (such as grad mode) for its caller";
  // The result is constant under the facts, which eager gives as well.
  if (recording.unsound.empty() && !recording.variant->program.recipe.has_tensors() && recording.grads_set.empty() &&
      !does_anything(recording.captured_graph))
    recording.unsound = "its result holds no tensor";
  // Autograd compares a view's version with its base's; stores are counted after the views are made. With grad mode on
  // such a result has a node of its own, and is no view.
  if (recording.unsound.empty() && !modes.grad() && !recording.captured_graph.graph.stores.empty())
    for (PyObject* leaf : recording.leaves)
      if (unpack(leaf).is_view() && unpack(leaf).requires_grad())
        recording.unsound = "it writes to a tensor that requires grad and returns a view of it";
  Schedule schedule;
  if (recording.unsound.empty()) {
    schedule = schedule_numbers(recording);
    recording.unsound = schedule.refused;
  }
  if (recording.unsound.empty()) {
    recording.variant->program.without_grad = recording.captured_graph.without_grad;
    recording.variant->program.gone_back_to.assign(recording.gone_back_to.begin(), recording.gone_back_to.end());
    recording.variant->program.grads_set = recording.grads_set;
    for (PyObject* leaf : recording.grads_set) recording.variant->program.grads_made.push_back(grad_of(leaf).defined());
    recording.variant->program.in_inference_mode = recording.captured_graph.in_inference_mode;
    note_fixed_ints(recording, call);
    fix_numbers(recording);
    settle_scalars(recording, call, schedule);
    settle_sizes(recording, call_hash_of_any_size(args, PyVectorcall_NARGS(nargsf), kwnames, function.by_content));
    take_captured(recording);
    std::unique_ptr<observe::ReadSet>& facts = recording.observation.facts;
    recording.variant->guards.facts =
        facts && recording.rehearsed ? both(std::move(facts), recording.rehearsed) : std::move(facts);
    std::vector<const PyObject*> targets;
    for (const observe::SideEffect& effect : recording.observation.effects)
      if (!effect.of_argument) targets.push_back(effect.target.get());
    CallSpec& spec = recording.variant->key.spec;
    spec.exclude(std::move(targets));
    const bool has_targets = spec.object_count() > spec.tensor_count();
    if (has_targets && recording.variant->guards.facts &&
        !spec.keep_targets_apart(recording.variant->guards.facts->looked_into()))
      recording.unsound = "it changes an argument that it found elsewhere too";
    if (!recording.observation.effects.empty())
      recording.variant->program.replay = std::make_unique<Replay>(
          std::move(recording.observation.effects), [&](PyObject* argument) { return spec.make_target(argument); });
  }
  return result;
}

}  // namespace fastjit::dispatch
