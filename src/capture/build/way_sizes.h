#pragma once
// The numbers of autograd's way back for any size. Its formulas are C++ code that nobody watches, and they take sizes
// of operands. What a number is for any size, recordings of the same way at other sizes tell, and only where they prove
// it:
//
// 1. Every formula on the way has a row in formulas.def, which says what its numbers may be: constants, sizes, products
//    of sizes of one tensor, sums and differences of these, where a view that was written begins, and what changes
//    whenever one of these does. Any other formula, that of a torch.autograd.Function too, fixes all sizes.
// 2. No size, nor an int that Python made of sizes, is 0 or 1 that was not (guards), so that formulas run the same
//    operators.
// 3. In some earlier recording all that sizes make (sizes, products, ints of Python's) was smaller than now, or all of
//    it larger. So what follows from sizes differs there, and a number that does not differ is a constant.
// 4. A number that differs is that size, product or int of Python's which had its value in all recordings; where there
//    are several, that they are equal becomes a guard. Sizes that were bound to each other in all recordings (always
//    equal, one always twice the other) stay so: that is a guard. So an expression that is linear in sizes and agrees
//    with another one in the recordings agrees wherever the guards hold.
// 5. The recordings differ in sizes only: in constants that Python gave to operators they agree.
//
// Where that does not hold, the sizes are those of the call, and a later recording tells more.
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "capture/build/scalars.h"
#include "capture/capture.h"
#include "capture/record/trace.h"

namespace fastjit::capture {

/// One recording's.
struct WayPlaces {
  std::shared_ptr<WayNumbers> way;
  std::vector<uint32_t> begin;      // per event: where its numbers begin; kNone: it is no part of a way back
  std::vector<uint32_t> constants;  // which numbers are constants that Python gave to operators of the call
  std::vector<uint32_t> node;       // per event on it: that of the node of autograd's graph which it is a part of
};
/// `way` is null where no way back is gone.
WayPlaces numbers_of_way(const Trace& trace, const CallInputs& inputs, const ScalarBindings& scalars);

/// Numbers of an argument that numbers_of_way() counts. A float is one of them.
struct WayArgument {
  std::vector<int64_t> numbers;
  bool is_float = false;
};
WayArgument numbers_of(const CallValue& item);

class WaySizes {
 public:
  WaySizes(const Trace& trace, const CallInputs& inputs, const ScalarBindings& scalars);
  bool is_gone() const { return places_.way != nullptr; }
  /// Whether it was another one when this way was gone before.
  bool differed(const SizeSymbol& symbol) const;
  /// The symbols of the program, in order.
  void set_symbols(const std::vector<SizeSymbol>& symbols);

  bool has(uint32_t event) const { return event < places_.begin.size() && places_.begin[event] != kNone; }
  uint32_t begin(uint32_t event) const { return places_.begin[event]; }
  uint32_t node(uint32_t event) const { return places_.node[event]; }

  /// What numbers may follow from.
  void add(const ir::Layout& layout, const ir::Symbols& symbols);
  void add(ir::Dim dim, const ir::Symbols& symbols) { add(dim, false, symbols); }
  /// Where a view begins in its base.
  void add_offset(ir::Dim offset, const ir::Symbols& symbols) { add(offset, true, symbols); }
  /// Whether some recording proves constants (3).
  bool is_told() const;
  /// Sums of factors times symbols, and a constant behind these, that were 0 in all recordings (4). Nothing: they are
  /// beyond reckoning.
  std::optional<std::vector<std::vector<int64_t>>> bonds() const;
  /// What this number is for any size; nothing: it is not known. `is_offset`: it is where a view begins.
  std::optional<ir::Dim> find(uint32_t number, int64_t value, bool is_float, bool is_offset);

  std::map<uint32_t, std::vector<ir::Dim>> results;  // by tensor: their sizes
  uint32_t last = kNone;                             // the last event of the way that was met

 private:
  struct Other {
    std::vector<int64_t> sizes;  // by symbol
    std::shared_ptr<const WayNumbers> way;
  };
  struct Candidate {
    ir::Dim dim;
    bool is_offset;
    std::vector<int64_t> others;  // its value at the sizes of each of `others_`
  };
  void add(ir::Dim dim, bool is_offset, const ir::Symbols& symbols);
  WayPlaces places_;
  std::vector<int64_t> now_;  // by symbol
  std::vector<Other> others_;
  std::vector<Candidate> candidates_;
  std::set<std::pair<uint32_t, bool>> known_;  // expressions of these, and whether they are offsets
};

}  // namespace fastjit::capture
