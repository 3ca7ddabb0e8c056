#pragma once
// Facts: what a recorded call read, and how to see cheaply whether it would read the same again. A node is one object
// that was looked into (a dictionary, a list, a type, an instance, a function, a cell, a slot). Nodes are in reading
// order, so a node whose object is kept alive by an earlier fact needs no weak reference of its own.
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "observe/facts/dict_version.h"
#include "observe/observe.h"
#include "support/flat.h"

namespace fastjit::observe {

using support::AddressHash, support::bits_of, support::FlatMap, support::FlatSet;

inline constexpr uint64_t kNoTag = UINT64_MAX;  // no dictionary or type has this version
inline constexpr uint64_t kNever = 0;           // a word that is never kNoTag

/// What a read returned.
struct Expected {
  enum class Kind : uint8_t {
    Absent,   // nothing there
    Present,  // something there, whatever it is
    Equal,    // the same type and bits: numbers, strings, None, tuples of them
    Weak,     // this very object, held weakly
    Strong,   // this very object, held (its type has no weak references), or a tuple of the same objects
    Node,     // a dictionary or list that has its own node: the address and type here, the contents there
    Type,     // any object of exactly this type
    Form,     // a tuple of this form: the constants in it, and an object of exactly the type where it has a type
  };
  Kind kind = Kind::Absent;
  PyObject* object = nullptr;
  Ref hold;
  std::string was;  // for Weak and Node: the type's name, for words after the object is gone

