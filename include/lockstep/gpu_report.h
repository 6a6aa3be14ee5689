// What `lockstep gpu-info` reports about this machine's GPUs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend.h"

namespace lockstep {

struct GpuReport {
  struct Gpu {
    std::string name, uuid, pci_bus;
    std::string compute_capability;  // "9.0"
    int multiprocessors = 0;
    double clock_mhz = 0;  // maximum
    std::size_t memory_bytes = 0;
    DeviceUsage usage;
    std::optional<int> nvlinks;  // active ones; empty: unknown
  };
  struct Library {
    std::string name;
    std::string version;  // empty: it cannot be loaded, and `problem` says why
    std::string problem;
    bool is_needed = true;  // required for all training on a GPU
  };

  std::string problem;                       // why no GPU can be used, as a part of a sentence; empty if one can
  std::string driver;                        // "580.65.06"; empty: unknown
  std::string driver_cuda, built_with_cuda;  // "13.0"
  std::vector<Gpu> gpus;
  std::vector<std::vector<bool>> reaches;  // [a][b]: a can read and write b's memory
  std::vector<Library> libraries;

  /// Whether training on a GPU is possible here.
  bool is_usable() const;
};

// Defined in src/backend_factory.cpp.
/// Does not throw if a driver, device or library is missing.
GpuReport gpu_report();
/// Why `device: auto` uses the processor, as a part of a sentence. Empty if it uses a GPU.
std::string reason_for_no_gpu();

}  // namespace lockstep
