// Expressions are sums of products of atoms with integer coefficients, interned: equal ones are one. Atoms are symbols,
// quotients, and the smaller or larger of two.
#include "ir/dim.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "support/work.h"

namespace fastjit::ir {
namespace {

thread_local Symbols* current_symbols = nullptr;

constexpr int64_t kUnknown = INT64_MIN;  // no bound

int64_t added(int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) throw std::overflow_error("a size is beyond 64 bits");
  return sum;
}

int64_t multiplied(int64_t a, int64_t b) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) throw std::overflow_error("a size is beyond 64 bits");
  return product;
}

/// `inner` is a part of the product `outer`.
bool divides(const std::vector<uint32_t>& inner, const std::vector<uint32_t>& outer) {
  return std::ranges::includes(outer, inner);
}

std::vector<uint32_t> without(const std::vector<uint32_t>& outer, const std::vector<uint32_t>& inner) {
  std::vector<uint32_t> rest;
  std::ranges::set_difference(outer, inner, std::back_inserter(rest));
  return rest;
}

}  // namespace

Symbols::Scope::Scope(Symbols* symbols) : before_(std::exchange(current_symbols, symbols)) {}
Symbols::Scope::~Scope() { current_symbols = before_; }

Symbols& Symbols::current() {
  if (!current_symbols) throw std::logic_error("a symbolic size outside of its program");
  return *current_symbols;
}

size_t Symbols::HashQuestion::operator()(const Question& q) const {
  uint64_t hash = support::mix(static_cast<uint64_t>(q.kind), q.a.expr() ? q.a.expr() : ~q.a.hint());
  return support::mix(hash, q.b.expr() ? q.b.expr() : ~q.b.hint());
}

size_t Symbols::HashSum::operator()(const Sum& sum) const {
  uint64_t hash = sum.size();
  for (const Term& term : sum) {
    hash = support::mix(hash, static_cast<uint64_t>(term.coefficient));
    for (const uint32_t atom : term.atoms) hash = support::mix(hash, atom + uint64_t{1});
  }
  return hash;
}

Symbols::Symbols() : sums_(1) {}  // expression 0 is none

Dim Symbols::add(int64_t value, std::string name) {
  if (value < kLeast) throw std::logic_error("a symbol stands for sizes from 2 on");
  const auto which = static_cast<uint32_t>(names_.size());
  names_.push_back(std::move(name));
  atoms_.push_back({AtomKind::Symbol, {}, {}, value, kLeast, which});
  return intern({{1, {static_cast<uint32_t>(atoms_.size() - 1)}}});
}

Dim Symbols::add_late(int64_t value, std::string name) {
  late_from_ = std::min(late_from_, names_.size());
  return add(value, std::move(name));
}

uint64_t Symbols::late_in(Dim dim) const {
  if (!dim.is_symbolic() || late_count() == 0) return 0;
  uint64_t late = 0;
  for (const Term& term : sums_[dim.expr()])
    for (const uint32_t which : term.atoms) {
      const Atom& atom = atoms_[which];
      if (atom.kind != AtomKind::Symbol)
        late |= late_in(atom.a) | late_in(atom.b);
      else if (atom.symbol >= late_from_)
        late |= uint64_t{1} << (atom.symbol - late_from_);
    }
  return late;
}

Symbols::Sum Symbols::sum_of(Dim dim) const {
  if (dim.is_symbolic()) return sums_[dim.expr()];
  return dim.hint() == 0 ? Sum{} : Sum{{dim.hint(), {}}};
}

int64_t Symbols::value_of(const Sum& sum) const {
  int64_t value = 0;
  for (const Term& term : sum) {
    int64_t product = term.coefficient;
    for (const uint32_t atom : term.atoms) product = multiplied(product, atoms_[atom].value);
    value = added(value, product);
  }
  return value;
}

// Terms are made ascending, those of equal atoms are one, none is zero.
Dim Symbols::intern(Sum sum) {
  std::ranges::sort(sum, {}, &Term::atoms);
  size_t kept = 0;
  for (size_t i = 0; i < sum.size();) {
    Term term = std::move(sum[i]);
    for (++i; i < sum.size() && sum[i].atoms == term.atoms; ++i)
      term.coefficient = added(term.coefficient, sum[i].coefficient);
    if (term.coefficient != 0) sum[kept++] = std::move(term);
  }
  sum.resize(kept);
  const int64_t value = value_of(sum);
  if (sum.empty() || (sum.size() == 1 && sum[0].atoms.empty())) return value;
  const auto [found, fresh] = known_.try_emplace(sum, static_cast<uint32_t>(sums_.size()));
  if (fresh) {
    sums_.push_back(std::move(sum));
  }
  return {value, found->second};
}

