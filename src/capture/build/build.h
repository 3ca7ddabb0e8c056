#pragma once
// From a trace to a graph. Values are SSA nodes, one per tensor at a time; a storage that is written in a way that SSA
// on whole tensors cannot express is *pinned*: every call that touches it becomes an extern step on real tensors, in
// order.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "capture/build/scalars.h"
#include "capture/lower/lower.h"
#include "capture/record/trace.h"

namespace fastjit::capture {

/// Never throws for an odd program: the capture is unsound and says why.
Capture build(Trace& trace, const CallInputs& inputs, const std::vector<at::Tensor>& outputs,
              const std::vector<uint32_t>& values, const std::vector<bool>& symbolic, plan::Numerics numerics);

/// Why the call must stay eager. Thrown inside the builder only.
struct Unsound {
  std::string why;
};

/// Writes to parts of the storage cannot be expressed as updates of a value. Thrown inside the builder only.
struct NotParted {
  uint32_t storage;
};

/// Reads of parts of a storage that stand in one line.
struct LineRead {
  uint32_t line, storage;
  auto operator<=>(const LineRead&) const = default;
};

/// Each of these reads is of an earlier write than the one before, and by now of one that is too far back to look for:
/// a loop goes back over what another one wrote. Its rounds are to be alike (Analysis::far_reads). Thrown inside the
/// builder only.
struct ReadsFar {
  LineRead reads;
};

/// Fills a tensor with random numbers; torch has the same as a new tensor, too.
inline constexpr std::string_view kDraws = "aten::bernoulli_.float";

/// One call that the program makes: lowered, functionalised or run by torch.
struct Action {
  uint32_t event = kNone;
  const LowerRow* row = nullptr;  // of the operator, or of the functional form of an in-place one
  bool rebinds = false;           // writes a whole tensor, expressible as a new value for it
  uint32_t target = 0;            // that argument; not the first: where the result goes, `out`
  bool reshapes = false;          // gives a tensor another shape in place: a view of it takes its place
  bool reads_value = false;       // Python gets a value that depends on contents: a guard
  bool exact = false;             // such a value depends on it: computed bit for bit as eager does
  uint32_t total = kNone;   // on the way back from a sum or mean of masked elements: that event, whose count it is told
  bool data_sized = false;  // sizes that depend on data come out, or with DataSizes::ByTorch go in: torch runs it
  std::vector<uint32_t> reads, writes, results;  // tensors; `results` without those that were arguments
};

/// What becomes of sizes that depend on data.
enum class DataSizes : uint8_t {
  Masked,   // what has them is work over the domain of a mask
  Found,    // each run finds them, and what has them is work of any size
  ByTorch,  // torch runs the operators that they go into or come out of, whatever they are
};

/// What the trace does, before any node is made.
struct Analysis {
  DataSizes data_sizes = DataSizes::Masked;
  std::vector<Action> steps;
  std::vector<int64_t> created;       // per tensor: step that made it, -1: argument or captured, kUnknown
  std::vector<int64_t> last_use;      // per tensor: last step that touches it, steps.size() for outputs, -1: none
  std::vector<char> pinned, written;  // per storage
  std::vector<char> leaves;           // per storage: a result lies in it
  std::vector<char> parted;           // per storage: views of it are written, as updates of its base's value
  std::vector<int64_t> last_write;    // per storage: the last step that writes it, -1: none
  std::vector<std::optional<c10::Scalar>> lifted;  // per tensor: torch.tensor(2.0), or the number of y[0] = 2.0
  std::vector<uint32_t> storage;                   // per tensor: where it lived when first seen in a step
  std::vector<Use> first;                          // per tensor
  std::set<LineRead> far_reads;                    // that are given the newest write at most
  static constexpr int64_t kUnknown = -2;
};

/// Chooses the level of every call. Throws Unsound. `whole`: events that torch runs as they are, since they are given
/// numbers that differ from call to call.
Analysis select_steps(const Trace& trace, const std::vector<Use>& outputs, DataSizes data_sizes,
                      const std::set<uint32_t>& whole);

/// Marks the steps that a value read by Python depends on (read_values.cpp).
void mark_exact(const Trace& trace, Analysis& analysis);

/// "b at model.py:9": the variable that gets the value, or what reads it.
std::string label_of(const Trace& trace, const Event& event);

/// What could not be functionalised: in-place operators, by name, and writes to parts, by the storage.
struct Forced {
  std::set<std::string> operators;
  std::set<uint32_t> storages;
};

/// Decides which storages are pinned, and which are written in parts.
void pin_storages(const Trace& trace, Analysis& analysis, const Forced& forced);

/// Elements of such a tensor may share memory.
bool may_overlap_itself(const TensorMeta& meta);

/// True for `y[m] = v` and the sum into y[m], with one boolean mask of y's shape or of its first dims.
bool is_masked_store(const Event& event);
/// The same into a new tensor.
bool is_masked_put(const Event& event);
bool is_masked_load(const Event& event);
/// The argument that tells a loss to add up what it computes of each element, or to give their mean, or tells its
/// formula that it has.
std::optional<size_t> reduction_at(const Event& event);
/// An operator that makes one number of all elements: a sum, a mean, or one of these of a loss.
bool is_total(const Event& event);
/// The name of its node of autograd's, where that is made of several operators; else empty.
std::string_view formula_of_total(const Event& total);
/// The evaluation of a node of autograd's that the event is a part of; kNone: it is of none.
uint32_t formula_around(const Trace& trace, const Event& event);
/// Gives a list of as many tensors as it is given.
bool gives_as_many(const Event& event);

class WaySizes;

class GraphBuilder {
 public:
  GraphBuilder(const Trace& trace, const CallInputs& inputs, const Analysis& analysis, const ScalarBindings& scalars,
               plan::Numerics numerics);
  ~GraphBuilder();
  /// The name of an in-place operator that could not be functionalised, or empty: done.
  std::string run(const std::vector<Use>& outputs, const std::vector<uint32_t>& values);
  /// Scalars that some call could take as a constant only, and the events of these calls.
  std::set<uint32_t> constant_scalars(std::set<uint32_t>& events) const;
  Capture capture;
  /// Says in the capture why sizes are fixed that might have been symbols.
  void tell_fixed();

