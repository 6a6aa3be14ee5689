// The progress of long work, for people: a bar on the terminal, or lines in a log.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep {

/// What ProgressBar does if standard error is not a terminal with a cursor (base/standard_streams.h). lines: it logs
/// its figures after 10 seconds, and then every 10 seconds or, later, a tenth of the time so far.
enum class WithoutTerminal : std::uint8_t { nothing, lines };

/// Models of fewer bytes are read and written without showing progress.
inline constexpr std::int64_t kShownFromBytes = std::int64_t{256} << 20;

/// A bar on the terminal's last line with steps, it/s and ETA.
class ProgressBar {
 public:
  ProgressBar(const std::string& title, std::int64_t total, bool enabled,
              WithoutTerminal without_terminal = WithoutTerminal::nothing);
  ~ProgressBar();
  /// `title`: replaces that of the constructor, unless it is empty.
  void update(std::int64_t done, const std::string& note, const std::string& title = "");

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The bar's text, at most `width` characters: "title [====>    ] 12/50  3.2 it/s  ETA 00:12  note". 0: without the
/// bar. If the total is ten million or more (bytes), progress is shown in percent. A rate of 0 is unknown.
std::string progress_text(const std::string& title, std::int64_t done, std::int64_t total, double per_second,
                          const std::string& note, int width);

}  // namespace lockstep
