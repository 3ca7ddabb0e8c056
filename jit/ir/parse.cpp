// Reads the text form that print.cpp writes.
#include <charconv>
#include <stdexcept>

#include "ir/graph.h"

namespace fastjit::ir {
namespace {

// A cursor over one line. Every failure names the line.
class Line {
 public:
  Line(std::string_view text, size_t number) : text_(text), number_(number) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw std::invalid_argument("line " + std::to_string(number_) + ": " + why);
  }
  void spaces() {
    while (!text_.empty() && text_[0] == ' ') text_.remove_prefix(1);
  }
  bool done() {
    spaces();
    return text_.empty();
  }
  bool accept(std::string_view token) {
    spaces();
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail("expected '" + std::string(token) + "'");
  }
  std::string_view word() {
    spaces();
    size_t n = 0;
    while (n < text_.size() &&
           ((text_[n] >= 'a' && text_[n] <= 'z') || (text_[n] >= '0' && text_[n] <= '9') || text_[n] == '_'))
      ++n;
    if (n == 0) fail("expected a word");
    std::string_view out = text_.substr(0, n);
    text_.remove_prefix(n);
    return out;
  }
  template <class T = int64_t>
  T integer(int base = 10) {
    spaces();
    T value{};
    auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value, base);
    if (error != std::errc{}) fail("expected a number");
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return value;
  }
  template <class T = int64_t>
  std::vector<T> integers(std::string_view close) {
    std::vector<T> out;
    while (!text_.empty() && (text_[0] == '-' || (text_[0] >= '0' && text_[0] <= '9'))) {
      out.push_back(T(integer()));
      if (text_.starts_with(",")) text_.remove_prefix(1);
    }
    if (!close.empty()) expect(close);
    return out;
  }
  std::string quoted() {
    expect("\"");
    std::string out;
    while (!text_.empty() && text_[0] != '"') {
      if (text_[0] == '\\' && text_.size() > 1) text_.remove_prefix(1);
      out += text_[0];
      text_.remove_prefix(1);
    }
    if (text_.empty()) fail("unfinished string");
    text_.remove_prefix(1);
    return out;
  }
  void skip_number() {
    while (!text_.empty() && text_[0] != ' ') text_.remove_prefix(1);
  }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
  size_t number_;
};

IndexMap parse_map(Line& line) {
  line.expect("map{");
  IndexMap map;
  if (line.accept("}")) return map;
  do {
    Affine row;
    row.offset = line.integer();
    while (line.accept("+")) {
      const int64_t coef = line.integer();
      line.expect("*d");
      row.terms.emplace_back(line.integer<uint8_t>(), coef);
    }
    map.dims.push_back(std::move(row));
  } while (line.accept(";"));
  line.expect("}");
  return map;
}

/// One of an enum whose last enumerator is `last`, by its text.
template <class Kind>
Kind parse_kind(Line& line, Kind last, const std::string& what) {
  const std::string_view word = line.word();
  for (int k = 0; k <= static_cast<int>(last); ++k)
    if (text(static_cast<Kind>(k)) == word) return static_cast<Kind>(k);
  line.fail("unknown " + what + " '" + std::string(word) + "'");
}

std::optional<Window> parse_window(Line& line) {
  if (!line.accept("stride=")) return std::nullopt;
  Window window;
  window.stride = line.integers<int64_t>("");
  line.expect("padding=");
  window.padding = line.integers<int64_t>("");
  line.expect("dilation=");
  window.dilation = line.integers<int64_t>("");
  return window;
}

ExternAttr parse_extern(Line& line) {
  ExternAttr attr;
  attr.name = line.quoted();
  line.expect("kind=");
  const std::string_view kind = line.word();
  attr.kind = kind == "view"     ? ExternKind::View
              : kind == "guard"  ? ExternKind::Guard
              : kind == "number" ? ExternKind::Number
                                 : ExternKind::Op;
  line.expect("call=");
  attr.call = line.integer<uint32_t>();
  line.expect("outputs=");
  attr.outputs = static_cast<uint32_t>(line.integer());
  line.expect("written=");
  attr.written = line.integers<uint32_t>("");
  attr.keeps_layout = line.accept("keeps_layout");
  attr.gives_position = line.accept("gives_position");
  attr.window = parse_window(line);
  return attr;
}

ContractAttr parse_contract(Line& line) {
  ContractAttr attr;
  attr.name = line.quoted();
  line.expect("kind=");
  attr.kind = parse_kind(line, Product::Convolution, "product");
  line.expect("call=");
  attr.call = line.integer<uint32_t>();
  attr.unscaled = line.accept("unscaled");
  attr.keeps_layout = line.accept("keeps_layout");
  attr.window = parse_window(line);
  return attr;
}

LoopAttr parse_loop(Line& line) {
  LoopAttr attr;
  line.expect("trip=");
  attr.trip = line.integer();
  const std::pair<const char*, uint32_t*> counts[] = {{"carried=", &attr.carried},
                                                      {"placed=", &attr.placed},
                                                      {"fixed=", &attr.fixed},
                                                      {"tables=", &attr.tables},
                                                      {"lasts=", &attr.lasts}};
  for (const auto& [name, count] : counts) {
    line.expect(name);
    *count = line.integer<uint32_t>();
  }
  return attr;
}

