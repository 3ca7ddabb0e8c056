#pragma once
// Methods of an autograd.Function, run behind the recorded call so that what they compute is recorded: the user's own
// backward() runs them again, and nobody may be able to tell.
#include <functional>
#include <string>
#include <vector>

#include "dispatch/learn/recording.h"

namespace fastjit::dispatch {

/// Runs `go`, which calls the backward methods for these contexts, watched. Not empty: why it is not run, or what it
/// did that a second run would find. Throws what `go` throws. GIL held.
std::string rehearse(Recording& recording, const std::vector<PyObject*>& contexts, const std::function<void()>& go);

/// What a call read, and what its rehearsal did.
std::unique_ptr<observe::ReadSet> both(std::unique_ptr<observe::ReadSet> call,
                                       std::shared_ptr<observe::ReadSet> rehearsal);

}  // namespace fastjit::dispatch
