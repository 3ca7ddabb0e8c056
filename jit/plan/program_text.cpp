// The program as text for people: what its words mean, slots, steps, then each distinct kernel.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "plan/program.h"
#include "plan/repeat.h"

namespace fastjit::plan {

namespace {

std::string list(const std::vector<int64_t>& values) {
  std::string result = "[";
  for (size_t i = 0; i < values.size(); ++i) result += (i ? "," : "") + std::to_string(values[i]);
  return result + "]";
}

std::string name(SlotId id) { return id == kNoSlot ? "-" : "s" + std::to_string(id); }

std::string names(const std::vector<SlotId>& ids) {
  std::string result;
  for (size_t i = 0; i < ids.size(); ++i) result += (i ? " " : "") + name(ids[i]);
  return result;
}

std::string line(const Slot& slot) {
  std::string result = std::string(ir::text(slot.dtype)) + list(slot.sizes) + " strides " + list(slot.strides);
  switch (slot.kind) {
    case SlotKind::Input:
      return "input " + std::to_string(slot.index) + " " + result;
    case SlotKind::Tensor:
      return "tensor " + result;
    case SlotKind::Temp:
      return "temp at " + std::to_string(slot.offset) + " " + result;
    case SlotKind::Extern:
      return "extern " + result;
    case SlotKind::Alias:
      return "alias of " + name(slot.base) + " at " + std::to_string(slot.offset) + " " + result;
  }
  return result;
}

// What a word means, printed above programs whose text has it.
struct Meaning {
  std::string_view word, text;
};
constexpr Meaning kLegend[] = {
    {": input ", "input I: tensor I of the caller"},
    {": tensor ", "tensor: a new tensor, for a result or for a call of torch's"},
    {": temp ", "temp at B: memory inside the call, from byte B of the arena on"},
    {": extern ", "extern (of a slot): a tensor that a call of torch's makes"},
    {": alias of ", "alias of S at E: a view of slot S, from its element E on"},
    {"\nkernel ", "kernel K (slots): runs kernel K, which stands below, on slots as its operands #0, #1, ..."},
    {" sizes [", "sizes: the length of each dim of the kernel, dim d0 first"},
    {" units ", "units: pieces of work that threads share; grain: the fewest units worth a thread"},
    {" grid ", "grid B x T: blocks of so many threads on the GPU"},
    {" reads ", "reads, writes, operations: what the launch moves (a broadcast operand once) and computes"},
    {"\nvalue %",
     "value %N: what became of node N of the graph, which several kernels read, and why; %N %M .. %L: of many, of "
     "which the first two and the last are named"},
    {" block ", "block: elements along the last dim that a unit takes"},
    {" scalars ", "scalars: which numbers of the call are the kernel's $0, $1, ..."},
    {" rounds ",
     "rounds N: of a kernel over time, one after the other; {A B .. C}: in another place each round, of which the "
     "first "
     "two and the last are named"},
    {"\nparallel", "parallel: the launches below it run at the same time"},
    {"\nloop ",
     "loop N: runs what is below it N times, round 0 first; S+D*round: D elements (of call S: D calls) further each "
     "round; "
     "{A B .. C}: in another place each round, of which the first two and the last are named"},
    {")}", "{A (B C)}: in the first round A, then B and C by turns"},
    {"\nalias ", "alias S -> T: slot T is from now on a view of slot S"},
    {"\nshare ", "share S -> T: slot T has the tensor of slot S, too"},
    {"\nhand ", "hand S -> T: the tensor of slot S is from now on that of slot T, and S has none"},
    {" team ",
     "team T: T threads stay awake for the whole loop and share each launch; wait: until all of them are there"},
    {"\nextern ", "extern C (slots) -> slots: call C of torch's"},
    {"\nproduct ",
     "product KIND C (slots) -> slot: call C of torch's, then the launches below it; rows: so many at a time"},
    {"\nguard ", "guard G (slot): the program goes on only if the slot holds value G that was recorded"},
    {"\nnumber ", "number N (slots) -> slot: what Python computes out of numbers that were read out of tensors"},
    {"\nfree ", "free S: slot S is not needed any more; free arena: nor is any temp"},
    {"\nown ",
     "own S: the next step writes over slot S, which becomes a copy first if a call of torch's has kept its memory"},
    {"\narena ", "arena: bytes of all temps; scratch: bytes per thread for values between two loops"},
    {"\nkernel dims [",
     "kernel dims: k is a dim of the result, r one that is reduced; vec: the dim that vectors of "
     "`lanes` elements run along, `unroll` at once; lanes 1: no vectors; rows: so many results side by side"},
    {"t] vec d", "kernel dims: t is time, whose indices are rounds; listed: an operand that lies elsewhere each round"},
    {"\ncarry #",
     "carry #A to #B: what a round stores to #A, the next one loads from #B; memory gets what the last leaves"},
    {" tile d", "tile: squares of so many elements a side, so that transposed operands are read along their rows"},
    {"\noperand #",
     "operand #I TYPE in or out [a stride per dim]: 0 the same element, 1 next to each other, 2 every "
     "other one, * any stride"},
    {"\n  elem\n", "elem: runs once per element of the reduced dims"},
    {"\n  row\n", "row: runs once per element of the result"},
    {" = recall k", "keep k, recall k: a value kept per reduced element for a later phase"},
};

std::string legend(std::string_view program) {
  std::string out;
  const auto has = [&](std::string_view word) { return program.find(word) != std::string_view::npos; };
  const auto has_in_round = [&](std::string_view word) {
    return word.starts_with('\n') && has("\n    " + std::string(word.substr(1)));
  };
  for (const Meaning& meaning : kLegend)
    if (has(meaning.word) || has_in_round(meaning.word)) out += "# " + std::string(meaning.text) + "\n";
  return out + "\n";
}

std::string bytes(int64_t count) {
  if (count < 10000) return std::to_string(count) + " B";
  return count < 10'000'000 ? std::to_string(count / 1000) + " kB" : std::to_string(count / 1'000'000) + " MB";
}

std::string text(const Place& place) {
  return name(place.slot) + (place.offset != 0 ? "+" + std::to_string(place.offset) : "");
}

/// What stands in the holes of a step, in order.
template <class AnyStep>
std::vector<std::string> words(AnyStep step) {
  std::vector<std::string> result;
  for_each_hole(step, [&](uint32_t& id, int64_t* offset) {
    const bool is_number = result.empty() && kHasNumber<AnyStep>;
    result.push_back(is_number ? std::to_string(id) : text(Place{id, offset ? *offset : 0}));
  });
  return result;
}

/// Per launch of the body.
std::vector<std::vector<std::string>> words(const LoopStep& loop) {
  std::vector<std::vector<std::string>> result;
  for (const KernelStep& launch : loop.body) result.push_back(words(launch));
  const auto at = [&](LoopStep::Operand of) -> std::string& { return result[of.launch][of.operand]; };
  for (const auto& [of, delta] : loop.walks) at(of) += "+" + std::to_string(delta) + "*round";
  const size_t second = loop.trip > 1 ? loop.jumps.size() : 0;
  for (size_t i = 0; i < loop.jumps.size(); ++i)
    at(loop.jumps[i]) = "{" + text(loop.table[i]) + " " + text(loop.table[i + second]) + " .. " +
                        text(loop.table[loop.table.size() - loop.jumps.size() + i]) + "}";
  return result;
}

std::string text(const RepeatStep::Column& column, int64_t trip) {
  const auto word = [&](size_t i) {
    const RepeatStep::Filling& each = column.listed[i];
    return column.is_number ? std::to_string(each.id) : text(Place{each.id, each.offset});
  };
  if (column.delta != 0) return word(0) + "+" + std::to_string(column.delta) + "*round";
  const size_t size = column.listed.size();
  if (size > 8) return "{" + word(0) + " " + word(1) + " .. " + word(size - 1) + "}";
  const bool returns = static_cast<int64_t>(size) < trip;
  std::string result = "{";
  for (size_t i = 0; i < size; ++i)
    result += (i ? " " : "") + std::string(returns && i + column.again == size ? "(" : "") + word(i);
  return result + (returns ? ")}" : "}");
}

using Words = std::span<const std::string>;

std::string joined(Words words) {
  std::string result;
  for (const std::string& word : words) result += (result.empty() ? "" : " ") + word;
  return result;
}

std::string line(const Program& program, const KernelStep& step, Words operands) {
  std::string result = "kernel " + std::to_string(step.kernel) + " (" + joined(operands);
  result += ") sizes " + list(step.sizes) +
            (step.grid.blocks > 0
                 ? " grid " + std::to_string(step.grid.blocks) + " x " + std::to_string(step.grid.threads) +
                       (step.grid.shared_bytes > 0 ? " shared " + std::to_string(step.grid.shared_bytes) : "")
                 : " units " + std::to_string(step.units) + " grain " + std::to_string(step.grain));
  if (program.kernels[step.kernel].is_over_time()) result += " rounds " + std::to_string(step.sizes.back());
  if (step.block > 0) result += " block " + std::to_string(step.block);
  if (!step.scalars.empty()) {
    result += " scalars";
    for (const uint32_t scalar : step.scalars) result += " " + std::to_string(scalar);
  }
  const Traffic moved = traffic(program.kernels[step.kernel], step);
  return result + " reads " + bytes(moved.read) + " writes " + bytes(moved.written) + " operations " +
         std::to_string(moved.operations);
}

/// The lines of a step, of which each begins with `indent`; `words` are those of its holes.
struct StepText {
  const Program& program;
  Words words;
  std::string indent;

