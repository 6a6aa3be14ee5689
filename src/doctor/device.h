// The device of each rank: its condition, its speed, and whether its matrix products have the same bits as those of the
// other ranks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/check.h"
#include "doctor/facts.h"
#include "lockstep/backend.h"

namespace lockstep::doctor {

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
