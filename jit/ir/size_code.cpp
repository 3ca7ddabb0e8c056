// What a program for any size computes at each call: the expressions that it needs, and the guards.
#include <algorithm>
#include <map>

#include "ir/size_check.h"

namespace fastjit::ir {

std::vector<Symbols::Fixed> Symbols::fixed() const {
  std::vector<Fixed> out;
  for (const Guard& guard : guards_) {
    if (guard.kind != Kind::Equal || !guard.holds) continue;
    const Sum& sum = sums_[guard.difference];
    const Term& last = sum.back();  // the constant, if there is one, comes first
    if (sum.size() <= 2 && (sum.size() == 1 || sum[0].atoms.empty()) && last.atoms.size() == 1 &&
        atoms_[last.atoms[0]].kind == AtomKind::Symbol)
      if (const uint32_t symbol = atoms_[last.atoms[0]].symbol;
          std::ranges::find(out, symbol, &Fixed::symbol) == out.end())
        out.push_back({symbol, guard.place});
  }
  return out;
}

std::vector<bool> Symbols::needed_for(std::span<const uint32_t> wanted) const {
  std::vector<bool> needed(sums_.size(), false);
  std::vector<uint32_t> todo(wanted.begin(), wanted.end());
  for (const Guard& guard : guards_) todo.push_back(guard.difference);
  while (!todo.empty()) {
    const uint32_t expr = todo.back();
    todo.pop_back();
    if (expr == 0 || needed[expr]) continue;
    needed[expr] = true;
    for (const Term& term : sums_[expr])
      for (const uint32_t atom : term.atoms) todo.insert(todo.end(), {atoms_[atom].a.expr(), atoms_[atom].b.expr()});
  }
  return needed;
}

/// What hangs on late symbols goes to the end; registers follow.
static void put_late_last(SizeCode& code, uint32_t given) {
  code.given = given;
  if (given == code.symbols) {
    code.late_code = code.code.size();
    return;
  }
  std::vector<uint64_t> late(code.registers(), 0);
  for (uint32_t symbol = given; symbol < code.symbols; ++symbol) late[symbol] = uint64_t{1} << (symbol - given);
  for (size_t i = 0; i < code.code.size(); ++i)
    if (const SizeCode::Instr& instr = code.code[i]; instr.op != SizeCode::Op::Load)
      late[code.symbols + i] = late[instr.a] | late[instr.b];
  for (SizeCode::Check& check : code.checks) check.late = late[check.place];
  code.late_code = static_cast<size_t>(std::count(late.begin() + code.symbols, late.end(), uint64_t{0}));
  std::vector<uint32_t> moved(code.registers());
  std::vector<SizeCode::Instr> sorted(code.code.size());
  size_t early = 0, next_late = code.late_code;
  for (uint32_t at = 0; at < code.registers(); ++at) {
    moved[at] = at;
    if (at < code.symbols) continue;
    const size_t place = late[at] ? next_late++ : early++;
    moved[at] = code.symbols + static_cast<uint32_t>(place);
    SizeCode::Instr instr = code.code[at - code.symbols];
    if (instr.op != SizeCode::Op::Load) instr.a = moved[instr.a], instr.b = moved[instr.b];
    sorted[place] = instr;
  }
  code.code = std::move(sorted);
  for (SizeCode::Check& check : code.checks) check.place = moved[check.place];
  for (uint32_t& place : code.place) place = moved[place];
}

SizeCode Symbols::code(std::span<const uint32_t> wanted) const {
  using Op = SizeCode::Op;
  constexpr uint32_t kNowhere = 0xFFFFFFFFu;
  const std::vector<bool> needed = needed_for(wanted);
  SizeCode out;
  out.symbols = static_cast<uint32_t>(names_.size());
  const auto emit = [&](SizeCode::Instr instr) {
    out.code.push_back(instr);
    return static_cast<uint32_t>(out.registers() - 1);
  };
  std::unordered_map<int64_t, uint32_t> constants;
  const auto constant = [&](int64_t value) {
    const auto [found, fresh] = constants.try_emplace(value, 0);
    if (fresh) found->second = emit({Op::Load, 0, 0, value});
    return found->second;
  };
  out.place.assign(sums_.size(), 0);
  std::vector<uint32_t> atoms(atoms_.size(), kNowhere);
  const auto of = [&](Dim dim) { return dim.is_symbolic() ? out.place[dim.expr()] : constant(dim.hint()); };
  const auto settle_atom = [&](const Atom& atom) {
    if (atom.kind == AtomKind::Symbol) return atom.symbol;
    const Op op = atom.kind == AtomKind::Div ? Op::Div : atom.kind == AtomKind::Min ? Op::Min : Op::Max;
    const uint32_t a = of(atom.a), b = of(atom.b);
    return emit({op, a, b});
  };
  std::map<std::vector<uint32_t>, uint32_t> products;  // of atoms
  const auto product = [&](const std::vector<uint32_t>& all) {
    uint32_t at = atoms[all[0]];
    for (size_t n = 2; n <= all.size(); ++n) {
      const auto [found, fresh] = products.try_emplace({all.begin(), all.begin() + static_cast<ptrdiff_t>(n)}, 0);
      if (fresh) found->second = emit({Op::Mul, at, atoms[all[n - 1]]});
      at = found->second;
    }
    return at;
  };
  for (uint32_t expr = 1; expr < sums_.size(); ++expr) {
    if (!needed[expr]) continue;
    const Sum& sum = sums_[expr];
    for (const Term& term : sum)  // an atom's operands are earlier expressions
      for (const uint32_t atom : term.atoms)
        if (atoms[atom] == kNowhere) atoms[atom] = settle_atom(atoms_[atom]);
    uint32_t at = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      const Term& term = sum[i];
      uint32_t one = term.atoms.empty() ? constant(term.coefficient) : product(term.atoms);
      if (!term.atoms.empty() && term.coefficient != 1) one = emit({Op::Mul, one, constant(term.coefficient)});
      at = i == 0 ? one : emit({Op::Add, at, one});
    }
    out.place[expr] = at;
  }
  using Is = SizeCode::Is;
  for (const Guard& guard : guards_) {
    const Is is = guard.kind == Kind::Equal ? (guard.holds ? Is::Zero : Is::NotZero)
                                            : (guard.holds ? Is::Negative : Is::NotNegative);
    out.checks.push_back({out.place[guard.difference], is});
  }
  put_late_last(out, static_cast<uint32_t>(names_.size() - late_count()));
  return out;
}