 private:
  struct State {
    ir::NodeId node = ir::kNoNode;  // the value now
    ir::NodeId real = ir::kNoNode;  // a node that is this very tensor, with eager's strides and storage
    SharedMeta meta;
    bool known = false;
    uint32_t view_step = kNone;  // the step that made it as a view of tensor `base`
    uint32_t base = kNone;
    uint32_t which = 0;             // which result of view_step
    bool settled = false;           // `node` reads pinned memory after its last write
    ir::NodeId mask = ir::kNoNode;  // compressed: `node` covers the mask's whole domain, only masked elements are real
    std::vector<ir::Node> path;     // on a parted storage: the views and reshapes that lead here from its base
    ir::NodeId version = ir::kNoNode;  // the base's value that `node` was read from
  };
  // sizes.cpp
  uint32_t writes_to_parts(bool only_found) const;
  std::string why_none_free(uint32_t writer) const;
  std::string why_not_free(const Source& root, uint32_t writer) const;
  void free_sizes();
  std::vector<ir::Dim> argument_strides(const Source& root, const std::vector<ir::Dim>& sizes);
  ir::Dim free_stride(const Source& root, uint32_t d, ir::Dim least);
  SharedMeta meta_of(const Use& use) const;
  std::vector<ir::Layout> layouts_of(const Event& event) const;
  void fix_sizes(const Event& event);
  void fix_sizes_of(uint32_t tensor);
  void find_sizes(const Use& result, const Event& event, uint32_t which, CallTemplate& call);
  void fix_sizes_read();
  void take_free_arguments();
  std::optional<std::vector<ir::Dim>> known_sizes(const Use& result, const Event& event,
                                                  const std::vector<ir::Layout>& tensors);
  SharedMeta foretold(const Use& result, const Event& event);
  SharedMeta expected(const Use& result, const Event& event) const;
  SharedMeta computed(const Use& result, ir::NodeId node, const Event& event);
  std::optional<std::vector<ir::Dim>> strides_below(ir::NodeId node, ir::NodeId base,
                                                    const std::vector<ir::Dim>& of_base) const;
  // composites.cpp
  void enter(const Event& event);
  bool follows(uint32_t index);
  void settle_copies();
  bool follows_parts(uint32_t index);
  void hands_on(uint32_t index);
  // indices.cpp
  void place_indices();
  bool place_index(const InstructionUse<IndexUse>& use);
  void settle_indices();
  // way_sizes.cpp
  bool is_on_sized_way(uint32_t event) const;
  void ask_for_formulas();
  void take_way_sizes(uint32_t event);
  void bind_sizes();
  std::string way_reason(uint32_t place) const;
  void begin_way_back(uint32_t event, const std::vector<Use>& outputs);
  void end_way_back(const std::vector<Use>& outputs);
  void free_gradients(const std::vector<Use>& outputs);
  void place_way_sizes(uint32_t event);
  const std::vector<ir::Dim>* way_sizes_of(const Use& result) const;
  // loops.cpp
  LoopRound made_in(uint32_t number) const;
  void begin_step(const Event& event);
  void make_in(LoopRound round);
  void enter_loop(uint32_t which);
  ir::Dim trip_of(const PythonLoop& loop);
  void fix_loop(uint32_t which);
  void refuse_rounds_of(uint32_t event);
  uint32_t add_call(CallTemplate made);
  bool reads_only_in_round(const Action& step) const;
  bool calls_alike(uint32_t which) const;
  uint32_t walker_of(uint32_t event);
  void note_parts(uint32_t which, const Event& event, ir::NodeId whole);
  void take_part(const Use& use);
  bool is_of_its_round(uint32_t tensor, LoopRound round) const;
  void check_moves(const Use& use);
  void check_writes(const Action& step);
  ir::Dim index_of(uint32_t number, const SizeNumber& how);
  void check_round(uint32_t number);
  std::pair<ir::Dim, bool> listed(uint32_t event, const CallValue& list);
  void make_lists_of(uint32_t which);
  ir::NodeId whole_of(const std::vector<uint32_t>& list, uint32_t which);
  ir::NodeId stacked(const std::vector<uint32_t>& list, uint32_t before, ir::Dim length);
  ir::NodeId as_rows(const std::vector<ir::NodeId>& nodes, ir::Dim length);
  bool is_written_behind(uint32_t tensor, uint32_t before) const;
  bool is_written_later(uint32_t storage) const;
  void settle_loops();
  std::optional<std::vector<ir::Dim>> compared_in(const PythonLoop& loop, size_t round);
  bool compares_alike(uint32_t which);
  bool writes_outside(uint32_t which) const;
  struct Part {
    uint32_t loop, round;
    ir::NodeId whole;  // of which it is a part, along `dim`
    size_t dim;
  };
  // rounds_back.cpp
  bool is_gone_back(uint32_t which) const;
  bool is_known_back(uint32_t which) const;
  bool goes_back(uint32_t which) const;
  void enter_way_back(uint32_t which);
  bool is_before(uint32_t which, uint32_t other) const;
  void keep_for(uint32_t which, uint32_t other);
  void keep(const std::vector<Use>& alike, uint32_t which, uint32_t other, bool falls);
  /// What each round of a loop has left for a way back: `whole` has it along its first dim, or `nodes` are views which
  /// begin so much further on each round, or one node.
  struct Kept {
    bool falls;  // later rounds are given what earlier ones have left
    std::vector<ir::NodeId> nodes{};
    std::vector<ir::Dim> steps{};
    std::vector<ir::NodeId> seen{};  // as which reshapes of these, outermost first, in the first round
    ir::NodeId whole = ir::kNoNode;
  };
  bool find_walk(Kept& kept, ir::Dim trip) const;
  ir::Dim place_of(uint32_t round, bool falls) const;
  bool is_kept(const Use& use) const;
  void lend(uint32_t tensor, ir::NodeId node);
  bool is_lent(uint32_t tensor) const;
  void take_kept(const Use& use);
  void take_part_back(const Use& use, const Part& part);
  ir::NodeId row_of(ir::NodeId whole, size_t dim, ir::Dim place, bool keeps_dim);
  /// What a formula gives a round on the way back.
  struct Share {
    uint32_t loop;
    uint32_t round = 0;  // of the loop that it goes back through
    ir::NodeId whole;    // of which it is a part, along `dim`, behind so many others
    size_t dim = 0;
    uint32_t before = 0;
    bool falls;
    bool is_row = true;  // the dim goes
  };
  void keep_written(uint32_t tensor);
  bool gives_share(const Event& event);
  bool gives_slice(const Event& event);
  void give_share(const Event& event, const Share& share);
  ir::NodeId part_of(const Share& share, ir::Dim place);
  void take_share(const Use& use);
  /// What rounds on a way back put together, which is zeros elsewhere.
  struct Pieced {
    uint32_t loop;
    bool falls;  // later rounds have earlier parts
    size_t dim = 0;
    std::map<uint32_t, ir::NodeId> rows{};   // by round
    ir::NodeId base = ir::kNoNode;           // to which it is added
    std::shared_ptr<const Pieced> others{};  // the same, of rounds of a loop that has ended
    bool has_base() const { return base != ir::kNoNode || others; }
  };
  bool makes_pieces(const Event& event);
  bool adds_pieces(const Event& event);
  bool can_join(const Pieced& to, const Pieced& more) const;
  void join(Pieced& to, const Pieced& more);
  void hold_pieces(const Use& use, Pieced made);
  void settle_pieces(const Use& use);
  ir::NodeId put_together(const Pieced& made);
  // round_numbers.cpp
  std::optional<uint32_t> scalar_at(uint32_t event, uint32_t arg) const;
  bool give_round_number(const Event& event, uint32_t i, Arg& arg);
  ir::NodeId number_of_round(uint32_t number);
  void make_numbers_of(uint32_t which);
  ir::NodeId in_all_rounds(uint32_t number, uint32_t which);
  ir::NodeId index_in_all_rounds(uint32_t which);
  ir::NodeId ints_in_all_rounds(const SizeNumber& how, uint32_t which);
  ir::NodeId floats_in_all_rounds(const Trace::Computed& how, uint32_t which);
  bool is_size_by_now(uint32_t number) const;
  ir::NodeId of_any_round(uint32_t number);
  ir::NodeId in_each_round(std::optional<ir::Op> op, const std::vector<ir::NodeId>& operands);
  // size_numbers.cpp
  void place_sizes();
  std::optional<ir::Layout> layout_of(uint32_t tensor) const;
  void free_ints(uint32_t writer);
  void fix_all_sizes();
  ir::Dim size_of(uint32_t number);
  ir::Dim size_of(const support::SizeOperand& operand);
  void place_size(uint32_t event, uint32_t arg, uint32_t element, const support::SizeOperand& from);
  void drop_size(const support::SizeOperand& one);
  ir::Dim computed_size(const SizeNumber& how, int64_t recorded);
  void fix_number(uint32_t number);
  void give_size(uint32_t number);
  bool is_settled(uint32_t number);
  std::vector<ir::Dim> sizes_given(uint32_t event, uint32_t arg);
  ir::NodeId size_node(ir::Dim size, const Event& event, const CallValue& item);
  std::optional<std::vector<ir::Dim>> listed_sizes(const Event& event);
  void give_sizes(const Event& event, uint32_t i, Arg& arg);
  void give_number(const Event& event, uint32_t i, Arg& arg);
  void fix_sizes_left(const Event& event, const std::vector<Arg>& args, const std::function<bool(ir::NodeId)>& is_used);
  void add_size_holes(const Event& event, uint32_t i, bool may_give, CallTemplate& made);
  void take_place(uint32_t event, uint32_t arg);
  void settle_size_numbers();
  void read_at(uint32_t number);
  std::string reason_of(uint32_t place) const;
  // build.cpp
  void meet(const Use& use, const Event& event);
  void emit(uint32_t step);
  bool takes_lazy(const Event& event) const;
  bool is_raw(const Event& event) const;
  bool begin_memory(const Action& step);
  ir::NodeId alias_of(ir::NodeId memory, const SharedMeta& meta, uint32_t storage);
  void check_known(const Use& use, const Event& event);
  void reshape(const Action& step);
  void set_compressed(const Use& use, ir::NodeId node, ir::NodeId mask);
  void set_result(const Use& use, ir::NodeId node, const Event& event, bool by_torch = false);
  ir::NodeId input_node(uint32_t tensor);  // the Input node, whatever the tensor's value is by now
  Value value(const Use& use, const Event& event);
  std::vector<Arg> arguments(const Event& event);
  bool is_given(uint32_t scalar) const;
  ir::NodeId given_node(uint32_t scalar);
  ir::NodeId scalar_node(uint32_t scalar);
  void limit_scalars();
  ir::NodeId number_node(uint32_t scalar);
  bool lower(const Action& step);
  bool call_lowering(const Action& step, const std::vector<Arg>& args, const std::vector<TensorMeta>& results,
                     bool any_type, std::vector<ir::NodeId>& out);
  void take_scalars(const Event& event, const std::vector<Arg>& args, const std::vector<ir::NodeId>& out);
  bool is_pinned_at(const Action& step, uint32_t tensor) const;
  bool pinned(const Action& step) const;  // touches memory that must be real at this point
  ir::NodeId settled(uint32_t tensor);    // the value of a tensor on pinned memory that is written no more
  // host.cpp
  bool is_on_host(const Action& step) const;
  ir::NodeId lifted_on_host(const Use& made, const Event& event);
  ir::NodeId on_host(ir::NodeId node, c10::ScalarType dtype);
  ir::NodeId on_device(ir::NodeId number);
  ir::NodeId compared_on_host(const NumberTest& test);
  // read_values.cpp
  void guard(uint32_t step);
  void settle_sizes(const Use& use);
  void guard_sizes(const Event& event);
  void know_sizes(const ValueGuard& asked, ir::NodeId node);
  void add_guard(const Event& event, ir::NodeId node, ValueGuard asked);
  ir::NodeId tested(uint32_t step);
  ir::NodeId answer_to(const NumberTest& test);  // kNoNode: nothing that it asks of is found out as the program runs
  bool is_exact(ir::NodeId node);
  bool results_exact(const Action& step);
  void refuse_effects_before_values();
  // mutation.cpp
  bool rebind(const Action& step);
  bool renew_statistics(const Action& step);
  void give_value(uint32_t target, ir::NodeId node);
  ir::NodeId new_value(const Action& step);
  ir::NodeId drawn(const Action& step);
  void add_stores();
  // parts.cpp
  bool is_parted(const Use& use) const;
  bool allocate(const Action& step);
  bool is_drawn_over(const Action& step) const;
  void refuse_undefined() const;
  void settle_parts(const std::vector<Use>& outputs);
  void begin_parts(const Action& step);
  void begin_parted(const Use& use);
  ir::Dim offset_in_base(uint32_t tensor) const;
  void refresh(const Use& use);
  void follow_view(const Use& argument, const Use& result);
  void refuse_overlap(const Event& event, const Use& target) const;
  bool holds(ir::NodeId base, ir::NodeId value, const ir::IndexMap& map) const;
  void write_part(const Use& target, ir::NodeId value);
  ir::NodeId value_at(uint32_t storage, const std::vector<ir::Node>& path);
  std::optional<ir::IndexMap> map_of(const std::vector<ir::Node>& path) const;
  // masks.cpp
  ir::NodeId mask_of(const Event& event) const;  // of its compressed arguments, kNoNode without one
  void masked_load(const Action& step);
  ir::NodeId masked_store(const Action& step);
  bool masked_store_in_place(const Action& step);
  bool masked(const Action& step);
  bool is_on_way_back(const Event& event) const;
  bool is_lone_on_way_back(const Event& event) const;
  bool is_unflattened(const Event& event) const;
  bool puts_zeros(const Event& event) const;
  ir::NodeId zeros_for_masked(const Event& event);
  Value snapshot(const Action& step, const Use& use);
  std::vector<ir::NodeId> lower_compressed(const Action& step, ir::NodeId mask);
  ir::NodeId mask_over(ir::NodeId mask, ir::NodeId value);
  ir::NodeId unselected(const Action& step, ir::NodeId mask);
  ir::NodeId blank_over(const Event& event, ir::NodeId mask);
  bool is_broadcast_to_itself(const Event& event, ir::NodeId mask) const;
  bool is_pointwise_over(ir::NodeId out, const std::vector<ir::NodeId>& operands) const;
  // masked_totals.cpp
  ir::NodeId count_of(ir::NodeId mask);
  ir::NodeId is_at_most(const Event& asks, ir::NodeId mask);
  ir::NodeId total_of(const Action& step, ir::NodeId mask);
  bool set_divisor(std::vector<Arg>& args, const Event& event, ir::NodeId mask);
  void reduce_nothing(std::vector<Arg>& args, const Event& event, ir::NodeId mask);
  // externs.cpp
  void external(uint32_t step);
  ir::NodeId real(uint32_t tensor);
  ir::NodeId alias_of(uint32_t tensor);
  ir::NodeId view_of(uint32_t step, ir::NodeId base);
  ir::NodeId own(ir::NodeId node, uint32_t tensor);
  void settle_base(uint32_t tensor);
  /// An argument of a call that eager did not make: a node, a number that the call is given, or a constant.
  struct Extra {
    ir::NodeId node = ir::kNoNode;
    std::optional<uint32_t> given{};
    c10::IValue constant{};
  };
  ir::NodeId run(const char* op, const char* overload, const std::vector<Extra>& args, const TensorMeta& result,
                 ir::ExternKind kind = ir::ExternKind::Op);
  ir::NodeId operand(const Use& use, const Event& event);
  ir::NodeId factor(const Use& use, const Event& event);
  ir::ExternKind kind_of(const Action& step) const;
  std::optional<ir::Product> product_of(const Action& step) const;
  std::optional<c10::Scalar> number_of(const Use& use) const;
  std::optional<uint32_t> made_generator(const c10::IValue& value) const;
  /// What a step of torch's reads: tensors as they are, the base of a view, factors that may be views of inputs.
  enum class Reads : uint8_t { Tensors, Base, Factors };
  /// Numbers of a call's arguments that the program computes: operands behind the tensors.
  using ComputedNumbers = std::vector<std::pair<CallTemplate::NumberHole, ir::NodeId>>;
  bool takes_number(const Action& step, uint32_t arg, CallTemplate& made, ComputedNumbers& computed);
  void take_list(const Action& step, uint32_t arg, CallTemplate& made, ComputedNumbers& computed);
  ir::ExternAttr prepare(uint32_t step, Reads reads, ir::NodeId first);
  ir::NodeId call(uint32_t step, ir::ExternKind kind, ir::NodeId first);
  bool call_for_rest(uint32_t step, const std::vector<ir::NodeId>& made);
  void contract(uint32_t step, ir::Product kind);
  ir::NodeId result_node(ir::NodeId external, uint32_t which, const Use& use, const Event& event);
  ir::DType ir_type(c10::ScalarType type, const Event& event) const;
  // positions.cpp
  void note_picked(const Action& step, const Use& use, ir::NodeId result);
  // outputs.cpp
  void add_outputs(const std::vector<Use>& outputs);
  void find_private_bases(const std::vector<Use>& outputs);
  ir::NodeId own_value(const Use& use);
  void add_derivative(const std::vector<Use>& outputs);
  // checkpoints.cpp
  void mark_checkpoints();

