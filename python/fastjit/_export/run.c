// What a caller calls.
static int fj_has_isa(void) {
#if FJ_ISA == 512
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512cd"))
    return 0;
#endif
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

FJ_API size_t FJ_NAME(scratch)(void) { return FJ_SCRATCH + 64; }

FJ_API int FJ_NAME(run)(const fj_array* in, const fj_array* out, void* scratch) {
  if (!fj_has_isa()) return FJ_NO_ISA;
  if (!scratch) return FJ_NO_SCRATCH;
  for (int i = 0; i < FJ_INPUTS; ++i) {
    const int wrong = fj_check(&in[i], &fj_in[i], FJ_CODES * (i + 1));
    if (wrong) return wrong;
  }
  for (int i = 0; i < FJ_OUTPUTS; ++i) {
    const int wrong = fj_check(&out[i], &fj_out[i], FJ_CODES * (FJ_INPUTS + i + 1));
    if (wrong) return wrong;
  }
  char* const memory = (char*)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
  void* bases[FJ_BASES];
  for (int i = 0; i < FJ_INPUTS; ++i) bases[i] = in[i].data;
  for (int i = 0; i < FJ_OUTPUTS; ++i) bases[FJ_INPUTS + i] = out[i].data;
  bases[FJ_INPUTS + FJ_OUTPUTS] = memory;
  bases[FJ_INPUTS + FJ_OUTPUTS + 1] = (void*)fj_data;
  uint64_t scalars[FJ_FEW_SCALARS];
  memcpy(scalars, fj_scalars, sizeof scalars);
  for (int i = 0; i < FJ_GIVEN_SCALARS; ++i)
    memcpy(&scalars[fj_given_scalars[i].scalar], in[fj_given_scalars[i].input].data, sizeof(uint64_t));
#ifdef FJ_TODO
  return fj_run_with_torch(bases, scalars, memory + FJ_KEEP_AT);
#else
  for (int i = 0; i < FJ_STEPS; ++i) fj_run_step(&fj_steps[i], bases, scalars, memory + FJ_KEEP_AT);
  return 0;
#endif
}

FJ_API const char* FJ_NAME(error)(int code) {
  if (code < 0 || code >= (int)(sizeof fj_errors / sizeof *fj_errors) || !fj_errors[code])
    return "no error of this model";
#ifdef FJ_TODO
  if (code == fj_last.code) return fj_last.text;
#endif
  return fj_errors[code];
}
