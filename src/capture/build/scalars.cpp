#include "capture/build/scalars.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "capture/lower/util.h"

namespace fastjit::capture {
namespace {

using PlaceOf = std::pair<uint32_t, uint32_t>;  // event, argument

constexpr double kAny = std::numeric_limits<double>::infinity();

struct Number {
  bool is_float;
  double real = 0;      // of floats
  int64_t integer = 0;  // of ints

  // As a default or a literal might: a wrong "equal" costs a guard by value, nothing else.
  bool may_be(const c10::Scalar& other) const {
    const double mine = is_float ? real : static_cast<double>(integer);
    const double theirs = other.isFloatingPoint()  ? other.toDouble()
                          : other.isBoolean()      ? static_cast<double>(other.toBool())
                          : other.isIntegral(true) ? static_cast<double>(other.toLong())
                                                   : 0;
    return mine == theirs || (std::isnan(mine) && std::isnan(theirs));
  }
  bool is(const c10::Scalar& other) const {
    if (is_float)
      return other.isFloatingPoint() && std::bit_cast<uint64_t>(other.toDouble()) == std::bit_cast<uint64_t>(real);
    return other.isIntegral(false) && other.toLong() == integer;
  }
};

Number number_of(PyObject* object) {
  if (PyFloat_CheckExact(object)) return {true, PyFloat_AS_DOUBLE(object), 0};
  return {false, 0, PyLong_AsLongLong(object)};
}

// Every number in an argument, and whether the argument is that number alone.
std::vector<c10::Scalar> numbers_in(const CallValue& item, bool& alone) {
  std::vector<c10::Scalar> out;
  alone = false;
  for (const Use& use : item.uses)
    if (use.number) out.push_back(*use.number);
  if (item.kind == CallValue::Kind::Tensor) alone = item.uses[0].number && item.uses[0].meta->wrapped_number;
  if (item.kind != CallValue::Kind::Constant) return out;
  const c10::IValue& value = item.constant;
  if (value.isDouble() || value.isInt() || value.isBool()) {
    alone = true;
    out.push_back(value.toScalar());
  } else if (value.isDoubleList()) {
    for (double element : value.toDoubleVector()) out.emplace_back(element);
  } else if (value.isIntList()) {
    for (int64_t element : value.toIntVector()) out.emplace_back(element);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isScalar()) out.push_back(element.toScalar());
  }
  return out;
}

// What the operator on lists runs for this element of theirs; nothing where that is not one operator each.
std::vector<uint32_t> element_events(const Trace& trace, const ScalarUse& use) {
  if (use.events.size() != 1) return {};
  const Event& event = trace.events[use.events[0]];
  std::vector<uint32_t> parts;
  for (uint32_t child = use.events[0] + 1; child < event.end; child = trace.events[child].end) parts.push_back(child);
  const bool is_each = !event.args.empty() && event.args[0].kind == CallValue::Kind::TensorList &&
                       event.args[0].uses.size() == parts.size() && static_cast<size_t>(use.element) < parts.size();
  return is_each ? std::vector{parts[static_cast<size_t>(use.element)]} : std::vector<uint32_t>();
}

// The operators that one on lists runs with the number that it was given, one for each element: those of its name.
std::vector<uint32_t> list_events(const Trace& trace, const ScalarUse& use) {
  if (use.element >= 0 || use.events.size() != 1) return {};
  const Event& event = trace.events[use.events[0]];
  if (!event.facts.is(OpFlag::Foreach)) return {};
  constexpr std::string_view kPrefix = "aten::_foreach_";
  const std::string name = "aten::" + std::string(base_name(event.name).substr(kPrefix.size()));
  std::vector<uint32_t> parts;
  for (uint32_t child = use.events[0] + 1; child < event.end; child = trace.events[child].end) {
    if (base_name(trace.events[child].name) != name) return {};
    parts.push_back(child);
  }
  return parts;
}

// Tensors that a binding made of a number for the operators that it then runs: a constant of theirs.
std::set<uint32_t> made_by_bindings(const Trace& trace) {
  std::set<uint32_t> out;
  for (const Event& event : trace.events)
    for (const CallValue& item : event.args)
      for (const Use& use : item.uses)
        if (use.number && use.tensor != kNone && !event.facts.is(OpFlag::Lifts)) out.insert(use.tensor);
  return out;
}

// Whether torch.tensor() makes this of the number by a conversion that programs know.
bool is_made_of(const Use& made, const Number& number) {
  if (!made.number || !made.meta->sizes.empty()) return false;
  const at::ScalarType dtype = made.meta->dtype;
  return number.is_float ? dtype == at::kFloat || dtype == at::kDouble : dtype == at::kLong;
}

// The event by which torch.tensor() gives what it made of the number; kNone: the operators were others.
uint32_t lift_of(const Trace& trace, const ScalarUse& use) {
  const auto lifts = [&](uint32_t index) { return trace.events[index].facts.is(OpFlag::Lifts); };
  const auto lift = std::ranges::find_if(use.events, lifts);
  return lift == use.events.end() ? kNone : *lift;
}

bool is_default(const Event& event, uint32_t i) {
  if (!event.op) return false;
  const auto& schema = event.op->schema().arguments();
  const CallValue& item = event.args[i];
  return item.kind == CallValue::Kind::Constant && i < schema.size() && schema[i].default_value() &&
         *schema[i].default_value() == item.constant;
}

// The one argument of these operator calls that can be this number. Beside it others may have that value by default.
bool bind_to(const Trace& trace, const std::vector<uint32_t>& events, uint32_t scalar, const Number& number,
             ScalarBindings& bindings) {
  struct Candidates {
    std::optional<std::pair<uint32_t, uint32_t>> place;
    bool fits = true;
  } given, otherwise;
  for (uint32_t index : events) {
    const Event& event = trace.events[index];
    if (is_layered(trace, event)) return false;
    for (uint32_t i = 0; i < event.args.size(); ++i) {
      bool alone = false;
      for (const c10::Scalar& other : numbers_in(event.args[i], alone)) {
        if (!number.may_be(other)) continue;
        Candidates& candidates = is_default(event, i) ? otherwise : given;
        candidates.fits &= !candidates.place && alone && number.is(other);
        candidates.place = {index, i};
      }
    }
  }
  const auto& [place, fits] = given.place ? given : otherwise;
  if (!place || !fits) return false;
  const Event& event = trace.events[place->first];
  const auto limit = limit_of(event, event.args[place->second], number.is_float);
  return limit && bindings.places.try_emplace(*place, ScalarBindings::Place{scalar, *limit}).second;
}

// Whose formulas (all of them have rows in formulas.def) give no number on but this argument itself, as the tensor that
// the binding made of it, and look at its value nowhere.
constexpr auto kHandedOn = std::to_array<std::pair<std::string_view, uint32_t>>({
    {"aten::add.Tensor", 1},
    {"aten::add_.Tensor", 1},
    {"aten::div.Tensor", 1},
    {"aten::div_.Tensor", 1},
    {"aten::masked_fill.Scalar", 2},
    {"aten::masked_fill_.Scalar", 2},
    {"aten::mul.Tensor", 1},
    {"aten::mul_.Tensor", 1},
    {"aten::rsub.Scalar", 1},
    {"aten::sub.Tensor", 1},
    {"aten::sub_.Tensor", 1},
    {"aten::where.ScalarOther", 2},
    {"aten::where.ScalarSelf", 1},
});

/// Numbers on autograd's way back.
class NumbersOnWay {
 public:
  explicit NumbersOnWay(const Trace& trace) : trace_(trace) {
    is_gone_ = trace.derivative || std::ranges::any_of(trace.events, is_backward);
    for (uint32_t index = 0; is_gone_ && index < trace.events.size(); ++index)
      for (uint32_t i = 0; i < trace.events[index].args.size(); ++i)
        for (const Use& use : trace.events[index].args[i].uses)
          if (use.number && use.tensor != kNone) uses_[use.tensor].emplace_back(index, i);
  }

