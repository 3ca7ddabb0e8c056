#pragma once
// Arguments of a call by the names of its operator's schema.
#include "capture/build/result_sizes.h"

namespace fastjit::capture {

class Named {
 public:
  explicit Named(const Event& event) : event_(event) {}
  const CallValue* find(std::string_view name) const {
    const auto at = place_of(event_, name);
    return at ? &event_.args[*at] : nullptr;
  }
  const c10::IValue* constant(std::string_view name) const {
    const CallValue* value = find(name);
    return value && value->kind == CallValue::Kind::Constant ? &value->constant : nullptr;
  }
  /// The one tensor that is given; null: none, or a list of them.
  const Use* tensor(std::string_view name) const {
    const CallValue* value = find(name);
    const bool is_one = value && value->uses.size() == 1 && value->uses[0].tensor != kNone;
    return is_one ? &value->uses[0] : nullptr;
  }
  /// Of `count` dims; none where it is no list of numbers. One number is for all dims.
  std::optional<std::vector<int64_t>> list(std::string_view name, size_t count,
                                           std::optional<int64_t> otherwise) const {
    if (!find(name)) return otherwise ? std::optional(std::vector<int64_t>(count, *otherwise)) : std::nullopt;
    const c10::IValue* value = constant(name);
    if (!value || !value->isIntList()) return std::nullopt;
    std::vector<int64_t> all = value->toIntVector();
    if (all.size() == 1) all.assign(count, all[0]);
    return all.size() == count ? std::optional(all) : std::nullopt;
  }
  /// What is not known to be either is told as neither.
  bool is_false(std::string_view name) const { return !find(name) || is(name, false); }
  bool is_true(std::string_view name) const { return is(name, true); }

 private:
  bool is(std::string_view name, bool wanted) const {
    const c10::IValue* value = constant(name);
    return value && value->isBool() && value->toBool() == wanted;
  }
  const Event& event_;
};

}  // namespace fastjit::capture