template <class T>
uint32_t push(std::vector<T>& table, T value) {
  table.push_back(std::move(value));
  return static_cast<uint32_t>(table.size() - 1);
}

uint32_t parse_attr(Graph& graph, Line& line, Op op, std::vector<NodeId>& operands) {
  switch (op) {
    case Op::Input:
      return push(graph.inputs, InputInfo{line.quoted()});
    case Op::Scalar:
      return push(graph.scalars, InputInfo{line.quoted(), true});
    case Op::Const:
      line.spaces();
      line.skip_number();
      line.expect("bits=");
      return push(graph.constants, line.integer<uint64_t>(16));
    case Op::Iota:
    case Op::Gather:
      line.expect("dim=");
      return line.integer<uint32_t>();
    case Op::Result:
    case Op::Final:
      line.expect("which=");
      return line.integer<uint32_t>();
    case Op::View:
    case Op::Update:
      return push(graph.maps, parse_map(line));
    case Op::Cat:
      line.expect("dim=");
      return push(graph.lists, ListAttr{line.integer(), std::move(operands)});
    case Op::Reduce: {
      const ReduceKind kind = parse_kind(line, static_cast<ReduceKind>(kReductions.size() - 1), "reduction");
      line.expect("dims=");
      return push(graph.reduces, ReduceAttr{kind, line.integers<uint8_t>("")});
    }
    case Op::Dot:
      line.expect("dims=");
      return push(graph.reduces, ReduceAttr{ReduceKind::Dot, line.integers<uint8_t>("")});
    case Op::Contract: {
      ContractAttr attr = parse_contract(line);
      attr.operands = std::move(operands);
      return push(graph.contracts, std::move(attr));
    }
    case Op::Extern: {
      ExternAttr attr = parse_extern(line);
      attr.operands = std::move(operands);
      return push(graph.externs, std::move(attr));
    }
    case Op::Loop: {
      LoopAttr attr = parse_loop(line);
      attr.operands = std::move(operands);
      return push(graph.loops, std::move(attr));
    }
    default:
      return 0;
  }
}

void parse_node(Graph& graph, Line& line) {
  const auto id = line.integer<NodeId>();
  if (id != graph.nodes.size()) line.fail("nodes must be numbered in order");
  line.expect("=");
  const std::string_view name = line.word();
  const auto op = parse_op(name);
  if (!op) line.fail("unknown op '" + std::string(name) + "'");
  const std::string_view type = line.word();
  const auto dtype = parse_dtype(type);
  if (!dtype) line.fail("unknown type '" + std::string(type) + "'");
  line.expect("[");
  Layout layout{line.integers<Dim>("]"), {}};
  if (line.rest().starts_with("(")) {
    line.expect("(");
    layout.strides = line.integers<Dim>(")");
  } else {
    layout.strides = row_major(layout.sizes);
  }
  std::vector<NodeId> operands;
  for (;;) {
    if (line.accept("%"))
      operands.push_back(line.integer<NodeId>());
    else if (line.accept("- "))
      operands.push_back(kNoNode);
    else
      break;
  }
  Node node{*op, *dtype, static_cast<uint8_t>(layout.sizes.size()), false, 0,
            0,   0,      {kNoNode, kNoNode, kNoNode, kNoNode}};
  const bool listed = info(*op).arity == kVariadic;
  if (!listed && operands.size() != static_cast<size_t>(info(*op).arity)) line.fail("wrong number of operands");
  for (NodeId in : operands)
    if (in != kNoNode && in >= id) line.fail("operand %" + std::to_string(in) + " is not an earlier node");
  if (!listed) std::copy(operands.begin(), operands.end(), node.in);
  node.layout = graph.intern(std::move(layout));
  node.attr = parse_attr(graph, line, *op, operands);
  if (*op == Op::Loop) graph.loops.back().scratch = graph.layouts[node.layout].numel();
  node.again = line.accept("again");
  graph.set_line(line.accept("@") ? graph.intern_line(line.quoted()) : 0);
  graph.append(node);
}

/// The lines of a loop's body, up to the brace that closes it, which `text` then begins behind.
std::string_view body_of(std::string_view& text, size_t& number) {
  const std::string_view all = text;
  size_t depth = 1;
  while (!text.empty()) {
    const size_t begin = all.size() - text.size(), end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    depth += line == "{";
    depth -= line == "}";
    if (depth == 0) return all.substr(0, begin);
  }
  throw std::invalid_argument("a loop's body is not closed");
}

}  // namespace

Graph parse(std::string_view text) {
  Graph graph;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    Line line(text.substr(0, end), ++number);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.done()) continue;
    if (line.accept("%")) {
      parse_node(graph, line);
    } else if (line.accept("{")) {
      if (graph.loops.empty()) line.fail("a body without a loop");
      graph.loops.back().body = std::make_shared<const Graph>(parse(body_of(text, number)));
    } else if (line.accept("store")) {
      line.expect("input=");
      Store store{line.integer<uint32_t>(), 0, 0};
      line.expect("%");
      store.value = line.integer<NodeId>();
      line.expect("bumps=");
      store.bumps = line.integer<uint32_t>();
      graph.stores.push_back(store);
    } else {
      line.expect("return");
      while (line.accept("%")) graph.outputs.push_back(line.integer<NodeId>());
    }
    if (!line.done()) line.fail("unexpected '" + std::string(line.rest()) + "'");
  }
  return graph;
}

}  // namespace fastjit::ir
