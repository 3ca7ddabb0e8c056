#include "capture/record/blank.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstring>

#include "capture/record/effects.h"

namespace fastjit::capture {
namespace {

constexpr unsigned char kByte = 0xA5, kTrue = 0x01;                  // a bool of another value is none
constexpr size_t kWhole = size_t{64} << 20, kEnd = size_t{1} << 20;  // of larger memory only the ends are looked at

template <class Body>
void for_each_stretch(const StorageRecord& memory, Body body) {
  auto* begin = reinterpret_cast<unsigned char*>(memory.begin);
  const size_t bytes = memory.end - memory.begin;
  if (bytes <= kWhole) return body(begin, bytes);
  body(begin, kEnd);
  body(begin + bytes - kEnd, kEnd);
}

template <class Body>
void for_each_storage(const std::vector<CallValue>& items, Body body) {
  for (const CallValue& item : items)
    for (const Use& use : item.uses)
      if (use.tensor != kNone && use.storage != kNone) body(use);
}

}  // namespace

bool BlankMemory::is_intact(uint32_t storage) const {
  const unsigned char byte = blank_.at(storage);
  bool intact = true;
  for_each_stretch(trace_.storages[storage], [&](const unsigned char* begin, size_t bytes) {
    intact &= std::all_of(begin, begin + bytes, [&](unsigned char held) { return held == byte; });
  });
  return intact;
}

bool BlankMemory::is_silent(uint32_t storage) const {
  return silent_.contains(storage) || (blank_.contains(storage) && !is_intact(storage));
}

std::string BlankMemory::begins(const Event& event) {
  if (blank_.empty() && silent_.empty()) return "";
  std::string why;
  for_each_storage(event.args, [&](const Use& use) {
    // torch.tensor() copies what it was given unseen: Recorder looks into what is lifted then.
    if (is_silent(use.storage) && !event.facts.is(OpFlag::AfterTensor))
      why = "memory that no operator filled is used by " + where(trace_, event);
    if (event.facts.is(OpFlag::Lifts)) blank_.erase(use.storage), silent_.erase(use.storage);
  });
  if (blank_.empty() || !event.op) return why;
  for (size_t i : written_arguments(event))
    for (const Use& use : event.args[i].uses) blank_.erase(use.storage);
  return why;
}

void BlankMemory::ended(const Event& event) {
  if (!event.op || !event.finished) return;
  const bool holds_nan = at::globalContext().deterministicAlgorithms() &&
                         at::globalContext().deterministicFillUninitializedMemory();  // torch fills it itself
  if (event.facts.is(OpFlag::Allocates) && !holds_nan)
    for_each_storage(event.results, [&](const Use& use) {
      const StorageRecord& memory = trace_.storages[use.storage];
      const auto alive = memory.impl.lock();
      if (!alive || !alive->device().is_cpu() || memory.begin == memory.end) return;
      const unsigned char byte = use.meta->dtype == at::kBool ? kTrue : kByte;
      for_each_stretch(memory, [&](unsigned char* begin, size_t bytes) { std::memset(begin, byte, bytes); });
      blank_[use.storage] = byte;
    });
  if (!event.facts.is(OpFlag::AfterTensor) || event.facts.is(OpFlag::Lifts)) return;
  bool copies = false;
  for_each_storage(event.args, [&](const Use& use) { copies |= is_silent(use.storage); });
  if (copies)
    for_each_storage(event.results, [&](const Use& use) {
      if (!blank_.contains(use.storage)) silent_.insert(use.storage);
    });
}

std::string BlankMemory::call_ended() const {
  for (const auto& [storage, byte] : blank_)
    if (trace_.storages[storage].impl.lock() && !is_intact(storage))
      return "memory that torch.empty gave was written outside of operators";
  return "";
}

}  // namespace fastjit::capture
