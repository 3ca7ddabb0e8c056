#include "plan/repeat.h"

#include "support/mix.h"

namespace fastjit::plan {

bool alike(const KernelStep& a, const KernelStep& b) {
  return a.kernel == b.kernel && a.sizes == b.sizes && a.strides == b.strides && a.scalars == b.scalars &&
         a.block == b.block && a.units == b.units && a.grain == b.grain && a.scratch_stride == b.scratch_stride &&
         a.grid == b.grid;
}

uint64_t hash_of(const KernelStep& launch) {
  using support::mix;
  uint64_t hash = mix(launch.kernel, static_cast<uint64_t>(launch.block));
  for (const auto* list : {&launch.sizes, &launch.strides})
    for (const int64_t value : *list) hash = mix(hash, static_cast<uint64_t>(value));
  for (const uint32_t scalar : launch.scalars) hash = mix(hash, scalar);
  return hash;
}

std::optional<RoundStep> as_round_step(const Step& step) {
  return std::visit(
      [](const auto& each) -> std::optional<RoundStep> {
        if constexpr (std::is_constructible_v<RoundStep, decltype(each)>)
          return RoundStep(each);
        else
          return std::nullopt;
      },
      step);
}

Round::Round(const RepeatStep& repeat) : repeat_(repeat), steps_(repeat.body) {
  uint32_t hole = 0;
  const auto note = [&](uint32_t& id, int64_t* offset) {
    const size_t next = holes_.size();
    if (next < repeat.varying.size() && repeat.varying[next].hole == hole) holes_.push_back({&id, offset});
    ++hole;
  };
  for (RoundStep& step : steps_) std::visit([&](auto& each) { for_each_hole(each, note); }, step);
}

void Round::set(int64_t round) {
  for (size_t i = 0; i < holes_.size(); ++i) {
    const RepeatStep::Filling filling = repeat_.columns[repeat_.varying[i].column].at(round);
    *holes_[i].id = filling.id;
    if (holes_[i].offset) *holes_[i].offset = filling.offset;
  }
}

}  // namespace fastjit::plan
