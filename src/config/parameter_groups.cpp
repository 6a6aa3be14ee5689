#include "config/parameter_groups.h"

#include <charconv>
#include <sstream>

#include "lockstep/error.h"

namespace lockstep::config {

ParameterGroup parse_parameter_group(const std::string& text, const std::string& place) {
  const auto check = [&](bool holds) {
    require(holds, ErrorCode::config_invalid,
            "{}optimizer.groups: expected a pattern of parameter names and one or both of learning_rate and "
            "weight_decay, such as \"fc.* learning_rate=0.1 weight_decay=0\", found \"{}\"",
            place, text);
  };
  std::istringstream words(text);
  ParameterGroup group;
  words >> group.pattern;
  check(!group.pattern.empty() && group.pattern.find('=') == std::string::npos);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    check(equals != std::string::npos);
    const std::string name = word.substr(0, equals);
    check(name == "learning_rate" || name == "weight_decay");
    std::optional<double>& setting = name == "learning_rate" ? group.learning_rate : group.weight_decay;
    double value = 0;
    const char* const end = word.data() + word.size();
    const auto [rest, error] = std::from_chars(word.data() + equals + 1, end, value);
    check(!setting && error == std::errc{} && rest == end);
    constexpr double kGreatest = 1e30;  // as for optimizer.learning_rate: a float overflows soon after it
    require(value >= 0 && value <= kGreatest, ErrorCode::config_invalid,
            "{}optimizer.groups: expected a {} of 0 to 1e30, found {} in \"{}\"", place, name, value, text);
    setting = value;
  }
  check(group.learning_rate || group.weight_decay);
  return group;
}

}  // namespace lockstep::config
