// Checks that involve several keys.
#pragma once

#include <string>

#include "lockstep/config.h"

namespace lockstep::config {

/// Throws Error (config_conflict, config_invalid, not_supported) with the places where the keys were set.
void check(const Config& config);

/// The address of an MLflow server, of `log.mlflow` or of a command line: http or https, without a password. `what`:
/// the beginning of the message, such as "--uri". Throws Error (config_invalid).
void check_mlflow_address(const std::string& address, const std::string& what);

}  // namespace lockstep::config
