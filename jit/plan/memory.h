#pragma once
// Addresses in the arena by lifetime.
#include <cstdint>
#include <vector>

#include "ir/dim.h"

namespace fastjit::plan {

/// A piece of the arena that is in use from step `first` to step `last`, both included.
struct Piece {
  int64_t bytes = 0;
  int64_t first = 0, last = 0;
  int64_t offset = 0;  // set by pack_arena
};

/// Gives every piece a 64-byte aligned offset such that pieces alive together never overlap; returns the arena's size.
int64_t pack_arena(std::vector<Piece>& pieces);

/// Offsets of packed pieces whose sizes are these, and behind them the arena's size: each piece lies above those that
/// it lies above where it was packed, so that at no sizes two that are alive together overlap.
std::vector<ir::Dim> offsets_of(const std::vector<Piece>& pieces, const std::vector<ir::Dim>& sizes);

}  // namespace fastjit::plan
