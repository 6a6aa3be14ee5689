// Parameters that the configuration selects by patterns of their names (train.freeze, optimizer.groups).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::config {

/// Whether the pattern matches the name of the parameter or that of a layer which contains it: "layer1",
/// "layer1.0.bn1", "*.bn1" and "layer1.0.bn1.weight" all select the last. `*` stands for any characters, dots too.
bool selects(std::string_view pattern, std::string_view parameter);

/// "layer1, layer1.0, layer2": the three names of parameters and layers that are most similar to the pattern.
std::string nearest_names(std::string_view pattern, std::span<const std::string> parameters);

/// An entry of optimizer.groups: "fc.* learning_rate=0.1 weight_decay=0"
struct ParameterGroup {
  std::string pattern;
  std::optional<double> learning_rate, weight_decay;  // at least one
};
/// Throws Error (config_invalid) with `place`, for example "a.yaml:3: ", in front.
ParameterGroup parse_parameter_group(const std::string& text, const std::string& place = "");

}  // namespace lockstep::config
