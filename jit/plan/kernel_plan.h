#pragma once
// One kernel, fully decided: what it loads, computes and stores, over which loops, in which order and how wide. Both
// emitters (LLVM, CUDA) obey it and decide nothing. Sizes and strides are run-time arguments, so that a plan, and the
// kernel key made from its text, does not change with the batch size.
//
// Iteration space: dims 0..rank-1, the Kept ones first (outer to inner), then the Reduced ones (outer to inner).
// For each point of the kept space:
//   for each phase:  run `elem` over the reduced space (in row-major order), then `row` once.
// A pointwise kernel has no Reduced dim and one phase with only `row`.
//
// `vec_dim` is the dim whose consecutive indices form the lanes. If it is Kept, every row value is a vector (of lanes
// different points) and reductions never cross lanes. If it is Reduced, row values are one number, and a Reduce in
// `elem` combines its lanes at the end of the loop.
//
// A row kernel may compute `rows` points side by side along the last kept dim before a kept vec_dim (else the last kept
// dim): what does not move along it is loaded once for all of them. Beyond the dim's end its last point comes again.
//
// Where that dim has `rows` points and no more, in a pointwise kernel, operands may be packed: Packed along vec_dim,
// Unit or Back along row_dim(). The rows of such an operand lie one within the other, as the colours of an image do:
// whole vectors are loaded or stored, and shuffled.
//
// A tiled plan (pointwise, vec_dim Kept) runs over squares of `tile` x `tile` points of tile_dim and vec_dim. Operands
// that are Unit along tile_dim and Any along vec_dim are transposed: they go through a buffer of one such square.
// A small plan is for one set of sizes and strides: straight-line code without any loop, in which a value is one vector
// with a lane for each kept point, and what it loads of an operand comes out of registers that hold all of that. Its
// one unit is everything.
//
// A plan over time has a last dim of kind Time, whose indices (rounds) run in order: of a small plan all of it runs in
// each round, of others `elem` does, for all rounds of a point before the next point, and nothing is reduced. What a
// round hands to the next stays in registers (`carries`); memory gets what the last round leaves. An operand that does
// not move along Time is loaded once, before the first round. Of a small plan the Time dim has size 1 and strides 0.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"
#include "ir/graph.h"
#include "ir/numerics.h"
#include "ir/op.h"

