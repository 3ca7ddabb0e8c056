// CUDA source and the parameter struct of hand-made plans, cubin checks, and launches through a driver that only notes
// what it was told.
#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "backend/cuda_driver.h"
#include "backend/nvrtc.h"
#include "cache_helpers.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/rules.h"
#include "plan_builder.h"

namespace fastjit {
namespace {

using ir::DType;
using ir::Op;
using test::PlanBuilder;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

plan::KernelPlan softmax() {
  PlanBuilder b("kr", 1, 8);
  b.elem();
  const auto x = b.in(DType::F32, "*1");
  const auto greatest = b.reduce(ir::ReduceKind::Max, x, DType::F32);
  b.phase();
  const auto e = b.op(Op::Exp, b.op(Op::Sub, b.load(0), greatest));
  const auto kept = b.keep(e);
  const auto sum = b.reduce(ir::ReduceKind::Sum, e, DType::F32);
  b.phase();
  b.out(b.op(Op::Div, b.recall(kept), sum), "**");
  EXPECT_EQ(plan::verify(b.plan), "");
  return b.plan;
}

plan::KernelPlan scaled_add() {
  PlanBuilder b("kk", 1, 8);
  const auto x = b.in(DType::BF16, "*1"), y = b.in(DType::F32, "0*");
  const auto s = b.convert(b.scalar(DType::F64), DType::F32);
  b.out(b.op(Op::Fma, b.convert(x, DType::F32), s, y), "*1");
  EXPECT_EQ(plan::verify(b.plan), "");
  return b.plan;
}

TEST(CudaSource, NamesWhatItDoes) {
  const std::string source = codegen::cuda_source(scaled_add());
  for (const char* part : {"const unsigned short* in0;  // bf16", "float* out2;  // f32", "double scalar0;", "fmaf(",
                           "fj_from_bf16(x_0s[u])", "p.in1[i1 * p.in1_stride1]", "__launch_bounds__(256)"})
    EXPECT_TRUE(has(source, part)) << part << "\n" << source;
  EXPECT_FALSE(has(source, "fj_to_bf16")) << "only the helpers that are used";
  EXPECT_EQ(source, codegen::cuda_source(scaled_add()));
}

TEST(CudaSource, GathersAreLoadsAtAnIndex) {
  PlanBuilder b("kk", 1, 8);
  b.out(b.gather(DType::F32, "*1", b.in(DType::I64, "10")), "*1");
  EXPECT_EQ(plan::verify(b.plan), "");
  const std::string source = codegen::cuda_source(b.plan);
  EXPECT_TRUE(has(source, "p.in1[x_0s[u] * p.in1_step + i0 * p.in1_stride0 + i1]")) << source;
  EXPECT_TRUE(has(source, "  long long in1_step;")) << source;
  char index, table, out;
  void* ptrs[] = {&index, &table, &out};
  const int64_t sizes[] = {5, 70}, strides[] = {1, 0, 300, 1, 70, 1, 9};
  const backend::KernelArgs args{ptrs, sizes, strides, nullptr, nullptr, 0, 0};
  std::vector<uint64_t> words;
  backend::cuda_parameters(b.plan, args, words);
  const std::vector<uint64_t> behind_pointers(words.begin() + 3, words.end());
  EXPECT_EQ(behind_pointers, (std::vector<uint64_t>{5, 70, plan::divisor(70), 300, 70, 9}));
}

TEST(CudaSource, RowsAreReducedByABlockOrByAThread) {
  EXPECT_EQ(plan::threads_of(softmax()), plan::Threads::BlockPerRow);
  EXPECT_TRUE(has(codegen::cuda_source(softmax()), "FjSum<double>")) << "f32 sums accumulate in double";
  PlanBuilder columns("kr", 0, 8);
  columns.elem();
  const auto total = columns.reduce(ir::ReduceKind::Sum, columns.in(DType::F64, "1*"), DType::F64);
  columns.row().out(total, "10");
  EXPECT_EQ(plan::threads_of(columns.plan), plan::Threads::Points);
  const std::string source = codegen::cuda_source(columns.plan);
  EXPECT_TRUE(has(source, "FjSumExact<double>")) << source;
  EXPECT_FALSE(has(source, "__syncthreads")) << source;
}

TEST(CudaSource, EveryOpHasAFormForEachTypeItTakes) {
  const std::string args[3] = {"a", "b", "c"};
  for (size_t i = 0; i < ir::kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    if (!ir::is_pointwise(op) || op == Op::Convert) continue;
    const auto rule = ir::info(op).rule;
    for (const DType type : {DType::F32, DType::F64, DType::I8, DType::I64, DType::U8}) {
      const bool legal = rule == ir::TypeRule::Float      ? ir::is_float(type)
                         : rule == ir::TypeRule::Integral ? !ir::is_float(type)
                                                          : true;
      if (legal)
        EXPECT_NE(codegen::cuda_expression(op, type, args), "") << ir::text(op) << ir::text(type);
      else
        EXPECT_THROW(codegen::cuda_expression(op, type, args), std::runtime_error) << ir::text(op) << ir::text(type);
    }
  }
}

TEST(CudaLaunch, GridAndParametersFollowTheSizes) {
  const plan::KernelPlan rows = softmax();
  const int64_t sizes[] = {5000, 70}, strides[] = {100, 1, 140, 2};
  const plan::Grid grid = plan::grid_of(rows, sizes, 576);
  EXPECT_EQ(grid, (plan::Grid{5000, 32, 576})) << "four points a thread; what a row keeps is in shared memory";
  const int64_t long_sizes[] = {5000, 70000};
  EXPECT_EQ(plan::grid_of(rows, long_sizes, 560000), (plan::Grid{1024, 256, 0})) << "or in scratch memory";
  char x, y, scratch;
  void* ptrs[] = {&x, &y};
  const backend::KernelArgs args{ptrs, sizes, strides, nullptr, &scratch, 576, 0};
  auto word = [](const void* p) { return reinterpret_cast<uint64_t>(p); };
  std::vector<uint64_t> words{1, 2, 3};
  backend::cuda_parameters(rows, args, words);
  EXPECT_EQ(words, (std::vector<uint64_t>{word(&x), word(&y), 5000, 70, 100, 140, 2, word(&scratch), 576}));
  const int64_t none[] = {0, 70};
  EXPECT_EQ(plan::grid_of(scaled_add(), none, 0).blocks, 0u);
}

TEST(CudaLaunch, DivisorsDivide) {
  const auto quotient = [](uint64_t x, uint64_t by) {
    return ((x * (by & 0xffffffffu) >> 32) + x) >> (by >> 32);  // as fj_divide, whose sum has 32 bits
  };
  for (const int64_t size : {1, 2, 3, 5, 7, 10, 64, 100, 1000, 1024, 65535, 65537, 1 << 20, (1 << 30) - 1, INT32_MAX}) {
    const uint64_t by = plan::divisor(size);
    EXPECT_LT(by >> 32, 32u);
    for (const int64_t multiple : {int64_t{0}, size, 2 * size, INT32_MAX / size * size})
      for (const int64_t x : {multiple - 1, multiple, multiple + 1}) {
        if (x < 0 || x > INT32_MAX) continue;
        EXPECT_EQ(quotient(static_cast<uint64_t>(x), by), static_cast<uint64_t>(x / size)) << x << " / " << size;
      }
  }
}

TEST(CudaSource, WholeVectorsWhereTheyBeginAtMultiplesOfTheirSize) {
  plan::KernelPlan plan = scaled_add();
  EXPECT_FALSE(has(codegen::cuda_source(plan), "FjFour"));
  plan.vector = 4;
  EXPECT_NE(plan::verify(plan), "") << "an operand has another stride along the last dim";
  plan.operands[1].strides = {plan::StrideClass::Any, plan::StrideClass::Zero};
  EXPECT_EQ(plan::verify(plan), "");
  const std::string source = codegen::cuda_source(plan);
  for (const char* part : {"FjFour<unsigned short> x_0s[1]", "fj_load4<whole>(&p.in0[", "fj_store4<whole>(&p.out2[",
                           "((unsigned long long)p.in0 | (unsigned long long)p.out2) % 16 == 0"})
    EXPECT_TRUE(has(source, part)) << part << "\n" << source;
  const int64_t sizes[] = {100, 4096};
  EXPECT_EQ(plan::grid_of(plan, sizes, 0).blocks, 400u) << "a vector a thread";
}

TEST(CudaSource, TurnedOperandsGoThroughTilesInVectors) {
  PlanBuilder b("kk", 1, 8);
  const auto x = b.in(DType::F32, "1*"), y = b.in(DType::F32, "*1");
  b.out(b.op(Op::Add, x, y), "*1");
  plan::KernelPlan& plan = b.plan;
  plan.tile = 64;
  plan.tile_dim = 0;
  plan.vector = 4;
  EXPECT_EQ(plan::verify(plan), "");
  const std::string source = codegen::cuda_source(plan);
  for (const char* part :
       {"static __shared__ float tile0[64 * (64 + 1)];", "four0 = fj_load4<whole>(&p.in0[", "FjFour<float> x_1s[4]",
        "fj_store4<whole>(&p.out2[", "(unsigned long long)p.in0 | (unsigned long long)p.in1"})
    EXPECT_TRUE(has(source, part)) << part << "\n" << source;
  plan.tile = 0;
  plan.tile_dim = -1;
  EXPECT_NE(plan::verify(plan), "") << "without a tile nothing lies along the last dim of what is turned";
}

TEST(CudaSource, IndicesHave32BitsWhereTheyCan) {
  plan::KernelPlan plan = scaled_add();
  EXPECT_FALSE(plan::is_divided(plan, 0));
  EXPECT_TRUE(plan::is_divided(plan, 1));
  EXPECT_TRUE(has(codegen::cuda_source(plan), "const unsigned points_end"));
  plan.is_wide = true;
  EXPECT_FALSE(plan::is_divided(plan, 0));
  EXPECT_FALSE(plan::is_divided(plan, 1));
  EXPECT_TRUE(has(codegen::cuda_source(plan), "const long long points_end"));
}

// An ELF header of a cubin and the name of the entry's section.
std::string fake_cubin() {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_machine = 190;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes + ".text.fj_mul_f32" + std::string(1, '\0') + "more";
}

TEST(Cubin, OnlyCubinsWithTheEntryAreTaken) {
  const std::string good = fake_cubin();
  EXPECT_EQ(backend::validate_cubin(good), "");
  EXPECT_EQ(backend::load_cuda(good)->entry, nullptr);
  EXPECT_EQ(backend::validate_cubin(std::string()), "too short for a cubin");
  EXPECT_EQ(backend::validate_cubin(std::string(100, 'x')), "not an ELF64 file");
  EXPECT_EQ(backend::validate_cubin(std::span(good).first(sizeof(Elf64_Ehdr))), "the entry symbol is missing");
  std::string cpu = good;
  cpu[offsetof(Elf64_Ehdr, e_machine)] = EM_X86_64;
  EXPECT_EQ(backend::validate_cubin(cpu), "not for a GPU");
  EXPECT_THROW(backend::load_cuda(cpu), std::runtime_error);
  EXPECT_EQ(backend::cubin_entry(good), "fj_mul_f32");
  for (const char letter : {' ', '-', 'Q', '\n', '\xff'}) {
    std::string odd = good;
    odd[odd.find("mul")] = letter;
    EXPECT_EQ(backend::validate_cubin(odd), "the entry symbol is missing") << letter;
  }
  EXPECT_EQ(backend::validate_cubin(good.substr(0, good.find("mul")) + std::string(200, 'a')),
            "the entry symbol is missing");
}

// The functions of libcuda that are used. Each launch is noted in globals that the test reads.
constexpr const char* kFakeDriver = R"(
extern "C" {
int loads = 0, launches = 0, fail = 0, retained = 0;
void *context = 0, *stream_seen = 0, *pushed = 0;
unsigned grid_seen = 0, block_seen = 0;
unsigned long long first_word = 0;
int cuInit(unsigned) { return 0; }
int cuGetErrorString(int, const char** text) { *text = "the fake driver says no"; return 0; }
int cuDeviceGet(int* handle, int device) { *handle = 100 + device; return device > 1; }
int cuDevicePrimaryCtxRetain(void** out, int handle) { ++retained; *out = (void*)(long)handle; return 0; }
int cuCtxPushCurrent_v2(void* next) { pushed = next; context = next; return 0; }
int cuCtxPopCurrent_v2(void** out) { *out = context; context = 0; return 0; }
int cuDeviceGetAttribute(int* value, int which, int) { *value = which == 75 ? 9 : 0; return 0; }
int cuCtxGetCurrent(void** out) { *out = context; return 0; }
int cuModuleLoadData(void** out, const void*) { ++loads; *out = (void*)2; return fail; }
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** out, void*, const char*) { *out = (void*)3; return 0; }
int cuLaunchKernel(void*, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned, void* stream,
                   void** arguments, void**) {
  ++launches; grid_seen = grid; block_seen = block; stream_seen = stream;
  first_word = *(unsigned long long*)arguments[0];
  return 0;
}
})";

