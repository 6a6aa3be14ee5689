// The log: one spdlog logger with two sinks: standard error, and RUN/log.txt. The first lines are written to the file
// when it is opened.
// A line is written with a single write(), so that the lines of several ranks are not mixed.
#include "lockstep/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>

#include <filesystem>
#include <memory>
#include <mutex>

#include "base/printable.h"
#include "base/standard_streams.h"
#include "lockstep/error.h"

namespace lockstep::log {
namespace {

constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S | %v";
constexpr std::string_view kEraseLine = "\r\033[K";

/// Standard error. The progress line, if there is one, stays the last line of the terminal.
class StandardErrorSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_progress_line(const std::string& line) {
    if (!has_cursor_) return;
    const std::lock_guard lock(mutex_);
    if (line == progress_) return;
    write_to_standard_error(std::string(kEraseLine) + line);
    progress_ = line;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    const std::string line(formatted.data(), formatted.size());
    write_to_standard_error(progress_.empty() ? line : std::string(kEraseLine) + line + progress_);
  }
  void flush_() override {}

 private:
  const bool has_cursor_ = has_cursor();
  std::string progress_;
};

using EarlyLines = spdlog::sinks::ringbuffer_sink_mt;
constexpr std::size_t kEarlyLines = 100;

struct State {
  std::mutex mutex;  // protects configure() and open_file() from a concurrent write()
  std::shared_ptr<StandardErrorSink> standard_error = std::make_shared<StandardErrorSink>();
  /// Keeps the lines that are written before the file is open. Null afterwards.
  std::shared_ptr<EarlyLines> early = std::make_shared<EarlyLines>(kEarlyLines);
  spdlog::logger logger{"lockstep", {standard_error, early}};
  int rank = 0;
  bool all_ranks = false;
  std::string rank_prefix;  // empty in a world of one
  std::int64_t n_lost = 0;  // lines since the file could last be written

  State() {
    use_pattern();
    report_errors_of(logger);
  }
  /// spdlog would write lines of its own to standard error, which has all lines of the log anyway.
  void report_errors_of(spdlog::logger& of) {
    of.set_error_handler([this](const std::string& what) {
      if (n_lost++ == 0)
        write_to_standard_error(fmt::format(
            "lockstep: warning: the log cannot be written: {}; until it can be, standard error alone has its "
            "lines\n",
            what));
    });
  }
  void use_pattern() {
    logger.set_pattern(kPattern);
    logger.flush_on(spdlog::level::info);
  }
};

/// Never destroyed, since threads may still write while the process ends.
State& state() {
  static State* const instance = new State;
  return *instance;
}

}  // namespace

void configure(int rank, int size, const std::string& host, bool all_ranks) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.rank = rank;
  s.all_ranks = all_ranks;
  s.rank_prefix = size > 1 ? fmt::format("[RANK: {} {}] ", rank, host) : "";
}

void open_file(const std::string& path) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  try {
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
    s.logger.sinks().resize(1);
    s.logger.sinks().push_back(file);
    s.use_pattern();
    if (s.early)
      for (const auto& line : s.early->last_raw()) file->log(line);
    file->flush();
    s.early.reset();
  } catch (const spdlog::spdlog_ex& e) {
    fail(ErrorCode::system_call, "cannot open the log file {} for appending: {}", path, e.what());
  }
}

namespace {

/// A file that was moved or removed is created again, unless its folder is gone, too.
void open_again_if_gone(State& s) {
  if (s.early) return;  // no file is open
  using File = spdlog::sinks::basic_file_sink_mt;
  const std::filesystem::path path = std::static_pointer_cast<File>(s.logger.sinks().back())->filename();
  std::error_code error;
  if (std::filesystem::exists(path, error) || !std::filesystem::exists(path.parent_path(), error)) return;
  try {
    s.logger.sinks().back() = std::make_shared<File>(path.string());
    s.use_pattern();
  } catch (const spdlog::spdlog_ex&) {  // NOLINT(bugprone-empty-catch): standard error has all lines
  }
}

void write_line(State& s, spdlog::logger& logger, Level level, std::string_view line) {
  if (s.rank != 0 && !s.all_ranks && level != Level::error) return;
  const bool with_rank = s.all_ranks || level == Level::error;
  const std::string_view kind = level == Level::error ? "error: " : level == Level::warning ? "warning: " : "";
  const auto spdlog_level = level == Level::error     ? spdlog::level::err
                            : level == Level::warning ? spdlog::level::warn
                                                      : spdlog::level::info;
  logger.log(spdlog_level, "{}{}{}", with_rank ? s.rank_prefix : "", kind, printable_lines(line));
}

}  // namespace

void write(Level level, std::string_view line) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  open_again_if_gone(s);
  const std::int64_t n_lost = s.n_lost;
  write_line(s, s.logger, level, line);
  if (n_lost == 0 || s.n_lost > n_lost) return;
  s.n_lost = 0;
  write_line(s, s.logger, Level::warning, fmt::format("the log can be written again; it may lack {} lines", n_lost));
}

void write_to_file(Level level, std::string_view line) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.early) return;  // no file is open
  spdlog::logger file_alone("lockstep", s.logger.sinks().back());
  file_alone.flush_on(spdlog::level::info);
  s.report_errors_of(file_alone);
  write_line(s, file_alone, level, line);
}

void set_progress_line(const std::string& line) { state().standard_error->set_progress_line(line); }

}  // namespace lockstep::log
