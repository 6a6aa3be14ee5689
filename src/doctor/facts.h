// What each rank measures and sends to the others as JSON. Empty optionals are unknown.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/optional_json.h"
#include "lockstep/communicator.h"
#include "lockstep/device_health.h"

namespace lockstep {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceHealth, driver, clock_mhz, max_clock_mhz, throttle_reasons, throttle_events,
                                   ecc_uncorrected, ecc_corrected, pcie_generation, pcie_max_generation, pcie_lanes,
                                   pcie_max_lanes, nvlinks_active, nvlinks_total, free_memory_bytes, total_memory_bytes)
}  // namespace lockstep

namespace lockstep::doctor {

struct Place {
  int rank = 0, node = 0, local_rank = 0, local_size = 1;
  std::string host{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Place, rank, node, local_rank, local_size, host)

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

struct OtherProcess {
  long pid = 0;
  std::string name{};
  double cores = 0;   // that it kept busy, on average
  int processor = 0;  // on which it ran last
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OtherProcess, pid, name, cores, processor)

struct HostFacts {
  std::vector<int> processors{};       // that this rank may use
  std::vector<int> near_device{};      // of the node, nearest to this rank's GPU; empty: unknown, or no GPU
  int n_threads = 1;                   // that it uses
  int n_processors = 1;                // of the node
  std::string huge_pages{};            // "always", "madvise" or "never"; empty: unknown
  std::vector<OtherProcess> others{};  // of the node, while the ranks were idle; measured by its first rank
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostFacts, processors, near_device, n_threads, n_processors, huge_pages, others)

struct Interface {
  std::string name{};           // "eth0", "mlx5_0"
  std::string kind{};           // "Ethernet", "InfiniBand"
  double bytes_per_second = 0;  // of the link, in one direction; 0: not reported
  double sent_bytes = 0;        // so far or, in a difference, during a measurement
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interface, name, kind, bytes_per_second, sent_bytes)

/// All-reduces of one size, as in nccl-tests: algbw = size / time, busbw = algbw 2 (n - 1) / n.
struct AllReduceTime {
  std::string where{};  // "all ranks", "inside each node"
  int n_ranks = 0;      // that sum together
  double size_bytes = 0, seconds = 0;
  double algorithm_bandwidth() const { return size_bytes / seconds; }
  double bus_bandwidth() const { return algorithm_bandwidth() * 2 * (n_ranks - 1) / n_ranks; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AllReduceTime, where, n_ranks, size_bytes, seconds)

struct RankPair {
  int a = 0, b = 0;             // a < b
  double bytes_per_second = 0;  // in each direction
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankPair, a, b, bytes_per_second)

struct LinkFacts {
  std::string transport{};              // Communicator::describe()
  std::vector<Interface> interfaces{};  // of the node; sent_bytes: during the all-reduces of 51 MB
  double expected_sent_bytes = 0;       // by a node, during them
  std::vector<AllReduceTime> times{};   // the same on all ranks
  std::vector<RankPair> pairs{};        // in which this rank was `a`
  double clock_skew_seconds = 0, clock_uncertainty_seconds = 0;  // relative to rank 0
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkFacts, transport, interfaces, expected_sent_bytes, times, pairs,
                                   clock_skew_seconds, clock_uncertainty_seconds)

/// Every rank's facts, in the order of ranks. Collective.
template <typename Facts>
std::vector<Facts> gather(World& world, const Facts& mine) {
  std::vector<Facts> all;
  const nlohmann::json json = mine;
  for (const std::string& text : world.all_gather(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)))
    all.push_back(nlohmann::json::parse(text).get<Facts>());
  return all;
}

}  // namespace lockstep::doctor
