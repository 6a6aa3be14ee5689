#include "kernels/cuda/base/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep::cuda {
namespace {

// Declarations of nvml.h. These functions and structs are stable: newer versions get other names.
using NvmlReturn = int;  // 0: success
struct NvmlMemory {
  unsigned long long total, free, used;  // bytes
};
struct NvmlUtilization {
  unsigned gpu, memory;  // percent of the last sample period
};
constexpr unsigned kMaxLinks = 36;
constexpr int kSmClock = 1;                                     // of the multiprocessors
constexpr int kCorrected = 0, kUncorrected = 1, kVolatile = 0;  // kVolatile: since the driver was loaded

/// Reasons for which a device lowers its clock although the user did not ask for it. This excludes idleness, settings,
/// synchronization with other devices, and the software power limit, which is normal under full load.
struct ThrottleReason {
  unsigned long long bit;
  const char* name;
};
constexpr ThrottleReason kThrottleReasons[] = {{0x8, "hardware slowdown"},
                                               {0x20, "too hot (software limit)"},
                                               {0x40, "too hot (hardware limit)"},
                                               {0x80, "power brake"}};
constexpr const char* kLibrary = "libnvidia-ml.so.1";

}  // namespace

struct Nvml::Functions {
  /// A function of the library, or null.
  struct Symbol {
    void* address;
    template <typename Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Symbol optional(const char* name) const { return {library != nullptr ? ::dlsym(library, name) : nullptr}; }
  Symbol needed(const char* name) {
    const Symbol found = optional(name);
    if (found.address == nullptr && missing.empty()) missing = name;
    return found;
  }

  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  std::string missing{};  // the first function that is needed, but not there
  NvmlReturn (*init)() = needed("nvmlInit_v2");
  const char* (*error_string)(NvmlReturn) = needed("nvmlErrorString");
  NvmlReturn (*driver_version)(char* text, unsigned length) = needed("nvmlSystemGetDriverVersion");
  NvmlReturn (*device_by_pci)(const char* pci_bus, void** device) = needed("nvmlDeviceGetHandleByPciBusId_v2");
  NvmlReturn (*memory)(void* device, NvmlMemory* memory) = needed("nvmlDeviceGetMemoryInfo");
  NvmlReturn (*index)(void* device, unsigned* index) = needed("nvmlDeviceGetIndex");
  NvmlReturn (*utilization)(void* device, NvmlUtilization* utilization) = needed("nvmlDeviceGetUtilizationRates");
  NvmlReturn (*link_state)(void* device, unsigned link, unsigned* is_active) = needed("nvmlDeviceGetNvLinkState");
  NvmlReturn (*clock)(void* device, int which, unsigned* mhz) = optional("nvmlDeviceGetClockInfo");
  NvmlReturn (*max_clock)(void* device, int which, unsigned* mhz) = optional("nvmlDeviceGetMaxClockInfo");
  NvmlReturn (*throttle_reasons)(void* device,
                                 unsigned long long* reasons) = optional("nvmlDeviceGetCurrentClocksThrottleReasons");
  NvmlReturn (*ecc_errors)(void* device, int kind, int counter,
                           unsigned long long* count) = optional("nvmlDeviceGetTotalEccErrors");
  NvmlReturn (*pcie_generation)(void* device, unsigned* generation) = optional("nvmlDeviceGetCurrPcieLinkGeneration");
  NvmlReturn (*max_pcie_generation)(void* device,
                                    unsigned* generation) = optional("nvmlDeviceGetMaxPcieLinkGeneration");
  NvmlReturn (*pcie_width)(void* device, unsigned* lanes) = optional("nvmlDeviceGetCurrPcieLinkWidth");
  NvmlReturn (*max_pcie_width)(void* device, unsigned* lanes) = optional("nvmlDeviceGetMaxPcieLinkWidth");
};

const Nvml::Loaded& Nvml::loaded() {
  static const Loaded once = [] {
    static const Functions functions;
    Loaded loaded;
    if (functions.library == nullptr)
      loaded.problem = fmt::format("{} cannot be loaded ({})", kLibrary, ::dlerror());
    else if (!functions.missing.empty())
      loaded.problem = fmt::format("{} lacks {}", kLibrary, functions.missing);
    else if (const NvmlReturn status = functions.init(); status != 0)
      loaded.problem = fmt::format("NVML reports: {}", functions.error_string(status));
    if (loaded.problem.empty()) loaded.nvml.reset(new Nvml(functions));
    return loaded;
  }();
  return once;
}

const Nvml* Nvml::get() { return loaded().nvml.get(); }
const std::string& Nvml::problem() { return loaded().problem; }

std::string Nvml::driver_version() const {
  char text[96] = {};
  return functions_.driver_version(text, sizeof(text)) == 0 ? text : "";
}

void* Nvml::device(const std::string& pci_bus) const {
  void* device = nullptr;
  return functions_.device_by_pci(pci_bus.c_str(), &device) == 0 ? device : nullptr;
}

DeviceUsage Nvml::usage(const std::string& pci_bus) const {
  DeviceUsage usage;
  void* const of = device(pci_bus);
  if (of == nullptr) return usage;
  NvmlMemory memory{};
  if (functions_.memory(of, &memory) == 0) {
    usage.memory_bytes = memory.used;
    usage.memory_total_bytes = memory.total;
  }
  unsigned index = 0;
  if (functions_.index(of, &index) == 0) usage.index = static_cast<int>(index);
  NvmlUtilization utilization{};  // not reported by a part of a GPU (MIG)
  if (functions_.utilization(of, &utilization) == 0) usage.utilisation = 0.01 * utilization.gpu;
  return usage;
}

DeviceHealth Nvml::health(const std::string& pci_bus) const {
  DeviceHealth health;
  void* const of = device(pci_bus);
  if (of == nullptr) return health;
  health.driver = driver_version();
  // Calls a function (device, arguments..., value*) and returns the value. No value if the function is missing or
  // fails.
  const auto value = [of]<typename Value>(Value zero, auto function, auto... arguments) {
    Value read = zero;
    const bool is_known = function != nullptr && function(of, arguments..., &read) == 0;
    return is_known ? std::optional(read) : std::nullopt;
  };
  const auto number = [&value](auto function) -> std::optional<int> {
    const auto read = value(0u, function);
    return read ? std::optional(static_cast<int>(*read)) : std::nullopt;
  };
  if (const auto mhz = value(0u, functions_.clock, kSmClock)) health.clock_mhz = *mhz;
  if (const auto mhz = value(0u, functions_.max_clock, kSmClock)) health.max_clock_mhz = *mhz;
  if (const auto reasons = value(0ull, functions_.throttle_reasons)) {
    health.throttle_reasons.emplace();
    for (const ThrottleReason& reason : kThrottleReasons)
      if ((*reasons & reason.bit) != 0) health.throttle_reasons->emplace_back(reason.name);
  }
  health.ecc_corrected = value(0ull, functions_.ecc_errors, kCorrected, kVolatile);
  health.ecc_uncorrected = value(0ull, functions_.ecc_errors, kUncorrected, kVolatile);
  health.pcie_generation = number(functions_.pcie_generation);
  health.pcie_max_generation = number(functions_.max_pcie_generation);
  health.pcie_lanes = number(functions_.pcie_width);
  health.pcie_max_lanes = number(functions_.max_pcie_width);
  for (unsigned link = 0; link < kMaxLinks; ++link) {
    unsigned is_active = 0;
    if (functions_.link_state(of, link, &is_active) != 0) break;
    health.nvlinks_total = health.nvlinks_total.value_or(0) + 1;
    health.nvlinks_active = health.nvlinks_active.value_or(0) + (is_active != 0 ? 1 : 0);
  }
  NvmlMemory memory{};
  if (functions_.memory(of, &memory) == 0) {
    health.free_memory_bytes = memory.free;
    health.total_memory_bytes = memory.total;
  }
  return health;
}

}  // namespace lockstep::cuda
