#include "kernels/cuda/base/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

namespace lockstep::cuda {
namespace {

// Declarations of nvml.h. These functions and structs do not change: newer versions get other names.
using NvmlReturn = int;  // 0: success
struct NvmlMemory {
  unsigned long long total, free, used;  // bytes
};
struct NvmlUtilization {
  unsigned gpu, memory;  // percent of the last sample period
};
constexpr unsigned kMaxLinks = 36;
constexpr const char* kLibrary = "libnvidia-ml.so.1";

}  // namespace

struct Nvml::Functions {
  NvmlReturn (*init)() = nullptr;
  const char* (*error_string)(NvmlReturn) = nullptr;
  NvmlReturn (*driver_version)(char* text, unsigned length) = nullptr;
  NvmlReturn (*device_by_pci)(const char* pci_bus, void** device) = nullptr;
  NvmlReturn (*memory)(void* device, NvmlMemory* memory) = nullptr;
  NvmlReturn (*index)(void* device, unsigned* index) = nullptr;
  NvmlReturn (*utilization)(void* device, NvmlUtilization* utilization) = nullptr;
  NvmlReturn (*link_state)(void* device, unsigned link, unsigned* is_active) = nullptr;
};

std::string Nvml::load(Functions& functions) {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fmt::format("{} cannot be loaded ({})", kLibrary, ::dlerror());
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  find(functions.init, "nvmlInit_v2");
  find(functions.error_string, "nvmlErrorString");
  find(functions.driver_version, "nvmlSystemGetDriverVersion");
  find(functions.device_by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
  find(functions.memory, "nvmlDeviceGetMemoryInfo");
  find(functions.index, "nvmlDeviceGetIndex");
  find(functions.utilization, "nvmlDeviceGetUtilizationRates");
  find(functions.link_state, "nvmlDeviceGetNvLinkState");
  if (!missing.empty()) return fmt::format("{} lacks {}", kLibrary, missing);
  const NvmlReturn status = functions.init();
  return status == 0 ? "" : fmt::format("NVML reports: {}", functions.error_string(status));
}

const Nvml::Loaded& Nvml::loaded() {
  static const Loaded once = [] {
    static Functions functions;
    Loaded loaded;
    loaded.problem = load(functions);
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
  NvmlUtilization utilization{};  // a part of a GPU (MIG) does not report it
  if (functions_.utilization(of, &utilization) == 0) usage.utilisation = 0.01 * utilization.gpu;
  return usage;
}

std::optional<int> Nvml::nvlinks(const std::string& pci_bus) const {
  void* const of = device(pci_bus);
  if (of == nullptr) return std::nullopt;
  std::optional<int> n_active;
  for (unsigned link = 0; link < kMaxLinks; ++link) {
    unsigned is_active = 0;
    if (functions_.link_state(of, link, &is_active) != 0) break;
    n_active = n_active.value_or(0) + (is_active != 0 ? 1 : 0);
  }
  return n_active;
}

}  // namespace lockstep::cuda
