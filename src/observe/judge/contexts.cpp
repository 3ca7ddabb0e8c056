// Context variables: what a call reads of them, and changes that it undoes itself.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <cstring>

#include "observe/judge/tracer.h"

namespace fastjit::observe {

// The value that this call set itself is no fact; another's is.
void Tracer::judge_context_get(PyObject*, Args args) {
  PyObject* variable = args[0];
  if (auto set = context_sets_.find(variable); set != context_sets_.end() && set->second.size() > 1) return;
  if (!is_reached(variable) || (args.size() > 1 && !context_value(variable))) return deny("read of a context variable");
  const std::string label = "context variable " + names_[variable];
  found(facts_->read_context(variable, label, where()), label);
}

// A change that the call undoes itself, the last one first, is none.
void Tracer::judge_context_set(PyObject*, Args args) {
  if (args.size() != 2 || !is_reached(args[0])) return deny("change of a context variable");
  std::vector<Ref>& values = context_sets_[args[0]];
  if (values.empty()) values.push_back(Ref::share(context_value(args[0])));
  values.push_back(Ref::share(args[1]));
  touch(args[1]);
  top().fresh_result = true;
}

void Tracer::judge_context_reset(PyObject*, Args args) {
  auto set = args.size() == 2 ? context_sets_.find(args[0]) : context_sets_.end();
  if (set == context_sets_.end() || set->second.size() < 2 || !fresh_.contains(args[1]))
    return deny("change of a context variable");
  set->second.pop_back();
  Ref variable = Ref::steal(PyObject_GetAttrString(args[1], "var"));
  Ref old = Ref::steal(PyObject_GetAttrString(args[1], "old_value"));
  PyErr_Clear();
  PyObject* before = set->second.back().get();
  const bool was_unset = set->second.size() == 1 && old && !std::strcmp(Py_TYPE(old.get())->tp_name, "Token.MISSING");
  if (variable.get() != args[0] || (old.get() != before && !was_unset)) deny("change of a context variable");
}

bool Tracer::contexts_are_restored() {
  for (const auto& [variable, values] : context_sets_)
    if (values.size() != 1 || context_value(variable) != values[0].get()) return false;
  return true;
}

}  // namespace fastjit::observe
#endif
