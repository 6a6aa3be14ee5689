// The entries of optimizer.groups. Each selects parameters by a pattern of their names and sets optimizer options for
// them.
#pragma once

#include <optional>
#include <string>

namespace lockstep::config {

/// "fc.* learning_rate=0.1 weight_decay=0"
struct ParameterGroup {
  std::string pattern;
  std::optional<double> learning_rate, weight_decay;  // at least one
};

/// Throws Error (config_invalid) with `place`, for example "a.yaml:3: ", in front.
ParameterGroup parse_parameter_group(const std::string& text, const std::string& place = "");

}  // namespace lockstep::config
