#include "capture/build/way_sizes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>

#include "capture/build/build.h"
#include "capture/build/formulas.h"
#include "capture/build/told_by_others.h"
#include "support/mix.h"

namespace fastjit::capture {
namespace {

using ir::Dim;

/// Follows the way back: numbers in order, and a hash of all else.
class Walk {
 public:
  // lists_rounds: it is given a list with a tensor of each round of a loop.
  void event(const Event& event, bool lists_rounds) {
    for (const char letter : event.name) word(static_cast<unsigned char>(letter));
    for (const CallValue& item : event.args) argument(item, lists_rounds ? 1 : item.uses.size());
    for (const Use& use : flat_results(event)) {
      tensor(use);
      if (use.tensor != kNone) numbers.insert(numbers.end(), use.meta->sizes.begin(), use.meta->sizes.end());
    }
  }
  // What Python gave to an operator of the call.
  void call(const Event& event) {
    for (const char letter : event.name) word(static_cast<unsigned char>(letter));
    for (const CallValue& item : event.args) {
      const std::vector<int64_t> given = numbers_of(item).numbers;
      word(given.size());
      numbers.insert(numbers.end(), given.begin(), given.end());
    }
  }
  void word(uint64_t value) { path = support::mix(path, value); }
  std::vector<int64_t> numbers;
  uint64_t path = 0;

 private:
  void argument(const CallValue& item, size_t most) {
    word(static_cast<uint64_t>(item.kind));
    for (size_t i = 0; i < std::min(most, item.uses.size()); ++i) tensor(item.uses[i]);
    const WayArgument found = numbers_of(item);
    word(found.numbers.size() * 2 + found.is_float);
    numbers.insert(numbers.end(), found.numbers.begin(), found.numbers.end());
    if (item.kind != CallValue::Kind::Constant || !found.numbers.empty()) return;
    const c10::IValue& value = item.constant;
    if (value.isBool()) return word(value.toBool());
    if (value.isBoolList())
      for (const bool one : value.toBoolList()) word(one);
    if (value.isDoubleList())
      for (const double one : value.toDoubleVector()) word(std::bit_cast<uint64_t>(one));
    if (value.isString())
      for (const char letter : value.toStringRef()) word(static_cast<unsigned char>(letter));
  }

  // How its dims lie decides which strides results have.
  void tensor(const Use& use) {
    word(use.tensor == kNone);
    if (use.tensor == kNone) return;
    const TensorMeta& meta = use.meta;
    std::vector<size_t> order(meta.strides.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t d) { return meta.strides[d]; });
    word(static_cast<uint64_t>(meta.dtype) * 64 + meta.sizes.size());
    for (const size_t d : order) word(d * 4 + (meta.strides[d] == 0) * 2 + (meta.sizes[d] == 1));
  }
};

// Which ints the call gave to these operators that follow from sizes; of numbers that each call brings, all.
std::map<uint32_t, std::set<int64_t>> told_sizes(const Trace& trace, std::set<uint32_t>& whole) {
  std::map<uint32_t, std::set<int64_t>> out;
  const auto add = [&](const std::vector<uint32_t>& events, const support::SizeOperand& one) {
    if (one.is_size())
      for (const uint32_t event : events) out[event].insert(one.value);
  };
  for (const ScalarUse& use : trace.scalar_uses) whole.insert(use.events.begin(), use.events.end());
  for (const auto& use : trace.size_uses)
    for (const support::SizeOperand& one : use.told) add(use.events, one);
  for (const auto& use : trace.index_uses)
    for (const support::IndexItem& item : use.told.items)
      for (const auto* one : {&item.start, &item.stop, &item.step}) add(use.events, *one);
  return out;
}

// The way there. Gives the places of the numbers that are constants of it: of numbers of the call the values that
// guards say, and what operators got that no size goes into.
std::vector<uint32_t> follow_call(const Trace& trace, const CallInputs& inputs, const ScalarBindings& scalars,
                                  const ToldByOthers& told_by, Walk& walk) {
  for (uint32_t i = 0; i < scalars.bound.size() && i < inputs.scalars.size(); ++i) {
    PyObject* number = inputs.scalars[i].first;
    if (scalars.bound[i] || trace.size_numbers.contains(i) || trace.derived.contains(i)) continue;
    walk.word(PyFloat_CheckExact(number) ? std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(number))
                                         : static_cast<uint64_t>(PyLong_AsLongLong(number)));
    PyErr_Clear();
  }
  std::set<uint32_t> whole;
  const auto sizes = told_sizes(trace, whole);
  std::vector<uint32_t> constants;
  for (uint32_t i = 0; i < trace.events.size(); i = std::max(trace.events[i].end, i + 1)) {
    if (is_backward(trace.events[i]) || told_by.by(i) != kNone) continue;
    auto at = static_cast<uint32_t>(walk.numbers.size());
    walk.call(trace.events[i]);
    const auto told = sizes.find(i);
    for (; at < walk.numbers.size() && !whole.contains(i); ++at)
      if (told == sizes.end() || !told->second.contains(walk.numbers[at])) constants.push_back(at);
  }
  return constants;
}

