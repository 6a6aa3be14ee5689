#include "tasks/stamp_difference.h"

#include <nlohmann/json.hpp>

namespace lockstep::tasks {
namespace {

/// The object in the text of a member; null if the text is something else.
template <typename Json>
Json object_in(const Json& stamp, const std::string& key) {
  if (!stamp.contains(key) || !stamp.at(key).is_string()) return nullptr;
  Json value = Json::parse(stamp.at(key).template get<std::string>(), nullptr, /*allow_exceptions=*/false);
  return value.is_object() ? value : Json(nullptr);
}

}  // namespace

std::vector<StampDifference> stamp_differences(const nlohmann::json& before, const nlohmann::ordered_json& now) {
  std::vector<StampDifference> out;
  const auto compare = [&](const std::string& key) {
    const auto text = [&](const auto& stamp) {
      return stamp.contains(key) ? stamp.at(key).dump() : std::string("its default");
    };
    if (text(before) == text(now)) return;
    const auto object_before = object_in(before, key);
    const auto object_now = object_in(now, key);
    if (object_before.is_null() || object_now.is_null()) {
      out.push_back({.key = key, .before = text(before), .now = text(now)});
      return;
    }
    for (StampDifference& difference : stamp_differences(object_before, object_now)) {
      difference.key = key + "." + difference.key;
      out.push_back(std::move(difference));
    }
  };
  for (const auto& [key, value] : now.items()) compare(key);
  for (const auto& [key, value] : before.items())
    if (!now.contains(key)) compare(key);
  return out;
}

}  // namespace lockstep::tasks
