// warnings.warn(): given again at each hit, by the same rules: filters, the registry of the module that is warned of,
// and the place that its stack level leads to.
#include "observe/known_functions.h"
#include "observe/observe.h"

namespace fastjit::observe {
namespace {

// As warnings.simplefilter() makes it: (action, message, category, module, line).
bool is_filter(PyObject* filter) {
  return PyTuple_CheckExact(filter) && PyTuple_GET_SIZE(filter) == 5 && PyType_Check(PyTuple_GET_ITEM(filter, 2));
}

// Whether it says what becomes of warnings of this category, with whatever else it may ask for.
bool may_concern(PyObject* filter, PyObject* category) {
  return PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(category),
                          reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(filter, 2)));
}

// Whether it decides for all warnings that it may concern, so that later filters are not asked.
bool concerns_all(PyObject* filter) {
  return PyTuple_GET_ITEM(filter, 1) == Py_None && PyTuple_GET_ITEM(filter, 3) == Py_None &&
         PyObject_Not(PyTuple_GET_ITEM(filter, 4)) == 1;
}

// Whether nothing but a line of text, or nothing at all, follows from this action.
bool only_shows(PyObject* action) {
  if (!action || !PyUnicode_Check(action)) return false;
  for (const char* known : {"default", "ignore", "always", "all", "module", "once"})
    if (!PyUnicode_CompareWithASCIIString(action, known)) return true;
  return false;
}

}  // namespace

const char* why_no_warning(PyObject* category) noexcept {
  const Ref name = Ref::steal(PyUnicode_FromString("warnings"));
  const Ref module = name ? Ref::steal(PyImport_GetModule(name.get())) : Ref();
  const Ref filters = attribute(module.get(), "filters"), otherwise = attribute(module.get(), "defaultaction");
  const Ref shown = attribute(module.get(), "showwarning"), plain = attribute(module.get(), "_showwarning_orig");
  const Ref per_context = attribute(PySys_GetObject("flags"), "context_aware_warnings");
  if (!shown || shown.get() != plain.get()) return "warnings.showwarning is replaced";
  if (per_context && PyObject_IsTrue(per_context.get()) == 1) return "each context has its own filters of warnings";
  constexpr const char* kRaises = "a filter may make an error of it";
  if (!filters || !PyList_CheckExact(filters.get()) || (otherwise && !only_shows(otherwise.get()))) return kRaises;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(filters.get()); ++i) {
    PyObject* filter = PyList_GET_ITEM(filters.get(), i);
    if (!is_filter(filter)) return kRaises;
    if (!may_concern(filter, category)) continue;
    if (!only_shows(PyTuple_GET_ITEM(filter, 0))) return kRaises;
    if (concerns_all(filter)) break;
  }
  return nullptr;
}

}  // namespace fastjit::observe

#if FASTJIT_OBSERVES
#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

constexpr const char* kParameters[] = {"message", "category", "stacklevel", "source"};

struct Warning {
  PyObject* given[std::size(kParameters)] = {};  // borrowed
  bool known = true;                             // nothing else was given
};

Warning parse(std::span<PyObject* const> args, PyObject* names) {
  Warning out;
  const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0, plain = args.size() - named;
  out.known = plain <= std::size(kParameters);
  for (size_t i = 0; out.known && i < plain; ++i) out.given[i] = args[i];
  for (size_t i = 0; i < named; ++i) {
    size_t which = 0;
    PyObject* name = PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i));
    while (which < std::size(kParameters) && PyUnicode_CompareWithASCIIString(name, kParameters[which])) ++which;
    if (which == std::size(kParameters)) return {{}, false};
    out.given[which] = args[plain + i];
  }
  return out;
}

// Of an instance that a call of its class with this text makes again; null where it is another.
PyObject* text_of(PyObject* warning) {
  auto* made = reinterpret_cast<PyBaseExceptionObject*>(warning);
  const bool is_bare = !made->dict || PyDict_GET_SIZE(made->dict) == 0;
  const bool has_text = PyTuple_CheckExact(made->args) && PyTuple_GET_SIZE(made->args) == 1;
  return is_bare && has_text ? PyTuple_GET_ITEM(made->args, 0) : nullptr;
}

// It has no code of its own.
bool is_plain_category(PyObject* category) {
  auto* base = reinterpret_cast<PyTypeObject*>(PyExc_Warning);
  if (!category || !PyType_Check(category)) return false;
  auto* type = reinterpret_cast<PyTypeObject*>(category);
  return PyType_IsSubtype(type, base) && type->tp_init == base->tp_init && type->tp_new == base->tp_new &&
         type->tp_str == base->tp_str;
}

