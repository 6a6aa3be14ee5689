#include "tasks/stamp_difference.h"

#include <nlohmann/json.hpp>

namespace lockstep::tasks {

std::vector<StampDifference> stamp_differences(const nlohmann::json& before, const nlohmann::ordered_json& now) {
  std::vector<StampDifference> out;
  const auto compare = [&](const std::string& key) {
    const auto text = [&](const auto& stamp) {
      return stamp.contains(key) ? stamp.at(key).dump() : std::string("its default");
    };
    if (text(before) != text(now)) out.push_back({.key = key, .before = text(before), .now = text(now)});
  };
  for (const auto& [key, value] : now.items()) compare(key);
  for (const auto& [key, value] : before.items())
    if (!now.contains(key)) compare(key);
  return out;
}

}  // namespace lockstep::tasks
