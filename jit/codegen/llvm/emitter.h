#pragma once
// The emitter of one kernel. The loop nest is: units, lanes of a kept vec_dim, then per phase the reduced loops.
// Every value is computed at the outermost loop level that it depends on, so loads and arithmetic that do not move
// with a loop stand before it.
#include <functional>

#include "codegen/llvm/rules.h"

namespace fastjit::codegen {

class KernelEmitter {
 public:
  KernelEmitter(llvm::Module& module, const plan::KernelPlan& plan, backend::Isa isa);
  void emit(std::string_view entry);

 private:
  using Value = llvm::Value;
  // Levels: 0 the function, 1 a unit, 2 the lane loop of a kept vec_dim, 3 + i the i-th reduced loop.
  static constexpr int kUnit = 1, kLanes = 2, kReduced = 3;

  /// How the current lane loop runs: `slots` vectors from element `index`, or one vector of which `remaining` lanes
  /// count.
  struct Lanes {
    int slots = 1;
    Value* index = nullptr;
    Value* remaining = nullptr;
    Value* mask = nullptr;
  };
  /// The current tile of a tiled plan: its first index and its length along tile_dim and along vec_dim.
  struct Tile {
    Value *row = nullptr, *rows = nullptr, *column = nullptr, *columns = nullptr;
  };
  /// A digit of the number of a unit, fastest first. The last has no limit.
  struct Digit {
    llvm::AllocaInst* now;
    Value* limit;
  };
  /// A computed value: one vector a slot if it varies along vec_dim, else a number and (where needed) its splat.
  struct Held {
    llvm::SmallVector<Value*, 4> slots;
    Value* number = nullptr;
    Value* splat = nullptr;
  };
  struct Accumulator {
    uint32_t id;
    llvm::SmallVector<llvm::SmallVector<llvm::AllocaInst*, 2>, 4> slots;  // [row * slots of a row + slot][part]
    llvm::SmallVector<llvm::AllocaInst*, 4> runs;  // of a Dot whose lanes are results: the running sum of each slot
  };
  /// So many products are added up before their sum goes to that of all: the error of a running sum grows with its
  /// length. Sums of 1000 in runs of 64 have a quarter of the error, for one addition more in 64.
  static constexpr int64_t kDotRun = 64;
  /// What rounds hand on: of each row and slot of an operand, as it lies in memory.
  struct Carried {
    plan::Carry of;
    int slots;
    llvm::SmallVector<llvm::AllocaInst*, 4> now;  // [row * slots + slot]
    llvm::SmallVector<Value*, 4> in_round;        // as the current round found it
  };
  /// One a row of the unit, or one for all rows where the value does not move with them.
  using HeldRows = llvm::SmallVector<Held, 1>;

  // emit.cpp: placement, the function, units
  void place();
  void arguments();
  void units();
  void unit_pointers();
  void rows_of_unit();
  void decode();
  void advance();
  void row();
  void phases();

  // loops.cpp
  void count(Value* from, Value* to, int64_t step, const std::function<void(Value*)>& body);
  void lane_loops(Value* from, Value* to, const std::function<void()>& body);
  void reduced_loops(const plan::Phase& phase, int dim);
  void emit_level(const std::vector<uint32_t>& list, int level);
  void accumulate(uint32_t id);
  ReduceState accumulated(uint32_t id, const ReduceState& old, int slot);
  void begin_accumulators(const plan::Phase& phase);
  void end_run(Value* products);
  void end_runs();
  Held total(uint32_t id, llvm::MutableArrayRef<ReduceState> states);
  void end_accumulators();

  // time.cpp
  bool is_loaded_from_round(uint32_t operand) const;
  void begin_rounds();
  void begin_round();
  void end_rounds();
  Value* from_round(uint32_t operand, int slot);
  bool to_round(uint32_t operand, Value* value, int slot);

  // tiles.cpp
  void begin_tiles();
  void tile();
  void move_tile(uint32_t operand, bool out);
  void move_square(uint32_t operand, Value* memory, Value* buffer, bool out);
  void move_rest(uint32_t operand, Value* memory, bool out);
  int square(ir::DType type) const;
  Value* tile_row(uint32_t operand, Value* row);

  // instructions (emit.cpp)
  int rows_of(uint32_t id) const;
  void instruction(uint32_t id);
  void instruction_of_row(uint32_t id);
  void call_in_pairs(uint32_t id, Held& held);
  Value* compute(uint32_t id, int slot);
  const Held& held(uint32_t id) const { return held_[id][held_[id].size() > 1 ? static_cast<size_t>(row_) : 0]; }
  Value* arg(uint32_t id, int i, int slot, bool vector);
  Value* pointer_of(uint32_t operand);
  Value* index_value(int dim, int slot);
  Value* flat_index(int slot);

