#pragma once
// Programs for any size: the key leaves out the sizes that are symbols, and each call brings them. What follows from
// them (guards, shapes, strides, trip counts) is computed by a few instructions; the programs at the sizes that came
// last stay as they are.
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/run/executor.h"
#include "plan/program.h"

namespace fastjit::dispatch {

/// A symbol of a program: a size or stride of an argument tensor, or a number of the call.
struct SizeOfArgument {
  static constexpr uint32_t kNumber = 0xFFFFFFFFu;
  uint32_t argument, dim;  // kNumber: `dim` is the place among the numbers that the call is matched with
  int64_t recorded;
  bool is_stride = false;
};

/// Whether programs that are for any int are for this one. Beyond 2**53 floats that Python makes of ints are not what a
/// program makes of them.
constexpr bool may_be_symbol(int64_t value) { return value >= ir::Symbols::kLeast && value <= int64_t{1} << 53; }

class Sized {
 public:
  /// By symbol; `layouts`: argument tensors whose sizes or strides follow from symbols; `given`: how many of the
  /// numbers are arguments.
  Sized(std::span<const SizeOfArgument> symbols, const std::vector<std::pair<uint32_t, ir::Layout>>& layouts,
        const std::vector<capture::InputSource>& inputs, size_t given);
  /// Of a program whose inputs do not tell its sizes: these are the recorded ones, by symbol.
  explicit Sized(std::span<const int64_t> recorded);
  /// The inputs of the program, where they are others than those it was made with.
  void find_inputs(const std::vector<capture::InputSource>& inputs);
  /// `base` is the program at the recorded sizes, which stays where it is.
  void set_program(const ir::Symbols& symbols, const plan::Program& base, plan::PlanOptions options,
                   const std::vector<ir::InputInfo>& scalars);

  /// The program at some sizes. With late ones it is one run's at a time, which tells it what it finds.
  struct Instance final : LateSizes {
    Instance(const Sized* sized, const plan::Program& program);
    Instance(const Instance&) = delete;
    bool take(std::span<const Found> found) override;
    bool is_asked() const override { return sized->asks_late_; }

    const Sized* sized;
    plan::Program program;
    std::vector<int64_t*> numbers;   // of the program, to be written
    std::vector<int64_t> registers;  // the symbols first
    uint64_t known = 0;              // late symbols that the run has found, as bits
    uint64_t* scalars = nullptr;     // of the run
    bool is_settled = false;         // the program's numbers are those of the registers
    int users = 0;
    bool has_run = false;
    bool is_long = false;  // it takes several threads
    bool is_far = false;   // its sizes are far above those that the plan is made for
  };

  /// A program at the sizes of one call, while its run lasts. Made and ended with the GIL held.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : at_(std::exchange(other.at_, nullptr)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (at_) --at_->users;
    }
    explicit operator bool() const { return at_ != nullptr; }
    const plan::Program& program() const { return at_->program; }
    /// No run of the program at these sizes has gone through yet.
    bool is_new() const { return !at_->has_run; }
    void count_run() const {
      at_->has_run = true;
      at_->sized->late_failures_ = 0;
    }
    bool is_long() const { return at_->is_long; }
    /// The sizes that it is for, by symbol.
    std::span<const int64_t> symbols() const { return {at_->registers.data(), at_->sized->symbols_.size()}; }
    /// Where a run that begins now tells of the sizes that it finds; it writes those that are scalars.
    LateSizes* late(uint64_t* scalars) const {
      at_->known = 0;
      at_->scalars = scalars;
      return at_;
    }
    /// Bits of a graph scalar that is a size.
    uint64_t scalar(size_t which) const { return static_cast<uint64_t>(at_->registers[at_->sized->scalars_[which]]); }