  const Trace& trace_;
  const CallInputs& inputs_;
  const Analysis& analysis_;
  const ScalarBindings& scalars_;
  std::set<std::pair<uint32_t, uint32_t>> taken_;        // places of scalars_ that a lowering computes with
  std::set<std::pair<uint32_t, uint32_t>> given_;        // those that a call of torch's is given
  std::set<std::pair<uint32_t, uint32_t>> taken_lists_;  // of scalars_.lists, those that a call of torch's is given
  std::set<uint32_t> baked_;                             // scalars that a call template holds as a constant
  std::unordered_map<uint32_t, ir::NodeId> scalar_nodes_;
  std::unordered_set<uint32_t> read_;  // scalars that were read out of tensors
  // Scalar that was read out of a tensor, or that follows from such ones -> its value.
  std::unordered_map<uint32_t, ir::NodeId> value_nodes_;
  std::unordered_map<ir::NodeId, ir::NodeId> on_device_;  // of such values: copies for kernels
  std::unordered_map<uint32_t, uint32_t> number_ops_;     // scalar -> index into Capture::numbers
  plan::Numerics numerics_;
  ir::Graph& graph_;
  std::optional<ir::Symbols::Scope> scope_;        // of a program for any size
  std::unordered_map<uint32_t, SharedMeta> free_;  // arguments some of whose sizes are symbols
  std::unordered_set<uint32_t> entered_;           // composites that enter() has met
  std::unique_ptr<WaySizes> way_;                  // null: no size is a symbol, or no way back is gone
  /// Which ints of an argument are which numbers of CallInputs, and whether a step has taken them.
  struct SizePlace {
    std::vector<std::pair<uint32_t, uint32_t>> numbers;
    bool is_taken = false;
  };
  std::map<std::pair<uint32_t, uint32_t>, SizePlace> size_places_;             // by (event, argument)
  std::map<std::pair<uint32_t, uint32_t>, std::vector<ir::Dim>> given_lists_;  // the same that a composite gives
  /// A slice of a tensor's dim, where whether it is the whole of that decided which operators ran.
  struct Sliced {
    uint32_t tensor;
    size_t dim;
    support::IndexItem slice;
  };
  std::vector<Sliced> slices_;
  std::set<uint32_t> unknown_indices_;                   // tensors that were indexed in a way not known here
  std::set<uint32_t> unplaced_;                          // numbers that nobody knows the place of
  std::unordered_map<uint32_t, ir::Dim> size_dims_;      // number -> what it is
  std::unordered_map<uint32_t, ir::Dim> free_ints_;      // those of CallInputs::free_ints that are symbols
  std::vector<uint32_t> traced_;                         // per Trace::loops: which of Graph::traced it is, or kNone
  std::set<uint32_t> entered_loops_;                     // those that a step has been met of
  std::unordered_set<size_t> told_tests_;                // of Trace::size_tests: any number of rounds is told the same
  std::set<uint32_t> taken_rounds_;                      // events that take a list with values of all rounds
  std::unordered_map<uint32_t, Part> parts_;             // by tensor: what loops of any number of rounds walk
  std::map<std::pair<uint32_t, uint32_t>, Part> items_;  // by loop and tensor: of lists that rounds before have filled
  std::map<std::vector<uint32_t>, ir::NodeId> wholes_;   // such a list -> all of it as one tensor
  std::vector<std::pair<uint32_t, State>> lent_;         // tensors that are such parts in this step, and what they are
  std::vector<Kept> kept_;
  std::map<std::pair<uint32_t, uint32_t>, std::pair<uint32_t, uint32_t>>
      kept_in_;  // by loop on the way back and tensor: which of `kept_`, and the round that made it
  std::unordered_map<uint32_t, Share> shares_;              // by tensor
  std::unordered_map<uint32_t, ir::NodeId> wholes_sliced_;  // by the first event of Slices
  std::unordered_map<uint32_t, Pieced> pieced_;             // by tensor: that no node stands for yet
  std::unordered_set<uint32_t> put_together_;               // tensors that were, and have nodes by now
  LoopRound round_;                                         // of the step at hand
  uint32_t line_ = 0;                                       // of Trace::lines, of that step
  std::unordered_map<ir::NodeId, ir::NodeId>
      numbers_of_rounds_;                              // of all rounds of a loop -> as floats, which loops read
  std::set<std::pair<uint32_t, uint32_t>> of_rounds_;  // (event, argument) of which each round is given its own number
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> calls_in_;  // (loop, round) -> its Capture::calls
  bool is_settling_ = false;                                                 // all steps are made
  std::vector<State> states_;
  std::vector<uint32_t> rebound_;                          // roots that got a new value, in order
  std::unordered_map<uint32_t, ir::NodeId> parted_;        // parted storage -> its base's value now
  std::unordered_map<uint32_t, uint32_t> parted_roots_;    // parted storage -> the root that lies in it
  std::set<std::pair<uint32_t, uint32_t>> written_parts_;  // (parted storage, Graph::maps of a part)
  std::set<LineRead> edge_, beyond_;  // reads of the last write that is looked for, and of earlier ones
  std::set<LineRead> far_reads_;      // Analysis::far_reads, and those that have been met since
  std::unordered_map<ir::NodeId, uint32_t> undefined_;             // Undef -> its parted storage
  std::unordered_map<uint32_t, ir::NodeId> input_nodes_;           // root tensor -> its Input node
  std::unordered_set<uint32_t> given_away_;                        // storages of results
  std::unordered_map<ir::NodeId, uint32_t> owner_;                 // node that stands for a tensor's memory -> storage
  std::map<std::pair<uint32_t, ir::NodeId>, ir::NodeId> views_;    // of (step, base): the call
  std::unordered_map<uint32_t, ir::NodeId> first_views_;           // of a step: the call that was made first
  std::map<std::pair<ir::NodeId, uint32_t>, ir::NodeId> results_;  // of (extern, which)
  std::set<uint32_t> private_;  // results' bases that need memory no other value can share
  std::set<uint32_t> viewed_;   // results' bases
  std::vector<char> exact_;     // per node: 0 not known yet, 1 exact, 2 not; see is_exact
  std::set<ir::NodeId> guarded_;
  std::set<std::tuple<ir::NodeId, ValueGuard::Of, int64_t, int64_t>> sizes_guarded_;
  PickedOf picked_;
  size_t values_ = 0;                    // that guards compare
  std::vector<ir::NodeId> first_nodes_;  // per step, and at their end: how many nodes there were before
};

/// The first tensor among its arguments, or null.
const Use* first_tensor(const Event& event);
/// A lazy conjugate or negation: see TensorRecord.
bool is_lazy(const Trace& trace, const Use& use);
/// The same metadata with these sizes and strides.
SharedMeta with_layout(const TensorMeta& recorded, ir::Layout layout);

/// "parameter 'fc.weight'", "argument 'x'" or "a tensor of aten::mul at model.py:14".
std::string describe(const Trace& trace, uint32_t tensor, const Event& event);

[[noreturn]] void unsound(std::string why);
/// The write moves one of two counters, and a program would move the other one.
[[noreturn]] void written_past_count(const Trace& trace, const Event& event);

}  // namespace fastjit::capture
