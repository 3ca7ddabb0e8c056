#pragma once
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fastjit::support {

/// What cannot be done in this process or on this machine, and is no fault of FastJIT's: why, and what the user may do.
class Unable : public std::runtime_error {
 public:
  Unable(const std::string& why, std::string way_out) : std::runtime_error(why), way_out_(std::move(way_out)) {}
  const std::string& way_out() const { return way_out_; }

 private:
  std::string way_out_;
};

/// The first line of what an exception says: torch's go on with the stack.
inline std::string first_line(const std::exception& error) {
  const std::string_view what = error.what();
  return std::string(what.substr(0, what.find('\n')));
}

}  // namespace fastjit::support
