#include "capture/record/loops_of_layers.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace fastjit::capture {
namespace {

bool is_recurrent_layer(std::string_view name) {
  return name == "aten::gru.input" || name == "aten::lstm.input" || name == "aten::rnn_tanh.input" ||
         name == "aten::rnn_relu.input";
}

/// Whether anything but the loop's rounds is given what it walks.
bool is_walked_elsewhere(const Trace& trace, const PythonLoop& loop) {
  std::unordered_set<uint32_t> parts;
  for (const Use& part : flat_results(trace.events[loop.parts[0]])) parts.insert(part.tensor);
  const auto is_part = [&](const Use& use) { return parts.contains(use.tensor); };
  for (uint32_t i = loop.parts[0] + 1; i < trace.events[loop.layer].end; ++i)
    if (!loop.has_event(i) && i >= trace.events[loop.parts[0]].end)
      for (const CallValue& item : trace.events[i].args)
        if (std::ranges::any_of(item.uses, is_part)) return true;
  return false;
}

/// Whether the first round is given the last part of what the loop walks, as the way from the end is.
bool begins_at_end(const Trace& trace, const PythonLoop& loop) {
  const uint32_t last = flat_results(trace.events[loop.parts[0]]).back().tensor;
  return std::any_of(trace.events.begin() + loop.begins[0].event, trace.events.begin() + loop.begins[1].event,
                     [&](const Event& event) { return is_argument(event, last); });
}

/// The steps in time stand between what takes the layer's input apart and what puts their outputs together, one after
/// the other.
void find_loops_of(Trace& trace, uint32_t layer, const std::vector<uint32_t>& met) {
  const size_t loops = trace.loops.size(), lists = trace.rounds_uses.size();
  std::vector<uint32_t> steps;
  uint32_t parts = kNone;
  for (uint32_t i = layer + 1; i < trace.events[layer].end; i = std::max(trace.events[i].end, i + 1)) {
    const Event& event = trace.events[i];
    if (event.name == "aten::unbind.int") {
      parts = i;
      steps.clear();
    } else if (event.name != "aten::stack") {
      steps.push_back(i);
    } else if (parts != kNone) {
      const size_t rounds = flat_results(trace.events[parts]).size(), each = rounds > 0 ? steps.size() / rounds : 0;
      PythonLoop loop{.range = {}, .alike_from = 0, .line = event.line, .parts = {parts}, .layer = layer};
      const auto begin_at = [&](uint32_t at) { loop.begins.push_back({at, kNone, met[at], trace.size_tests.size()}); };
      for (size_t round = 0; each > 0 && round < rounds; ++round) begin_at(steps[round * each]);
      begin_at(i);
      parts = kNone;
      if (each == 0 || steps.size() != each * rounds || event.args[0].uses.size() != rounds) continue;
      loop.falls = begins_at_end(trace, loop);
      trace.rounds_uses.push_back({{static_cast<uint32_t>(trace.loops.size()), 0, rounds, loop.falls}, true, {i}});
      trace.loops.push_back(std::move(loop));
    }
  }
  const auto is_walked = [&](const PythonLoop& loop) { return is_walked_elsewhere(trace, loop); };
  if (std::any_of(trace.loops.begin() + static_cast<std::ptrdiff_t>(loops), trace.loops.end(), is_walked)) {
    trace.loops.resize(loops);
    trace.rounds_uses.resize(lists);
  }
}

}  // namespace

void add_loops_of_layers(Trace& trace, const std::vector<uint32_t>& met) {
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (is_recurrent_layer(event.name) && event.grad && takes_grad(event)) find_loops_of(trace, i, met);
  }
}

}  // namespace fastjit::capture
