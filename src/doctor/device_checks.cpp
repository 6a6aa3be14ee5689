// The verdicts on devices (device.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/numbers.h"
#include "doctor/device.h"
#include "doctor/thresholds.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kExchange =
    "Leave the node out (sbatch --exclude) and report it to the operators of the cluster.";

struct Rate {
  const char* name;
  std::optional<double> DeviceFacts::*value;
  double unit;
  const char* unit_name;
};
constexpr Rate kRates[] = {{"matmul fp32", &DeviceFacts::matmul_fp32, 1e12, "TFLOP/s"},
                           {"matmul bf16", &DeviceFacts::matmul_bf16, 1e12, "TFLOP/s"},
                           {"memory", &DeviceFacts::memory_rate, 1e9, "GB/s"},
                           {"host to device", &DeviceFacts::to_device_rate, 1e9, "GB/s"},
                           {"device to host", &DeviceFacts::to_host_rate, 1e9, "GB/s"}};

/// The median of the rate for the devices of each name.
std::map<std::string, double> medians(const std::vector<DeviceFacts>& devices, const Rate& rate) {
  std::map<std::string, std::vector<double>> values;
  for (const DeviceFacts& device : devices)
    if (device.*rate.value) values[device.name].push_back(*(device.*rate.value));
  std::map<std::string, double> out;
  for (auto& [name, list] : values) out[name] = median(std::move(list));
  return out;
}

Check unknown(const char* name, const std::string& scope, const std::string& remedy) {
  return {.name = name,
          .scope = scope,
          .status = Status::unknown,
          .value = "not reported",
          .expected = "",
          .remedy = remedy};
}

void check_rates(const std::vector<Place>& places, const std::vector<DeviceFacts>& devices, std::vector<Check>& out) {
  for (const Rate& rate : kRates) {
    const std::map<std::string, double> median_of = medians(devices, rate);
    for (std::size_t r = 0; r < devices.size(); ++r) {
      const DeviceFacts& device = devices[r];
      if (!(device.*rate.value)) continue;
      const double middle = median_of.at(device.name), value = *(device.*rate.value);
      const double slower = middle > 0 ? 1 - value / middle : 0;
      Check check{.name = rate.name,
                  .scope = rank_name(places[r].rank, places[r].host),
                  .value = fmt::format("{} {}", three_digits(value / rate.unit), rate.unit_name),
                  .expected = devices.size() == 1
                                  ? ""
                                  : fmt::format("at least {} {}",
                                                three_digits(middle * (1 - kSlowerThanMedianWarns) / rate.unit),
                                                rate.unit_name),
                  .remedy = "",
                  .number = value / rate.unit,
                  .unit = rate.unit_name};
      if (slower > kSlowerThanMedianWarns) {
        check.status = slower > kSlowerThanMedianFails ? Status::fail : Status::warn;
        check.remedy = fmt::format(
            "This rank is {:.0f} % slower than the median, and every step waits for it. Look for other processes, "
            "throttling and the binding of its processors below, or leave its node out (sbatch --exclude).",
            100 * slower);
      }
      out.push_back(std::move(check));
    }
  }
}

void check_bits(const std::vector<Place>& places, const std::vector<DeviceFacts>& devices, std::vector<Check>& out) {
  std::map<std::string, std::map<std::string, int>> votes;  // by device name: the number of ranks with each result
  for (const DeviceFacts& device : devices)
    if (!device.product_hash.empty()) ++votes[device.name][device.product_hash];
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const DeviceFacts& device = devices[r];
    if (device.product_hash.empty()) continue;
    const auto& of_name = votes.at(device.name);
    const auto most = std::ranges::max_element(of_name, {}, [](const auto& vote) { return vote.second; });
    const bool is_unstable = device.n_different > 0;
    const bool is_tie = std::ranges::count(of_name, most->second, [](const auto& vote) { return vote.second; }) > 1;
    const bool differs = is_tie || device.product_hash != most->first;
    Check check{.name = "bits of a product",
                .scope = rank_name(places[r].rank, places[r].host),
                .status = is_unstable || differs ? Status::fail : Status::pass,
                .value = "equal",
                .expected = "the same bits on equal devices",
                .remedy = ""};
    if (is_unstable)
      check.value = fmt::format("{} of {} differ from the first", device.n_different, device.n_products);
    else if (differs)
      check.value = is_tie ? "ranks disagree" : "differs from the other ranks";
    if (check.status == Status::fail)
      check.remedy = fmt::format("This device, or the memory of its node, computes wrong results. {}", kExchange);
    out.push_back(std::move(check));
  }
}

