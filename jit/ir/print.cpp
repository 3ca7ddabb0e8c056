// Text form of a graph, its parser's inverse (parse.cpp), and GraphViz.
#include <bit>
#include <charconv>

#include "ir/graph.h"

namespace fastjit::ir {
namespace {

std::string join(std::span<const Dim> values) {
  std::string out;
  for (const Dim v : values) out += (out.empty() ? "" : ",") + text(v);
  return out;
}

std::string quoted(std::string_view value) {
  std::string out = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

std::string type_text(const Graph& graph, const Node& node) {
  const Layout& layout = graph.layouts[node.layout];
  std::string out = std::string(text(node.dtype)) + "[" + join(layout.sizes) + "]";
  if (!identical(layout.strides, row_major(layout.sizes))) out += "(" + join(layout.strides) + ")";
  return out;
}

std::string map_text(const IndexMap& map) {
  std::string out = "map{";
  for (size_t k = 0; k < map.dims.size(); ++k) {
    out += (k ? ";" : "") + text(map.dims[k].offset);
    for (auto [dim, coef] : map.dims[k].terms) out += "+" + text(coef) + "*d" + std::to_string(dim);
  }
  return out + "}";
}

std::string number(DType dtype, uint64_t bits) {
  if (!is_floating(dtype)) return std::to_string(static_cast<int64_t>(bits));
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, std::bit_cast<double>(bits)).ptr;
  return {buffer, end};
}

std::string_view kind_text(ExternKind kind) {
  switch (kind) {
    case ExternKind::Op:
      return "op";
    case ExternKind::View:
      return "view";
    case ExternKind::Guard:
      return "guard";
    case ExternKind::Number:
      return "number";
  }
  return "";
}

std::string const_text(const Graph& graph, const Node& node) {
  return " " + number(node.dtype, graph.constants[node.attr]);
}

std::string window_text(const std::optional<Window>& window) {
  if (!window) return "";
  const auto list = [](const std::vector<int64_t>& each) { return join(std::vector<Dim>(each.begin(), each.end())); };
  return " stride=" + list(window->stride) + " padding=" + list(window->padding) +
         " dilation=" + list(window->dilation);
}

std::string attr_text(const Graph& graph, const Node& node) {
  switch (node.op) {
    case Op::Input:
      return " " + quoted(graph.inputs[node.attr].name);
    case Op::Scalar:
      return " " + quoted(graph.scalars[node.attr].name);
    case Op::Const: {
      char bits[17];
      const auto end = std::to_chars(bits, bits + sizeof bits, graph.constants[node.attr], 16).ptr;
      return const_text(graph, node) + " bits=" + std::string(bits, end);
    }
    case Op::Iota:
    case Op::Gather:
      return " dim=" + std::to_string(node.attr);
    case Op::View:
    case Op::Update:
      return " " + map_text(graph.maps[node.attr]);
    case Op::Cat:
      return " dim=" + std::to_string(graph.lists[node.attr].dim);
    case Op::Result:
    case Op::Final:
      return " which=" + std::to_string(node.attr);
    case Op::Loop: {
      const LoopAttr& attr = graph.loops[node.attr];
      return " trip=" + text(attr.trip) + " carried=" + std::to_string(attr.carried) +
             " placed=" + std::to_string(attr.placed) + " fixed=" + std::to_string(attr.fixed) +
             " tables=" + std::to_string(attr.tables) + " lasts=" + std::to_string(attr.lasts);
    }
    case Op::Reduce: {
      const ReduceAttr& attr = graph.reduces[node.attr];
      std::vector<Dim> dims(attr.dims.begin(), attr.dims.end());
      return " " + std::string(text(attr.kind)) + " dims=" + join(dims);
    }
    case Op::Dot: {
      const std::vector<uint8_t>& of = graph.reduces[node.attr].dims;
      return " dims=" + join(std::vector<Dim>(of.begin(), of.end()));
    }
    case Op::Contract: {
      const ContractAttr& attr = graph.contracts[node.attr];
      return " " + quoted(attr.name) + " kind=" + std::string(text(attr.kind)) + " call=" + std::to_string(attr.call) +
             (attr.unscaled ? " unscaled" : "") + (attr.keeps_layout ? " keeps_layout" : "") + window_text(attr.window);
    }
    case Op::Extern: {
      const ExternAttr& attr = graph.externs[node.attr];
      std::vector<Dim> written(attr.written.begin(), attr.written.end());
      return " " + quoted(attr.name) + " kind=" + std::string(kind_text(attr.kind)) +
             " call=" + std::to_string(attr.call) + " outputs=" + std::to_string(attr.outputs) +
             " written=" + join(written) + (attr.keeps_layout ? " keeps_layout" : "") +
             (attr.gives_position ? " gives_position" : "") + window_text(attr.window);
    }
    default:
      return "";
  }
}

}  // namespace

std::string print(const Graph& graph) {
  const Symbols::Scope symbols(graph.symbols.get());
  std::string out;
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    const Node& node = graph[id];
    out += "%" + std::to_string(id) + " = " + std::string(text(node.op)) + " " + type_text(graph, node);
    for (NodeId in : graph.operands(id)) out += in == kNoNode ? " -" : " %" + std::to_string(in);
    out += attr_text(graph, node);
    if (node.again) out += " again";
    if (node.line) out += " @ " + quoted(graph.lines[node.line]);
    out += '\n';
    if (node.op == Op::Loop) out += "{\n" + print(*graph.loops[node.attr].body) + "}\n";
  }
  for (const Store& store : graph.stores)
    out += "store input=" + std::to_string(store.input) + " %" + std::to_string(store.value) +
           " bumps=" + std::to_string(store.bumps) + '\n';
  out += "return";
  for (NodeId id : graph.outputs) out += " %" + std::to_string(id);
  return out + '\n';
}

std::string dot(const Graph& graph, std::span<const Cluster> clusters) {
  const Symbols::Scope symbols(graph.symbols.get());
  std::string out = "digraph fastjit {\n  node [shape=box, fontname=monospace];\n";
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    const Node& node = graph[id];
    const std::string attr = node.op == Op::Const ? const_text(graph, node) : attr_text(graph, node);
    const std::string label = std::string(text(node.op)) + attr + "  " + type_text(graph, node);
    out += "  n" + std::to_string(id) + " [label=" + quoted(label) + "];\n";
    for (NodeId in : graph.operands(id))
      if (in != kNoNode) out += "  n" + std::to_string(in) + " -> n" + std::to_string(id) + ";\n";
  }
  for (size_t i = 0; i < clusters.size(); ++i) {
    out += "  subgraph cluster" + std::to_string(i) + " {\n    label=" + quoted(clusters[i].label) + ";\n   ";
    for (const NodeId id : clusters[i].nodes) out += " n" + std::to_string(id) + ";";
    out += "\n  }\n";
  }
  const auto sink = [&](const std::string& name, const std::string& label, NodeId value) {
    out += "  " + name + " [label=" + quoted(label) + ", shape=oval];\n";
    out += "  n" + std::to_string(value) + " -> " + name + ";\n";
  };
  for (size_t i = 0; i < graph.stores.size(); ++i)
    sink("store" + std::to_string(i), "written to " + graph.inputs[graph.stores[i].input].name, graph.stores[i].value);
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    sink("out" + std::to_string(i), "output " + std::to_string(i), graph.outputs[i]);
  return out + "}\n";
}

}  // namespace fastjit::ir