  // memory.cpp
  Value* load(uint32_t operand, int slot, bool in_elem);
  Value* load_raw(uint32_t operand, int slot, bool in_elem);
  Value* gather(uint32_t id, int slot);
  void store(uint32_t operand, Value* value, int slot, bool vector);
  void store_raw(uint32_t operand, Value* value, int slot, bool vector);
  Value* recall(uint64_t number, ir::DType type, int slot);
  void keep(uint64_t number, ir::DType type, Value* value, int slot);
  struct Place {
    Value* pointer;  // of lane 0
    Value* stride;   // bytes between lanes; null: neighbours
    ir::DType type;
    int operand;               // whose lane offsets a gather uses; -1: none
    bool every_other = false;  // stride 2, see StrideClass::Two
  };
  Place place_of(uint32_t operand, int slot);
  Place kept_place(uint64_t number, ir::DType type, int slot);
  Value* load_lanes(const Place& place);
  void store_lanes(const Place& place, Value* value);  // as it lies in memory
  Value* load_every_other(const Place& place, llvm::Type* type);
  Value* load_by_lane(const Place& place, llvm::Type* type);
  Value* gather_lanes(const Place& place, Value* offsets);
  void store_by_lane(const Place& place, Value* value);
  bool masked_memory(ir::DType type) const;
  bool gathers(ir::DType type) const;

  // packed.cpp
  bool is_packed(uint32_t operand) const;
  int first_packed(uint32_t operand) const;
  Value* packed_pointer(uint32_t operand, int slot, int which);
  Value* packed_mask(int which);
  void load_packed(uint32_t id);
  void store_packed(uint32_t id);

  // helpers
  int rank() const { return plan_.rank(); }
  int row_level() const { return vec_kept_ ? kLanes : kUnit; }
  bool varies(uint32_t id) const { return plan_.vec_dim >= 0 && (deps_[id] >> plan_.vec_dim & 1); }
  bool moves_with_lanes(uint32_t operand) const {
    return plan_.vec_dim >= 0 && plan_.operands[operand].strides[plan_.vec_dim] != plan::StrideClass::Zero;
  }
  Value* i64(int64_t n) { return b_.getInt64(static_cast<uint64_t>(n)); }
  Value* offset(Value* pointer, Value* bytes) { return b_.CreateGEP(b_.getInt8Ty(), pointer, bytes); }
  Value* lane_numbers(llvm::Type* type);
  llvm::AllocaInst* variable(llvm::Type* type, const char* name);
  Value* get(llvm::AllocaInst* variable) { return b_.CreateLoad(variable->getAllocatedType(), variable); }
  llvm::BasicBlock* block(const char* name) { return llvm::BasicBlock::Create(context_, name, fn_); }

  llvm::Module& module_;
  llvm::LLVMContext& context_;
  const plan::KernelPlan& plan_;
  llvm::IRBuilder<> b_;
  Rules rules_;
  const bool avx512_;
  const int lanes_, kept_;
  const bool vec_kept_;
  const int row_dim_;  // of plan_.rows; -1: a unit is one row

  llvm::Function* fn_ = nullptr;
  llvm::Instruction* variables_end_ = nullptr;  // allocas go before it
  std::vector<uint32_t> deps_;                  // per instruction: dims it depends on
  std::vector<int> level_;                      // per instruction: where it is computed
  std::vector<bool> in_elem_;                   // per instruction: stands in a phase's elem list
  std::vector<bool> wants_splat_;               // per instruction: a vector uses this number
  std::vector<HeldRows> held_;
  std::vector<Accumulator> accumulators_;
  llvm::AllocaInst* run_length_ = nullptr;  // products in the running sums of a Dot over several dims
  std::vector<Carried> carried_;
  std::vector<Value*> sizes_, base_,
      pointers_;                                // pointers_: per operand, at the current loops (without the lane index)
  std::vector<std::vector<Value*>> strides_;    // [operand][dim] in bytes; null where it does not move
  std::vector<Value*> steps_;                   // per gathered operand: its step in bytes, else null
  std::vector<Value*> row_index_;               // per row of the unit: its index along row_dim_
  std::vector<std::vector<Value*>> row_steps_;  // [operand][row]: bytes from the first row; null where it does not move
  std::vector<Value*> lane_offsets_;            // per operand: byte offsets of the lanes, where it is gathered
  std::vector<Digit> digits_;                   // of the current unit: those that follow, in the order they count
  std::vector<llvm::AllocaInst*> decoded_;      // indices of the kept dims that a unit fixes
  llvm::AllocaInst* block_ = nullptr;           // vec_dim Kept: number of the current block
  llvm::AllocaInst* tile_block_ = nullptr;      // tiled: number of the current block along tile_dim
  std::vector<llvm::AllocaInst*> buffers_;      // tiled: the square of each transposed operand, else null
  std::vector<Value*> buffer_rows_;             // tiled: where the current row of each of them begins
  std::vector<Value*> index_;                   // per dim: current index (the lane loop's is lanes_now_.index)
  Value *begin_ = nullptr, *end_ = nullptr, *scratch_ = nullptr, *scratch_stride_ = nullptr, *block_size_ = nullptr;
  Value* scalars_ = nullptr;
  int row_ = 0;            // the row that is emitted
  Value* flat_ = nullptr;  // row-major index over the reduced loops entered so far
  Lanes now_;
  Tile tile_;
};

}  // namespace fastjit::codegen
