// Steps of torch's, through the C interface of libtorch (torch/csrc/stable/c/shim.h). What torch makes lives until no
// step needs it, at most until the call ends.
typedef void *fj_tensor, *fj_list, *fj_string; /* handles; torch knows what is behind them */
extern int32_t aoti_torch_device_type_cpu(void);
extern size_t aoti_torch_dtype_element_size(int32_t dtype);
extern _Bool aoti_torch_grad_mode_is_enabled(void);
extern void aoti_torch_grad_mode_set_enabled(_Bool enabled);
extern int32_t aoti_torch_create_tensor_from_blob(void* data, int64_t rank, const int64_t* sizes,
                                                  const int64_t* strides, int64_t offset, int32_t dtype, int32_t device,
                                                  int32_t index, fj_tensor* made);
extern int32_t aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device, int32_t index, fj_tensor* made);
extern int32_t aoti_torch__reinterpret_tensor(fj_tensor base, int64_t rank, const int64_t* sizes,
                                              const int64_t* strides, int64_t further, fj_tensor* made);
extern int32_t aoti_torch_new_tensor_handle(fj_tensor of, fj_tensor* made);
extern int32_t aoti_torch_new_uninitialized_tensor(fj_tensor* made);
extern int32_t aoti_torch_clone_preserve_strides(fj_tensor of, fj_tensor* made);
extern int32_t aoti_torch_copy_(fj_tensor to, fj_tensor from, int32_t non_blocking);
extern int32_t aoti_torch_delete_tensor_object(fj_tensor tensor);
extern int32_t aoti_torch_is_defined(fj_tensor tensor, _Bool* is);
extern int32_t aoti_torch_get_data_ptr(fj_tensor tensor, void** data);
extern int32_t aoti_torch_get_storage_offset(fj_tensor tensor, int64_t* offset);
extern int32_t aoti_torch_get_dtype(fj_tensor tensor, int32_t* dtype);
extern int32_t aoti_torch_get_dim(fj_tensor tensor, int64_t* rank);
extern int32_t aoti_torch_get_sizes(fj_tensor tensor, int64_t** sizes);
extern int32_t aoti_torch_get_strides(fj_tensor tensor, int64_t** strides);
extern int32_t torch_new_list_reserve_size(size_t size, fj_list* made);
extern int32_t torch_list_push_back(fj_list list, uint64_t item);
extern int32_t torch_list_size(fj_list list, size_t* size);
extern int32_t torch_list_get_item(fj_list list, size_t index, uint64_t* item);
extern int32_t torch_delete_list(fj_list list);
extern int32_t torch_new_string_handle(const char* data, size_t length, fj_string* made);
extern int32_t torch_new_stable_ivalue(void** made);
extern int32_t torch_call_dispatcher(const char* name, const char* overload, uint64_t* stack, uint64_t abi);
extern const char* torch_exception_get_what_without_backtrace(void);

typedef struct {
  void** bases;
  const uint64_t* scalars;
  fj_tensor* made;
} fj_state;

static _Thread_local struct {
  int code;
  char text[2048];
} fj_last; /* the error of the thread's last call that torch could not finish */

static int fj_failed(uint32_t call, const char* why) {
  fj_last.code = FJ_FIRST_CALL_CODE + (int)call;
  snprintf(fj_last.text, sizeof fj_last.text, "%s: %s", fj_calls[call].title, why);
  return fj_last.code;
}

static int fj_torch_failed(uint32_t call) { return fj_failed(call, torch_exception_get_what_without_backtrace()); }

static fj_tensor fj_of_pointer(uint64_t value) { return (fj_tensor)(uintptr_t)value; }

static void fj_drop(fj_tensor* tensor) {
  if (*tensor) aoti_torch_delete_tensor_object(*tensor);
  *tensor = NULL;
}

/* A tensor on the operand's memory, which the caller of this owns. */
static int fj_tensor_of(const fj_operand* operand, const fj_state* state, fj_tensor* made) {
  const int64_t *sizes = fj_numbers + operand->sizes, *strides = fj_numbers + operand->strides;
  if (operand->made == FJ_NOT_MADE)
    return aoti_torch_create_tensor_from_blob(fj_at(state->bases, operand->place), operand->rank, sizes, strides, 0,
                                              operand->dtype, aoti_torch_device_type_cpu(), -1, made);
  const fj_tensor whole = state->made[operand->made];
  if (!operand->is_part) return aoti_torch_new_tensor_handle(whole, made);
  return aoti_torch__reinterpret_tensor(whole, operand->rank, sizes, strides, operand->place.offset, made);
}

