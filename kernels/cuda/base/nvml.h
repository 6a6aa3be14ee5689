// NVML, the driver's library that reports how a GPU is used. It is loaded on first use, with declarations of our own,
// since a CUDA toolkit may lack its header. Nothing fails if the library is missing.
#pragma once

#include <memory>
#include <string>

#include "lockstep/backend.h"
#include "lockstep/device_health.h"

namespace lockstep::cuda {

class Nvml {
 public:
  /// Null if there is no such library or it cannot start. Loads it once.
  static const Nvml* get();
  /// Why get() returns null, as a part of a sentence; empty if it does not.
  static const std::string& problem();

  std::string driver_version() const;
  // For the device with this PCI address, "0000:18:00.0", which does not depend on CUDA_VISIBLE_DEVICES.
  DeviceUsage usage(const std::string& pci_bus) const;
  DeviceHealth health(const std::string& pci_bus) const;

 private:
  struct Functions;
  struct Loaded {
    std::unique_ptr<const Nvml> nvml;
    std::string problem;
  };
  static const Loaded& loaded();
  explicit Nvml(const Functions& functions) : functions_(functions) {}
  void* device(const std::string& pci_bus) const;

  const Functions& functions_;
};

}  // namespace lockstep::cuda
