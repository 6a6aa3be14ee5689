// What Linux reports about the condition of the processors and the memory of this node.
#pragma once

#include <string>

#include "lockstep/device_health.h"

namespace lockstep::cpu {

/// `root`: where /proc and /sys are; tests have their own.
DeviceHealth device_health(const std::string& root = "");

}  // namespace lockstep::cpu