// The first filter that may concern the category drops all of its warnings.
bool is_ignored(PyObject* category) {
  const Ref all = imported("warnings:filters");
  for (Py_ssize_t i = 0; all && PyList_CheckExact(all.get()) && i < PyList_GET_SIZE(all.get()); ++i) {
    PyObject* filter = PyList_GET_ITEM(all.get(), i);
    if (!is_filter(filter)) return false;
    if (!may_concern(filter, category)) continue;
    PyObject* action = PyTuple_GET_ITEM(filter, 0);
    return concerns_all(filter) && PyUnicode_Check(action) && !PyUnicode_CompareWithASCIIString(action, "ignore");
  }
  return false;
}

}  // namespace

// The filters that catch_warnings() takes away when it ends. Which warnings are shown a second time a hit settles as it
// does: by telling the interpreter that filters have changed.
void Tracer::judge_filters_kept(PyObject* callee, Args args) {
  const Ref records = attribute(args.empty() ? nullptr : args[0], "_record");
  const bool is_plain = records.get() == Py_False && fresh_.contains(args[0]) && args.size() == 1;
  if (!is_plain || !imported("_warnings:_filters_mutated")) return deny("side effect: " + callee_text(callee));
  ++filter_regions_;
  top().expect = Expect::Inside;
}

void Tracer::judge_filters_restored(PyObject* callee, Args) {
  if (--filter_regions_ < 0) return deny("side effect: " + callee_text(callee));
  SideEffect effect(SideEffect::Kind::Call);
  effect.value = Ref::steal(PyTuple_New(0));
  effect.target = imported("_warnings:_filters_mutated");
  effect.label = "warnings.catch_warnings";
  log(std::move(effect));
  top().expect = Expect::Inside;
}

// Inside such a region only: elsewhere it lasts. None that makes errors of warnings, which operators might give.
void Tracer::judge_filter(PyObject* callee, Args args) {
  const bool fits = filter_regions_ > 0 && !args.empty() && only_shows(args[0]) && readable_args(args, callee);
  if (!fits) return deny("side effect: " + callee_text(callee));
  top().expect = Expect::Inside;
}

void Tracer::judge_warn(PyObject* callee, Args args) {
  Warning warning = parse(args, top().kwnames ? top().kwnames : unpacked_names_);
  auto& [text, category, level, source] = warning.given;
  if (!category || category == Py_None) category = PyExc_UserWarning;
  if (text && PyObject_TypeCheck(text, reinterpret_cast<PyTypeObject*>(PyExc_Warning))) {
    category = reinterpret_cast<PyObject*>(Py_TYPE(text));
    text = fresh_.contains(text) && is_plain_category(category) ? text_of(text) : nullptr;
  }
  const long depth = level ? (PyLong_CheckExact(level) ? PyLong_AsLong(level) : 0) : 1;
  constexpr long kDeepest = 1000;
  const bool is_plain = warning.known && text && PyUnicode_CheckExact(text) && is_plain_category(category) &&
                        (!source || source == Py_None) && depth > 0 && depth < kDeepest;
  if (!is_plain) return PyErr_Clear(), deny("side effect: " + callee_text(callee));
  if (filter_regions_ > 0) {
    if (!is_ignored(category)) return deny("side effect: warnings.warn inside catch_warnings");
    top().expect = Expect::Inside;
    return;
  }
  if (const char* why = why_no_warning(category)) return deny("side effect: warnings.warn, and " + std::string(why));
  for (PyObject* arg : args) touch(arg);
  const auto inside = static_cast<long>(frames_.size()) - is_stand_in_root();
  SideEffect effect(SideEffect::Kind::Warn);
  effect.place = depth > inside ? depth - inside : 0;
  const Frame& of = effect.place ? top() : frames_[frames_.size() - static_cast<size_t>(depth)];
  const Ref line = Ref::steal(PyLong_FromLong(PyCode_Addr2Line(of.code, of.offset * 2)));
  effect.value = Ref::steal(PyTuple_Pack(4, category, text, of.code->co_filename, line.get()));
  effect.target = Ref::share(effect.place ? callee : of.frame->globals);
  effect.label = "warnings.warn";
  log(std::move(effect));
  top().expect = Expect::Inside;  // the module warnings shows it
}

}  // namespace fastjit::observe
#endif