namespace fastjit::plan {

enum class DimKind : uint8_t { Kept, Reduced, Time };

/// Zero: the operand does not move along the dim. Unit: stride 1. Two: stride 2, loads along vec_dim only (every other
/// element: whole vectors and a shuffle in place of a gather). Any: a run-time stride. Packed: stride `rows`, along
/// vec_dim. Back: stride -1, along row_dim() of a packed operand.
enum class StrideClass : uint8_t { Zero, Unit, Any, Two, Packed, Back };

struct Operand {
  ir::DType dtype;
  bool output = false;               // stored to (an operand may be both loaded and stored: in place, same element)
  std::vector<StrideClass> strides;  // one per dim; an output is Zero on Reduced dims unless stored in `elem`
  bool listed = false;               // of a small plan over time: KernelArgs has a list of pointers, one a round
  bool gathered = false;             // only Gathers read it: anywhere, so that nothing of its kernel writes there
  bool operator==(const Operand&) const = default;
};

/// What an instruction does. Values are SSA: an instruction's number is its place in KernelPlan::code.
enum class Code : uint8_t {
  Load,     // imm: operand                       -> its element, as dtype
  Gather,   // imm: gathered operand, args[0]: I64 -> its element so many steps further on
  Scalar,   // imm: run-time scalar (F64 or I64)  -> that number
  Const,    // imm: 64 bits (double for floats, int64 otherwise)
  Index,    // imm: dim                           -> I64 index along it
  Compute,  // op, args                           -> pointwise op of op.def (Convert: from args[0]'s dtype to dtype)
  Reduce,  // kind, args[0], of a Dot args[1] too; only in `elem`; its value is a row value after the phase. dtype: type
           // of the result
  Store,   // imm: operand, args[0]
  Keep,    // imm: scratch slot, args[0]; only in `elem`, vec_dim Reduced: remembers the value per reduced index
  Recall,  // imm: scratch slot                  -> what a Keep of an earlier phase stored at this reduced index
};

struct Instr {
  Code code;
  ir::DType dtype;
  ir::Op op = ir::Op::Input;                  // Compute only
  ir::ReduceKind kind = ir::ReduceKind::Sum;  // Reduce only
  uint32_t args[3] = {0, 0, 0};
  uint64_t imm = 0;
  bool shared = false;  // Compute only: on a CPU its uses call one body (share.h)
  bool operator==(const Instr&) const = default;
};

/// How many of `args` it uses.
constexpr int arity(const Instr& instr) {
  switch (instr.code) {
    case Code::Compute:
      return ir::info(instr.op).arity;
    case Code::Reduce:
      return instr.kind == ir::ReduceKind::Dot ? 2 : 1;
    case Code::Gather:
    case Code::Store:
    case Code::Keep:
      return 1;
    default:
      return 0;
  }
}

/// Reads an operand.
constexpr bool is_load(const Instr& instr) { return instr.code == Code::Load || instr.code == Code::Gather; }
constexpr bool is_dot(const Instr& instr) { return instr.code == Code::Reduce && instr.kind == ir::ReduceKind::Dot; }

struct Phase {
  std::vector<uint32_t> elem;  // instructions inside the reduced loops, in order; empty in a pointwise kernel
  std::vector<uint32_t> row;   // instructions once per kept point (vector of points if vec_dim is Kept), in order
  bool operator==(const Phase&) const = default;
};

/// What a round stores to `to` is what the next one loads from `from`, element for element; the first loads what `from`
/// holds. kNone: nothing loads it, and only the last round's is wanted.
struct Carry {
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
  uint32_t from, to;
  bool operator==(const Carry&) const = default;
};

using ir::Numerics;

/// The most that a small plan has: kept points, reduced elements of each, and elements from the first to the last of an
/// operand.
inline constexpr int64_t kSmallPoints = 64, kSmallReduced = 16, kSmallExtent = 64;

struct KernelPlan {
  std::vector<DimKind> dims;
  std::vector<Operand> operands;
  std::vector<ir::DType> scalars;  // F64 or I64
  std::vector<ir::DType> scratch;  // type of each Keep slot
  std::vector<Instr> code;
  std::vector<Phase> phases;
  std::vector<Carry> carries;    // of a plan over time
  int8_t vec_dim = -1;           // -1: one lane
  uint8_t lanes = 1;             // vector length in elements, a power of two, the same for every type in the kernel
  uint8_t unroll = 1;            // independent vectors in flight
  uint8_t rows = 1;              // points along row_dim() that a unit computes
  int8_t tile_dim = -1;          // of a tiled plan: the kept dim before vec_dim
  uint8_t tile = 0;              // points along a side of a tile, a multiple of lanes; 0: not tiled
  std::vector<int64_t> sizes;    // of a small plan: per dim
  std::vector<int64_t> strides;  // of a small plan: operand-major, [operand * rank + dim], in elements, none negative
  uint8_t sums = 1;              // of a small plan: running sums of a Dot, which take its products in turn
  bool is_wide = false;          // on a GPU: 32 bits do not count its points, or the reduced ones of a point
  Numerics numerics = Numerics::Eager;
  uint8_t vector = 1;  // on a GPU: 1 or 4 elements side by side along the last dim (transposed: tile_dim) for a thread.
                       // Sizes and strides are multiples of it; the stride of that dim is 0 or 1

  bool operator==(const KernelPlan&) const = default;
  int rank() const { return static_cast<int>(dims.size()); }
  int kept() const;                                        // number of Kept dims
  bool is_row_kernel() const { return kept() != rank(); }  // has loops in each row: Reduced dims, or Time
  bool is_small() const { return !sizes.empty(); }
  bool is_over_time() const { return !dims.empty() && dims.back() == DimKind::Time; }
  /// Of a small plan: its kept points, and elements from the first to the last that it touches of an operand.
  int64_t points() const;
  int64_t extent(size_t operand) const;
  bool vec_is_kept() const { return vec_dim >= 0 && dims[static_cast<size_t>(vec_dim)] == DimKind::Kept; }
  /// The dim that `rows` are of; -1: none.
  int row_dim() const { return kept() - (vec_is_kept() ? 2 : 1); }
  /// Where KernelArgs::strides has the step of a gathered operand, in elements: behind those of the dims.
  size_t step_of(size_t operand) const;
  bool has_gathers() const;
  /// The operand goes through the buffer of a tile.
  bool is_transposed(size_t operand) const;
};

/// Units of a launch (see backend::KernelArgs) over these sizes, one per dim.
int64_t unit_count(const KernelPlan& plan, const int64_t* sizes, int64_t block);

/// Equal for equal plans.
uint64_t hash_of(const KernelPlan& plan);

/// Canonical text of the plan: complete (two plans with one text give the same machine code for one target), readable,
/// what `inspect("plan")` and `cache show` print, and the main field of the kernel key.
std::string text(const KernelPlan& plan);

/// What the kernel does, as a C identifier for its symbol: "fj_mul_add_erf_f32" has the kinds of its operations in the
/// order they first run and the type that it stores. Different plans may share one.
std::string name(const KernelPlan& plan);
inline constexpr std::string_view kNamePrefix = "fj_";

/// Empty when the plan is legal, else one sentence saying what is wrong.
std::string verify(const KernelPlan& plan);

}  // namespace fastjit::plan
