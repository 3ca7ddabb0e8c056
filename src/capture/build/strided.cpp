#include "capture/build/strided.h"

#include "ir/strided.h"

namespace fastjit::capture {

bool lies_in_its_tensor(const Event& event, bool was_there) {
  if (event.name != "aten::as_strided" || event.args[0].uses.size() != 1) return false;
  const Use& self = event.args[0].uses[0];
  const c10::IValue &size = event.args[1].constant, &stride = event.args[2].constant, &offset = event.args[3].constant;
  const bool is_given = size.isIntList() && stride.isIntList() && (offset.isInt() || offset.isNone());
  if (self.tensor == kNone || !is_given || (offset.isInt() && (was_there || self.offset != 0))) return false;
  const auto dims = [](const c10::IValue& list) {
    const std::vector<int64_t> ints = list.toIntVector();
    return std::vector<ir::Dim>(ints.begin(), ints.end());
  };
  const int64_t begin = offset.isInt() ? offset.toInt() : 0;
  return ir::strided_map(self.meta->layout(), dims(size), dims(stride), begin).has_value();
}

}  // namespace fastjit::capture
