// The same program with other sizes as those that choices are made for.
#include <algorithm>

#include "ir/graph.h"

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
  const auto move = [&](Dim& dim) { dim = out.symbols->moved(dim); };
  for (Layout& layout : out.layouts) {
    std::ranges::for_each(layout.sizes, move);
    std::ranges::for_each(layout.strides, move);
  }
  for (IndexMap& map : out.maps)
    for (Affine& row : map.dims) {
      move(row.offset);
      for (auto& [dim, coefficient] : row.terms) move(coefficient);
    }
  for (InputInfo& scalar : out.scalars) move(scalar.size);
  for (TracedLoop& loop : out.traced) move(loop.trip);
  return out;
}

}  // namespace fastjit::ir
