// Objects of kernels: what is refused, and that what is not refused can be linked.
#include <elf.h>

#include <cstring>

#include "chain_object.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;

TEST(ObjectCheck, AcceptsWhatTheCompilerWrites) {
  for (backend::Isa isa : {backend::Isa::Avx2, backend::Isa::Avx512}) {
    const auto compiled = backend::compile_cpu(chain(), cpu(isa));
    EXPECT_EQ(backend::validate_object(compiled.object), "");
    EXPECT_LT(compiled.object.size(), 16384u);
  }
}

TEST(ObjectCheck, EveryTruncationIsRefused) {
  for (size_t n = 0; n < object().size(); ++n) {
    std::string cut = object().substr(0, n);
    ASSERT_NE(backend::validate_object(cut), "") << "cut to " << n << " bytes";
    EXPECT_THROW(backend::load_cpu(cut), std::runtime_error);
  }
}

/// Bytes of `object` that a section of one type has, by that section's header.
Elf64_Shdr header_of(const std::string& object, const char* name) {
  Elf64_Ehdr file;
  std::memcpy(&file, object.data(), sizeof file);
  Elf64_Shdr names;
  std::memcpy(&names, object.data() + file.e_shoff + file.e_shstrndx * sizeof names, sizeof names);
  for (unsigned i = 1; i < file.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, object.data() + file.e_shoff + i * sizeof section, sizeof section);
    if (object.c_str() + names.sh_offset + section.sh_name == std::string_view(name)) return section;
  }
  return {};
}

/// What is wrong with the linked code of `bad`: it is that of the object, and every displacement stays in the kernel.
std::string wrong_in(const std::string& bad, const backend::Kernel& kernel) {
  const char* code = reinterpret_cast<const char*>(kernel.entry);
  const Elf64_Shdr text = header_of(bad, ".text"), relocations = header_of(bad, ".rela.text");
  std::string expected = bad.substr(text.sh_offset, text.sh_size);
  for (uint64_t i = 0; i < relocations.sh_size / sizeof(Elf64_Rela); ++i) {
    Elf64_Rela r;
    std::memcpy(&r, bad.data() + relocations.sh_offset + i * sizeof r, sizeof r);
    int32_t displacement;
    std::memcpy(&displacement, code + r.r_offset, sizeof displacement);
    const int64_t target = static_cast<int64_t>(r.r_offset) + 4 + displacement, most = bad.size() + 64 * 12;
    if (target < -most || target > most) return "relocation " + std::to_string(i) + " points far away";
    expected.replace(r.r_offset, 4, code + r.r_offset, 4);
  }
  return expected == std::string_view(code, expected.size()) ? "" : "the code differs";
}

// A corrupt byte is refused, or it is a byte of code or of a constant, or one that decides a displacement inside the
// kernel, or nothing at all. What is not refused can be linked, and its code is where it was.
void corrupt_each_byte(const std::string& object) {
  size_t refused = 0, tried = 0;
  for (size_t at = 0; at < object.size(); ++at)
    for (int flip : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff}) {
      std::string bad = object;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      ++tried;
      if (!backend::validate_object(bad).empty()) {
        ++refused;
        continue;
      }
      const auto kernel = backend::load_cpu(bad);
      ASSERT_EQ(header_of(bad, ".text").sh_size, header_of(object, ".text").sh_size) << "byte " << at;
      ASSERT_EQ(wrong_in(bad, *kernel), "") << "byte " << at;
    }
  EXPECT_GT(refused, tried / 4);  // headers, symbols and relocations are about half of an object
}

/// The same kernel with a function that it calls.
std::string calling_object() {
  plan::KernelPlan plan = chain();
  for (plan::Instr& in : plan.code) in.shared = in.op == Op::Fmod;
  return backend::compile_cpu(plan, cpu(backend::Isa::Avx2)).object;
}

TEST(ObjectCheck, EveryCorruptByteIsRefusedOrStaysInsideTheKernel) { corrupt_each_byte(object()); }
TEST(ObjectCheck, TheSameOfAKernelThatCallsAFunction) { corrupt_each_byte(calling_object()); }

TEST(ObjectCheck, FunctionsLieEndToEnd) {
  const std::string object = calling_object();
  EXPECT_EQ(backend::validate_object(object), "");
  const Elf64_Shdr table = header_of(object, ".symtab");
  size_t tried = 0;
  for (uint64_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
    Elf64_Sym symbol;
    const size_t at = table.sh_offset + i * sizeof symbol;
    std::memcpy(&symbol, object.data() + at, sizeof symbol);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
    for (const int64_t change : {-40, 40}) {
      Elf64_Sym other = symbol;
      other.st_size = symbol.st_size + static_cast<uint64_t>(change);
      std::string bad = object;
      std::memcpy(bad.data() + at, &other, sizeof other);
      EXPECT_NE(backend::validate_object(bad), "") << "symbol " << i << " by " << change;
      ++tried;
    }
  }
  EXPECT_EQ(tried, 6u);  // the kernel, and its function for one vector and for two
}

// One field at a time, each with the reason that names it.
TEST(ObjectCheck, NamesWhatItRefuses) {
  struct Case {
    size_t offset;
    char value;
    const char* reason;
  };
  const Case cases[] = {{0, 'x', "ELF64"},
                        {4, 1, "ELF64"},
                        {16, 3, "relocatable"},
                        {18, 3, "relocatable"},
                        {48, 1, "unexpected fields"},
                        {58, 1, "unexpected size"},
                        {41, 0x7f, "out of bounds"}};
  for (const Case& c : cases) {
    std::string bad = object();
    bad[c.offset] = c.value;
    EXPECT_NE(backend::validate_object(bad).find(c.reason), std::string::npos)
        << c.offset << ": " << backend::validate_object(bad);
  }
}

