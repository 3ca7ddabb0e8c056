// functools.lru_cache: what a cache keeps of a call is a fact like what a dictionary holds. The function behind it does
// not run again in later calls either, in eager: where the call is the first, it runs unwatched. The same holds of
// functions that keep a cache of their own.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <optional>

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

/// A function that looks first for what it gave before for an argument of this class, in a dictionary of its module.
struct OwnCache {
  const char* module;
  const char* function;
  const char* entries;
};
constexpr OwnCache kOwnCaches[] = {
    {"einops._backends", "get_backend", "_type2backend"},
};

/// A function that prepares the nn.Module that it gets when it first gets it, and leaves a mark: an attribute that is
/// True. With the mark it does nothing.
struct Preparation {
  const char* module;
  const char* function;
  const char* mark;
};
constexpr Preparation kPreparations[] = {
    {"transformers.utils.output_capturing", "maybe_install_capturing_hooks", "_output_capturing_hooks_installed"},
};

/// A function that follows from its arguments and does nothing else. What it gives goes to its own module, which
/// neither changes it nor asks which object it is.
struct Computing {
  const char* module;
  const char* function;
};
constexpr Computing kComputing[] = {
    {"einops.einops", "_reconstruct_from_shape_uncached"},
};

template <class Row, size_t N>
const Row* row_of(const PyFunctionObject* f, const Row (&rows)[N]) {
  for (const Row& known : rows) {
    if (PyUnicode_CompareWithASCIIString(f->func_qualname, known.function) != 0) continue;
    PyObject* module = PyDict_GetItemString(f->func_globals, "__name__");
    if (module && PyUnicode_Check(module) && PyUnicode_CompareWithASCIIString(module, known.module) == 0) return &known;
  }
  return nullptr;
}

const OwnCache* own_cache_of(const PyFunctionObject* f) { return row_of(f, kOwnCaches); }

bool is_marked(PyObject* module, const char* mark) {
  const Ref attributes = Ref::steal(PyObject_GenericGetDict(module, nullptr));
  if (!attributes) return PyErr_Clear(), false;
  return PyDict_GetItemString(attributes.get(), mark) == Py_True;
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
    case SideEffect::Kind::Append:
      return target;
    default:
      return nullptr;
  }
}

bool can_change(const Ref& o) { return o && (PyList_CheckExact(o.get()) || PyDict_CheckExact(o.get())); }

