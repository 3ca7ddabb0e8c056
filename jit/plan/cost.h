#pragma once
// What memory, arithmetic and launches cost, in picoseconds: the one place that decisions of the planner are weighed
// with. The default constants were measured on a two-core x86-64 machine with AVX-512 (docs/planning.md says how) and
// are the same everywhere, so that a graph has one plan on all machines with equal vectors.
#include <cstdint>

#include "ir/graph.h"

namespace fastjit::plan {

/// How much work an operation is per element.
enum class Work : uint8_t { None, Plain, Division, Function };
Work work_of(ir::Op op);

struct Costs {
  int64_t l2_bytes = 1 << 20, l3_bytes = 32 << 20;
  int64_t l2_read = 6, l3_read = 37, memory_read = 60;  // a byte
  int64_t write_tenths = 15;                            // of a read: the line is fetched first
  int64_t plain = 10, division = 190, function = 270;   // a point, in vectors
  int64_t launch = 100'000;                             // a kernel more

  /// A value of so many bytes, written by one kernel and read by the next.
  int64_t read(int64_t bytes) const;
  int64_t write(int64_t bytes) const { return read(bytes) * write_tenths / 10; }
  int64_t compute(Work work) const;
};

}  // namespace fastjit::plan
