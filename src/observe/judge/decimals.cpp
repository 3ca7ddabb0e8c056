// Numbers of the module decimal that the call makes of ints. What C code does with them is determined by their values
// and by the thread's context, which is a fact, the flags that are raised when the call ends among it.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <cstring>

#include "observe/judge/tracer.h"
#include "observe/known_functions.h"

namespace fastjit::observe {
namespace {

// As _decimal.c and libmpdec have it; is_known_layout() looks whether this Python does.
struct Context {
  PyObject_HEAD Py_ssize_t precision, emax, emin;
  uint32_t traps, status, newtrap;
  int round, clamp, allcr;
  PyObject *traps_view, *status_view;
  int capitals;
};

bool is_known_layout() {
  const Ref make = imported("_decimal:Context"), inexact = imported("_decimal:Inexact"),
            overflow = imported("_decimal:Overflow"), down = imported("_decimal:ROUND_DOWN");
  if (!make || !inexact || !overflow || !down) return false;
  const Ref none = Ref::steal(PyTuple_New(0));
  const Ref fields =
      Ref::steal(Py_BuildValue("{s:i,s:O,s:i,s:i,s:i,s:i,s:[O],s:[O]}", "prec", 11, "rounding", down.get(), "Emin", -13,
                               "Emax", 12, "capitals", 0, "clamp", 1, "flags", inexact.get(), "traps", overflow.get()));
  const Ref made = Ref::steal(fields ? PyObject_Call(make.get(), none.get(), fields.get()) : nullptr);
  if (!made) return PyErr_Clear(), false;
  constexpr uint32_t kInexact = 0x40, kOverflow = 0x800;
  const auto* context = reinterpret_cast<Context*>(made.get());
  return Py_TYPE(made.get())->tp_basicsize >= static_cast<Py_ssize_t>(sizeof(Context)) && context->precision == 11 &&
         context->emax == 12 && context->emin == -13 && context->traps == kOverflow && context->status == kInexact &&
         context->round == 1 && context->clamp == 1 && context->capitals == 0;
}

/// Of this thread, which keeps it; null where it cannot be read.
Context* thread_context() noexcept {
  static const bool is_known = is_known_layout();
  static PyObject* const ask = is_known ? Py_XNewRef(imported("_decimal:getcontext").get()) : nullptr;
  const Ref context = Ref::steal(ask ? PyObject_CallNoArgs(ask) : nullptr);
  if (!context) PyErr_Clear();
  return reinterpret_cast<Context*>(context.get());
}

constexpr int kSignals = 15;  // bits of traps and of the status, which are the lowest
constexpr uint64_t kAllSignals = (1u << kSignals) - 1;

/// The whole context in one number; 0 for one that does not fit.
uint64_t context_now() {
  constexpr Py_ssize_t kExponents = 999999, kPrecisions = Py_ssize_t{1} << 24;
  const Context* context = thread_context();
  const bool fits = context && context->emax == kExponents && context->emin == -kExponents &&
                    context->precision < kPrecisions && (context->traps | context->status) <= kAllSignals &&
                    context->allcr == 1;
  if (!fits) return 0;
  uint64_t packed = static_cast<uint64_t>(context->precision);  // at least 1
  packed = packed << 4 | static_cast<uint64_t>(context->round);
  packed = packed << 2 | static_cast<uint64_t>(context->clamp << 1 | context->capitals);
  return (packed << kSignals | context->traps) << kSignals | context->status;
}

void set_status(uint64_t value) {
  if (Context* now = thread_context()) now->status = static_cast<uint32_t>(value & kAllSignals);
}

constexpr Setting kContext{"the context of decimal", context_now, set_status};

}  // namespace

bool Tracer::is_decimal(PyObject* o) {
  static const char* const name = "decimal.Decimal";
  return !std::strcmp(Py_TYPE(o)->tp_name, name) && Py_TYPE(o) == type_named("_decimal", "Decimal");
}

void Tracer::judge_decimal(PyObject* callee, Args args) {
  const bool is_of_int = args.size() == 1 && PyLong_CheckExact(args[0]) && !top().kwnames && !unpacked_names_;
  const bool is_c = callee == reinterpret_cast<PyObject*>(type_named("_decimal", "Decimal"));
  if (!is_of_int || !is_c || !kContext.now()) return deny("call of " + callee_text(callee));
  touch(args[0]);
  facts_->setting(kContext, where());
  top().fresh_result = true;
}

// The next call finds the flags that this one has raised, which stay, and would raise them again.
void Tracer::expect_raised_flags() {
  const Facts::Id id = facts_->find(reinterpret_cast<PyObject*>(const_cast<Setting*>(&kContext)), Node::Kind::Setting);
  if (id < 0) return;
  uint64_t& known = facts_->node(id).value;
  const uint64_t now = kContext.now(), changed = known ^ now;
  if (changed <= kAllSignals && (known & changed) == 0) known = now;
}

}  // namespace fastjit::observe
#endif
