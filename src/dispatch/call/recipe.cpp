#include "dispatch/call/recipe.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "dispatch/call/plain_class.h"
#include "dispatch/call/replay.h"
#include "dispatch/call/spec.h"

namespace fastjit::dispatch {
namespace {

constexpr int kMaxDepth = 16;

bool is_constant(PyObject* object) {
  if (object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
      PyUnicode_CheckExact(object) || PyType_Check(object))
    return true;
  const std::string_view type = Py_TYPE(object)->tp_name;  // of torch: these never change
  return type == "torch.dtype" || type == "torch.device" || type == "torch.memory_format" || type == "torch.layout" ||
         type == "torch.Size";
}

// The keys in the dictionary's own order, whatever __iter__ its class has.
PyObject* keys_of(PyObject* dict) {
  if (!PyODict_Check(dict)) return PyDict_Keys(dict);
  PyObject* iterator = PyODict_Type.tp_iter(dict);
  PyObject* keys = iterator ? PySequence_List(iterator) : nullptr;
  Py_XDECREF(iterator);
  return keys;
}

PyObject* kept_object(PyObject* held) { return PyWeakref_CheckRefExact(held) ? PyWeakref_GET_OBJECT(held) : held; }

bool names_torch_size(PyObject* type) {
  return std::string_view(reinterpret_cast<PyTypeObject*>(type)->tp_name) == "torch.Size";
}
bool is_torch_size(PyObject* object) { return names_torch_size(reinterpret_cast<PyObject*>(Py_TYPE(object))); }

// torch.return_types.*: struct sequences, which are made from one tuple.
bool is_return_type(PyObject* object) {
  if (!PyTuple_Check(object) || PyTuple_CheckExact(object)) return false;
  if (is_torch_size(object)) return true;
  PyObject* module = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__module__");
  const bool yes =
      module && PyUnicode_Check(module) && PyUnicode_CompareWithASCIIString(module, "torch.return_types") == 0;
  Py_XDECREF(module);
  PyErr_Clear();
  return yes;
}

}  // namespace

Recipe::~Recipe() {
  for (Element& step : steps_) Py_XDECREF(step.object);
}

struct Recipe::Reader {
  struct Seen {
    size_t index;           // in the order of steps
    Py_ssize_t references;  // from within the result
    const observe::SideEffect* effect;
    bool done;
  };
  std::vector<Element>& steps;
  const std::vector<PyObject*>& numbers;
  std::vector<PyObject*>& leaves;
  std::string& why;
  const Stored& stored;
  const observe::Observation& call;
  const std::unordered_set<PyObject*>& kept;
  const std::function<int(PyObject*)>& argument;
  const observe::SideEffect* effect = nullptr;  // whose value is read; null: the result
  bool shares = false;
  std::unordered_map<PyObject*, Seen> containers{};
  std::unordered_set<PyObject*> tags_done{};

  bool refuse(const std::string& reason) {
    const std::string place = effect ? "store to " + effect->label + " at " + effect->where + ": as a result, " : "";
    if (why.empty()) why = place + reason;
    return false;
  }

  bool all(PyObject* result) {
    if (stored.values.empty()) return one(result, 0);
    steps.push_back({Kind::Tuple, nullptr, static_cast<Py_ssize_t>(stored.values.size()) + 1});
    containers.emplace(nullptr, Seen{0, 0, nullptr, true});  // that tuple
    if (!one(result, 1)) return false;
    for (size_t i = 0; i < stored.values.size(); ++i) {
      effect = stored.effects[i];
      if (!one(stored.values[i], 1)) return false;
    }
    return true;
  }

  bool is_new_class(PyObject* object) {
    return std::ranges::any_of(call.classes, [&](const observe::Ref& made) { return made.get() == object; });
  }

  // A torch.Size of sizes that differ from call to call.
  bool holds_numbers(PyObject* object) const {
    return is_torch_size(object) &&
           std::any_of(&PyTuple_GET_ITEM(object, 0), &PyTuple_GET_ITEM(object, 0) + PyTuple_GET_SIZE(object),
                       [&](PyObject* item) { return std::ranges::find(numbers, item) != numbers.end(); });
  }

