// How two models differ, according to what checkpoints record about them: Task::model_stamp().
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::tasks {

/// A key in which two stamps differ, with its values as texts: "18", or "its default" where it is absent. If the values
/// are JSON objects as text, the differing members are listed: "config.rope_theta".
struct StampDifference {
  std::string key, before, now;
};
/// In the order of the keys in `now`; keys that only `before` has come last.
std::vector<StampDifference> stamp_differences(const nlohmann::json& before, const nlohmann::ordered_json& now);

}  // namespace lockstep::tasks
