#pragma once
// The loops of one kernel while they are chosen: shape.cpp orders and merges them and writes the plan, lanes.cpp says
// how vectors, rows and tiles run along them.
#include "plan/shape.h"

#include <algorithm>

namespace fastjit::plan {

/// An operand while dims are still moved about: strides per frame dim.
struct Touched {
  BufferId buffer;
  ir::DType dtype;
  Linear address;
  std::optional<Dim> step = {};  // of what is gathered: see Access
  bool stored = false;
  bool in_loop = false;  // loaded or stored once per reduced point
  uint32_t turns = 0;    // frame dims that a Gather's index moves along, a bit each
};

/// One loop of the kernel: a frame dim, or several merged into their innermost.
struct Loop {
  int dim;
  Dim size;
  bool indexed;
};

class Shaper {
 public:
  Shaper(const World& world, const Space& frame, std::span<const Root> roots, const Draft& draft,
         const PlanOptions& options, Rows rows)
      : world_(world), frame_(frame), roots_(roots), draft_(draft), options_(options), rows_(rows) {}

  Shaped run() {
    touch();
    order();
    merge(kept_, rows_ == Rows::Separate ? 1 : 0);
    merge(reduced_, 0);
    choose_lanes();
    choose_rows();
    choose_packed();
    choose_tile();
    choose_narrow();
    choose_small();
    fill_plan();
    fill_step();
    return std::move(out_);
  }

 private:
  void touch();
  void order();
  void sort(std::vector<Loop>& loops);
  void merge(std::vector<Loop>& loops, size_t first);
  double lane_cost(const Loop& loop, bool reduced) const;
  void choose_lanes();
  bool may_take(bool reduced) const;
  void choose_rows();
  void find_turns();
  bool has_gathers() const {
    return std::ranges::any_of(touched_, [](const Touched& touched) { return touched.step.has_value(); });
  }
  bool has_many_registers() const;
  bool has_wide_rows() const;
  int64_t bytes_still(const Loop& loop) const;
  void choose_packed();
  bool packs(const Loop& lanes, const Loop& rows) const;
  void choose_tile();
  void choose_narrow();
  void choose_small();
  bool is_small() const;
  void fill_plan();
  void fill_step();
  bool is_narrow(const Loop& loop) const;
  bool is_wide() const {
    return std::ranges::any_of(code_, [](const Instr& instr) { return ir::size_of(instr.dtype) == 8; });
  }
  bool is_wide_space() const;
  uint8_t vector_on_gpu() const;
  int lanes_along(const Loop& loop) const;
  size_t computed() const { return static_cast<size_t>(std::ranges::count(code_, Code::Compute, &Instr::code)); }
  uint8_t unroll() const;
  uint8_t unroll_of_product() const;
  Dim block() const;
  bool packed(const Touched& touched, const Loop& lanes, const Loop& rows) const {
    const Dim step = stride(touched, rows.dim);
    return is(stride(touched, lanes.dim), rows.size.hint()) && (is(step, 1) || is(step, -1));
  }
  bool transposed(const Touched& touched) const;
  bool transposed(const Touched& touched, const Loop& across) const {
    return !is(stride(touched, lanes_along_), 0) && !is(stride(touched, lanes_along_), 1) &&
           !is(stride(touched, lanes_along_), -1) && is(stride(touched, across.dim), 1);
  }
  Dim stride(const Touched& touched, int dim) const { return touched.address[static_cast<size_t>(dim)]; }
  /// For all sizes: a kernel takes any other stride at run time.
  static bool is(Dim stride, int64_t number) { return identical(stride, number); }

  const World& world_;
  const Space& frame_;
  std::span<const Root> roots_;
  const Draft& draft_;
  const PlanOptions& options_;
  Rows rows_;
  std::vector<Touched> touched_;
  std::vector<Instr> code_;
  std::vector<std::vector<uint32_t>> lists_;
  std::vector<Loop> kept_, reduced_;
  int lanes_along_ = -1;     // frame dim
  int64_t tile_ = 0;         // the loop before the lanes' makes tiles with it
  bool is_product_ = false;  // a kernel with a Dot
  bool is_packed_ = false;
  bool is_small_ = false;
  int sums_ = 1;
  uint8_t rows_together_ = 1;
  Shaped out_;
};

}  // namespace fastjit::plan
