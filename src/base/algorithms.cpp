#include "lockstep/algorithms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep {

bool Algorithms::is_time_over() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count() >= limit_seconds_;
}

std::size_t Algorithms::leave_untimed(const std::string& key, std::span<const std::string> names) {
  choices_[key] = names[0];
  untimed_.insert(key);
  return 0;
}

std::optional<std::size_t> Algorithms::without_timing(const std::string& key, std::span<const std::string> names) {
  if (names.size() == 1) return 0;
  if (const auto known = choices_.find(key); known != choices_.end()) {
    const auto match = std::ranges::find(names, known->second);
    if (match != names.end()) return static_cast<std::size_t>(match - names.begin());
  }
  if (times_ && is_time_over()) return leave_untimed(key, names);
  if (times_) return std::nullopt;
  is_complete_ = false;
  return 0;
}

void Algorithms::store(const std::string& key, const std::string& name, bool is_under_load) {
  choices_[key] = name;
  untimed_.erase(key);
  if (is_under_load)
    under_load_.insert(key);
  else
    under_load_.erase(key);
}

std::size_t Algorithms::choose(const std::string& key, std::span<const std::string> names,
                               const std::function<double(std::size_t)>& seconds) {
  if (const auto known = without_timing(key, names)) return *known;
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < names.size(); ++i) {
    try {
      if (const double found = seconds(i); found < least) {
        least = found;
        best = i;
      }
    } catch (const Error& error) {
      log::write_to_file(log::Level::info, fmt::format("{}: {} is not available: {}", key, names[i], error.what()));
    }
    if (after_each_) after_each_();
    // In an op, choices of its parts may now be missing, so that its time says nothing.
    if (is_time_over()) return leave_untimed(key, names);
  }
  if (std::isfinite(least)) store(key, names[best], false);
  return best;
}

std::size_t Algorithms::choose(const std::string& key, std::span<const std::string> names,
                               const std::function<Timing()>& time_all) {
  if (const auto known = without_timing(key, names)) return *known;
  const Timing timing = time_all();
  require(timing.seconds.size() == names.size(), ErrorCode::internal, "{}: {} algorithms, but {} times", key,
          names.size(), timing.seconds.size());
  for (std::size_t i = 0; after_each_ && i < names.size(); ++i) after_each_();
  const std::size_t best = fastest(timing.seconds);
  if (!std::isfinite(timing.seconds[best])) return 0;
  store(key, names[best], timing.is_under_load);
  return best;
}

}  // namespace lockstep
