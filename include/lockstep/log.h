// Messages for users. Only rank 0 writes unless log.ranks is `all`; errors always name the rank and the host.
// They go to standard error (plain lines, or a terminal with a progress bar) and, once it is open, to RUN/log.txt.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace lockstep::log {

enum class Level { info, warning, error };

/// To be called once the world is known. `all_ranks`: every rank writes, each line with "[RANK: 1 node2]".
void configure(int rank, int size, const std::string& host, bool all_ranks);
/// Lines are also appended to this file, by rank 0 or by all ranks. Throws system_call if it cannot be opened.
void open_file(const std::string& path);
void write(Level level, std::string_view line);
/// Writes only to the file, if it is open. For what standard error shows in another form.
void write_to_file(Level level, std::string_view line);
/// The progress bar on the last line of the terminal, which write() removes and redraws. Empty: no bar.
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