  bool one(PyObject* object, int depth) {
    PyTypeObject* type = PyType_Check(object) ? reinterpret_cast<PyTypeObject*>(object) : Py_TYPE(object);
    if (is_new_class(reinterpret_cast<PyObject*>(type)))
      return refuse(std::string("its result has the class ") + type->tp_name + ", which is another in each call");
    if (depth > kMaxDepth) return refuse("its result is nested more than 16 deep");
    if (is_plain_tensor(object)) {
      const auto is_it = [&](const observe::Ref& one) { return one.get() == object; };
      const bool has_attributes = std::ranges::any_of(call.tagged, is_it);
      if (has_attributes && tags_done.insert(object).second) return tensor_with_attributes(object, depth);
      leaves.push_back(object);
      steps.push_back({Kind::Leaf});
      return true;
    }
    const auto number = std::find(numbers.begin(), numbers.end(), object);
    if (number != numbers.end()) {
      steps.push_back({Kind::Number, nullptr, number - numbers.begin()});
      return true;
    }
    if (is_constant(object) && !holds_numbers(object)) {
      steps.push_back({Kind::Constant, Py_NewRef(object)});
      return true;
    }
    if (!PyTuple_Check(object) && kept.contains(object)) {
      PyObject* weak = PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) ? PyWeakref_NewRef(object, nullptr) : nullptr;
      PyErr_Clear();
      steps.push_back({Kind::Kept, weak ? weak : Py_NewRef(object)});
      return true;
    }
    if (const int which = PyTuple_Check(object) ? -1 : argument(object); which >= 0) {
      steps.push_back({Kind::Argument, nullptr, which});
      return true;
    }
    const auto [seen, is_new] = containers.try_emplace(object, Seen{containers.size(), 0, effect, false});
    ++seen->second.references;
    if (!is_new) {
      if (!seen->second.done) return refuse("its result contains itself");
      steps.push_back({Kind::Same, nullptr, static_cast<Py_ssize_t>(seen->second.index)});
      return shares = true;
    }
    if (!container(object, depth)) return false;
    containers.at(object).done = true;
    return true;
  }

  bool tensor_with_attributes(PyObject* object, int depth) {
    PyObject* attributes = *_PyObject_GetDictPtr(object);
    PyObject* names = PyDict_Keys(attributes);
    PyObject* keys = PyList_AsTuple(names);
    Py_DECREF(names);
    steps.push_back({Kind::Tagged, keys});
    return one(object, depth) && values(attributes, keys, depth);
  }

  bool container(PyObject* object, int depth) {
    PyTypeObject* type = Py_TYPE(object);
    auto* type_object = reinterpret_cast<PyObject*>(type);
    if (PyTuple_CheckExact(object)) return sequence(object, {Kind::Tuple}, depth);
    if (PyList_CheckExact(object)) return sequence(object, {Kind::List}, depth);
    if (is_return_type(object)) return sequence(object, {Kind::Struct, Py_NewRef(type_object)}, depth);
    if (PyDict_CheckExact(object)) {
      PyObject* keys = PyDict_Keys(object);
      steps.push_back({Kind::Dict, PyList_AsTuple(keys), PyList_GET_SIZE(keys)});
      Py_DECREF(keys);
      return values(object, steps.back().object, depth);
    }
    if (!is_python_class(type)) return refuse(std::string("it returns a ") + type->tp_name);
    if (!PyTuple_Check(object)) return instance(object, depth);
    if (type->tp_dictoffset) return refuse(std::string("it returns a ") + type->tp_name);
    return sequence(object, {Kind::NamedTuple, Py_NewRef(type_object)}, depth);
  }

  bool sequence(PyObject* object, Element step, int depth) {
    step.count = PySequence_Fast_GET_SIZE(object);
    steps.push_back(step);
    for (Py_ssize_t i = 0; i < step.count; ++i)
      if (!one(PySequence_Fast_ITEMS(object)[i], depth + 1)) return false;
    return true;
  }

