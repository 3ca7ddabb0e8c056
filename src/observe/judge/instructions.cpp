// What each instruction reads, given its operands on the value stack.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <array>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {

void Tracer::move(int) {}

// A value goes to the caller. One that a C function asked for (sum over a generator, max with a key) is read there.
void Tracer::give(int) {
  const bool is_yield = top().ops[2 * top().offset] == k_YIELD_VALUE;
  if (frames_.size() > 1 && frames_[frames_.size() - 2].sizes_of >= 0) return;  // len(): see take_sizes()
  if (!is_yield && (top().code->co_flags & CO_GENERATOR)) return;               // not read as an item
  const Frame* reader = frames_.size() > 1 ? &frames_[frames_.size() - 2] : nullptr;
  if (reader && reader->reads_items && !(reader->reads_pairs ? readable_pair(at(1)) : readable(at(1))))
    return deny("read of " + name_of(at(1)));
  if (is_yield || (frames_.size() > 1 && frames_[frames_.size() - 2].expect == Expect::Any)) touch(at(1));
  if (reader && reader->reads_items) note_names(at(1));
  // C code asks whether the answer is true: filter(), `in`, isinstance().
  if (reader && !is_yield && predicates_.contains((PyObject*)function_of(top().frame))) truth(at(1));
}

void Tracer::never(int) { deny(std::string("instruction ") + rows()[top().ops[2 * top().offset]].name); }

void Tracer::load_global(int oparg) { read_global(name_at(oparg >> 1)); }

void Tracer::read_global(PyObject* name) {
  InterpreterFrame* frame = top().frame;
  if (namespaces_.contains(frame->globals) && dict_lookup(frame->globals, name, nullptr)) return;
  PyObject* again = nullptr;
  if (read_again(facts_->find(frame->globals, Node::Kind::Dict), name, &again) &&
      (again || read_again(facts_->find(frame->builtins, Node::Kind::Dict), name, &again)))
    return;
  std::string text = PyUnicode_AsUTF8(name);
  Facts::Id globals = facts_->dict(frame->globals, "");
  if (counts_key(globals, name, "global " + text)) return;
  PyObject* value = facts_->read_key(globals, name, "global " + text, where());
  if (!value) {
    Facts::Id builtins = facts_->dict(frame->builtins, "builtins");
    value = facts_->read_key(builtins, name, "builtin " + text, where());
  }
  found(value, text);
}

void Tracer::load_deref(int oparg) {
  PyObject* cell = local(oparg);
  if (!cell || !PyCell_Check(cell) || fresh_.contains(cell)) return;
  auto owner = cell_owners_.find(cell);
  if (owner != cell_owners_.end() && find_again((PyObject*)owner->second, cell)) return;
  std::string name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(top().code->co_localsplusnames, oparg));
  if (owner == cell_owners_.end()) return deny("read of cell " + name + " of unknown origin");
  facts_->function((PyFunctionObject*)owner->second, where());  // keeps the cell alive
  if (counts_place(cell, Node::Kind::Cell, "cell " + name)) return;
  found(facts_->read_cell(cell, "cell " + name, where()), name);
}

void Tracer::load_attr_op(int oparg) { load_attr(at(1), name_at(oparg >> kAttrShift)); }

void Tracer::store_attr_op(int oparg) { store_attr(at(1), name_at(oparg), at(2)); }

void Tracer::delete_attr_op(int oparg) { delete_attr(at(1), name_at(oparg)); }

void Tracer::store_global(int oparg) {
  PyObject* name = name_at(oparg);
  store_key(facts_->dict(top().frame->globals, ""), name, at(1), std::string("global ") + PyUnicode_AsUTF8(name));
}

void Tracer::delete_global(int oparg) { deny(std::string("deletion of global ") + PyUnicode_AsUTF8(name_at(oparg))); }

void Tracer::store_deref(int oparg) {
  PyObject* cell = local(oparg);
  if (cell && fresh_.contains(cell)) return;
  const std::string name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(top().code->co_localsplusnames, oparg));
  const auto owner = cell_owners_.find(cell);
  if (owner == cell_owners_.end() || !PyCell_Check(cell)) return deny("store to nonlocal " + name);
  facts_->function((PyFunctionObject*)owner->second, where());  // keeps the cell alive
  store_place(SideEffect::Kind::SetCell, cell, &((PyCellObject*)cell)->ob_ref, at(1), "nonlocal " + name);
}

