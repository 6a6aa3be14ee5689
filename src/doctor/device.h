// The device of each rank: its condition, its speed, and whether its matrix products have the same bits as those of the
// other ranks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/check.h"
#include "lockstep/backend.h"
#include "lockstep/device_health.h"

namespace lockstep {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceHealth, driver, clock_mhz, max_clock_mhz, throttle_reasons, throttle_events,
                                   ecc_uncorrected, ecc_corrected, pcie_generation, pcie_max_generation, pcie_lanes,
                                   pcie_max_lanes, nvlinks_active, nvlinks_total, free_memory_bytes, total_memory_bytes)
}  // namespace lockstep

namespace lockstep::doctor {

struct DeviceFacts {
  std::string problem{};  // why the device could not be measured; empty: it was
  std::string name{}, pci_bus{};
  DeviceHealth health{};                                 // while it multiplies
  std::optional<std::uint64_t> throttle_events{};        // during the measurements
  std::optional<std::vector<std::string>> xid_errors{};  // of this device in the kernel's log
  // Operations per second, and bytes per second.
  std::optional<double> matmul_fp32{}, matmul_bf16{}, memory_rate{}, to_device_rate{}, to_host_rate{};
  std::string product_hash{};           // of the first product
  int n_products = 0, n_different = 0;  // n_different: those whose bits differ from the first
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceFacts, problem, name, pci_bus, health, throttle_events, xid_errors,
                                   matmul_fp32, matmul_bf16, memory_rate, to_device_rate, to_host_rate, product_hash,
                                   n_products, n_different)

/// Collective: all ranks measure at the same time, just as they compute at the same time in training. An error of the
/// device is reported in the result and not thrown. The backend must not be frozen. `backend` is null if it could not
/// be made; `problem` then is the reason.
DeviceFacts measure_device(Backend* backend, const std::string& problem, World& world);

/// Xid errors of the device at this PCI address in the text of a kernel log: "79 (GPU has fallen off the bus)".
std::vector<std::string> xid_errors_in(std::string_view log, const std::string& pci_bus);

std::vector<Check> check_devices(const std::vector<Place>& places, const std::vector<DeviceFacts>& devices);
/// None in a world of one rank.
std::optional<SlowestRank> find_slowest(const std::vector<Place>& places, const std::vector<DeviceFacts>& devices);

}  // namespace lockstep::doctor
