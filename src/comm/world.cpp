#include "comm/world.h"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "base/outcome.h"
#include "base/version.h"
#include "comm/communication_thread.h"
#include "comm/control_channel.h"
#include "comm/diagnosis.h"
#include "comm/host_communicator.h"
#include "comm/launch.h"
#ifdef LOCKSTEP_CUDA
#include "comm/nccl_communicator.h"
#endif
#include "comm/pair_channel.h"
#include "comm/shared_segment.h"
#include "comm/single_rank.h"
#include "comm/sleeping_communicator.h"
#include "comm/staged_communicator.h"
#include "comm/sum.h"
#include "lockstep/error.h"
#include "lockstep/memory_limit.h"

namespace lockstep::comm {
namespace {

/// Host memory that the ranks of a node map.
class NodeMemory final : public Memory {
 public:
  explicit NodeMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {}
  /// Returns the path of the file.
  std::string create(const std::string& purpose) {
    segment_ = SharedSegment::create(size_bytes_, purpose);
    segment_.reserve(0, size_bytes_);
    return segment_.path();
  }
  void open(const std::string& path, const std::string& purpose) {
    segment_ = SharedSegment::open(path, size_bytes_, purpose);
  }
  void unlink() { segment_.unlink(); }
  void* data() const override { return segment_.data(); }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::size_t size_bytes_;
  SharedSegment segment_;
};

class MpiWorld final : public World {
 public:
  MpiWorld(int* argc, char*** argv, const Launch& launch, double watchdog_seconds)
      : thread_(argc, argv, launch, watchdog_seconds), control_(thread_) {}

