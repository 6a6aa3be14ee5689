#include "comm/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::comm {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}
double number_in(const fs::path& path) {
  const std::string line = line_of(path);
  return line.empty() ? 0 : std::max(0.0, std::strtod(line.c_str(), nullptr));
}
std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> list;
  for (const auto& entry : fs::directory_iterator(folder, error)) list.push_back(entry.path());
  std::ranges::sort(list);
  return list;
}

}  // namespace

std::string gigabits(double bytes_per_second) { return fmt::format("{:.3g} Gbit/s", bytes_per_second * 8 / 1e9); }

std::string text_of(const Interface& interface) {
  return fmt::format(
      "{}, {}, {}", interface.name, interface.kind,
      interface.bytes_per_second > 0 ? gigabits(interface.bytes_per_second) : std::string("speed not reported"));
}

std::vector<Interface> interfaces_in(const std::string& sys) {
  std::vector<Interface> found;
  for (const fs::path& port : entries(sys + "/class/net")) {
    if (port.filename() == "lo" || line_of(port / "operstate") != "up") continue;
    found.push_back({.name = port.filename(),
                     .kind = number_in(port / "type") == 32                ? "IP over InfiniBand"  // ARPHRD_INFINIBAND
                             : port.filename().string().starts_with("hsn") ? "Slingshot"
                                                                           : "Ethernet",
                     .bytes_per_second = number_in(port / "speed") * 1e6 / 8,
                     .sent_bytes = number_in(port / "statistics/tx_bytes")});
  }
  for (const fs::path& card : entries(sys + "/class/infiniband"))
    for (const fs::path& port : entries(card / "ports")) {
      if (line_of(port / "state").find("ACTIVE") == std::string::npos) continue;
      constexpr double kWordBytes = 4;
      found.push_back({.name = card.filename(),
                       .kind = line_of(port / "link_layer") == "Ethernet" ? "RoCE" : "InfiniBand",
                       .bytes_per_second = number_in(port / "rate") * 1e9 / 8,  // "100 Gb/sec (4X EDR)"
                       .sent_bytes = kWordBytes * number_in(port / "counters/port_xmit_data")});
    }
  return found;
}

std::string fastest_network(const std::string& sys) {
  const std::vector<Interface> all = interfaces_in(sys);
  if (all.empty()) return "";
  return ", fastest network: " + text_of(*std::ranges::max_element(all, {}, &Interface::bytes_per_second));
}

LinkRate device_link(const DeviceHealth& gpu) {
  constexpr double kNvlink = 25e9;  // per link and direction, NVLink 2 to 4
  if (gpu.nvlinks_active.value_or(0) > 0) return {.bytes_per_second = kNvlink * *gpu.nvlinks_active, .name = "NVLink"};
  if (!gpu.pcie_generation || !gpu.pcie_lanes) return {};
  constexpr double kLaneOfGeneration3 = 0.985e9;  // each generation doubles it
  return {.bytes_per_second = kLaneOfGeneration3 * std::exp2(*gpu.pcie_generation - 3) * *gpu.pcie_lanes,
          .name = "PCIe"};
}

}  // namespace lockstep::comm
