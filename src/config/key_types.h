// Functions that make the keys of the table, one per type of value. `field` refers to a member of a Config.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "config/table.h"

// A key's name is the path of its member.
// clang-format off
#define KEY(path) #path, +[](Config& c) -> auto& { return c.path; }
// clang-format on

namespace lockstep::config {

template <typename T>
using Field = T& (*)(Config&);

/// Bounds of a number. `accepts` describes them in words.
struct Range {
  double low = 0;
  double high = 0;
  bool low_excluded = false;
  bool high_excluded = false;
  std::string accepts;
};
// Beyond these limits a float overflows or is 0.
inline const Range kNotNegative{.high = 1e30, .accepts = "0 to 1e30"};
inline const Range kPositive{.low = 1e-30, .high = 1e30, .accepts = "1e-30 to 1e30"};
inline const Range kBelowOne{.high = 1, .high_excluded = true, .accepts = "0 to below 1"};
inline const Range kUpToOne{.high = 1, .low_excluded = true, .accepts = "greater than 0, up to 1"};

/// T: int, std::int64_t or std::uint32_t. The default upper bound is that of T.
template <typename T>
Key integer(std::string name, Field<T> field, std::int64_t low,
            std::int64_t high = std::numeric_limits<std::int64_t>::max());
Key real(std::string name, Field<double> field, Range range);
/// Words that stand for values. T: bool, int or Precision.
template <typename T>
Key choice_of(std::string name, Field<T> field, std::vector<std::pair<std::string, T>> choices);
Key choice(std::string name, Field<std::string> field, const std::vector<std::string>& choices);
Key boolean(std::string name, Field<bool> field);
Key text(std::string name, Field<std::string> field);
Key path(std::string name, Field<std::string> field);
/// A path. The name of a model on the Hub becomes that of its directory in the cache, if it is there.
Key model_path(std::string name, Field<std::string> field);
/// A list of some of the choices, each at most once.
Key list_of_choices(std::string name, Field<std::vector<std::string>> field, std::vector<std::string> choices);
/// A list of any texts that are not empty. One text without brackets is a list of one.
Key list_of_texts(std::string name, Field<std::vector<std::string>> field);
/// A list of numbers within the range; it may be empty.
Key list_of_numbers(std::string name, Field<std::vector<double>> field, Range range);
/// `auto` (an empty list), or one number per channel.
Key auto_or_list(std::string name, Field<std::vector<double>> field, Range range);
/// `auto` (stored as `auto_value`, below `low`), or a number from `low` to `high`. T: int or std::int64_t.
template <typename T>
Key auto_or_integer(std::string name, Field<T> field, T auto_value, std::int64_t low, std::int64_t high);

}  // namespace lockstep::config