  /// Autograd may keep the numbers of this operator, or others that follow from them.
  bool keeps_numbers_of(const Event& event) const { return is_gone_ && event.grad && takes_grad(event); }

  /// Where operators on it are given the number that this one got; nothing: nothing shows where it goes.
  std::optional<std::vector<PlaceOf>> places_of(PlaceOf place) const {
    const auto [index, argument] = place;
    const Event& event = trace_.events[index];
    if (std::ranges::find(kHandedOn, std::pair(event.name, argument)) == kHandedOn.end()) return std::nullopt;
    std::vector<PlaceOf> places;
    const CallValue& item = event.args[argument];
    if (item.kind != CallValue::Kind::Tensor) return places;
    const auto found = uses_.find(item.uses[0].tensor);
    if (found == uses_.end()) return std::nullopt;
    for (const PlaceOf& other : found->second) {
      if (other.first < event.end) continue;  // this operator, its parts, and what it is a part of
      if (trace_.events[other.first].args[other.second].kind != CallValue::Kind::Tensor) return std::nullopt;
      places.push_back(other);
    }
    return places;
  }

 private:
  const Trace& trace_;
  bool is_gone_;
  std::unordered_map<uint32_t, std::vector<PlaceOf>> uses_;  // of tensors that bindings made of numbers
};

// On a device an operator on lists may be one kernel of torch's, which takes the list of numbers as it is.
bool bind_in_list(const Trace& trace, const ScalarUse& use, const Number& number, ScalarBindings& bindings) {
  if (use.events.size() != 1) return false;
  const uint32_t index = use.events[0];
  const Event& event = trace.events[index];
  if (!event.facts.is(OpFlag::Foreach)) return false;
  std::optional<uint32_t> found;
  for (uint32_t i = 0; i < event.args.size(); ++i) {
    const c10::IValue& value = event.args[i].constant;
    if (event.args[i].kind != CallValue::Kind::Constant || !value.isList()) continue;
    const c10::ArrayRef<c10::IValue> elements = value.toListRef();
    const auto element = static_cast<size_t>(use.element);
    if (element >= elements.size() || !elements[element].isDouble() || !number.is(elements[element].toScalar()))
      continue;
    if (std::exchange(found, i)) return false;
  }
  const auto limit = found ? limit_of(event, event.args[*found], number.is_float) : std::nullopt;
  const auto element = static_cast<uint32_t>(use.element);
  return limit &&
         bindings.lists[{index, *found}].try_emplace(element, ScalarBindings::Place{use.scalar, *limit}).second;
}

bool bind_use(const Trace& trace, const ScalarUse& use, const Number& number, ScalarBindings& bindings) {
  if (!use.alone) return false;
  if (use.element >= 0)
    return bind_to(trace, element_events(trace, use), use.scalar, number, bindings) ||
           (trace.device.is_cuda() && bind_in_list(trace, use, number, bindings));
  const std::vector<uint32_t> each = list_events(trace, use);
  if (each.empty()) return bind_to(trace, use.events, use.scalar, number, bindings);
  return std::ranges::all_of(each,
                             [&](uint32_t event) { return bind_to(trace, {event}, use.scalar, number, bindings); });
}

}  // namespace