/* The argument that begins at *next, as the dispatcher takes it; *next is then behind it. */
static int fj_argument_of(const fj_argument** next, const fj_state* state, uint64_t* value) {
  const fj_argument* argument = (*next)++;
  void* made = NULL;
  int failed = 0;
  *value = 0;
  switch (argument->kind) {
    case FJ_NONE:
      return 0;
    case FJ_BITS:
      *value = argument->value;
      return 0;
    case FJ_SCALAR:
      *value = state->scalars[argument->value];
      return 0;
    case FJ_TENSOR:
      failed = fj_tensor_of(&fj_operands[argument->value], state, &made);
      break;
    case FJ_UNDEFINED:
      failed = aoti_torch_new_uninitialized_tensor(&made);
      break;
    case FJ_TEXT: {
      const char* text = fj_texts[argument->value];
      failed = torch_new_string_handle(text, strlen(text), &made);
      break;
    }
    case FJ_SOME:
      failed = torch_new_stable_ivalue(&made) || fj_argument_of(next, state, made);
      break;
    case FJ_LIST:
      failed = torch_new_list_reserve_size(argument->value, &made);
      for (uint64_t i = 0; i < argument->value && !failed; ++i) {
        uint64_t item;
        failed = fj_argument_of(next, state, &item) || torch_list_push_back(made, item);
      }
      break;
  }
  *value = (uint64_t)(uintptr_t)made;
  return failed;
}

/* Where the memory begins in which the tensor lies. */
static const char* fj_memory_of(fj_tensor tensor) {
  void* data = NULL;
  int64_t offset = 0;
  int32_t dtype = 0;
  aoti_torch_get_data_ptr(tensor, &data);
  aoti_torch_get_storage_offset(tensor, &offset);
  aoti_torch_get_dtype(tensor, &dtype);
  return data ? (const char*)data - offset * (int64_t)aoti_torch_dtype_element_size(dtype) : NULL;
}

/* Whether the operator gave memory that it was given, or gave before, although it gave new memory when it was
   exported. */
static int fj_is_shared(const fj_call* call, const fj_result* result, fj_tensor got, const fj_state* state) {
  const char* memory = fj_memory_of(got);
  if (!memory) return 0;
  for (uint32_t i = 0; i < call->operand_count; ++i) {
    const fj_operand* operand = &fj_operands[call->operands + i];
    const char* given = operand->made == FJ_NOT_MADE ? (const char*)fj_at(state->bases, operand->place)
                                                     : fj_memory_of(state->made[operand->made]);
    if (given == memory) return 1;
  }
  for (const fj_result* before = &fj_results[call->results]; before != result; ++before)
    if (before->made != FJ_NOT_MADE && fj_memory_of(state->made[before->made]) == memory) return 1;
  return 0;
}

static int fj_has_form(const fj_result* result, fj_tensor got) {
  const fj_operand* form = &fj_operands[result->form];
  int64_t rank = 0, *sizes = NULL;
  int32_t dtype = 0;
  aoti_torch_get_dtype(got, &dtype);
  aoti_torch_get_dim(got, &rank);
  aoti_torch_get_sizes(got, &sizes);
  if (dtype != form->dtype || rank != form->rank) return 0;
  for (uint32_t d = 0; d < form->rank; ++d)
    if (fj_numbers[form->sizes + d] != sizes[d]) return 0;
  return 1;
}

static int fj_has_strides(const fj_result* result, fj_tensor got) {
  const fj_operand* form = &fj_operands[result->form];
  int64_t* strides = NULL;
  aoti_torch_get_strides(got, &strides);
  for (uint32_t d = 0; d < form->rank; ++d)
    if (fj_numbers[form->sizes + d] > 1 && fj_numbers[form->strides + d] != strides[d]) return 0;
  return 1;
}

/* Puts another tensor of the same elements in the place of *got, which lies as the program expects it. */
static int fj_lay(const fj_result* result, fj_tensor* got) {
  const fj_operand* form = &fj_operands[result->form];
  fj_tensor laid = NULL;
  const int failed = aoti_torch_empty_strided(form->rank, fj_numbers + form->sizes, fj_numbers + form->strides,
                                              form->dtype, aoti_torch_device_type_cpu(), -1, &laid) ||
                     aoti_torch_copy_(laid, *got, 0);
  fj_drop(got);
  *got = laid;
  return failed;
}

