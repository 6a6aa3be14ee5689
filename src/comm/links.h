// What connects ranks: the links between the devices of a node, and the networks of a node, as the system reports them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/device_health.h"

namespace lockstep::comm {

struct Interface {
  std::string name{};           // "eth0", "mlx5_0"
  std::string kind{};           // "Ethernet", "InfiniBand"
  double bytes_per_second = 0;  // of the link, in one direction; 0: not reported
  double sent_bytes = 0;        // so far or, in a difference, during a measurement
};
/// "mlx5_0, InfiniBand, 100 Gbit/s"
std::string text_of(const Interface& interface);
/// "100 Gbit/s"
std::string gigabits(double bytes_per_second);

/// The network interfaces and InfiniBand ports that are up, below `sys`.
std::vector<Interface> interfaces_in(const std::string& sys = "/sys");
/// ", fastest network: " and the fastest of them; empty if there is none.
std::string fastest_network(const std::string& sys = "/sys");

struct LinkRate {
  double bytes_per_second = 0;  // in one direction; 0: unknown
  std::string name{};           // "NVLink", "eth0"; empty: unknown
};
/// Between a GPU and the others of its node.
LinkRate device_link(const DeviceHealth& gpu);

}  // namespace lockstep::comm
