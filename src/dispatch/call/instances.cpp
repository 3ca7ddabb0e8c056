#include "dispatch/call/instances.h"

#include <algorithm>
#include <unordered_set>

#include "dispatch/call/function.h"
#include "dispatch/call/plain_class.h"
#include "dispatch/learn/torch_objects.h"

namespace fastjit::dispatch {
namespace {

// So many instances that are all alive may have variants of their own: each is checked faster than its attributes are.
constexpr size_t kKept = 4;

bool brings_another(const Function& function, const CallSpec& call, size_t place) {
  const ArgSpec& mine = call.specs()[place];
  size_t others = 0;
  for (const auto& variant : function.variants.all()) {
    const std::vector<ArgSpec>& known = variant->key.spec.specs();
    const bool alike = place < known.size() && known[place].kind == ArgKind::Object && known[place].type == mine.type;
    if (!alike || referent(known[place]) == referent(mine)) continue;
    if (referent(known[place]) == Py_None || ++others >= kKept) return true;
  }
  return false;
}

// Whether an instance holds nothing but its attributes: a Python class over object without __slots__.
bool is_plain_class(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) && type->tp_dictoffset && layout_of(type) == &PyBaseObject_Type &&
         is_python_class(type) && !PyType_IsSubtype(type, &PyType_Type);
}

std::unordered_set<const void*>& made_here() {
  static thread_local std::unordered_set<const void*> instances;
  return instances;
}

// Whether it keeps others in a list, as a cache does that has an object for each layer: memory of one run, not to be
// found again in another.
bool keeps_instances(PyObject* object) {
  PyObject* attributes = attributes_of(object);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; attributes && PyDict_Next(attributes, &at, &key, &value);)
    if (PyList_CheckExact(value) && PyList_GET_SIZE(value) && is_plain_class(Py_TYPE(PyList_GET_ITEM(value, 0))))
      return true;
  return false;
}

// Which of the specs are parts of an instance that is described.
std::vector<bool> inside_instances(const std::vector<ArgSpec>& specs) {
  std::vector<bool> inside;
  Py_ssize_t rest = 0;  // specs of the instance still to come
  for (const ArgSpec& spec : specs) {
    inside.push_back(rest > 0);
    if (rest > 0)
      rest += spec.length - 1;
    else if (spec.kind == ArgKind::Instance)
      rest = spec.length;
  }
  return inside;
}

}  // namespace

bool compare_by_content(Function& function, const CallSpec& call) {
  ByContent& classes = function.by_content;
  const size_t before = classes.size();
  const std::vector<bool> inside = inside_instances(call.specs());
  for (size_t i = 0; i < call.specs().size(); ++i) {
    const ArgSpec& spec = call.specs()[i];
    if (spec.kind != ArgKind::Object || contains(classes, spec.type) || !is_plain_class(spec.type)) continue;
    // Other modules live as long as the program, and facts about them are checked faster than all that they hold.
    const bool varies = !is_module_class(spec.type) &&
                        (inside[i] || keeps_instances(referent(spec)) || brings_another(function, call, i));
    if (varies || MadeHere::has(referent(spec))) classes.push_back(spec.type);
  }
  if (classes.size() == before) return false;
  function.variants.drop([&](const Variant& variant) {
    return std::ranges::any_of(variant.key.spec.specs(), [&](const ArgSpec& spec) {
      return spec.kind == ArgKind::Object && contains(classes, spec.type);
    });
  });
  return true;
}

void MadeHere::note(const void* instance) { made_here().insert(instance); }
void MadeHere::note(const std::vector<const void*>& instances) {
  made_here().insert(instances.begin(), instances.end());
}
bool MadeHere::has(const void* instance) noexcept { return made_here().contains(instance); }
void MadeHere::clear() noexcept { made_here().clear(); }

}  // namespace fastjit::dispatch