// No dims are given, or none of them.
bool is_over_all(const Event& event) {
  const CallValue& dims = event.args[1];
  return dims.kind == CallValue::Kind::None || dims.constant.isNone() ||
         (dims.constant.isIntList() && dims.constant.toIntVector().empty());
}

/// Rows of numbers without a common factor; empty: they are beyond reckoning.
using Row = std::vector<__int128>;
bool reduce(Row& row) {
  constexpr __int128 kMost = __int128{1} << 60;
  __int128 common = 0;
  for (__int128 value : row)
    for (__int128 other = value < 0 ? -value : value; other != 0;) std::swap(common %= other, other);
  for (__int128& value : row)
    if (common > 1) value /= common;
  return std::ranges::all_of(row, [](__int128 value) { return value < kMost && value > -kMost; });
}

}  // namespace

WayArgument numbers_of(const CallValue& item) {
  const auto bits = [](double value) { return std::bit_cast<int64_t>(value); };
  if (item.kind == CallValue::Kind::Tensor && item.uses[0].tensor != kNone && item.uses[0].number) {
    const c10::Scalar& number = *item.uses[0].number;
    if (number.isFloatingPoint()) return {{bits(number.toDouble())}, true};
    if (number.isIntegral(false)) return {{number.toLong()}};
  }
  if (item.kind != CallValue::Kind::Constant) return {};
  if (item.constant.isInt()) return {{item.constant.toInt()}};
  if (item.constant.isDouble()) return {{bits(item.constant.toDouble())}, true};
  if (item.constant.isIntList()) return {item.constant.toIntVector()};
  return {};
}

WayPlaces numbers_of_way(const Trace& trace, const CallInputs& inputs, const ScalarBindings& scalars) {
  WayPlaces out;
  if (std::ranges::none_of(trace.events, is_backward)) return out;
  out.begin.assign(trace.events.size(), kNone);
  out.node.assign(trace.events.size(), kNone);
  Walk walk;
  const ToldByOthers told_by(trace);
  out.constants = follow_call(trace, inputs, scalars, told_by, walk);
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    if (!is_backward(trace.events[i])) continue;
    for (const uint32_t end = std::max(trace.events[i].end, i + 1); i < end; ++i) {
      const Event& event = trace.events[i];
      const uint32_t by = told_by.by(i);
      out.begin[i] = by == kNone ? static_cast<uint32_t>(walk.numbers.size()) : out.begin[by];
      out.node[i] = is_backward(event) || event.parent == kNone ? i : out.node[event.parent];
      if (by == kNone) walk.event(event, told_by.lists_rounds(i));
    }
    --i;
  }
  out.way = std::make_shared<WayNumbers>();
  out.way->path = walk.path;
  for (const at::Tensor& tensor : inputs.tensors) {
    out.way->sizes.push_back(tensor.sizes().vec());
    out.way->strides.push_back(tensor.strides().vec());
  }
  out.way->ints.assign(inputs.scalars.size(), 0);
  for (const auto& [number, how] : trace.size_numbers)
    if (how.is_given) out.way->ints[number] = PyLong_AsLongLong(inputs.scalars[number].first);
  out.way->numbers = std::move(walk.numbers);
  return out;
}

WaySizes::WaySizes(const Trace& trace, const CallInputs& inputs, const ScalarBindings& scalars)
    : places_(numbers_of_way(trace, inputs, scalars)) {
  if (!places_.way) return;
  const WayNumbers& now = *places_.way;
  for (const auto& way : inputs.ways) {
    if (way->path != now.path || way->numbers.size() != now.numbers.size()) continue;
    const auto is_same = [&](uint32_t at) { return way->numbers[at] == now.numbers[at]; };
    if (std::ranges::all_of(places_.constants, is_same)) others_.push_back({{}, way});
  }
}

