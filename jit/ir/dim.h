#pragma once
// A size, stride, offset or trip count: a number, and in a program for any size the expression over the sizes of its
// inputs that the number follows from. Code that plans computes with the number of the call that is recorded; whatever
// it asks of an expression (is it 1, which of two is larger) is kept as a guard on the answer, unless it is so for all
// sizes. So what was decided for one size is right for every size that the guards let in.
#include <algorithm>
#include <array>
#include <compare>
#include <concepts>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "support/mix.h"

namespace fastjit::ir {

class Dim {
 public:
  constexpr Dim() = default;
  template <std::integral T>
  constexpr Dim(T value) : value_(static_cast<int64_t>(value)) {}

  /// The number in the recorded call. For choices that are right for any other number, too: no guard is kept.
  constexpr int64_t hint() const { return value_; }
  /// The number; from now on the program is for this number only.
  int64_t fixed() const;
  constexpr bool is_symbolic() const { return expr_ != 0; }
  constexpr uint32_t expr() const { return expr_; }  // of Symbols; 0: a number

  friend Dim operator+(Dim a, Dim b);
  friend Dim operator-(Dim a, Dim b);
  friend Dim operator*(Dim a, Dim b);
  /// Towards zero, as C++ has it; of expressions that may be negative it fixes them.
  friend Dim operator/(Dim a, Dim b);
  friend Dim operator%(Dim a, Dim b);
  Dim operator-() const { return Dim(0) - *this; }
  Dim& operator+=(Dim b) { return *this = *this + b; }
  Dim& operator-=(Dim b) { return *this = *this - b; }
  Dim& operator*=(Dim b) { return *this = *this * b; }
  Dim& operator/=(Dim b) { return *this = *this / b; }

  /// Questions: the answer is a guard where it does not hold for all sizes.
  friend bool operator==(Dim a, Dim b);
  friend bool operator<(Dim a, Dim b);
  friend bool operator>(Dim a, Dim b) { return b < a; }
  friend bool operator<=(Dim a, Dim b) { return !(b < a); }
  friend bool operator>=(Dim a, Dim b) { return !(a < b); }

 private:
  friend class Symbols;
  constexpr Dim(int64_t value, uint32_t expr) : value_(value), expr_(expr) {}
  int64_t value_ = 0;
  uint32_t expr_ = 0;
};

/// No question: one number, or one expression.
constexpr bool identical(Dim a, Dim b) { return a.hint() == b.hint() && a.expr() == b.expr(); }
bool identical(std::span<const Dim> a, std::span<const Dim> b);
Dim min(Dim a, Dim b);  // no questions either: expressions
Dim max(Dim a, Dim b);
/// a / b rounded up; b is positive.
Dim divide_up(Dim a, Dim b);
std::vector<int64_t> hints(std::span<const Dim> dims);
std::string text(Dim dim);  // "64", "4*n"

/// Instructions that find the values of expressions, and the guards on them. Registers 0 to symbols-1 are the symbols.
struct SizeCode {
  enum class Op : uint8_t { Load, Add, Mul, Div, Min, Max };  // Load: the constant `value`
  struct Instr {
    Op op;
    uint32_t a = 0, b = 0;  // registers; the result goes to the next one
    int64_t value = 0;
  };
  enum class Is : uint8_t { Zero, NotZero, Negative, NotNegative };
  struct Check {
    uint32_t place;  // register
    Is is;
    uint64_t late = 0;  // the late symbols that it hangs on, as bits
  };
  uint32_t symbols = 0;
  uint32_t given = 0;  // symbols that are there when a run begins: it finds the others, the late ones
  std::vector<Instr> code;
  size_t late_code = 0;  // instructions from here on hang on late symbols
  std::vector<Check> checks;
  std::vector<uint32_t> place;  // per expression id that was asked for: its register

  size_t registers() const { return symbols + code.size(); }
  bool has_late() const { return given < symbols; }
  bool is_late(uint32_t at) const { return at >= symbols ? at - symbols >= late_code : at >= given; }
  /// Fills in the registers behind the symbols, but for what hangs on late ones. False: a guard fails, or a number is
  /// beyond 64 bits.
  bool run(int64_t* registers) const noexcept;
  /// The rest. Guards are asked of the late symbols that are `known`, as bits; in place of others any size stands.
  bool run_late(int64_t* registers, uint64_t known) const noexcept;

 private:
  bool run(int64_t* registers, size_t begin, size_t end, bool is_late) const noexcept;
  bool holds(const int64_t* registers, const Check& check) const noexcept;
};

/// The symbols of one program, the expressions over them, and what was asked of these.
class Symbols {
 public:
  /// Sizes below are no symbols: 0 and 1 mean broadcasting, empty memory and strides without a meaning.
  static constexpr int64_t kLeast = 2;

  Symbols();
  /// A new one, of kLeast or more; `name` is for people.
  Dim add(int64_t value, std::string name);
  /// One that a run finds on its way, a size that depends on data. Others are not added behind it.
  Dim add_late(int64_t value, std::string name);
  static constexpr size_t kMostLate = 64;
  size_t late_count() const { return names_.size() - std::min(names_.size(), late_from_); }
  /// The late symbols that an expression hangs on, as bits.
  uint64_t late_in(Dim dim) const;
  size_t size() const { return names_.size(); }
  bool empty() const { return names_.empty(); }
  const std::string& name(size_t symbol) const { return names_[symbol]; }
  int64_t value(size_t symbol) const;  // in the recorded call
  std::string text(uint32_t expr) const;
  /// In words, one line each: "n >= 2", "n % 8 == 0".
  std::vector<std::string> guards() const;
  /// From now on it is known that `dim` is at least so much; nothing, where that is a number.
  void suppose(Dim dim, int64_t least) {
    supposed_ = dim;
    supposed_least_ = least;
  }
  /// Something else sees to it that `dim` is never negative: no guard is kept where that tells the answer.
  void know(Dim dim) { known_positive_.push_back(dim); }
  /// What is asked from now on is asked at this place, a number of the caller's.
  void at(uint32_t place) { place_ = place; }
  /// Those that a guard fixes, and where that was asked first.
  struct Fixed {
    uint32_t symbol, place;
  };
  std::vector<Fixed> fixed() const;
  /// For these expressions and all guards.
  SizeCode code(std::span<const uint32_t> wanted) const;

