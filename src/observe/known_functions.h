#pragma once
// The C functions of callees.def, identified by pointer. Needs no observer.
#include <Python.h>

#include <string>

#include "observe/ref.h"

namespace fastjit::observe {

/// Looks for those that it has not found yet: modules imported since the last time may bring more.
void resolve_known_functions();

/// The row of callees.def, however the function is bound; -1 where there is none.
int known_function(PyObject* callable) noexcept;

/// "module:name" or "module:Class.name".
const char* known_name(int row) noexcept;

/// Through it a tensor or a generator is used without an operator: "use of a tensor outside operators by ". Else "".
const char* door_of(int row) noexcept;

/// Null: it has none, or the holder is null. No exception is left.
Ref attribute(PyObject* holder, const char* name);

/// What "module:name" or "module:Class.name" is among the modules that are imported already; null if it is not there.
Ref imported(const char* name);

/// The class that the module calls so, which is imported: kept for ever. Null: there is none, or it is no class.
PyTypeObject* type_named(const char* module, const char* name) noexcept;

/// A slot of an object, bound to it, such as (1).__add__.
bool is_method_wrapper(PyObject* callable) noexcept;

/// Its qualified name.
std::string callee_text(PyObject* callable);

}  // namespace fastjit::observe