std::optional<double> limit_of(const Event& event, const CallValue& item, bool is_float) {
  if (item.kind == CallValue::Kind::Tensor) return kAny;  // converted like any tensor
  double limit = kAny;
  for (const std::vector<CallValue>* items : {&event.args, &event.results})
    for (const CallValue& other : *items)
      for (const Use& use : other.uses) {
        if (use.tensor == kNone || use.meta->dtype == at::kBool) continue;
        if (is_float && !at::isFloatingType(use.meta->dtype)) return std::nullopt;
        if (use.meta->dtype == at::kByte) return std::nullopt;
        limit = std::min(limit, largest(use.meta->dtype));
      }
  return limit;
}

bool takes_any_size(const Event& event, const CallValue& item, bool is_float) {
  constexpr double kMost = 0x1p62;
  const auto limit = limit_of(event, item, is_float);
  return limit && *limit >= kMost;
}

const ScalarBindings::Place* ScalarBindings::find(uint32_t event, uint32_t argument) const {
  const auto it = places.find({event, argument});
  return it == places.end() ? nullptr : &it->second;
}

void ScalarBindings::refuse(const std::set<uint32_t>& scalars) {
  for (uint32_t scalar : scalars) bound[scalar] = false;
  for (auto it = derived->rbegin(); it != derived->rend(); ++it)
    for (uint32_t operand : it->second)
      if (!bound[it->first]) bound[operand] = false;
  for (const auto& [scalar, operands] : *derived)
    if (std::ranges::none_of(operands, [&](uint32_t operand) { return bound[operand]; })) bound[scalar] = false;
  const auto is_refused = [&](const auto& entry) { return !bound[entry.second.scalar]; };
  std::erase_if(places, is_refused);
  for (auto& [at, elements] : lists) std::erase_if(elements, is_refused);
}

