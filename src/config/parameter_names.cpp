#include "config/parameter_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/edit_distance.h"

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

}  // namespace lockstep::config
