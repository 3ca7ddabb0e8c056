#pragma once
// Numbers that a call computes out of its number arguments before a tensor meets them, `-lr` or `1 - beta ** step`, and
// those that it asks a clock or a generator for: computed and asked for again at each hit, by the operations that
// Python itself would run, in its order.
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <string>
#include <vector>

#include "dispatch/call/asked.h"
#include "observe/observe.h"

namespace fastjit::dispatch {

class Derived {
 public:
  /// When a hit computes a number, and what it must be.
  enum class Use : uint8_t {
    Open,   // any value serves
    Guard,  // the recorded value is what the program is for
    Late,   // after the program has run: nothing in it depends on the number
  };

  bool empty() const { return formulas_.empty(); }
  /// `place[i]`: where watched number i is among the numbers of a call, negative where it is the same in all of them.
  /// The new number's place is the next one.
  void add(observe::Derivation how, const std::vector<int>& place, Use use);
  /// Whether a call may find that a number is another one than this program is for.
  bool has_guards() const { return has_guards_; }
  /// Whether two runs of the same call give different numbers.
  bool asks_clock() const { return asks_clock_; }
  /// Of a variant with guards, whether the numbers are those that it is for. What the call will draw is still to come
  /// afterwards.
  bool holds(PyObject* const* given, size_t count) const noexcept;
  /// "random.random() < 0.5 at model.py:9": the last number that a guard compares; empty without one.
  std::string last_guard() const;
  std::vector<std::string> describe() const;  // a line for each that is asked for

  /// The numbers of one call: those it was given and the derived ones behind them. When it ends, generators are as they
  /// were before, unless keep() was called.
  class Numbers {
   public:
    Numbers(const Derived& derived, PyObject* const* given, size_t count);
    ~Numbers();
    Numbers(const Numbers&) = delete;
    Numbers& operator=(const Numbers&) = delete;
    PyObject* const* data() const { return all_.data(); }
    /// Not empty: this call must run eagerly, since a number raises, or is another one or of another type than in the
    /// recorded call.
    const std::string& why() const { return why_; }
    bool differs() const { return differs_; }  // a guard does not hold
    /// The late ones, which data() lacks before. False with an exception set.
    bool finish();
    /// The call has drawn what it drew.
    void keep() { state_.reset(); }

   private:
    bool compute(size_t step);
    const Derived& derived_;
    c10::SmallVector<PyObject*, 16> all_;  // owned from given_ on; null: not computed
    size_t given_;
    std::optional<AskedState> state_;
    std::string why_;
    bool differs_ = false;
  };

 private:
  struct Formula {
    observe::Derivation how;
    std::vector<int> places;  // per operand
    PyTypeObject* type;
    Use use;
  };
  std::vector<Formula> formulas_;
  bool has_guards_ = false, asks_clock_ = false, draws_ = false, draws_from_numpy_ = false;
};

/// "(1 - beta)", for operands of these names; an empty one is shown by its value.
std::string text(const observe::Derivation& how, const std::vector<std::string>& operands);

}  // namespace fastjit::dispatch
