// What Python asks of a container: its truth, its length, an item, all of them in turn.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <array>
#include <cstring>

#include "observe/judge/tracer.h"

namespace fastjit::observe {

// Of a class made in C, which version made it a heap type is no matter to the reader.
static std::string text_of_method(PyTypeObject* type, const char* name) {
  constexpr std::pair<const char*, const char*> kTexts[] = {
      {"__getitem__", "read of item of"}, {"__setitem__", "store to item of"}, {"__iter__", "iteration over"},
      {"__len__", "length of"},           {"__contains__", "search in"},
  };
  for (const auto& [method, text] : kTexts)
    if ((type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) && !std::strcmp(name, method)) return text;
  return std::string(name) + " of";
}

// A method that a class has of a type in C.
static bool is_c_method(PyObject* method) {
  return method && (Py_IS_TYPE(method, &PyWrapperDescr_Type) || Py_IS_TYPE(method, &PyMethodDescr_Type));
}

void Tracer::type_method(PyObject* o, const char* name) {
  note_instance(o);
  PyObject* method = class_attr(Py_TYPE(o), name);
  if (PyDict_Check(o)) class_attr(Py_TYPE(o), "__missing__");
  if (method && PyFunction_Check(method)) return may_enter_any();
  const bool is_slot = is_c_method(method);
  if (is_slot && fresh_.contains(o))  // a new instance of a subclass of a builtin container, which it does not override
    for (PyTypeObject* base : {&PyDict_Type, &PyODict_Type, &PyList_Type})
      if (PyDescr_TYPE(method) == base) {
        if (std::strcmp(name, "__getitem__")) return;
        raising_ = true;  // where a key is missing: what it holds the call knows
        return may_enter_any();
      }
  // The items of an instance of a subclass of tuple are for good.
  if (is_slot && PyTuple_Check(o) && PyDescr_TYPE(method) == &PyTuple_Type)
    for (const char* known : {"__iter__", "__getitem__", "__len__"})
      if (!std::strcmp(name, known)) return;
  if (!method || !PyCFunction_Check(method)) deny(text_of_method(Py_TYPE(o), name) + " " + name_of(o));
}

// What the class of a class says in Python; null: nothing.
PyObject* Tracer::metaclass_method(PyObject* type, const char* name) {
  if (!PyType_Check(type) || Py_TYPE(type) == &PyType_Type) return nullptr;
  PyObject* method = class_attr(Py_TYPE(type), name);
  return method && PyFunction_Check(method) ? method : nullptr;
}

// An instance of a subclass of dict that facts lead to and that leaves these methods to dict.
bool Tracer::acts_as_dict(PyObject* o, std::initializer_list<const char*> methods) {
  if (!PyDict_Check(o) || PyODict_Check(o) || is_dict(o) || !is_reached(o)) return false;
  note_instance(o);
  return std::ranges::all_of(methods, [&](const char* name) {
    PyObject* method = class_attr(Py_TYPE(o), name);
    return is_c_method(method) && PyDescr_TYPE(method) == &PyDict_Type;
  });
}

// All items of such an instance.
bool Tracer::opens_subclass(PyObject* o) {
  if (!acts_as_dict(o, {"__iter__", "__len__", "keys", "values", "items"})) return false;
  if (!opened_.insert(o).second) return true;
  Facts::Id id;
  if (!dict_base_node(o, &id)) return false;
  open_dict(id, o);
  return true;
}

// One item of such an instance. What its class makes of a missing key is Python code.
bool Tracer::reads_subclass_item(PyObject* o, PyObject* key) {
  Facts::Id id;
  if (!acts_as_dict(o, {"__getitem__"}) || !dict_base_node(o, &id)) return false;
  PyObject* missing = class_attr(Py_TYPE(o), "__missing__");
  raising_ = !missing;
  read_dict_item(id, o, key);
  if (missing) may_enter_any();
  return true;
}

bool Tracer::iterable(PyObject* o, const char* verb) {
  o = unwrapped(o);
  if (PyTuple_Check(o) && is_tuple(o)) return true;
  if (is_plain_value(o)) return touch(o), true;
  if ((PyList_CheckExact(o) || is_dict(o) || is_deque(o)) && is_known(o)) return true;
  // The order of a set is that of its hashes: determined for values, not for objects hashed by address.
  if (PyAnySet_CheckExact(o) && readable(o)) return true;
  if (is_tensor(o)) {
    class_attr(Py_TYPE(o), "__iter__");
    may_enter_any();
    return true;
  }
  PyObject* dict = is_view(o) ? view_dict(o) : o;
  if (dict != o && is_known(dict)) return true;
  if (open(dict) || opens_subclass(dict)) return true;
  if (is_instance(o)) {
    type_method(o, "__iter__");
    return reason_.empty();
  }
  if (reads_array(o)) return true;
  if (metaclass_method(o, "__iter__")) return may_enter_any(), true;
  deny(std::string(verb) + " " + name_of(dict));
  return false;
}

// A rehearsal would write to a tensor, or to its memory, that others find written then.
bool Tracer::writes_before(PyObject* tensor) {
  if (!rehearsal_ || (host_.is_made && host_.is_made(host_.context, tensor))) return false;
  return deny("write to a tensor that was there before"), true;
}

// An operator: its name and `out=` tell whether it writes, and where.
bool Tracer::writes_before(PyObject* callable, Args args) {
  if (!rehearsal_) return false;
  const std::string name = callee_text(callable);
  const auto writes_to = [&](PyObject* target) {
    if (target == Py_None) return false;
    return is_tensor(target) ? writes_before(target) : (deny("call of " + name), true);
  };
  PyObject* names = unpacked_names_ ? unpacked_names_ : top().kwnames;
  const Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < keywords; ++i)
    if (is_named(PyTuple_GET_ITEM(names, i), "out") && writes_to(args[args.size() - static_cast<size_t>(keywords - i)]))
      return true;
  const bool updates = name.find("batch_norm") != std::string::npos || name.find("instance_norm") != std::string::npos;
  if (updates && std::ranges::any_of(args, [&](PyObject* arg) { return is_tensor(arg) && writes_before(arg); }))
    return true;
  const bool writes = name.ends_with("_") && !name.ends_with("__");
  return (writes || name.find(".__i") != std::string::npos) && !args.empty() && writes_to(args[0]);
}