void Tracer::delete_deref(int oparg) {
  PyObject* cell = local(oparg);
  if (cell && fresh_.contains(cell)) return;
  deny(std::string("deletion of nonlocal ") +
       PyUnicode_AsUTF8(PyTuple_GET_ITEM(top().code->co_localsplusnames, oparg)));
}

void Tracer::build(int oparg) {
  bool is_set = top().ops[2 * top().offset] == k_BUILD_SET;
  for (int i = 1; is_set && i <= oparg; ++i)
    if (!keyable(at(i))) return deny("hash of " + name_of(at(i)));
  top().fresh_result = true;  // what reads the items touches them
}

void Tracer::build_map(int oparg) {
  for (int i = 1; i <= 2 * oparg; i += 2)
    if (!keyable(at(i + 1))) return deny("hash of " + name_of(at(i + 1)));
  top().fresh_result = true;
}

void Tracer::build_const_map(int) { top().fresh_result = true; }

void Tracer::build_slice(int oparg) {
  for (int i = 1; i <= oparg; ++i)
    if (!is_size(at(i))) touch(at(i));
}

void Tracer::make_function(int) { top().fresh_result = true; }

void Tracer::kw_names(int oparg) { top().kwnames = PyTuple_GET_ITEM(top().code->co_consts, oparg); }

// `modules += more`, where the class of a new instance says in Python what that does.
bool Tracer::is_own_addition(PyObject* left) {
  if (top().ops[2 * top().offset + 1] != kFirstInPlace + kAdd || !fresh_.contains(left) || !is_instance(left))
    return false;
  PyObject* method = class_attr(Py_TYPE(left), "__iadd__");
  return method && PyFunction_Check(method);
}

void Tracer::binary(int oparg) {
  if (oparg == kSubscript) return subscript(0);
  PyObject *right = at(1), *left = at(2);
  bool tensor_left = is_tensor(left), tensor_right = is_tensor(right);
  if (tensor_left || tensor_right) {
    PyObject* other = tensor_left ? right : left;
    bool is_scalar = numbers_.contains(other);
    if (!(tensor_left && tensor_right) && !is_scalar && !meets_tensors(other, oparg) && !readable(other))
      return deny("operator on " + name_of(other));
    use_scalars(std::array{left, right}, true);
    for (PyObject* o : {left, right})
      if (is_tensor(o)) note_operator(o, oparg);
    if (tensor_left && oparg >= kFirstInPlace && writes_before(left)) return;
    return may_enter_any();  // __rsub__ and others are Python functions of torch.Tensor
  }
  if (is_own_addition(left)) return may_enter_any();
  if (is_array(left) || is_array(right)) {
    const bool stores = is_array(left) && top().ops[2 * top().offset + 1] >= kFirstInPlace;
    if (stores || !computes_array(std::array{left, right}))
      deny("operator on " + text_of_array(is_array(left) ? left : right));
    return;
  }
  const auto is_annotation = [](PyObject* o) { return is_union(o) || PyObject_TypeCheck(o, &Py_GenericAliasType); };
  if (oparg == kOr && (is_annotation(left) || is_annotation(right))) return may_enter_any();  // list[int] | None
  if (computes_in_python(left, right, oparg)) return may_enter_any();
  if (derives_by_operator(oparg, left, right)) return;
  const bool are_plain = PyTuple_CheckExact(left) && PyTuple_CheckExact(right);
  if (oparg % kFirstInPlace == kAdd && (are_plain || is_size_list(left) || is_size_list(right)) &&
      PyTuple_Check(left) && PyTuple_Check(right))
    return;  // items only move
  if (oparg % kFirstInPlace == kAdd && joins_lists(left, right)) return;
  if (!readable(left) || !readable(right)) return deny("operator on " + name_of(readable(left) ? right : left));
  note_names(right);  // "%s" % right
  bool is_container = PyList_Check(left) || PyDict_Check(left) || PyAnySet_Check(left);
  if (is_container && top().ops[2 * top().offset + 1] >= kFirstInPlace && !fresh_.contains(left))
    return deny("change of " + name_of(left));
  top().fresh_result = is_container || PyList_Check(right) || is_decimal(left) || is_decimal(right);
}

