#include "doctor/links.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "base/clock.h"
#include "comm/diagnosis.h"
#include "comm/world.h"
#include "lockstep/device_health.h"
#include "lockstep/error.h"

namespace lockstep::doctor {
namespace {

constexpr std::size_t kSmallBytes = 8;
constexpr std::size_t kMiddleBytes = 51'114'064;  // the gradients of ResNet-50 in 16 bits
constexpr std::size_t kLargeBytes = 1'000'000'000;
constexpr double kSmallSeconds = 0.2, kLongSeconds = 1.5;  // time for repetitions of an all-reduce
constexpr int kMostRepetitions = 200;
constexpr double kMostSeconds = 30;  // the time limit for one all-reduce: longer ones are left out
constexpr std::size_t kMostRounds = 64;
constexpr int kClockRounds = 12;

/// The maximum over all ranks.
double greatest(World& world, double mine) {
  double most = 0;
  for (const std::string& text : world.all_gather(fmt::format("{:.9g}", mine))) most = std::max(most, std::stod(text));
  return most;
}

/// Times all-reduces of one communicator.
class AllReduces {
 public:
  AllReduces(World& world, Backend& backend, Communicator& communicator, std::size_t size_bytes)
      : world_(world),
        communicator_(communicator),
        n_elements_(size_bytes / sizeof(float)),
        memory_(communicator.allocate(size_bytes, "the all-reduces of doctor")),
        ready_(backend.make_event()),
        done_(communicator.make_event()) {}

  /// The mean time of an all-reduce on the slowest rank, in seconds. The first all-reduce is not counted.
  double seconds(double budget) {
    const double first = greatest(world_, repeat(1));
    if (first > budget) return first;
    const auto n = static_cast<int>(std::clamp(budget / std::max(first, 1e-9), 1.0, double{kMostRepetitions}));
    return greatest(world_, repeat(n)) / n;
  }

 private:
  double repeat(int n) {
    world_.barrier();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < n; ++i) {
      communicator_.all_reduce_async({.data = memory_->data(), .n_elements = n_elements_}, *ready_, *done_,
                                     "all-reduce of doctor");
      done_->synchronize();
      communicator_.check();
    }
    return seconds_since(begin);
  }

