#include "train/autotune.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/stop_signal.h"
#include "lockstep/log.h"

namespace lockstep::train {
namespace {

constexpr double kSecondsBetweenReports = 0.25;
constexpr double kSecondsBetweenSaves = 10;

/// What the ranks report to each other. Rank 0 decides when the timing is over.
enum class Report : char { timing = 't', over = 'o', stop = 's' };

/// Collective. Returns rank 0's report, or stop if any rank reports it.
Report exchange(World& world, Report mine) {
  const char letter = stop_requested() ? static_cast<char>(Report::stop) : static_cast<char>(mine);
  const std::vector<std::string> all = world.all_gather(std::string(1, letter));
  const std::string stop(1, static_cast<char>(Report::stop));
  return std::ranges::find(all, stop) != all.end() ? Report::stop : static_cast<Report>(all[0].at(0));
}

}  // namespace

void autotune(World& world, Algorithms& algorithms, const std::function<void()>& plan,
              const std::function<void()>& save) {
  if (world.rank() != 0) {
    Report report = Report::timing;
    while (report == Report::timing) report = exchange(world, Report::timing);
    if (report == Report::stop) throw StoppedBySignal{};
    return;
  }
  const Clock::time_point begin = Clock::now();
  Clock::time_point last_report = begin, last_save = begin;
  int n_timed = 0;
  const auto stop_if = [&](Report report) {
    if (report != Report::stop) return;
    save();
    throw StoppedBySignal{};
  };
  algorithms.enable_timing([&] {
    ++n_timed;
    if (seconds_since(last_report) > kSecondsBetweenReports || stop_requested()) {
      last_report = Clock::now();
      stop_if(exchange(world, Report::timing));
    }
    if (seconds_since(last_save) > kSecondsBetweenSaves) {
      last_save = Clock::now();
      log::info("{} algorithms timed in {:.0f} s", n_timed, seconds_since(begin));
      save();
    }
  });
  plan();
  algorithms.disable_timing();
  if (const std::size_t n = algorithms.untimed().size(); n > 0)
    log::info(
        "{} of {} algorithms were not timed within cuda.tuning_seconds, and are the first of the ranking; the next run "
        "times these",
        n, algorithms.choices().size());
  save();
  stop_if(exchange(world, Report::over));
}

}  // namespace lockstep::train