  bool values(PyObject* dict, PyObject* keys, int depth) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i) {
      PyObject* key = PyTuple_GET_ITEM(keys, i);
      if (!(is_constant(key) || observe::is_constant(key)) || is_new_class(key))
        return refuse(std::string("its result has a dictionary key of type ") + Py_TYPE(key)->tp_name);
      if (!one(PyDict_GetItemWithError(dict, key), depth + 1)) return false;
    }
    return true;
  }

  bool instance(PyObject* object, int depth) {
    PyObject* attributes = attributes_of(object);
    PyObject* keys = PyDict_Check(object) ? keys_of(object) : PyList_New(0);
    PyObject* names = attributes ? PyDict_Keys(attributes) : PyList_New(0);
    if (attributes && Py_REFCNT(attributes) != 1)
      why = std::string("its result's attributes live on: ") + Py_TYPE(object)->tp_name;
    PyObject* parts = PyTuple_New(3);
    PyTuple_SET_ITEM(parts, 0, Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(object))));
    PyTuple_SET_ITEM(parts, 1, PyList_AsTuple(keys));
    PyTuple_SET_ITEM(parts, 2, PyList_AsTuple(names));
    Py_DECREF(keys);
    Py_DECREF(names);
    steps.push_back({Kind::Instance, parts});
    return why.empty() && values(object, PyTuple_GET_ITEM(parts, 1), depth) &&
           (!attributes || values(attributes, PyTuple_GET_ITEM(parts, 2), depth));
  }

  // A list that a global holds too is returned as that list: the next call's result must be it as well.
  bool is_whole() {
    for (const auto& [object, seen] : containers) {
      const auto place = stored.in_places.find(object);
      const Py_ssize_t known = seen.references + (place == stored.in_places.end() ? 0 : place->second);
      effect = seen.effect;
      if (object && !PyTuple_Check(object) && Py_REFCNT(object) != known)
        return refuse(std::string("it returns a ") + Py_TYPE(object)->tp_name + " that exists outside its result");
    }
    return true;
  }
};

bool Recipe::build(PyObject* result, const std::vector<PyObject*>& numbers, std::vector<PyObject*>& leaves,
                   std::string& why, const Stored& stored, const observe::Observation& call,
                   const std::unordered_set<PyObject*>& kept, const std::function<int(PyObject*)>& argument) {
  Reader reader{steps_, numbers, leaves, why, stored, call, kept, argument};
  const bool known = reader.all(result) && reader.is_whole();
  shares_ = reader.shares;
  return known;
}

std::vector<observe::Ref> Recipe::hold() const {
  std::vector<observe::Ref> held;
  for (const Element& step : steps_)
    if (step.kind == Kind::Kept) held.push_back(observe::Ref::share(kept_object(step.object)));
  return held;
}

bool Recipe::has_tensors() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Element& step) { return step.kind == Kind::Leaf; });
}

int Recipe::traverse(visitproc visit, void* arg) const {
  for (const Element& step : steps_) Py_VISIT(step.object);
  return 0;
}

std::string Recipe::text() const {
  // The ints of a torch.Size of which none differs from call to call, whether that was known at first or not.
  const auto fixed_sizes = [&](size_t at) {
    const Element& step = steps_[at];
    std::vector<PyObject*> ints;
    if (step.kind == Kind::Constant && is_torch_size(step.object))
      ints.assign(&PyTuple_GET_ITEM(step.object, 0), &PyTuple_GET_ITEM(step.object, 0) + PyTuple_GET_SIZE(step.object));
    const bool is_made = step.kind == Kind::Struct && names_torch_size(step.object);
    for (Py_ssize_t i = 1; is_made && i <= step.count; ++i) {
      const Element& item = steps_[at + static_cast<size_t>(i)];
      if (item.kind != Kind::Constant) return std::vector<PyObject*>();
      ints.push_back(item.object);
    }
    return ints;
  };
  std::string out;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Element& step = steps_[i];
    const std::vector<PyObject*> ints = fixed_sizes(i);
    out += ints.empty() ? std::to_string(static_cast<int>(step.kind)) + ":" + std::to_string(step.count) : "torch.Size";
    if (step.object && ints.empty()) out += " " + repr(step.object);
    for (PyObject* one : ints) out += " " + repr(one);
    if (step.kind == Kind::Struct) i += ints.size();
    out += "; ";
  }
  return out;
}

std::vector<uint32_t> Recipe::numbers() const {
  std::vector<uint32_t> out;
  for (const Element& step : steps_)
    if (step.kind == Kind::Number) out.push_back(static_cast<uint32_t>(step.count));
  return out;
}

void Recipe::renumber(const Places& places, const std::vector<PyObject*>& numbers) {
  for (Element& step : steps_) {
    if (step.kind != Kind::Number) continue;
    const auto index = static_cast<size_t>(step.count);
    if (places.numbers[index] >= 0)
      step.count = places.numbers[index];
    else if (places.values[index] >= 0)
      step = {Kind::Value, nullptr, places.values[index]};
    else if (places.scalars[index] >= 0)
      step = {Kind::Size, nullptr, places.scalars[index]};
    else
      step = {Kind::Constant, Py_NewRef(numbers[index])};
  }
}

struct Recipe::Maker {
  const Element* step;
  PyObject** leaves;
  const Given& given;
  std::vector<PyObject*>* made;  // the containers so far, owned; null where no step asks for them

