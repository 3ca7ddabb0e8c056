// Which calls become steps, and which storages must stay real memory.
#include <algorithm>
#include <unordered_set>

#include "capture/build/build.h"
#include "capture/build/sizeless.h"
#include "capture/build/strided.h"
#include "capture/ops/schemas.h"
#include "capture/record/data_sizes.h"
#include "capture/record/effects.h"
#include "capture/record/library.h"
#include "support/work.h"

namespace fastjit::capture {
namespace {

class Selector {
 public:
  Selector(const Trace& trace, const std::vector<Use>& outputs, DataSizes data_sizes, const std::set<uint32_t>& whole)
      : trace_(trace),
        over_masks_(data_sizes == DataSizes::Masked),
        finds_(data_sizes == DataSizes::Found),
        whole_(whole),
        known_(trace.tensors.size()),
        read_by_(known_.size(), kNone) {
    for (const Source& root : trace.roots) {
      known_[root.before.tensor] = true;
      if (!roots_.emplace(root.before.storage, root.before.tensor).second) counted_.insert(root.before.storage);
      if (!root.constant) before_.insert(root.before.storage);
    }
    std::map<uint32_t, uint32_t> leaves;  // storage -> a tensor of the result
    for (const Use& use : outputs) {
      const auto shared = trace.array_memory.find(use.storage);
      if (shared != trace.array_memory.end() && !shared->second)
        unsound("its result shares memory with an array of numpy that was there before");
      const auto root = roots_.find(use.storage);
      const bool is_beside_root = root != roots_.end() && root->second != use.tensor;
      if (leaves.emplace(use.storage, use.tensor).first->second != use.tensor || is_beside_root)
        counted_.insert(use.storage);
    }
    goes_back_ = std::ranges::any_of(trace.events, is_backward);
    goes_back_sizeless_ =
        !over_masks_ && goes_back_ && !trace.goes_back_in_python && goes_back_without_sizes(trace, outputs);
    for (uint32_t i = 0; i < trace.events.size(); i = std::max(trace.events[i].end, i + 1))
      for (uint32_t child = i; is_backward(trace.events[i]) && child < trace.events[i].end; ++child)
        for (const CallValue& item : trace.events[child].args)
          for (const Use& use : item.uses)
            if (use.tensor != kNone) goes_back_with_.insert(use.tensor);
  }
  std::vector<Action> steps;

  void select(uint32_t index) {
    const Event& event = trace_.events[index];
    support::count_work();
    if (event.name == kContentsRead) return add_contents(index);
    if (event.name == kTest) return add_value(index);
    if (event.name == kFew && over_masks_) return;
    const bool is_of_numbers =
        event.name == kSizeRead && trace_.sizes_as_numbers.contains(event.args[0].uses[0].tensor);
    if (finds_ && is_of_numbers) return;
    if (is_size(event)) {
      const bool is_of_mask = event.name == kSlice && masked_.contains(event.args[0].uses[0].tensor);
      if (over_masks_ && !is_of_mask) unsound("a size that depends on data is read at " + trace_.lines[event.line]);
      return add_value(index);
    }
    if (below_ > 0) refuse_below(event);
    if (is_backward(event) || is_layered(trace_, event)) return select_below(index);
    if (!event.op) return select_nested(index);
    if (hides_what_goes_back(index)) return select_parts(index);
    if (makes_lazy(event) && covered(index)) return select_nested(index);
    const Effect effect = event.facts.effect;
    if (effect == Effect::Metadata || shows_contents(event)) return;
    const bool is_data_sized = !over_masks_ && has_data_sizes(index);
    if (is_data_sized && goes_back_through(index) && !goes_back_sizeless_) depends_on_data(event);
    if (over_masks_ && is_masked(event) && gives_list(event)) depends_on_data(event);
    refuse_exits(event, index, is_data_sized);
    if (event.facts.reads()) return add_value(index);
    if (event.name == "aten::detach_") return;
    if (event.op->hasTag(at::Tag::inplace_view)) return reshape(index);
    // On the CPU these are loops over operators, and where they write, it is in those; a device may have one kernel.
    const bool is_loop = event.facts.is(OpFlag::Foreach) && (trace_.device.is_cpu() || writes_in_parts(index));
    if (is_loop && covered(index)) return select_nested(index);
    Action step;
    step.event = index;
    if ((step.data_sized = is_data_sized) || whole_.contains(index)) return add(std::move(step), event);
    const bool is_by_mask = event.name == "aten::index.Tensor" && is_masked(event);
    step.row = is_by_mask ? nullptr : find_lowering(event.name);
    if (!step.row) {
      const std::string functional = functional_name(event.name);
      if (!functional.empty()) step.row = find_lowering(functional);
      step.rebinds = is_rebind(event, functional, step.row) || gives_to_out(event, step) || draws_anew(event);
    }
    if (renews_statistics(event)) {
      step.rebinds = true;
      step.target = static_cast<uint32_t>(written_arguments(event)[0]);
    }
    const bool reaches_out = event.facts.is(OpFlag::ReachesStorage) &&
                             !lies_in_its_tensor(event, roots_.contains(event.args[0].uses[0].storage));
    if (step.row && (reaches_out || !has_known_schema(*event.op))) {
      step.row = nullptr;
      step.rebinds = false;
    }
    step.total = masked_total_behind(event, step.row);
    if (!step.row || step.row->level == Level::Decompose) refuse_masked_sizes(event);
    if (step.row && step.row->level == Level::Decompose) {
      if (covered(index)) return select_nested(index);
      step.row = nullptr;
    }
    select_kept(index);
    add(std::move(step), event);
  }

