#pragma once
// The environment settings of settings.def, read with their types. Values are read from the environment at each call:
// use these where things are set up, not on the path of a call.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fastjit::support {

enum class Setting : uint8_t {
#define SETTING(id, name, fallback, unit, meaning, kind, words) id,
#include "support/settings.def"
#undef SETTING
};

enum class SettingKind : uint8_t { Path, Size, Flag, Word, Words };

struct SettingRow {
  std::string_view name, fallback, unit, meaning;
  SettingKind kind;
  std::string_view words;
};

// Getters for one kind say once what is wrong with a value, and what holds instead.
std::span<const SettingRow> settings();     // one row per Setting, in its order
std::string setting_text(Setting setting);  // the variable's value; "" when unset, and in a set-uid program
bool setting_flag(Setting setting);         // true for anything but "", "0", "false", "off", "no"
int64_t setting_int(Setting setting);       // a size or count; the default for a malformed value
std::string setting_word(Setting setting);  // one of the row's words, or ""
std::vector<std::string> setting_words(Setting setting);  // those of the list that are among the row's words

/// Says once what is wrong with each FASTJIT_ variable of the environment: a value that means nothing, a name that is
/// none.
void check_settings();
inline int64_t env_pool_bytes() { return setting_int(Setting::Pool); }

/// Bytes of "4096", "500K", "1.5M", "2GiB" (powers of 1024); -1 when it is not a size.
int64_t parse_size(std::string_view text);

}  // namespace fastjit::support
