// Generators of random numbers that the call finds or makes, and what it seeds them with.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cstring>

#include "observe/judge/tracer.h"
#include "observe/known_functions.h"

namespace fastjit::observe {

bool Tracer::is_generator(PyObject* o) { return !std::strcmp(Py_TYPE(o)->tp_name, "torch._C.Generator"); }

// Nobody else has it as long as it only goes to operators: each run of a program has one of its own, in the state that
// all new ones have.
bool Tracer::is_own_generator(PyObject* o) {
  return is_generator(o) && fresh_.contains(o) && host_.on_generator &&
         host_.on_generator(host_.context, Host::OnState::Made, o, nullptr);
}

void Tracer::judge_new_generator(PyObject* callee, Args args) {
  if (args.size() > 1 || !std::ranges::all_of(args, [&](PyObject* o) { return is_plain_value(o); }))
    return deny("call of " + callee_text(callee));
  top().fresh_result = true;
}

// Of a generator that every call finds, or makes: a program seeds it, reads its state or sets it where the call does.
void Tracer::judge_generator(PyObject* callee, Args args) {
  const std::string what = callee_text(callee);
  const bool is_plain = host_.on_generator && !args.empty() && !top().kwnames && !unpacked_names_;
  const bool found = is_plain && (is_reached(args[0]) || passed_.contains(args[0]) || is_own_generator(args[0]));
  if (found && args.size() == 1 && what == "Generator.get_state") return static_cast<void>(top().state_of = args[0]);
  if (found && args.size() == 2) {
    touch(args[1]);
    const bool is_seed = PyLong_CheckExact(args[1]) && what == "Generator.manual_seed";
    const bool is_state = is_tensor(args[1]) && what == "Generator.set_state";
    const auto how = is_seed ? Host::OnState::Seed : Host::OnState::Set;
    if ((is_seed || is_state) && host_.on_generator(host_.context, how, args[0], args[1])) return;
  }
  deny(door_of(known_function(callee)) + what);
}

// torch.manual_seed(): a program calls it where the call does.
void Tracer::judge_seed_all(PyObject* callee, Args args) {
  note_function(reinterpret_cast<PyFunctionObject*>(callee));
  for (PyObject* arg : args) touch(arg);
  const bool is_plain = host_.on_generator && args.size() == 1 && PyLong_CheckExact(args[0]);
  if (!is_plain || !host_.on_generator(host_.context, Host::OnState::SeedAll, nullptr, args[0]))
    return deny("call of torch.manual_seed");
  top().expect = Expect::Inside;
}

// numpy.random.SeedSequence of ints: what it hands out follows from them alone. Without entropy it asks the system.
void Tracer::judge_seed_sequence(PyObject* callee, Args args) {
  PyObject* names = unpacked_names_ ? unpacked_names_ : top().kwnames;
  const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0;
  PyObject* entropy = args.size() > named ? args[0] : nullptr;
  for (size_t i = 0; i < named; ++i)
    if (is_named(PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i)), "entropy"))
      entropy = args[args.size() - named + i];
  const auto holds_ints = [](PyObject* o) {
    if (!PyTuple_CheckExact(o)) return static_cast<bool>(PyLong_CheckExact(o));
    PyObject** items = PySequence_Fast_ITEMS(o);
    return std::all_of(items, items + Py_SIZE(o), [](PyObject* item) { return PyLong_CheckExact(item); });
  };
  if (!entropy || !std::ranges::all_of(args, holds_ints)) return deny("call of " + callee_text(callee));
  if (!readable_args(args, callee)) return;
  top().fresh_result = true;
  top().expect = Expect::Inside;  // numpy's own Python code
}

// So many numbers of a new one, which stays as it is.
void Tracer::judge_seed_state(PyObject* callee, Args args) {
  note_function(reinterpret_cast<PyFunctionObject*>(callee));
  const bool is_plain = args.size() == 2 && fresh_.contains(args[0]) && PyLong_CheckExact(args[1]) && !top().kwnames;
  if (!is_plain) return deny("call of " + callee_text(callee));
  touch(args[1]);
  top().nested_result = true;
  top().expect = Expect::Inside;
}

}  // namespace fastjit::observe
#endif
