#include "plan/share.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace fastjit::plan {

namespace {

/// CPU time that LLVM 22 takes for one use of a function more in a kernel (inlined in two loops, AVX-512, 16 lanes), in
/// units of 0.1 ms.
struct Row {
  ir::Op op;
  int f32, f64;
};
using ir::Op;
constexpr Row kRows[] = {
    {Op::Exp, 6, 22},    {Op::Exp2, 5, 16},      {Op::Expm1, 8, 25},      {Op::Log, 9, 31},    {Op::Log2, 36, 35},
    {Op::Log10, 33, 38}, {Op::Log1p, 18, 47},    {Op::Sin, 58, 217},      {Op::Cos, 63, 218},  {Op::Tan, 233, 212},
    {Op::Asin, 32, 35},  {Op::Acos, 30, 35},     {Op::Atan, 33, 24},      {Op::Sinh, 43, 40},  {Op::Cosh, 25, 26},
    {Op::Tanh, 9, 32},   {Op::Asinh, 69, 72},    {Op::Acosh, 63, 64},     {Op::Atanh, 58, 62}, {Op::Erf, 8, 96},
    {Op::Erfc, 79, 77},  {Op::Erfinv, 105, 163}, {Op::Sigmoid, 8, 33},    {Op::Pow, 106, 102}, {Op::Atan2, 44, 42},
    {Op::Hypot, 21, 21}, {Op::FloorDiv, 58, 62}, {Op::Remainder, 53, 54}, {Op::Fmod, 53, 54},
};

/// A function is inlined up to twice, and while its uses cost no more than this. One that waits for another is faster
/// called, since two vectors go into a call and four of a kernel are in flight, where inlined code leaves room for one.
/// Functions that do not wait for each other keep the units busy inlined too: calls are up to 15 % slower.
constexpr int kMostUses = 2, kMostOfAChain = 40, kMostSideBySide = 400;
/// Other code that four vectors in flight leave room for, and what an inlined function counts there.
constexpr int kRoom = 24, kInlined = 8;

const Row* row_of(ir::Op op) {
  const Row* found = std::ranges::find(kRows, op, &Row::op);
  return found == std::end(kRows) ? nullptr : found;
}

}  // namespace

bool has_long_code(ir::Op op, ir::DType type) { return ir::is_float(type) && row_of(op); }

namespace {

bool is_long(const Instr& in) { return in.code == Code::Compute && has_long_code(in.op, in.dtype); }

/// Whether more than half of the kernel's functions wait for one another.
bool is_chain(const KernelPlan& plan) {
  std::vector<int> depth(plan.code.size(), 0);
  int all = 0, deepest = 0;
  for (size_t id = 0; id < plan.code.size(); ++id) {
    const Instr& in = plan.code[id];
    for (int i = 0; i < arity(in); ++i) depth[id] = std::max(depth[id], depth[in.args[i]]);
    depth[id] += is_long(in);
    all += is_long(in);
    deepest = std::max(deepest, depth[id]);
  }
  return 2 * deepest > all;
}

}  // namespace

void share_functions(KernelPlan& plan) {
  struct Uses {
    int count = 0, cost = 0;
  };
  std::map<std::pair<ir::Op, ir::DType>, Uses> all;
  for (const Instr& in : plan.code) {
    if (!is_long(in)) continue;
    Uses& uses = all[{in.op, in.dtype}];
    ++uses.count;
    uses.cost += in.dtype == ir::DType::F32 ? row_of(in.op)->f32 : row_of(in.op)->f64;
  }
  const int most = is_chain(plan) ? kMostOfAChain : kMostSideBySide;
  for (Instr& in : plan.code) {
    if (!is_long(in)) continue;
    const Uses& uses = all[{in.op, in.dtype}];
    in.shared = uses.count > kMostUses && uses.cost > most;
  }
}

uint8_t unroll_of_calls(const KernelPlan& plan) {
  int rest = 0;
  bool calls = false;
  for (const Instr& in : plan.code) {
    calls = calls || in.shared;
    if (in.code == Code::Compute && !in.shared) rest += is_long(in) ? kInlined : 1;
  }
  return !calls ? 0 : is_chain(plan) && rest <= kRoom ? 4 : 2;
}

}  // namespace fastjit::plan
