// Configuration files and overrides to a Config, and back. YAML by yaml-cpp; the keys are a table (table.cpp).
#pragma once

#include <string>
#include <vector>

#include "lockstep/config.h"

namespace lockstep::config {

/// `arguments`: YAML files and key=value overrides in the order given; the later wins. `${NAME}` is the environment's.
/// Throws Error (config_*) with file, line and the nearest known key.
Config parse(const std::vector<std::string>& arguments);
/// All keys with the values in force, as YAML that parse() reads back to the same Config.
std::string to_yaml(const Config& config);
/// `lockstep help config`: every key with default, unit and meaning.
std::string help_text();
/// "key: old -> new" for each key that changes what is learned and differs (resuming); device, ranks, buckets,
/// logging, train.max_steps, run.* do not. train.epochs is reported with a flag of its own.
struct Difference {
  std::string key, before, now;
};
std::vector<Difference> learning_differences(const std::string& yaml_before, const Config& now);

}  // namespace lockstep::config
