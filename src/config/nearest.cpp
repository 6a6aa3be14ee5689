// Finds the keys that somebody who wrote an unknown one probably meant.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "config/table.h"
#include "config/yaml_text.h"

namespace lockstep::config {
namespace {

constexpr std::size_t kFar = 1000;
constexpr std::size_t kMaxSuggestions = 4;

/// The distance, or kFar if the words have little in common: more than one difference per three letters.
std::size_t near_distance(std::string_view a, std::string_view b) {
  const std::size_t limit = std::max<std::size_t>(1, std::min(a.size(), b.size()) / 3);
  // The difference in length is a lower bound, so a word of megabytes need not be compared.
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > limit) return kFar;
  const std::size_t distance = edit_distance(a, b);
  return distance <= limit ? distance : kFar;
}

std::pair<std::string_view, std::string_view> group_and_key(std::string_view name) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

/// The distance to the nearest word of a name: `batch` is one of the words of `global_batch`. Short words are not
/// distinctive enough.
std::size_t word_distance(std::string_view name, std::string_view of) {
  std::size_t nearest = kFar;
  if (name.size() < 4) return nearest;
  for (std::string_view rest = of; !rest.empty();) {
    const auto end = std::min(rest.find('_'), rest.size());
    if (end > 0) nearest = std::min(nearest, near_distance(name, rest.substr(0, end)));
    rest.remove_prefix(std::min(rest.size(), end + 1));
  }
  return nearest;
}

/// Smaller is nearer; kFar or more means not similar. `name` is an unknown key in lower case.
std::size_t distance_to(const Key& key, std::string_view name) {
  if (key.is_hidden) return kFar;
  const auto [group, last] = group_and_key(name);
  const auto [key_group, key_last] = group_and_key(key.name);
  if (name.starts_with(key.name + ".")) return 0;  // train.epochs.x
  const std::size_t by_last = near_distance(last, key_last);
  const std::size_t by_word = last == key_last ? kFar : word_distance(last, key_last) + 3;
  const bool has_same_group = group == key_group;
  const std::size_t by_group = has_same_group ? 0 : near_distance(group, key_group);
  if (by_group < kFar) return std::min(by_last, by_word) + by_group;
  // If the group differs or is missing, only a key whose own name is very similar is near.
  return group.empty() || by_last <= 1 ? by_last + 4 : kFar;
}

std::vector<std::string> groups() {
  std::vector<std::string> names;
  for (const Key& key : table()) {
    const std::string group(group_and_key(key.name).first);
    if (!group.empty() && std::ranges::find(names, group) == names.end()) names.push_back(group);
  }
  return names;
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& words) {
  std::string nearest;
  std::size_t smallest = kFar;
  for (const std::string& other : words) {
    const std::size_t distance = near_distance(word, other);
    if (distance < smallest) nearest = other;
    smallest = std::min(smallest, distance);
  }
  return nearest;
}

std::string nearest_text(std::string_view unknown) {
  const std::string name = lower(unknown);
  const auto [group, last] = group_and_key(name);
  if (const std::string text = text_of_other_programs(name); !text.empty()) return text;

  std::vector<std::pair<std::size_t, std::string>> near;
  for (const Key& key : table())
    if (const std::size_t distance = distance_to(key, name); distance < kFar) near.emplace_back(distance, key.name);
  std::ranges::stable_sort(near, {}, [](const auto& entry) { return entry.first; });
  std::vector<std::string> names;
  for (const auto& [distance, key] : near)
    if (distance == near.front().first && names.size() < kMaxSuggestions) names.push_back(key);
  if (names.size() == 1) return fmt::format("; the nearest is {}", names.front());
  if (!names.empty()) return fmt::format("; the nearest are {}", fmt::join(names, ", "));

  const std::string of = nearest_word(group.empty() ? last : group, groups());
  if (of.empty()) return "";
  return fmt::format("{}; `lockstep help config {}` lists the keys of that group",
                     of == group ? "" : fmt::format("; the nearest group is {}", of), of);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace lockstep::config
