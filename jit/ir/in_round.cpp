// Expressions of a loop's body: over the sizes of its program, and the round.
#include "ir/in_round.h"

#include <algorithm>
#include <stdexcept>

namespace fastjit::ir {

std::shared_ptr<Symbols> Symbols::for_body() const {
  auto made = std::make_shared<Symbols>(*this);
  made->shared_sums_ = sums_.size();
  made->shared_atoms_ = atoms_.size();
  made->guards_.clear();
  return made;
}

bool Symbols::has_round(Dim dim) const {
  if (!dim.is_symbolic() || dim.expr() < shared_sums_) return false;
  return std::ranges::any_of(sums_[dim.expr()], [&](const Term& term) {
    return std::ranges::any_of(term.atoms, [&](uint32_t which) {
      const Atom& atom = atoms_[which];
      if (atom.kind == AtomKind::Symbol) return which >= shared_atoms_;
      return has_round(atom.a) || has_round(atom.b);
    });
  });
}

Dim Symbols::in_round(const Symbols& body, Dim dim, Dim round) {
  if (!dim.is_symbolic() || dim.expr() < body.shared_sums_) return dim;
  const Scope own(this);
  const auto atom_in_round = [&](uint32_t which) -> Dim {
    if (which < body.shared_atoms_) return intern({{1, {which}}});
    const Atom& atom = body.atoms_[which];
    if (atom.kind == AtomKind::Symbol) return round;
    const Dim a = in_round(body, atom.a, round), b = in_round(body, atom.b, round);
    if (atom.kind == AtomKind::Min) return min(a, b);
    if (atom.kind == AtomKind::Max) return max(a, b);
    // That both are in range was asked when it was made.
    return a.is_symbolic() || b.is_symbolic() ? make(Kind::Div, a, b) : Dim(a.hint() / b.hint());
  };
  Dim sum = 0;
  for (const Term& term : body.sums_[dim.expr()]) {
    Dim product = term.coefficient;
    for (const uint32_t which : term.atoms) product *= atom_in_round(which);
    sum += product;
  }
  return sum;
}

bool Symbols::ask_again(const Symbols& body, Dim rounds) {
  const Scope own(this);
  const int64_t first = body.value(body.size() - 1);
  for (const Guard& guard : body.guards_) {
    const Dim difference = body.dim_of(guard.difference);
    const auto in = [&](Dim round) { return in_round(body, difference, round); };
    const auto holds = [&](Dim here) { return guard.kind == Kind::Equal ? here == 0 : here < 0; };
    const bool differs = body.has_round(difference);
    const bool is_traced = differs && rounds.is_symbolic();
    for (int64_t round = first; round < first + (differs ? rounds.hint() : 1); ++round) {
      const Dim here = in(round);
      if (holds(is_traced && round > first ? here.hint() : here) != guard.holds)
        throw std::logic_error("rounds of a loop differ in what was asked of them");
    }
    if (!is_traced) continue;
    // From the first round to the last it grows by as much in each: of one sign at both ends, it is so in between.
    const Dim begin = in(first), end = in(rounds + (first - 1));
    if (!identical(end, begin + (rounds - 1) * (in(first + 1) - begin))) return false;
    if (guard.kind == Kind::Equal && guard.holds) return false;
    if ((begin < 0) != (end < 0) || holds(end) != guard.holds) return false;
  }
  return true;
}

Layout around_body(const Graph& graph, const Graph& body, Layout layout) {
  const auto move = [&](Dim& dim) { dim = graph.symbols->in_round(*body.symbols, dim, 0); };
  if (!graph.symbols) return layout;
  std::ranges::for_each(layout.sizes, move);
  std::ranges::for_each(layout.strides, move);
  return layout;
}

}  // namespace fastjit::ir