 private:
  const Trace& trace_;
  const bool over_masks_, finds_;  // see DataSizes
  const std::set<uint32_t>& whole_;
  std::vector<bool> known_;                       // tensors
  std::vector<uint32_t> read_by_;                 // the event that read the tensor last
  std::unordered_map<int64_t, uint32_t> makers_;  // nodes of autograd's -> the events that made them
  std::set<uint32_t> masked_;                     // tensors made of x[m], whose sizes depend on data
  std::unordered_map<uint32_t, uint32_t> roots_;  // storage -> a tensor that was there before
  std::unordered_set<uint32_t> counted_;          // storages that several results or arguments lie in
  std::unordered_set<uint32_t> before_;           // storages of tensors that were there before
  uint32_t contents_ = kNone;                     // the tensor that tolist() read last
  size_t values_ = 0;                             // that were read out of tensors
  int below_ = 0;                                 // how many transforms and nodes of graphs lie above the event
  int transforms_ = 0;                            // of them
  int inside_parts_ = 0;                          // how many composites, of which only the parts are steps
  std::unordered_set<uint32_t> blank_;            // storages, see follow_blank
  std::unordered_set<uint32_t> goes_back_with_;   // tensors that the way back from the results reads
  bool goes_back_ = false;                        // there is one
  bool goes_back_sizeless_ = false;               // it is given no sizes that depend on data

  // A composite of operators that autograd sees, and it keeps what one of them gives only to the next. Of one that
  // gives a number beside tensors (which library computed them) only its parts are steps.
  bool hides_what_goes_back(uint32_t index) const {
    const Event& event = trace_.events[index];
    if (goes_back_with_.empty() || below_ > 0 || !event.facts.is(OpFlag::Composite) || event.facts.reads())
      return false;
    const auto is_number = [](const CallValue& item) { return item.kind == CallValue::Kind::Constant; };
    if (event.end > index + 1 && std::ranges::any_of(event.results, is_number)) return true;
    std::unordered_set<uint32_t> shown;
    for (const auto* items : {&event.args, &event.results})
      for (const CallValue& item : *items)
        for (const Use& use : item.uses) shown.insert(use.tensor);
    const auto is_hidden = [&](const Use& use) {
      return goes_back_with_.contains(use.tensor) && !shown.contains(use.tensor);
    };
    support::count_work(event.end - index);
    for (uint32_t child = index + 1; child < event.end; ++child)
      if (std::ranges::any_of(flat_results(trace_.events[child]), is_hidden)) return true;
    return false;
  }

  // What its C++ code does beside them must not hang on data, which another call may have other: the lengths that
  // ctc_loss() takes for numbers, or has a tensor made of.
  void select_parts(uint32_t index) {
    refuse_unseen_reads(index);
    ++inside_parts_;
    select_nested(index);
    --inside_parts_;
  }

