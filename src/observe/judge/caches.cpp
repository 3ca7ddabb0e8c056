// functools.lru_cache: what a cache keeps of a call is a fact like what a dictionary holds. The function behind it does
// not run again in later calls either, in eager: where the call is the first, it runs unwatched.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

/// "f(2, b=1)"
std::string text_of_call(const std::string& name, std::span<PyObject* const> args, PyObject* keywords) {
  const size_t named = keywords ? static_cast<size_t>(PyTuple_GET_SIZE(keywords)) : 0;
  std::string text = name + "(";
  for (size_t i = 0; i < args.size(); ++i) {
    if (i) text += ", ";
    const auto keyword = static_cast<Py_ssize_t>(i + named) - static_cast<Py_ssize_t>(args.size());
    if (keyword >= 0) text += std::string(PyUnicode_AsUTF8(PyTuple_GET_ITEM(keywords, keyword))) + "=";
    text += words(args[i]);
  }
  return text + ")";
}

bool is_its_own_key(PyObject* only_argument) {
  return PyUnicode_CheckExact(only_argument) || PyLong_CheckExact(only_argument);
}

/// The key under which the cache keeps a call with these arguments, the values of the keywords at their end
/// (_functoolsmodule.c, lru_cache_make_key).
Ref key_of(const CacheObject* cache, std::span<PyObject* const> args, PyObject* keywords) {
  const size_t named = keywords ? static_cast<size_t>(PyTuple_GET_SIZE(keywords)) : 0, plain = args.size() - named;
  if (!named && !cache->typed && plain == 1 && is_its_own_key(args[0])) return Ref::share(args[0]);
  std::vector<PyObject*> parts(args.begin(), args.begin() + static_cast<ptrdiff_t>(plain));
  if (named) parts.push_back(cache->keyword_mark);
  for (size_t i = 0; i < named; ++i) {
    parts.push_back(PyTuple_GET_ITEM(keywords, static_cast<Py_ssize_t>(i)));
    parts.push_back(args[plain + i]);
  }
  for (size_t i = 0; cache->typed && i < args.size(); ++i)
    parts.push_back(reinterpret_cast<PyObject*>(Py_TYPE(args[i])));
  Ref key = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(parts.size())));
  for (size_t i = 0; key && i < parts.size(); ++i)
    PyTuple_SET_ITEM(key.get(), static_cast<Py_ssize_t>(i), Py_NewRef(parts[i]));
  return key;
}

/// What is now where the effect stored something, borrowed; null where that cannot be told.
PyObject* held_by(const SideEffect& effect) {
  PyObject* target = effect.target.get();
  switch (effect.kind) {
    case SideEffect::Kind::SetItem:
      return PyDict_CheckExact(target) ? dict_lookup(target, effect.key.get(), nullptr) : nullptr;
    case SideEffect::Kind::SetIndex:
      return effect.place < PyList_GET_SIZE(target) ? PyList_GET_ITEM(target, effect.place) : nullptr;
    case SideEffect::Kind::SetCell:
      return PyCell_GET(target);
    case SideEffect::Kind::SetSlot:
      return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(target) + effect.place);
    default:
      return nullptr;
  }
}

}  // namespace

bool Tracer::is_cache(PyObject* callable) {
  static const PyTypeObject* const type = type_named("_functools", "_lru_cache_wrapper");
  return Py_TYPE(callable) == type;
}

// The same object, or an equal value, comes with each call; its hash and its equality run no Python code.
bool Tracer::is_cached_by(PyObject* argument, int depth) {
  if (is_tensor(argument) || depth > 16) return false;
  if (is_plain_value(argument)) return touch(argument), !holds_nan(argument);
  if (PyTuple_Check(argument) && is_tuple(argument)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(argument); ++i)
      if (!is_cached_by(PyTuple_GET_ITEM(argument, i), depth + 1)) return false;
    return true;
  }
  const bool is_builtin = PyType_Check(argument) && !(((PyTypeObject*)argument)->tp_flags & Py_TPFLAGS_HEAPTYPE);
  return is_builtin || (is_reached(argument) && hashable(argument));
}