/* Copies a tensor of torch's into memory of the program or the caller. */
static int fj_copy(const fj_operand* to, fj_tensor from, const fj_state* state) {
  fj_tensor place = NULL;
  const int failed = fj_tensor_of(to, state, &place) || aoti_torch_copy_(place, from, 0);
  fj_drop(&place);
  return failed;
}

/* Takes what the call gave, which is then the program's or gone. */
static int fj_take(uint32_t index, const fj_result* result, fj_tensor got, const fj_state* state) {
  const fj_call* call = &fj_calls[index];
  int code = 0;
  _Bool is_defined = 0;
  if (result->form != FJ_NOT_MADE) {
    aoti_torch_is_defined(got, &is_defined);
    if (!is_defined || !fj_has_form(result, got))
      code = fj_failed(index, "its result has another size or type than in the exported call");
    else if (!call->is_new && !fj_has_strides(result, got))
      code = fj_failed(index, "its result has other strides than in the exported call");
    else if (result->made == FJ_NOT_MADE)
      code = fj_copy(&fj_operands[result->form], got, state) ? fj_torch_failed(index) : 0;
    else if (call->is_new && (!fj_has_strides(result, got) || fj_is_shared(call, result, got, state)))
      code = fj_lay(result, &got) ? fj_torch_failed(index) : 0;
  }
  if (code || result->made == FJ_NOT_MADE) {
    fj_drop(&got);
    return code;
  }
  state->made[result->made] = got;
  return aoti_torch_get_data_ptr(got, &state->bases[FJ_FIRST_MADE + result->made]) ? fj_torch_failed(index) : 0;
}

/* Takes a list of tensors; all of them are gone after an error. */
static int fj_take_list(uint32_t index, fj_list list, const fj_state* state) {
  const fj_call* call = &fj_calls[index];
  size_t size = 0;
  torch_list_size(list, &size);
  int code =
      size == call->result_count ? 0 : fj_failed(index, "it gives another number of tensors than in the exported call");
  for (size_t i = 0; i < size; ++i) {
    uint64_t item = 0;
    torch_list_get_item(list, i, &item);
    fj_tensor got = fj_of_pointer(item);
    if (code)
      fj_drop(&got);
    else
      code = fj_take(index, &fj_results[call->results + i], got, state);
  }
  torch_delete_list(list);
  return code;
}

static int fj_call_torch(uint32_t index, const fj_state* state) {
  const fj_call* call = &fj_calls[index];
  uint64_t stack[FJ_STACK];
  const fj_argument* next = fj_arguments + call->arguments;
  for (uint32_t i = 0; i < call->argument_count; ++i)
    if (fj_argument_of(&next, state, &stack[i])) return fj_torch_failed(index);
  if (torch_call_dispatcher(call->name, call->overload, stack, FJ_TORCH_ABI)) return fj_torch_failed(index);
  if (call->gives_list) return fj_take_list(index, (fj_list)(uintptr_t)stack[0], state);
  int code = 0;
  for (uint32_t i = 0; i < call->result_count; ++i) {
    fj_tensor got = fj_of_pointer(stack[i]);
    if (code)
      fj_drop(&got);
    else
      code = fj_take(index, &fj_results[call->results + i], got, state);
  }
  return code;
}

static int fj_run_all(const fj_state* state, char* scratch) {
  for (uint32_t i = 0; i < FJ_TODO; ++i) {
    const fj_todo todo = fj_todos[i];
    if (todo.what == FJ_RUN) fj_run_step(&fj_steps[todo.which], state->bases, state->scalars, scratch);
    if (todo.what == FJ_FREE) fj_drop(&state->made[todo.which]);
    const int code = todo.what == FJ_CALL ? fj_call_torch(todo.which, state) : 0;
    if (code) return code;
  }
  for (uint32_t i = 0; i < FJ_COPIES; ++i)
    if (fj_copy(&fj_operands[fj_copies[i].operand], state->made[fj_copies[i].made], state))
      return fj_torch_failed(fj_copies[i].call);
  return 0;
}

/* The steps with torch's among them, as eager runs them without gradients. */
static int fj_run_with_torch(void** bases, const uint64_t* scalars, char* scratch) {
  fj_tensor made[FJ_MADE + 1] = {NULL};
  const fj_state state = {bases, scalars, made};
  const _Bool grad = aoti_torch_grad_mode_is_enabled();
  aoti_torch_grad_mode_set_enabled(0);
  const int code = fj_run_all(&state, scratch);
  for (uint32_t i = 0; i < FJ_MADE; ++i) fj_drop(&made[i]);
  aoti_torch_grad_mode_set_enabled(grad);
  return code;
}
