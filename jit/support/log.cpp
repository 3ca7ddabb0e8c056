#include "support/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "support/env.h"
#include "support/hash.h"

namespace fastjit::support {

static constexpr std::array<std::string_view, 5> kChannels = {"compile", "fallback", "cache", "miss", "warning"};
static std::atomic<LogSink> g_sink{nullptr};

std::string_view text(Channel channel) { return kChannels[static_cast<size_t>(channel)]; }

// One write, so that lines of several processes do not mix.
static void write_line(std::string_view text) {
  const std::string line = "fastjit: " + std::string(text) + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

static uint32_t read_mask() {
  uint32_t mask = 1u << static_cast<uint32_t>(Channel::Warning);
  for (const std::string& name : setting_words(Setting::Log)) {
    if (name == "all")
      mask = ~0u;
    else
      mask |= 1u << (std::ranges::find(kChannels, name) - kChannels.begin());
  }
  return mask;
}

bool log_on(Channel channel) {
  if (channel == Channel::Warning) return true;  // also what reading FASTJIT_LOG has to say
  static const uint32_t mask = read_mask();
  return (mask >> static_cast<uint32_t>(channel)) & 1u;
}

void log(Channel channel, std::string_view message) noexcept {
  try {
    if (!log_on(channel)) return;
    if (const LogSink sink = g_sink.load()) return sink(channel, message);
    const std::string tag = channel == Channel::Warning ? "" : "[" + std::string(text(channel)) + "] ";
    write_line(tag + std::string(message));
  } catch (...) {
  }
}

void warn_once(const std::string& message) noexcept {
  // A small table of hashes without a lock: safe in a forked child, and a lost slot only repeats a warning.
  static std::array<std::atomic<uint64_t>, 64> said{};
  const uint64_t hash = xxh3_128(message).low | 1u;
  for (auto& slot : said) {
    uint64_t seen = 0;
    if (slot.compare_exchange_strong(seen, hash)) break;
    if (seen == hash) return;
  }
  log(Channel::Warning, message);
}

void set_log_sink(LogSink sink) { g_sink.store(sink); }

/// Length of the UTF-8 sequence at `at`, or 0 when it is none.
static size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = byte(at) >= 0xF0 ? 4 : byte(at) >= 0xE0 ? 3 : byte(at) >= 0xC2 ? 2 : 0;
  if (length == 0 || byte(at) > 0xF4 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte < 0x7F) {
      out += text[i];
    } else if (const size_t length = byte < 0x80 ? 0 : utf8_length(text, i); length > 0 && byte != 0xC2) {
      out.append(text, i, length);  // 0xC2 leads the C1 control characters
      i += length - 1;
    } else {
      out.append("\\x").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
    }
  }
  return out;
}

}  // namespace fastjit::support
