#pragma once
#include <exception>
#include <string>
#include <string_view>

namespace fastjit::support {

/// The first line of what an exception says: torch's go on with the stack.
inline std::string first_line(const std::exception& error) {
  const std::string_view what = error.what();
  return std::string(what.substr(0, what.find('\n')));
}

}  // namespace fastjit::support