bool WaySizes::differed(const SizeSymbol& symbol) const {
  const int64_t now = places_.way->value(symbol);
  return std::ranges::any_of(others_, [&](const Other& other) {
    const int64_t then = other.way->value(symbol);
    return then != now && (then != 0 || symbol.argument != SizeSymbol::kNumber);
  });
}

void WaySizes::set_symbols(const std::vector<SizeSymbol>& symbols) {
  if (!places_.way) return;
  const auto sizes_in = [&](const WayNumbers& way) {
    std::vector<int64_t> sizes;
    for (const SizeSymbol& symbol : symbols) sizes.push_back(way.value(symbol));
    return sizes;
  };
  now_ = sizes_in(*places_.way);
  for (Other& other : others_) other.sizes = sizes_in(*other.way);
  std::erase_if(others_, [](const Other& other) {
    return std::ranges::any_of(other.sizes, [](int64_t size) { return size < ir::Symbols::kLeast; });
  });
}

bool WaySizes::is_told() const {
  const auto tells = [&](size_t i) {
    const auto is_less = [&](const Candidate& one) { return one.others[i] < one.dim.hint(); };
    const auto is_more = [&](const Candidate& one) { return one.others[i] > one.dim.hint(); };
    return std::ranges::all_of(candidates_, is_less) || std::ranges::all_of(candidates_, is_more);
  };
  for (size_t i = 0; i < others_.size(); ++i)
    if (tells(i)) return true;
  return false;
}

// What is orthogonal to all differences between recordings: Gauss and Jordan, without fractions.
std::optional<std::vector<std::vector<int64_t>>> WaySizes::bonds() const {
  const size_t count = now_.size();
  std::vector<Row> rows;
  std::vector<size_t> pivots;
  for (const Other& other : others_) {
    Row row(count);
    for (size_t i = 0; i < count; ++i) row[i] = other.sizes[i] - now_[i];
    const auto clear = [](Row& from, const Row& by, size_t at) {
      const __int128 a = by[at], b = from[at];
      for (size_t i = 0; i < from.size(); ++i) from[i] = from[i] * a - by[i] * b;
      return reduce(from);
    };
    for (size_t k = 0; k < rows.size(); ++k)
      if (row[pivots[k]] != 0 && !clear(row, rows[k], pivots[k])) return std::nullopt;
    const auto pivot = std::ranges::find_if(row, [](__int128 value) { return value != 0; });
    if (pivot == row.end()) continue;
    const auto at = static_cast<size_t>(pivot - row.begin());
    if (!reduce(row)) return std::nullopt;
    for (Row& earlier : rows)
      if (earlier[at] != 0 && !clear(earlier, row, at)) return std::nullopt;
    rows.push_back(std::move(row));
    pivots.push_back(at);
  }
  std::vector<std::vector<int64_t>> out;
  for (size_t j = 0; j < count; ++j) {
    if (std::ranges::find(pivots, j) != pivots.end()) continue;
    Row bond(count, 0);  // that of column j: each row times it is 0
    bond[j] = 1;
    for (size_t k = 0; k < rows.size(); ++k) {
      const __int128 pivot = rows[k][pivots[k]], b = rows[k][j] * bond[j];
      for (__int128& value : bond) value *= pivot;
      bond[pivots[k]] = -b;
      if (!reduce(bond)) return std::nullopt;
    }
    __int128 sum = 0;
    for (size_t i = 0; i < count; ++i) sum += bond[i] * now_[i];
    bond.push_back(-sum);
    constexpr __int128 kMost = __int128{1} << 40;
    if (std::ranges::any_of(bond, [](__int128 value) { return value > kMost || value < -kMost; })) return std::nullopt;
    out.emplace_back(bond.begin(), bond.end());
  }
  return out;
}

// Sizes, and how many elements there are in some of the dims: what a mean divides by.
void WaySizes::add(const ir::Layout& layout, const ir::Symbols& symbols) {
  constexpr size_t kMostDims = 8;
  const size_t rank = layout.sizes.size();
  if (std::ranges::none_of(layout.sizes, &Dim::is_symbolic)) return;
  for (const Dim size : layout.sizes) add(size, symbols);
  add(layout.numel(), symbols);
  for (uint32_t some = 1; rank <= kMostDims && some < 1u << rank; ++some) {
    Dim count = 1;
    for (size_t d = 0; d < rank; ++d)
      if (some >> d & 1) count *= layout.sizes[d];
    add(count, symbols);
  }
}