bool SizeCode::holds(const int64_t* registers, const Check& check) const noexcept {
  return ir::holds(check.is, registers[check.place]);
}

bool SizeCode::run(int64_t* registers, size_t begin, size_t end, bool is_late) const noexcept {
  int64_t* next = registers + symbols + begin;
  bool overflows = false;
  for (size_t i = begin; i < end; ++i) {
    const Instr& instr = code[i];
    const int64_t a = registers[instr.a], b = registers[instr.b];
    switch (instr.op) {
      case Op::Load:
        *next = instr.value;
        break;
      case Op::Add:
        overflows |= __builtin_add_overflow(a, b, next);
        break;
      case Op::Mul:
        overflows |= __builtin_mul_overflow(a, b, next);
        break;
      case Op::Div:
        if (b < 1 && !is_late) return false;  // a guard forbids it
        *next = b < 1 ? 0 : a / b;
        break;
      case Op::Min:
        *next = std::min(a, b);
        break;
      case Op::Max:
        *next = std::max(a, b);
        break;
    }
    ++next;
  }
  return !overflows;
}

bool SizeCode::run(int64_t* registers) const noexcept {
  for (uint32_t i = 0; i < given; ++i)
    if (registers[i] < Symbols::kLeast) return false;
  if (!run(registers, 0, late_code, false)) return false;
  bool fails = false;
  for (const Check& check : checks) fails |= check.late == 0 && !holds(registers, check);
  return !fails;
}

bool SizeCode::run_late(int64_t* registers, uint64_t known) const noexcept {
  for (uint32_t i = given; i < symbols; ++i)
    if (registers[i] < Symbols::kLeast) return false;
  if (!run(registers, late_code, code.size(), true)) return false;
  bool fails = false;
  for (const Check& check : checks) fails |= check.late != 0 && (check.late & ~known) == 0 && !holds(registers, check);
  return !fails;
}

}  // namespace fastjit::ir
