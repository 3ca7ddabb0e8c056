// The oracle of the read set: changes what each fact names, asks whether the check sees it, and puts it back.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <functional>

#include "observe/facts/facts.h"

namespace fastjit::observe {
namespace {

using Seen = Mutation::Seen;

/// Runs `change`, then the check, then `restore`; a change that could not be made proves nothing.
class Trial {
 public:
  explicit Trial(Facts& facts)
      : facts_(facts), other_(Ref::steal(PyObject_CallNoArgs((PyObject*)&PyBaseObject_Type))) {}
  PyObject* other() const { return other_.get(); }  // no fact expects this object

  Seen run(const std::function<bool()>& change, const std::function<void()>& restore) {
    if (!change()) return PyErr_Clear(), Seen::NotTried;
    const bool held = facts_.check();
    restore();
    PyErr_Clear();
    return held ? Seen::Missed : facts_.check() ? Seen::Noticed : Seen::Stuck;
  }
  template <class T>
  Seen swap(T** place, T* value) {
    T* const old = *place;
    return run([&] { return *place = value, true; }, [&] { *place = old; });
  }

 private:
  Facts& facts_;
  Ref other_;
};

Seen replace_item(Trial& trial, PyObject* dict, const Key& key) {
  PyObject* name = key.name.get();
  Ref old = Ref::share(dict_lookup(dict, name, nullptr));
  if (key.expect.kind == Expected::Kind::Present) {
    // A key that goes and comes back stands at the end, which only facts about the order mind.
    return trial.run([&] { return PyObject_DelItem(dict, name) == 0; },
                     [&] { PyObject_SetItem(dict, name, old.get()); });
  }
  return trial.run([&] { return PyObject_SetItem(dict, name, trial.other()) == 0; },
                   [&] { old ? PyObject_SetItem(dict, name, old.get()) : PyObject_DelItem(dict, name); });
}

Seen replace_class_item(Trial& trial, PyTypeObject* type, const Key& key) {
  PyTypeObject* first = type;
  for (Py_ssize_t i = 0; key.after && i + 1 < PyTuple_GET_SIZE(type->tp_mro); ++i)
    if (PyTuple_GET_ITEM(type->tp_mro, i) == (PyObject*)key.after)
      first = (PyTypeObject*)PyTuple_GET_ITEM(type->tp_mro, i + 1);
  if (!(first->tp_flags & Py_TPFLAGS_HEAPTYPE)) return Seen::NotTried;
  Ref old = Ref::share(dict_lookup(first->tp_dict, key.name.get(), nullptr));
  auto store = [&](PyObject* value) {  // without slots, so that nothing runs
    const int failed =
        value ? PyDict_SetItem(first->tp_dict, key.name.get(), value) : PyDict_DelItem(first->tp_dict, key.name.get());
    PyType_Modified(first);
    return failed == 0;
  };
  if (key.expect.kind == Expected::Kind::Present) return Seen::NotTried;
  return trial.run([&] { return store(trial.other()); }, [&] { store(old.get()); });
}

Seen cut(Trial& trial, PyObject* list, Py_ssize_t length) {
  Ref rest = Ref::steal(PyList_GetSlice(list, length, PyList_GET_SIZE(list)));
  return trial.run([&] { return PyList_SetSlice(list, length, PyList_GET_SIZE(list), nullptr) == 0; },
                   [&] { PyList_SetSlice(list, length, length, rest.get()); });
}

Seen lengthen(Trial& trial, PyObject* container) {
  if (PyList_Check(container))
    return trial.run(
        [&] { return PyList_Append(container, trial.other()) == 0; },
        [&] { PyList_SetSlice(container, PyList_GET_SIZE(container) - 1, PyList_GET_SIZE(container), nullptr); });
  return trial.run([&] { return PyObject_SetItem(container, trial.other(), Py_None) == 0; },
                   [&] { PyObject_DelItem(container, trial.other()); });
}

Seen reorder(Trial& trial, PyObject* ordered) {
  const Ref first = Ref::share(reinterpret_cast<OrderedDictObject*>(ordered)->first->key);
  const auto move = [&](PyObject* last) {
    return bool(Ref::steal(PyObject_CallMethod(ordered, "move_to_end", "OO", first.get(), last)));
  };
  return trial.run([&] { return move(Py_True); }, [&] { move(Py_False); });
}

Seen replace_bases(Trial& trial, PyTypeObject* type) {
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return Seen::NotTried;
  PyObject* const old = type->tp_mro;
  Ref fewer = Ref::steal(PyTuple_GetSlice(old, 0, PyTuple_GET_SIZE(old) - 1));
  auto store = [&](PyObject* mro) {
    type->tp_mro = mro;
    PyType_Modified(type);
  };
  return trial.run([&] { return store(fewer.get()), true; }, [&] { store(old); });
}

Seen add_name(Trial& trial, PyTypeObject* type) {
  const Ref name = Ref::steal(PyUnicode_FromString("a name that no class has"));
  return trial.run(
      [&] {
        const bool added = PyDict_SetItem(type_dict(type), name.get(), Py_None) == 0;
        PyType_Modified(type);
        return added;
      },
      [&] {
        PyDict_DelItem(type_dict(type), name.get());
        PyType_Modified(type);
      });
}

Seen mutate_key(Trial& trial, Node& n, const Key& key) {
  switch (n.kind) {
    case Node::Kind::Dict: {
      const Seen seen = replace_item(trial, n.object, key);
      if constexpr (kInlineValues)  // also as a store to the object's attribute does it
        if (PyObject** place = shared_place(n.object, key.name.get()); place && seen == Seen::Noticed)
          return trial.swap(place, key.expect.kind == Expected::Kind::Present ? nullptr : trial.other());
      return seen;
    }
    case Node::Kind::List:
      if (key.expect.kind == Expected::Kind::Present) return cut(trial, n.object, key.hint);
      return trial.swap(&((PyListObject*)n.object)->ob_item[key.hint], trial.other());
    case Node::Kind::Type:
      return replace_class_item(trial, (PyTypeObject*)n.object, key);
    case Node::Kind::Cell:
      return trial.swap(&((PyCellObject*)n.object)->ob_ref, trial.other());
    case Node::Kind::Set: {
      if (n.ordered) return Seen::NotTried;  // a member that comes back has another place
      if (key.expect.kind == Expected::Kind::Absent)
        return trial.run([&] { return PySet_Add(n.object, key.name.get()) == 0; },
                         [&] { PySet_Discard(n.object, key.name.get()); });
      Ref member = Ref::share(key.expect.object);
      return trial.run([&] { return PySet_Discard(n.object, member.get()) == 1; },
                       [&] { PySet_Add(n.object, member.get()); });
    }
    case Node::Kind::Context: {
      Ref token;
      return trial.run([&] { return bool(token = Ref::steal(PyContextVar_Set(n.object, trial.other()))); },
                       [&] { PyContextVar_Reset(n.object, token.get()); });
    }
    case Node::Kind::Slot:
      return trial.swap(reinterpret_cast<PyObject**>(n.object), trial.other());
    default:
      return Seen::NotTried;
  }
}

void mutate_node(Trial& trial, Node& n, std::vector<Mutation>& out) {
  auto tried = [&](const char* what, Seen seen) { out.push_back({n.label + ": " + what, seen}); };
  if (n.kind == Node::Kind::Function) {
    auto* f = reinterpret_cast<PyFunctionObject*>(n.object);
    tried("code", trial.swap(&f->func_code, trial.other()));
    tried("defaults", trial.swap(&f->func_defaults, trial.other()));
    tried("keyword defaults", trial.swap(&f->func_kwdefaults, trial.other()));
  }
  if (n.kind == Node::Kind::Setting)
    tried("value", trial.run([&] { return n.setting->set(n.value ^ 1), true; }, [&] { n.setting->set(n.value); }));
  if (char* element = n.kind == Node::Kind::Array ? first_byte(n) : nullptr)
    tried("elements", trial.run([&] { return *element ^= 1, true; }, [&] { *element ^= 1; }));
  if (n.kind == Node::Kind::Deque)
    tried("items",
          trial.run([&] { return bool(Ref::steal(PyObject_CallMethod(n.object, "append", "O", trial.other()))); },
                    [&] { Ref::steal(PyObject_CallMethod(n.object, "pop", nullptr)); }));
  if (n.kind == Node::Kind::Word) tried("value", trial.swap(n.dict_slot, trial.other()));
  if (n.kind == Node::Kind::Order) tried("order", reorder(trial, n.object));
  if (n.kind == Node::Kind::Object) {
    tried("class", trial.swap(&n.object->ob_type, &PyBaseObject_Type));
    if (n.dict_slot) tried("attribute dictionary", trial.swap(n.dict_slot, trial.other()));
  }
  if (n.kind == Node::Kind::Type && n.ordered) tried("bases", replace_bases(trial, (PyTypeObject*)n.object));
  if (n.kind == Node::Kind::Type && n.parts[0]) tried("names", add_name(trial, (PyTypeObject*)n.object));
  if (n.kind == Node::Kind::Set && n.ordered)
    tried("members", trial.run([&] { return PySet_Add(n.object, trial.other()) == 0; },
                               [&] { PySet_Discard(n.object, trial.other()); }));
  const bool counted = n.length >= 0 || n.truth == 0 || (n.kind == Node::Kind::Dict && n.ordered);
  if (counted) tried("length", lengthen(trial, n.object));
}

}  // namespace

std::vector<Mutation> Facts::mutate() {
  std::vector<Mutation> out;
  if (!check()) return out;
  Trial trial(*this);
  for (Node& n : nodes_) {
    mutate_node(trial, n, out);
    for (size_t i = 0; i < n.keys.size(); ++i) out.push_back({n.keys[i].label, mutate_key(trial, n, n.keys[i])});
  }
  return out;
}

}  // namespace fastjit::observe
#endif
