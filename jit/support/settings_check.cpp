// What a process finds in its environment against the table of settings.
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "support/env.h"
#include "support/log.h"

namespace fastjit::support {
namespace {

constexpr std::string_view kPrefix = "FASTJIT_";

constexpr std::string_view kOthers[] = {
#define SETTING(id, name, fallback, unit, meaning, kind, words)
#define OTHER_VARIABLE(name) name,
#include "support/settings.def"
#undef OTHER_VARIABLE
#undef SETTING
};

/// Letters to add, drop, change or swap with their neighbour (at most once) to make one text of the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& cell = rows[i][j];
      if (i == 0 || j == 0) {
        cell = i + j;
        continue;
      }
      cell = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) cell = std::min(cell, rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.size()][b.size()];
}

void check_name(std::string_view name) {
  constexpr size_t kLongest = 60, kNear = 3;
  const auto known = settings();
  if (std::ranges::find(known, name, &SettingRow::name) != known.end()) return;
  if (std::ranges::find(kOthers, name) != std::end(kOthers)) return;
  std::string text = printable(name.substr(0, kLongest)) + " is no setting of fastjit";
  std::string all;
  size_t least = kNear + 1;
  std::string_view nearest;
  for (const SettingRow& row : known) {
    all.append(all.empty() ? "" : ", ").append(row.name);
    const size_t far = name.size() > kLongest ? least : distance(name, row.name);
    if (far < least) nearest = row.name, least = far;
  }
  warn_once(text + (nearest.empty() ? "; there are " + all : "; did you mean " + std::string(nearest) + "?"));
}

void check_value(Setting setting, SettingKind kind) {
  switch (kind) {
    case SettingKind::Path:  // judged where it is opened
      return;
    case SettingKind::Size:
      setting_int(setting);
      return;
    case SettingKind::Flag:
      setting_flag(setting);
      return;
    case SettingKind::Word:
      setting_word(setting);
      return;
    case SettingKind::Words:
      setting_words(setting);
      return;
  }
}

}  // namespace

void check_settings() {
  if (getauxval(AT_SECURE) != 0) return;
  for (char** variable = environ; variable && *variable; ++variable) {
    const std::string_view text(*variable);
    if (text.starts_with(kPrefix)) check_name(text.substr(0, text.find('=')));
  }
  for (size_t i = 0; i < settings().size(); ++i) check_value(static_cast<Setting>(i), settings()[i].kind);
}

}  // namespace fastjit::support
