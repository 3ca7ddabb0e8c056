#pragma once
// What an operator does beyond giving tensors computed from its arguments: facts that its schema does not say.
#include "capture/trace.h"

namespace fastjit::capture {

enum class Effect : uint8_t {
  None,
  Metadata,   // looks at metadata only and returns no tensor: no step at all
  Value,      // a value, or memory, leaves tensor land
  Read,       // Python gets the value of the one element of its argument
  Test,       // Python gets a bool that depends on the contents of its arguments
  DataSized,  // the sizes of its result depend on data, though no tag says so
  Replaces,   // swaps memory or metadata under a live tensor
};

Effect effect_of(const Event& event);

/// The result's sizes depend on data by the operator's own tags. Indexing by a mask is judged by the caller.
bool data_sized_by_tag(const Event& event);

/// The arguments that the call writes, by position: those the schema marks and those it hides.
std::vector<size_t> written_arguments(const Event& event);

/// Its results are memory that nothing has been written to.
bool allocates(const Event& event);

/// What runs inside the operator is its own affair: it computes what the schema says and gives views or new memory
/// whose sizes follow from metadata, and nobody enters it. What need not be seen need not be recorded.
bool is_opaque(std::string_view name);

/// "aten::add_.Tensor" -> "aten::add.Tensor", "aten::__iand__.Tensor" -> "aten::__and__.Tensor"; empty if not in place.
std::string functional_name(std::string_view name);

/// The name without its overload.
inline std::string_view base_name(std::string_view name) { return name.substr(0, name.find('.')); }

}  // namespace fastjit::capture
