#include "dispatch/call/variants.h"

#include <algorithm>
#include <iterator>

#include "dispatch/call/function.h"

namespace fastjit::dispatch {
namespace {

constexpr size_t kMostObjects = 64;  // that a method may be bound to with as many variants as there is room for each

bool is_dead(const Variant& variant) {
  for (const ArgSpec& spec : variant.key.spec.specs())
    if (spec.kind == ArgKind::Object && referent(spec) == Py_None) return true;
  return false;
}

}  // namespace

std::vector<std::shared_ptr<Variant>> Variants::recent_first() const {
  auto out = all_;
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a->used > b->used; });
  return out;
}

void Variants::used(const std::shared_ptr<Variant>& variant, uint64_t call) {
  if (!variant->listed) return;
  variant->used = call;
  if (variant->program.executable && last_ != variant) last_ = variant;
}

void Variants::add(std::shared_ptr<Variant> variant, uint64_t call) {
  variant->listed = true;
  variant->bytes = bytes_of(*variant);
  if (!variant->recording && (variant->program.executable || variant->pending)) variant->recording = ++recordings_;
  used(variant, call);
  all_.push_back(std::move(variant));
  rebuild();
}

bool Variants::fills(const CallSpec& call, const Room& room) const {
  return siblings(call).size() >= room.variants || all_.size() >= kMostObjects * room.variants;
}

const Variant* Variants::victim(const CallSpec& call, const Room& room) const {
  const auto oldest = [](const auto& variants) {
    return std::ranges::min_element(variants, {}, [](const auto& it) { return it->used; })->get();
  };
  if (const auto mine = siblings(call); mine.size() >= room.variants) return oldest(mine);
  if (all_.empty()) return nullptr;
  const size_t now = bytes();
  const bool fits = !room.bytes || now + now / all_.size() <= room.bytes;  // one more that is like them
  return fits && all_.size() < kMostObjects * room.variants ? nullptr : oldest(all_);
}

void Variants::make_room(const Variant& newest, const Room& room) {
  PyObject* const mine = owner(newest.key.spec);
  const auto is_sibling = [&](const auto& it) { return !mine || owner(it->key.spec) == mine; };
  auto siblings = static_cast<size_t>(std::ranges::count_if(all_, is_sibling));
  size_t count = all_.size(), memory = bytes();
  auto oldest_first = all_;
  std::ranges::stable_sort(oldest_first, {}, [](const auto& it) { return it->used; });
  std::vector<const Variant*> going;
  for (const auto& variant : oldest_first) {
    const bool in_excess = siblings > room.variants && is_sibling(variant);
    const bool too_many = count > kMostObjects * room.variants || (room.bytes && memory > room.bytes);
    if (variant.get() == &newest || !(in_excess || too_many)) continue;
    going.push_back(variant.get());
    siblings -= is_sibling(variant);
    memory -= variant->bytes;
    --count;
  }
  if (!going.empty()) drop([&](const Variant& it) { return std::ranges::find(going, &it) != going.end(); });
}

size_t Variants::bytes() const {
  size_t sum = 0;
  for (const auto& variant : all_) sum += variant->bytes;
  return sum;
}

void Variants::count_served(const Variant& variant) { served_ = std::max(served_, variant.recording); }

uint64_t Variants::last_served() const {
  uint64_t served = served_;
  for (const auto& variant : all_)
    if (variant->hits) served = std::max(served, variant->recording);
  return served;
}

uint64_t Variants::unused() const { return recordings_ - last_served(); }

uint64_t Variants::dead() const {
  return static_cast<uint64_t>(
      std::ranges::count_if(dead_, [served = last_served()](uint64_t recording) { return recording > served; }));
}

uint64_t Variants::unused(const CallSpec& call) const {
  const auto mine = siblings(call);
  uint64_t served = served_;
  for (const auto& variant : mine)
    if (variant->hits) served = std::max(served, variant->recording);
  return static_cast<uint64_t>(std::ranges::count_if(mine, [&](const auto& it) { return it->recording > served; }));
}

bool Variants::has_arguments(uint64_t hash) const {
  return std::ranges::any_of(all_, [&](const auto& variant) { return variant->arguments == hash; });
}

void Variants::drop_dead() {
  std::erase_if(dead_, [served = last_served()](uint64_t recording) { return recording <= served; });
  for (const auto& variant : all_)
    if (is_dead(*variant)) dead_.push_back(variant->recording);
  drop(is_dead);
}

void Variants::drop(const std::function<bool(const Variant&)>& is_useless) {
  const auto end = std::stable_partition(all_.begin(), all_.end(), [&](const auto& it) { return !is_useless(*it); });
  if (end == all_.end()) return;
  const std::vector<std::shared_ptr<Variant>> dropped(end, all_.end());  // released when nothing names them
  all_.erase(end, all_.end());
  forget(dropped);
  rebuild();
}

void Variants::forget(const std::vector<std::shared_ptr<Variant>>& dropped) {
  for (const auto& variant : dropped) {
    variant->listed = false;
    if (variant->hits) count_served(*variant);
  }
}

std::vector<std::shared_ptr<Variant>> Variants::take() {
  auto out = std::move(all_);
  forget(out);
  *this = Variants();
  return out;
}

PyObject* Variants::owner(const CallSpec& call) {
  const bool has_one = !call.specs().empty() && call.specs()[0].kind == ArgKind::Object;
  return has_one ? referent(call.specs()[0]) : nullptr;
}

std::vector<std::shared_ptr<Variant>> Variants::siblings(const CallSpec& call) const {
  PyObject* const mine = owner(call);
  std::vector<std::shared_ptr<Variant>> out;
  std::ranges::copy_if(all_, std::back_inserter(out),
                       [&](const auto& it) { return (!mine || owner(it->key.spec) == mine) && !is_dead(*it); });
  return out;
}

void Variants::rebuild() {
  size_t places = 4;
  while (places < 2 * all_.size()) places *= 2;
  table_.assign(places, {});
  width_ = 0;
  has_sized_ = false;
  for (uint32_t n = 0; n < all_.size(); ++n) {
    const CallSpec& spec = all_[n]->key.spec;
    has_sized_ |= spec.has_free_sizes();
    width_ = std::max({width_, spec.object_count(), all_[n]->number_count()});
    size_t i = spec.hash() & (places - 1);
    while (table_[i].variant) i = (i + 1) & (places - 1);
    table_[i] = {spec.hash(), n + 1};
  }
  if (std::find(all_.begin(), all_.end(), last_) == all_.end()) last_ = nullptr;
}

}  // namespace fastjit::dispatch
