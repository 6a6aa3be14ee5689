#include "lockstep/timing.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "base/clock.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Criteria for a stable ranking, and limits on the attempts to reach one.
constexpr std::size_t kConfirmations = 3, kMaxRounds = 200;
constexpr double kConfirmed = 1.05, kLimitSeconds = 0.25;
// A candidate that needs this many times the shortest time can still win if its calls were interrupted.
constexpr double kContender = 1.5;
// Beyond this factor, it cannot win. One call is enough if the difference is longer than any interruption by the
// scheduler.
constexpr double kHopeless = 3, kLongestInterruptionSeconds = 0.1;
// The share of the time for which threads may wait on an idle machine.
constexpr double kIdleWaiting = 0.05;
constexpr double kTie = 1.02;

/// The time that the threads of this process have waited for a processor since they started (the second number of their
/// `schedstat`, in nanoseconds), plus the time stolen from the virtual machine since it started.
double waiting_seconds() {
  double sum = 0;
  std::error_code ignored;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    std::ifstream file(thread.path() / "schedstat");
    double running = 0, waiting = 0;
    if (file >> running >> waiting) sum += 1e-9 * waiting;
  }
  std::ifstream stat("/proc/stat");
  return sum + stolen_seconds(stat);
}

class Candidate {
 public:
  double shortest() const { return calls_.empty() ? kInfinity : calls_.front().seconds; }
  bool is_in() const { return is_in_; }
  void add(const CallTime& time) {
    ++n_calls_;
    if (!std::isfinite(time.seconds)) is_in_ = false;
    calls_.insert(std::ranges::upper_bound(calls_, time.seconds, {}, &CallTime::seconds), time);
    if (calls_.size() > kConfirmations) calls_.pop_back();
    possible_ = std::min(possible_, without_waiting(time));
  }
  void drop_if_hopeless(double least) {
    const bool may_be_fast = n_calls_ < kConfirmations || possible_ <= kHopeless * least;
    const bool is_interrupted = shortest() - least < kLongestInterruptionSeconds && may_be_fast;
    if (shortest() > kHopeless * least && !is_interrupted) is_in_ = false;
  }
  bool is_contender(double least) const { return is_in_ && possible_ <= kContender * least; }
  /// The shortest calls agree, and interruptions are not the reason.
  bool is_confirmed() const {
    return calls_.size() == kConfirmations && calls_.back().seconds <= kConfirmed * shortest() &&
           shortest() <= kContender * without_waiting(calls_.front());
  }

 private:
  static double without_waiting(const CallTime& time) { return std::max(0.0, time.seconds - time.waiting_seconds); }

  std::vector<CallTime> calls_;  // the shortest, in ascending order
  double possible_ = kInfinity;  // the shortest without_waiting()
  std::size_t n_calls_ = 0;
  bool is_in_ = true;
};

}  // namespace

double stolen_seconds(std::istream& stat) {
  std::string name;
  double ticks = 0;
  if (!(stat >> name) || name != "cpu") return 0;
  for (int i = 0; i < 8; ++i)
    if (!(stat >> ticks)) return 0;
  return 0.01 * ticks;
}

CallTime time_call(const std::function<void()>& work) {
  const double waited = waiting_seconds();
  const Clock::time_point begin = Clock::now();
  work();
  CallTime time{.seconds = seconds_since(begin)};
  time.waiting_seconds = std::max(0.0, waiting_seconds() - waited);
  return time;
}

Timing time_in_alternation(std::size_t n, const std::function<CallTime(std::size_t)>& call) {
  std::vector<Candidate> candidates(n);
  double least = kInfinity, elapsed = 0, waited = 0;
  bool is_stable = false;
  for (std::size_t round = 1; !is_stable && round <= kMaxRounds; ++round) {
    if (round > kConfirmations && elapsed > kLimitSeconds) break;
    for (std::size_t i = 0; i < n; ++i) {
      if (!candidates[i].is_in()) continue;
      const CallTime time = call(i);
      candidates[i].add(time);
      if (!candidates[i].is_in()) continue;
      if (round > 1) {  // not in the first round, which fills caches and also calls candidates that are far behind
        elapsed += time.seconds;
        waited += time.waiting_seconds;
      }
      least = std::min(least, time.seconds);
    }
    for (Candidate& candidate : candidates) candidate.drop_if_hopeless(least);
    const auto contends = [&](const Candidate& c) { return c.is_contender(least); };
    is_stable = round >= kConfirmations &&
                (std::ranges::count_if(candidates, contends) == 1 ||
                 std::ranges::all_of(candidates, [&](const Candidate& c) { return !contends(c) || c.is_confirmed(); }));
  }
  Timing timing{.seconds = {}, .is_under_load = !is_stable || waited > kIdleWaiting * elapsed};
  for (const Candidate& candidate : candidates) timing.seconds.push_back(candidate.shortest());
  return timing;
}

std::size_t fastest(const std::vector<double>& seconds) {
  const double least = *std::ranges::min_element(seconds);
  return static_cast<std::size_t>(std::ranges::find_if(seconds, [&](double found) { return found <= kTie * least; }) -
                                  seconds.begin());
}

}  // namespace lockstep