TEST(ObjectCheck, TheEntryHasANameOfAKernel) {
  const std::string name = plan::name(chain());
  EXPECT_EQ(name, "fj_mul_add_fmod_f32");
  const size_t at = object().find(name);
  ASSERT_NE(at, std::string::npos);
  for (const char* wrong : {"xj_m", "fj-m", "fj_M", "fj_-", "fj_ "}) {
    std::string bad = object();
    bad.replace(at, 4, wrong);
    EXPECT_NE(backend::validate_object(bad).find("is a global other than the entry"), std::string::npos) << wrong;
  }
  std::string longer = std::string(plan::kNamePrefix) + std::string(200, 'a');
  EXPECT_FALSE(backend::is_entry_name(longer));
  EXPECT_TRUE(backend::is_entry_name(longer.substr(0, 100)));
}

size_t section_header(const std::string& bytes, uint32_t type) {
  Elf64_Ehdr h;
  std::memcpy(&h, bytes.data(), sizeof h);
  for (unsigned i = 0; i < h.e_shnum; ++i) {
    Elf64_Shdr s;
    std::memcpy(&s, bytes.data() + h.e_shoff + i * sizeof s, sizeof s);
    if (s.sh_type == type) return h.e_shoff + i * sizeof s;
  }
  return 0;
}

TEST(ObjectCheck, RefusesUndefinedSymbolsAndForeignRelocations) {
  Elf64_Shdr table;
  std::memcpy(&table, object().data() + section_header(object(), SHT_SYMTAB), sizeof table);
  std::string bad = object();
  const size_t last = table.sh_offset + table.sh_size - sizeof(Elf64_Sym);
  bad[last + offsetof(Elf64_Sym, st_shndx)] = 0;
  EXPECT_NE(backend::validate_object(bad).find("undefined"), std::string::npos);
  std::memcpy(&table, object().data() + section_header(object(), SHT_RELA), sizeof table);
  bad = object();
  bad[table.sh_offset + offsetof(Elf64_Rela, r_info)] = R_X86_64_GOTPCREL;
  EXPECT_NE(backend::validate_object(bad).find("unexpected type"), std::string::npos);
  bad = object();
  bad[table.sh_offset + offsetof(Elf64_Rela, r_offset) + 3] = 1;
  EXPECT_NE(backend::validate_object(bad).find("outside the code"), std::string::npos);
  bad = object();
  bad[table.sh_offset + offsetof(Elf64_Rela, r_addend) + 2] = 1;
  EXPECT_NE(backend::validate_object(bad).find("out of bounds"), std::string::npos);
}

TEST(Target, LevelsAndNames) {
  EXPECT_EQ(backend::text(backend::Isa::Avx2), "avx2");
  EXPECT_EQ(backend::text(cpu(backend::Isa::Avx512)), "cpu-avx512");
  EXPECT_EQ(backend::text(backend::Target{backend::Target::Kind::Cuda, {}, 90}), "sm_90");
  EXPECT_EQ(backend::lanes_for(backend::Isa::Avx512), 16);
  EXPECT_TRUE(backend::host_has(backend::host_isa()));
  setenv("FASTJIT_ISA", "avx2", 1);
  EXPECT_EQ(backend::host_isa(), backend::Isa::Avx2);
  unsetenv("FASTJIT_ISA");
  const backend::Isa best = backend::host_isa();
  setenv("FASTJIT_ISA", "sse9", 1);  // said when the extension is loaded
  EXPECT_EQ(backend::host_isa(), best);
  unsetenv("FASTJIT_ISA");
}

TEST(KernelPlan, TextIsCompleteAndVerifyNamesTheRule) {
  PlanBuilder p("kr", 1, 8, 2);
  p.elem();
  const auto x = p.in(DType::F32, "*1");
  const auto sum = p.reduce(ir::ReduceKind::Sum, x, DType::F32);
  p.row().out(sum, "*0");
  EXPECT_EQ(plan::verify(p.plan), "");
  EXPECT_EQ(plan::text(p.plan),
            "kernel dims [kr] vec d1 lanes 8 unroll 2 numerics eager\noperand #0 f32 in [*1]\noperand #1 f32 out [*0]\n"
            "phase 0\n  elem\n    %0 = load #0:f32\n    %1 = reduce.sum %0:f32\n  row\n    store #1, %1:f32\n");
  const std::string text = plan::text(p.plan);
  auto refused = [&](auto&& change, const char* reason) {
    plan::KernelPlan bad = p.plan;
    change(bad);
    EXPECT_NE(plan::text(bad), text);
    EXPECT_NE(plan::verify(bad).find(reason), std::string::npos) << plan::verify(bad);
    EXPECT_THROW(backend::compile_cpu(bad, cpu(backend::Isa::Avx2)), std::runtime_error);
  };
  refused([](auto& b) { b.lanes = 3; }, "power of two");
  refused([](auto& b) { b.unroll = 0; }, "unroll");
  refused([](auto& b) { b.vec_dim = -1; }, "one lane");
  refused([](auto& b) { b.code[0].dtype = DType::F64; }, "operand's type");
  refused([](auto& b) { b.code[1].args[0] = 7; }, "not computed before");
  refused([](auto& b) { b.code[2].args[0] = 0; }, "outside its loop");
  refused([](auto& b) { b.operands[1].output = false; }, "no output");
  refused([](auto& b) { std::swap(b.dims[0], b.dims[1]); }, "kept dims come before");
  refused([](auto& b) { b.phases[0].row.clear(); }, "never stored");
}

}  // namespace
}  // namespace fastjit::test