  static Expected of(PyObject* value);
  bool holds(PyObject* current) const noexcept;
  /// Other objects may come to its place: no address tells.
  bool is_open() const noexcept;
  /// Equal, Strong: `current`, which holds, is held in the value's place from now on, so that its address tells.
  void follow(PyObject* current) noexcept;
};

struct Key {
  Ref name;
  PyTypeObject* after = nullptr;  // types: the lookup starts after this class in the method resolution order (super())
  Expected expect;
  int32_t hint = -1;     // index among the entries of a dictionary or set; List: the item's index
  bool written = false;  // recording only: the call stored there later
  Ref first;             // recording only. Type and Form: the value. Node: the list or dictionary, see follow_lists()
  std::string label;     // "global SCALE"
  std::string where;     // "model.py:14"
};

struct Node {
  enum class Kind : uint8_t {
    Function,
    Object,
    Dict,
    List,
    Type,
    Cell,
    Slot,
    Context,
    Set,
    Word,
    Order,
    Array,
    Deque,
    Setting
  };
  Kind kind;
  bool ordered = false;    // Dict, Set: `keys` are all keys, in order. Type: `order` is the method resolution order
  int8_t truth = -1;       // Dict, List: empty (0), not empty (1), not asked (-1)
  Py_ssize_t length = -1;  // Dict, List: number of items; -1: not asked
  bool written = false;    // recording only: the call stored there
  struct Overwritten {
    Ref name;
    std::string label, where;
  };
  std::vector<Overwritten> overwritten;  // recording only: keys that the call stored to and that were there, unread
  Py_ssize_t grown_from = -1;            // recording only: number of items before the call added some
  bool lent = false;                     // recording only, List: see lend()
  bool alone = false;                    // Dict, List: nothing but the place in which it was found refers to it
  int32_t next_hint = 0;                 // recording only, Dict: the entry behind the one that was read last
  PyObject* object;
  Ref weak;
  Ref hold;                        // a reference, where nothing else keeps the object and it cannot be held weakly
  Ref parts[3];                    // Function: code, defaults, keyword defaults. Array: elements, sizes, their type.
                                   // Type: the names in its own dictionary, or nothing
  Ref type_weak;                   // Object: its class, unless that has a node
  PyTypeObject* type = nullptr;    // Object
  PyObject** dict_slot = nullptr;  // Object: where its dictionary hangs. Word, Order: where it is
  PyObject* dict = nullptr;        // Object: that dictionary. Word, Order: what it is
  const Setting* setting = nullptr;
  uint64_t value = 0;     // Setting. Array: bytes of an element
  std::vector<Key> keys;  // Dict, List, Type, Set (members); Cell, Slot, Context: one
  size_t tag_word =
      SIZE_MAX;         // Dict, Type: the word that only says when to look again. List, Set: the first of its words
  DictVersion version;  // Dict
  std::vector<Expected> order;  // Type; Order: the keys
  std::string label, where;
};

class Facts final : public ReadSet {
 public:
  using Id = int;
  // Recording. Each call looks now, notes what it saw, and returns it (borrowed).
  Id function(PyFunctionObject* f, const std::string& where);
  Id object(PyObject* o, const std::string& label, const std::string& where);
  Id instance_dict(PyObject* o, const std::string& label, const std::string& where);  // -1: it has none
  Id dict(PyObject* d, std::string label);
  Id known_dict(PyObject* o) const;  // that instance_dict() gave of this object before, and that it still has; or -1
  PyObject* read_key(Id dict, PyObject* name, std::string label, const std::string& where);
  bool has_key(Id dict, PyObject* name, std::string label, const std::string& where);
  /// Reads what a fact says already, of a dictionary or (name null) a cell. False, and nothing done: read_key(),
  /// has_key() or read_cell() must look.
  bool again(Id id, PyObject* name, PyObject** value);
  bool truth(Id container, const std::string& where);
  Py_ssize_t length(Id container, const std::string& where);
  /// All keys in order with their values; `label` names an item by its key.
  using Label = std::function<std::string(PyObject* key)>;
  const std::vector<Key>& items(Id dict, const Label& label, const std::string& where);
  Id list(PyObject* l, const std::string& label);
  PyObject* read_item(Id list, Py_ssize_t index, const std::string& where);
  /// Notes whether `item`, a value without code of its own, is in the set.
  bool has_member(PyObject* set, PyObject* item, const std::string& label, const std::string& where);
  /// All members of a set, in the order in which it gives them.
  const std::vector<Key>& members(PyObject* set, const std::string& label, const std::string& where);
  PyObject* read_type(PyTypeObject* type, PyObject* name, PyTypeObject* after, const std::string& where);
  void type_order(PyTypeObject* type, const std::string& where);
  /// Notes which names the class itself has, its bases' left out.
  void type_names(PyTypeObject* type, const std::string& where);
  PyObject* read_cell(PyObject* cell, const std::string& label, const std::string& where);
  PyObject* read_slot(PyObject** slot, const std::string& label, const std::string& where);
  PyObject* read_context(PyObject* variable, const std::string& label, const std::string& where);
  /// The order of the keys of an OrderedDict, which an earlier fact keeps.
  void order(PyObject* ordered_dict, const std::string& label, const std::string& where);
  /// deque.cpp: all items.
  const std::vector<Key>& deque(PyObject* deque, const std::string& label, const std::string& where);
  /// array.cpp: the elements, sizes and element type of an array of numpy. False where these are no fact.
  bool array(PyObject* array, const std::string& label, const std::string& where);
  /// A word of the interpreter's memory that lives as long as the process.
  void word(void* at, const std::string& label, const std::string& where);
  void setting(const Setting& one, const std::string& where);
  // write.cpp. The call is about to store there: what it reads there from now on is its own and no fact.
  // `looked_into`: the value there is an object whose own parts may be facts; it may die with the store.
  void write_key(Id dict, PyObject* name, bool looked_into, const std::string& label, const std::string& where);
  void write_item(Id list, Py_ssize_t index, bool looked_into, const std::string& where);
  void write_place(PyObject* place, Node::Kind kind, bool looked_into);  // a cell, or a slot's address
  void grow(Id list);                                                    // an item more at the end
  /// The call is about to change the list, of which the length and all items are facts; finish() looks at it again.
  void lend(Id list) { node(list).lent = node(list).written = true; }
  /// Notes that the place holds an int or a float, whatever its value: nothing but its own sum with a constant uses it.
  /// False, and nothing noted, where that is not so or the call has used the value otherwise.
  bool count_key(Id dict, PyObject* name, const std::string& label, const std::string& where);
  bool count_place(PyObject* place, Node::Kind kind, const std::string& label, const std::string& where);
  /// The value is used otherwise after all: it is the fact.
  void pin_key(Id dict, PyObject* name) { pin(find_key(dict, name, nullptr)); }
  void pin_place(PyObject* place, Node::Kind kind);
  /// number_places.cpp. Notes that the place holds a number of this type, whatever its value, or (form not null) a
  /// tuple of this form. Which of the facts' numbers it is, of a tuple the first one in it, which others follow; kNone,
  /// and nothing noted, where it holds none, or is a fact by value, or the call has stored to it.
  static constexpr size_t kNone = SIZE_MAX;
  size_t open_key(Id dict, PyObject* name, PyObject* form, const std::string& label, const std::string& where);
  size_t open_item(Id list, Py_ssize_t index, PyObject* form, const std::string& where);
  size_t open_place(PyObject* place, Node::Kind kind, PyObject* form, const std::string& label,
                    const std::string& where);
  std::vector<NumberPlace> known_numbers() const;                               // see Observation::numbers
  PyObject* number(size_t which) const { return numbers_[which].first.get(); }  // in this call
  Py_ssize_t element(size_t which) const { return numbers_[which].element; }    // in a tuple, or -1
  size_t next_place(size_t which) const;  // behind the numbers that lie in one place with this one
  PyObject* tuple_of(size_t which);       // that holds the number in this call, borrowed
  void pin_number(size_t which);
  bool is_pinned(size_t which);
  /// After finish(): what the call read and then gave another value, so that the facts fail: "self.h at model.py:14".
  const std::string& state() const { return state_; }
  /// Objects that facts look into may be gone: nothing may be asked of these facts.
  bool abandoned() const { return abandoned_; }
  bool state_is_constant() const { return state_is_constant_; }  // the new values are numbers, strings, None ...
  Id find(PyObject* object, Node::Kind kind) const;
  Node& node(Id id) { return nodes_[static_cast<size_t>(id)]; }
  /// A list that the call replaced by a new one of the same items, where nothing else refers to either, is as good as
  /// the one that was there: the facts about it go on with the new one, and no later call need replace it. Before
  /// finish(). `value_holders`: references to each new value that the caller holds.
  void follow_lists(Py_ssize_t value_holders);
  /// A dictionary with nothing in it that the call filled, and then replaced by a new one with nothing in it, where
  /// nothing else refers to either, is emptied and put back, as if it had never been touched: what the call did to it,
  /// and the store of the new one, no later call need do. Before finish(). `value_holders`: references to a dictionary
  /// that the caller holds.
  struct Emptied {
    PyObject* holder;
    Ref was, now;
  };
  std::vector<Emptied> put_back_empty(const std::function<Py_ssize_t(PyObject*)>& value_holders);
  /// Places whose tensor, or tuple of tensors, the call replaced are compared by its class from now on, where `is_free`
  /// says that nothing asked which object it is. Before finish().
  std::vector<Replaced> replaced_tensors(const std::function<bool(PyObject*)>& is_free);
  /// Verifies every fact once more and arms the tags. Not empty: what the call itself changed.
  std::string finish();

