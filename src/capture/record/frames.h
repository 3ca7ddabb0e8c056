#pragma once
// What the operator recorder asks of Python's frames.
#include <Python.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace fastjit::capture {

/// The variable that the instruction after the frame's current one gives its result to, or "".
std::string stored_name(PyFrameObject* frame, PyCodeObject* code);

/// The lines of the caller's code that a recording meets, by number from 1 on. Takes the GIL for a moment where it
/// looks at frames: operators run without it.
class CallerLines {
 public:
  /// Frames of `stand_in_file` have no place of their own, as those of torch's package. Made by the frame that calls.
  explicit CallerLines(std::string stand_in_file = "");
  ~CallerLines();
  CallerLines(CallerLines&&) = delete;

  /// The line that runs now, of the innermost frame outside torch's own package; 0 if there is none. `target` gets the
  /// variable that takes the result of the instruction.
  uint32_t now(std::string* target = nullptr);
  /// What in the code of the frames of this call may read sizes of tensors, "its shape"; code is searched once.
  std::string size_reader();
  /// "model.py:14" per line.
  std::vector<std::string> texts() const;

 private:
  struct Line {
    PyObject* file;
    int line;
    bool operator==(const Line&) const = default;
  };

  std::string stand_in_file_;
  PyFrameObject* caller_;                      // only compared
  std::vector<Line> lines_;                    // files held strongly
  std::unordered_set<PyCodeObject*> scanned_;  // by size_reader()
};

}  // namespace fastjit::capture
