#pragma once
// Numbers of which a program may take any value: known by their addresses, since each is an object of the call's own.
#include <unordered_map>
#include <vector>

#include "observe/observe.h"

namespace fastjit::observe {

class WatchedNumbers {
 public:
  enum class From : uint8_t { Caller, Tensor, Asked, Clock, Size };
  static constexpr size_t kNone = SIZE_MAX;

  bool empty() const { return all_.empty(); }
  size_t size() const { return all_.size(); }
  /// It is held, and open, from now on.
  void watch(PyObject* number, From from);
  size_t find(PyObject* o) const;  // which one it is, or kNone
  bool contains(PyObject* o) const { return find(o) != kNone; }
  /// It is one whose value nothing has read: Python code, or an operator that a program does not give it to.
  bool is_open(PyObject* o) const;
  bool is_open(size_t which) const { return all_[which].is_open; }
  void close(size_t which) { all_[which].is_open = false; }
  From from(size_t which) const { return all_[which].from; }
  /// It is asked for in every call, or follows from such ones.
  bool is_asked(size_t which) const { return from(which) == From::Asked || from(which) == From::Clock; }

  /// `o` is the next operand of `how`, which is what its operands make it.
  void add_operand(Derivation& how, PyObject* o) const;
  /// The number that was watched last, or with kUnwatched none of them, is computed so.
  void derived(Derivation how) { derivations_.push_back(std::move(how)); }
  const Derivation* derivation_of(size_t which) const;
  bool has_asked() const { return has_asked_; }
  /// How often the call asked for one so far.
  size_t asked() const;

  /// What Observation says of them. Gives the numbers and derivations away.
  void tell(Observation& seen);

 private:
  struct Watched {
    Ref number;
    From from;
    bool is_open = true;
  };
  std::vector<Watched> all_;
  std::unordered_map<PyObject*, size_t> by_address_;
  std::vector<Derivation> derivations_;
  bool has_asked_ = false;
};

}  // namespace fastjit::observe
