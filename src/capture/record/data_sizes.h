#pragma once
// Sizes that depend on data, as those of `x[mask]` and `nonzero(x)`: which dims of which tensors have them.
#include "capture/record/trace.h"

namespace fastjit::capture {

/// A bit per dim; a tensor of more dims has all of the later ones in the last bit.
using DataDims = uint64_t;

/// That dim.
DataDims bit(size_t dim);

/// `one_hot` with a number of classes: its sizes are told, and no data says them.
bool is_told_classes(const Event& event);

/// The operator itself makes sizes of data.
bool makes_data_sizes(const Event& event);

/// Of each tensor that an outermost call gave, in the order of flat_results(): the dims whose sizes another call may
/// find otherwise. makes: the call, or one inside it, makes sizes of data. Where this says too little, a run of the
/// program notices and the call starts again in eager; where it says too much, torch computes what a kernel might have.
std::vector<DataDims> data_dims(const Trace& trace, uint32_t event, bool makes);

/// The call gives all elements of its argument in one dim, however many there are.
bool is_flattened(const Event& event);

/// Notes for `result`, the only one of an outermost call, one dim of which is as long as a mask says, whose length that
/// is, where no other length may be taken for it.
void note_count(Trace& trace, const Event& event, const Use& result);

/// Both tensors have sizes that depend on data, and the same ones in each call.
bool have_same_sizes(const Trace& trace, const at::Tensor& a, const at::Tensor& b);

}  // namespace fastjit::capture
