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
/// The keys that decide what is learned, without paths: what a checkpoint keeps, the same on any machine and rank
/// count.
std::string learning_yaml(const Config& config);
/// `lockstep help config`: every key with default, unit and meaning.
std::string help_text();

/// A key that changes what is learned and differs when a run is resumed; device, ranks, buckets, logging,
/// train.max_steps, run.name and the like never appear.
struct Difference {
  std::string key, before, now;
  bool allowed = false;  // train.epochs: may change, said aloud where it changes the schedule
};
/// Compares the keys that `yaml_before` gives, which may be to_yaml() or learning_yaml() of another release.
/// train.global_batch is compared only where both fix it: else the checkpoint's own number decides.
std::vector<Difference> learning_differences(const std::string& yaml_before, const Config& now);

}  // namespace lockstep::config