  std::string operator()(const KernelStep& step) const { return indent + line(program, step, words) + "\n"; }
  std::string operator()(const ParallelStep& step) const {
    return indent + "parallel\n" + launches(step.launches, words);
  }
  std::string operator()(const LoopStep& step) const {
    const auto places = plan::words(step);
    if (step.inside) return line(program, step.body[0], places[0]) + "\n";
    std::string result =
        "loop " + std::to_string(step.trip) + (step.team > 0 ? " team " + std::to_string(step.team) : "") + "\n";
    for (size_t i = 0; i < step.body.size(); ++i)
      result +=
          (step.team > 0 && step.waits[i] ? "    wait\n    " : "    ") + line(program, step.body[i], places[i]) + "\n";
    return result;
  }
  std::string operator()(const RepeatStep& step) const {
    std::vector<std::string> all;
    std::vector<size_t> ends;
    for (const RoundStep& each : step.body) {
      const auto add = [&](const auto& plain) {
        for (std::string& word : plan::words(plain)) all.push_back(std::move(word));
      };
      std::visit(add, each);
      ends.push_back(all.size());
    }
    for (const auto& [hole, column] : step.varying) all[hole] = text(step.columns[column], step.trip);
    std::string result = "loop " + std::to_string(step.trip) + "\n";
    size_t begin = 0;
    for (size_t i = 0; i < ends.size(); begin = ends[i++])
      result += std::visit(StepText{program, Words(all).subspan(begin, ends[i] - begin), "    "}, step.body[i]);
    return result;
  }
  std::string operator()(const ExternStep& step) const {
    return indent + "extern " + words[0] + " (" + listed(step.operands, 1) + ") -> " +
           listed(step.results, words.size() - named(step.results)) + "\n";
  }
  std::string operator()(const ContractStep& step) const {
    const size_t result_at = 1 + named(step.operands);
    std::string result = indent + "product " + std::string(ir::text(step.kind)) + " " + words[0] + " (" +
                         listed(step.operands, 1) + ") -> " + words[result_at];
    if (step.rows_per_tile > 0) result += " rows " + std::to_string(step.rows_per_tile);
    return result + "\n" + launches(step.epilogue, words.subspan(result_at + 1));
  }
  std::string operator()(const AliasStep&) const { return indent + "alias " + words[1] + " -> " + words[0] + "\n"; }
  std::string operator()(const HandStep& step) const {
    return indent + (step.keeps ? "share " : "hand ") + words[0] + " -> " + words[1] + "\n";
  }
  std::string operator()(const GuardStep& step) const {
    return indent + "guard " + words[0] + " (" + words[1] + ") sizes " + list(step.sizes) + "\n";
  }
  std::string operator()(const NumberStep& step) const {
    std::string operands;
    for (const Place& place : step.operands) operands += (operands.empty() ? "" : ", ") + text(place);
    return "number " + std::to_string(step.number) + " (" + operands + ") -> " + name(step.result) + "\n";
  }
  std::string operator()(const FreeStep& step) const {
    return indent + "free " + (step.slot == kNoSlot ? "arena" : words[0]) + "\n";
  }
  std::string operator()(const OwnStep&) const { return indent + "own " + words[0] + "\n"; }