// [a, b] + [c], where what reads the items touches them.
bool Tracer::joins_lists(PyObject* left, PyObject* right) {
  const auto is_readable = [&](PyObject* o) { return PyList_CheckExact(o) && (is_known(o) || open(o)); };
  const bool is_in_place = top().ops[2 * top().offset + 1] >= kFirstInPlace;
  if (!is_readable(left) || !is_readable(right) || (is_in_place && !fresh_.contains(left))) return false;
  if (is_in_place) keep(right), grow_by(left, right);
  return top().fresh_result = true;
}

void Tracer::unary(int) {
  const int op = top().ops[2 * top().offset];
  if (is_tensor(at(1)))
    return tensor_method(at(1), op == k_UNARY_NEGATIVE ? "__neg__" : op == k_UNARY_INVERT ? "__invert__" : "__pos__");
  if (op == k_UNARY_NEGATIVE && derives_by_minus(at(1))) return;
  if (!readable(at(1))) deny("operator on " + name_of(at(1)));
}

void Tracer::compare(int oparg) {
  PyObject *right = at(1), *left = at(2);
  const int which = oparg >> kCompareShift;
  if (compares_open(which, left, right) || compares_read(which, left, right)) return;
  if (compares_size_lists(which, left, right)) return;
  if (is_tensor(left) || is_tensor(right)) return binary(kComparison);
  const bool is_equality = which == Py_EQ || which == Py_NE;
  for (PyObject* o : {left, right})
    if (compares_in_python(o) || (is_equality && !comparable(o) && compares_items_in_python(o)))
      may_enter_any();
    else if (!comparable(o))
      return deny("comparison of " + name_of(o));
}

void Tracer::is_op(int) {
  for (int i = 1; i <= 2; ++i) {
    PyObject *one = at(i), *other = at(3 - i);
    if (other != Py_None && !PyType_Check(other)) touch(one);
  }
  for (int i = 1; i <= 2; ++i)  // eager would compare what the caller passed, and the one int that Python shares
    if (const auto scalar = originals_.find(at(i)); scalar != originals_.end())
      top().stack.replace(i, Py_NewRef(scalar->second));
    else if (numbers_.contains(at(i)) && is_shared(at(i)))
      top().stack.replace(i, PyLong_FromLong(PyLong_AsLong(at(i))));
  compare_identity(at(1), at(2));
}

void Tracer::contains(int) {
  PyObject *container = at(1), *item = at(2);
  judge_contains(nullptr, std::array{container, item});
}

void Tracer::truth_op(int) { truth(at(1)); }
void Tracer::subscript(int) { subscript_of(at(2), at(1)); }
void Tracer::get_len(int) { length(at(1)); }

// case Class(a, b, name=c): an instance of it, whose attributes are read.
void Tracer::match_class(int count) {
  PyObject *subject = at(3), *type = at(2), *names = at(1);
  judge_isinstance(nullptr, std::array{subject, type});
  const int is_one = PyObject_IsInstance(subject, type);
  if (is_one < 0) PyErr_Clear();
  if (is_one <= 0 || !reason_.empty()) return;
  std::vector<PyObject*> read;
  if (count > 0 && !(((PyTypeObject*)type)->tp_flags & _Py_TPFLAGS_MATCH_SELF)) {
    PyObject* given = class_attr((PyTypeObject*)type, "__match_args__");
    if (!given || !PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) < count)
      return deny("match of " + name_of(type));
    read.assign(PySequence_Fast_ITEMS(given), PySequence_Fast_ITEMS(given) + count);
  }
  read.insert(read.end(), PySequence_Fast_ITEMS(names), PySequence_Fast_ITEMS(names) + PyTuple_GET_SIZE(names));
  for (PyObject* name : read) load_attr(subject, intern(Py_NewRef(name)), true);
  if (!read.empty()) may_enter_any();
}

// case [..] and case {..}: whether it is one is said by its class for good.
void Tracer::match_type(int) {
  if (!is_tensor(at(1)) && is_instance(at(1))) note_instance(at(1));
}

void Tracer::store_subscript(int) { store_item(at(2), at(1), at(3)); }