  /// The same symbols, expressions and guards where the sizes of the recorded call were these, which the guards let in.
  std::shared_ptr<Symbols> at_sizes(std::span<const int64_t> sizes) const;
  /// An expression with its number here.
  Dim moved(Dim dim) const;
  Dim dim_of(uint32_t expr) const { return {value_of(sums_[expr]), expr}; }

  /// These for the body of a loop: its round is to be added, and nothing is asked of them yet. Expressions of these are
  /// the same ones of those.
  std::shared_ptr<Symbols> for_body() const;
  /// Whether an expression of a body's hangs on the round.
  bool has_round(Dim dim) const;
  /// An expression of `body`, which for_body() made of these, in the round of this number.
  Dim in_round(const Symbols& body, Dim dim, Dim round);
  /// Asks here what was asked of `body`, in so many rounds. The answers of the recorded call must be the same in all.
  /// False: of an expression so many there is a question that rounds in between may answer otherwise.
  bool ask_again(const Symbols& body, Dim rounds);

  /// The symbols that this thread's questions and expressions belong to, while it lives.
  class Scope {
   public:
    explicit Scope(Symbols* symbols);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Symbols* before_;
  };

 private:
  friend class Dim;
  friend Dim operator+(Dim a, Dim b);
  friend Dim operator*(Dim a, Dim b);
  friend Dim operator/(Dim a, Dim b);
  friend bool operator==(Dim a, Dim b);
  friend bool operator<(Dim a, Dim b);
  friend Dim min(Dim a, Dim b);
  friend Dim max(Dim a, Dim b);

  enum class AtomKind : uint8_t { Symbol, Div, Min, Max };
  struct Atom {
    AtomKind kind;
    Dim a, b;  // of Div, Min, Max
    int64_t value;
    int64_t least;  // it is never below
    uint32_t symbol = 0;
  };
  /// coefficient * product of atoms (ascending, one twice for its square).
  struct Term {
    int64_t coefficient;
    std::vector<uint32_t> atoms;
    bool operator==(const Term&) const = default;
  };
  /// Sum of terms, ascending by their atoms; the constant is the term without any.
  using Sum = std::vector<Term>;
  enum class Kind : uint8_t { Add, Mul, Div, Min, Max, Equal, Less };
  struct Question {
    Kind kind;
    Dim a, b;
    bool operator==(const Question& o) const { return kind == o.kind && identical(a, o.a) && identical(b, o.b); }
  };
  struct HashQuestion {
    size_t operator()(const Question& q) const;
  };
  struct HashSum {
    size_t operator()(const Sum& sum) const;
  };

  static Symbols& current();
  Dim make(Kind kind, Dim a, Dim b);
  Dim make_new(Kind kind, Dim a, Dim b);
  bool ask(Kind kind, Dim a, Dim b);
  bool is_proven(Kind kind, Dim difference, bool holds) const;
  bool follows(Kind kind, Dim difference, bool holds);
  bool is_known(Kind kind, Dim difference, bool holds);
  bool is_at_least(Dim dim, int64_t bound);
  Dim with_equal(Dim dim);
  void note_equal(const Sum& difference);
  Sum sum_of(Dim dim) const;
  Dim intern(Sum sum);
  Dim atom(AtomKind kind, Dim a, Dim b, int64_t value);
  Dim quotient(Dim a, Dim b);
  std::optional<Dim> long_division(Dim a, Dim b);
  int64_t value_of(const Sum& sum) const;
  int64_t least(AtomKind kind, Dim a, Dim b) const;
  /// A bound that the sum is never below; nothing is known: kUnknown.
  int64_t least(Sum sum) const;
  std::string text(const Sum& sum) const;
  std::string text_of_remainder(uint32_t expr) const;
  std::vector<bool> needed_for(std::span<const uint32_t> wanted) const;

  std::vector<std::string> names_;
  std::vector<Atom> atoms_;
  std::unordered_map<Question, uint32_t, HashQuestion> known_atoms_;  // but for symbols
  std::deque<Sum> sums_;                                              // by expression id
  std::unordered_map<Sum, uint32_t, HashSum> known_;
  std::unordered_map<Question, Dim, HashQuestion> made_;
  std::unordered_map<Question, bool, HashQuestion> asked_;
  struct Guard {
    Kind kind;  // Equal: to zero; Less: than zero
    uint32_t difference;
    bool holds;
    uint32_t place;
  };
  std::vector<Guard> guards_;
  uint32_t place_ = 0;
  std::map<uint32_t, uint32_t> equal_;  // atoms that a guard says to be equal to others
  size_t late_from_ = SIZE_MAX;
  std::vector<Dim> known_positive_;
  Dim supposed_;
  int64_t supposed_least_ = 0;
  size_t shared_sums_ = 0, shared_atoms_ = 0;  // of a body's: those of the symbols that it was made of
};

}  // namespace fastjit::ir