 private:
  std::string launches(const std::vector<KernelStep>& list, Words words) const {
    std::string result;
    for (const KernelStep& launch : list) {
      result += indent + "    " + line(program, launch, words.first(launch.operands.size())) + "\n";
      words = words.subspan(launch.operands.size());
    }
    return result;
  }
  static size_t named(const std::vector<SlotId>& slots) {
    return slots.size() - static_cast<size_t>(std::ranges::count(slots, kNoSlot));
  }
  /// The slots of a list, whose words begin at `next`.
  std::string listed(const std::vector<SlotId>& slots, size_t next) const {
    std::string result;
    for (size_t i = 0; i < slots.size(); ++i)
      result += (i ? " " : "") + (slots[i] == kNoSlot ? name(kNoSlot) : words[next++]);
    return result;
  }
};

std::string text(const Program& program, const Step& step) {
  return std::visit(
      [&](const auto& each) {
        std::vector<std::string> all;
        if constexpr (!std::is_same_v<decltype(each), const LoopStep&>) all = words(each);
        return StepText{program, all, ""}(each);
      },
      step);
}

/// Values of the same fate in the same slot are those of the rounds of a loop, or of many layers: one line.
std::string verdicts(const Program& program) {
  constexpr size_t kFew = 4;
  using Fate = std::pair<SlotId, Why>;
  std::map<Fate, std::vector<ir::NodeId>> nodes;
  for (const Verdict& verdict : program.verdicts) nodes[{verdict.slot, verdict.why}].push_back(verdict.node);
  const auto value = [](ir::NodeId node) { return " %" + std::to_string(node); };
  std::string result;
  for (const Verdict& verdict : program.verdicts) {
    const std::vector<ir::NodeId>& all = nodes[{verdict.slot, verdict.why}];
    std::string names = value(verdict.node);
    if (all.size() > kFew) {
      if (verdict.node != all[0]) continue;
      names += value(all[1]) + " .." + value(all.back());
    }
    result += "value" + names + (verdict.slot == kNoSlot ? " " : " in " + name(verdict.slot) + " ") +
              std::string(text(verdict.why)) + "\n";
  }
  return result;
}

/// Points of the loops that a list of instructions stands in.
int64_t points(const KernelPlan& plan, const KernelStep& step, bool in_loop) {
  int64_t result = 1;
  for (size_t d = 0; d < plan.dims.size(); ++d)
    if (in_loop || plan.dims[d] == DimKind::Kept) result *= step.sizes[d];
  return result;
}

}  // namespace

Traffic traffic(const KernelPlan& plan, const KernelStep& step) {
  Traffic result;
  const size_t rank = plan.dims.size();
  auto touched = [&](uint64_t operand) {
    int64_t elements = 1;
    for (size_t d = 0; d < rank; ++d)
      if (plan.operands[operand].strides[d] != StrideClass::Zero) elements *= step.sizes[d];
    return elements * ir::size_of(plan.operands[operand].dtype);
  };
  std::vector<bool> read(plan.operands.size(), false);
  auto add = [&](const std::vector<uint32_t>& list, bool in_loop) {
    for (const uint32_t at : list) {
      const Instr& instr = plan.code[at];
      if (instr.code == Code::Compute || instr.code == Code::Reduce) result.operations += points(plan, step, in_loop);
      if (instr.code == Code::Store) result.written += touched(instr.imm);
      if (!is_load(instr) || read[instr.imm]) continue;
      const bool is_gather = instr.code == Code::Gather;  // as if each point read an element of its own
      result.read += is_gather ? points(plan, step, in_loop) * ir::size_of(instr.dtype) : touched(instr.imm);
      read[instr.imm] = true;
    }
  };
  for (const Phase& phase : plan.phases) {
    add(phase.elem, true);
    add(phase.row, false);
  }
  return result;
}

std::string text(const Program& program) {
  std::string result;
  for (SlotId i = 0; i < program.slots.size(); ++i) result += name(i) + ": " + line(program.slots[i]) + "\n";
  for (const Step& step : program.steps) result += text(program, step);
  result += "outputs " + names(program.outputs) + "\n";
  result += "arena " + std::to_string(program.arena_bytes) + " scratch " + std::to_string(program.scratch_bytes) + "\n";
  result += verdicts(program);
  for (size_t i = 0; i < program.kernels.size(); ++i)
    result += "\nkernel " + std::to_string(i) + " is " + name(program.kernels[i]) + ":\n" + text(program.kernels[i]);
  return legend(result) + result;
}

}  // namespace fastjit::plan
