#include "backend/nvrtc.h"

#include <dlfcn.h>
#include <elf.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "codegen/cuda/emit.h"

namespace fastjit::backend {
namespace {

using Program = struct ProgramHandle*;

// The functions of libnvrtc that are called: name, parameters. All give 0 for success.
#define NVRTC_FUNCTIONS(F)                                                                                 \
  F(nvrtcVersion, (int*, int*))                                                                            \
  F(nvrtcCreateProgram, (Program*, const char*, const char*, int, const char* const*, const char* const*)) \
  F(nvrtcCompileProgram, (Program, int, const char* const*))                                               \
  F(nvrtcDestroyProgram, (Program*))                                                                       \
  F(nvrtcGetProgramLogSize, (Program, size_t*))                                                            \
  F(nvrtcGetProgramLog, (Program, char*))                                                                  \
  F(nvrtcGetCUBINSize, (Program, size_t*))                                                                 \
  F(nvrtcGetCUBIN, (Program, char*))                                                                       \
  F(nvrtcGetPTXSize, (Program, size_t*))                                                                   \
  F(nvrtcGetPTX, (Program, char*))

struct Nvrtc {
#define F(name, parameters) int(*name) parameters = nullptr;
  NVRTC_FUNCTIONS(F)
#undef F
  const char* (*nvrtcGetErrorString)(int) = nullptr;
  std::string problem, version;
};

std::mutex g_mutex;
std::string g_path;
Nvrtc g_nvrtc;
bool g_open = false;

void* open_library(std::string& problem) {
  std::vector<std::string> places{"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"};
  if (!g_path.empty()) places.insert(places.begin(), g_path);
  for (const std::string& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (problem.empty()) problem = dlerror();
  }
  return nullptr;
}

// One try at a time; a failure is tried again, since a path may be given later.
const Nvrtc& nvrtc() {
  const std::lock_guard lock(g_mutex);
  if (g_open) return g_nvrtc;
  Nvrtc found;
  std::string why;
  void* library = open_library(why);
  if (!library) {
    g_nvrtc.problem = "NVRTC was not found (" + why + "); install it with: pip install nvidia-cuda-nvrtc";
    return g_nvrtc;
  }
  auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function && found.problem.empty()) found.problem = std::string("libnvrtc lacks ") + name;
  };
#define F(name, parameters) resolve(found.name, #name);
  NVRTC_FUNCTIONS(F)
#undef F
  resolve(found.nvrtcGetErrorString, "nvrtcGetErrorString");
  int major = 0, minor = 0;
  if (found.problem.empty() && found.nvrtcVersion(&major, &minor) == 0)
    found.version = std::to_string(major) + "." + std::to_string(minor);
  g_nvrtc = std::move(found);
  g_open = g_nvrtc.problem.empty();
  return g_nvrtc;
}

class Session {
 public:
  Session(const Nvrtc& api, const std::string& source) : api_(api) {
    check(api.nvrtcCreateProgram(&program_, source.c_str(), "fastjit.cu", 0, nullptr, nullptr));
  }
  ~Session() { api_.nvrtcDestroyProgram(&program_); }
  Session(const Session&) = delete;

  void compile(const std::vector<std::string>& options) {
    std::vector<const char*> texts;
    for (const std::string& option : options) texts.push_back(option.c_str());
    const int status = api_.nvrtcCompileProgram(program_, static_cast<int>(texts.size()), texts.data());
    if (status == 0) return;
    std::string log = text(api_.nvrtcGetProgramLogSize, api_.nvrtcGetProgramLog);
    throw std::runtime_error("NVRTC refuses the kernel: " + std::string(api_.nvrtcGetErrorString(status)) + "\n" + log);
  }
  std::string cubin() { return bytes(api_.nvrtcGetCUBINSize, api_.nvrtcGetCUBIN); }
  std::string ptx() { return text(api_.nvrtcGetPTXSize, api_.nvrtcGetPTX); }

 private:
  using SizeFn = int (*)(Program, size_t*);
  using CopyFn = int (*)(Program, char*);
  void check(int status) {
    if (status) throw std::runtime_error("NVRTC failed: " + std::string(api_.nvrtcGetErrorString(status)));
  }
  std::string bytes(SizeFn size, CopyFn copy) {
    size_t length = 0;
    check(size(program_, &length));
    std::string out(length, '\0');
    check(copy(program_, out.data()));
    return out;
  }
  std::string text(SizeFn size, CopyFn copy) {  // without the final zero
    std::string out = bytes(size, copy);
    while (!out.empty() && out.back() == '\0') out.pop_back();
    return out;
  }

  const Nvrtc& api_;
  Program program_ = nullptr;
};

}  // namespace

void set_nvrtc_path(const std::string& path) {
  const std::lock_guard lock(g_mutex);
  g_path = path;
}

std::string nvrtc_problem() { return nvrtc().problem; }
std::string nvrtc_version() { return nvrtc().version; }

std::vector<std::string> nvrtc_options(plan::Numerics numerics) {
  const char* fuse = numerics == plan::Numerics::Fast ? "--fmad=true" : "--fmad=false";
  return {"--std=c++17", fuse, "--prec-div=true", "--prec-sqrt=true", "--ftz=false"};
}

Compiled compile_cuda_source(const std::string& source, int sm, plan::Numerics numerics) {
  const auto start = std::chrono::steady_clock::now();
  const Nvrtc& api = nvrtc();
  if (!api.problem.empty()) throw std::runtime_error(api.problem);
  std::vector<std::string> options = nvrtc_options(numerics);
  options.push_back("--gpu-architecture=sm_" + std::to_string(sm));
  Session session(api, source);
  session.compile(options);
  Compiled out;
  out.object = session.cubin();
  out.assembly = session.ptx();
  out.source = source;
  out.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return out;
}

Compiled compile_cuda(const plan::KernelPlan& plan, const Target& target) {
  return compile_cuda_source(codegen::cuda_source(plan), target.sm, plan.numerics);
}

// Its code is the section ".text." and its name; functions of the prelude have mangled names.
std::string cubin_entry(std::span<const char> object) {
  constexpr std::string_view kSection = ".text.";
  const std::string_view bytes(object.data(), object.size());
  const size_t at = bytes.find(std::string(kSection) + std::string(plan::kNamePrefix));
  if (at == std::string_view::npos) return "";
  const std::string_view rest = bytes.substr(at + kSection.size());
  const std::string_view symbol = rest.substr(0, rest.find('\0'));
  return is_entry_name(symbol) ? std::string(symbol) : "";
}

std::string validate_cubin(std::span<const char> object) {
  constexpr uint16_t kCuda = 190;  // EM_CUDA
  Elf64_Ehdr header;
  if (object.size() < sizeof header) return "too short for a cubin";
  std::memcpy(&header, object.data(), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
    return "not an ELF64 file";
  if (header.e_machine != kCuda) return "not for a GPU";
  return cubin_entry(object).empty() ? "the entry symbol is missing" : "";
}

std::shared_ptr<const Kernel> load_cuda(std::span<const char> object) {
  if (const std::string why = validate_cubin(object); !why.empty())
    throw std::runtime_error("the cubin is refused: " + why);
  auto kernel = std::make_shared<CudaKernel>();
  kernel->cubin.assign(object.begin(), object.end());
  kernel->entry = cubin_entry(object);
  return kernel;
}

}  // namespace fastjit::backend