void WaySizes::add(Dim dim, bool is_offset, const ir::Symbols& symbols) {
  if (!dim.is_symbolic() || !known_.emplace(dim.expr(), is_offset).second) return;
  const uint32_t wanted[] = {dim.expr()};
  const ir::SizeCode code = symbols.code(wanted);
  Candidate made{dim, is_offset, {}};
  for (const Other& other : others_) {
    std::vector<int64_t> registers(code.registers(), INT64_MIN);
    std::ranges::copy(other.sizes, registers.begin());
    code.run(registers.data());  // whether the guards hold there does not matter
    made.others.push_back(registers[code.place[dim.expr()]]);
  }
  candidates_.push_back(std::move(made));
}

std::optional<Dim> WaySizes::find(uint32_t number, int64_t value, bool is_float, bool is_offset) {
  const auto is = [&](int64_t size, int64_t bits) {
    return is_float ? static_cast<double>(size) == std::bit_cast<double>(bits) : size == bits;
  };
  if (others_.empty()) return std::nullopt;
  if (std::ranges::all_of(others_, [&](const Other& other) { return other.way->numbers[number] == value; }))
    return Dim(value);
  std::optional<Dim> found;
  for (const Candidate& candidate : candidates_) {
    bool fits = candidate.is_offset == is_offset && is(candidate.dim.hint(), value);
    for (size_t i = 0; fits && i < others_.size(); ++i) fits = is(candidate.others[i], others_[i].way->numbers[number]);
    if (!fits) continue;
    if (found) static_cast<void>(*found == candidate.dim);
    if (!found) found = candidate.dim;
  }
  return found;
}

GraphBuilder::~GraphBuilder() = default;

bool GraphBuilder::is_on_sized_way(uint32_t event) const { return way_ && way_->has(event); }

// What formulas ask of the operands of the operator whose derivative they are: products, whether a factor lies by
// columns; variances of all elements, whether there are more of them than the correction.
void GraphBuilder::ask_for_formulas() {
  constexpr std::array<std::string_view, 4> kProducts{"aten::mm", "aten::addmm", "aten::linear", "aten::matmul"};
  constexpr std::array<std::string_view, 4> kSpreads{"aten::var.correction", "aten::std.correction",
                                                     "aten::var_mean.correction", "aten::std_mean.correction"};
  for (uint32_t index = 0; index < trace_.events.size(); ++index) {
    const Event& event = trace_.events[index];
    const bool is_product = std::ranges::find(kProducts, event.name) != kProducts.end();
    const bool is_spread = std::ranges::find(kSpreads, event.name) != kSpreads.end() && is_over_all(event);
    if ((!is_product && !is_spread) || way_->has(index) || !event.grad || !takes_grad(event)) continue;
    graph_.symbols->at(index);
    for (const CallValue& item : event.args)
      for (const Use& use : item.uses) {
        if (use.tensor == kNone || use.number) continue;
        const std::optional<ir::Layout> layout = layout_of(use.tensor);
        if (!layout && is_spread) fix_all_sizes();
        if (!layout) continue;  // inside a product that was asked
        const auto& [sizes, strides] = *layout;
        if (is_spread) static_cast<void>(layout->numel().fixed());
        if (is_product && sizes.size() == 2) static_cast<void>(strides[0] == 1 && strides[1] == sizes[0]);
      }
  }
}

// What numbers of the way may follow from, and whether the recordings tell.
void GraphBuilder::take_way_sizes(uint32_t event) {
  const ir::Symbols& symbols = *graph_.symbols;
  ask_for_formulas();
  graph_.symbols->at(event);
  const auto settle = [](Dim dim) {  // 0 and 1 take other branches
    if (dim.is_symbolic() && dim < 2) static_cast<void>(dim.fixed());
  };
  for (uint32_t tensor = 0; tensor < states_.size(); ++tensor)
    if (const std::optional<ir::Layout> layout = layout_of(tensor)) {
      way_->add(*layout, symbols);
      std::ranges::for_each(layout->sizes, settle);
      way_->add_offset(offset_in_base(tensor), symbols);
    }
  for (const auto& [place, given] : size_places_)
    for (const auto& [element, number] : given.numbers)
      if (place.first < event && made_in(number).loop == kNone) {
        way_->add(size_of(number), symbols);
        settle(size_of(number));
      }
  if (!way_->bonds() || !way_->is_told()) fix_all_sizes();
}