  // Whole numbers that no part of the composite was given, or that one only copied, may have been looked at.
  void refuse_unseen_reads(uint32_t index) const {
    const Event& event = trace_.events[index];
    std::unordered_set<uint32_t> unread;
    const auto add_numbers = [&](const std::vector<CallValue>& items) {
      for (const CallValue& item : items)
        for (const Use& use : item.uses)
          if (use.tensor != kNone && !use.number && c10::isIntegralType(use.meta->dtype, true) &&
              c10::multiply_integers(use.meta->sizes) > 0)
            unread.insert(use.tensor);
    };
    const auto drop = [&](const std::vector<CallValue>& items) {
      for (const CallValue& item : items)
        for (const Use& use : item.uses) unread.erase(use.tensor);
    };
    add_numbers(event.args);
    for (uint32_t child = index + 1; child < event.end; child = trace_.events[child].end) {
      drop(trace_.events[child].args);
      const std::string_view name = base_name(trace_.events[child].name);
      const bool only_copies =
          name == "aten::to" || name == "aten::_to_copy" || name == "aten::contiguous" || name == "aten::clone";
      if (only_copies) add_numbers(trace_.events[child].results);
    }
    drop(event.results);
    if (!unread.empty()) unsound("whole numbers of a tensor are read unseen by " + where(trace_, event));
  }

  // What an operator is about to write over autograd keeps as a copy.
  void select_kept(uint32_t index) {
    if (goes_back_with_.empty() || written_arguments(trace_.events[index]).empty()) return;
    for (uint32_t child = index + 1; child < trace_.events[index].end; child = trace_.events[child].end)
      if (trace_.events[child].name == "aten::clone" &&
          goes_back_with_.contains(flat_results(trace_.events[child])[0].tensor))
        select(child);
  }

  // C++ code of torch.func or of autograd runs operators, and gets to see no data but through them.
  void select_below(uint32_t index) {
    const bool is_transform = !is_backward(trace_.events[index]);
    refuse_below(trace_.events[index]);
    if (trace_.events[index].facts.is(OpFlag::Composite)) refuse_unseen_reads(index);
    ++below_;
    transforms_ += is_transform;
    select_nested(index);
    transforms_ -= is_transform;
    --below_;
  }

  // Operators and formulas of torch's ask for it before they look at elements. Python asks as well, to show memory to
  // others.
  bool is_copy_of_lazy(const Event& event) const {
    const bool in_operator = event.parent != kNone && trace_.events[event.parent].op;
    const bool in_formula = below_ > 0 && transforms_ == 0 && !trace_.goes_back_in_python;
    return resolves_lazy(event) && (in_operator || in_formula);
  }

  void refuse_below(const Event& event) const {
    if (event.op && !event.finished) unsound("an operator raised an exception: " + where(trace_, event));
    // A formula of autograd's that looks at values of the call is for these.
    const bool is_guarded = event.facts.effect == Effect::Read && transforms_ == 0 && !trace_.goes_back_in_python;
    if (is_copy_of_lazy(event)) return;
    if (event.facts.effect != Effect::None && event.facts.effect != Effect::Metadata && !is_guarded)
      unsound("a transform or autograd reads a value: " + where(trace_, event));
    // Autograd does with masked elements what was done with them before.
    if (over_masks_ && transforms_ == 0 && !trace_.goes_back_in_python) return;
    if (transforms_ == 0 && goes_back_sizeless_) return;
    const auto is_sized = [&](const Use& use) { return use.tensor != kNone && trace_.made_dims_of(use.tensor); };
    for (const CallValue& item : event.args)
      if (std::ranges::any_of(item.uses, is_sized)) depends_on_data(event);
    if (makes_data_sizes(event)) depends_on_data(event);
  }

  // Memory that an operator below a transform or in a composite only allocates, until another one writes to it.
  void follow_blank(const Event& event) {
    const std::vector<size_t> written = written_arguments(event);
    for (size_t i = 0; i < event.args.size(); ++i)
      for (const Use& use : event.args[i].uses) {
        if (use.tensor == kNone || !blank_.contains(use.storage)) continue;
        if (std::ranges::find(written, i) == written.end())
          unsound("memory that no operator has written is read by " + where(trace_, event));
        blank_.erase(use.storage);
      }
    if (below_ + inside_parts_ > 0 && event.facts.is(OpFlag::Allocates))
      for (const Use& use : flat_results(event)) blank_.insert(use.storage);
  }

  void select_nested(uint32_t index) {
    for (uint32_t child = index + 1; child < trace_.events[index].end; child = trace_.events[child].end) select(child);
  }

  // C++ code of torch's gives a tensor that it has made its final shape, before anyone else sees it.
  void reshape(uint32_t index) {
    const Event& event = trace_.events[index];
    Action step;
    step.event = index;
    const std::string functional = functional_name(event.name);
    step.row = find_lowering(functional);
    if (!step.row) step.row = find_lowering(functional + ".int");  // of transpose
    step.reshapes = true;
    const bool is_own =
        event.parent != kNone && event.args[0].uses.size() == 1 && !before_.contains(event.args[0].uses[0].storage);
    if (!is_own || !step.row || !over_masks_ || transforms_ > 0 || event.facts.is(OpFlag::ReachesStorage))
      unsound("shape of a tensor was changed in place: " + where(trace_, event));
    read(step, event);
    steps.push_back(std::move(step));
  }