   private:
    friend class Sized;
    explicit Lease(Instance* at) : at_(at) { ++at->users; }
    Instance* at_ = nullptr;
  };

  /// Whether the guards let in the sizes of these argument tensors and these ints, and strides follow from them as
  /// recorded.
  bool fits(PyObject* const* tensors, PyObject* const* numbers) const noexcept;
  /// Whether some of these ints are none of the arguments: facts lead to them.
  bool finds_ints() const { return finds_ints_; }
  /// Which guard keeps these out, in words: "x.size(0) >= 2".
  std::string first_failure(PyObject* const* tensors, PyObject* const* numbers) const;
  /// The program for these inputs and numbers; none: the guards do not let them in.
  Lease take(const at::Tensor* const* inputs, PyObject* const* numbers) const;
  /// The same for these sizes, by symbol.
  Lease take(std::span<const int64_t> sizes) const;
  /// Whether its runs find sizes.
  bool has_late() const { return code_.has_late(); }
  /// Graph scalars of the program, and whether one is a size.
  size_t scalars() const { return scalars_.size(); }
  bool is_size(size_t scalar) const { return scalars_[scalar] != kGiven; }
  /// An operator gave other sizes than foretold: from now on it is for the recorded sizes only.
  /// With late ones it is for none, once that has happened a few times in a row: a relation that hardly ever holds
  /// costs a call now and then.
  void fail(const std::string& why) const {
    if (!has_late() || ++late_failures_ == kManyFailures) why_failed_ = why;
  }
  bool failed() const { return !why_failed_.empty(); }
  const std::string& why_failed() const { return why_failed_; }

  /// Whether calls keep coming whose sizes are far above those that the plan is made for: another may be much faster.
  bool wants_plan() const { return far_calls_ >= kManyFar; }
  /// The sizes of the call that came last, by symbol, late ones too.
  std::vector<int64_t> latest() const {
    return {instances_[0]->registers.begin(), instances_[0]->registers.begin() + static_cast<ptrdiff_t>(code_.symbols)};
  }
  /// The plan is made for these sizes, or no better one can be had.
  void settle_plan(std::vector<int64_t> sizes);
  /// Whether some run of the program has not ended.
  bool in_use() const;
  const plan::PlanOptions& options() const { return options_; }
  const std::vector<std::string>& guards() const { return guards_; }  // "x.size(0) >= 2"
  /// Positions of argument tensors whose sizes the key leaves out, with their layouts.
  const std::vector<std::pair<uint32_t, ir::Layout>>& layouts() const { return layouts_; }

 private:
  static constexpr uint32_t kGiven = 0xFFFFFFFFu;
  static constexpr uint32_t kManyFar = 8, kManyFailures = 3;
  struct Place {
    uint32_t argument, input, dim;  // input: kGiven where the program does not take the argument
    int64_t recorded;
    bool is_stride = false;
    bool is_number() const { return argument == SizeOfArgument::kNumber; }
    int64_t of(PyObject* const* tensors, PyObject* const* numbers) const noexcept;
    int64_t of(const at::Tensor& tensor) const noexcept;
  };
  struct StrideCheck {
    uint32_t argument, dim, expr, place = 0;
  };
  Lease take_at(int64_t* registers) const;
  bool is_far(const Instance& instance) const;
  void settle(Instance& instance, bool is_late) const;
  std::vector<Place> symbols_;          // without the late ones
  std::vector<int64_t> late_recorded_;  // those
  bool finds_ints_ = false;
  bool asks_late_ = false;  // guards or scalars hang on late symbols
  std::vector<StrideCheck> strides_;
  std::vector<std::pair<uint32_t, ir::Layout>> layouts_;
  std::vector<std::string> guards_;
  std::vector<uint32_t> scalars_;  // per graph scalar: the register of a size, or kGiven
  std::vector<uint32_t> places_;   // per number of plan::Program::sized: its register
  ir::SizeCode code_;
  plan::PlanOptions options_;
  const plan::Program* base_ = nullptr;  // at the recorded sizes
  std::vector<int64_t> planned_;         // the sizes that the plan is made for, by symbol
  mutable uint32_t far_calls_ = 0;
  mutable uint32_t late_failures_ = 0;
  mutable std::string why_failed_;
  mutable std::vector<std::unique_ptr<Instance>> instances_;  // the latest first
};

}  // namespace fastjit::dispatch
