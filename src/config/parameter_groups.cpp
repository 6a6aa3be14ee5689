#include "config/parameter_groups.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

/// The usual algorithm for a single kind of wildcard: after a mismatch, the last `*` takes one more character.
bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

/// Calls f with the name of each layer that contains the parameter, from the outermost on.
template <typename F>
void for_layers(std::string_view parameter, const F& f) {
  for (std::size_t dot = parameter.find('.'); dot != std::string_view::npos; dot = parameter.find('.', dot + 1))
    f(parameter.substr(0, dot));
}

}  // namespace

bool selects(std::string_view pattern, std::string_view parameter) {
  bool selected = matches(pattern, parameter);
  for_layers(parameter, [&](std::string_view layer) { selected |= matches(pattern, layer); });
  return selected;
}

std::string nearest_names(std::string_view pattern, std::span<const std::string> parameters) {
  std::string wanted(pattern);
  std::erase(wanted, '*');
  if (wanted.ends_with('.')) wanted.pop_back();
  std::set<std::string, std::less<>> names(parameters.begin(), parameters.end());
  for (const std::string& parameter : parameters)
    for_layers(parameter, [&](std::string_view layer) { names.emplace(layer); });
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& name : names) ranked.emplace_back(edit_distance(wanted, name), name);
  std::ranges::sort(ranked);
  ranked.resize(std::min<std::size_t>(ranked.size(), 3));
  std::vector<std::string> nearest;
  for (auto& [distance, name] : ranked) nearest.push_back(std::move(name));
  return fmt::format("{}", fmt::join(nearest, ", "));
}

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