  // As long as data say; that of nonzero is as long as dims are many, that of others as what they are given.
  static bool gives_list(const Event& event) {
    const auto is_list = [](const CallValue& item) { return item.kind == CallValue::Kind::TensorList; };
    return std::ranges::any_of(event.results, is_list) && !event.facts.is(OpFlag::FirstDim) && !gives_as_many(event);
  }

  bool has_data_sizes(uint32_t index) const {
    const Event& event = trace_.events[index];
    const auto has = [&](const std::vector<CallValue>& items) {
      return std::ranges::any_of(items, [&](const CallValue& item) {
        return std::ranges::any_of(
            item.uses, [&](const Use& use) { return use.tensor != kNone && trace_.dims_of(use.tensor, index); });
      });
    };
    const bool out = has(event.results);
    const bool makes = makes_data_sizes(event), in = has(event.args);
    if ((makes || in) && gives_list(event)) depends_on_data(event);
    return makes || (finds_ ? out && !in : out || in);
  }

  // Autograd keeps the sizes of what the operator gives, and its formulas give them to others as ints.
  bool goes_back_through(uint32_t index) const {
    const Event& event = trace_.events[index];
    if (!goes_back_ || !event.grad || !takes_grad(event)) return false;
    return std::ranges::any_of(flat_results(event), [&](const Use& use) {
      return use.tensor != kNone && trace_.made_dims_of(use.tensor) && at::isFloatingType(use.meta->dtype);
    });
  }

  // What tolist() runs after it was told of.
  bool shows_contents(const Event& event) const {
    return contents_ != kNone && resolves_lazy(event) && event.args[0].uses[0].tensor == contents_;
  }

  static bool resolves_lazy(const Event& event) {
    return event.name == "aten::resolve_conj" || event.name == "aten::resolve_neg";
  }

  void add_contents(uint32_t index) {
    const Event& event = trace_.events[index];
    const Use& use = event.args[0].uses[0];
    if (const std::string& why = trace_.tensors[use.tensor].unusual; !why.empty())
      unsound(describe(trace_, use.tensor, event) + " " + why);
    const int64_t count = c10::multiply_integers(use.meta->sizes);
    if (static_cast<size_t>(count) != event.values.size())
      unsound("value of a tensor left tensor land: " + std::to_string(count) + " elements of type " +
              c10::toString(use.meta->dtype) + " by " + where(trace_, event));
    contents_ = use.tensor;
    if (count > 0) add_value(index);
  }

  void add_value(uint32_t index) {
    const Event& event = trace_.events[index];
    if (event.name != kTest && event.args[0].uses[0].number) return;  // known for good
    const bool may_differ = !event.of_constants && !has_few_answers(event);
    if (may_differ && !trace_.value_scalars.contains(index) && ++values_ > trace_.max_values)
      unsound("value limit (" + std::to_string(trace_.max_values) + ") reached: " + label_of(trace_, event));
    Action step;
    step.event = index;
    step.reads_value = true;
    read(step, event);
    steps.push_back(std::move(step));
  }

  void refuse_exits(const Event& event, uint32_t index, bool is_data_sized) const {
    const Effect effect = event.facts.effect;
    if (!event.finished) unsound("an operator raised an exception: " + where(trace_, event));
    const bool guardable = event.facts.reads();
    if (effect == Effect::Value && !is_copy_of_lazy(event))
      unsound("value of a tensor left tensor land: " + where(trace_, event));
    if (effect == Effect::Replaces) unsound("memory of a tensor was replaced: " + where(trace_, event));
    const bool makes_sizes = effect == Effect::DataSized || (!guardable && event.facts.is(OpFlag::SizedByData));
    if (!is_data_sized && makes_sizes && !is_masked_load(event)) depends_on_data(event);
    for (const CallValue& item : event.results)
      if (item.kind == CallValue::Kind::Constant && !is_known(event, item) &&
          (!guardable || item.constant.isComplexDouble()))
        unsound("value of a tensor left tensor land: " + where(trace_, event));
    if (!is_data_sized && made_data_sized(index)) depends_on_data(event);
    if (!is_data_sized && event.name == "aten::index.Tensor" && !is_masked_load(event))
      for (const Use& index : event.args[1].uses)
        if (index.meta->dtype == at::kBool || index.meta->dtype == at::kByte) depends_on_data(event);
    if (event.facts.is(OpFlag::Lifts) && !is_constant(event.args[0].uses[0]))
      unsound("constant tensor made at " + trace_.lines[event.line]);
    for (const auto* items : {&event.args, &event.results})
      for (const CallValue& item : *items)
        for (const Use& use : item.uses) {
          if (use.tensor == kNone) continue;
          const TensorRecord& record = trace_.tensors[use.tensor];
          if (!record.unusual.empty()) unsound(describe(trace_, use.tensor, event) + " " + record.unusual);
          if (record.is_nested && !is_data_sized) depends_on_data(event);
        }
    refuse_lazy(event);
  }

