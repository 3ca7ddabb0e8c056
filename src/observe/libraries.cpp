#include "observe/libraries.h"

#include <algorithm>
#include <string_view>

#include "observe/observe.h"

namespace fastjit::observe {
namespace {

std::vector<std::string> our_folders, library_folders;

// What begins the file of code that was typed.
constexpr std::string_view kTyped[] = {"<stdin>",        "<console>",     "<input>",
                                       "<ipython-input", "<python-input", "<doctest"};

bool is_inside(std::string_view file, const std::vector<std::string>& folders) {
  return std::ranges::any_of(folders, [&](const std::string& folder) { return file.starts_with(folder); });
}

std::string_view file_of(PyCodeObject* code) noexcept {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) PyErr_Clear();
  return file ? file : "";
}

}  // namespace

void set_library_folders(std::vector<std::string> ours, std::vector<std::string> libraries) {
  our_folders = std::move(ours);
  library_folders = std::move(libraries);
}

Owner owner_of(PyCodeObject* code) noexcept {
  const std::string_view file = file_of(code);
  if (file == kStandInFile || is_inside(file, our_folders)) return Owner::Ours;
  if (is_inside(file, library_folders) || file.starts_with("<frozen ")) return Owner::Library;
  const auto begins = [&](std::string_view name) { return file.starts_with(name); };
  return file.starts_with('<') && std::ranges::none_of(kTyped, begins) ? Owner::Generated : Owner::User;
}

std::string place_of(PyCodeObject* code, int line) {
  const std::string_view file = file_of(code);
  size_t slash = file.rfind('/');
  if (slash != file.npos && slash > 0 && file.substr(slash + 1) == "__init__.py") slash = file.rfind('/', slash - 1);
  return std::string(slash == file.npos ? file : file.substr(slash + 1)) + ":" + std::to_string(line);
}

}  // namespace fastjit::observe