void ScalarBindings::refuse_all() {
  bound.assign(bound.size(), false);
  places.clear();
  lists.clear();
}

ScalarBindings bind_scalars(const Trace& trace, const CallInputs& inputs, const std::vector<bool>& symbolic) {
  ScalarBindings bindings;
  bindings.derived = &trace.derived;
  bindings.bound.assign(inputs.scalars.size(), false);
  std::set<uint32_t> refused;
  for (uint32_t i = 0; i < inputs.scalars.size(); ++i) {
    bindings.bound[i] = i < symbolic.size() && symbolic[i];
    if (!bindings.bound[i]) refused.insert(i);
  }
  // A value read out of a tensor is one of the tensor's type: where every such number may be used, no check is needed.
  const auto always_fits = [&](const ScalarBindings::Place& place) {
    for (const auto& [event, scalar] : trace.value_scalars)
      if (scalar == place.scalar) return place.limit >= largest(trace.events[event].args[0].uses[0].meta->dtype);
    return true;
  };
  std::optional<std::set<uint32_t>> by_bindings;
  const auto bind_lift = [&](const ScalarUse& use, uint32_t lift, const Number& number) {
    const Use& made = trace.events[lift].args[0].uses[0];
    if (!by_bindings) by_bindings = made_by_bindings(trace);
    return use.alone && use.element < 0 && is_made_of(made, number) && !by_bindings->contains(made.tensor) &&
           bindings.places.try_emplace({lift, 0}, ScalarBindings::Place{use.scalar, kAny}).second;
  };
  for (const ScalarUse& use : trace.scalar_uses) {
    if (refused.contains(use.scalar)) continue;
    const Number number = number_of(inputs.scalars[use.scalar].first);
    const uint32_t lift = lift_of(trace, use);
    if (!(lift == kNone ? bind_use(trace, use, number, bindings) : bind_lift(use, lift, number)))
      refused.insert(use.scalar);
  }
  for (const auto& [at, elements] : bindings.lists)
    for (const auto& [element, place] : elements)
      if (!always_fits(place)) refused.insert(place.scalar);
  std::optional<NumbersOnWay> way;
  if (!bindings.places.empty()) way.emplace(trace);
  std::map<PlaceOf, ScalarBindings::Place> on_way;
  for (const auto& [at, place] : bindings.places) {
    if (!always_fits(place)) refused.insert(place.scalar);
    if (!way->keeps_numbers_of(trace.events[at.first])) continue;
    const auto places = way->places_of(at);
    if (!places) refused.insert(place.scalar);
    if (places)
      for (const PlaceOf& other : *places) on_way.emplace(other, place);
  }
  bindings.places.insert(on_way.begin(), on_way.end());
  bindings.refuse(refused);
  return bindings;
}

}  // namespace fastjit::capture
