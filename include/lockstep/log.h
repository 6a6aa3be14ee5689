// Messages for people. Rank 0 speaks for all unless log.ranks is `all`; errors always name rank and host.
// Sinks: standard error (plain lines, or a terminal with a progress bar) and, once opened, RUN/log.txt.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace lockstep::log {

enum class Level { info, warning, error };

/// Called once the world is known. `all_ranks`: every rank writes, each line with "[RANK: 1 node2]".
void configure(int rank, int size, const std::string& host, bool all_ranks);
/// Lines also go to this file (rank 0, or RUN/log.txt of all ranks appended), opened for appending.
void open_file(const std::string& path);
void write(Level level, std::string_view line);
/// Only into the file, if one is open: what standard error is told in another form.
void write_to_file(Level level, std::string_view line);
/// While a progress bar stands on the terminal's last line, write() removes and redraws it. Empty: no bar.
void set_progress_line(const std::string& line);

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lockstep::log
