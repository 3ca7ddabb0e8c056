// The same program with other sizes as those that choices are made for, or with numbers for all.
#include <algorithm>

#include "ir/graph.h"
#include "ir/in_numbers.h"

namespace fastjit::ir {

std::shared_ptr<Symbols> Symbols::at_sizes(std::span<const int64_t> sizes) const {
  auto out = std::make_shared<Symbols>(*this);
  const auto moved = [&](Dim dim) { return out->moved(dim); };
  for (Atom& atom : out->atoms_) {  // what one is made of are earlier ones
    atom.a = moved(atom.a);
    atom.b = moved(atom.b);
    switch (atom.kind) {
      case AtomKind::Symbol:
        atom.value = sizes[atom.symbol];
        break;
      case AtomKind::Div:
        atom.value = atom.a.hint() / atom.b.hint();
        break;
      case AtomKind::Min:
        atom.value = std::min(atom.a.hint(), atom.b.hint());
        break;
      case AtomKind::Max:
        atom.value = std::max(atom.a.hint(), atom.b.hint());
        break;
    }
  }
  std::ranges::transform(known_positive_, out->known_positive_.begin(), moved);
  out->known_atoms_.clear();
  for (const auto& [made_by, atom] : known_atoms_)
    out->known_atoms_.emplace(Question{made_by.kind, moved(made_by.a), moved(made_by.b)}, atom);
  out->asked_.clear();
  for (const auto& [question, answer] : asked_)
    out->asked_.emplace(Question{question.kind, moved(question.a), moved(question.b)}, answer);
  out->made_.clear();
  return out;
}

int64_t Symbols::value(size_t symbol) const {
  return std::ranges::find_if(atoms_,
                              [&](const Atom& atom) { return atom.kind == AtomKind::Symbol && atom.symbol == symbol; })
      ->value;
}

Dim Symbols::moved(Dim dim) const { return dim.is_symbolic() ? Dim(value_of(sums_[dim.expr()]), dim.expr()) : dim; }

/// Calls `take` with every size, stride, place and count of rounds.
template <class Take>
static void for_each_dim(Graph& graph, Take take) {
  for (Layout& layout : graph.layouts) {
    std::ranges::for_each(layout.sizes, take);
    std::ranges::for_each(layout.strides, take);
  }
  for (IndexMap& map : graph.maps)
    for (Affine& row : map.dims) {
      take(row.offset);
      for (auto& [dim, coefficient] : row.terms) take(coefficient);
    }
  for (InputInfo& scalar : graph.scalars) take(scalar.size);
  for (TracedLoop& loop : graph.traced) take(loop.trip);
}

Graph in_numbers(const Graph& graph) {
  Graph out = graph;
  for_each_dim(out, [](Dim& dim) { dim = dim.hint(); });
  out.symbols = nullptr;
  return out;
}

Graph at_sizes(const Graph& graph, std::span<const int64_t> sizes) {
  Graph out;
  out.symbols = graph.symbols->at_sizes(sizes);
  out.nodes = graph.nodes;
  out.layouts = graph.layouts;
  out.constants = graph.constants;
  out.maps = graph.maps;
  out.reduces = graph.reduces;
  out.lists = graph.lists;
  out.contracts = graph.contracts;
  out.externs = graph.externs;
  out.loops = graph.loops;
  out.lines = graph.lines;
  out.line_rounds = graph.line_rounds;
  out.traced = graph.traced;
  out.inputs = graph.inputs;
  out.scalars = graph.scalars;
  out.outputs = graph.outputs;
  out.stores = graph.stores;
  for_each_dim(out, [&](Dim& dim) { dim = out.symbols->moved(dim); });
  return out;
}

}  // namespace fastjit::ir
