#include "support/env.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "support/log.h"

namespace fastjit::support {

static constexpr SettingRow kRows[] = {
#define SETTING(id, name, fallback, unit, meaning, kind, words) \
  {name, fallback, unit, meaning, SettingKind::kind, words},
#include "support/settings.def"
#undef SETTING
};

static const SettingRow& row(Setting setting) { return kRows[static_cast<size_t>(setting)]; }

static std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

static bool is_among(std::string_view words, std::string_view word) {
  return (" " + std::string(words) + " ").find(" " + std::string(word) + " ") != std::string::npos;
}

/// A value as a message shows it.
static std::string excerpt(std::string_view value) {
  constexpr size_t kMost = 60;
  return printable(value.substr(0, kMost)) + (value.size() > kMost ? "..." : "");
}

std::span<const SettingRow> settings() { return kRows; }

std::string setting_text(Setting setting) {
  const char* value = secure_getenv(std::string(row(setting).name).c_str());
  return value ? std::string(trim(value)) : std::string();
}

bool setting_flag(Setting setting) {
  std::string value = setting_text(setting);
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
  if (value.empty() || is_among("0 false off no", value)) return false;
  if (!is_among("1 true on yes", value))
    warn_once(std::string(row(setting).name) + "='" + excerpt(value) + "' is neither 0 nor 1; using 1");
  return true;
}

int64_t parse_size(std::string_view text) {
  text = trim(text);
  if (text.starts_with('-')) return -1;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return -1;
  std::string unit(trim({end, static_cast<size_t>(text.data() + text.size() - end)}));
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view tail : {"ib", "b"}) {
    if (unit.ends_with(tail) && (tail.size() == 1 || unit.size() > 2)) {
      unit.resize(unit.size() - tail.size());
      break;
    }
  }
  static constexpr std::string_view kUnits = "kmgt";
  int shift = 0;
  if (unit.size() > 1) return -1;
  if (unit.size() == 1) {
    const size_t place = kUnits.find(unit[0]);
    if (place == std::string_view::npos) return -1;
    shift = 10 * (static_cast<int>(place) + 1);
  }
  const double bytes = std::ldexp(number, shift);
  return bytes < 9e18 ? static_cast<int64_t>(bytes) : -1;
}

/// The default of FASTJIT_POOL depends on the machine.
static int64_t default_pool_bytes() {
  const int64_t ram = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min<int64_t>(512LL << 20, ram / 16);
}

int64_t setting_int(Setting setting) {
  const std::string value = setting_text(setting);
  if (!value.empty()) {
    const int64_t parsed = parse_size(value);
    if (parsed >= 0) return parsed;
    const SettingRow& it = row(setting);
    warn_once(std::string(it.name) + "='" + excerpt(value) + "' is not a number of " + std::string(it.unit) +
              "; using " + std::string(it.fallback));
  }
  return setting == Setting::Pool ? default_pool_bytes() : std::max<int64_t>(0, parse_size(row(setting).fallback));
}

static std::string choices(const SettingRow& row) {
  std::string out(row.words);
  for (size_t at = out.find(' '); at != std::string::npos; at = out.find(' ', at + 2)) out.replace(at, 1, ", ");
  return out;
}

static bool is_word(const SettingRow& row, std::string_view word) {
  if (is_among(row.words, word) && word.find(' ') == std::string_view::npos) return true;
  warn_once(std::string(row.name) + ": there is no '" + excerpt(word) + "'; choose from " + choices(row) +
            (row.fallback.empty() ? "" : "; using " + std::string(row.fallback)));
  return false;
}

std::string setting_word(Setting setting) {
  const std::string value = setting_text(setting);
  return value.empty() || is_word(row(setting), value) ? value : "";
}

std::vector<std::string> setting_words(Setting setting) {
  std::vector<std::string> items;
  const std::string value = setting_text(setting);
  for (size_t begin = 0; begin <= value.size();) {
    const size_t end = std::min(value.find(',', begin), value.size());
    const std::string_view item = trim(std::string_view(value).substr(begin, end - begin));
    if (!item.empty() && is_word(row(setting), item)) items.emplace_back(item);
    begin = end + 1;
  }
  return items;
}

}  // namespace fastjit::support
