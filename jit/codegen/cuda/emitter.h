#pragma once
// One kernel plan as CUDA source, line by line: emit.cpp has what a kernel is made of, loops.cpp how threads run over
// it.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/grid.h"

namespace fastjit::codegen {

inline std::string number(int64_t n) { return std::to_string(n); }

class CudaEmitter {
 public:
  explicit CudaEmitter(const plan::KernelPlan& plan)
      : plan_(plan),
        blocks_(plan::threads_of(plan) == plan::Threads::BlockPerRow),
        points_(plan::points_per_thread(plan)),
        names_(plan.code.size()),
        moves_(plan.code.size()) {}

  /// The whole text: the helpers that it needs, the parameters, the kernel. Called once.
  std::string source();

 private:
  using Instr = plan::Instr;

  /// for (at = first; at < end; at += apart), as it stands in the source: each round of it takes points_ values of
  /// `at`, and the next round's are `step` further on. `at` counts the points of dims [from, to), or of a tile.
  struct Loop {
    std::string at, end, first, step, apart;
    int from, to;
  };

  int rank() const { return plan_.rank(); }
  int kept() const { return plan_.kept(); }
  std::string heading() const;
  std::string parameters() const;
  std::string choice() const;

  // Text of operands, sizes and indices. vectors(): the size, where a vector counts as one.
  std::string operand(size_t i) const {
    return (plan_.operands[i].output ? "out" : "in") + number(static_cast<int64_t>(i));
  }
  std::string size(int dim) const { return (plan_.is_wide ? "p.n" : "(unsigned)p.n") + number(dim); }
  std::string vectors(int dim) const;
  std::string_view index_type() const { return plan_.is_wide ? "long long" : "unsigned"; }
  std::string index(int dim) const;
  std::string product(int first, int last) const;
  std::string memory(size_t i, const std::string& gathered_at = "") const;
  std::string element(size_t i) const;
  std::string scratch(uint64_t slot, const std::string& at = "r") const;
  std::string value(const Instr& in) const;
  std::string name_of(uint32_t id) const;
  bool moves(const Instr& in) const;

  // What a thread takes as a vector.
  bool is_vector(const Instr& in) const;
  std::string vector_type(const Instr& in) const;
  std::string vector_place(const Instr& in) const;

  void line(const std::string& text) { body_ += std::string(static_cast<size_t>(2 * depth_), ' ') + text + "\n"; }
  void open(const std::string& text) {
    line(text.empty() ? "{" : text + " {");
    ++depth_;
  }
  void close() {
    --depth_;
    line("}");
  }

  void body();
  void phases();
  void reduced_loop(const plan::Phase& phase);
  void finish(uint32_t id);
  void row_values(const plan::Phase& phase);
  void define(uint32_t id);
  void run(uint32_t id);
  void store(const Instr& in) { line(element(in.imm) + " = " + names_[in.args[0]] + ";"); }

  // loops.cpp
  void decode(const std::string& flat, int first, int last);
  void together(const Loop& loop, std::span<const uint32_t> ids);
  void load_early(const Loop& loop, const std::string& index, std::span<const uint32_t> early);
  bool is_gathered(const Instr& in) const;
  void each_of_vector(std::span<const uint32_t> ids, std::span<const uint32_t> others);
  std::vector<int> remembered(const Loop& loop) const;
  std::vector<uint32_t> loads_before_stores(std::span<const uint32_t> ids) const;
  std::string all(uint32_t id) const { return name_of(id) + "s"; }
  std::string loaded(uint32_t id) const;
  std::string tile(size_t operand) const { return "tile" + number(static_cast<int64_t>(operand)); }
  std::string in_tile(size_t operand, const std::string& row, const std::string& column) const {
    return tile(operand) + "[(" + row + ") * (" + number(plan_.tile) + " + 1) + " + column + "]";
  }
  // `point` counts vectors: so many to a tile, to a row of one, and where the first element of this one is in it.
  std::string in_all_of_tile() const { return number(plan_.tile * plan_.tile / plan_.vector); }
  std::string across_tile() const { return number(plan_.tile / plan_.vector); }
  std::string side_by_side() const {
    const std::string at = "point % " + across_tile();
    return plan_.vector > 1 ? at + " * " + number(plan_.vector) : at;
  }
  std::string shared_tiles() const;
  void tiles();
  bool copy_tiles(bool stores);
  void copy_tile(const Instr& in);
  void place_in_tile(bool loads);

  const plan::KernelPlan& plan_;
  const bool blocks_;
  const int points_;                // that a thread computes side by side
  std::vector<std::string> names_;  // of values that stand in the source so far
  std::vector<bool> moves_;
  std::string body_;
  int depth_ = 0;
  bool in_vector_ = false;  // inside the loop over a vector's elements
};

}  // namespace fastjit::codegen
