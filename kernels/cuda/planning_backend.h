// A backend for a GPU that is not here: its ops tell what they need and how they would run, and cannot run.
#pragma once

#include <memory>
#include <string>

#include "lockstep/backend.h"

namespace lockstep::cuda {

/// One of the known GPUs by its short name, or FILE.json (device_description.h). Throws usage where it is neither.
std::unique_ptr<Backend> make_planning_backend(const std::string& device);

/// "t4, v100, ..."
std::string known_devices();

}  // namespace lockstep::cuda
