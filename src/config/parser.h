// Converts configuration files and overrides to a Config, and back. yaml-cpp reads the YAML; table.cpp lists the keys.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/config.h"

namespace lockstep::config {

/// `arguments`: YAML files and key=value overrides; later ones override earlier ones. `deepspeed`: a configuration of
/// DeepSpeed, which overrides the files and is overridden by what follows them; empty: none. `${NAME}` is replaced by
/// the environment variable. Throws Error (config_*) with file, line and the nearest known key.
Config parse(const std::vector<std::string>& arguments, const std::string& deepspeed = "");
/// All keys with their values, as YAML that parse() reads back to the same Config.
/// `has_origins`: with comments that tell where keys were set.
std::string to_yaml(const Config& config, bool has_origins = false);
/// The keys that affect what is learned, without paths. A checkpoint stores them, so they do not depend on the machine
/// or the number of ranks.
std::string learning_yaml(const Config& config);
/// The keys of to_yaml() or learning_yaml() with their values as text, without the quotes of YAML, for other programs
/// that list the settings of a run.
std::vector<std::pair<std::string, std::string>> values_in(const std::string& yaml);

/// Checks that involve several keys. parse() makes them, too. Throws Error (config_conflict, config_invalid,
/// not_supported) with the places where the keys were set.
void check(const Config& config);
/// The address of an MLflow server, of `log.mlflow` or of a command line: http or https, without a password. `what`:
/// the beginning of the message, such as "--uri". Throws Error (config_invalid).
void check_mlflow_address(const std::string& address, const std::string& what);

/// `lockstep help config`: every key with default, unit, accepted values, meaning and whether it may change on resume.
std::string help_text();
/// `lockstep help config KEY GROUP`: these keys and groups. Throws Error (config_invalid).
std::string help_text(const std::vector<std::string>& names);

/// A key that affects what is learned and has changed when a run is resumed. Keys such as the device, the ranks, the
/// buckets, logging, train.max_steps and run.name never appear.
struct Difference {
  std::string key, before, now;
  bool allowed = false;  // true for train.epochs: it may change, and a change of the schedule is reported
  bool fixed = false;    // it can never change within a run
};
/// Compares the keys in `yaml_before`, which may be to_yaml() or learning_yaml() of another release. train.global_batch
/// is compared only if both configurations set it; otherwise the number in the checkpoint is used. `source` names
/// yaml_before in messages. Throws Error (config_unreadable, config_invalid) if it is damaged.
std::vector<Difference> learning_differences(const std::string& yaml_before, const Config& now,
                                             const std::string& source = "the previous configuration");

}  // namespace lockstep::config
