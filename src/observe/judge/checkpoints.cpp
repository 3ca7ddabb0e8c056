// torch.utils.checkpoint without reentrant autograd: the hooks for saved tensors that it sets throw away what autograd
// would keep, and run the function again when that is needed. A program computes it again without them.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <cstring>
#include <optional>

#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

// What the function's code finds in its cell of that name; null: it has none, or nothing is in it. Borrowed.
PyObject* cell_of(PyObject* function, const char* name) {
  if (!function || !PyFunction_Check(function)) return nullptr;
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  const Ref names = Ref::steal(PyCode_GetFreevars(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))));
  for (Py_ssize_t i = 0; closure && names && i < PyTuple_GET_SIZE(names.get()); ++i)
    if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names.get(), i), name))
      return PyCell_GET(PyTuple_GET_ITEM(closure, i));
  PyErr_Clear();
  return nullptr;
}

// Of an object of torch.utils.checkpoint's class of frames, which has no attributes but its own. Borrowed.
PyObject* own_item(PyObject* o, const char* name) {
  const Ref dict = Ref::steal(o ? PyObject_GetAttrString(o, "__dict__") : nullptr);
  PyErr_Clear();
  return dict && PyDict_CheckExact(dict.get()) ? PyDict_GetItemString(dict.get(), name) : nullptr;
}

/// A checkpoint, told by the hook with which it packs.
struct Checkpoint {
  bool keeps_draws;  // where its function runs again, it draws the same random numbers
  bool is_plain;     // nothing of the caller's runs around it
};

std::optional<Checkpoint> checkpoint_of(PyObject* pack) {
  const Ref init = imported("torch.utils.checkpoint:_checkpoint_hook.__init__");
  if (!init || !PyFunction_Check(init.get()) || !PyFunction_Check(pack)) return std::nullopt;
  const auto* made_by = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(init.get()));
  const auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(pack));
  const bool is_own =
      !PyUnicode_Compare(code->co_filename, made_by->co_filename) &&
      !PyUnicode_CompareWithASCIIString(code->co_qualname, "_checkpoint_hook.__init__.<locals>.pack_hook");
  PyObject* frame = is_own ? cell_of(pack, "frame") : nullptr;
  PyObject* again = own_item(frame, "recompute_fn");
  PyObject* keeps = cell_of(again, "preserve_rng_state");
  if (!keeps || !PyBool_Check(keeps)) return std::nullopt;
  const auto is_null = [&](const char* name) {
    PyObject* context = cell_of(again, name);
    return context && !std::strcmp(Py_TYPE(context)->tp_name, "nullcontext");
  };
  return Checkpoint{keeps == Py_True, own_item(frame, "unpack_error_cb") == Py_None && is_null("recompute_context") &&
                                          is_null("device_ctx")};
}

}  // namespace

void Tracer::judge_saved_hooks(PyObject*, Args args) {
  const std::optional<Checkpoint> made = args.size() == 2 ? checkpoint_of(args[0]) : std::nullopt;
  if (!made) return deny("use of hooks for saved tensors");
  if (!made->is_plain) return deny("torch.utils.checkpoint with a context_fn, with debug, or on a device of its own");
  if (rehearsal_ || !host_.on_checkpoint) return deny("torch.utils.checkpoint");
  top().sets_hooks = true;
  top().draws_others = !made->keeps_draws;
}

void Tracer::begin_checkpoint(bool draws_others) {
  checkpoints_.push_back(effects_so_far());
  host_.on_checkpoint(host_.context, draws_others);
}

// What Python code does in a checkpoint beyond calling operators it does once more when autograd comes there.
void Tracer::judge_saved_hooks_end(PyObject*, Args args) {
  if (!args.empty() || checkpoints_.empty()) return deny("use of hooks for saved tensors");
  const bool does_more = checkpoints_.back() != effects_so_far();
  checkpoints_.pop_back();
  if (does_more) return deny("a side effect or a random number of Python in torch.utils.checkpoint");
  if (const std::string why = host_.on_checkpoint_end(host_.context); !why.empty()) deny(why);
}

void Tracer::judge_saved_tensor(PyObject*, Args args) {
  if (args.empty() || !is_tensor(args[0]) || !host_.on_checkpoint_saves) return deny("use of a SavedTensor");
  host_.on_checkpoint_saves(host_.context, args[0]);
  top().fresh_result = true;
}

}  // namespace fastjit::observe
#endif