  // Memory of its own, and a view of that, of which it gives the view alone.
  bool makes_lazy(const Event& event) const {
    const Use* of = first_tensor(event);
    return std::ranges::any_of(flat_results(event), [&](const Use& use) {
      return is_lazy(trace_, use) && !(of && of->storage == use.storage);
    });
  }

  // A lazy conjugate or negation is what torch makes of other memory at each use again: no value is read out of it.
  void refuse_lazy(const Event& event) const {
    const bool may_read = trace_.device.is_cpu() && !event.facts.reads(), may_give = !makes_lazy(event);
    const auto refuse = [&](const CallValue& item, bool may) {
      for (const Use& use : item.uses)
        if (is_lazy(trace_, use) && !may) unsound(describe(trace_, use.tensor, event) + " " + kLazy);
    };
    for (const CallValue& item : event.args) refuse(item, may_read);
    for (const CallValue& item : event.results) refuse(item, may_give);
  }

  // Programs on a device are for one size.
  bool is_known(const Event& event, const CallValue& result) const {
    return event.facts.is(OpFlag::GivesSizes) && result.constant.isInt() && trace_.device.is_cuda();
  }

  bool is_constant(const Use& use) const { return (use.number || trace_.root(use.tensor)) && to_ir(use.meta->dtype); }

  [[noreturn]] void depends_on_data(const Event& event) const {
    const std::string name(base_name(event.name));
    unsound("result of " + name + " depends on data at " + trace_.lines[event.line]);
  }

  // A composite hands out what a nested data-sized operator made.
  bool made_data_sized(uint32_t index) const {
    std::unordered_set<uint32_t> made;  // storages
    const auto each = [](const Event& event, auto body) {
      for (const CallValue& item : event.results)
        for (const Use& use : item.uses)
          if (use.tensor != kNone) body(use.storage);
    };
    support::count_work(trace_.events[index].end - index);
    for (uint32_t child = index + 1; child < trace_.events[index].end; ++child)
      if (const Event& nested = trace_.events[child]; nested.facts.is(OpFlag::SizedByData))
        each(nested, [&](uint32_t storage) { made.insert(storage); });
    bool handed_out = false;
    if (!made.empty()) each(trace_.events[index], [&](uint32_t storage) { handed_out |= made.contains(storage); });
    return handed_out;
  }

  bool is_masked(const Event& event) const {
    return is_masked_load(event) || std::ranges::any_of(event.args, [&](const CallValue& item) {
             return std::ranges::any_of(item.uses, [&](const Use& use) { return masked_.contains(use.tensor); });
           });
  }

  // The sum, mean or loss of masked elements whose formula on the way back the event is a part of, where it spreads a
  // number over them, or divides by their count. Autograd numbers its nodes, and an operator is told what the next one
  // will be. Of other formulas nobody knows where they use the count.
  uint32_t masked_total_behind(const Event& event, const LowerRow* row) {
    if (!over_masks_ || masked_.empty() || below_ == 0 || transforms_ > 0 || trace_.goes_back_in_python) return kNone;
    const uint32_t formula = formula_around(trace_, event);
    if (formula == kNone || trace_.events[formula].node < 0) return kNone;
    if (makers_.empty()) find_makers();
    const auto maker = makers_.find(trace_.events[formula].node);
    if (maker == makers_.end()) return kNone;
    const Event& total = trace_.events[maker->second];
    if (!is_total(total) || !masked_.contains(total.args[0].uses[0].tensor)) return kNone;
    const std::string functional = functional_name(event.name);
    const std::string_view base = base_name(functional.empty() ? event.name : functional);
    const std::string_view name = formula_of_total(total);
    const bool is_known = !name.empty() && trace_.events[formula].name.ends_with(name);
    const bool adds = base == "aten::add";  // what came to one node from several
    if (!is_known && !adds && !(row && reduction_at(event))) depends_on_data(event);
    return is_known && (base == "aten::expand" || base == "aten::div") ? maker->second : kNone;
  }