  bool check() noexcept override;
  std::string first_failure() override;
  std::vector<std::string> describe() const override;
  std::vector<Mutation> mutate() override;
  int traverse(visitproc visit, void* arg) const override;
  std::vector<const void*> looked_into() const override;
  size_t number_count() const noexcept override;
  bool numbers(PyObject** out) const noexcept override;
  std::string fix_number(size_t which) override;
  void varying(std::vector<NumberPlace>& out) override;

 private:
  /// A number of which only the type is a fact.
  struct Number {
    Id node;
    Ref name;                 // of a dictionary's item
    Py_ssize_t index = -1;    // of a list's
    Ref first{};              // in the recorded call
    Py_ssize_t element = -1;  // in the tuple that the place holds; -1: it is there itself
    size_t key = 0;           // from finish() on: which of the node's keys
    bool open = true;
  };
  Key* key_of(const Number& number);
  static bool is_open(const Key* key, const Number& number);
  static void close(Key& key, const Number& number);
  size_t open(Key& key, PyObject* value, PyObject* form, Number number);
  bool varies(Node& node, std::vector<NumberPlace>& out);
  size_t opened(const Key& known, Id id, PyObject* name, Py_ssize_t index) const;
  void settle_numbers();

  /// A word of memory that must not have changed: a type, a dictionary's version tag, a weak reference's object ...
  using Bits = uint64_t __attribute__((may_alias));
  struct Word {
    const Bits* at;
    uint64_t value;
  };
  bool recover(size_t word) noexcept;  // a word changed: do its node's facts still hold?
  void rearm_items(Node& node) noexcept;
  void changed(const std::string& label, const std::string& where);  // the call itself changed what a fact names
  bool is_own(PyObject* container, PyObject* name) const { return own_.contains({container, name}); }
  static void pin(Key* key);
  void pin_read(Key* key, Id id, PyObject* name, Py_ssize_t index);
  void replace(Key& key, bool looked_into);
  void abandon(const Key& key);  // what was there may die, and facts look into it
  bool settle(Node& node);
  void note_state(const std::string& label, const std::string& where, bool constant);
  PyObject* read_place(PyObject* place, Node::Kind kind, PyObject* value, const std::string& label,
                       const std::string& where);
  bool verify(const Node& node) noexcept;
  Id add(PyObject* object, Node::Kind kind, std::string label, const std::string& where);
  Key* find_key(Id id, PyObject* name, PyTypeObject* after);
  Key& add_item(Id list, Py_ssize_t index, const std::string& where);
  Key& add_key(Id id, PyObject* name, PyTypeObject* after, std::string label, const std::string& where);
  PyObject* note(Id id, PyObject* name, PyTypeObject* after, PyObject* value, std::string label,
                 const std::string& where);
  void arm(uint32_t node);
  using AddWord = std::function<void(const void* at, const void* value)>;
  void arm_dict(Node& node, const AddWord& add_word);
  // inline.cpp
  static size_t value_words(const Node& node) noexcept;
  void rearm_values(Node& node) noexcept;
  std::string failure(Node& node);

