// Reader and validator of compiled kernels (ELF64, x86-64, relocatable). It takes exactly what our compiler writes: one
// code section with functions end to end, constants, PC-relative relocations between them, one global symbol. Anything
// else is refused, and every number is checked before it is used: a disk cache, or whoever can write to it, is not
// trusted. The linker, which is LLVM's, sees no other objects.
#include <elf.h>

#include <algorithm>
#include <cstring>

#include "backend/compiler.h"
#include "support/log.h"

namespace fastjit::backend {
namespace {

constexpr uint64_t kMaxObject = 8u << 20;
constexpr unsigned kMaxSections = 64, kMaxSymbols = 1u << 16;
constexpr uint64_t kMaxAlign = 64, kFunctionAlign = 16;

enum class Role : uint8_t { Code, Data, Relocations, Symbols, Strings, Empty };
struct Allowed {
  std::string_view name;
  uint32_t type;
  uint64_t flags, entry_size;
  Role role;
};
constexpr Allowed kAllowed[] = {
    {".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 0, Role::Code},
    {".rodata", SHT_PROGBITS, SHF_ALLOC, 0, Role::Data},
    {".rodata.cst4", SHT_PROGBITS, SHF_ALLOC | SHF_MERGE, 4, Role::Data},
    {".rodata.cst8", SHT_PROGBITS, SHF_ALLOC | SHF_MERGE, 8, Role::Data},
    {".rodata.cst16", SHT_PROGBITS, SHF_ALLOC | SHF_MERGE, 16, Role::Data},
    {".rodata.cst32", SHT_PROGBITS, SHF_ALLOC | SHF_MERGE, 32, Role::Data},
    {".rodata.cst64", SHT_PROGBITS, SHF_ALLOC | SHF_MERGE, 64, Role::Data},
    {".rela.text", SHT_RELA, SHF_INFO_LINK, sizeof(Elf64_Rela), Role::Relocations},
    {".symtab", SHT_SYMTAB, 0, sizeof(Elf64_Sym), Role::Symbols},
    {".strtab", SHT_STRTAB, 0, 0, Role::Strings},
    {".note.GNU-stack", SHT_PROGBITS, 0, 0, Role::Empty},
};

class Reader {
 public:
  explicit Reader(std::span<const char> bytes) : bytes_(bytes) {}

  std::string run() {
    if (header() && sections() && overlaps() && symbols()) relocations();
    return error_;
  }

 private:
  bool fail(std::string reason) {
    error_ = std::move(reason);
    return false;
  }

  template <class T>
  T at(uint64_t offset) const {  // the caller has checked the range
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  bool inside(uint64_t offset, uint64_t size) const {
    return offset <= bytes_.size() && size <= bytes_.size() - offset;
  }

  bool header() {
    if (bytes_.size() < sizeof(Elf64_Ehdr)) return fail("object is shorter than an ELF header");
    if (bytes_.size() > kMaxObject) return fail("object is larger than 8 MiB");
    const auto h = at<Elf64_Ehdr>(0);
    constexpr unsigned char ident[EI_NIDENT] = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
    if (std::memcmp(h.e_ident, ident, EI_NIDENT) != 0) return fail("object is not ELF64, little endian, System V");
    if (h.e_type != ET_REL || h.e_machine != EM_X86_64 || h.e_version != EV_CURRENT)
      return fail("object is not relocatable x86-64");
    if (h.e_entry || h.e_phoff || h.e_phentsize || h.e_phnum || h.e_flags || h.e_ehsize != sizeof(Elf64_Ehdr))
      return fail("ELF header has unexpected fields");
    if (h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shnum < 2 || h.e_shnum > kMaxSections)
      return fail("section header table has an unexpected size");
    if (h.e_shoff % 8 || !inside(h.e_shoff, uint64_t{h.e_shnum} * sizeof(Elf64_Shdr)))
      return fail("section header table is out of bounds");
    for (unsigned i = 0; i < h.e_shnum; ++i) sections_.push_back(at<Elf64_Shdr>(h.e_shoff + i * sizeof(Elf64_Shdr)));
    table_ = h.e_shoff;
    names_ = h.e_shstrndx;
    if (names_ == 0 || names_ >= sections_.size()) return fail("section names are missing");
    return true;
  }

  /// The string at `offset` of a string section; empty when it is not terminated inside.
  std::string_view string(unsigned section, uint64_t offset) const {
    const Elf64_Shdr& s = sections_[section];
    if (offset >= s.sh_size) return {};
    const char* start = bytes_.data() + s.sh_offset + offset;
    const void* end = std::memchr(start, 0, s.sh_size - offset);
    return end ? std::string_view(start, static_cast<const char*>(end)) : std::string_view();
  }

  bool terminated(unsigned section, uint64_t offset) const {
    const Elf64_Shdr& s = sections_[section];
    return offset < s.sh_size && std::memchr(bytes_.data() + s.sh_offset + offset, 0, s.sh_size - offset);
  }

  bool sections() {
    constexpr Elf64_Shdr null{};
    if (std::memcmp(&sections_[0], &null, sizeof null) != 0) return fail("section 0 is not empty");
    for (size_t i = 1; i < sections_.size(); ++i)
      if (!inside(sections_[i].sh_offset, sections_[i].sh_size))
        return fail("section " + std::to_string(i) + " is out of bounds");
    roles_.assign(sections_.size(), Role::Empty);
    for (size_t i = 1; i < sections_.size(); ++i)
      if (!section(i)) return false;
    if (!code_ || !symbols_ || !strings_) return fail("code, symbols or strings are missing");
    if (sections_[code_].sh_size == 0) return fail("code is empty");
    const Elf64_Shdr& table = sections_[symbols_];
    if (table.sh_link != strings_ || names_ != strings_) return fail("symbol names are not in the string table");
    if (relocations_ && (sections_[relocations_].sh_link != symbols_ || sections_[relocations_].sh_info != code_))
      return fail("relocations do not belong to the code");
    return true;
  }

  bool section(size_t i) {
    const Elf64_Shdr& s = sections_[i];
    const std::string_view name = string(names_, s.sh_name);
    const auto* row =
        std::find_if(std::begin(kAllowed), std::end(kAllowed), [&](const Allowed& a) { return a.name == name; });
    if (row == std::end(kAllowed))
      return fail("section " + std::to_string(i) + " is of a kind that kernels do not have");
    const std::string quoted = "section " + std::string(name);
    if (s.sh_type != row->type || s.sh_flags != row->flags || s.sh_entsize != row->entry_size || s.sh_addr)
      return fail(quoted + " has unexpected attributes");
    if (s.sh_addralign == 0 || s.sh_addralign > kMaxAlign || (s.sh_addralign & (s.sh_addralign - 1)) ||
        s.sh_offset % s.sh_addralign)
      return fail(quoted + " has an unexpected alignment");
    if (row->entry_size && s.sh_size % row->entry_size) return fail(quoted + " has a broken size");
    const bool linked = row->role == Role::Relocations || row->role == Role::Symbols;
    if (!linked && (s.sh_link || s.sh_info)) return fail(quoted + " has unexpected links");
    roles_[i] = row->role;
    unsigned* slot = row->role == Role::Code          ? &code_
                     : row->role == Role::Relocations ? &relocations_
                     : row->role == Role::Symbols     ? &symbols_
                     : row->role == Role::Strings     ? &strings_
                                                      : nullptr;
    if (slot && *slot) return fail(quoted + " appears twice");
    if (slot) *slot = static_cast<unsigned>(i);
    if (row->role == Role::Empty && s.sh_size) return fail(quoted + " is not empty");
    return true;
  }

  // Every byte has one meaning: ranges follow one another with zeros for alignment between them and nothing after.
  bool overlaps() {
    struct Range {
      uint64_t from, size, align;
    };
    std::vector<Range> ranges{{0, sizeof(Elf64_Ehdr), 1}, {table_, sections_.size() * sizeof(Elf64_Shdr), 8}};
    for (const Elf64_Shdr& s : sections_)
      if (s.sh_size) ranges.push_back({s.sh_offset, s.sh_size, s.sh_addralign});
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.from < b.from; });
    uint64_t end = 0;
    for (const Range& range : ranges) {
      if (range.from < end) return fail("sections overlap");
      if (range.from - end >= range.align) return fail("there are bytes between sections");
      for (; end < range.from; ++end)
        if (bytes_[end]) return fail("padding between sections is not zero");
      end = range.from + range.size;
    }
    return end == bytes_.size() || fail("there are bytes after the last section");
  }

  bool symbols() {
    const Elf64_Shdr& table = sections_[symbols_];
    const uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    if (count < 2 || count > kMaxSymbols) return fail("symbol table has an unexpected size");
    bool entry = false;
    for (uint64_t i = 0; i < count; ++i) {
      const auto s = at<Elf64_Sym>(table.sh_offset + i * sizeof(Elf64_Sym));
      symbol_table_.push_back(s);
      constexpr Elf64_Sym null{};
      if (i == 0) {
        if (std::memcmp(&s, &null, sizeof s) != 0) return fail("symbol 0 is not empty");
        continue;
      }
      const std::string which = "symbol " + std::to_string(i);
      if (s.st_shndx == SHN_UNDEF)
        return fail(which + " is undefined: " + support::printable(std::string(string(strings_, s.st_name))));
      if (!terminated(strings_, s.st_name)) return fail(which + " has a name out of bounds");
      if (s.st_other) return fail(which + " has unexpected attributes");
      const bool local = i < table.sh_info;
      const unsigned type = ELF64_ST_TYPE(s.st_info);
      if (ELF64_ST_BIND(s.st_info) != (local ? STB_LOCAL : STB_GLOBAL))
        return fail(which + " has an unexpected binding");
      if (local && type == STT_FILE && s.st_shndx == SHN_ABS && !s.st_value && !s.st_size) continue;
      if (s.st_shndx >= sections_.size() || (roles_[s.st_shndx] != Role::Code && roles_[s.st_shndx] != Role::Data))
        return fail(which + " lies in no code or data");
      if (type == STT_FUNC && s.st_shndx == code_) functions_.emplace_back(s.st_value, s.st_size);
      if (local && type == STT_FUNC && s.st_shndx == code_) continue;
      if (local) {
        if ((type != STT_NOTYPE && type != STT_SECTION) || s.st_size || s.st_value > sections_[s.st_shndx].sh_size)
          return fail(which + " is of an unexpected kind");
        continue;
      }
      if (entry || type != STT_FUNC || s.st_shndx != code_ || s.st_value || !is_entry_name(string(strings_, s.st_name)))
        return fail(which + " is a global other than the entry");
      entry = true;
    }
    return entry ? functions() : fail("the entry symbol is missing");
  }

  // The entry, then the functions that it calls, up to the end of the code.
  bool functions() {
    std::sort(functions_.begin(), functions_.end());
    uint64_t end = 0;
    for (const auto& [from, size] : functions_) {
      const uint64_t rest = sections_[code_].sh_size - end;
      if (from < end || from - end >= kFunctionAlign || size == 0 || from - end > rest || size > rest - (from - end))
        return fail("functions do not follow one another");
      end = from + size;
    }
    return end == sections_[code_].sh_size || fail("there is code after the last function");
  }

  bool relocations() {
    if (!relocations_) return true;
    const Elf64_Shdr& table = sections_[relocations_];
    const uint64_t count = table.sh_size / sizeof(Elf64_Rela), code_size = sections_[code_].sh_size;
    uint64_t free_from = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const auto r = at<Elf64_Rela>(table.sh_offset + i * sizeof(Elf64_Rela));
      const std::string which = "relocation " + std::to_string(i);
      if (ELF64_R_TYPE(r.r_info) != R_X86_64_PC32) return fail(which + " is of an unexpected type");
      const uint64_t number = ELF64_R_SYM(r.r_info);
      if (number == 0 || number >= symbol_table_.size()) return fail(which + " names no symbol");
      const Elf64_Sym& s = symbol_table_[number];
      if (s.st_shndx >= sections_.size()) return fail(which + " names a symbol without a place");
      if (r.r_offset < free_from || code_size < 4 || r.r_offset > code_size - 4)
        return fail(which + " patches outside the code or out of order");
      free_from = r.r_offset + 4;
      // The displacement counts from the end of the instruction: four bytes on, plus up to four of an immediate.
      const int64_t size = static_cast<int64_t>(sections_[s.st_shndx].sh_size);
      if (r.r_addend < -8 || r.r_addend >= size) return fail(which + " has an addend out of bounds");
      const int64_t target = static_cast<int64_t>(s.st_value) + r.r_addend;
      if (target < -8 || target + 4 >= size) return fail(which + " points out of its section");
    }
    return true;
  }

  std::span<const char> bytes_;
  std::string error_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<Role> roles_;
  std::vector<Elf64_Sym> symbol_table_;
  std::vector<std::pair<uint64_t, uint64_t>> functions_;  // where each begins, and its size
  uint64_t table_ = 0;
  unsigned names_ = 0, code_ = 0, relocations_ = 0, symbols_ = 0, strings_ = 0;
};

}  // namespace

std::string validate_object(std::span<const char> object) { return Reader(object).run(); }

}  // namespace fastjit::backend
