#pragma once
// Whose code a frame runs. Messages name the user's own line, which a library's frames may stand between.
#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fastjit::observe {

/// The nearer to the user, the smaller. User: files, and what is typed at a prompt. Generated: other code without a
/// file ("<string>"). Ours: FastJIT's and torch's.
enum class Owner : uint8_t { User, Generated, Library, Ours };

/// Folders, each with a slash at its end; set once at import. Before that all code with a file is the user's.
void set_library_folders(std::vector<std::string> ours, std::vector<std::string> libraries);

Owner owner_of(PyCodeObject* code) noexcept;

/// "model.py:14"; of a package's `__init__.py` the folder as well.
std::string place_of(PyCodeObject* code, int line);

}  // namespace fastjit::observe