  std::deque<Node> nodes_;            // one by one: moving thousands of them costs more than finding them
  std::vector<Word> words_;           // what check() compares, in reading order
  std::vector<uint32_t> word_nodes_;  // the node of each word
  struct HashNode {
    static std::pair<PyObject*, Node::Kind> empty() noexcept { return {nullptr, Node::Kind::Function}; }
    size_t operator()(const std::pair<PyObject*, Node::Kind>& node) const noexcept {
      return bits_of(node.first) * 31 + static_cast<size_t>(node.second);
    }
  };
  using KeyId = std::pair<Id, std::pair<PyObject*, PyTypeObject*>>;
  struct HashKey {
    static KeyId empty() noexcept { return {-1, {nullptr, nullptr}}; }
    size_t operator()(const KeyId& key) const noexcept {
      const size_t name = (static_cast<size_t>(key.first) * 0x9E3779B1u + bits_of(key.second.first)) * 0xC2B2AE3Du;
      return (name ^ name >> 29) + bits_of(key.second.second);
    }
  };
  struct HashPlace {
    static std::pair<PyObject*, PyObject*> empty() noexcept { return {nullptr, nullptr}; }
    size_t operator()(const std::pair<PyObject*, PyObject*>& place) const noexcept {
      return bits_of(place.first) * 0x9E3779B1u + bits_of(place.second);
    }
  };
  FlatMap<std::pair<PyObject*, Node::Kind>, Id, HashNode> ids_;  // recording only
  FlatMap<KeyId, size_t, HashKey> key_ids_;                      // recording only, interned names
  FlatSet<PyObject*> held_;                                      // values that a fact keeps alive
  struct KeysByHash {
    size_t size = 0;  // how many of the node's keys are in it
    std::unordered_multimap<Py_hash_t, size_t> keys;
  };
  std::unordered_map<Id, KeysByHash> by_hash_;  // recording only: of dictionaries that the call stores to
  std::string changed_;                         // a fact that the call changed
  // Recording only: places that the call stored to (container, name).
  FlatSet<std::pair<PyObject*, PyObject*>, HashPlace> own_;
  std::vector<Number> numbers_;
  std::string state_;
  bool state_is_constant_ = true;
  bool abandoned_ = false;
};

/// collections.deque itself.
bool is_deque(PyObject* o) noexcept;
/// A node of a deque: its items are those that were noted.
bool holds_deque(const Node& node) noexcept;
/// Of an array that is a fact: each check reads them all.
inline constexpr Py_ssize_t kMostArrayBytes = 16384;
/// numpy.ndarray itself, and no subclass.
bool is_array(PyObject* o) noexcept;
/// What an array is a view of, borrowed; null where it has memory of its own.
PyObject* base_of_array(PyObject* array) noexcept;
/// The array that has the memory, borrowed: itself, or what it is a view of, over any number of views.
PyObject* owner_of_array(PyObject* array) noexcept;
/// Where its first element lies.
const void* data_of_array(PyObject* array) noexcept;
/// A node of an array that lives: its elements are those that were noted.
bool holds_elements(const Node& node) noexcept;
/// A node of a class: the names in its own dictionary are those that were noted, if any were.
bool holds_names(const Node& node) noexcept;
/// Of its first element; null where it has none, or is not to be written to.
char* first_byte(const Node& array) noexcept;

/// Asks dict_lookup() to search the entry's index once; later lookups with that index are a few ns.
inline constexpr int32_t kFindHint = -2;
/// Whether the entry of that index is the name's.
bool is_entry(PyObject* dict, int32_t hint, PyObject* name) noexcept;
/// Looks a name up in a dictionary without running Python code; borrowed.
PyObject* dict_lookup(PyObject* dict, PyObject* name, int32_t* hint) noexcept;
/// Where an attribute of __slots__ is kept, if the class's attribute `attr` is one; else null.
PyObject** slot_of(PyObject* o, PyObject* attr);
/// Where a dictionary that shares an object's values keeps that of a name; null where it does not.
PyObject** shared_place(PyObject* dict, PyObject* name) noexcept;
/// Looks a name up in a type, after class `after` of its method resolution order if that is set; borrowed.
PyObject* type_lookup(PyTypeObject* type, PyObject* name, PyTypeObject* after) noexcept;
/// The object that a method of a C type is bound to; null for functions of modules, classes and pybind11.
PyObject* bound_to(PyObject* callable) noexcept;
/// Where a set keeps this object, or (not by_address) an equal value: the index of its entry, or -1. No Python code
/// runs.
int32_t member_index(PyObject* set, PyObject* item, bool by_address, int32_t hint = -1) noexcept;
/// What a key's place holds now, without running Python code; null where there is nothing. Borrowed.
PyObject* value_now(const Node& node, const Key& key) noexcept;
/// The value of a context variable in this thread's context, or its default; borrowed, null where it has neither.
PyObject* context_value(PyObject* variable) noexcept;
/// What a cell, slot or context variable holds now; borrowed.
inline PyObject* held_in(const Node& node) noexcept {
  if (node.kind == Node::Kind::Context) return context_value(node.object);
  return node.kind == Node::Kind::Cell ? PyCell_GET(node.object) : *reinterpret_cast<PyObject**>(node.object);
}
/// collections.defaultdict itself.
bool is_defaultdict(PyObject* o) noexcept;
/// A dict, an OrderedDict or a defaultdict, and no subclass.
inline bool is_dict(PyObject* o) { return PyDict_CheckExact(o) || Py_IS_TYPE(o, &PyODict_Type) || is_defaultdict(o); }
/// A view of keys, values or items.
inline bool is_view(PyObject* o) {
  return PyDictViewSet_Check(o) || PyDictValues_Check(o) || PyObject_TypeCheck(o, &PyODictValues_Type);
}
/// The dictionary that a view of keys, values or items shows.
inline PyObject* view_dict(PyObject* view) {
  struct View {
    PyObject_HEAD PyObject* dict;
  };
  return reinterpret_cast<View*>(view)->dict;
}
/// Its class hashes it by Python code, as torch.Tensor and enum.Enum do.
bool hashes_in_python(PyObject* o) noexcept;
/// The hash of such an object, from now on for all look-ups: none runs its Python code.
void remember_hash(PyObject* o, Py_hash_t hash);
/// An int or a float and nothing else; false for null.
inline bool is_number(PyObject* o) { return o && (PyLong_CheckExact(o) || PyFloat_CheckExact(o)); }
/// Stands for a list's item among the names of keys: no object has an odd address.
inline PyObject* index_name(Py_ssize_t index) { return reinterpret_cast<PyObject*>(2 * index + 1); }
/// Only the type of the number in a place matters, unless Facts finds that the number does.
void expect_type_of(Key& key, PyObject* number);
bool same_bits(PyObject* a, PyObject* b) noexcept;
/// Equal for what same_bits() finds equal. Runs no Python code.
Py_hash_t hash_of_bits(PyObject* o) noexcept;
/// A weak reference, or nothing where the type has none.
Ref weak_to(PyObject* o);

}  // namespace fastjit::observe
