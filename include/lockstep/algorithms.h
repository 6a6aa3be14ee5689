// Which of several ways an op runs, chosen by timing once for all: what is remembered is taken, what nobody remembers
// is timed on one rank, and all ranks plan with its choices. Without a table a backend takes its first way.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace lockstep {

class Algorithms {
 public:
  using Choices = std::map<std::string, std::string>;  // "conv2d 16x16x64 -> 64, 3x3/1, bf16, forward": "amx"

  Algorithms() = default;
  explicit Algorithms(Choices known) : choices_(std::move(known)) {}

  void remember(Choices known) { choices_ = std::move(known); }

  /// From now on what is not remembered is timed, and `after_each` way called; else the first way is taken, and the
  /// table is not complete.
  void time_unknown(std::function<void()> after_each = {}) {
    times_ = true;
    is_complete_ = true;
    after_each_ = std::move(after_each);
  }
  void time_no_more() {
    times_ = false;
    after_each_ = {};
  }
  bool is_complete() const { return is_complete_; }
  const Choices& choices() const { return choices_; }

  /// The index of one of `ways`. `seconds(i)` runs and times one; one that throws Error cannot be had here, which the
  /// log's file is told. If none can, the first, which is not remembered.
  std::size_t choose(const std::string& key, std::span<const std::string> ways,
                     const std::function<double(std::size_t)>& seconds);

 private:
  Choices choices_;
  bool times_ = false, is_complete_ = true;
  std::function<void()> after_each_;
};

}  // namespace lockstep