// An operation of a tensor, unless its class is given another method for it.
void Tracer::tensor_method(PyObject* tensor, const char* name) {
  if (std::strcmp(name, "__setitem__") == 0 && writes_before(tensor)) return;
  class_attr(Py_TYPE(tensor), name);
  may_enter_any();
}

// A slot that a class has of a number or a string, as members of an IntFlag do: the value is for good.
static bool is_value_method(PyObject* method) {
  constexpr std::array kTypes{&PyLong_Type, &PyFloat_Type, &PyUnicode_Type};
  return Py_IS_TYPE(method, &PyWrapperDescr_Type) && std::ranges::find(kTypes, PyDescr_TYPE(method)) != kTypes.end();
}

void Tracer::truth(PyObject* o) {
  if (PyBool_Check(o) || o == Py_None) return;
  static PyObject* const zero = PyLong_FromLong(0);
  if (numbers_.is_open(o) && (compares_open(Py_NE, o, zero) || compares_read(Py_NE, o, zero))) return;
  if (is_plain_value(o)) return touch(o);
  if (is_tensor(o)) return tensor_method(o, "__bool__");
  Facts::Id id;
  if (dict_node(o, &id) || list_node(o, &id)) return static_cast<void>(facts_->truth(id, where()));
  if (PyTuple_Check(o) && is_tuple(o)) return;
  bool is_container = PyList_CheckExact(o) || is_dict(o) || PySet_CheckExact(o) || is_deque(o);
  if ((is_container && is_known(o)) || PyFrozenSet_CheckExact(o) || ((PySet_CheckExact(o) || is_deque(o)) && open(o)))
    return;
  if (PyType_Check(o) || PyFunction_Check(o) || PyCFunction_Check(o) || PyMethod_Check(o) || PyModule_Check(o)) return;
  if (fresh_.contains(o) && !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;
  if (is_instance(o)) {
    note_instance(o);
    for (const char* name : {"__bool__", "__len__"})
      if (PyObject* method = class_attr(Py_TYPE(o), name))
        return PyFunction_Check(method)  ? may_enter_any()
               : is_value_method(method) ? touch(o)
                                         : deny("truth of " + name_of(o));
    return;
  }
  deny("truth of " + name_of(o));
}

void Tracer::length(PyObject* o, bool gives_it) {
  o = unwrapped(o);
  if (PyTuple_Check(o) && is_tuple(o)) return;
  if (is_plain_value(o)) return touch(o);
  if (is_tensor(o)) {
    tensor_method(o, "__len__");
    return has_data_sizes() && rank_of(o) > 0 ? read_length(o, gives_it) : void();
  }
  if (is_view(o)) o = view_dict(o);
  if (is_known(o) && (is_dict(o) || PyList_CheckExact(o) || PySet_CheckExact(o) || is_deque(o))) return;
  if (PyFrozenSet_CheckExact(o) || ((PySet_CheckExact(o) || is_deque(o)) && open(o))) return;
  Facts::Id id;
  if (dict_node(o, &id) || list_node(o, &id)) return static_cast<void>(facts_->length(id, where()));
  if (opens_subclass(o)) return;
  if (is_instance(o)) return type_method(o, "__len__");
  if (PyObject* method = metaclass_method(o, "__len__")) return may_enter(method);
  if (reads_array(o)) return;
  deny("length of " + name_of(o));
}

// Weak references to one class are equal: facts are about the one that is there. Null: there is none, or it is about
// another object than a class.
static PyObject* stored_key(PyObject* dict, PyObject* reference) {
  PyObject *key, *value, *referent = PyWeakref_GET_OBJECT(reference);
  for (Py_ssize_t at = 0; PyType_Check(referent) && PyDict_Next(dict, &at, &key, &value);)
    if (PyWeakref_CheckRefExact(key) && PyWeakref_GET_OBJECT(key) == referent) return key;
  return nullptr;
}

void Tracer::read_dict_item(Facts::Id id, PyObject* dict, PyObject* index) {
  if (PyWeakref_CheckRefExact(index) && !(index = stored_key(dict, index)))
    return interrupt("what " + names_[dict] + " keeps");
  PyObject* key = pooled(index);
  if (PyObject* again = nullptr; read_again(id, key, &again)) {
    if (!again || !PyDict_CheckExact(again) || module_dicts_.contains(again) || !module_dicts_.contains(dict)) return;
  }
  const std::string label = item_label(dict, index);
  if (counts_key(id, key, label)) return;
  PyObject* value = facts_->read_key(id, key, label, where());
  if (!value) return;
  auto owner = module_dicts_.find(dict);
  const bool of_module = owner != module_dicts_.end() && PyUnicode_CheckExact(index);
  of_module ? found_in_module(owner->second, key, value) : static_cast<void>(found(value, label));
}

void Tracer::read_list_item(Facts::Id id, PyObject* list, PyObject* index) {
  if (PySlice_Check(index)) {
    open(list);
    top().fresh_result = true;
    return;
  }
  if (!PyLong_Check(index)) return deny("read of item of " + name_of(list));
  Py_ssize_t i = PyLong_AsSsize_t(index);
  if (i < 0 || i >= PyList_GET_SIZE(list)) i += i < 0 ? facts_->length(id, where()) : 0;
  if (i < 0 || i >= PyList_GET_SIZE(list)) return static_cast<void>(facts_->length(id, where()));  // IndexError
  const std::string label = names_[list] + "[" + std::to_string(i) + "]";
  if (!opens_item(id, i, label)) found(facts_->read_item(id, i, where()), label);
}

// torch makes a tensor of a list without an operator that would show what it reads.
bool Tracer::is_plain_index(PyObject* index) {
  if ((!PyList_CheckExact(index) && !PyTuple_CheckExact(index)) || holds_scalars_only(index)) return true;
  PyObject** items = PySequence_Fast_ITEMS(index);
  return PyTuple_CheckExact(index) &&
         std::all_of(items, items + Py_SIZE(index), [&](PyObject* item) { return is_plain_index(item); });
}

// A slice that turns out to be the whole is no operator: how long the tensor is decides. True: whoever watches the
// operators knows of the index, and of the sizes in it.
bool Tracer::notes_slices(PyObject* tensor, PyObject* index) {
  if (!host_.has_data_sizes || !host_.has_data_sizes(host_.context)) return false;
  const auto is_bounded = [](PyObject* o) {
    const auto* slice = reinterpret_cast<PySliceObject*>(o);
    return PySlice_Check(o) && (slice->start != Py_None || slice->stop != Py_None || slice->step != Py_None);
  };
  const bool is_tuple = PyTuple_CheckExact(index);
  const std::span items(is_tuple ? &PyTuple_GET_ITEM(index, 0) : &index,
                        is_tuple ? static_cast<size_t>(PyTuple_GET_SIZE(index)) : 1);
  const bool bounded = std::ranges::any_of(items, is_bounded);
  if (!bounded && std::ranges::none_of(items, [&](PyObject* o) { return is_size(o); })) return false;
  if (tells_slices(tensor, items)) return true;
  if (bounded && !asks_of_slices(tensor, items)) host_.on_size_read(host_.context, tensor, -1);
  return false;
}

// at::indexing::impl::applySlice: a slice is the whole if it begins at 0, has step 1 and ends where the dim does or
// later. False: which dims it means is not known here.
bool Tracer::asks_of_slices(PyObject* tensor, std::span<PyObject* const> items) {
  const auto is_int = [&](PyObject* o) { return o == Py_None || (PyLong_CheckExact(o) && !numbers_.is_open(o)); };
  const auto takes_dim = [](PyObject* o) { return PySlice_Check(o) || PyLong_CheckExact(o); };
  const auto is_known = [&](PyObject* o) {
    const auto* slice = reinterpret_cast<PySliceObject*>(o);
    if (PySlice_Check(o)) return is_int(slice->start) && is_int(slice->stop) && is_int(slice->step);
    return o == Py_None || o == Py_Ellipsis || (PyLong_CheckExact(o) && !is_size(o));
  };
  if (!std::ranges::all_of(items, is_known)) return false;
  const long left = rank_of(tensor) - std::ranges::count_if(items, takes_dim);
  long dim = 0;
  for (PyObject* o : items) {
    if (o == Py_Ellipsis) dim += left;
    if (!takes_dim(o)) continue;
    Py_ssize_t start = 0, stop = 0, step = 0;
    const bool is_whole = !PySlice_Check(o) || PySlice_Unpack(o, &start, &stop, &step) < 0 || start != 0 || step != 1 ||
                          stop < 0 || stop == PY_SSIZE_T_MAX;  // or never the whole
    if (!is_whole) host_.on_slice(host_.context, tensor, static_cast<int>(dim), stop);
    ++dim;
  }
  return !PyErr_Occurred() || (PyErr_Clear(), false);
}

// The call fills in each call what it finds empty: it may leave it empty, too, see forget_emptied(). Until then it is
// as good as its own. False: not that anybody knows.
bool Tracer::fill_empty(PyObject* dict) {
  Facts::Id id;
  const bool is_again = host_.filled_before == "what " + names_[dict] + " keeps at " + where();
  if (!is_again || PyDict_GET_SIZE(dict) != 0 || !dict_node(dict, &id)) return false;
  facts_->length(id, where());
  filled_.insert(dict);
  return true;
}

void Tracer::subscript_of(PyObject* container, PyObject* index) {
  container = unwrapped(container);
  if (is_tensor(container)) {
    if (notes_slices(container, index)) return tensor_method(container, "__getitem__");
    touch(index);
    if (!readable_index(index)) return deny("index of type " + name_of(index));
    if (!is_plain_index(index)) return deny("index by a list that holds more than numbers and tensors");
    return tensor_method(container, "__getitem__");
  }
  touch(index);
  const bool is_alias = PyType_Check(container) && !(((PyTypeObject*)container)->tp_flags & Py_TPFLAGS_HEAPTYPE);
  if (is_alias) return;  // list[int | None]
  if (is_array(container) && reads_elements(container, index)) return;
  if (!PySlice_Check(index) && !keyable(index)) return deny("hash of " + name_of(index));
  raising_ = !is_instance(container);  // a missing key or a list's length is a fact too
  // What its factory makes for a key that is missing stays there.
  if (is_defaultdict(container) && is_reached(container) && !dict_lookup(container, index, nullptr))
    if (!fill_empty(container)) return interrupt("what " + names_[container] + " keeps");
  if (Facts::Id id; dict_node(container, &id)) return read_dict_item(id, container, index);
  if (Facts::Id id; list_node(container, &id)) return read_list_item(id, container, index);
  if (is_plain_value(container) || (PyTuple_Check(container) && is_tuple(container))) return;
  const bool is_found_deque = is_deque(container) && open(container);
  if (is_found_deque ||
      ((PyList_CheckExact(container) || is_dict(container) || is_deque(container)) && is_known(container))) {
    if (reads_last_of_grown(container, index)) takes_grown_ = true;
    top().container_result = PySlice_Check(index);
    if (fresh_.contains(container)) note_item(container, index);
    // What its factory makes of a missing key is new.
    if (is_defaultdict(container) && !dict_lookup(container, index, nullptr))
      top().container_result = true, may_enter_any();
    return;
  }
  if (reads_subclass_item(container, index)) return;
  if (is_instance(container)) return type_method(container, "__getitem__");
  const bool makes_alias = PyType_Check(container) && !type_lookup(Py_TYPE(container), literal("__getitem__"), nullptr);
  if (makes_alias && class_attr((PyTypeObject*)container, "__class_getitem__")) return may_enter_any();
  deny("read of item of " + name_of(container));
}

}  // namespace fastjit::observe
#endif