  PyObject* one() {
    const Element& s = *step++;
    switch (s.kind) {
      case Kind::Leaf:
        return *leaves++;
      case Kind::Constant:
        return Py_NewRef(s.object);
      case Kind::Number:
        return Py_NewRef(given.numbers[s.count]);
      case Kind::Value:
        return Py_NewRef(given.values[s.count]);
      case Kind::Size:
        return PyLong_FromLongLong(static_cast<long long>(given.scalars[s.count]));
      case Kind::Same:
        return Py_XNewRef((*made)[static_cast<size_t>(s.count)]);
      case Kind::Tagged:
        return tagged(s);
      case Kind::Argument:
        return Py_NewRef(given.targets[s.count]);
      case Kind::Kept:
        return Py_NewRef(kept_object(s.object));
      default:
        break;
    }
    if (!made) return container(s);
    const size_t index = made->size();
    made->push_back(nullptr);
    PyObject* object = container(s);
    (*made)[index] = Py_XNewRef(object);
    return object;
  }

  PyObject* container(const Element& s) {
    if (s.kind == Kind::Tuple) return items(PyTuple_New(s.count), s.count, true);
    if (s.kind == Kind::List) return items(PyList_New(s.count), s.count, false);
    if (s.kind == Kind::Dict) return fill(PyDict_New(), s.object, PyDict_SetItem);
    if (s.kind == Kind::Instance) return instance(s);
    PyObject* fields = items(PyTuple_New(s.count), s.count, true);
    if (!fields) return nullptr;
    PyObject* out = nullptr;
    if (s.kind == Kind::Struct) {
      out = PyObject_CallOneArg(s.object, fields);
    } else if (PyObject* arguments = PyTuple_Pack(1, fields)) {
      out = PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(s.object), arguments, nullptr);
      Py_DECREF(arguments);
    }
    Py_DECREF(fields);
    return out;
  }

  PyObject* tagged(const Element& s) {
    PyObject* tensor = one();
    PyObject* attributes = fill(PyObject_GenericGetDict(tensor, nullptr), s.object, PyDict_SetItem);
    if (!attributes) Py_CLEAR(tensor);
    Py_XDECREF(attributes);
    return tensor;
  }

  // As the recorded call left it: its __init__ ran then, with no effect beside the instance.
  PyObject* instance(const Element& s) {
    auto* type = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(s.object, 0));
    PyObject *keys = PyTuple_GET_ITEM(s.object, 1), *names = PyTuple_GET_ITEM(s.object, 2);
    static PyObject* const no_arguments = PyTuple_New(0);
    PyTypeObject* layout = layout_of(type);
    PyObject* out = layout->tp_new(type, no_arguments, nullptr);
    out = fill(out, keys, layout == &PyODict_Type ? PyODict_SetItem : PyDict_SetItem);
    if (!PyTuple_GET_SIZE(names)) return out;
    PyObject* attributes = fill(out ? PyObject_GenericGetDict(out, nullptr) : nullptr, names, PyDict_SetItem);
    if (!attributes) Py_CLEAR(out);
    Py_XDECREF(attributes);
    return out;
  }

  // On failure the rest is still walked so that every leaf reference is released.
  PyObject* items(PyObject* container, Py_ssize_t n, bool tuple) {
    bool ok = container != nullptr;
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = one();
      if (!item) ok = false;
      if (!container)
        Py_XDECREF(item);
      else if (tuple)
        PyTuple_SET_ITEM(container, i, item);
      else
        PyList_SET_ITEM(container, i, item);
    }
    if (!ok) Py_CLEAR(container);
    return container;
  }

  PyObject* fill(PyObject* dict, PyObject* keys, int (*set)(PyObject*, PyObject*, PyObject*)) {
    bool ok = dict != nullptr;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i) {
      PyObject* value = one();
      if (!value || (dict && set(dict, PyTuple_GET_ITEM(keys, i), value) < 0)) ok = false;
      Py_XDECREF(value);
    }
    if (!ok) Py_CLEAR(dict);
    return dict;
  }
};

PyObject* Recipe::rebuild(PyObject** leaves, const Given& given) const {
  std::vector<PyObject*> made;
  Maker maker{steps_.data(), leaves, given, shares_ ? &made : nullptr};
  PyObject* result = maker.one();
  for (PyObject* object : made) Py_XDECREF(object);
  return result;
}

}  // namespace fastjit::dispatch