void check_throttling(const DeviceFacts& device, const std::string& scope, std::vector<Check>& out) {
  const DeviceHealth& health = device.health;
  Check check = unknown("throttling", scope, "This system does not report whether the clock is lowered.");
  const char* const remedy =
      "The clock is lowered: check the cooling and the power limit of this node, or leave it out (sbatch --exclude).";
  if (health.throttle_reasons) {
    const bool is_low = !health.throttle_reasons->empty();
    check.status = is_low ? Status::fail : Status::pass;
    check.value = is_low ? fmt::format("{}", fmt::join(*health.throttle_reasons, ", ")) : "none";
    check.expected = "none";
    check.remedy = is_low ? remedy : "";
  } else if (device.throttle_events) {
    const bool is_low = *device.throttle_events > 0;
    check.status = is_low ? Status::fail : Status::pass;
    check.value = is_low ? fmt::format("{} times during the checks", *device.throttle_events) : "none";
    check.expected = "none";
    check.remedy = is_low ? remedy : "";
  }
  out.push_back(std::move(check));
  if (!health.clock_mhz) return;
  const bool is_slow = health.max_clock_mhz && *health.clock_mhz < kClockWarns * *health.max_clock_mhz;
  out.push_back(
      {.name = "clock",
       .scope = scope,
       .status = is_slow ? Status::warn : Status::pass,
       .value = fmt::format("{:.3g} GHz", *health.clock_mhz / 1000),
       .expected =
           health.max_clock_mhz ? fmt::format("at least {:.3g} GHz", kClockWarns * *health.max_clock_mhz / 1000) : "",
       .remedy = is_slow ? "The clock is low under load: look for a power limit or a limit of the clock "
                           "(nvidia-smi -q -d CLOCK,POWER), or for the power-saving governor of the processor."
                         : "",
       .number = *health.clock_mhz / 1000,
       .unit = "GHz"});
}

void check_errors(const DeviceFacts& device, const std::string& scope, std::vector<Check>& out) {
  const DeviceHealth& health = device.health;
  if (health.ecc_uncorrected) {
    const bool is_broken = *health.ecc_uncorrected > 0;
    const bool is_worn = health.ecc_corrected && *health.ecc_corrected >= kCorrectedErrorsWarn;
    out.push_back(
        {.name = "ECC errors",
         .scope = scope,
         .status = is_broken ? Status::fail
                   : is_worn ? Status::warn
                             : Status::pass,
         .value = fmt::format("{} uncorrected, {} corrected", *health.ecc_uncorrected,
                              health.ecc_corrected ? fmt::to_string(*health.ecc_corrected) : "unknown"),
         .expected = fmt::format("0 uncorrected, fewer than {} corrected", kCorrectedErrorsWarn),
         .remedy = is_broken || is_worn ? fmt::format("The memory of this device fails. {}", kExchange) : ""});
  } else {
    out.push_back(unknown("ECC errors", scope, "This system does not report errors of its memory, or has no ECC."));
  }
  if (device.pci_bus.empty()) return;  // only GPUs have Xid errors
  if (!device.xid_errors) {
    out.push_back(unknown("XID errors", scope,
                          "Only root may read the log of the kernel here: ask the operators for `dmesg | grep Xid`."));
    return;
  }
  const bool is_broken = !device.xid_errors->empty();
  out.push_back({.name = "XID errors",
                 .scope = scope,
                 .status = is_broken ? Status::fail : Status::pass,
                 .value = is_broken
                              ? fmt::format("{}, the last: {}", device.xid_errors->size(), device.xid_errors->back())
                              : "none",
                 .expected = "none since the node was started",
                 .remedy = is_broken ? kExchange : ""});
}

