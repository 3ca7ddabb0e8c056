#include "dispatch/call/variants.h"

#include <algorithm>

#include "dispatch/call/function.h"

namespace fastjit::dispatch {
namespace {

// The object that the call is bound to: a first argument that is compared by identity.
const ArgSpec* owner(const CallSpec& call) {
  return !call.specs().empty() && call.specs()[0].kind == ArgKind::Object ? &call.specs()[0] : nullptr;
}

bool dead(const Variant& variant) {
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

void Variants::used(const std::shared_ptr<Variant>& variant) {
  variant->used = ++clock_;
  if (variant->program.executable && last_ != variant) last_ = variant;
}

void Variants::add(std::shared_ptr<Variant> variant) {
  used(variant);
  all_.push_back(std::move(variant));
  rebuild();
}

void Variants::drop_dead() { drop(dead); }

void Variants::drop(const std::function<bool(const Variant&)>& is_useless) {
  const auto end = std::stable_partition(all_.begin(), all_.end(), [&](const auto& it) { return !is_useless(*it); });
  if (end == all_.end()) return;
  const std::vector<std::shared_ptr<Variant>> dropped(end, all_.end());  // released when nothing names them
  all_.erase(end, all_.end());
  rebuild();
}

std::vector<std::shared_ptr<Variant>> Variants::take() {
  auto out = std::move(all_);
  *this = Variants();
  return out;
}

std::vector<const Variant*> Variants::siblings(const CallSpec& call) const {
  const ArgSpec* mine = owner(call);
  std::vector<const Variant*> out;
  for (const auto& variant : all_) {
    const ArgSpec* theirs = owner(variant->key.spec);
    if (!mine || (theirs && referent(*theirs) == referent(*mine))) out.push_back(variant.get());
  }
  return out;
}

void Variants::rebuild() {
  size_t places = 4;
  while (places < 2 * all_.size()) places *= 2;
  table_.assign(places, {});
  width_ = 0;
  for (uint32_t n = 0; n < all_.size(); ++n) {
    const CallSpec& spec = all_[n]->key.spec;
    width_ = std::max({width_, spec.object_count(), spec.number_count()});
    size_t i = spec.hash() & (places - 1);
    while (table_[i].variant) i = (i + 1) & (places - 1);
    table_[i] = {spec.hash(), n + 1};
  }
  if (std::find(all_.begin(), all_.end(), last_) == all_.end()) last_ = nullptr;
}

}  // namespace fastjit::dispatch
