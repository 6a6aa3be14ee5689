// The CUDA backend: one device for each rank.
#pragma once

#include <memory>
#include <string>

#include "lockstep/backend.h"
#include "lockstep/gpu_report.h"

namespace lockstep::cuda {

/// Why no device can be used here, as a part of a sentence; empty if one can.
std::string reason_for_no_device();
/// Whether this machine lacks a driver or a device, so that device: auto means the processor. A driver that fails is an
/// error: a job that asked for GPUs would otherwise train on processors.
bool is_without_device();

/// Throws not_supported if a device of that compute capability (80: 8.0) does not compute in this precision. Otherwise
/// returns a warning for the user, or nothing.
std::string check_precision(Precision precision, const std::string& device, int compute_capability);

/// The device of this rank: the visible device with the rank's number on the node, or the only visible one.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

/// "CUDA 13.0", and the version of each library that the backend loads when it is first used. Loads nothing.
std::vector<std::string> library_versions();

/// This machine's GPUs, and the libraries that training on them needs (backend_gpu_report.cpp).
GpuReport gpu_report();

/// Loads cuDNN and cuBLASLt to find out whether they are usable.
std::vector<GpuReport::Library> libraries();

/// "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77" of the device with this number.
std::string uuid_of(int device);
/// "0000:18:00.0"
std::string pci_bus_of(int device);

}  // namespace lockstep::cuda