Dim Symbols::atom(AtomKind kind, Dim a, Dim b, int64_t value) {
  const Kind made_by = kind == AtomKind::Div ? Kind::Div : kind == AtomKind::Min ? Kind::Min : Kind::Max;
  const auto [known, fresh] = known_atoms_.try_emplace({made_by, a, b}, static_cast<uint32_t>(atoms_.size()));
  if (fresh) atoms_.push_back({kind, a, b, value, least(kind, a, b)});
  return intern({{1, {known->second}}});
}

// Leading terms first, until what is left over is smaller than the divisor: (n + m)*k / (n + m).
std::optional<Dim> Symbols::long_division(Dim a, Dim b) {
  constexpr int kMostTerms = 32;
  // Of the highest degree, then the first: an order that products keep.
  const auto leading = [](const Sum& sum) {
    return *std::ranges::max_element(sum, [](const Term& x, const Term& y) {
      return x.atoms.size() != y.atoms.size() ? x.atoms.size() < y.atoms.size() : x.atoms > y.atoms;
    });
  };
  const Term by = leading(sum_of(b));
  Dim whole = 0;
  for (int terms = 0; terms < kMostTerms; ++terms) {
    if (least(sum_of(a)) >= 0 && least(sum_of(b - a)) > 0) return whole;
    if (identical(a, 0)) return whole;
    const Term term = leading(sum_of(a));
    if (term.coefficient % by.coefficient != 0 || !divides(by.atoms, term.atoms)) return std::nullopt;
    const Dim times = intern({{term.coefficient / by.coefficient, without(term.atoms, by.atoms)}});
    whole += times;
    a -= times * b;
  }
  return std::nullopt;
}

// Term by term where the divisor is one product that is in each of them; what is left over must be small enough.
Dim Symbols::quotient(Dim a, Dim b) {
  const Sum by = sum_of(b);
  if (by.size() == 1) {
    Sum whole, rest;
    for (const Term& term : sum_of(a)) {
      const bool exact = term.coefficient % by[0].coefficient == 0 && divides(by[0].atoms, term.atoms);
      if (exact)
        whole.push_back({term.coefficient / by[0].coefficient, without(term.atoms, by[0].atoms)});
      else
        rest.push_back(term);
    }
    if (rest.empty()) return intern(std::move(whole));
    const Dim remainder = intern(std::move(rest));
    if (!whole.empty() && least(sum_of(remainder)) >= 0 && least(sum_of(intern(std::move(whole)))) >= 0)
      return quotient(a - remainder, b) + quotient(remainder, b);
  }
  if (const int64_t below = least(sum_of(b - a)); below > 0) return 0;  // smaller than the divisor
  if (by.size() > 1)
    if (const auto whole = long_division(a, b)) return *whole;
  return atom(AtomKind::Div, a, b, a.hint() / b.hint());
}

int64_t Symbols::least(AtomKind kind, Dim a, Dim b) const {
  switch (kind) {
    case AtomKind::Symbol:
      return kLeast;
    case AtomKind::Div:
      return 0;
    case AtomKind::Min:
      return std::min(least(sum_of(a)), least(sum_of(b)));
    case AtomKind::Max:
      return std::max(least(sum_of(a)), least(sum_of(b)));
  }
  return kUnknown;
}

