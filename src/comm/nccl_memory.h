// Device memory that NCCL allocates and registers, so that it copies and sums without buffers of its own.
//
// Since NCCL 2.27, memory from ncclMemAlloc can be registered as a window, through which all GPUs of a node can access
// each other's memory. NCCL then sums in place, with NVLink SHARP where the switches support it. Otherwise the backend
// allocates the memory, and each rank registers it for itself. NCCL also works if it cannot register the memory.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/backend.h"

namespace lockstep::comm {

/// Memory of ncclMemAlloc, zero-filled; null if NCCL has no windows or cannot allocate it. `stream` fills it.
std::unique_ptr<Memory> allocate_nccl_memory(Backend& backend, Stream& stream, std::size_t size_bytes);

}  // namespace lockstep::comm