void check_links(const DeviceFacts& device, const std::string& scope, std::vector<Check>& out) {
  const DeviceHealth& health = device.health;
  if (health.pcie_lanes && health.pcie_max_lanes) {
    const int generation = health.pcie_generation.value_or(0), most = health.pcie_max_generation.value_or(0);
    const bool is_narrow = *health.pcie_lanes < *health.pcie_max_lanes || generation < most;
    out.push_back(
        {.name = "PCIe",
         .scope = scope,
         .status = is_narrow ? Status::fail : Status::pass,
         .value = fmt::format("generation {} x{}", generation, *health.pcie_lanes),
         .expected = fmt::format("generation {} x{}", most, *health.pcie_max_lanes),
         .remedy = is_narrow ? fmt::format("The card is in a narrower slot or has a bad contact. {}", kExchange) : ""});
  }
  if (health.nvlinks_active && health.nvlinks_total.value_or(0) > 0) {
    const bool is_missing = *health.nvlinks_active < *health.nvlinks_total;
    out.push_back({.name = "NVLink",
                   .scope = scope,
                   .status = is_missing ? Status::fail : Status::pass,
                   .value = fmt::format("{} of {} links active", *health.nvlinks_active, *health.nvlinks_total),
                   .expected = "all links active",
                   .remedy = is_missing ? kExchange : ""});
  }
}

void check_memory(const DeviceFacts& device, const std::string& scope, std::vector<Check>& out) {
  const DeviceHealth& health = device.health;
  if (!health.free_memory_bytes || !health.total_memory_bytes) {
    out.push_back(unknown("free memory", scope, "The driver does not report the use of the memory."));
    return;
  }
  const double free = static_cast<double>(*health.free_memory_bytes) / 1e9;
  const double share = free * 1e9 / std::max(1.0, static_cast<double>(*health.total_memory_bytes));
  const bool is_low = share < kFreeMemoryWarns;
  out.push_back({.name = "free memory",
                 .scope = scope,
                 .status = share < kFreeMemoryFails ? Status::fail
                           : is_low                 ? Status::warn
                                                    : Status::pass,
                 .value = fmt::format("{:.3g} GB", free),
                 .expected = fmt::format("at least {:.3g} GB",
                                         kFreeMemoryWarns * static_cast<double>(*health.total_memory_bytes) / 1e9),
                 .remedy = is_low ? "Another process uses the memory: end it (nvidia-smi, top), or ask Slurm for the "
                                    "whole node (--exclusive)."
                                  : "",
                 .number = free,
                 .unit = "GB"});
}

}  // namespace

std::vector<Check> check_devices(const std::vector<Place>& places, const std::vector<DeviceFacts>& devices) {
  std::vector<Check> out;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const DeviceFacts& device = devices[r];
    const bool is_broken = !device.problem.empty();
    out.push_back({.name = "device",
                   .scope = rank_name(places[r].rank, places[r].host),
                   .status = is_broken ? Status::fail : Status::pass,
                   .value = is_broken ? device.problem
                            : device.health.driver.empty()
                                ? device.name
                                : fmt::format("{}, driver {}", device.name, device.health.driver),
                   .expected = "",
                   .remedy = is_broken ? fmt::format("The measurements of this rank failed. {}", kExchange) : ""});
  }
  check_rates(places, devices, out);
  check_bits(places, devices, out);
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const DeviceFacts& device = devices[r];
    // Facts about processors are the same for all ranks of a node.
    if (device.name.empty() || (device.pci_bus.empty() && places[r].local_rank != 0)) continue;
    const std::string scope = device.pci_bus.empty() ? places[r].host : rank_name(places[r].rank, places[r].host);
    check_throttling(device, scope, out);
    check_errors(device, scope, out);
    check_links(device, scope, out);
    check_memory(device, scope, out);
  }
  return out;
}

std::optional<SlowestRank> find_slowest(const std::vector<Place>& places, const std::vector<DeviceFacts>& devices) {
  if (devices.size() < 2) return std::nullopt;
  SlowestRank slowest{.slower = -1};
  for (const Rate& rate : kRates) {
    const std::map<std::string, double> median_of = medians(devices, rate);
    for (std::size_t r = 0; r < devices.size(); ++r) {
      if (!(devices[r].*rate.value)) continue;
      const double middle = median_of.at(devices[r].name);
      const double slower = middle > 0 ? 1 - *(devices[r].*rate.value) / middle : 0;
      if (slower > slowest.slower)
        slowest = {.rank = places[r].rank, .host = places[r].host, .what = rate.name, .slower = slower};
    }
  }
  if (slowest.slower < 0) return std::nullopt;
  return slowest;
}

}  // namespace lockstep::doctor