  // Of the operators that were told of one node, the last made it: the others made none.
  void find_makers() {
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (!event.op || event.node < 0) continue;
      const auto [maker, is_first] = makers_.emplace(event.node, i);
      const Event& first = trace_.events[maker->second];
      const bool is_nested = i < first.end && is_total(first) && !formula_of_total(first).empty();
      if (!is_first && !is_nested) maker->second = i;
    }
  }

  // A composite may give back an argument without elements (dropout), or was told of sizes (sum_to_size).
  void refuse_masked_sizes(const Event& event) const {
    if (!is_masked(event) || is_masked_put(event) || !written_arguments(event).empty()) return;
    // What its C++ makes of none or of one says little of more.
    for (const CallValue& item : event.args) {
      if (item.constant.isIntList()) depends_on_data(event);
      for (const Use& use : item.uses)
        if (masked_.contains(use.tensor) && c10::multiply_integers(use.meta->sizes) <= 1) depends_on_data(event);
    }
    for (const Use& use : flat_results(event))
      if (masked_.contains(use.tensor) && c10::multiply_integers(use.meta->sizes) == 0) depends_on_data(event);
  }

  static bool is_rebind(const Event& event, const std::string& functional, const LowerRow* row) {
    if (functional.empty() || event.args.empty() || event.args[0].kind != CallValue::Kind::Tensor) return false;
    if (written_arguments(event) != std::vector<size_t>{0} || event.results.size() != 1) return false;
    if (!can_have_new_value(event, 0)) return false;
    const std::string_view base = base_name(event.name);
    if (base == "aten::copy_" || base == "aten::zero_" || is_masked_store(event)) return true;
    return row && row->level == Level::Lowered;
  }

  // Whether it fills what the call itself has made with random numbers, as dropout does.
  bool draws_anew(const Event& event) const {
    return event.name == kDraws && event.args[2].constant.isNone() && can_have_new_value(event, 0) &&
           !roots_.contains(event.args[0].uses[0].storage);
  }

  // Whether its row computes the new values of statistics too, behind its results.
  static bool renews_statistics(const Event& event) {
    if (event.name != "aten::native_batch_norm") return false;
    const std::vector<size_t> statistics = written_arguments(event);
    return statistics.size() == 2 && std::ranges::all_of(statistics, [&](size_t i) {
             const Use& use = event.args[i].uses[0];
             return use.tensor != kNone && to_ir(use.meta->dtype) && !may_overlap_itself(use.meta);
           });
  }

  // Elements that share memory are written in torch's order; a copy into them may raise.
  static bool can_have_new_value(const Event& event, size_t target) {
    const Use& use = event.args[target].uses[0];
    return flat_results(event)[0].tensor == use.tensor && to_ir(use.meta->dtype) && !may_overlap_itself(use.meta);
  }

  // Whether it writes what a row computes of its other arguments to the last one, which has the size for it already.
  static bool gives_to_out(const Event& event, Action& step) {
    const size_t out = event.args.size() - 1;
    if (event.args.size() < 2 || event.args[out].kind != CallValue::Kind::Tensor || event.results.size() != 1 ||
        written_arguments(event) != std::vector<size_t>{out} || !can_have_new_value(event, out) ||
        event.args[out].uses[0].meta->sizes != flat_results(event)[0].meta->sizes)
      return false;
    for (const std::string& form : forms_without_out(event.name)) {
      const LowerRow* row = find_lowering(form);
      if (!row || row->level != Level::Lowered) continue;
      step.row = row;
      step.target = static_cast<uint32_t>(out);
      return true;
    }
    return false;
  }

