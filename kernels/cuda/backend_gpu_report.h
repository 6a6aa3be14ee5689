// This machine's GPUs, and the libraries that training on them needs.
#pragma once

#include "lockstep/gpu_report.h"

namespace lockstep::cuda {

GpuReport gpu_report();

/// Loads cuDNN and cuBLASLt to find out whether they are usable.
std::vector<GpuReport::Library> libraries();

/// "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77" of the device with this number.
std::string uuid_of(int device);
/// "0000:18:00.0"
std::string pci_bus_of(int device);

}  // namespace lockstep::cuda
