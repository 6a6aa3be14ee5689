// Memory of the device, and memory of the host that the device reads and writes by itself. All throw out_of_memory,
// with the remedy, if there is too little.
#pragma once

#include <memory>
#include <string>

#include "lockstep/backend.h"

namespace lockstep::cuda {

/// Zeros on the device. `purpose`: for the error, such as "gradients".
std::unique_ptr<Memory> device_memory(std::size_t size_bytes, const std::string& purpose);
/// Pinned zeros: copies run concurrently with the host, and can be part of a captured graph.
std::unique_ptr<Memory> pinned_memory(std::size_t size_bytes, const std::string& purpose);
/// Pins memory that exists.
std::unique_ptr<Memory> pin(void* h_data, std::size_t size_bytes);

}  // namespace lockstep::cuda