  /// MPI_Finalize waits for all ranks, so they first agree to end. A rank that is here because of an exception cannot
  /// agree, and ends the job instead. (Usually main has printed the message and ended the job before.)
  ~MpiWorld() override {
    if (thread_.has_failed() || std::uncaught_exceptions() > exceptions_at_start_) abort(kExitFailed);
    try {
      control_.all_gather("", "end of the run");
    } catch (const std::exception& e) {
      print_error(ranks().name(rank()), e);
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
  std::unique_ptr<Memory> share_in_node(std::size_t size_bytes, const std::string& purpose) override {
    auto memory = std::make_unique<NodeMemory>(size_bytes);
    const std::vector<std::string> paths =
        all_agree(*this, [&] { return local_rank() == 0 ? memory->create(purpose) : std::string(); });
    all_agree(*this, [&] {
      if (local_rank() != 0) memory->open(paths[static_cast<std::size_t>(ranks().my_node().front())], purpose);
    });
    memory->unlink();
    return memory;
  }
  void set_watchdog_seconds(double seconds) override { thread_.set_watchdog_seconds(seconds); }
  bool is_first_to_report() override { return thread_.progress_table().is_first_to_report(); }
  std::optional<Error> cause_of_loss() override { return thread_.failure(); }
  [[noreturn]] void abort(int exit_status) override { thread_.abort(exit_status); }

  CommunicationThread& thread() { return thread_; }

 private:
  const RankTable& ranks() const { return thread_.ranks(); }

  const int exceptions_at_start_ = std::uncaught_exceptions();
  CommunicationThread thread_;
  ControlChannel control_;
};

}  // namespace

std::unique_ptr<World> start_world_of_any_builds(int* argc, char*** argv, double watchdog_seconds) {
  const Launch launch = inspect_launch();
  if (launch.alone) return single_world();
  require_mappable(std::size_t{256} << 20, "MPI");  // with less, MPI_Init crashes
  return std::make_unique<MpiWorld>(argc, argv, launch, watchdog_seconds);
}

std::unique_ptr<World> start_world(int* argc, char*** argv, double watchdog_seconds) {
  auto world = start_world_of_any_builds(argc, argv, watchdog_seconds);
  if (world->size() == 1) return world;
  try {
    check_builds_agree(*world, fmt::format("{} ({}), {}", version(), commit(), compiler()));
  } catch (const Error&) {
    current_world() = std::move(world);  // outlives the exception, so that main prints it before it ends the job
    throw;
  }
  return world;
}

std::unique_ptr<World> single_world() { return std::make_unique<SingleRankWorld>(); }

Topology topology_of(const Config::Comm& config, World& world, const SumOrder& order, MemorySpace space) {
  if (MpiWorld* mpi_world = dynamic_cast<MpiWorld*>(&world))
    return topology_of(config, mpi_world->thread().ranks(), order, space);
  const bool calls_nccl = config.backend == "nccl" && space == MemorySpace::device;
  return calls_nccl ? topology_of(config, planned_ranks(1, 1), order, space) : Topology{};
}

namespace {

std::unique_ptr<Communicator> make_undelayed_communicator(const Config::Comm& config, World& world, Backend& backend,
                                                          const SumOrder& order, const std::string& log_folder) {
  MpiWorld* const mpi_world = dynamic_cast<MpiWorld*>(&world);
  const Topology topology = topology_of(config, world, order, backend.memory_space());
  if (topology.transport == Transport::nccl) {
#ifdef LOCKSTEP_CUDA
    CommunicationThread& thread =
        mpi_world != nullptr ? mpi_world->thread() : dynamic_cast<SingleRankWorld&>(world).thread();
    return make_nccl_communicator(thread, world, backend, topology,
                                  {.is_blocking = config.nccl_blocking, .log_folder = log_folder});
#else
    (void)log_folder;
    fail(ErrorCode::not_supported, "this program was built without NCCL: set comm.backend=staged");
#endif
  }
  if (mpi_world == nullptr || (world.size() == 1 && backend.memory_space() == MemorySpace::device)) {
    require(world.size() == 1, ErrorCode::internal,
            "make_communicator() needs a world of start_world() or single_world()");
    return std::make_unique<SingleRankCommunicator>(backend);
  }
  auto host = std::make_unique<HostCommunicator>(mpi_world->thread(), world, topology);
  if (topology.transport == Transport::host) return host;
  return std::make_unique<StagedCommunicator>(std::move(host), world, backend);
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(const Config::Comm& config, World& world, Backend& backend,
                                                const SumOrder& order, const std::string& log_folder) {
  std::unique_ptr<Communicator> out = make_undelayed_communicator(config, world, backend, order, log_folder);
  if (config.sleep_ms > 0) out = std::make_unique<SleepingCommunicator>(std::move(out), config.sleep_ms);
  return out;
}

std::unique_ptr<Communicator> make_node_communicator(World& world, Backend& backend) {
  MpiWorld* mpi_world = dynamic_cast<MpiWorld*>(&world);
  if (mpi_world == nullptr || backend.memory_space() != MemorySpace::host) return nullptr;
  const RankTable& ranks = mpi_world->thread().ranks();
  const auto is_alone = [](const std::vector<int>& node) { return node.size() == 1; };
  if (ranks.n_nodes() == 1 || std::ranges::any_of(ranks.nodes, is_alone)) return nullptr;
  return std::make_unique<HostCommunicator>(
      mpi_world->thread(), world,
      Topology{.nodes = {ranks.my_node()},
               .local_rank = ranks.mine().local_rank,
               .order_in_node = sequential_order(static_cast<int>(ranks.my_node().size())),
               .order_of_nodes = sequential_order(1)});
}

std::unique_ptr<PairProbe> make_pair_probe(World& world) {
  MpiWorld* mpi_world = dynamic_cast<MpiWorld*>(&world);
  if (mpi_world == nullptr || world.size() == 1) return nullptr;
  return std::make_unique<PairChannel>(mpi_world->thread());
}

std::string describe_nccl() {
#ifdef LOCKSTEP_CUDA
  return nccl_library_text();
#else
  return "this program was built without NCCL";
#endif
}

}  // namespace lockstep::comm