  // Everything that comes out of the composite, and goes into its parts, is seen: it may be entered. Memory that a part
  // only allocates is seen when another part has written it; kernels that the composite calls itself show no event.
  bool covered(uint32_t index) const {
    const Event& event = trace_.events[index];
    std::set<uint32_t> seen, blank;  // tensors; storages
    auto add_all = [&seen](const std::vector<CallValue>& items) {
      for (const CallValue& item : items)
        for (const Use& use : item.uses) seen.insert(use.tensor);
    };
    auto all_seen = [&](const std::vector<CallValue>& items) {
      for (const CallValue& item : items)
        for (const Use& use : item.uses)
          if (use.tensor != kNone && !use.number && (!seen.contains(use.tensor) || blank.contains(use.storage)))
            return false;
      return true;
    };
    add_all(event.args);
    for (uint32_t child = index + 1; child < event.end; child = trace_.events[child].end) {
      support::count_work();
      if (!trace_.events[child].op) return false;
      for (size_t i : written_arguments(trace_.events[child]))
        for (const Use& use : trace_.events[child].args[i].uses) blank.erase(use.storage);
      if (!all_seen(trace_.events[child].args)) return false;
      if (trace_.events[child].facts.is(OpFlag::Allocates))
        for (const Use& use : flat_results(trace_.events[child])) blank.insert(use.storage);
      if (trace_.events[child].op->hasTag(at::Tag::inplace_view)) return false;  // matmul's squeeze_ stays inside
      for (const CallValue& item : trace_.events[child].results)
        if (item.kind == CallValue::Kind::Constant) return false;  // numbers stay inside the composite
      add_all(trace_.events[child].results);
    }
    return all_seen(event.results);
  }

  bool writes_in_parts(uint32_t index) const {
    std::unordered_set<uint32_t> written;
    const auto each = [](const Event& event, auto body) {
      for (const size_t i : written_arguments(event))
        for (const Use& use : event.args[i].uses) body(use.tensor);
    };
    for (uint32_t child = index + 1; child < trace_.events[index].end; child = trace_.events[child].end)
      each(trace_.events[child], [&](uint32_t tensor) { written.insert(tensor); });
    bool all = trace_.events[index].end > index + 1;
    each(trace_.events[index], [&](uint32_t tensor) { all &= written.contains(tensor); });
    return all;
  }

  void read(Action& step, const Event& event) {
    for (const CallValue& item : event.args)
      for (const Use& use : item.uses) {
        if (use.tensor == kNone) continue;
        if (!use.number && !known_[use.tensor])
          unsound("a tensor of unknown origin was used by " + where(trace_, event));
        step.reads.push_back(use.tensor);
        read_by_[use.tensor] = step.event;
      }
  }

  // What Python or a constant of the program has of an array is what it held when the call began. A tensor that was
  // there before, of which each call may have another, may share its memory.
  void refuse_array_write(const Use& use, const Event& event) const {
    if (trace_.array_memory.contains(use.storage))
      unsound("the memory of an array of numpy is written by " + where(trace_, event));
    if (trace_.reads_arrays && before_.contains(use.storage))
      unsound("an array of numpy is read, and memory that it may share is written by " + where(trace_, event));
  }

  // Whether someone sees later which of the two counters of a tensor and its .data a write has moved: another result or
  // argument in its memory, or autograd, which keeps the tensor.
  bool is_counted_elsewhere(uint32_t storage) const {
    const bool keeps = trace_.derivative && !trace_.derivative->is_over;
    return counted_.contains(storage) || (keeps && roots_.contains(storage));
  }

  void add(Action step, const Event& event) {
    if (below_ + inside_parts_ > 0 || !blank_.empty()) follow_blank(event);
    read(step, event);
    for (size_t i : written_arguments(event))
      for (const Use& use : event.args[i].uses)
        if (use.tensor != kNone) {
          refuse_array_write(use, event);
          if (trace_.data_read.contains(use.storage) && is_counted_elsewhere(use.storage))
            written_past_count(trace_, event);
          step.writes.push_back(use.tensor);
        }
    for (const Use& use : flat_results(event)) {
      if (use.tensor == kNone || read_by_[use.tensor] == step.event || known_[use.tensor]) continue;
      known_[use.tensor] = true;
      step.results.push_back(use.tensor);
    }
    const bool has_all =  // its sizes are told
        is_masked_put(event) || event.name == "aten::new_zeros" || event.name == "aten::masked_select_backward" ||
        is_total(event);
    if (over_masks_ && !has_all && (is_masked(event) || step.total != kNone))
      masked_.insert(step.results.begin(), step.results.end());
    if (event.facts.is(OpFlag::Lifts)) {
      step.results = {flat_results(event)[0].tensor};
      step.reads.clear();
      known_[step.results[0]] = true;
    }
    // A call that gives back its argument and writes nothing is no step.
    if (step.results.empty() && step.writes.empty() && !event.results.empty() && !event.args.empty() &&
        !event.facts.is(OpFlag::Foreign))
      return;
    steps.push_back(std::move(step));
  }
};

// Factories and casts that nothing uses (the start of torch.tensor(2.0)) are left out; anything else might raise or
// draw.
void drop_unused(const Trace& trace, std::vector<Action>& steps, const std::vector<Use>& outputs) {
  std::set<uint32_t> used;
  for (const Use& use : outputs) used.insert(use.tensor);
  std::vector<Action> kept;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const Event& event = trace.events[step->event];
    const bool needed = std::ranges::any_of(step->results, [&](uint32_t t) { return used.contains(t); });
    if (event.facts.is(OpFlag::Unneeded) && step->writes.empty() && !needed) continue;
    for (uint32_t made : step->results) used.erase(made);
    used.insert(step->reads.begin(), step->reads.end());
    kept.push_back(std::move(*step));
  }
  std::ranges::reverse(kept);
  steps = std::move(kept);
}

