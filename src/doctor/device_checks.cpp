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

Check unknown(const char* name, const std::string& scope, const char* remedy) {
  return {.name = name, .scope = scope, .status = Status::unknown, .value = "not reported", .remedy = remedy};
}

void check_rates(const std::vector<Place>& places, const std::vector<DeviceFacts>& devices, std::vector<Check>& out) {
  for (const Rate& rate : kRates) {
    const std::map<std::string, double> median_of = medians(devices, rate);
    for (std::size_t r = 0; r < devices.size(); ++r) {
      const DeviceFacts& device = devices[r];
      if (!(device.*rate.value)) continue;
      const double middle = median_of.at(device.name), value = *(device.*rate.value);
      const double slower = middle > 0 ? 1 - value / middle : 0;
      const auto text = [&](double v) { return fmt::format("{} {}", three_digits(v / rate.unit), rate.unit_name); };
      add(out,
          {.name = rate.name,
           .scope = rank_name(places[r]),
           .status = status_of(slower > kSlowerThanMedianFails, slower > kSlowerThanMedianWarns),
           .value = text(value),
           .expected = devices.size() == 1 ? "" : "at least " + text(middle * (1 - kSlowerThanMedianWarns)),
           .remedy = fmt::format(
               "This rank is {:.0f} % slower than the median, and every step waits for it. Look for other processes, "
               "throttling and the binding of its processors below, or leave its node out (sbatch --exclude).",
               100 * slower),
           .number = value / rate.unit,
           .unit = rate.unit_name});
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
    const char* const of_ranks = is_tie ? "ranks disagree" : differs ? "differs from the other ranks" : "equal";
    add(out,
        {.name = "bits of a product",
         .scope = rank_name(places[r]),
         .status = status_of(is_unstable || differs),
         .value = is_unstable ? fmt::format("{} of {} differ from the first", device.n_different, device.n_products)
                              : of_ranks,
         .expected = "the same bits on equal devices",
         .remedy = fmt::format("This device, or the memory of its node, computes wrong results. {}", kExchange)});
  }
}

void check_throttling(const DeviceFacts& device, const std::string& scope, std::vector<Check>& out) {
  const DeviceHealth& health = device.health;
  if (health.throttle_reasons || device.throttle_events) {
    std::string found;
    if (health.throttle_reasons)
      found = fmt::format("{}", fmt::join(*health.throttle_reasons, ", "));
    else if (*device.throttle_events > 0)
      found = fmt::format("{} times during the checks", *device.throttle_events);
    add(out, {.name = "throttling",
              .scope = scope,
              .status = status_of(!found.empty()),
              .value = found.empty() ? "none" : found,
              .expected = "none",
              .remedy = "The clock is lowered: check the cooling and the power limit of this node, or leave it out "
                        "(sbatch --exclude)."});
  } else {
    add(out, unknown("throttling", scope, "This system does not report whether the clock is lowered."));
  }
  if (!health.clock_mhz) return;
  const double ghz = *health.clock_mhz / 1000, least = kClockWarns * health.max_clock_mhz.value_or(0) / 1000;
  add(out, {.name = "clock",
            .scope = scope,
            .status = status_of(false, ghz < least),
            .value = fmt::format("{:.3g} GHz", ghz),
            .expected = health.max_clock_mhz ? fmt::format("at least {:.3g} GHz", least) : "",
            .remedy = "The clock is low under load: look for a power limit or a limit of the clock (nvidia-smi -q -d "
                      "CLOCK,POWER), or for the power-saving governor of the processor.",
            .number = ghz,
            .unit = "GHz"});
}

void check_errors(const DeviceFacts& device, const std::string& scope, std::vector<Check>& out) {
  const DeviceHealth& health = device.health;
  if (health.ecc_uncorrected) {
    const bool is_broken = *health.ecc_uncorrected > 0;
    const bool is_worn = health.ecc_corrected && *health.ecc_corrected >= kCorrectedErrorsWarn;
    add(out, {.name = "ECC errors",
              .scope = scope,
              .status = status_of(is_broken, is_worn),
              .value = fmt::format("{} uncorrected, {} corrected", *health.ecc_uncorrected,
                                   health.ecc_corrected ? fmt::to_string(*health.ecc_corrected) : "unknown"),
              .expected = fmt::format("0 uncorrected, fewer than {} corrected", kCorrectedErrorsWarn),
              .remedy = fmt::format("The memory of this device fails. {}", kExchange)});
  } else {
    add(out, unknown("ECC errors", scope, "This system does not report errors of its memory, or has no ECC."));
  }
  if (device.pci_bus.empty()) return;  // only GPUs have Xid errors
  if (!device.xid_errors)
    return add(out,
               unknown("XID errors", scope,
                       "Only root may read the log of the kernel here: ask the operators for `dmesg | grep Xid`."));
  const std::vector<std::string>& errors = *device.xid_errors;
  add(out, {.name = "XID errors",
            .scope = scope,
            .status = status_of(!errors.empty()),
            .value = errors.empty() ? "none" : fmt::format("{}, the last: {}", errors.size(), errors.back()),
            .expected = "none since the node was started",
            .remedy = kExchange});
}

void check_links(const DeviceFacts& device, const std::string& scope, std::vector<Check>& out) {
  const DeviceHealth& health = device.health;
  if (health.pcie_lanes && health.pcie_max_lanes) {
    const int generation = health.pcie_generation.value_or(0), most = health.pcie_max_generation.value_or(0);
    add(out, {.name = "PCIe",
              .scope = scope,
              .status = status_of(*health.pcie_lanes < *health.pcie_max_lanes || generation < most),
              .value = fmt::format("generation {} x{}", generation, *health.pcie_lanes),
              .expected = fmt::format("generation {} x{}", most, *health.pcie_max_lanes),
              .remedy = fmt::format("The card is in a narrower slot or has a bad contact. {}", kExchange)});
  }
  if (health.nvlinks_active && health.nvlinks_total.value_or(0) > 0)
    add(out, {.name = "NVLink",
              .scope = scope,
              .status = status_of(*health.nvlinks_active < *health.nvlinks_total),
              .value = fmt::format("{} of {} links active", *health.nvlinks_active, *health.nvlinks_total),
              .expected = "all links active",
              .remedy = kExchange});
}

void check_memory(const DeviceFacts& device, const std::string& scope, std::vector<Check>& out) {
  const DeviceHealth& health = device.health;
  if (!health.free_memory_bytes || !health.total_memory_bytes)
    return add(out, unknown("free memory", scope, "The driver does not report the use of the memory."));
  const double free = static_cast<double>(*health.free_memory_bytes) / 1e9;
  const double total = static_cast<double>(*health.total_memory_bytes) / 1e9;
  add(out, {.name = "free memory",
            .scope = scope,
            .status = status_of(free < kFreeMemoryFails * total, free < kFreeMemoryWarns * total),
            .value = fmt::format("{:.3g} GB", free),
            .expected = fmt::format("at least {:.3g} GB", kFreeMemoryWarns * total),
            .remedy = "Another process uses the memory: end it (nvidia-smi, top), or ask Slurm for the whole node "
                      "(--exclusive).",
            .number = free,
            .unit = "GB"});
}

}  // namespace

std::vector<Check> check_devices(const std::vector<Place>& places, const std::vector<DeviceFacts>& devices) {
  std::vector<Check> out;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const DeviceFacts& device = devices[r];
    const std::string& driver = device.health.driver;
    add(out, {.name = "device",
              .scope = rank_name(places[r]),
              .status = status_of(!device.problem.empty()),
              .value = !device.problem.empty() ? device.problem
                       : driver.empty()        ? device.name
                                               : fmt::format("{}, driver {}", device.name, driver),
              .remedy = fmt::format("The measurements of this rank failed. {}", kExchange)});
  }
  check_rates(places, devices, out);
  check_bits(places, devices, out);
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const DeviceFacts& device = devices[r];
    // Facts about processors are the same for all ranks of a node.
    if (device.name.empty() || (device.pci_bus.empty() && places[r].local_rank != 0)) continue;
    const std::string scope = device.pci_bus.empty() ? places[r].host : rank_name(places[r]);
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