void Tracer::store_item(PyObject* container, PyObject* index, PyObject* value) {
  const bool is_noted = is_tensor(container) && notes_slices(container, index);
  if (!is_noted) touch(index);
  if (arguments_.contains(container) && !is_tensor(container) && is_constant(index) &&
      stores_in_argument(container, index, value))
    return;
  const bool is_effect = !is_own(container) && is_constant(index);
  if (Facts::Id id; is_effect && PyDict_CheckExact(container) && dict_node(container, &id))
    return store_key(id, index, value, item_label(container, index));
  if (Facts::Id id; is_effect && PyLong_Check(index) && list_node(container, &id))
    return store_list_item(id, index, value);
  // What a dictionary keeps by objects, as a registry by classes, is filled once.
  const bool is_filled = PyDict_CheckExact(container) && is_reached(container) && !is_constant(index);
  if (is_filled && keyable(index)) return interrupt("what " + names_[container] + " keeps");
  const bool moves = (PyList_CheckExact(container) || PyDict_CheckExact(container)) && !PySlice_Check(index);
  moves ? keep(value) : touch(value);
  if (is_tensor(container)) {
    if (is_noted) return readable(value) ? tensor_method(container, "__setitem__") : deny("store to item of Tensor");
    if (!readable_index(index) || !readable(value)) return deny("store to item of Tensor");
    if (!is_plain_index(index)) return deny("index by a list that holds more than numbers");
    return tensor_method(container, "__setitem__");
  }
  if (!keyable(index)) return deny("hash of " + name_of(index));
  if (PySlice_Check(index) && PyList_Check(container)) {  // takes over what is in the value
    keep(value);
    if (!is_fresh_iterator(value) && !iterable(value, "iteration over")) return;
    may_enter_any();
  }
  if (fresh_.contains(container) && is_instance(container)) return type_method(container, "__setitem__");
  bool is_container = PyList_CheckExact(container) || is_dict(container);
  if (!is_container || !is_own(container)) deny("store to item of " + name_of(container));
}

void Tracer::delete_subscript(int) {
  PyObject *index = at(1), *container = at(2);
  const bool is_key = PyDict_Check(container) && keyable(index);
  if (!fresh_.contains(container) || !(is_key || readable(index)))
    return deny("deletion of item of " + name_of(container));
  if (is_instance(container)) type_method(container, "__delitem__");
}

void Tracer::get_iter(int) { get_iter_of(at(1)); }

void Tracer::get_iter_of(PyObject* o) {
  walk_on(o);
  if (is_fresh_iterator(o)) return;
  if (!iterable(o, "iteration over")) return;
  if (top().expect == Expect::None) top().fresh_result = true, top().sources = {o};  // else its __iter__ decides
  if (!is_instance(o) && !metaclass_method(o, "__iter__")) return;
  PyObject* method = class_attr(Py_TYPE(o), "__iter__");
  if (method && PyFunction_Check(method)) call_if_generator((PyFunctionObject*)method);
}

void Tracer::for_iter(int) {
  PyObject* o = at(1);
  if (!is_fresh_iterator(o)) return deny("iteration over " + name_of(o));
  arrive_at_round();
  may_enter_any();
}

void Tracer::send(int) {
  if (!is_fresh_iterator(at(2))) return deny("iteration over " + name_of(at(2)));
  may_enter_any();
}

void Tracer::iterate_top(int) {
  PyObject* o = at(1);
  if (!is_fresh_iterator(o) && !iterable(o, "iteration over")) return;
  const unsigned char* op = top().ops + 2 * top().offset;
  if (op[0] == k_UNPACK_EX) top().new_list_at = 1 + op[1];  // behind what comes before it
  if (op[0] == k_SET_UPDATE) {
    if (!readable(o)) return deny("hash of what is in " + name_of(o));
    top().reads_items = true;
  }
  may_enter_any();
}

void Tracer::append(int oparg) {
  if (top().ops[2 * top().offset] != k_SET_ADD) {  // a list: what reads the items touches them
    if (is_filled_by_loop(at(oparg + 1))) grow(at(oparg + 1), std::array{at(1)});
    return;
  }
  touch(at(1));
  if (!keyable(at(1))) deny("hash of " + name_of(at(1)));
}

void Tracer::map_add(int) {
  if (!keyable(at(2))) deny("hash of " + name_of(at(2)));
}

void Tracer::format_value(int oparg) {
  const int place = (oparg & 4) ? 2 : 1;
  PyObject* value = at(place);
  if (is_size(value) && is_in_unread_message(place)) return;
  if (is_tensor(value) || !readable(value)) return deny("formatting of " + name_of(value));
  note_names(value);
}

