#include "base/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/numbers.h"
#include "base/standard_streams.h"
#include "lockstep/log.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPercentFrom = 10'000'000;
constexpr int kWidestBar = 40;
constexpr int kNarrowestBar = 10;
constexpr int kUsualWidth = 80;
constexpr auto kRedrawEvery = std::chrono::milliseconds(100);
constexpr auto kLogEvery = std::chrono::seconds(10);
constexpr int kLogPart = 10;  // later: a line whenever this part of the time so far has passed

int terminal_width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualWidth;
}

std::string time_left(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e8) return "--:--";
  const auto total = static_cast<std::int64_t>(std::lround(seconds));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{:02}:{:02}", minutes, total % 60);
}

}  // namespace

std::string progress_text(const std::string& title, std::int64_t done, std::int64_t total, double per_second,
                          const std::string& note, int width) {
  const double part = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0.0;
  const std::string left = time_left(per_second > 0 ? static_cast<double>(total - done) / per_second : NAN);
  std::string figures = total >= kPercentFrom ? fmt::format("{:.0f}%", 100 * part) : fmt::format("{}/{}", done, total);
  if (total >= kPercentFrom && per_second > 0)
    figures += fmt::format("  {}/s", size_text(static_cast<std::uint64_t>(per_second)));
  if (total < kPercentFrom && per_second > 0) figures += fmt::format("  {:.1f} it/s", per_second);
  figures += "  ETA " + left + (note.empty() ? "" : "  " + note);
  const int room = width - static_cast<int>(title.size() + figures.size()) - 4;  // blanks and brackets
  std::string text = title + " ";
  if (room >= kNarrowestBar) {
    const int length = std::min(room, kWidestBar);
    const int filled = static_cast<int>(part * length);
    std::string bar(static_cast<std::size_t>(filled), '=');
    if (filled < length) bar += '>';
    bar.resize(static_cast<std::size_t>(length), ' ');
    text += "[" + bar + "] ";
  }
  text += figures;
  if (width == 0) return text;
  return text.substr(0, static_cast<std::size_t>(std::max(0, width)));
}

struct ProgressBar::State {
  std::string title;
  std::int64_t total;
  bool is_logged;                // instead of drawn
  std::int64_t first_done = -1;  // set at the first update, since steps before a resume do not count for the rate
  Clock::time_point begin, drawn;
};

ProgressBar::ProgressBar(const std::string& title, std::int64_t total, bool enabled, WithoutTerminal without_terminal) {
  const bool is_drawn = has_cursor();
  if (!enabled || (!is_drawn && without_terminal == WithoutTerminal::nothing)) return;
  const auto now = Clock::now();
  state_ = std::make_unique<State>(State{.title = title,
                                         .total = total,
                                         .is_logged = !is_drawn,
                                         .begin = now,
                                         .drawn = is_drawn ? Clock::time_point() : now});
}

ProgressBar::~ProgressBar() {
  if (state_ && !state_->is_logged) log::set_progress_line("");
}

void ProgressBar::update(std::int64_t done, const std::string& note, const std::string& title) {
  if (!state_) return;
  State& s = *state_;
  if (!title.empty()) s.title = title;
  const auto now = Clock::now();
  if (s.first_done < 0) {
    s.first_done = done;
    s.begin = now;
  } else if (!s.is_logged && now - s.drawn < kRedrawEvery && done < s.total) {
    return;
  }
  if (s.is_logged && now - s.drawn < std::max<Clock::duration>(kLogEvery, (now - s.begin) / kLogPart)) return;
  s.drawn = now;
  const double seconds = std::chrono::duration<double>(now - s.begin).count();
  const double per_second = seconds > 0 ? static_cast<double>(done - s.first_done) / seconds : 0;
  if (s.is_logged) {
    log::info("{}", progress_text(s.title, done, s.total, per_second, note, 0));
    return;
  }
  // The last column stays empty, because some terminals break the line there.
  log::set_progress_line(progress_text(s.title, done, s.total, per_second, note, terminal_width() - 1));
}

}  // namespace lockstep
