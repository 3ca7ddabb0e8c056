// Ints that Python has of sizes: what they are for any size, and which arguments of operators they are.
#include <algorithm>
#include <unordered_set>

#include "capture/build/build.h"
#include "capture/build/way_sizes.h"
#include "capture/lower/util.h"

namespace fastjit::capture {
namespace {

using ir::Dim;
using support::SizeOperand;

/// An int that an operator was given: where, and whether its schema has it there by default.
struct GivenInt {
  uint32_t arg;
  uint32_t element;
  int64_t value;
  bool is_default;
};

c10::TypePtr type_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  while (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

bool is_int(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::IntType || type->kind() == c10::TypeKind::SymIntType;
}

std::vector<GivenInt> given_ints(const Event& event) {
  std::vector<GivenInt> out;
  const auto& schema = event.op->schema().arguments();
  for (uint32_t i = 0; i < event.args.size() && i < schema.size(); ++i) {
    const CallValue& item = event.args[i];
    const c10::TypePtr type = type_of(schema[i]);
    const bool takes_tensor = type->kind() == c10::TypeKind::TensorType;
    if (takes_tensor && item.kind == CallValue::Kind::Tensor && item.uses[0].number &&
        item.uses[0].meta->wrapped_number && item.uses[0].number->isIntegral(false))
      out.push_back({i, 0, item.uses[0].number->toLong(), false});
    if (item.kind != CallValue::Kind::Constant) continue;
    const auto& otherwise = schema[i].default_value();
    const auto list = type->cast<c10::ListType>();
    if ((is_int(type) || type->kind() == c10::TypeKind::NumberType) && item.constant.isInt()) {
      const bool is_default = otherwise && otherwise->isInt() && otherwise->toInt() == item.constant.toInt();
      out.push_back({i, 0, item.constant.toInt(), is_default});
    } else if (list && is_int(list->getElementType()) && item.constant.isIntList()) {
      const std::vector<int64_t> values = item.constant.toIntVector();
      const bool is_default = otherwise && otherwise->isIntList() && otherwise->toIntVector() == values;
      for (uint32_t k = 0; k < values.size(); ++k) out.push_back({i, k, values[k], is_default});
    }
  }
  return out;
}

/// Finds which of the operator's ints each of Python's is. They stand in one order; what the operator has beside them
/// are defaults.
class Alignment {
 public:
  Alignment(const std::vector<SizeOperand>& from, const std::vector<GivenInt>& to) : from_(from), to_(to) {
    search(0, 0);
  }
  /// Per int of Python's; nothing where there is none, or where a size might be one or another.
  std::optional<std::vector<size_t>> places() const { return is_unique_ ? found_ : std::nullopt; }

 private:
  void search(size_t next, size_t at) {
    if (!is_unique_ || ++steps_ > kMostSteps) return static_cast<void>(is_unique_ = false);
    if (next == from_.size()) {
      if (!std::all_of(to_.begin() + static_cast<ptrdiff_t>(at), to_.end(),
                       [](const auto& one) { return one.is_default; }))
        return;
      for (size_t i = 0; found_ && i < from_.size(); ++i)
        if (from_[i].is_size() && (*found_)[i] != path_[i]) is_unique_ = false;
      found_ = path_;
      return;
    }
    if (at == to_.size()) return;
    if (to_[at].value == from_[next].value) {
      path_.push_back(at);
      search(next + 1, at + 1);
      path_.pop_back();
    }
    if (to_[at].is_default) search(next, at + 1);
  }

  static constexpr int kMostSteps = 256;
  const std::vector<SizeOperand>& from_;
  const std::vector<GivenInt>& to_;
  std::vector<size_t> path_;
  std::optional<std::vector<size_t>> found_;
  bool is_unique_ = true;
  int steps_ = 0;
};

}  // namespace

// Which arguments of operators are sizes. Numbers that have no place are fixed.
void GraphBuilder::place_sizes() {
  if (!scope_) return;
  for (const InstructionUse<std::vector<SizeOperand>>& use : trace_.size_uses) {
    const std::vector<SizeOperand>& from = use.told;
    const Event* event = use.whole && use.events.size() == 1 ? &trace_.events[use.events[0]] : nullptr;
    const bool is_known = event && event->op && !is_layered(trace_, *event);
    const std::vector<GivenInt> ints = is_known ? given_ints(*event) : std::vector<GivenInt>();
    const auto places = Alignment(from, ints).places();
    for (size_t i = 0; i < from.size(); ++i) {
      const GivenInt* one = places ? &ints[(*places)[i]] : nullptr;
      one ? place_size(use.events[0], one->arg, one->element, from[i]) : drop_size(from[i]);
    }
  }
  place_indices();
}

void GraphBuilder::place_size(uint32_t event, uint32_t arg, uint32_t element, const SizeOperand& from) {
  if (from.is_size()) size_places_[{event, arg}].numbers.emplace_back(element, static_cast<uint32_t>(from.number));
}

void GraphBuilder::drop_size(const SizeOperand& one) {
  if (one.is_size()) unplaced_.insert(static_cast<uint32_t>(one.number));
}

// The sizes that a tensor of the trace has by now.
std::optional<ir::Layout> GraphBuilder::layout_of(uint32_t tensor) const {
  if (states_[tensor].known) return states_[tensor].meta->layout();
  const auto root = free_.find(tensor);
  if (root != free_.end()) return root->second->layout();
  if (const Source* source = trace_.root(tensor)) return source->before.meta->layout();
  return std::nullopt;  // no step made it: it may be any function of what is known
}

void GraphBuilder::fix_all_sizes() {
  for (const auto& [tensor, meta] : free_)
    for (const Dim size : meta->layout().sizes) static_cast<void>(size.fixed());
  for (const auto& [number, value] : free_ints_) static_cast<void>(value.fixed());
}

// Symbols for ints of the caller's.
void GraphBuilder::free_ints(uint32_t writer) {
  const std::string none = why_none_free(writer);
  for (uint32_t number = 0; number < inputs_.free_ints.size(); ++number) {
    if (!inputs_.free_ints[number]) continue;
    const auto& [object, name] = inputs_.scalars[number];
    const SizeSymbol symbol{SizeSymbol::kNumber, number};
    const bool is_new = way_->is_gone() && !way_->differed(symbol);
    const std::string why = is_new && none.empty() ? ": its gradients were not computed at another one yet" : none;
    if (!why.empty()) {
      capture.fixed_sizes.push_back(name + " is one number" + why);
      continue;
    }
    free_ints_.emplace(number, graph_.symbols->add(PyLong_AsLongLong(object), name));
    capture.symbols.push_back(symbol);
  }
}

ir::Dim GraphBuilder::size_of(const SizeOperand& operand) {
  return operand.is_size() ? size_of(static_cast<uint32_t>(operand.number)) : Dim(operand.value);
}

// What a number is for any size. Its tensor is known: it was read after that was made, and is asked for later still.
ir::Dim GraphBuilder::size_of(uint32_t number) {
  check_round(number);
  if (const auto known = size_dims_.find(number); known != size_dims_.end()) return known->second;
  const SizeNumber& how = trace_.size_numbers.at(number);
  const int64_t recorded = PyLong_AsLongLong(inputs_.scalars[number].first);
  Dim made = recorded;
  if (how.loop != kNone) {
    made = index_of(number, how);
  } else if (how.is_given) {
    if (const auto free = free_ints_.find(number); free != free_ints_.end()) made = free->second;
  } else if (scope_ && how.tensor != kNone) {
    const std::optional<ir::Layout> layout = layout_of(how.tensor);
    if (!layout)
      fix_all_sizes();
    else
      made = how.dim < 0 ? layout->numel() : layout->sizes[static_cast<size_t>(how.dim)];
  } else if (scope_) {
    made = computed_size(how, recorded);
  }
  if (made.hint() != recorded) fix_all_sizes(), made = recorded;
  return size_dims_[number] = made;
}

ir::Dim GraphBuilder::computed_size(const SizeNumber& how, int64_t recorded) {
  using Op = support::IntArithmetic;
  const Dim a = size_of(how.operands[0]), b = how.operands.size() > 1 ? size_of(how.operands[1]) : Dim(0);
  switch (how.op) {
    case Op::Add:
      return a + b;
    case Op::Sub:
      return a - b;
    case Op::Mul:
      return a * b;
    case Op::Neg:
      return -a;
    case Op::FloorDiv:
    case Op::Mod:
      if (b < 1) break;
      if (a < 0) {  // Python rounds down
        const Dim quotient = -divide_up(-a, b);
        return how.op == Op::Mod ? a - b * quotient : quotient;
      }
      return how.op == Op::Mod ? a % b : a / b;
  }
  static_cast<void>(a.fixed()), static_cast<void>(b.fixed());
  return recorded;
}

// From here on the program is for what this number was.
void GraphBuilder::fix_number(uint32_t number) {
  if (trace_.size_numbers.contains(number)) {
    if (const LoopRound made = made_in(number); made.loop != kNone) fix_loop(made.loop);
    read_at(number);
    return static_cast<void>(size_of(number).fixed());
  }
  const auto computed = trace_.computed.find(number);
  if (computed == trace_.computed.end()) return;
  for (const int operand : computed->second.operands)
    if (operand >= 0) fix_number(static_cast<uint32_t>(operand));
}

// Python raises where a size makes the divisor 0.
static bool may_raise(const SizeNumber& how) {
  const bool is_computed = how.tensor == kNone && how.loop == kNone && !how.is_given;
  return is_computed && (how.op == support::IntArithmetic::FloorDiv || how.op == support::IntArithmetic::Mod) &&
         how.operands[1].is_size();
}

// The result holds this number.
void GraphBuilder::give_size(uint32_t number) {
  if (const LoopRound made = made_in(number); made.loop != kNone) fix_loop(made.loop);
  const Dim size = size_of(number);
  if (!scalars_.bound[number]) return fix_number(number);
  if (size.is_symbolic()) capture.result_sizes.emplace_back(number, graph_[graph_.size(size)].attr);
}

// Whether the number is the same in all calls of the program, as far as sizes decide.
bool GraphBuilder::is_settled(uint32_t number) {
  if (trace_.size_numbers.contains(number)) return !size_of(number).is_symbolic();
  const auto computed = trace_.computed.find(number);
  if (computed == trace_.computed.end() || read_.contains(number)) return false;
  return std::ranges::all_of(computed->second.operands,
                             [&](int operand) { return operand < 0 || is_settled(static_cast<uint32_t>(operand)); });
}

// The ints of an argument where some follow from symbols.
std::vector<ir::Dim> GraphBuilder::sizes_given(uint32_t event, uint32_t arg) {
  if (const auto list = given_lists_.find({event, arg}); list != given_lists_.end())
    return std::ranges::any_of(list->second, &Dim::is_symbolic) ? list->second : std::vector<Dim>();
  const auto place = size_places_.find({event, arg});
  if (place == size_places_.end()) return {};
  const CallValue& item = trace_.events[event].args[arg];
  std::vector<Dim> dims;
  if (item.kind == CallValue::Kind::Tensor)
    dims.emplace_back(item.uses[0].number->toLong());
  else if (item.constant.isInt())
    dims.emplace_back(item.constant.toInt());
  else
    for (const int64_t value : item.constant.toIntVector()) dims.emplace_back(value);
  for (const auto& [element, number] : place->second.numbers) dims[element] = size_of(number);
  return std::ranges::any_of(dims, &Dim::is_symbolic) ? dims : std::vector<Dim>();
}

// What torch makes by a list of sizes, some of which follow from symbols.
std::optional<std::vector<ir::Dim>> GraphBuilder::listed_sizes(const Event& event) {
  static const std::unordered_set<std::string_view> names{
      "aten::view",        "aten::_unsafe_view",   "aten::reshape",        "aten::empty.memory_format",
      "aten::new_empty",   "aten::rand",           "aten::randn",          "aten::randint",
      "aten::randint.low", "aten::rand.generator", "aten::randn.generator"};
  if (!scope_ || !names.contains(event.name)) return std::nullopt;
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  const auto& schema = event.op->schema().arguments();
  for (uint32_t i = 0; i < schema.size(); ++i) {
    if (schema[i].name() != "size" && schema[i].name() != "shape") continue;
    std::vector<Dim> sizes = sizes_given(index, i);
    if (std::ranges::any_of(sizes, [](Dim size) { return size.hint() < 0; })) return std::nullopt;
    return sizes.empty() ? std::nullopt : std::optional(std::move(sizes));
  }
  return std::nullopt;
}

// A number that a kernel computes with, or torch.
ir::NodeId GraphBuilder::size_node(ir::Dim size, const Event& event, const CallValue& item) {
  if (!takes_any_size(event, item, false)) return static_cast<void>(size.fixed()), ir::kNoNode;
  return graph_.size(size);
}

void GraphBuilder::give_sizes(const Event& event, uint32_t i, Arg& arg) {
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  const std::vector<Dim> dims = sizes_given(index, i);
  take_place(index, i);
  if (dims.empty()) return;
  const CallValue& item = event.args[i];
  const bool is_number = type_of(event.op->schema().arguments()[i])->kind() == c10::TypeKind::NumberType;
  const bool is_float =
      item.kind == CallValue::Kind::Tensor ? item.uses[0].number->isFloatingPoint() : item.constant.isDouble();
  if (item.kind != CallValue::Kind::Tensor && !is_float) arg.dims = dims;
  if (item.kind != CallValue::Kind::Tensor && !is_number) return;
  ir::NodeId node = size_node(dims[0], event, item);
  if (node == ir::kNoNode) return arg.dims.clear();
  if (is_float) node = graph_.convert(node, ir::DType::F64);
  (item.kind == CallValue::Kind::Tensor ? arg.tensor.node : arg.scalar) = node;
}

// What the row of an operator has not looked at may decide all the same.
void GraphBuilder::fix_sizes_left(const Event& event, const std::vector<Arg>& args,
                                  const std::function<bool(ir::NodeId)>& is_used) {
  if (size_places_.empty() && given_lists_.empty()) return;
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  for (uint32_t i = 0; i < args.size(); ++i) {
    const ir::NodeId node = args[i].scalar != ir::kNoNode ? args[i].scalar : args[i].tensor.node;
    if (args[i].takes_dims || is_used(node)) continue;
    if (of_rounds_.contains({index, i})) fix_loop(round_.loop);
    for (const Dim dim : sizes_given(index, i)) static_cast<void>(dim.fixed());
  }
}

void GraphBuilder::take_place(uint32_t event, uint32_t arg) {
  if (const auto place = size_places_.find({event, arg}); place != size_places_.end()) place->second.is_taken = true;
}

// Ints of a call that torch runs: a view's, whose sizes are known.
void GraphBuilder::add_size_holes(const Event& event, uint32_t i, bool may_give, CallTemplate& made) {
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  const std::vector<Dim> dims = sizes_given(index, i);
  take_place(index, i);
  if (!may_give || event.args[i].kind == CallValue::Kind::Tensor || event.args[i].constant.isDouble()) {
    for (const Dim dim : dims) static_cast<void>(dim.fixed());
    return;
  }
  const bool is_list = !event.args[i].constant.isInt();
  for (size_t k = 0; k < dims.size(); ++k) {
    if (!dims[k].is_symbolic()) continue;
    const auto scalar = static_cast<uint32_t>(graph_[graph_.size(dims[k])].attr);
    made.numbers.push_back({i, scalar, false, ir::text(dims[k]), is_list ? static_cast<int32_t>(k) : -1});
  }
}

// What Python did with these numbers beside giving them to operators.
void GraphBuilder::settle_size_numbers() {
  if (!scope_) return;
  for (const auto& [at, place] : size_places_)
    if (!place.is_taken)
      for (const auto& [element, number] : place.numbers) fix_number(number);
  for (const uint32_t number : unplaced_) fix_number(number);
  for (uint32_t number = 0; number < scalars_.bound.size(); ++number)
    if (!scalars_.bound[number]) fix_number(number);
  for (const auto& [number, how] : trace_.size_numbers) {
    if (!may_raise(how) || size_dims_.contains(number)) continue;
    if (const LoopRound made = made_in(number); made.loop != kNone) fix_loop(made.loop);
    size_of(number);  // whether or not anybody reads it
  }
  settle_indices();
  settle_loops();
  for (size_t i = 0; i < trace_.size_tests.size(); ++i) {
    if (told_tests_.contains(i)) continue;
    const SizeTest& test = trace_.size_tests[i];
    const auto is_known = [&](const SizeOperand& operand) {
      const auto number = static_cast<uint32_t>(operand.number);
      return operand.is_size() ? trace_.size_numbers.contains(number) : operand.value != support::kNoInt;
    };
    if (!is_known(test.a) || !is_known(test.b)) {
      for (const SizeOperand& one : {test.a, test.b})
        if (one.is_size()) fix_number(static_cast<uint32_t>(one.number));
      continue;
    }
    const Dim a = size_of(test.a), b = size_of(test.b);
    read_at(static_cast<uint32_t>(test.a.is_size() ? test.a.number : test.b.number));
    static_cast<void>(test.comparison == Py_EQ || test.comparison == Py_NE   ? a == b
                      : test.comparison == Py_LT || test.comparison == Py_GE ? a < b
                                                                             : b < a);
  }
}

// Places are events, and behind them the numbers that Python has of sizes.
void GraphBuilder::read_at(uint32_t number) {
  if (scope_) graph_.symbols->at(static_cast<uint32_t>(trace_.events.size()) + number);
}

std::string GraphBuilder::reason_of(uint32_t place) const {
  if (is_on_sized_way(place)) return way_reason(place);
  if (place < trace_.events.size()) return where(trace_, trace_.events[place]);
  const auto read = place - static_cast<uint32_t>(trace_.events.size());
  const auto number = trace_.size_numbers.find(read);
  const auto loop = std::ranges::find_if(trace_.loops, [&](const PythonLoop& one) { return one.ends_at(read); });
  if (loop != trace_.loops.end())
    return "the loop at " + trace_.lines[loop->line] + ", whose rounds are not alike, or need gradients";
  const bool has_line = number != trace_.size_numbers.end() && !number->second.is_given;
  return "Python code" + (has_line ? " that reads it at " + trace_.lines[number->second.line] : "");
}

void GraphBuilder::tell_fixed() {
  if (!scope_) return;
  for (const auto& [symbol, place] : graph_.symbols->fixed()) {
    if (symbol >= capture.symbols.size()) continue;  // a late one: then there is another capture
    const SizeSymbol& its = capture.symbols[symbol];
    const char* const what = its.argument == SizeSymbol::kNumber ? "number" : its.is_stride ? "stride" : "size";
    capture.fixed_sizes.push_back(graph_.symbols->name(symbol) + " is one " + what + " for " + reason_of(place));
  }
}

}  // namespace fastjit::capture