bool same(const std::vector<Ref>& a, const std::vector<Ref>& b) {
  return std::ranges::equal(a, b, {}, &Ref::get, &Ref::get);
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

bool Tracer::holds_sizes(PyObject* o, int depth) const {
  if (!PyTuple_Check(o) || depth > 4) return is_size(o);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (holds_sizes(PyTuple_GET_ITEM(o, i), depth + 1)) return true;
  return false;
}

// A cache over a function that is known to compute and no more, asked with sizes: the function runs in its place, so
// that what follows from the sizes is known. Any other function may do or read what eager does once for each size only.
bool Tracer::runs_uncached(PyObject* callable, Args args) {
  auto* cache = reinterpret_cast<CacheObject*>(callable);
  const bool has_sizes = std::ranges::any_of(args, [&](PyObject* arg) { return holds_sizes(arg); });
  if (callable != plain_callee_ || !has_sizes || !PyFunction_Check(cache->function)) return false;
  auto* function = reinterpret_cast<PyFunctionObject*>(cache->function);
  if (!row_of(function, kComputing)) return false;
  const std::string label = names_[callable] + ".__wrapped__";
  found(facts_->read_slot(&cache->function, label, where()), label);
  top().stack.replace(static_cast<int>(args.size()) + 1 + kSelfOnTop, Py_NewRef(cache->function));
  call_function(function);
  return true;
}

void Tracer::call_cache(PyObject* callable, Args args) {
  auto* cache = reinterpret_cast<CacheObject*>(callable);
  const std::string name = name_of_cache(callable);
  if (!is_reached(callable) || !PyDict_CheckExact(cache->cache)) return deny("call of " + name + " of this call's own");
  if (runs_uncached(callable, args)) return;
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

// Adds the object and, of containers, what is in it; false where it could be changed and look the same.
bool Tracer::add_to(std::vector<Ref>& picture, PyObject* o, int depth) {
  constexpr size_t kMost = 1000;
  constexpr int kDeepest = 16;
  if (!o || depth > kDeepest || picture.size() > kMost) return false;
  picture.push_back(Ref::share(o));
  if (is_plain_value(o)) return true;
  if (PyList_CheckExact(o) || PyTuple_CheckExact(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (!add_to(picture, PySequence_Fast_GET_ITEM(o, i), depth + 1)) return false;
    return true;
  }
  if (!PyDict_CheckExact(o)) return false;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
    if (!add_to(picture, key, depth + 1) || !add_to(picture, value, depth + 1)) return false;
  picture.push_back(Ref());  // its end
  return true;
}

// All that can be found where the call has changed something so far; nothing where it cannot be told whether code that
// runs unwatched changes it.
std::optional<std::vector<Ref>> Tracer::picture_of_changes() {
  std::vector<Ref> picture;
  if (!class_sets_.empty()) return std::nullopt;
  for (const auto& [variable, sets] : context_sets_) {
    PyObject* now = nullptr;
    if (PyContextVar_Get(variable, nullptr, &now) < 0) return PyErr_Clear(), std::nullopt;
    if (!add_to(picture, Ref::steal(now).get())) return std::nullopt;
  }
  for (const SideEffect& effect : effects_)
    if (SideEffect::stores(effect.kind) && !add_to(picture, held_by(effect))) return std::nullopt;
  return picture;
}

// Whether a cache's result may lead to a container that the call changed: in later calls that is another one.
bool Tracer::keeps(PyObject* result, const std::vector<Ref>& changes) {
  if (std::ranges::none_of(changes, can_change)) return false;
  std::vector<Ref> held;
  if (!add_to(held, result)) return true;
  return std::ranges::any_of(held, [&](const Ref& o) {
    return can_change(o) && std::ranges::find(changes, o.get(), &Ref::get) != changes.end();
  });
}

// The function runs in this call only: what it reads is no fact, and its result is one. What it changes must not be
// what the call changed before, which later calls would find as this one left it.
void Tracer::fill_cache(PyObject* callable, Ref key, std::string label) {
  std::optional<std::vector<Ref>> changes = picture_of_changes();
  if (!changes || !host_.on_unwatched) return interrupt("the cache of " + name_of_cache(callable));
  fill_ = {callable, std::move(key), std::move(label), std::move(*changes)};
  top().fills_cache = true;
  top().expect = Expect::Inside;
  host_.on_unwatched(host_.context, false);
}

// Whether the call of it fills a cache of its own; one that finds what it looks for is watched like any other.
bool Tracer::fills_own_cache(PyFunctionObject* f, Args args) {
  if (args.empty() || !is_tensor(args[0])) return false;
  const OwnCache* known = own_cache_of(f);
  if (!known || fresh_.contains((PyObject*)f)) return false;
  PyObject* entries = PyDict_GetItemString(f->func_globals, known->entries);
  auto* key = reinterpret_cast<PyObject*>(Py_TYPE(args[0]));
  if (!entries || !PyDict_CheckExact(entries) || PyDict_Contains(entries, key) != 0) return PyErr_Clear(), false;
  note_function(f);
  fill_cache((PyObject*)f, Ref::share(key), std::string(known->function) + "(" + name_of(args[0]) + ")");
  return true;
}

// Whether the call of it prepares its argument; where that is done already it is watched like any other.
bool Tracer::prepares(PyFunctionObject* f, Args args) {
  if (args.size() != 1 || !is_module(args[0]) || !is_reached(args[0])) return false;
  const Preparation* known = row_of(f, kPreparations);
  if (!known || fresh_.contains((PyObject*)f) || is_marked(args[0], known->mark)) return false;
  note_function(f);
  has_prepared_ = true;
  fill_cache((PyObject*)f, Ref::share(args[0]), std::string(known->function) + "(" + names_[args[0]] + ")");
  return true;
}

// As the function itself begins.
void Tracer::read_own_cache(PyFunctionObject* f, const Ref& key, const std::string& label) {
  const char* name = own_cache_of(f)->entries;
  const Facts::Id globals = facts_->dict(f->func_globals, "");
  PyObject* entries = facts_->read_key(globals, literal(name), std::string("global ") + name, where());
  found(entries, name);
  found(facts_->read_key(facts_->dict(entries, name), pooled(key.get()), label, where()), label);
}

// False, and the call's last, where what ran unwatched touched more than its own.
bool Tracer::leaves_alone(const Fill& fill, PyObject* result) {
  const std::optional<std::vector<Ref>> changes = picture_of_changes();
  if (host_.on_unwatched(host_.context, true) && changes && same(*changes, fill.changes) && !keeps(result, *changes))
    return true;
  interrupt("the cache of " + name_of_cache(fill.cache));
  return false;
}

void Tracer::cache_filled() {
  const Fill fill = std::exchange(fill_, {});
  const bool is_own = PyFunction_Check(fill.cache);
  auto* function = reinterpret_cast<PyFunctionObject*>(fill.cache);
  if (const Preparation* known = is_own ? row_of(function, kPreparations) : nullptr) {
    if (!is_marked(fill.key.get(), known->mark)) return deny("call of " + fill.label);
    return leaves_alone(fill, Py_None) ? load_attr(fill.key.get(), literal(known->mark), true) : void();
  }
  PyObject* entries = is_own ? PyDict_GetItemString(function->func_globals, own_cache_of(function)->entries)
                             : reinterpret_cast<CacheObject*>(fill.cache)->cache;
  PyObject* kept = entries && PyDict_CheckExact(entries) ? PyDict_GetItemWithError(entries, fill.key.get()) : nullptr;
  if (!kept || (is_own && kept != at(1))) return PyErr_Clear(), deny("call of " + fill.label);
  if (!leaves_alone(fill, at(1))) return;
  is_own ? read_own_cache(function, fill.key, fill.label) : read_cache(fill.cache, fill.key, fill.label);
}

std::string Tracer::name_of_cache(PyObject* callable) {
  PyObject* function = PyFunction_Check(callable) ? callable : reinterpret_cast<CacheObject*>(callable)->function;
  return PyFunction_Check(function) ? PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(function)->func_qualname)
                                    : callee_text(function);
}

}  // namespace fastjit::observe
#endif
