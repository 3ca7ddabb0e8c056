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
#define SETTING(id, name, fallback, unit, meaning) id,
#include "support/settings.def"
#undef SETTING
};

struct SettingRow {
  std::string_view name, fallback, unit, meaning;
};

std::span<const SettingRow> settings();     // one row per Setting, in its order
std::string setting_text(Setting setting);  // the variable's value; "" when unset, and in a set-uid program
bool setting_flag(Setting setting);         // true for anything but "", "0", "false", "off", "no"
int64_t setting_int(Setting setting);       // a size or count; a malformed value warns once and gives the default
std::vector<std::string> setting_list(Setting setting);
inline int64_t env_pool_bytes() { return setting_int(Setting::Pool); }

/// Bytes of "4096", "500K", "1.5M", "2GiB" (powers of 1024); -1 when it is not a size.
int64_t parse_size(std::string_view text);

}  // namespace fastjit::support
