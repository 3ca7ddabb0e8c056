// Runs a program over tables, which stand before this text. Nothing is kept between calls: any number of threads may
// call it, each with scratch memory of its own. Kernels allocate nothing; of steps of torch's, see torch.c.
enum { FJ_FEW_POINTERS = FJ_POINTERS > 0 ? FJ_POINTERS : 1, FJ_FEW_SCALARS = FJ_SCALARS > 0 ? FJ_SCALARS : 1 };

typedef struct {
  void* const* ptrs;
  const int64_t* sizes;
  const int64_t* strides;
  const uint64_t* scalars;
  char* scratch;
  int64_t scratch_stride;
  int64_t block;
} fj_args; /* as the kernels read it: jit/backend/kernel.h */

static int fj_check(const fj_array* given, const fj_spec* wanted, int first_code) {
  if (given->kind != wanted->kind) return first_code + FJ_WRONG_KIND;
  if (given->rank != wanted->rank) return first_code + FJ_WRONG_RANK;
  int empty = 0;
  for (int d = 0; d < wanted->rank; ++d) {
    if (given->size[d] != wanted->size[d]) return first_code + FJ_WRONG_SIZE;
    empty |= wanted->size[d] == 0;
  }
  if (empty) return 0;
  for (int d = 0; d < wanted->rank; ++d)
    if (wanted->size[d] > 1 && given->stride[d] != wanted->stride[d]) return first_code + FJ_WRONG_STRIDE;
  return given->data ? 0 : first_code + FJ_NO_DATA;
}

static void* fj_at(void* const* bases, fj_place place) { return (char*)bases[place.base] + place.offset; }

static void fj_launch_all(const fj_step* step, void* const* pointers, const uint64_t* scalars, char* scratch) {
  for (uint32_t i = 0; i < step->count; ++i) {
    const fj_launch* launch = &fj_launches[step->first + i];
    uint64_t own[FJ_FEW_SCALARS];
    for (uint32_t s = 0; s < launch->scalar_count; ++s) own[s] = scalars[fj_numbers[launch->scalars + s]];
    const fj_args args = {
        pointers,     fj_numbers + launch->sizes, fj_numbers + launch->strides, own, scratch, launch->scratch_stride,
        launch->block};
    if (launch->units > 0) fj_kernels[launch->kernel](&args, 0, launch->units);
    pointers += launch->operand_count;
  }
}

static void fj_run_step(const fj_step* step, void* const* bases, const uint64_t* scalars, char* scratch) {
  void* pointers[FJ_FEW_POINTERS];
  for (uint32_t i = 0; i < step->place_count; ++i) pointers[i] = fj_at(bases, fj_places[step->places + i]);
  const fj_place* next = fj_places + step->table;
  for (int64_t round = 1;; ++round) {
    fj_launch_all(step, pointers, scalars, scratch);
    if (round >= step->trip) return;
    for (uint32_t i = 0; i < step->walk_count; ++i) {
      const fj_walk* walk = &fj_walks[step->walks + i];
      pointers[walk->pointer] = (char*)pointers[walk->pointer] + walk->bytes;
    }
    for (uint32_t i = 0; i < step->jump_count; ++i) pointers[fj_numbers[step->jumps + i]] = fj_at(bases, *next++);
  }
}
