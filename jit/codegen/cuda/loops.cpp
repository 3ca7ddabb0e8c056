// How threads run over points, reduced indices and tiles.
#include <algorithm>

#include "codegen/cuda/emitter.h"
#include "codegen/cuda/rules.h"

namespace fastjit::codegen {

using plan::Code;

// Inside the loop over a vector's elements, that of the element.
std::string CudaEmitter::index(int dim) const {
  const std::string name = "i" + number(dim);
  return in_vector_ && dim == rank() - 1 ? "(" + name + " + v)" : name;
}

std::string CudaEmitter::vectors(int dim) const {
  const bool is_whole = plan_.vector == 1 || dim != rank() - 1;
  return is_whole ? size(dim) : "(" + size(dim) + " / " + number(plan_.vector) + ")";
}

static bool is_in_scratch(const plan::Instr& in) { return in.code == Code::Keep || in.code == Code::Recall; }

bool CudaEmitter::is_vector(const Instr& in) const {
  if (plan_.vector == 1) return false;
  const bool is_operand = in.code == Code::Load || in.code == Code::Store;
  return is_in_scratch(in) || (is_operand && plan_.operands[in.imm].strides.back() == plan::StrideClass::Unit);
}

std::string CudaEmitter::vector_type(const Instr& in) const {
  if (in.code == Code::Reduce) return "FjFour<float>";
  const ir::DType type = is_in_scratch(in) ? plan_.scratch[in.imm] : plan_.operands[in.imm].dtype;
  return "FjFour<" + std::string(cuda_memory_type(type)) + ">";
}

std::string CudaEmitter::vector_place(const Instr& in) const {
  return "&" + (is_in_scratch(in) ? scratch(in.imm, "r * " + number(plan_.vector)) : memory(in.imm));
}

// i<first>.. = the digits of `flat` in the sizes of dims [first, last); the values nobody reads are the compiler's to
// drop.
void CudaEmitter::decode(const std::string& flat, int first, int last) {
  if (first == last) return;
  const std::string type(index_type());
  const auto define = [&](int d, const std::string& digit) {
    const bool is_vector = plan_.vector > 1 && d == rank() - 1, is_name = digit.find(' ') == digit.npos;
    const std::string whole = !is_vector || is_name ? digit : "(" + digit + ")";
    line("const " + type + " " + index(d) + " = " + whole + (is_vector ? " * " + number(plan_.vector) : "") + ";");
  };
  std::string rest = flat;
  for (int d = last - 1; d > first; --d) {
    const std::string above = "rest" + number(d);
    line("const " + type + " " + above + " = " +
         (plan_.is_wide ? rest + " / " + vectors(d) : "fj_divide(" + rest + ", p.by" + number(d) + ")") + ";");
    define(d, rest + " - " + above + " * " + vectors(d));
    rest = above;
  }
  define(first, rest);
}

std::string CudaEmitter::product(int first, int last) const {
  std::string out;
  for (int d = first; d < last; ++d) out += (d > first ? " * " : "") + vectors(d);
  return out.empty() ? "1" : out;
}

// What all values of `at` in a round load from memory stands before what any of them stores, so that the loads are
// under way together. For those beyond the end the first is loaded again, so that no thread reads what is another's,
// and nothing else is done.
void CudaEmitter::together(const Loop& loop, std::span<const uint32_t> ids) {
  const std::string type(index_type()), count = number(points_), base = loop.at + "s", past = base + "_end";
  const std::string at = base + " + u * " + loop.apart;
  const std::vector<uint32_t> early = loads_before_stores(ids);
  line("const " + type + " " + past + " = " + loop.end + ";");
  open("for (" + type + " " + base + " = " + loop.first + "; " + base + " < " + past + "; " + base +
       " += " + loop.step + ")");
  if (!early.empty()) load_early(loop, at, early);
  line("#pragma unroll");
  open("for (unsigned u = 0; u < " + count + "; ++u)");
  line("const " + type + " " + loop.at + " = " + at + ";");
  open("if (" + loop.at + " < " + past + ")");
  if (plan_.tile > 0)
    place_in_tile(false);
  else if (early.empty() || remembered(loop).empty())
    decode(loop.at, loop.from, loop.to);
  else
    for (const int d : remembered(loop)) line("const " + type + " " + index(d) + " = " + index(d) + "s[u];");
  std::vector<uint32_t> others;
  for (uint32_t id : ids)
    if (!std::ranges::binary_search(early, id)) others.push_back(id);
  for (uint32_t id : early) names_[id] = loaded(id);
  if (plan_.vector > 1)
    each_of_vector(ids, others);
  else
    for (uint32_t id : others) run(id);
  close();
  close();
  close();
}

void CudaEmitter::load_early(const Loop& loop, const std::string& at, std::span<const uint32_t> early) {
  const std::string type(index_type()), count = number(points_), base = loop.at + "s", past = base + "_end";
  for (uint32_t id : early) {
    const Instr& in = plan_.code[id];
    line((is_vector(in) ? vector_type(in) : std::string(cuda_type(in.dtype))) + " " + all(id) + "[" + count + "];");
  }
  for (const int d : remembered(loop)) line(type + " " + index(d) + "s[" + count + "];");
  line("#pragma unroll");
  open("for (unsigned u = 0; u < " + count + "; ++u)");
  line("const " + type + " " + loop.at + " = " + at + " < " + past + " ? " + at + " : " + base + ";");
  plan_.tile > 0 ? place_in_tile(true) : decode(loop.at, loop.from, loop.to);
  for (const int d : remembered(loop)) line(index(d) + "s[u] = " + index(d) + ";");
  for (uint32_t id : early) {
    const Instr& in = plan_.code[id];
    line(all(id) + "[u] = " + (is_vector(in) ? "fj_load4<whole>(" + vector_place(in) + ")" : value(in)) + ";");
  }
  close();
}

std::string CudaEmitter::loaded(uint32_t id) const {
  const Instr& in = plan_.code[id];
  if (!is_vector(in)) return all(id) + "[u]";
  const std::string element = all(id) + "[u].at[v]";
  return in.dtype == ir::DType::Bool ? "(" + element + " != 0)" : element;
}

// What stores whole vectors gathers them, and what sums them in double adds a vector's own sum: one conversion, not
// four.
void CudaEmitter::each_of_vector(std::span<const uint32_t> ids, std::span<const uint32_t> others) {
  std::vector<uint32_t> gathered;
  for (uint32_t id : ids)
    if (is_gathered(plan_.code[id])) gathered.push_back(id);
  for (uint32_t id : gathered) line(vector_type(plan_.code[id]) + " to_" + number(id) + ";");
  line("#pragma unroll");
  open("for (unsigned v = 0; v < " + number(plan_.vector) + "; ++v)");
  in_vector_ = true;
  for (uint32_t id : others) run(id);
  in_vector_ = false;
  close();
  for (uint32_t id : gathered) {
    const Instr& in = plan_.code[id];
    const std::string vector = "to_" + number(id);
    if (in.code == Code::Reduce)
      line("acc_" + number(id) + ".add(fj_sum4(" + vector + "), r);");
    else
      line("fj_store4<whole>(" + vector_place(in) + ", " + vector + ");");
  }
}

bool CudaEmitter::is_gathered(const Instr& in) const {
  if (in.code == Code::Reduce)
    return plan_.vector > 1 && in.kind == ir::ReduceKind::Sum && plan_.code[in.args[0]].dtype == ir::DType::F32;
  return (in.code == Code::Store || in.code == Code::Keep) && is_vector(in);
}

// Dims whose indices are told apart once for both parts of a round.
std::vector<int> CudaEmitter::remembered(const Loop& loop) const {
  std::vector<int> dims;
  if (plan_.tile > 0 || (plan_.vector == 1 && loop.to - loop.from == 1)) return dims;
  for (int d = loop.from; d < loop.to; ++d) dims.push_back(d);
  return dims;
}

// In order. A kernel may load what it has stored: in place, the element that it wrote itself.
std::vector<uint32_t> CudaEmitter::loads_before_stores(std::span<const uint32_t> ids) const {
  std::vector<uint32_t> out;
  if (points_ == 1 && plan_.vector == 1) return out;
  for (uint32_t id : ids) {
    const Instr& in = plan_.code[id];
    if (in.code == Code::Store || in.code == Code::Keep) break;
    const bool is_element = plan_.vector > 1 && in.code == Code::Load && plan_.is_transposed(in.imm);
    if ((in.code == Code::Load || in.code == Code::Recall) && !is_element) out.push_back(id);
  }
  std::ranges::sort(out);
  return out;
}

// Squares of tile x tile points of the last two dims, a block each. What lies along the first of them is read and
// written in that order, through shared memory whose rows are one element longer, so that threads side by side meet
// all of its banks.
void CudaEmitter::tiles() {
  const std::string side = number(plan_.tile), type(index_type());
  const int down = plan_.tile_dim, along = plan_.vec_dim;
  const auto count = [&](int dim) { return "(" + size(dim) + " + " + side + " - 1) / " + side; };
  line("const " + type + " tiles_down = " + count(down) + ", tiles_along = " + count(along) + ";");
  line("const " + type + " tiles = " + product(0, down) + " * tiles_down * tiles_along;");
  open("for (" + type + " tile = blockIdx.x; tile < tiles; tile += gridDim.x)");
  line("const " + type + " left = tile % tiles_along * " + side + ", rest = tile / tiles_along;");
  line("const " + type + " top = rest % tiles_down * " + side + ", outer = rest / tiles_down;");
  decode("outer", 0, down);
  if (copy_tiles(false)) line("__syncthreads();");
  open("");
  together({"point", in_all_of_tile(), "threadIdx.x", "blockDim.x * " + number(points_), "blockDim.x", 0, 0},
           plan_.phases.front().row);
  close();
  line("__syncthreads();");
  if (copy_tiles(true)) line("__syncthreads();");
  close();
}

// One set for both bodies of a kernel that chooses whole vectors.
std::string CudaEmitter::shared_tiles() const {
  std::string out;
  const std::string side = number(plan_.tile);
  for (size_t i = 0; i < plan_.operands.size(); ++i)
    if (plan_.is_transposed(i))
      out += "static __shared__ " + std::string(cuda_memory_type(plan_.operands[i].dtype)) + " " + tile(i) + "[" +
             side + " * (" + side + " + 1)];\n";
  return out.empty() ? out : out + "\n";
}

// Transposed operands into the tiles, or what was computed out of them; false: there are none.
bool CudaEmitter::copy_tiles(bool stores) {
  std::vector<const Instr*> copies;
  for (const Instr& in : plan_.code)
    if (in.code == (stores ? Code::Store : Code::Load) && plan_.is_transposed(in.imm)) copies.push_back(&in);
  if (copies.empty()) return false;
  const int down = plan_.tile_dim, along = plan_.vec_dim;
  line("#pragma unroll 4");
  open("for (unsigned point = threadIdx.x; point < " + in_all_of_tile() + "; point += blockDim.x)");
  line("const " + std::string(index_type()) + " " + index(down) + " = top + " + side_by_side() + ", " + index(along) +
       " = left + point / " + across_tile() + ";");
  open("if (" + index(down) + " < " + size(down) + " && " + index(along) + " < " + size(along) + ")");
  for (const Instr* in : copies) copy_tile(*in);
  close();
  close();
  return true;
}

void CudaEmitter::copy_tile(const Instr& in) {
  const size_t operand = in.imm;
  const bool stores = in.code == Code::Store;
  const std::string row = "point / " + across_tile(), outside = memory(operand);
  if (plan_.vector == 1) {
    const std::string inside = in_tile(operand, row, side_by_side());
    line(stores ? outside + " = " + inside + ";" : inside + " = " + outside + ";");
    return;
  }
  const std::string inside = in_tile(operand, row, side_by_side() + " + v");
  const std::string type = vector_type(in), four = "four" + number(static_cast<int64_t>(operand));
  open("");  // an operand may be loaded twice
  line((stores ? type : "const " + type) + " " + four + (stores ? ";" : " = fj_load4<whole>(&" + outside + ");"));
  line("#pragma unroll");
  line("for (unsigned v = 0; v < " + number(plan_.vector) + "; ++v) " +
       (stores ? four + ".at[v] = " + inside : inside + " = " + four + ".at[v]") + ";");
  if (stores) line("fj_store4<whole>(&" + outside + ", " + four + ");");
  close();
}

// The indices of `point` in the tile at (top, left); to load, of one that is there.
void CudaEmitter::place_in_tile(bool loads) {
  std::string beyond;
  const auto place = [&](int dim, const std::string& at, int together) {
    line("const " + std::string(index_type()) + " " + index(dim) + " = " +
         (loads ? at + " < " + size(dim) + " ? " + at + " : " + size(dim) + " - " + number(together) + ";" : at + ";"));
    beyond += (beyond.empty() ? "" : " || ") + index(dim) + " >= " + size(dim);
  };
  place(plan_.tile_dim, "top + point / " + across_tile(), 1);
  place(plan_.vec_dim, "left + " + side_by_side(), plan_.vector);
  if (!loads) line("if (" + beyond + ") continue;");
}

}  // namespace fastjit::codegen
