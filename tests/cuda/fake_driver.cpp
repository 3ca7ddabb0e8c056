// Stands in for libcuda and libnvrtc: a kernel's source is compiled as C++ over host_shim.h, a "cubin" holds the shared
// library that came out, and a launch runs it on the host. Built with -DSHIM="path of host_shim.h" -DFLAGS="for the
// compiler". Counters and what the last launch was given are read through the fake_* variables.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kEntry = "fj_", kSection = ".text.";
thread_local void* current = nullptr;

struct Image {
  Elf64_Ehdr header;
  char section[160];  // ".text." and the kernel's name
  uint64_t bytes;
};

struct Program {
  std::string source, cubin, log;
};

std::string contents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

// The name of the kernel: the line after the one with __global__ starts with it.
std::string entry_of(const std::string& source) {
  const size_t from = source.find('\n', source.find("__global__")) + 1;
  return source.substr(from, source.find('(', from) - from);
}

std::string unit(const std::string& source) {
  const bool barriers = source.find("__syncthreads") != source.npos;
  return "#include \"" SHIM "\"\n" + source +
         "\nextern \"C\" void run(const void* words, unsigned grid, unsigned block) {\n"
         "  shim::grid_dim.x = grid;\n  shim::block_dim.x = block;\n"
         "  shim::run_grid(shim::call<Params, " +
         entry_of(source) + ">, words, " + (barriers ? "true" : "false") + ");\n}\n";
}

using Run = void (*)(const void*, unsigned, unsigned);

}  // namespace

extern "C" {
int fake_compiles, fake_loads, fake_launches, fake_fail_launch;
void *fake_stream, *fake_context;

int cuInit(unsigned) { return 0; }
int cuGetErrorString(int, const char** text) { return *text = "the fake driver says no", 0; }
int cuDeviceGet(int* handle, int device) { return *handle = device, 0; }
int cuDeviceGetAttribute(int* value, int which, int) { return *value = which == 75 ? 9 : 0, 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = reinterpret_cast<void*>(static_cast<intptr_t>(1000 + device)), 0;
}
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxPushCurrent_v2(void* context) { return current = context, 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = current, current = nullptr, 0; }

int cuModuleLoadData(void** module, const void* data) {
  const auto* image = static_cast<const Image*>(data);
  const int file = memfd_create("kernel", 0);  // stays open: the loader knows libraries by their path
  if (write(file, image + 1, image->bytes) != static_cast<ssize_t>(image->bytes)) return 1;
  *module = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  ++fake_loads;
  return *module == nullptr;
}
int cuModuleUnload(void* module) { return dlclose(module); }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = dlsym(module, "run");
  return !std::string_view(name).starts_with(kEntry) || !dlsym(module, name) || !*function;
}
int cuLaunchKernel(void* function, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned,
                   void* stream, void** arguments, void**) {
  if (fake_fail_launch) return 1;
  if (!current) return 2;
  ++fake_launches;
  fake_stream = stream;
  fake_context = current;
  reinterpret_cast<Run>(function)(arguments[0], grid, block);
  return 0;
}

int nvrtcVersion(int* major, int* minor) { return *major = 99, *minor = 0, 0; }
const char* nvrtcGetErrorString(int) { return "fake error"; }
int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program{source, "", ""};
  return 0;
}
int nvrtcDestroyProgram(Program** program) { return delete *program, 0; }
int nvrtcCompileProgram(Program* program, int, const char* const*) {
  char folder[] = "/tmp/fake_nvrtc_XXXXXX";
  if (!mkdtemp(folder)) return 1;
  const std::string path = folder, source = path + "/k.cpp", library = path + "/k.so", log = path + "/log";
  std::ofstream(source) << unit(program->source);
  const std::string command = "g++ -shared " FLAGS " " + source + " -o " + library + " 2> " + log;
  const int status = std::system(command.c_str());
  program->log = contents(log);
  const std::string code = contents(library);
  if (std::system(("rm -r " + path).c_str()) != 0 || status != 0) return 1;
  Image image{};
  std::memcpy(image.header.e_ident, ELFMAG, SELFMAG);
  image.header.e_ident[EI_CLASS] = ELFCLASS64;
  image.header.e_machine = 190;
  (std::string(kSection) + entry_of(program->source)).copy(image.section, sizeof image.section - 1);
  image.bytes = code.size();
  program->cubin.assign(reinterpret_cast<const char*>(&image), sizeof image);
  program->cubin += code;
  ++fake_compiles;
  return 0;
}
int nvrtcGetProgramLogSize(Program* program, size_t* size) { return *size = program->log.size() + 1, 0; }
int nvrtcGetProgramLog(Program* program, char* out) { return std::strcpy(out, program->log.c_str()), 0; }
int nvrtcGetCUBINSize(Program* program, size_t* size) { return *size = program->cubin.size(), 0; }
int nvrtcGetCUBIN(Program* program, char* out) {
  return std::memcpy(out, program->cubin.data(), program->cubin.size()), 0;
}
int nvrtcGetPTXSize(Program*, size_t* size) { return *size = 1, 0; }
int nvrtcGetPTX(Program*, char* out) { return *out = 0, 0; }
}
