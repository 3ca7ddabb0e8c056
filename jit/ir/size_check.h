#pragma once
// What the checks of a SizeCode mean, for those who run them and those who say which one failed.
#include "ir/dim.h"

namespace fastjit::ir {

constexpr bool holds(SizeCode::Is is, int64_t value) {
  switch (is) {
    case SizeCode::Is::Zero:
      return value == 0;
    case SizeCode::Is::NotZero:
      return value != 0;
    case SizeCode::Is::Negative:
      return value < 0;
    case SizeCode::Is::NotNegative:
      return value >= 0;
  }
  return false;
}

}  // namespace fastjit::ir
