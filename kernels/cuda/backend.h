// The CUDA backend: one device for each rank.
#pragma once

#include <memory>
#include <string>

#include "lockstep/backend.h"

namespace lockstep::cuda {

/// Why no device can be used here, in a sentence; empty: one can.
std::string reason_for_no_device();

/// Throws not_supported where a device of that compute capability (80: 8.0) does not compute in it; gives what a user
/// should hear of it, or nothing.
std::string check_precision(Precision precision, const std::string& device, int compute_capability);

/// The device of this rank: of those that its process sees, the one with its number on the node, or the only one.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

/// "CUDA 13.0", and of each library that the backend loads when it is used. Loads nothing.
std::vector<std::string> library_versions();

}  // namespace lockstep::cuda