TEST(CudaDriver, LaunchesThroughTheLibrary) {
  const test::TempDir dir;
  const std::string source = dir.path + "/driver.cpp", library = dir.path + "/libfake.so";
  std::ofstream(source) << kFakeDriver;
  ASSERT_EQ(std::system(("g++ -shared -fPIC -o " + library + " " + source).c_str()), 0);
  ASSERT_EQ(backend::cuda_problem(library.c_str()), "");
  void* handle = dlopen(library.c_str(), RTLD_NOW);
  auto& fail = *static_cast<int*>(dlsym(handle, "fail"));
  auto& context = *static_cast<uintptr_t*>(dlsym(handle, "context"));

  auto number = [&](const char* name) { return *static_cast<int*>(dlsym(handle, name)); };

  EXPECT_EQ(backend::cuda_sm(0), 90);
  const backend::CudaContext first = backend::cuda_context(0), second = backend::cuda_context(1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first), 100u);
  EXPECT_EQ(backend::cuda_context(0), first);
  EXPECT_EQ(number("retained"), 2) << "once a device";
  const auto kernel = backend::load_cuda(fake_cubin());
  const plan::Grid grid{7, 64};
  const std::vector<uint64_t> words{42, 43};
  {
    const backend::CudaContextGuard current(first);
    EXPECT_EQ(context, 100u);
    const backend::CudaContextGuard again(first);
    const backend::CudaFunction function = backend::cuda_function(*kernel, first);
    EXPECT_EQ(backend::cuda_function(*kernel, first), function);
    EXPECT_EQ(number("loads"), 1) << "a module is loaded once a context";
    backend::cuda_launch(function, grid, words, 5);
    backend::cuda_launch(function, {0, 64}, {}, 0);
    EXPECT_EQ(number("launches"), 1) << "an empty grid is not launched";
  }
  EXPECT_EQ(context, 0u) << "the thread is left without a context, as it was";
  EXPECT_EQ(number("grid_seen"), 7);
  EXPECT_EQ(number("block_seen"), 64);
  EXPECT_EQ(*static_cast<uintptr_t*>(dlsym(handle, "stream_seen")), 5u);
  EXPECT_EQ(*static_cast<uint64_t*>(dlsym(handle, "first_word")), 42u);

  auto failure = [](auto call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  fail = 1;
  EXPECT_EQ(failure([&] { backend::cuda_function(*kernel, second); }),
            "loading a kernel failed: the fake driver says no");
  EXPECT_EQ(failure([&] { backend::cuda_function(backend::Kernel(), first); }),
            "a CPU kernel has no function on a GPU");
  EXPECT_EQ(failure([] { backend::cuda_sm(2); }), "finding the device failed: the fake driver says no");
}

}  // namespace
}  // namespace fastjit
