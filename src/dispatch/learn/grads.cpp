// Gradients that a call leaves in tensors to which facts lead: what it found there, and what it leaves.
#include "dispatch/call/captured.h"
#include "dispatch/learn/recording.h"

namespace fastjit::dispatch {
namespace {

bool is_same(const at::Tensor& a, const at::Tensor& b) { return a.unsafeGetTensorImpl() == b.unsafeGetTensorImpl(); }

}  // namespace

bool Recording::is_own_grad(PyObject* tensor) const {
  const auto met = leaves_met.find(tensor);
  return met != leaves_met.end() && !is_same(met->second.grad, grad_of(tensor));
}

// A hit sets what the recorded call has changed, and so it is one for tensors that had none before where this one had
// none.
bool Recording::grad_set(PyObject* tensor, PyObject* value) {
  const auto met = leaves_met.find(tensor);
  if (met == leaves_met.end()) return false;
  if (!met->second.grad.defined()) bare_owners.emplace_back(tensor, met->second.name + ".grad");
  return value == Py_None || recorder->made(unpack(value));
}

// Where there was a gradient, autograd adds to it, in place; where there was none, it leaves what it has made.
std::string Recording::goes_back(PyObject* tensors) {
  std::vector<at::Tensor> from;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    if (!is_plain_tensor(PyTuple_GET_ITEM(tensors, i))) return "it begins at what is no plain tensor";
    from.push_back(unpack(PyTuple_GET_ITEM(tensors, i)));
  }
  const capture::GraphEnds ends = recorder->goes_back(from);
  if (!ends.why.empty()) return ends.why;
  for (PyObject* leaf : ends.leaves) {
    const auto met = leaves_met.find(leaf);
    if (met == leaves_met.end()) return "it leaves a gradient in an argument";
    if (has_gradient_hooks(leaf)) return "a hook waits for that of '" + met->second.name + "'";
    gone_back_to.insert(leaf);
    if (is_own_grad(leaf)) continue;
    const std::string name = met->second.name + ".grad";
    PyObject* grad = gradient_of(leaf);
    if (grad == Py_None) {
      bare_owners.emplace_back(leaf, name);
    } else if (!owners.contains(grad)) {
      if (!is_plain_tensor(grad) || recorder->knows(unpack(grad))) return "two tensors have one gradient";
      owners.emplace(grad, leaf);
      meet(grad, name.c_str());
    }
  }
  return "";
}

std::string Recording::find_grads() {
  for (const auto& [tensor, before] : leaves_met) {
    const at::Tensor& now = grad_of(tensor);
    if (is_same(before.grad, now)) continue;
    if (now.defined() && !recorder->made(now)) return "the gradient of " + before.name + " is set to another tensor";
    grads_set.push_back(tensor);
    if (now.defined()) grads.push_back(now);
  }
  return "";
}

}  // namespace fastjit::dispatch
