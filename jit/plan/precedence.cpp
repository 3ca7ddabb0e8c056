// See precedence.h.
#include "plan/precedence.h"

#include <algorithm>
#include <functional>

#include "plan/work.h"

namespace fastjit::plan {

uint32_t Precedence::add() {
  const auto item = static_cast<uint32_t>(homes_.size());
  needs_.emplace_back();
  needed_by_.emplace_back();
  homes_.push_back(item);
  places_.push_back(item);
  seen_.push_back(0);
  return item;
}

void Precedence::before(uint32_t earlier, uint32_t later) {
  earlier = home(earlier);
  later = home(later);
  if (earlier == later) return;
  if (!needs_[later].empty() && needs_[later].back() == earlier) return;
  needs_[later].push_back(earlier);
  needed_by_[earlier].push_back(later);
  if (sorted_ && places_[earlier] > places_[later]) reorder(earlier, later);
}

/// Items in the order of their numbers as far as the edges allow (Kahn 1962).
void Precedence::sort() {
  std::vector<uint32_t> missing(size()), ready;
  for (uint32_t item = 0; item < size(); ++item) missing[item] = static_cast<uint32_t>(needs_[item].size());
  for (uint32_t item = 0; item < size(); ++item)
    if (missing[item] == 0) ready.push_back(item);
  std::make_heap(ready.begin(), ready.end(), std::greater<>{});
  uint32_t place = 0;
  while (!ready.empty()) {
    std::pop_heap(ready.begin(), ready.end(), std::greater<>{});
    const uint32_t item = ready.back();
    ready.pop_back();
    places_[item] = place++;
    for (const uint32_t next : needed_by_[item]) {
      work();
      if (--missing[next] > 0) continue;
      ready.push_back(next);
      std::push_heap(ready.begin(), ready.end(), std::greater<>{});
    }
  }
  sorted_ = true;
}

/// What `from` reaches, itself included, up to the place of `limit`.
std::vector<uint32_t> Precedence::between(uint32_t from, uint32_t limit, bool forward) const {
  std::vector<uint32_t> found{from};
  seen_[from] = ++search_;
  for (size_t i = 0; i < found.size(); ++i)
    for (const uint32_t to : forward ? needed_by_[found[i]] : needs_[found[i]]) {
      work();
      const uint32_t next = home(to);
      const bool inside = forward ? places_[next] <= places_[limit] : places_[next] >= places_[limit];
      if (!inside || seen_[next] == search_) continue;
      seen_[next] = search_;
      found.push_back(next);
    }
  return found;
}

bool Precedence::reaches(uint32_t earlier, uint32_t later) const {
  earlier = home(earlier);
  later = home(later);
  if (places_[earlier] >= places_[later]) return earlier == later;
  const std::vector<uint32_t> found = between(later, earlier, false);
  return seen_[earlier] == search_;
}

/// `earlier` and what it needs change places with `later` and what needs that; nothing else moves.
void Precedence::reorder(uint32_t earlier, uint32_t later) {
  std::vector<uint32_t> first = between(earlier, later, false), second = between(later, earlier, true);
  auto by_place = [&](uint32_t a, uint32_t b) { return places_[a] < places_[b]; };
  std::sort(first.begin(), first.end(), by_place);
  std::sort(second.begin(), second.end(), by_place);
  std::vector<uint32_t> places;
  first.insert(first.end(), second.begin(), second.end());
  for (const uint32_t item : first) places.push_back(places_[item]);
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i < first.size(); ++i) places_[first[i]] = places[i];
}

void Precedence::merge(uint32_t item, uint32_t host) {
  const std::vector<uint32_t> needs = needs_[item], needed_by = needed_by_[item];
  homes_[item] = host;
  for (const uint32_t other : needs) before(other, host);
  for (const uint32_t other : needed_by) before(host, other);
}

}  // namespace fastjit::plan
