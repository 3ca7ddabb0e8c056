#include "observe/facts/dict_version.h"
#include "observe/observe.h"

#if FASTJIT_OBSERVES && PY_VERSION_HEX >= 0x030E0000
#include <unordered_map>

namespace fastjit::observe {

/// Lives as long as a fact refers to it; the dictionary may be gone before.
struct WatchedDict : std::enable_shared_from_this<WatchedDict> {
  explicit WatchedDict(PyObject* d) : dict(d) {}
  WatchedDict(const WatchedDict&) = delete;
  WatchedDict& operator=(const WatchedDict&) = delete;
  ~WatchedDict();
  PyObject* dict;  // null: gone
  uint64_t changes = 0;
};

namespace {

// Under the GIL. Lives as long as the process: dictionaries die as late as that.
std::unordered_map<PyObject*, WatchedDict*>& all_watched() {
  static auto* all = new std::unordered_map<PyObject*, WatchedDict*>;
  return *all;
}

// Comes before the change. Between the two the interpreter runs no Python code and keeps the GIL; but when it clears a
// dictionary with shared keys, the ends of the first values may run code while the others are still there, so that
// nothing more is believed of that one.
int on_change(PyDict_WatchEvent event, PyObject* dict, PyObject*, PyObject*) noexcept {
  const auto at = all_watched().find(dict);
  if (at == all_watched().end()) return 0;
  ++at->second->changes;
  const bool is_gone = event == PyDict_EVENT_DEALLOCATED ||
                       (event == PyDict_EVENT_CLEARED && reinterpret_cast<PyDictObject*>(dict)->ma_values);
  if (!is_gone) return 0;
  at->second->dict = nullptr;
  all_watched().erase(at);
  return 0;
}

// Negative where the process's few watchers are all taken.
int watcher() {
  static int id = -1;
  if (id < 0) id = PyDict_AddWatcher(&on_change);
  if (id < 0) PyErr_Clear();
  return id;
}

}  // namespace

WatchedDict::~WatchedDict() {
  if (!dict) return;
  all_watched().erase(dict);
  if (!Py_IsFinalizing() && PyDict_Unwatch(watcher(), dict) < 0) PyErr_Clear();
}

DictVersion::DictVersion(PyObject* dict) {
  const auto known = all_watched().find(dict);
  if (known != all_watched().end()) {
    watched_ = known->second->shared_from_this();
  } else if (watcher() >= 0 && PyDict_Watch(watcher(), dict) == 0) {
    watched_ = std::make_shared<WatchedDict>(dict);
    all_watched()[dict] = watched_.get();
  } else {
    PyErr_Clear();
  }
}

const void* DictVersion::word() const { return watched_ ? &watched_->changes : nullptr; }

bool DictVersion::is_of(PyObject* dict) const { return !watched_ || watched_->dict == dict; }

}  // namespace fastjit::observe
#endif