// Sizes that were bound to each other in all recordings are so in every call.
void GraphBuilder::bind_sizes() {
  std::vector<Dim> sizes;
  for (const SizeSymbol& its : capture.symbols) {
    if (its.argument == SizeSymbol::kNumber) sizes.push_back(free_ints_.at(its.dim));
    for (const auto& [argument, layout] : capture.layouts)
      if (argument == its.argument) sizes.push_back((its.is_stride ? layout.strides : layout.sizes)[its.dim]);
  }
  for (const std::vector<int64_t>& bond : way_->bonds().value_or(std::vector<std::vector<int64_t>>())) {
    Dim sum = bond.back(), other = 0;
    for (size_t i = 0; i < sizes.size(); ++i) (bond[i] > 0 ? sum : other) += sizes[i] * std::abs(bond[i]);
    static_cast<void>(sum == other);
  }
}

std::string GraphBuilder::way_reason(uint32_t place) const {
  const Event& event = trace_.events[place];
  if (!is_backward(event)) return "the gradients of " + where(trace_, event);
  if (!is_known_formula(trace_, place))
    return "the formula of " + std::string(event.name.substr(event.name.rfind(' ') + 1)) + ", which may look at sizes";
  return "its gradients: the calls so far do not tell sizes from other numbers";
}

void GraphBuilder::begin_way_back(uint32_t event, const std::vector<Use>& outputs) {
  if (!way_ || !way_->has(event)) return;
  const uint32_t node = way_->node(event);
  graph_.symbols->at(node);
  if (way_->last == kNone || trace_.events[way_->last].end <= event) {
    uint32_t top = event;
    while (trace_.events[top].parent != kNone) top = trace_.events[top].parent;
    if (way_->last == kNone || !way_->has(top - 1)) take_way_sizes(event);
    way_->last = top;
  }
  if (!is_known_formula(trace_, node)) fix_all_sizes();
  graph_.symbols->at(event);
  if (trace_.derivative && event >= trace_.derivative->begin) free_gradients(outputs);
}

// A formula may run no operator at all, and hand on what it got.
void GraphBuilder::end_way_back(const std::vector<Use>& outputs) {
  if (!way_) return;
  for (uint32_t event = 0; event < trace_.events.size(); ++event) {
    if (!way_->has(event) || !is_backward(trace_.events[event])) continue;
    graph_.symbols->at(event);
    if (way_->last == kNone) take_way_sizes(event);
    way_->last = event;
    if (!is_known_formula(trace_, event)) fix_all_sizes();
  }
  if (trace_.derivative) free_gradients(outputs);
}

// Gradients are as the results are that they belong to.
void GraphBuilder::free_gradients(const std::vector<Use>& outputs) {
  for (const Source& root : trace_.roots) {
    if (root.gradient == kNone || free_.contains(root.before.tensor)) continue;
    const Use& result = outputs[trace_.derivative->results[root.gradient]];
    ir::Layout layout = meta_of(result)->layout();
    const TensorMeta& recorded = root.before.meta;
    if (recorded.strides != ir::hints(layout.strides)) {
      fix_sizes_of(result.tensor);
      continue;
    }
    free_.emplace(root.before.tensor, with_layout(recorded, std::move(layout)));
  }
}

// What its C++ code gave to the operator, and what it got.
void GraphBuilder::place_way_sizes(uint32_t index) {
  const Event& event = trace_.events[index];
  uint32_t at = way_->begin(index);
  const auto next = [&](int64_t value, bool is_float, bool is_offset = false) {
    const std::optional<Dim> found = way_->find(at++, value, is_float, is_offset);
    if (!found) fix_all_sizes();
    return found.value_or(Dim(value));
  };
  for (uint32_t i = 0; i < event.args.size(); ++i) {
    const WayArgument given = numbers_of(event.args[i]);
    if (scalars_.find(index, i)) {
      at += static_cast<uint32_t>(given.numbers.size());
      continue;
    }
    std::vector<Dim> dims;
    const bool is_offset = event.name == "aten::as_strided" && i == 3;
    for (const int64_t number : given.numbers) dims.push_back(next(number, given.is_float, is_offset));
    if (std::ranges::any_of(dims, &Dim::is_symbolic)) given_lists_[{index, i}] = std::move(dims);
  }
  for (const Use& use : flat_results(event)) {
    if (use.tensor == kNone) continue;
    std::vector<Dim> dims;
    for (const int64_t size : use.meta->sizes) dims.push_back(next(size, false));
    way_->results[use.tensor] = std::move(dims);
  }
}

const std::vector<ir::Dim>* GraphBuilder::way_sizes_of(const Use& result) const {
  if (!way_) return nullptr;
  const auto found = way_->results.find(result.tensor);
  return found == way_->results.end() ? nullptr : &found->second;
}

}  // namespace fastjit::capture