// A negative term is made up for by a part of a positive one that has all its atoms and more: n*m - n >= n*m / 2.
int64_t Symbols::least(Sum sum) const {
  constexpr int64_t kParts = 64;  // of a coefficient of 1
  for (Term& term : sum)
    if (__builtin_mul_overflow(term.coefficient, kParts, &term.coefficient)) return kUnknown;
  const auto lower = [&](const Term& term) {
    int64_t bound = term.coefficient;
    for (const uint32_t atom : term.atoms) {
      const int64_t one = atoms_[atom].least;
      if (one < 0 || __builtin_mul_overflow(bound, one, &bound)) return kUnknown;
    }
    return bound;
  };
  for (Term& negative : sum) {
    if (negative.coefficient > 0 || negative.atoms.empty()) continue;
    for (Term& term : sum) {
      if (term.coefficient <= 0 || !divides(negative.atoms, term.atoms)) continue;
      const int64_t factor = lower({1, without(term.atoms, negative.atoms)});
      if (factor == kUnknown || factor < 1 || lower({1, negative.atoms}) < 0) continue;
      // term >= coefficient * factor * product, of which so much is used
      const int64_t used = std::min(term.coefficient, (-negative.coefficient + factor - 1) / factor);
      term.coefficient -= used;
      negative.coefficient = std::min<int64_t>(0, negative.coefficient + used * factor);
      if (negative.coefficient == 0) break;
    }
    if (negative.coefficient != 0) return kUnknown;
  }
  int64_t bound = 0;
  for (const Term& term : sum) {
    const int64_t one = term.coefficient == 0 ? 0 : lower(term);
    if (one == kUnknown || __builtin_add_overflow(bound, one, &bound)) return kUnknown;
  }
  return bound >= 0 ? (bound + kParts - 1) / kParts : -(-bound / kParts) - (bound % kParts != 0);
}

Dim Symbols::make(Kind kind, Dim a, Dim b) {
  const auto [found, fresh] = made_.try_emplace({kind, a, b}, Dim());
  if (!fresh) return found->second;
  support::count_work();
  const Dim made = make_new(kind, a, b);
  return made_[{kind, a, b}] = made;
}

Dim Symbols::make_new(Kind kind, Dim a, Dim b) {
  Sum out = sum_of(a);
  const Sum other = sum_of(b);
  switch (kind) {
    case Kind::Add:
      out.insert(out.end(), other.begin(), other.end());
      return intern(std::move(out));
    case Kind::Mul: {
      Sum product;
      for (const Term& x : out)
        for (const Term& y : other) {
          Term term{multiplied(x.coefficient, y.coefficient), x.atoms};
          term.atoms.insert(term.atoms.end(), y.atoms.begin(), y.atoms.end());
          std::ranges::sort(term.atoms);
          product.push_back(std::move(term));
        }
      return intern(std::move(product));
    }
    case Kind::Div:
      return quotient(a, b);
    case Kind::Min:
    case Kind::Max: {
      const bool is_min = kind == Kind::Min;
      if (is_at_least(b - a, 0)) return is_min ? a : b;
      if (is_at_least(a - b, 0)) return is_min ? b : a;
      return atom(is_min ? AtomKind::Min : AtomKind::Max, a, b,
                  is_min ? std::min(a.hint(), b.hint()) : std::max(a.hint(), b.hint()));
    }
    case Kind::Equal:
    case Kind::Less:
      break;
  }
  throw std::logic_error("a question is no expression");
}

// Whether the answer is so for all sizes.
bool Symbols::is_proven(Kind kind, Dim difference, bool holds) const {
  const Sum sum = sum_of(difference);
  Sum opposite = sum;
  for (Term& term : opposite) term.coefficient = -term.coefficient;
  return kind == Kind::Equal ? !holds && (least(sum) > 0 || least(opposite) > 0)
         : holds             ? least(opposite) > 0
                             : least(sum) >= 0;
}

bool Symbols::is_at_least(Dim dim, int64_t bound) {
  if (least(sum_of(dim)) >= bound) return true;
  return std::ranges::any_of(known_positive_, [&](Dim known) { return least(sum_of(dim - known)) >= bound; });
}

// Whether what is known from elsewhere tells the answer.
bool Symbols::is_known(Kind kind, Dim difference, bool holds) {
  if (known_positive_.empty()) return false;
  if (kind == Kind::Equal) return !holds && (is_at_least(difference, 1) || is_at_least(-difference, 1));
  return holds ? is_at_least(-difference, 1) : is_at_least(difference, 0);
}

// With atoms in place of those that guards say to be equal to them.
Dim Symbols::with_equal(Dim dim) {
  if (equal_.empty() || !dim.is_symbolic()) return dim;
  Dim sum = 0;
  for (const Term& term : sum_of(dim)) {
    Dim product = term.coefficient;
    for (const uint32_t atom : term.atoms) {
      const auto found = equal_.find(atom);
      product *= intern({{1, {found == equal_.end() ? atom : found->second}}});
    }
    sum += product;
  }
  return sum;
}

