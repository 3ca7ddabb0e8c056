// Functions of torch written in C that are no operators.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cstring>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/tracer.h"
#include "observe/known_functions.h"

namespace fastjit::observe {

// Lists of tensors by device and type, which the key and the facts say.
void Tracer::judge_grouping(PyObject* callee, Args args) {
  if (readable_args(args, callee)) top().nested_result = true;
}

// Tensors that torch makes of numbers without an operator: of the type and on the device of another one, or by the
// class.
void Tracer::judge_data(PyObject* callee, Args args) {
  const bool is_method = !args.empty() && is_tensor(args[0]);
  const Args data = is_method ? args.subspan(1) : args;
  const bool is_list = !data.empty() && (PyList_CheckExact(data[0]) || PyTuple_CheckExact(data[0]));
  // torch.Tensor(3) is memory that nobody has written to.
  const bool is_known_data = !data.empty() && is_method && reads_array(data[0]);
  const bool holds_scalars = !data.empty() && (is_method || is_list) && holds_scalars_only(data[0]);
  if (!is_known_data && !holds_scalars) return deny("call of " + callee_text(callee));
  if (!readable_args(is_known_data ? data.subspan(1) : data, callee)) return;
  top().constant_result = true;
  may_enter_any();
}

// An autograd.Function: what its forward runs are operators. Where gradients are needed, the recorder sees it.
void Tracer::judge_function_apply(PyObject* callee, Args args) {
  PyObject* function = PyCFunction_Check(callee) ? PyCFunction_GET_SELF(callee) : nullptr;
  if (!function || !PyType_Check(function)) return deny("call of " + callee_text(callee));
  for (const char* name : {"forward", "setup_context", "_backward_cls"})
    class_attr(reinterpret_cast<PyTypeObject*>(function), name);
  for (PyObject* arg : args) touch(arg);
  top().makes_context = true;
  may_enter_any();
}

void Tracer::judge_exit(PyObject* callee, Args) { deny(door_of(known_function(callee)) + callee_text(callee)); }

// A graph that begins in this call: what autograd then runs are operators.
void Tracer::judge_leaf(PyObject* callee, Args args) {
  const bool is_known = !args.empty() && is_tensor(args[0]) && args.size() <= 2;
  if (!is_known || !may_require_grad(args[0], args.size() > 1 ? args[1] : Py_True)) return judge_exit(callee, args);
  for (PyObject* arg : args.subspan(1)) touch(arg);
}

// What it requires already it may be told again: the call's key and the facts say that it does.
bool Tracer::may_require_grad(PyObject* tensor, PyObject* needed) {
  if (!PyBool_Check(needed)) return false;
  const Ref now = Ref::steal(PyObject_GetAttrString(tensor, "requires_grad"));
  if (!now) return PyErr_Clear(), false;
  if (now.get() == needed) return true;
  return !is_reached(tensor) && !arguments_.contains(tensor) && host_.on_leaf && host_.on_leaf(host_.context, tensor);
}

// torch.autograd.grad(), which gives the gradients and leaves none in the tensors, and backward(), which leaves them
// there. Which numbers of the call the graph keeps, and where it gives them on, the host has to find out.
void Tracer::judge_backward(PyObject* callee, Args args) {
  if (rehearsal_) return deny("call of " + callee_text(callee));
  const unsigned char* op = top().ops + 2 * top().offset;
  PyObject* names = op[0] == k_CALL_FUNCTION_EX ? unpacked_keywords(op[1]) : nullptr;
  PyObject* keeps = names && PyDict_CheckExact(names) ? PyDict_GetItemString(names, "accumulate_grad") : nullptr;
  if (keeps != Py_False) {
    const bool is_known = keeps == Py_True && host_.on_backward && args.size() > 1 && PyTuple_Check(args[1]);
    if (!is_known) return deny("call of " + callee_text(callee));
    if (const std::string why = host_.on_backward(host_.context, args[1]); !why.empty())
      return deny("backward(), and " + why + ",");
    may_enter_any();  // methods of an autograd.Function, which the call has run forward
  } else if (host_.on_gradients) {
    if (const std::string why = host_.on_gradients(host_.context); !why.empty())
      return deny("gradients, and " + why + ",");
  }
  const Setting* hooks = host_.gradients_under ? host_.gradients_under() : nullptr;
  if (!hooks || hooks->now()) return deny(hooks ? std::string("gradients under ") + hooks->name : "use of autograd");
  facts_->setting(*hooks, where());
  if (args.empty() || !readable_args(args.subspan(1), callee)) return;  // the first is the engine
  top().container_result = true;
}

// Compiled autograd, which nobody uses, is switched off for a while.
void Tracer::judge_autograd_compiler(PyObject* callee, Args args) {
  if (args.empty() || args[0] != Py_None) deny("call of " + callee_text(callee));
}

// The elements as new lists of numbers: whoever told of it guards what they are.
void Tracer::judge_contents(PyObject* callee, Args args) {
  if (args.size() != 1 || !is_tensor(args[0]) || !host_.on_contents_read) return judge_exit(callee, args);
  if (host_.on_size_read) host_.on_size_read(host_.context, args[0], -1);
  host_.on_contents_read(host_.context, args[0]);
  top().nested_result = true;
}

// torch.tensor copies data without an operator: what it is given is the same in every call where it is all facts, or
// tensors, whose values operators read. as_tensor and from_numpy share the memory of arrays.
void Tracer::judge_tensor(PyObject* callee, Args args) {
  const bool copies = std::strcmp(known_name(known_function(callee)), "torch:tensor") == 0;
  if (!args.empty() && is_tensor(args[0]) && !copies)
    return readable_args(args, callee) ? may_enter_any() : void();  // the tensor itself, or what an operator gives
  if (!args.empty() && host_.on_array && is_array(args[0])) {
    if (!reads_array(args[0])) return deny("call of " + callee_text(callee) + " with " + text_of_array(args[0]));
    top().array_data = data_of_array(args[0]);
    top().array_is_new = has_new_memory(args[0]);
    return readable_args(args.subspan(1), callee) ? may_enter_any() : void();
  }
  if (!args.empty() && host_.on_stack && holds_tensors_only(args[0]) && readable_args(args, callee)) {
    host_.on_stack(host_.context, args[0]);
    using_scalars_ = true;
    return may_enter_any();
  }
  if (args.empty() || !holds_scalars_only(args[0])) return call_host(callee, args);
  if (numbers_.is_open(args[0]) && !is_size(args[0]) && readable_args(args.subspan(1), callee)) {
    use_scalars(args.first(1), false);
    return may_enter_any();
  }
  if (readable_args(args, callee)) may_enter_any();
}

bool Tracer::holds_tensors_only(PyObject* o) {
  if (!PyList_CheckExact(o) && !PyTuple_CheckExact(o)) return false;
  PyObject** items = PySequence_Fast_ITEMS(o);
  return Py_SIZE(o) > 0 && std::all_of(items, items + Py_SIZE(o), [&](PyObject* item) { return is_tensor(item); });
}

// Itself a number, or numbers and tensors in lists: operators show how the values of these are read, by item().
bool Tracer::holds_scalars_only(PyObject* o, int depth) {
  if (is_number(o) || PyBool_Check(o) || is_numpy_number(Py_TYPE(o))) return true;
  if (is_tensor(o)) return depth > 0;
  if (depth > 8 || !(PyList_CheckExact(o) || PyTuple_CheckExact(o))) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
    if (!holds_scalars_only(PySequence_Fast_ITEMS(o)[i], depth + 1)) return false;
  return true;
}

// No stream records a graph as long as torch has not set up CUDA, which its module says.
void Tracer::judge_capturing(PyObject* callee, Args args) {
  if (PyType_Check(callee)) return call_type((PyTypeObject*)callee, args);  // in a torch without CUDA: raises in Python
  PyObject* name = intern(PyUnicode_FromString("_initialized"));
  Ref module = Ref::steal(PyImport_GetModule(intern(PyUnicode_FromString("torch.cuda"))));
  if (!module || !PyModule_CheckExact(module.get())) return PyErr_Clear(), deny("call of " + callee_text(callee));
  names_.emplace(module.get(), "torch.cuda");
  load_python_module_attr(module.get(), name, false);
  const bool is_set_up = dict_lookup(PyModule_GetDict(module.get()), name, nullptr) != Py_False;
  if (is_set_up) return judge_setting(callee, args);
  raising_ = true;  // where there is no driver, and as long as there is none
}

// torch.cuda.device() of the device that is current changes nothing. Where a hit finds another one current, the
// program's tensors are still of the one that is named here.
void Tracer::judge_exchange_device(PyObject* callee, Args args) {
  const Ref ask_for = imported("torch._C:_cuda_getDevice");
  const Ref current = ask_for ? Ref::steal(PyObject_CallNoArgs(ask_for.get())) : Ref();
  const bool is_plain = current && args.size() == 1 && PyLong_CheckExact(args[0]) && !top().kwnames;
  const bool stays = is_plain && PyObject_RichCompareBool(args[0], current.get(), Py_EQ) == 1;
  PyErr_Clear();
  if (!stays) deny("call of " + callee_text(callee));
}

// What torch.compile would do with functions that are called next: here nothing, before as after.
void Tracer::judge_eval_frame(PyObject* callee, Args args) {
  if (args.size() != 1 || args[0] != Py_None) deny("call of " + callee_text(callee));
}

}  // namespace fastjit::observe
#endif