// What Python code raises is decided by what it read, and so is the handler that takes it.
void Tracer::raise_op(int oparg) {
  if (oparg) {
    PyObject* exception = at(oparg);
    const bool is_class = PyType_Check(exception);
    if (!is_class && !fresh_.contains(exception)) return deny("raise of " + name_of(exception));
    if (is_class) call_class((PyTypeObject*)exception, {});
  }
  raising_ = true;
}

void Tracer::reraise(int) { raising_ = true; }

void Tracer::match_exception(int) {
  // None that was there before is raised: see raise_op(). Where a generator ends, Python makes a new one.
  if (Py_IS_TYPE(at(2), (PyTypeObject*)PyExc_StopIteration)) fresh_.insert(at(2));
  std::vector<PyObject*> todo{at(1), (PyObject*)Py_TYPE(at(2))};
  while (!todo.empty()) {
    PyObject* one = todo.back();
    todo.pop_back();
    if (PyTuple_CheckExact(one))
      todo.insert(todo.end(), &PyTuple_GET_ITEM(one, 0), &PyTuple_GET_ITEM(one, 0) + PyTuple_GET_SIZE(one));
    if (PyType_Check(one) && ((PyTypeObject*)one)->tp_flags & Py_TPFLAGS_HEAPTYPE) note_bases((PyTypeObject*)one);
  }
}

// The package that a relative import begins at; empty after deny().
std::string Tracer::importing_package(long level, const std::string& name) {
  PyObject* key = literal("__package__");
  PyObject* package = facts_->read_key(facts_->dict(top().frame->globals, ""), key, "global __package__", where());
  std::string text = package && PyUnicode_Check(package) ? PyUnicode_AsUTF8(package) : "";
  for (; level > 1 && !text.empty(); --level) text.resize(text.rfind('.') == text.npos ? 0 : text.rfind('.'));
  if (text.empty()) deny("relative import of " + name);
  return text;
}

void Tracer::import_name(int oparg) {
  std::string name = PyUnicode_AsUTF8(name_at(oparg));
  if (const long level = PyLong_AsLong(at(2)); level > 0) {
    const std::string package = importing_package(level, name);
    if (package.empty()) return;
    name = package + (name.empty() ? "" : "." + name);
  }
  facts_->read_key(facts_->dict(top().frame->builtins, "builtins"), intern(PyUnicode_FromString("__import__")),
                   "builtin __import__", where());
  PyObject* modules = PyImport_GetModuleDict();
  for (size_t dot = 0; dot != std::string::npos;) {  // each package on the way
    dot = name.find('.', dot + 1);
    std::string part = name.substr(0, dot);
    PyObject* key = intern(PyUnicode_FromString(part.c_str()));
    PyObject* module = facts_->read_key(facts_->dict(modules, "sys.modules"), key, "module " + part, where());
    if (!module) return deny("import of " + name);
    found(module, part);
  }
  // importlib's own Python code. What it finds there already is read by what follows; else it would import more.
  PyObject* module = PyDict_GetItemString(modules, name.c_str());
  PyObject* wanted = at(1);
  bool has_all = module && PyModule_Check(module);
  for (Py_ssize_t i = 0; has_all && PyTuple_CheckExact(wanted) && i < PyTuple_GET_SIZE(wanted); ++i)
    has_all = dict_lookup(PyModule_GetDict(module), PyTuple_GET_ITEM(wanted, i), nullptr) != nullptr;
  top().expect = has_all ? Expect::Inside : Expect::Any;
}

void Tracer::import_from(int oparg) {
  PyObject* module = at(1);
  if (!PyModule_Check(module)) return deny("import from " + name_of(module));
  load_attr(module, name_at(oparg));
}

void Tracer::before_with(int) {
  enters_with("__exit__");
  enters_with("__enter__");
}

