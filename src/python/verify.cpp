#include "python/verify.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <optional>

#include "dispatch/learn/python_source.h"

namespace fastjit::dispatch {
namespace {

namespace py = pybind11;

// Of fastjit._verify: run(shadow) -> outcome or None, judge(shadow, outcome, result, error).
PyObject* verifier_run = nullptr;
PyObject* verifier_judge = nullptr;

/// The program of one call, to be run on copies.
class Shadow {
 public:
  Shadow(FunctionObject* self, std::shared_ptr<Variant> variant, PyObject* const* tensors, PyObject* const* numbers)
      : self_(py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(self))), variant_(std::move(variant)) {
    for (const capture::InputSource& source : variant_->program.inputs)
      inputs_.append(py::reinterpret_borrow<py::object>(variant_->input(source, tensors)));
    for (size_t i = 0; i < variant_->number_count(); ++i)
      numbers_.push_back(py::reinterpret_borrow<py::object>(numbers[i]));
    for (size_t i = variant_->key.spec.tensor_count(); i < variant_->key.spec.object_count(); ++i)
      targets_.push_back(py::reinterpret_borrow<py::object>(tensors[i]));
  }

  const py::list& inputs() const { return inputs_; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const ir::InputInfo& input : variant_->inspection.graph.inputs) out.push_back(input.name);
    return out;
  }
  const std::string& why() const { return why_; }
  std::vector<uint32_t> written() const {
    std::vector<uint32_t> out;
    for (const Changes::Written& written : variant_->program.executable->changes.written) out.push_back(written.input);
    return out;
  }

  /// The program's result on `copies`, or None if it would have started again in eager. Generators are as before.
  py::object run(const py::list& copies) {
    Objects objects;
    Inputs unpacked;
    for (const py::handle copy : copies) {
      if (!is_plain_tensor(copy.ptr())) throw py::type_error("a tensor per input is needed");
      objects.push_back(copy.ptr());
      unpacked.push_back(&unpack(copy.ptr()));
    }
    if (objects.size() != variant_->program.inputs.size()) throw py::value_error("one tensor per input is needed");
    std::vector<PyObject*> numbers, targets;
    for (const py::object& number : numbers_) numbers.push_back(number.ptr());
    for (const py::object& target : targets_) targets.push_back(target.ptr());
    const c10::Device device = device_of(*variant_);
    const Generators before(variant_->program.executable->changes, device);
    PyObject* result = run_on_tensors(*variant_, objects, unpacked, numbers.data(), targets.data(), why_);
    drawn_.emplace(variant_->program.executable->changes, device);
    before.put_back();
    if (result) return py::reinterpret_steal<py::object>(result);
    if (PyErr_Occurred()) throw py::error_already_set();
    return py::none();
  }

  /// Whether the generators are now where the program's run left them.
  bool drew_alike() const { return *drawn_ == Generators(variant_->program.executable->changes, device_of(*variant_)); }

  /// The program stays where it is, for other threads that are inside it, and is not run again.
  void quarantine(const std::string& what) {
    variant_->reason = "verification failed: " + what;
    ++function().stats.mismatches;
    count_fallback(function().stats, variant_->reason);
    const py::gil_scoped_release release;
    for (const std::string& key : variant_->inspection.keys) runtime::forget_kernel(key, function().options.cache);
  }

  py::dict describe() const {
    py::dict out, scalars;
    out["name"] = function().options.name;
    out["signature"] = variant_->key.spec.signature();
    out["ir"] = variant_->inspection.ir();
    std::vector<PyObject*> given;
    for (const py::object& number : numbers_) given.push_back(number.ptr());
    const Derived::Numbers all(variant_->program.derived, given.data(),
                               given.size());  // the call computed them as well
    for (size_t i = 0; i < variant_->program.scalar_number.size(); ++i)
      if (variant_->program.scalar_number[i] != capture::Capture::kSize)
        scalars[py::str(variant_->program.scalar_name[i])] = py::handle(all.data()[variant_->program.scalar_number[i]]);
    out["steps"] = python_steps(*variant_);
    out["inputs"] = names();
    out["scalars"] = scalars;
    return out;
  }

 private:
  Function& function() const { return *reinterpret_cast<FunctionObject*>(self_.ptr())->function; }
  py::object self_;
  std::shared_ptr<Variant> variant_;
  py::list inputs_;
  std::vector<py::object> numbers_, targets_;
  std::string why_;
  std::optional<Generators> drawn_;
};

}  // namespace

bool is_verified(double fraction, uint64_t hits) noexcept {
  const auto before = static_cast<double>(hits);
  return std::ceil((before + 1) * fraction) > std::ceil(before * fraction);
}

PyObject* verified_call(FunctionObject* self, const std::shared_ptr<Variant>& found, PyObject* const* tensors,
                        PyObject* const* numbers, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Function& function = *self->function;
  const std::shared_ptr<Variant> variant = found;  // Python code may drop the function's own
  const py::object shadow = py::cast(std::make_shared<Shadow>(self, variant, tensors, numbers));
  const py::object outcome = py::reinterpret_borrow<py::object>(verifier_run)(shadow);
  if (outcome.is_none()) return run_eager(function, shadow.attr("why").cast<std::string>(), args, nargsf, kwnames);
  py::object result, error, type, traceback;
  {
    const RecordingFlag bodies;  // functions compiled inside it run as they were written
    result = py::reinterpret_steal<py::object>(PyObject_Vectorcall(function.eager(), args, nargsf, kwnames));
    if (!result) PyErr_Fetch(&type.ptr(), &error.ptr(), &traceback.ptr());
  }
  if (!result) PyErr_NormalizeException(&type.ptr(), &error.ptr(), &traceback.ptr());
  ++function.stats.verified;
  const auto or_none = [](const py::object& object) { return object ? object : py::none(); };
  py::reinterpret_borrow<py::object>(verifier_judge)(shadow, outcome, or_none(result), or_none(error));
  if (variant->reason.empty()) count_hit(function, *variant);
  if (!result) PyErr_Restore(type.release().ptr(), error.release().ptr(), traceback.release().ptr());
  return result.release().ptr();
}

void bind_verify(py::module_& module) {
  py::class_<Shadow, std::shared_ptr<Shadow>>(module, "Shadow")
      .def_property_readonly("inputs", &Shadow::inputs)
      .def_property_readonly("names", &Shadow::names)
      .def_property_readonly("written", &Shadow::written)
      .def_property_readonly("why", &Shadow::why)
      .def("run", &Shadow::run)
      .def("drew_alike", &Shadow::drew_alike)
      .def("quarantine", &Shadow::quarantine)
      .def("describe", &Shadow::describe);
  module.def("register_verifier", [](py::function run, py::function judge) {
    verifier_run = run.release().ptr();
    verifier_judge = judge.release().ptr();
  });
}

}  // namespace fastjit::dispatch
