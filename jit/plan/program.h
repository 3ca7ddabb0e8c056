#pragma once
// What a call runs: a flat list of steps over slots. Made by the planner for concrete sizes; its kernels are shared by
// every program whose plans have the same text. Plain data: the executor (in src/) obeys it.
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ir/graph.h"
#include "plan/choose.h"
#include "plan/cost.h"
#include "plan/grid.h"
#include "plan/kernel_plan.h"

namespace fastjit::plan {

using SlotId = uint32_t;
inline constexpr SlotId kNoSlot = 0xFFFFFFFFu;

enum class SlotKind : uint8_t {
  Input,   // the caller's tensor number `index`
  Tensor,  // a tensor the program allocates: outputs, and operands of extern steps
  Temp,    // raw bytes at `offset` in the arena: only kernels touch it
  Extern,  // made by a call of torch's
  Alias,   // a tensor on the storage of slot `base`: same dtype, `sizes`, `strides`, `offset` elements further
};

/// First what says where it lies, all that a run looks at.
struct Slot {
  SlotKind kind;
  ir::DType dtype;
  bool brief = false;                       // Tensor: nobody outside ever sees it, and a FreeStep or the caller ends it
  uint32_t index = 0;                       // Input: which. Temp: none. Else: which of the tensors of a run
  SlotId base = kNoSlot;                    // Alias
  int64_t offset = 0;                       // Temp: bytes into the arena (64-byte aligned). Alias: elements
  std::vector<int64_t> sizes{}, strides{};  // of the tensor; strides in elements
};

/// An element of what a slot holds.
struct Place {
  SlotId slot = kNoSlot;
  int64_t offset = 0;  // elements
  bool operator==(const Place&) const = default;
};

/// One launch. `offsets[i]` is added (in elements) to operand i's slot before the call.
struct KernelStep {
  uint32_t kernel = 0;  // index into Program::kernels
  std::vector<SlotId> operands;
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;     // per dim
  std::vector<int64_t> strides;   // operand-major, as KernelArgs
  std::vector<uint32_t> scalars;  // program scalar per kernel scalar
  int64_t block = 0;
  int64_t units = 0;           // KernelArgs' range is [0, units); 0 when there is nothing to do
  int64_t grain = 0;           // units a task should have at least; >= units: not worth splitting
  int64_t scratch_stride = 0;  // bytes of one slot of one thread, of one block on a GPU
  Grid grid;                   // on a GPU
};

/// Independent launches that share one parallel region.
struct ParallelStep {
  std::vector<KernelStep> launches;
};

/// The launches of `body`, in order, `trip` times. They are alike in every round but for the places of some operands;
/// `body` has those of the first round. A loop `inside` is one launch of a kernel over time, which is given lists of
/// where its jumps lie.
struct LoopStep {
  struct Operand {
    uint32_t launch, operand;
  };
  struct Walk {
    Operand of;
    int64_t delta;  // elements further in its slot each round
  };
  /// Where an operand lies that is written by turns, or was in the round before.
  struct Turn {
    Place first;        // in the first round; kNoSlot: as in the others
    Place last, other;  // in the last round and every other one before it, and in those between
  };
  int64_t trip = 0;
  bool inside = false;
  int team = 0;  // so many threads stay awake for all rounds, and share each launch; 0: each launch is on its own
  std::vector<KernelStep> body;
  std::vector<bool> waits;  // of a team, per launch: it begins when all before it have ended
  std::vector<Walk> walks;
  std::vector<Operand> jumps;  // operands that lie elsewhere each round
  std::vector<Place> table;    // where: jumps.size() places a round
  std::vector<Turn> turns;     // per jump, where `trip` follows from sizes: what the table is made of
  /// A place of the table as a round finds it: a run that goes through the slots of a deep model would wait for each.
  struct Where {
    uint32_t input = kNoSlot;  // Slot::index of an Input
    SlotId slot = kNoSlot;     // of what is neither an Input nor in the arena
    int64_t bytes = 0;         // from there, or from the arena's begin
    int64_t element = 0;       // bytes of one
  };
  std::vector<Where> where;  // empty in a program for any size, where slots and places move: the table says it there
  SlotId temp = kNoSlot;     // one of those in the arena
};

/// An operator run by torch. `call` indexes the capture's call templates; operands fill its holes.
struct ExternStep {
  uint32_t external = 0;  // index into Graph::externs
  std::vector<SlotId> operands;
  std::vector<SlotId> results;
};

/// A product by torch's library in the slot `result`, then the pointwise `epilogue` launches in place or into other
/// slots. A product of matrices is written into a contiguous tensor that the program allocates; a convolution gives
/// its own. rows_per_tile > 0: product and epilogue run tile by tile over that many rows of the (2-d) result, so that
/// the tile is still in cache; the epilogue's outermost dim is the row.
struct ContractStep {
  ir::Product kind = ir::Product::Mm;
  uint32_t call = 0;  // as ir::ContractAttr::call
  std::vector<SlotId> operands;
  SlotId result = kNoSlot;
  std::vector<KernelStep> epilogue;
  int64_t rows_per_tile = 0;
};

/// The program goes on only if `slot` holds, from `offset` elements on, what value `guard` of the capture says. Every
/// step that a caller can see comes later.
struct GuardStep {
  uint32_t guard = 0;
  SlotId slot = kNoSlot;
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
};

/// Number `number` of the capture: an operation of Python on the f64 in these places, whose f64 goes to `result`. It
/// may refuse to go on; every step that a caller can see comes later.
struct NumberStep {
  uint32_t number = 0;
  std::vector<Place> operands;
  SlotId result = kNoSlot;
};

/// The value in `slot` is not used after this step; kNoSlot: no value in the arena is, and a later one begins anew.
struct FreeStep {
  SlotId slot;
};

/// The next step writes over what `slot` holds, which calls of torch's made or were given. Nobody needs it any more,
/// but only its reference counts tell whether somebody kept it: then it becomes a copy first.
struct OwnStep {
  SlotId slot;
};

/// The tensor of the Alias slot `slot` is from now on one on the storage of `base`, `offset` elements further.
struct AliasStep {
  SlotId slot;
  SlotId base;
  int64_t offset = 0;
};

/// The tensor of slot `to` is from now on that of `from`, which has none any more unless it `keeps` it.
struct HandStep {
  SlotId from;
  SlotId to;
  bool keeps = false;
};

/// What a round of a RepeatStep is made of.
using RoundStep =
    std::variant<KernelStep, ParallelStep, ExternStep, ContractStep, GuardStep, AliasStep, HandStep, FreeStep, OwnStep>;

/// The steps of `body`, in order, `trip` times. They are alike in every round but for what stands in some of their
/// holes (see repeat.h); `body` has what stands there in the first round.
struct RepeatStep {
  struct Filling {
    uint32_t id = 0;     // a slot, or a number: of a call, of a guard's value
    int64_t offset = 0;  // of a slot: elements
    bool operator==(const Filling&) const = default;
  };
  /// One for each round, as far as they are listed, then the last `again` of those by turns; in each round `delta`
  /// elements, or numbers, further than in the one before.
  struct Column {
    std::vector<Filling> listed;
    uint32_t again = 1;
    int64_t delta = 0;
    bool is_number = false;
    Filling at(int64_t round) const {
      const auto size = static_cast<int64_t>(listed.size());
      const int64_t which = round < size ? round : size - again + (round - size) % again;
      const auto& [id, offset] = listed[static_cast<size_t>(which)];
      if (is_number) return {static_cast<uint32_t>(id + round * delta), 0};
      return {id, offset + round * delta};
    }
    bool operator==(const Column&) const = default;
  };
  struct Varying {
    uint32_t hole;  // of the body's, in order
    uint32_t column;
  };
  int64_t trip = 0;
  bool takes_any_trip = false;  // sizes decide how many rounds there are
  std::vector<RoundStep> body;
  std::vector<Column> columns;
  std::vector<Varying> varying;  // by hole
};

using Step = std::variant<KernelStep, ParallelStep, LoopStep, RepeatStep, ExternStep, ContractStep, GuardStep,
                          NumberStep, HandStep, FreeStep, OwnStep>;

/// A number of the program that depends on sizes: an expression of the graph's symbols.
struct SizedNumber {
  enum class Of : uint8_t {
    SlotSize,
    SlotStride,
    SlotOffset,
    LaunchSize,
    LaunchStride,
    LaunchOffset,
    LaunchBlock,
    LaunchScratch,
    LoopTrip,
    LoopDelta,
    LoopPlace,
    RepeatTrip,
    RepeatDelta,
    RepeatPlace,
    GuardSize,
    GuardStride,
    GuardOffset,
    ArenaBytes,
  };
  Of of;
  uint32_t at = 0;  // the slot; the launch (see for_each_launch), guard or RepeatStep, in order; a loop's first launch
  uint32_t index = 0;  // in a list: that of a loop's walks, or its table; three for each of its turns; a column
  uint32_t expr = 0;   // see ir::Dim
};

/// What a value that several kernels read became, and why.
struct Verdict {
  ir::NodeId node;
  SlotId slot;  // kNoSlot: each kernel computes it, or it never leaves the one that does
  Why why;
};

struct Program {
  std::vector<Slot> slots;
  std::vector<KernelPlan> kernels;  // distinct plans
  std::vector<Step> steps;
  std::vector<SlotId> outputs;                // per Graph::outputs
  std::vector<std::vector<ir::NodeId>> made;  // per launch as they run: the nodes it makes, of the staged graph
  std::vector<Verdict> verdicts;              // in order of the nodes
  std::vector<SizedNumber> sized;             // of a program for any size; all else is for any size as it is
  bool own_products = false, no_library = false, for_cuda = false;  // see PlanOptions
  uint32_t tensors = 0;  // that a run makes or is given by torch: one a slot that is neither Input nor Temp
  int64_t arena_bytes = 0;
  int64_t scratch_bytes = 0;  // per thread; on a GPU of the launch that needs most: those of a stream take turns
};

/// The launches of a step that run together, once or, of a LoopStep, in each round; none of a RepeatStep.
template <class AnyStep>
std::span<const KernelStep> launches_of(const AnyStep& step) {
  if constexpr (std::is_same_v<AnyStep, KernelStep>) return std::span(&step, 1);
  if constexpr (std::is_same_v<AnyStep, ParallelStep>) return step.launches;
  if constexpr (std::is_same_v<AnyStep, LoopStep>) return step.body;
  if constexpr (std::is_same_v<AnyStep, ContractStep>) return step.epilogue;
  return {};
}

inline uint32_t launches_in(const Step& step) {
  return static_cast<uint32_t>(std::visit([](const auto& each) { return launches_of(each).size(); }, step));
}

/// Calls `take` with every launch that stands in the program, in order: those of a loop once.
template <class Take>
void for_each_launch(const Program& program, Take take) {
  const auto take_all = [&](const auto& step) {
    for (const KernelStep& launch : launches_of(step)) take(launch);
  };
  for (const Step& step : program.steps) {
    std::visit(take_all, step);
    if (const auto* repeat = std::get_if<RepeatStep>(&step))
      for (const RoundStep& each : repeat->body) std::visit(take_all, each);
  }
}

/// As for_each_launch, to change them.
template <class Take>
void for_each_launch(Program& program, Take take) {
  for_each_launch(std::as_const(program), [&](const KernelStep& step) { take(const_cast<KernelStep&>(step)); });
}

/// Gives the launches of the loop's body the places of this round.
void set_round(const LoopStep& loop, int64_t round, std::span<KernelStep> launches);

/// Calls `take` with the launches of every round, in order.
template <class Take>
void for_each_round(const LoopStep& loop, Take take) {
  std::vector<KernelStep> launches = loop.body;
  for (int64_t round = 0; round < loop.trip; ++round) {
    set_round(loop, round, launches);
    for (const KernelStep& launch : launches) take(launch);
  }
}

/// What one launch moves and computes: bytes of memory it touches (a broadcast operand once) and operations.
struct Traffic {
  int64_t read = 0, written = 0, operations = 0;
};
Traffic traffic(const KernelPlan& plan, const KernelStep& step);

std::string text(const Program& program);  // for inspect("plan"), which begins with what its words mean
std::string dot(const ir::Graph& graph, const Program& program);  // the planned graph as GraphViz, a box per launch

struct PlanOptions {
  int lanes = 8;  // f32 lanes of the target's vectors (backend::lanes_for)
  int threads = 1;
  Costs costs;
  Numerics numerics = Numerics::Eager;
  bool cuda = false;
  bool own_products = false;  // kernels compute products of matrices where that costs less than torch's library
  bool no_library = false;    // and wherever they can: the program runs where torch is not
  /// Where a program has calls of torch's, a value of so many bytes gets memory for its own lifetime, from where torch
  /// takes what its calls need: one arena for all of them would lie idle beside those.
  int64_t own_bytes = 32 << 10;
};

/// How long one thread takes for a launch, in picoseconds.
double serial_time(const KernelPlan& plan, const KernelStep& step, const Costs& costs);
/// Sets units, grain and grid of a launch by its sizes: how many units there are, and how many are worth a thread.
void cut(const KernelPlan& plan, KernelStep& step, const PlanOptions& options);
/// Sets what follows from the launches' sizes: the above, and the scratch memory that they need.
void settle_launches(Program& program, const PlanOptions& options);
/// Sets what follows from how many rounds a loop has: its table.
void settle_trips(Program& program);

/// The numbers of `program.sized` at the same places, to be given the values of their expressions. Valid while the
/// program stays where it is.
std::vector<int64_t*> places_of_sizes(Program& program);

/// Whether plan() makes loops of any number of rounds of Graph::traced, with the questions that it asks of sizes for
/// that. It would throw else.
bool takes_any_trip(const ir::Graph& graph, const PlanOptions& options);

/// Plans the whole graph, with the questions that it asks of its sizes. Throws std::runtime_error only for a graph that
/// verify() refuses.
Program plan(const ir::Graph& graph, const PlanOptions& options);

}  // namespace fastjit::plan