void Tracer::enters_with(const char* method) {
  PyObject* manager = at(1);
  if (is_lock(manager)) {
    if (!std::strcmp(method, "__enter__")) ++locks_[manager];
    return;
  }
  const Callee* made_by =
      fresh_.contains(manager) ? find_callee(reinterpret_cast<PyObject*>(Py_TYPE(manager))) : nullptr;
  if (made_by && made_by->rule == Rule::Fresh) return;  // a mode of torch's
  PyObject* entered = is_instance(manager) ? class_attr(Py_TYPE(manager), method) : nullptr;
  const bool is_known = entered && (PyFunction_Check(entered) || PyInstanceMethod_Check(entered));
  if (!is_known) return deny("with " + name_of(manager));
  if (!PyFunction_Check(entered)) return;
  const Callee* row = find_callee(entered);
  const bool runs_now = PY_VERSION_HEX < 0x030E0000 && !std::strcmp(method, "__enter__");
  if (row) return runs_now ? apply(*row, entered, std::array{manager}) : void();
  type_method(manager, method);
}

// The body of a with statement has raised: what its context makes of it decides how the call goes on.
void Tracer::with_exception(int) {
  constexpr int kExit = kExitHasSelf ? 5 : 4;
  PyObject *exit = at(kExit), *exception = at(1);
  if (!PyMethod_Check(exit) && !PyFunction_Check(exit)) return deny("with " + name_of(exit));
  PyObject* const args[] = {reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception, Py_None};
  call(exit, args);
}

void Tracer::call_op(int oparg) { call_below(0, oparg); }

// The arguments are below `above` other operands.
void Tracer::call_below(int above, int oparg) {
  PyObject *low = at(above + oparg + 2), *high = at(above + oparg + 1);
  const bool has_self = (kSelfOnTop ? high : low) != nullptr;
  const int n = oparg + has_self;
  plain_callee_ = !has_self && !top().kwnames ? (kSelfOnTop || low ? low : high) : nullptr;
  called_ = kSelfOnTop || low ? low : high;
  call(called_, top().stack.from(above + n, n));
  plain_callee_ = called_ = nullptr;
  top().kwnames = nullptr;
}

// The dictionary behind `**` of CALL_FUNCTION_EX.
PyObject* Tracer::unpacked_keywords(int oparg) { return kKeywordsPlace || (oparg & 1) ? at(1) : nullptr; }

// Its parameters are judged where they are used: it is written in Python.
bool Tracer::takes_any(PyObject* callable) {
  if (PyFunction_Check(callable) || is_module(callable)) return true;
  if (PyMethod_Check(callable)) return PyFunction_Check(PyMethod_GET_FUNCTION(callable));
  if (!PyType_Check(callable) || Py_TYPE(callable)->tp_call != PyType_Type.tp_call) return false;
  PyObject* init = class_attr((PyTypeObject*)callable, "__init__");
  return init && PyFunction_Check(init);
}

// A method of frozenset itself: it reads what it is given, and makes a frozenset of it.
static bool joins_sets(PyObject* callable) {
  return Py_IS_TYPE(callable, &PyMethodDescr_Type) && PyDescr_TYPE(callable) == &PyFrozenSet_Type;
}

void Tracer::call_ex(int oparg) {
  const int above = kKeywordsPlace || (oparg & 1);
  PyObject* kwargs = unpacked_keywords(oparg);
  PyObject* args = at(above + 1);
  PyObject* callable = at(above + 2 + kSelfOnTop);
  std::vector<PyObject*> all;
  if (PyTuple_Check(args) && is_tuple(args)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) all.push_back(PyTuple_GET_ITEM(args, i));
  } else if (PyList_CheckExact(args) && (is_known(args) || open(args))) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args); ++i) all.push_back(PyList_GET_ITEM(args, i));
  } else if (is_fresh_iterator(args) && takes_any(callable)) {
    call(callable, all);  // C code walks it before the call begins
    return may_enter_any();
  } else if (is_fresh_iterator(args) && joins_sets(callable) && readable(args)) {
    top().reads_items = true;  // what a generator gives is judged when it is given
    return may_enter_any();
  } else {
    return deny("iteration over " + name_of(args));
  }
  Ref names;
  if (kwargs) {
    if (!PyDict_CheckExact(kwargs) || !is_known(kwargs)) return deny("iteration over " + name_of(kwargs));
    PyObject *key, *value;
    for (Py_ssize_t i = 0; PyDict_Next(kwargs, &i, &key, &value);) all.push_back(value);
    names = Ref::steal(PySequence_Tuple(kwargs));
  }
  unpacked_names_ = names.get();
  call(callable, all);
  unpacked_names_ = nullptr;
}

}  // namespace fastjit::observe
#endif
