#include "comm/world.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communication_thread.h"
#include "comm/control_lane.h"
#include "comm/host_communicator.h"
#include "comm/launch.h"
#include "comm/single.h"
#include "comm/sleeping_communicator.h"
#include "comm/sum_order.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::comm {
namespace {

class MpiWorld final : public World {
 public:
  MpiWorld(int* argc, char*** argv, const Launch& launch, double watchdog_seconds)
      : thread_(argc, argv, launch, watchdog_seconds), control_(thread_) {}

  /// MPI_Finalize waits for all ranks, so all agree first. A rank that leaves because of an exception, or after one,
  /// cannot: it ends the job (main, which knows the message, does so before it comes here).
  ~MpiWorld() override {
    if (thread_.has_failed() || std::uncaught_exceptions() > exceptions_at_start_) abort(kExitFailed);
    try {
      control_.all_gather("", "end of the run");
    } catch (const std::exception& e) {
      log::error("{}", e.what());
      abort(kExitFailed);
    }
  }

  int rank() const override { return ranks().rank; }
  int size() const override { return ranks().size(); }
  int local_rank() const override { return ranks().mine().local_rank; }
  int local_size() const override { return static_cast<int>(ranks().my_node().size()); }
  int node() const override { return ranks().mine().node; }
  int n_nodes() const override { return ranks().n_nodes(); }
  const std::string& host() const override { return ranks().mine().host; }

  void barrier() override { control_.all_gather("", "barrier"); }
  void broadcast(std::span<std::byte> data, int root) override { control_.broadcast(data, root, "broadcast"); }
  std::vector<std::string> all_gather(std::string_view mine) override {
    return control_.all_gather(mine, "all_gather");
  }
  bool any(bool mine) override {
    const std::vector<std::string> all = control_.all_gather(mine ? "1" : "0", "any");
    return std::find(all.begin(), all.end(), "1") != all.end();
  }
  bool is_first_to_speak() override { return thread_.board().is_first_to_speak(); }
  [[noreturn]] void abort(int exit_status) override { thread_.abort(exit_status); }

  CommunicationThread& thread() { return thread_; }

 private:
  const RankTable& ranks() const { return thread_.ranks(); }

  const int exceptions_at_start_ = std::uncaught_exceptions();
  CommunicationThread thread_;
  ControlLane control_;
};

Topology every_rank_a_node(const RankTable& ranks, const SumOrder& order) {
  Topology out;
  for (int r = 0; r < ranks.size(); ++r) out.nodes.push_back({r});
  out.node = ranks.rank;
  out.is_tree = order.size() > 0;
  out.order_in_node = sequential_order(1);
  out.order_of_nodes = out.is_tree ? order : sequential_order(ranks.size());
  return out;
}

/// The order taken apart at nodes; none where the ranks of some node are no subtree of it.
std::optional<GroupedOrder> group_by_node(const SumOrder& order, const RankTable& ranks) {
  std::vector<int> sizes;
  int next = 0;
  for (const std::vector<int>& node : ranks.nodes) {
    for (const int rank : node) {
      if (rank != next++) return std::nullopt;
    }
    sizes.push_back(static_cast<int>(node.size()));
  }
  return group(order, sizes);
}

/// Nodes as they are; with comm.backend=mpi, or where nodes do not fit the order, every rank as a node of its own.
Topology topology_of(const Config::Comm& config, const RankTable& ranks, const SumOrder& order) {
  if (config.backend == "mpi") return every_rank_a_node(ranks, order);
  require(config.backend == "auto" || config.backend == "shared", ErrorCode::comm_backend,
          "comm.backend is '{}': it takes auto, shared or mpi", config.backend);
  require(config.backend == "auto" || ranks.n_nodes() == 1, ErrorCode::comm_backend,
          "comm.backend=shared wants all ranks on one node, but they are on {}: use comm.backend=auto",
          ranks.n_nodes());
  Topology out{.nodes = ranks.nodes, .node = ranks.mine().node, .local_rank = ranks.mine().local_rank};
  out.order_in_node = sequential_order(out.local_size());
  out.order_of_nodes = sequential_order(out.n_nodes());
  if (order.size() == 0) return out;
  std::optional<GroupedOrder> grouped = group_by_node(order, ranks);
  if (!grouped) return every_rank_a_node(ranks, order);
  out.is_tree = true;
  out.order_in_node = std::move(grouped->inner[static_cast<std::size_t>(out.node)]);
  out.order_of_nodes = std::move(grouped->outer);
  return out;
}

}  // namespace

std::unique_ptr<World> start_world(int* argc, char*** argv, double watchdog_seconds) {
  const Launch launch = inspect_launch();
  if (launch.alone) return single_world();
  return std::make_unique<MpiWorld>(argc, argv, launch, watchdog_seconds);
}

std::unique_ptr<World> single_world() { return std::make_unique<SingleWorld>(); }

std::unique_ptr<Communicator> make_communicator(const Config::Comm& config, World& world, const SumOrder& order) {
  std::unique_ptr<Communicator> out;
  if (MpiWorld* mpi_world = dynamic_cast<MpiWorld*>(&world)) {
    CommunicationThread& thread = mpi_world->thread();
    out = std::make_unique<HostCommunicator>(thread, world, topology_of(config, thread.ranks(), order));
  } else {
    require(world.size() == 1, ErrorCode::internal, "a communicator is made of a world of start_world()");
    out = std::make_unique<SingleCommunicator>();
  }
  if (config.sleep_ms > 0) out = std::make_unique<SleepingCommunicator>(std::move(out), config.sleep_ms);
  return out;
}

}  // namespace lockstep::comm
