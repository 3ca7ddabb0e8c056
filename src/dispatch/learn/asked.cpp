#include "dispatch/learn/asked.h"

#include <algorithm>
#include <unordered_set>

#include "capture/record/generator_calls.h"
#include "dispatch/learn/generator.h"

namespace fastjit::dispatch {
namespace {

using observe::Asked;
using observe::Derivation;
using Use = Derived::Use;

// It cannot raise: what it would change by then is changed.
bool is_safe_behind(const Derivation& how) {
  using support::Arithmetic;
  if (how.asked != Asked::No) return how.operands.empty();
  if (how.unary) return true;
  if (!how.arithmetic || !how.binary) return false;
  if (*how.arithmetic == Arithmetic::Div)
    return how.operands[1].scalar < 0 && PyObject_IsTrue(how.operands[1].value.get()) == 1;
  return *how.arithmetic == Arithmetic::Add || *how.arithmetic == Arithmetic::Sub || *how.arithmetic == Arithmetic::Mul;
}

// Which derivations the program or a branch needs: kernels, guards, and what these are computed of. All that is drawn
// is drawn before the program begins.
std::vector<char> needed_before(const Recording& recording, const std::vector<std::optional<Use>>& uses) {
  const std::vector<uint32_t>& scalars = recording.captured_graph.scalar_args;
  std::unordered_set<size_t> wanted(scalars.begin(), scalars.end());
  const std::vector<Derivation>& all = recording.observation.derivations;
  std::vector<char> out(all.size(), 0);
  for (size_t i = all.size(); i-- > 0;) {
    if (!uses[i]) continue;
    const Derivation& how = all[i];
    out[i] = !how.of_clock || *uses[i] == Use::Guard || wanted.contains(how.scalar) || !is_safe_behind(how);
    for (const auto& operand : how.operands)
      if (out[i] && operand.scalar >= 0) wanted.insert(static_cast<size_t>(operand.scalar));
  }
  return out;
}

}  // namespace

Schedule schedule_numbers(const Recording& recording) {
  Schedule out;
  const std::vector<Derivation>& all = recording.observation.derivations;
  for (const Derivation& how : all) {
    const std::vector<bool>& bound = recording.captured_graph.bound_scalars;
    const bool is_guard = how.scalar == Derivation::kUnwatched, open = !is_guard && bound[how.scalar];
    const auto is_bound = [&](const auto& operand) {
      return operand.scalar >= 0 && bound[static_cast<size_t>(operand.scalar)];
    };
    const bool differs = is_guard && std::ranges::any_of(how.operands, is_bound);  // from call to call
    const bool computed = !how.of_tensor && (open || how.of_asked || differs);
    out.uses.push_back(!computed ? std::nullopt : std::optional(open ? Use::Open : Use::Guard));
    const bool repeats = open || !how.of_asked || PyBool_Check(how.number.get()) ||
                         (PyLong_CheckExact(how.number.get()) && !how.of_clock);
    if (out.refused.empty() && !repeats)
      out.refused = "the number " + how.text + " at " + how.where + " goes where programs hold constants";
  }
  const std::vector<char> needed = needed_before(recording, out.uses);
  std::unordered_set<size_t> late;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!out.uses[i]) continue;
    bool waits = all[i].asked == Asked::Clock && all[i].after_operators;
    for (const auto& operand : all[i].operands)
      waits |= operand.scalar >= 0 && late.contains(static_cast<size_t>(operand.scalar));
    if (!waits) continue;
    if (needed[i] && out.refused.empty())
      out.refused = "operators run before " + all[i].text + " at " + all[i].where + ", and others depend on it";
    late.insert(all[i].scalar);
    out.uses[i] = Use::Late;
  }
  return out;
}

// Of generators on the CPU: others' states are read and set in the order of a stream.
bool Recording::uses_generator(observe::Host::OnState what, PyObject* object, PyObject* operand) {
  using What = observe::Host::OnState;
  int overflow = 0;
  if (what == What::Made) {
    if (!is_generator(object)) return false;
    const at::Generator made = reinterpret_cast<THPGenerator*>(object)->cdata;
    return made.device().is_cpu() && recorder->generator_made(made);
  }
  const bool seeds = what == What::Seed || what == What::SeedAll;
  const int64_t seed = seeds ? PyLong_AsLongLongAndOverflow(operand, &overflow) : 0;
  if (overflow || (!seeds && !is_plain_tensor(operand))) return false;
  if (what == What::SeedAll) return recorder->generator_used(capture::kManualSeed, {seed}, {}), true;
  if (!is_generator(object)) return false;
  const at::Generator generator = reinterpret_cast<THPGenerator*>(object)->cdata;
  if (!generator.device().is_cpu() && !generator.device().is_cuda()) return false;
  if (what == What::Seed) return recorder->generator_used(capture::kSeedGenerator, {generator, seed}, {}), true;
  if (what == What::Got) return recorder->generator_used(capture::kGeneratorState, {generator}, unpack(operand)), true;
  return recorder->generator_used(capture::kSetGeneratorState, {generator, unpack(operand)}, {}), true;
}

}  // namespace fastjit::dispatch
