// FASTJIT_ variables that mean nothing are said, once each, with what they may be.
#include <algorithm>
#include <map>

#include "cache_helpers.h"
#include "support/env.h"
#include "support/log.h"

namespace fastjit {
namespace {

using support::Setting;

std::string said;
void keep(support::Channel channel, std::string_view message) {
  said += channel == support::Channel::Warning ? std::string(message) + "\n" : "another channel\n";
}

/// What a process with only these variables says; it is asked twice.
std::string what_is_said(const std::map<std::string, std::string>& variables) {
  int pipes[2];
  EXPECT_EQ(pipe(pipes), 0);
  EXPECT_TRUE(test::in_child([&] {
    clearenv();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    support::set_log_sink(keep);
    support::check_settings();
    support::check_settings();
    return write(pipes[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
  }));
  close(pipes[1]);
  char text[2048];
  const ssize_t size = read(pipes[0], text, sizeof text);
  close(pipes[0]);
  return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

TEST(Settings, WhatMeansSomethingIsNotSaid) {
  EXPECT_EQ(what_is_said({}), "");
  const std::map<std::string, std::string> cases[] = {
      {},
      {{"FASTJIT_CHECK", "record"}, {"FASTJIT_ISA", " avx2 "}, {"FASTJIT_LOG", "compile, miss"}},
      {{"FASTJIT_POOL", "1.5G"}, {"FASTJIT_CACHE_MAX_BYTES", "0"}, {"FASTJIT_DISABLE", "Off"}},
      {{"FASTJIT_CHECK", ""}, {"FASTJIT_ISA", ""}, {"FASTJIT_LOG", ","}, {"FASTJIT_POOL", " "}},
      {{"FASTJIT_SCRIPTS", "0:1"}, {"FASTJITTER", "1"}, {"OTHER_FASTJIT_X", "1"}},
  };
  for (const auto& variables : cases) EXPECT_EQ(what_is_said(variables), "");
}

TEST(Settings, AValueThatMeansNothingIsSaidWithThoseThatDo) {
  EXPECT_EQ(what_is_said({{"FASTJIT_CHECK", "recrod"}}), "FASTJIT_CHECK: there is no 'recrod'; choose from record\n");
  EXPECT_EQ(what_is_said({{"FASTJIT_ISA", "avx9"}}),
            "FASTJIT_ISA: there is no 'avx9'; choose from avx2, avx512; using the best level of this CPU\n");
  EXPECT_EQ(what_is_said({{"FASTJIT_ISA", "avx2 avx512"}}),
            "FASTJIT_ISA: there is no 'avx2 avx512'; choose from avx2, avx512; using the best level of this CPU\n");
  EXPECT_EQ(what_is_said({{"FASTJIT_LOG", "miss,hit"}}),
            "FASTJIT_LOG: there is no 'hit'; choose from compile, fallback, cache, miss, all\n");
  EXPECT_EQ(what_is_said({{"FASTJIT_DISABLE", "ture"}}), "FASTJIT_DISABLE='ture' is neither 0 nor 1; using 1\n");
  EXPECT_EQ(what_is_said({{"FASTJIT_CACHE_MAX_BYTES", "a lot"}}),
            "FASTJIT_CACHE_MAX_BYTES='a lot' is not a number of bytes (500M, 2GiB); using 1GiB\n");
  EXPECT_EQ(what_is_said({{"FASTJIT_CACHE_MAX_ENTRIES", "-1"}}),
            "FASTJIT_CACHE_MAX_ENTRIES='-1' is not a number of entries; using 16384\n");
  EXPECT_EQ(what_is_said({{"FASTJIT_POOL", "x"}}),
            "FASTJIT_POOL='x' is not a number of bytes (500M, 2GiB); using min(512MiB, RAM/16)\n");
}

TEST(Settings, EveryKindOfValueIsChecked) {
  for (const support::SettingRow& row : support::settings()) {
    if (row.kind == support::SettingKind::Path) continue;  // judged where it is opened
    const std::string name(row.name), what = what_is_said({{name, "no such thing"}});
    EXPECT_TRUE(what.starts_with(name)) << name << ": " << what;
    EXPECT_EQ(std::ranges::count(what, '\n'), 1) << what;
  }
}

TEST(Settings, ANameThatIsNoneIsSaidWithTheNearest) {
  EXPECT_EQ(what_is_said({{"FASTJIT_CASHE_DIR", "/tmp"}}),
            "FASTJIT_CASHE_DIR is no setting of fastjit; did you mean FASTJIT_CACHE_DIR?\n");
  EXPECT_EQ(what_is_said({{"FASTJIT_CHEKC", ""}}),
            "FASTJIT_CHEKC is no setting of fastjit; did you mean FASTJIT_CHECK?\n");
  const std::string far = what_is_said({{"FASTJIT_SOMETHING_ELSE", "1"}});
  EXPECT_TRUE(far.starts_with("FASTJIT_SOMETHING_ELSE is no setting of fastjit; there are FASTJIT_CACHE_DIR, "));
  EXPECT_TRUE(far.ends_with(", FASTJIT_ISA\n")) << far;
}

TEST(Settings, WhatIsSaidFitsALine) {
  const std::string evil = "\x1b[2J\n" + std::string(5000, 'x');
  const std::string name = "FASTJIT_\x1b" + std::string(900, 'Y');
  const std::string what = what_is_said({{"FASTJIT_ISA", evil}, {"FASTJIT_POOL", evil}, {name, "1"}});
  EXPECT_EQ(std::ranges::count(what, '\n'), 3) << what;
  EXPECT_EQ(what.find('\x1b'), std::string::npos);
  EXPECT_LT(what.size(), 1000u);
}

TEST(Settings, ARelativeCacheFolderIsNamed) {
  EXPECT_TRUE(test::in_child([] {
    setenv("FASTJIT_CACHE_DIR", "my\ncache", 1);
    return cache::locate().problem == "FASTJIT_CACHE_DIR='my\\x0acache' is not an absolute path";
  }));
}

}  // namespace
}  // namespace fastjit