// Of two atoms whose difference is nothing one stands for the other, and for what that stood for.
void Symbols::note_equal(const Sum& difference) {
  const bool are_two = difference.size() == 2 && difference[0].atoms.size() == 1 && difference[1].atoms.size() == 1 &&
                       difference[0].coefficient + difference[1].coefficient == 0;
  if (!are_two) return;
  const auto stands_for = [&](uint32_t atom) {
    const auto found = equal_.find(atom);
    return found == equal_.end() ? atom : found->second;
  };
  const uint32_t a = stands_for(difference[0].atoms[0]), b = stands_for(difference[1].atoms[0]);
  if (a == b) return;
  for (auto& [atom, other] : equal_)
    if (other == b) other = a;
  equal_[b] = a;
}

// Whether it is so where what is supposed holds.
bool Symbols::follows(Kind kind, Dim difference, bool holds) {
  if (!supposed_.is_symbolic()) return false;
  const Dim more = with_equal(supposed_ - supposed_least_);  // never negative
  const Sum of_more = sum_of(more);
  // What is left of a sum without as many times that as one of its terms has.
  const auto least_of = [&](Dim dim) {
    const Dim whole = with_equal(dim);
    int64_t best = least(sum_of(whole - more));
    for (const Term& term : sum_of(whole)) {
      const Term& by = of_more.back();
      if (by.coefficient != 1 || by.atoms.empty() || !divides(by.atoms, term.atoms)) continue;
      const Dim times = intern({{term.coefficient, without(term.atoms, by.atoms)}});
      if (least(sum_of(times)) >= 0) best = std::max(best, least(sum_of(whole - more * times)));
    }
    return best;
  };
  if (kind == Kind::Equal) return !holds && (least_of(difference) > 0 || least_of(-difference) > 0);
  return holds ? least_of(-difference) > 0 : least_of(difference) >= 0;
}

// Equal: a - b is zero. Less: a - b is negative.
bool Symbols::ask(Kind kind, Dim a, Dim b) {
  const auto [found, fresh] = asked_.try_emplace({kind, a, b}, false);
  if (!fresh) return found->second;
  support::count_work();
  const bool holds = kind == Kind::Equal ? a.hint() == b.hint() : a.hint() < b.hint();
  found->second = holds;
  const Dim difference = a - b;
  if (!difference.is_symbolic() || is_proven(kind, difference, holds)) return holds;
  if (is_known(kind, difference, holds)) return holds;
  if (follows(kind, difference, holds)) {
    asked_.erase({kind, a, b});  // elsewhere it may be a guard
    return holds;
  }
  guards_.push_back({kind, difference.expr(), holds, place_});
  if (kind == Kind::Equal && holds) note_equal(sum_of(difference));
  return holds;
}

int64_t Dim::fixed() const {
  if (is_symbolic()) static_cast<void>(*this == Dim(value_));
  return value_;
}

Dim operator+(Dim a, Dim b) {
  if (!a.expr_ && !b.expr_) return a.value_ + b.value_;
  return Symbols::current().make(Symbols::Kind::Add, a, b);
}

Dim operator*(Dim a, Dim b) {
  if (!a.expr_ && !b.expr_) return a.value_ * b.value_;
  if (!a.expr_ && a.value_ == 1) return b;
  if (!b.expr_ && b.value_ == 1) return a;
  return Symbols::current().make(Symbols::Kind::Mul, a, b);
}

Dim operator-(Dim a, Dim b) {
  if (!a.expr_ && !b.expr_) return a.value_ - b.value_;
  return a + Dim(-1) * b;
}

Dim operator/(Dim a, Dim b) {
  if (!a.expr_ && !b.expr_) return a.value_ / b.value_;
  if (!b.expr_ && b.value_ == 1) return a;
  if (a < 0 || b < 1) return a.fixed() / b.fixed();
  return Symbols::current().make(Symbols::Kind::Div, a, b);
}

Dim operator%(Dim a, Dim b) {
  if (!a.expr_ && !b.expr_) return a.value_ % b.value_;
  if (a < 0 || b < 1) return a.fixed() % b.fixed();
  return a - a / b * b;
}

