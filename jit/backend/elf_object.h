#pragma once
// A compiled kernel as read from untrusted bytes: what to copy where, and what to patch. Everything in one image is
// addressed relative to the instruction pointer, so an image works at any address and needs no symbol from outside.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fastjit::backend {

struct ObjectImage {
  struct Part {
    uint64_t from, size, to;  // bytes [from, from + size) of the object go to `to` in the image
  };
  struct Patch {
    uint64_t at;  // image offset of a 32-bit displacement
    int32_t value;
  };
  std::vector<Part> parts;  // the first is the code, at 0, and the entry is its first byte
  std::vector<Patch> patches;
  uint64_t size = 0;
};

/// Fills `image`; empty when the object is legal, else the reason.
std::string read_object(std::span<const char> object, ObjectImage& image);

/// Writes the image into `memory` (image.size bytes, zeroed).
void write_image(std::span<const char> object, const ObjectImage& image, char* memory);

}  // namespace fastjit::backend
