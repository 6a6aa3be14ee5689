// Chooses the algorithm of an op. Choices are made by timing, once for all ranks: a choice that is in the table is
// used, an unknown one is timed on one rank, and all ranks plan with that rank's choices. Without a table, a backend
// uses its first algorithm.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "lockstep/timing.h"

namespace lockstep {

class Algorithms {
 public:
  using Choices = std::map<std::string, std::string>;  // "conv2d 16x16x64 -> 64, 3x3/1, bf16, forward": "amx"
  using Keys = std::set<std::string>;

  Algorithms() = default;
  explicit Algorithms(Choices known) : choices_(std::move(known)) {}

  /// Replaces the table of choices.
  void remember(Choices known, Keys under_load = {}, Keys untimed = {}) {
    choices_ = std::move(known);
    under_load_ = std::move(under_load);
    untimed_ = std::move(untimed);
  }
  /// Limits the time from enable_timing() on. What is not timed by then uses the first algorithm.
  void limit_timing(double seconds) { limit_seconds_ = seconds; }

  /// From now on an unknown choice is timed, and `after_each` is called after each algorithm. Otherwise the first
  /// algorithm is used, and the table is not complete.
  void enable_timing(std::function<void()> after_each = {}) {
    times_ = true;
    begin_ = std::chrono::steady_clock::now();
    is_complete_ = true;
    after_each_ = std::move(after_each);
  }
  void disable_timing() {
    times_ = false;
    after_each_ = {};
  }
  bool is_complete() const { return is_complete_; }
  const Choices& choices() const { return choices_; }
  /// The keys of the choices that were made while other programs used the processors. This run uses these choices, but
  /// the next run times them again.
  const Keys& under_load() const { return under_load_; }
  /// The same for the keys of the choices that were not timed, because the time was over.
  const Keys& untimed() const { return untimed_; }

  /// Returns the index of the chosen one of `names`. `seconds(i)` runs and times algorithm i. If it throws Error, the
  /// algorithm is not available here, and the log says so. If no algorithm is available, the first is returned and not
  /// stored.
  std::size_t choose(const std::string& key, std::span<const std::string> names,
                     const std::function<double(std::size_t)>& seconds);
  /// The same for algorithms that are timed together (lockstep/timing.h): `time_all` returns a time for each name.
  std::size_t choose(const std::string& key, std::span<const std::string> names,
                     const std::function<Timing()>& time_all);

 private:
  bool is_time_over() const;
  /// Stores and returns the first algorithm.
  std::size_t leave_untimed(const std::string& key, std::span<const std::string> names);
  /// The index of a choice that needs no timing: the only one, a remembered one, or the first if nothing is timed.
  std::optional<std::size_t> without_timing(const std::string& key, std::span<const std::string> names);
  void store(const std::string& key, const std::string& name, bool is_under_load);

  Choices choices_;
  Keys under_load_, untimed_;
  double limit_seconds_ = std::numeric_limits<double>::infinity();
  std::chrono::steady_clock::time_point begin_{};
  bool times_ = false, is_complete_ = true;
  std::function<void()> after_each_;
};

}  // namespace lockstep