  World& world_;
  Communicator& communicator_;
  std::size_t n_elements_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Event> ready_, done_;
};

/// Whether every rank has room for an array of this size: in /dev/shm, where ranks of a node share it, or on its
/// device.
bool all_have_room(World& world, Backend& backend, std::size_t size_bytes) {
  constexpr double kReserve = 1.5;
  const double needed = kReserve * static_cast<double>(size_bytes);
  const bool is_host = backend.memory_space() == MemorySpace::host;
  const DeviceHealth health = device_health(backend.device().pci_bus);
  const double ranks = is_host ? world.local_size() : 1;
  bool fits = !health.free_memory_bytes || static_cast<double>(*health.free_memory_bytes) >= needed * ranks;
  struct statvfs shm {};
  if (is_host && world.local_size() > 1 && ::statvfs("/dev/shm", &shm) == 0)
    fits = fits && static_cast<double>(shm.f_bavail) * static_cast<double>(shm.f_frsize) >= needed * ranks;
  return !world.any(!fits);
}

void measure_all_reduces(World& world, Backend& backend, Communicator& communicator, const std::string& where,
                         int n_ranks, Effort effort, LinkFacts& facts, std::vector<std::string>& notes) {
  double middle_seconds = 0;
  for (const std::size_t size_bytes : {kSmallBytes, kMiddleBytes, kLargeBytes}) {
    if (size_bytes == kLargeBytes && effort == Effort::quick) continue;
    if (size_bytes == kLargeBytes && middle_seconds * kLargeBytes / kMiddleBytes > kMostSeconds) {
      notes.push_back(fmt::format("The all-reduce of 1 GB ({}) was left out, since that of 51 MB took {:.2g} s.", where,
                                  middle_seconds));
      continue;
    }
    if (size_bytes > kSmallBytes && !all_have_room(world, backend, size_bytes)) {
      notes.push_back(fmt::format(
          "The all-reduce of {} MB ({}) was left out: some node has too little memory, or too little in /dev/shm.",
          size_bytes / 1'000'000, where));
      continue;
    }
    AllReduces all_reduces(world, backend, communicator, size_bytes);
    const double seconds = all_reduces.seconds(size_bytes == kSmallBytes ? kSmallSeconds : kLongSeconds);
    if (size_bytes == kMiddleBytes) middle_seconds = seconds;
    facts.times.push_back(
        {.where = where, .n_ranks = n_ranks, .size_bytes = static_cast<double>(size_bytes), .seconds = seconds});
  }
}

/// Compares clocks: repeatedly, rank 0 reads its clock between two readings of this rank's clock. The narrowest
/// interval is used.
void measure_clock(World& world, LinkFacts& facts) {
  double narrowest = INFINITY;
  for (int i = 0; i < kClockRounds; ++i) {
    const Clock::time_point before = Clock::now();
    const double here = unix_seconds();
    world.barrier();  // rank 0 reads its clock after this rank has entered, and before it leaves the next call
    const double theirs = std::stod(world.all_gather(fmt::format("{:.6f}", unix_seconds()))[0]);
    const double seconds = seconds_since(before);
    if (seconds >= narrowest) continue;
    narrowest = seconds;
    facts.clock_skew_seconds = here + seconds / 2 - theirs;
    facts.clock_uncertainty_seconds = seconds / 2;
  }
  if (world.rank() == 0) facts.clock_skew_seconds = 0;
}

void measure_pairs(World& world, const std::vector<Place>& places, LinkFacts& facts, std::vector<std::string>& notes) {
  const auto probe = comm::make_pair_probe(world);
  if (!probe) return;
  const auto rounds = pair_rounds(places, kMostRounds);
  if (rounds.size() == kMostRounds)
    notes.push_back(fmt::format("Only the pairs of ranks of the first {} rounds were measured.", kMostRounds));
  for (const std::vector<int>& peers : rounds) {
    const int peer = peers[static_cast<std::size_t>(world.rank())];
    const comm::PairTime time = probe->exchange(peer);
    if (peer > world.rank())
      facts.pairs.push_back(
          {.a = world.rank(), .b = peer, .bytes_per_second = static_cast<double>(time.size_bytes) / time.seconds});
  }
}

/// The opponent of a player in round `round` of n - 1, in a round-robin tournament of n players (the circle method). n
/// is even.
int opponent(int player, int round, int n) {
  const int last = n - 1;
  if (player == last) return round % last;
  if (player == round % last) return last;
  return ((2 * round - player) % last + last) % last;
}

/// Adds rounds in which each pair of ranks within a group meets once. The groups are disjoint, and meet at the same
/// time.
void add_rounds(const std::vector<std::vector<int>>& groups, std::size_t n_ranks, std::vector<std::vector<int>>& out) {
  std::size_t most = 0;
  for (const auto& group : groups) most = std::max(most, (group.size() + 1) / 2 * 2);
  for (int round = 0; round + 1 < static_cast<int>(most); ++round) {
    std::vector<int> peers(n_ranks, -1);
    for (const auto& group : groups) {
      const auto n = static_cast<int>((group.size() + 1) / 2 * 2);
      if (round + 1 >= n) continue;
      for (int i = 0; i < static_cast<int>(group.size()); ++i)
        if (const auto j = static_cast<std::size_t>(opponent(i, round, n)); j < group.size())
          peers[static_cast<std::size_t>(group[static_cast<std::size_t>(i)])] = group[j];
    }
    out.push_back(std::move(peers));
  }
}

}  // namespace

std::vector<std::vector<int>> pair_rounds(const std::vector<Place>& places, std::size_t most_rounds) {
  std::map<int, std::vector<int>> nodes, local_ranks;
  for (const Place& place : places) {
    nodes[place.node].push_back(place.rank);
    local_ranks[place.local_rank].push_back(place.rank);
  }
  std::vector<std::vector<int>> groups, rounds;
  for (auto& [node, ranks] : nodes) groups.push_back(std::move(ranks));
  add_rounds(groups, places.size(), rounds);
  for (const auto& [local_rank, ranks] : local_ranks) add_rounds({ranks}, places.size(), rounds);
  if (rounds.size() > most_rounds) rounds.resize(most_rounds);
  return rounds;
}

LinkFacts measure_links(World& world, Backend& backend, const std::vector<Place>& places, Effort effort,
                        std::vector<std::string>& notes) {
  LinkFacts facts;
  if (world.size() == 1) return facts;
  measure_clock(world, facts);
  {
    const auto communicator = comm::make_communicator({}, world, backend);
    facts.transport = communicator->describe();
    const std::vector<Interface> before = comm::interfaces_in();
    measure_all_reduces(world, backend, *communicator, "all ranks", world.size(), effort, facts, notes);
    facts.interfaces = comm::interfaces_in();
    for (Interface& now : facts.interfaces)
      for (const Interface& then : before)
        if (then.name == now.name && then.kind == now.kind) now.sent_bytes -= then.sent_bytes;
    const double nodes = world.n_nodes();
    for (const AllReduceTime& time : facts.times)
      facts.expected_sent_bytes += 2 * (nodes - 1) / nodes * time.size_bytes;
  }
  if (const auto of_node = comm::make_node_communicator(world, backend))
    measure_all_reduces(world, backend, *of_node, "inside each node", world.local_size(), effort, facts, notes);
  if (effort == Effort::full) measure_pairs(world, places, facts, notes);
  return facts;
}

}  // namespace lockstep::doctor