bool operator==(Dim a, Dim b) {
  if (!a.expr_ && !b.expr_) return a.value_ == b.value_;
  return a.expr_ == b.expr_ || Symbols::current().ask(Symbols::Kind::Equal, a, b);
}

bool operator<(Dim a, Dim b) {
  if (!a.expr_ && !b.expr_) return a.value_ < b.value_;
  return a.expr_ != b.expr_ && Symbols::current().ask(Symbols::Kind::Less, a, b);
}

bool identical(std::span<const Dim> a, std::span<const Dim> b) {
  return std::ranges::equal(a, b, [](Dim x, Dim y) { return identical(x, y); });
}

Dim min(Dim a, Dim b) {
  if (!a.is_symbolic() && !b.is_symbolic()) return std::min(a.hint(), b.hint());
  return Symbols::current().make(Symbols::Kind::Min, a, b);
}

Dim max(Dim a, Dim b) {
  if (!a.is_symbolic() && !b.is_symbolic()) return std::max(a.hint(), b.hint());
  return Symbols::current().make(Symbols::Kind::Max, a, b);
}

Dim divide_up(Dim a, Dim b) { return (a + b - 1) / b; }

std::vector<int64_t> hints(std::span<const Dim> dims) {
  std::vector<int64_t> out(dims.size());
  std::ranges::transform(dims, out.begin(), &Dim::hint);
  return out;
}

std::string text(Dim dim) {
  if (!dim.is_symbolic() || !current_symbols) return std::to_string(dim.hint());
  return current_symbols->text(dim.expr());
}

std::string Symbols::text(const Sum& sum) const {
  const Scope names(const_cast<Symbols*>(this));
  std::string out;
  for (auto term = sum.rbegin(); term != sum.rend(); ++term) {
    const int64_t size = term->coefficient < 0 ? -term->coefficient : term->coefficient;
    if (term->coefficient < 0)
      out += out.empty() ? "-" : " - ";
    else if (!out.empty())
      out += " + ";
    std::string product = size == 1 && !term->atoms.empty() ? "" : std::to_string(size);
    for (const uint32_t which : term->atoms) {
      const Atom& atom = atoms_[which];
      if (!product.empty()) product += "*";
      const std::string a = ir::text(atom.a), b = ir::text(atom.b);
      if (atom.kind == AtomKind::Symbol) product += names_[atom.symbol];
      if (atom.kind == AtomKind::Div) product += "((" + a + ")//" + (atom.b.is_symbolic() ? "(" + b + ")" : b) + ")";
      if (atom.kind == AtomKind::Min) product += "min(" + a + ", " + b + ")";
      if (atom.kind == AtomKind::Max) product += "max(" + a + ", " + b + ")";
    }
    out += product;
  }
  return out.empty() ? "0" : out;
}

std::string Symbols::text(uint32_t expr) const { return text(sums_[expr]); }

// "n % 8", where an expression is n - 8*(n//8).
std::string Symbols::text_of_remainder(uint32_t expr) const {
  const Scope names(const_cast<Symbols*>(this));
  for (const Term& term : sums_[expr])
    for (const uint32_t which : term.atoms)
      if (const Atom atom = atoms_[which]; atom.kind == AtomKind::Div && (atom.a % atom.b).expr() == expr)
        return (sum_of(atom.a).size() > 1 ? "(" + ir::text(atom.a) + ")" : ir::text(atom.a)) + " % " + ir::text(atom.b);
  return "";
}

std::vector<std::string> Symbols::guards() const {
  std::vector<std::string> out;
  for (const std::string& name : names_) out.push_back(name + " >= " + std::to_string(kLeast));
  for (const Guard& guard : guards_) {
    if (const std::string remainder = text_of_remainder(guard.difference); !remainder.empty()) {
      out.push_back(remainder + (guard.holds ? " == 0" : " != 0"));
      continue;
    }
    Sum left, right;  // negative terms stand on the other side
    for (Term term : sums_[guard.difference]) {
      const bool is_left = term.coefficient > 0;
      if (!is_left) term.coefficient = -term.coefficient;
      (is_left ? left : right).push_back(std::move(term));
    }
    const char* sign = guard.kind == Kind::Equal ? (guard.holds ? " == " : " != ") : (guard.holds ? " < " : " >= ");
    out.push_back(text(left) + sign + text(right));
  }
  return out;
}

}  // namespace fastjit::ir
