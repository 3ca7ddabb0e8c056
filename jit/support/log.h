#pragma once
// Where FastJIT's messages go: one line an event, to stderr or to the one sink that was set.
#include <cstdint>
#include <string>
#include <string_view>

namespace fastjit::support {

enum class Channel : uint8_t { Compile, Fallback, Cache, Miss, Warning };

std::string_view text(Channel channel);

/// Whether FASTJIT_LOG names the channel (read once). Warnings are always on.
bool log_on(Channel channel);

/// Writes "fastjit: [channel] message". Does nothing when the channel is off. Never throws, takes no lock of its own.
void log(Channel channel, std::string_view message) noexcept;

/// A warning said at most once a process for one text.
void warn_once(const std::string& message) noexcept;

/// Receives messages instead of stderr; nullptr restores stderr. It may be called from any thread, without the GIL.
using LogSink = void (*)(Channel channel, std::string_view message);
void set_log_sink(LogSink sink);

/// `text` with control characters and broken UTF-8 bytes as \xNN, for names that come from outside.
std::string printable(std::string_view text);

}  // namespace fastjit::support