void index_tensors(const Trace& trace, Analysis& analysis, const std::vector<Use>& outputs) {
  const size_t count = trace.tensors.size();
  analysis.created.assign(count, Analysis::kUnknown);
  analysis.last_use.assign(count, -1);
  analysis.storage.assign(count, kNone);
  analysis.first.assign(count, {});
  analysis.lifted.assign(count, std::nullopt);
  auto meet = [&](const Use& use, int64_t step) {
    support::count_work();
    if (use.tensor == kNone) return;
    analysis.last_use[use.tensor] = step;
    if (analysis.storage[use.tensor] != kNone) return;
    analysis.storage[use.tensor] = use.storage;
    analysis.first[use.tensor] = use;
  };
  for (const Source& root : trace.roots) {
    meet(root.before, -1);
    analysis.created[root.before.tensor] = -1;
  }
  for (size_t i = 0; i < analysis.steps.size(); ++i) {
    const Event& event = trace.events[analysis.steps[i].event];
    for (const auto* items : {&event.args, &event.results})
      for (const CallValue& item : *items)
        for (const Use& use : item.uses) meet(use, static_cast<int64_t>(i));
    for (uint32_t tensor : analysis.steps[i].results) analysis.created[tensor] = static_cast<int64_t>(i);
    if (event.facts.is(OpFlag::Lifts) && event.args[0].uses[0].meta->sizes.empty())
      analysis.lifted[analysis.steps[i].results[0]] = event.args[0].uses[0].number;
  }
  analysis.leaves.assign(trace.storages.size(), 0);
  for (const Use& use : outputs) {
    meet(use, static_cast<int64_t>(analysis.steps.size()));
    if (use.storage != kNone) analysis.leaves[use.storage] = 1;
  }
}

// What is written could be read as it is in memory, or as its conjugate, before or after.
void refuse_written_lazies(const Trace& trace, const Analysis& analysis) {
  std::unordered_map<uint32_t, uint32_t> lazy;  // storage -> tensor
  for (uint32_t tensor = 0; tensor < trace.tensors.size(); ++tensor)
    if (trace.tensors[tensor].lazy) lazy.emplace(analysis.storage[tensor], tensor);
  if (lazy.empty()) return;
  for (const Action& step : analysis.steps)
    for (const uint32_t written : step.writes)
      if (const auto found = lazy.find(analysis.storage[written]); found != lazy.end())
        unsound(describe(trace, found->second, trace.events[step.event]) + " " + kLazy);
}

}  // namespace

bool is_lazy(const Trace& trace, const Use& use) { return use.tensor != kNone && trace.tensors[use.tensor].lazy; }

std::string describe(const Trace& trace, uint32_t tensor, const Event& event) {
  const Source* root = trace.root(tensor);
  if (!root) return "a tensor of " + where(trace, event);
  return (root->argument == kNone ? "parameter '" : "argument '") + root->name + "'";
}

void unsound(std::string why) { throw Unsound{std::move(why)}; }

void written_past_count(const Trace& trace, const Event& event) {
  unsound("a tensor of which Tensor.data was read is written by " + where(trace, event));
}

Analysis select_steps(const Trace& trace, const std::vector<Use>& outputs, DataSizes data_sizes,
                      const std::set<uint32_t>& whole) {
  for (const Event& event : trace.events)
    if (event.op && has_library_kernel(event.name, trace.device.is_cuda()))
      unsound("Python code has registered a kernel for " + where(trace, event));
  Selector selector(trace, outputs, data_sizes, whole);
  for (uint32_t i = 0; i < trace.events.size(); i = trace.events[i].end) selector.select(i);
  Analysis analysis;
  analysis.data_sizes = data_sizes;
  analysis.steps = std::move(selector.steps);
  drop_unused(trace, analysis.steps, outputs);
  index_tensors(trace, analysis, outputs);
  refuse_written_lazies(trace, analysis);
  mark_exact(trace, analysis);
  return analysis;
}

}  // namespace fastjit::capture
