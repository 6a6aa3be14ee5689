// The CUDA backend: one device for each rank.
#pragma once

#include <memory>
#include <string>

#include "lockstep/backend.h"

namespace lockstep::cuda {

/// Why no device can be used here, in a sentence; empty: one can.
std::string reason_for_no_device();

/// The device of this rank: of those that its process sees, the one with its number on the node, or the only one.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

/// "CUDA 13.0", and of each library that the backend loads when it is used. Loads nothing.
std::vector<std::string> library_versions();

}  // namespace lockstep::cuda
