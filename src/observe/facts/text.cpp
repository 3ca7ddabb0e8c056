// Facts in words: one line each, and the sentence for the one that failed.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/facts/facts.h"

namespace fastjit::observe {
namespace {

std::string at(const std::string& where) { return where.empty() ? "" : " (" + where + ")"; }

std::string form_text(PyObject* form) {
  if (PyType_Check(form)) return ((PyTypeObject*)form)->tp_name;
  if (!PyTuple_CheckExact(form)) return words(form);
  std::string out;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(form); ++i) out += (i ? ", " : "") + form_text(PyTuple_GET_ITEM(form, i));
  return "(" + out + (PyTuple_GET_SIZE(form) == 1 ? ",)" : ")");
}

std::string expected(const Expected& e) {
  switch (e.kind) {
    case Expected::Kind::Absent:
      return "absent";
    case Expected::Kind::Present:
      return "present";
    case Expected::Kind::Equal:
      return words(e.object);
    case Expected::Kind::Strong:
      return words(e.object);
    case Expected::Kind::Type:
      return std::string("of type ") + ((PyTypeObject*)e.object)->tp_name;
    case Expected::Kind::Form:
      return "of the form " + form_text(e.object);
    case Expected::Kind::Weak:
    case Expected::Kind::Node:
      return e.was;
  }
  return "";
}

std::string mismatch(const Key& key, PyObject* now) {
  std::string was = expected(key.expect), is = now ? words(now) : "absent";
  if (key.expect.kind == Expected::Kind::Present) return key.label + " is gone" + at(key.where);
  if (was == is) return key.label + " is another " + is + at(key.where);
  return key.label + " was " + was + ", is " + is + at(key.where);
}

}  // namespace

std::string Facts::failure(Node& n) {
  if (n.weak && ((PyWeakReference*)n.weak.get())->wr_object != n.object) return n.label + " is gone" + at(n.where);
  switch (n.kind) {
    case Node::Kind::Function: {
      auto* f = reinterpret_cast<PyFunctionObject*>(n.object);
      const char* part = f->func_code != n.parts[0].get() ? "code" : "defaults";
      return "function " + n.label + " has new " + part + at(n.where);
    }
    case Node::Kind::Object:
      if (Py_TYPE(n.object) == n.type) return n.label + ".__dict__ was replaced" + at(n.where);
      return n.label + " is now of type " + Py_TYPE(n.object)->tp_name + at(n.where);
    case Node::Kind::Word:
    case Node::Kind::Order:
    case Node::Kind::Array:
    case Node::Kind::Deque:
    case Node::Kind::Setting:
      return n.label + " changed" + at(n.where);
    default:
      break;
  }
  if (n.alone && Py_REFCNT(n.object) != 1) return "something else holds " + n.label + at(n.where);
  for (const Key& key : n.keys)
    if (n.kind == Node::Kind::Set && key.expect.kind != Expected::Kind::Absent && !value_now(n, key))
      return key.label + " is gone" + at(key.where);
  for (const Key& key : n.keys)
    if (PyObject* now = value_now(n, key); !key.expect.holds(now)) return mismatch(key, now);
  if (n.kind == Node::Kind::Set) return "the members of " + n.label + " changed" + at(n.where);
  if (n.kind == Node::Kind::Type && !holds_names(n)) return "the names in " + n.label + " changed" + at(n.where);
  if (n.kind == Node::Kind::Type) return "the bases of " + n.label + " changed" + at(n.where);
  if (n.kind == Node::Kind::Cell || n.kind == Node::Kind::Slot || n.kind == Node::Kind::Context)
    return mismatch(n.keys[0], held_in(n));
  if (n.kind == Node::Kind::Dict && !n.version.is_of(n.object)) return n.label + " was replaced" + at(n.where);
  const Py_ssize_t size = n.kind == Node::Kind::List ? PyList_GET_SIZE(n.object) : PyDict_GET_SIZE(n.object);
  if (n.length >= 0 && n.length != size)
    return "the length of " + n.label + " was " + std::to_string(n.length) + ", is " + std::to_string(size) +
           at(n.where);
  if (n.truth >= 0 && n.truth != (size != 0))
    return n.label + (size ? " was empty, is not" : " was not empty, is") + at(n.where);
  return "the keys of " + n.label + " changed" + at(n.where);
}

std::vector<std::string> Facts::describe() const {
  std::vector<std::string> lines;
  for (const Node& n : nodes_) {
    if (n.kind == Node::Kind::Function) lines.push_back("function " + n.label + ": code and defaults" + at(n.where));
    if (n.kind == Node::Kind::Object) lines.push_back(n.label + " is of type " + n.type->tp_name + at(n.where));
    if (n.kind == Node::Kind::Type && n.ordered) lines.push_back("bases of " + n.label + at(n.where));
    if (n.kind == Node::Kind::Type && n.parts[0]) lines.push_back("names in " + n.label + at(n.where));
    if (n.kind == Node::Kind::Word || n.kind == Node::Kind::Order || n.kind == Node::Kind::Setting)
      lines.push_back(n.label + " is what it was" + at(n.where));
    if (n.kind == Node::Kind::Array || n.kind == Node::Kind::Deque)
      lines.push_back(n.label + " are what they were" + at(n.where));
    if (n.length >= 0) lines.push_back("length of " + n.label + " is " + std::to_string(n.length) + at(n.where));
    if (n.truth >= 0) lines.push_back(n.label + (n.truth ? " is not empty" : " is empty") + at(n.where));
    if (n.kind == Node::Kind::Set && n.ordered) lines.push_back(n.label + " has these members" + at(n.where));
    if (n.kind == Node::Kind::Dict && n.ordered)
      lines.push_back(n.label + " has these keys in this order" + at(n.where));
    for (const Key& key : n.keys) lines.push_back(key.label + " is " + expected(key.expect) + at(key.where));
  }
  return lines;
}

}  // namespace fastjit::observe
#endif