void Tracer::call_cache(PyObject* callable, Args args) {
  auto* cache = reinterpret_cast<CacheObject*>(callable);
  const std::string name = name_of_cache(callable);
  if (!is_reached(callable) || !PyDict_CheckExact(cache->cache)) return deny("call of " + name + " of this call's own");
  for (PyObject* arg : args)
    if (!is_cached_by(arg)) return deny("call of " + name + " with " + name_of(arg));
  PyObject* keywords = top().kwnames ? top().kwnames : unpacked_names_;
  Ref key = key_of(cache, args, keywords);
  PyObject* kept = key ? PyDict_GetItemWithError(cache->cache, key.get()) : nullptr;
  if (PyErr_Occurred()) return PyErr_Clear(), deny("call of " + name);
  std::string label = text_of_call(name, args, keywords);
  if (!kept) return fill_cache(callable, std::move(key), std::move(label));
  read_cache(callable, key, label);
}

void Tracer::read_cache(PyObject* callable, const Ref& key, const std::string& label) {
  auto* cache = reinterpret_cast<CacheObject*>(callable);
  const Facts::Id id = facts_->dict(cache->cache, "the cache of " + name_of_cache(callable));
  const bool has_links = cache->most >= 0;  // a cache with a bound gives its oldest link to another call
  const std::string label_in_cache = has_links ? "what the cache keeps of " + label : label;
  PyObject* kept = facts_->read_key(id, pooled(key.get()), label_in_cache, where());
  if (has_links) kept = facts_->read_slot(&reinterpret_cast<CacheLink*>(kept)->result, label, where());
  found(kept, label);
}

// Whether what the call changed so far holds nothing that could itself be changed unseen; and (still) is so now.
bool Tracer::changed_values_only(bool still) {
  const auto is_value = [&](const Ref& o) { return o && is_plain_value(o.get()); };
  for (const auto& [variable, sets] : context_sets_) {
    if (!is_value(sets.back())) return false;
    PyObject* now = nullptr;
    if (still && PyContextVar_Get(variable, nullptr, &now) < 0) PyErr_Clear();
    if (still && Ref::steal(now).get() != sets.back().get()) return false;
  }
  for (const SideEffect& effect : effects_) {
    if (effect.kind == SideEffect::Kind::Print) continue;
    if (effect.adds || !is_value(effect.value) || (still && held_by(effect) != effect.value.get())) return false;
  }
  return class_sets_.empty();
}

// The function runs in this call only: what it reads is no fact, and its result is one. What it changes must not be
// what the call changed before, which later calls would find as this one left it.
void Tracer::fill_cache(PyObject* callable, Ref key, std::string label) {
  if (!changed_values_only(false) || !host_.on_unwatched) return interrupt("the cache of " + name_of_cache(callable));
  fill_ = {callable, std::move(key), std::move(label)};
  top().fills_cache = true;
  top().expect = Expect::Inside;
  host_.on_unwatched(host_.context, false);
}

void Tracer::cache_filled() {
  const Fill fill = std::exchange(fill_, {});
  PyObject* entries = reinterpret_cast<CacheObject*>(fill.cache)->cache;
  if (!PyDict_GetItemWithError(entries, fill.key.get())) return PyErr_Clear(), deny("call of " + fill.label);
  if (!host_.on_unwatched(host_.context, true) || !changed_values_only(true))
    return interrupt("the cache of " + name_of_cache(fill.cache));
  read_cache(fill.cache, fill.key, fill.label);
}

std::string Tracer::name_of_cache(PyObject* callable) {
  PyObject* function = reinterpret_cast<CacheObject*>(callable)->function;
  return PyFunction_Check(function) ? PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(function)->func_qualname)
                                    : callee_text(function);
}

}  // namespace fastjit::observe
#endif
