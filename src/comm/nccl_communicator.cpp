// Every exchange is queued on one high-priority stream, which waits for `ready`, works in place, and records
// `done`. The host does not wait. All work goes through the contracts of Backend, so that tests can replace CUDA.
//
// Before and after each collective, the stream increments a counter in pinned memory, even if the step was captured in
// a graph. The communication thread reads both counters every 100 ms and publishes in the progress table which
// collective this rank is in. The watchdog (watchdog.h) can thus report the missing rank, as it does for host
// communicators. The communication thread also asks NCCL for errors. Before the job ends with an error, the NCCL
// communicator is aborted, so that kernels of this rank do not wait forever. A captured step that is launched after
// that computes with gradients that are not summed; check() ends the job before anything uses its results.
#include "comm/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "comm/communicator_memory.h"
#include "comm/device_exchange.h"
#include "comm/links.h"
#include "comm/nccl_library.h"
#include "comm/nccl_log.h"
#include "lockstep/error.h"
#include "lockstep/handle.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"

namespace lockstep::comm {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kSharesDevices = 23000;  // the first NCCL version that lets ranks share a device, as an option
// Earlier versions can hang in captured steps with memory that is registered with the network (NVIDIA/nccl#2389).
constexpr int kRegistersBetweenNodes = 23200;
constexpr char kGraphRegister[] = "NCCL_GRAPH_REGISTER";
constexpr auto kAbortTimeout = 2s;     // for ncclCommAbort, before the process ends without it
constexpr auto kWarningInterval = 1s;  // between two checks of NCCL's log
constexpr int kMaxWarnings = 20;       // NCCL's warnings that are repeated in our log

/// Aborts a communicator that was not finalized.
struct CommTraits {
  using Type = ncclComm_t;
  static Type null() { return nullptr; }
  static void close(Type comm) { LOCKSTEP_NCCL_REPORT(nccl().ncclCommAbort(comm)); }
};

/// The handle of NCCL's communicator, shared by two threads of this rank: the main thread queues work on it; the
/// communication thread asks it for errors and aborts it if the job is lost.
class Comm {
 public:
  explicit Comm(CommunicationThread& thread) : thread_(thread) {}

  void take(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    comm_ = Handle<CommTraits>(comm);
  }

  /// Returns call(comm). Once the communicator is aborted, this throws the error that ended the job.
  template <typename Call>
  ncclResult_t with(const Call& call) {
    const std::lock_guard lock(mutex_);
    if (!comm_) thread_.throw_if_failed();
    require(static_cast<bool>(comm_), ErrorCode::internal, "the NCCL communicator was already destroyed");
    return call(comm_.get());
  }

  /// Waits until NCCL, which works in its own threads, has completed a call. Until then, neither the communicator nor
  /// the stream may be used.
  void settle(ncclResult_t status) {
    LOCKSTEP_NCCL_CHECK(status);
    for (auto pause = 10us; status == ncclInProgress; pause = std::min(2 * pause, 1000us)) {
      thread_.throw_if_failed();
      std::this_thread::sleep_for(pause);
      LOCKSTEP_NCCL_CHECK(with([&](ncclComm_t comm) { return nccl().ncclCommGetAsyncError(comm, &status); }));
      LOCKSTEP_NCCL_CHECK(status);
    }
  }

  /// An error that NCCL has detected in the background. No value while another thread is in a call.
  std::optional<std::pair<ncclResult_t, std::string>> error() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !comm_) return std::nullopt;
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t status = nccl().ncclCommGetAsyncError(comm_.get(), &state); status != ncclSuccess)
      state = status;
    if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
    return std::pair(state, std::string(nccl().ncclGetLastError(comm_.get())));
  }

  /// `call`: ncclCommDeregister or a similar function. It is skipped if the communicator was aborted, which deregisters
  /// everything.
  void deregister(ncclResult_t (*call)(ncclComm_t, void*), void* handle) {
    const std::lock_guard lock(mutex_);
    if (comm_) LOCKSTEP_NCCL_REPORT(call(comm_.get(), handle));
  }

  /// Finalizes and destroys the communicator. Collective.
  void finish() {
    settle(with([](ncclComm_t comm) { return nccl().ncclCommFinalize(comm); }));
    const std::lock_guard lock(mutex_);
    LOCKSTEP_NCCL_CHECK(nccl().ncclCommDestroy(comm_.release()));
  }

  /// Aborts in a separate thread, and waits up to `limit` for this thread: NCCL may hang if the network hangs, and it
  /// waits until the graphs of captured steps are destroyed.
  void abort(std::chrono::milliseconds limit) {
    const std::unique_lock lock(mutex_, kAbortTimeout);
    if (!lock || !comm_) return;
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> result = done->get_future();
    std::thread([comm = comm_.release(), done] {
      CommTraits::close(comm);
      done->set_value();
    }).detach();
    (void)result.wait_for(limit);
  }

 private:
  CommunicationThread& thread_;
  std::timed_mutex mutex_;
  Handle<CommTraits> comm_;
};

bool wants_registration() {
  const char* const value = std::getenv(kGraphRegister);
  return value != nullptr && std::string_view(value) != "0";
}

/// Warns if ranks of a node see only their own device, and checks that they have different ones: ranks that share a
/// device would wait for each other forever.
void check_devices(World& world, const Backend& backend) {
  const std::vector<std::string> uuids = world.all_gather(backend.device().uuid);
  const std::vector<std::string> hosts = world.all_gather(world.host());
  const std::vector<std::string> visible = world.all_gather(std::to_string(backend.device().n_visible));
  std::set<std::string> hidden;  // devices of this node that one rank sees alone
  for (std::size_t r = 0; r < uuids.size(); ++r)
    if (hosts[r] == world.host() && visible[r] == "1") hidden.insert(uuids[r]);
  if (world.rank() == 0 && hidden.size() > 1)
    log::warning(
        "each rank of {} sees only its own GPU, so NCCL may copy through host memory instead of from GPU to GPU: let "
        "all ranks see all GPUs of their node. With Slurm, request --gpus-per-node=N instead of --gpus-per-task, and "
        "start with `srun --gpu-bind=none`; without, do not set another CUDA_VISIBLE_DEVICES for each rank",
        world.host());
  const char* enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (nccl().version >= kSharesDevices && enabled != nullptr && std::string_view(enabled) == "1") return;
  for (std::size_t a = 0; a < uuids.size(); ++a)
    for (std::size_t b = a + 1; b < uuids.size(); ++b)
      require(uuids[a].empty() || uuids[a] != uuids[b], ErrorCode::config_conflict,
              "ranks {} and {} use the same GPU ({} on {}), which NCCL {} does not support: start one rank per GPU, or "
              "set comm.backend=staged. NCCL 2.30 or newer supports it with NCCL_MULTI_RANK_GPU_ENABLE=1",
              a, b, uuids[a], hosts[a], nccl_version_text(nccl().version));
}

class NcclCommunicator final : public Communicator, private Channel, private PointToPoint {
 public:
  NcclCommunicator(CommunicationThread& thread, World& world, Backend& backend, const Topology& topology,
                   const NcclOptions& options)
      : thread_(thread),
        world_(world),
        backend_(backend),
        topology_(topology),
        is_blocking_(options.is_blocking),
        registers_(topology.n_nodes() == 1 || nccl().version >= kRegistersBetweenNodes || wants_registration()),
        log_(options.log_folder, world.rank()),
        stream_(backend.make_stream(StreamPriority::high)),
        counters_(backend.allocate_host(sizeof(Counters), "counters of collectives")),
        comm_(std::make_shared<Comm>(thread)) {
    thread_.add(*this);
    try {
      start();
      if (topology.uses_device_exchange())
        exchange_ = std::make_unique<DeviceExchange>(
            backend, world.rank(), device_exchange_plan(topology),
            [this](std::size_t size_bytes, const std::string& purpose) { return allocate(size_bytes, purpose); });
    } catch (...) {
      remove();
      repeat_warnings();
      throw;
    }
  }

  ~NcclCommunicator() override {
    bool is_finished = false;
    if (std::uncaught_exceptions() == exceptions_at_start_ && !thread_.has_failed()) {
      try {
        stream_->synchronize();
        exchange_.reset();  // NCCL no longer uses its buffers
        comm_->finish();
        stream_->synchronize();  // the stream still increments the counters
        is_finished = true;
      } catch (const std::exception& error) {
        log::error("cannot finalize the NCCL communicator: {}", error.what());
      }
    }
    remove();
    repeat_warnings();
    if (is_finished) log_.remove();
  }

  std::string describe() const override {
    return fmt::format("NCCL {}, {} rank{} on {} node{}{}{}", nccl_version_text(nccl().version), size(),
                       size() == 1 ? "" : "s", topology_.n_nodes(), topology_.n_nodes() == 1 ? "" : "s",
                       topology_.describe_order_and_wire(), links_);
  }
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }

  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) final {
    std::unique_ptr<Memory> of_nccl;
    if (registers_) of_nccl = allocate_nccl_memory(backend_, *stream_, size_bytes);
    const bool has_window = !world_.any(of_nccl == nullptr);  // a window exists on all ranks or on none
    if (!has_window) of_nccl.reset();
    return memory_.allocate(
        world_, backend_, size_bytes, purpose,
        [&](const Memory& memory) {
          std::shared_ptr<void> window = has_window ? register_window(memory) : nullptr;
          return window || !registers_ ? window : register_memory(memory);
        },
        std::move(of_nccl));
  }

  std::unique_ptr<Event> make_event() override { return backend_.make_event(); }
  bool is_capturable() const override { return true; }

  void check() override {
    if (!thread_.has_failed()) return;
    comm_->abort(kAbortTimeout);  // otherwise, freeing memory during stack unwinding would wait for NCCL's kernels
    thread_.throw_if_failed();
  }

  void exchange_async(const Exchange& exchange, const Event& ready, Event& done, const std::string& label) override {
    const Slice& slice = exchange.slice;
    check();
    memory_.check_contains(slice, label);
    check_exchange(exchange, size(), label);
    check_wire(slice, topology_.wire, label);
    const trace::Span span(trace::Kind::all_reduce, label);  // shows in profilers which bucket the kernels belong to
    const std::uint64_t number = number_of(label, slice.n_elements * size_bytes(slice.dtype));
    stream_->wait(ready);
    backend_.record_progress(&counters().begun, number, *stream_);
    if (slice.n_elements > 0) run(exchange);
    backend_.record_progress(&counters().ended, number, *stream_);
    done.record(*stream_);
  }

 private:
  /// Incremented by the stream and read by the communication thread. Each is on its own cache line.
  struct Counters {
    alignas(64) StreamProgress begun;
    alignas(64) StreamProgress ended;
  };
  Counters& counters() const { return *static_cast<Counters*>(counters_->data()); }
  static std::uint64_t read(std::uint64_t& counter) { return std::atomic_ref(counter).load(std::memory_order_acquire); }

  /// Sets the final number of collectives. The communication thread only samples the counters, so the last collective
  /// that it saw can differ between ranks.
  void remove() {
    thread_.remove(*this);
    set_n_collectives(1 + read(counters().ended.count));
  }

  void start() {
    if (!registers_) ::setenv(kGraphRegister, "0", 0);
    ncclUniqueId id{};
    all_agree(world_, [&] {
      if (rank() == 0) LOCKSTEP_NCCL_CHECK(nccl().ncclGetUniqueId(&id));
    });
    world_.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    all_agree(world_, [&] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = is_blocking_ ? 1 : 0;
      ncclComm_t comm = nullptr;
      is_starting_.store(true);
      const ncclResult_t status = nccl().ncclCommInitRankConfig(&comm, size(), id, rank(), &config);
      comm_->take(comm);
      comm_->settle(status);
      is_starting_.store(false);
    });
    log_.restore_environment();
    std::set<std::string> links;
    for (std::string& link : world_.all_gather(device_link(device_health(backend_.device().pci_bus)).name))
      if (!link.empty() && world_.size() > world_.n_nodes()) links.insert(std::move(link));
    for (const std::string& link : links) links_ += ", " + link;
    if (const std::string network = log_.network(); !network.empty()) links_ += ", " + network;
  }

  using Deregister = ncclResult_t (*)(ncclComm_t, void*);
  /// Deregisters `handle` when the last copy is released. Null if there is no handle.
  std::shared_ptr<void> keep(void* handle, Deregister deregister) {
    if (handle == nullptr) return nullptr;
    return {handle, [weak = std::weak_ptr(comm_), deregister](void* registered) {
              if (const std::shared_ptr<Comm> owner = weak.lock()) owner->deregister(deregister, registered);
            }};
  }

  /// Collective. Null if NCCL cannot give the ranks access to each other's memory.
  std::shared_ptr<void> register_window(const Memory& memory) {
    constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC: slices are at the same offset on all ranks
    // From NCCL 2.28 on, the call returns ncclSuccess while NCCL's threads are still working. They store the window
    // handle at the end. If an error occurs, they may still store it later, so its memory is not freed.
    auto window = std::make_unique<void*>(nullptr);
    try {
      LOCKSTEP_NCCL_CHECK(comm_->with([&](ncclComm_t comm) {
        return nccl().ncclCommWindowRegister(comm, memory.data(), memory.size_bytes(), window.get(), kSymmetric);
      }));
      comm_->settle(ncclInProgress);
    } catch (...) {
      (void)window.release();  // NOLINT: see above
      throw;
    }
    return keep(*window, nccl().ncclCommWindowDeregister);
  }

  /// NCCL copies faster from and to memory that is registered. It also works if it cannot register the memory.
  std::shared_ptr<void> register_memory(const Memory& memory) {
    void* handle = nullptr;
    if (memory.size_bytes() == 0) return nullptr;
    comm_->settle(comm_->with(
        [&](ncclComm_t comm) { return nccl().ncclCommRegister(comm, memory.data(), memory.size_bytes(), &handle); }));
    return keep(handle, nccl().ncclCommDeregister);
  }

  void run(const Exchange& exchange) {
    const Slice& slice = exchange.slice;
    if (exchange.collective != Collective::all_gather && orders(slice))
      return exchange.collective == Collective::all_reduce
                 ? exchange_->all_reduce(slice, *this, *stream_, exchange.round)
                 : exchange_->reduce_scatter(slice, *this, *stream_, exchange.round);
    const ElementRange mine = equal_shard(slice.n_elements, size(), rank());
    const std::size_t element_bytes = size_bytes(slice.dtype);
    auto* const own = static_cast<std::byte*>(slice.data) + mine.begin * element_bytes;  // in place
    comm_->settle(comm_->with([&](ncclComm_t comm) {
      switch (exchange.collective) {
        case Collective::reduce_scatter:
          return nccl().ncclReduceScatter(slice.data, own, mine.n_elements, nccl_type(slice), ncclSum, comm,
                                          native(*stream_));
        case Collective::all_gather:
          return nccl().ncclAllGather(own, slice.data, mine.n_elements * element_bytes, ncclUint8, comm,
                                      native(*stream_));
        case Collective::all_reduce:
          break;
      }
      return nccl().ncclAllReduce(slice.data, slice.data, slice.n_elements, nccl_type(slice), ncclSum, comm,
                                  native(*stream_));
    }));
  }

  static ncclDataType_t nccl_type(const Slice& slice) {
    return slice.dtype == DType::fp64 ? ncclFloat64 : slice.dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32;
  }
  /// Whether Lockstep, and not NCCL, orders the sum.
  bool orders(const Slice& slice) const { return exchange_ && (topology_.is_tree || slice.wire != DType::fp32); }

  void transfer(std::span<const Transfer> transfers, Stream& stream) override {
    if (transfers.empty()) return;
    comm_->settle(comm_->with([&](ncclComm_t comm) {
      LOCKSTEP_NCCL_CHECK(nccl().ncclGroupStart());
      for (const Transfer& t : transfers)
        LOCKSTEP_NCCL_CHECK(t.direction == Transfer::Direction::send
                                ? nccl().ncclSend(t.data, t.size_bytes, ncclUint8, t.peer, comm, native(stream))
                                : nccl().ncclRecv(t.data, t.size_bytes, ncclUint8, t.peer, comm, native(stream)));
      return nccl().ncclGroupEnd();
    }));
  }

  static cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

  // ---- Progress for the watchdog

  /// Called before a collective is queued or captured: returns the number that represents its label and size on the
  /// device.
  std::uint64_t number_of(const std::string& label, std::size_t size_bytes) {
    const std::lock_guard lock(labels_mutex_);
    ++issued_;
    const auto [number, is_new] = numbers_.try_emplace({label, size_bytes}, labels_.size());
    if (is_new) labels_.push_back(fmt::format("{}, {:.1f} MiB", label, static_cast<double>(size_bytes) / (1 << 20)));
    return number->second;
  }

  std::string label_of(std::uint64_t number) {
    const std::lock_guard lock(labels_mutex_);
    return labels_.at(number);
  }

  void check_device() override {
    const std::uint64_t ended = read(counters().ended.count), begun = read(counters().begun.count);
    // The start of NCCL is the first collective of this channel, so the n-th all-reduce is its (n+1)-th.
    if (is_starting_.load())
      arrive_at("the start of NCCL", 1);
    else if (begun > 0)
      arrive_at(label_of(read(counters().begun.what)), begun + 1);
    if (begun == ended && !is_starting_.load()) leave();
    const auto error = comm_->error();
    if (error || steady_clock::now() >= next_warnings_) repeat_warnings();
    if (error) throw_nccl_error(error->first, error->second);
  }

  /// NCCL's warnings contain details that an error code lacks. They can appear on any rank, so all ranks write them.
  void repeat_warnings() {
    next_warnings_ = steady_clock::now() + kWarningInterval;
    for (const std::string& warning : log_.new_warnings()) {
      if (++n_warnings_ <= kMaxWarnings) log::error("NCCL warns: {}", warning);
      if (n_warnings_ == kMaxWarnings) log::error("NCCL's further warnings are not repeated here");
    }
  }

  void arrive_at(const std::string& label, std::uint64_t sequence) {
    if (seen_ == sequence) return;
    seen_ = sequence;
    enter(label, sequence);
  }

  [[noreturn]] void throw_nccl_error(ncclResult_t error, const std::string& detail) const {
    const double seconds = std::chrono::duration<double>(steady_clock::now() - waiting().since).count();
    const std::string where =
        waiting().is_active ? fmt::format(" in '{}' after {:.1f} s", waiting().label, seconds) : "";
    fail(error == ncclRemoteError ? ErrorCode::comm_rank_lost : ErrorCode::library, "NCCL reported '{}' on {}{}: {}{}",
         nccl().ncclGetErrorString(error), thread_.ranks().name(rank()), where, detail,
         log_.kept_path().empty() ? "" : fmt::format("; NCCL's log is {}", log_.kept_path()));
  }

  Listener cancel(const std::exception_ptr&) override {
    const bool is_waited_for = (is_blocking_ && is_starting_.load()) ||
                               read(counters().ended.count) < std::max(read(counters().begun.count), issued_.load());
    // If nobody could catch an exception, the process ends as soon as NCCL has had a moment to abort. Its message must
    // not be late, because mpirun kills the ranks a second after it has noticed that one is lost.
    comm_->abort(is_waited_for ? 300ms : kAbortTimeout);
    return is_waited_for ? Listener::event : Listener::nobody;
  }

  CommunicationThread& thread_;
  World& world_;
  Backend& backend_;
  const Topology topology_;
  const bool is_blocking_;
  const bool registers_;  // whether memory is registered with NCCL
  NcclLog log_;
  CommunicatorMemory memory_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> counters_;
  std::unique_ptr<DeviceExchange> exchange_;
  std::string links_;                       // ", NVLink, network IB (...)"; empty: unknown
  steady_clock::time_point next_warnings_;  // when the log is read next
  int n_warnings_ = 0;

  std::shared_ptr<Comm> comm_;
  std::atomic<bool> is_starting_{false};
  std::uint64_t seen_ = 0;  // the last collective that the communication thread saw
  const int exceptions_at_start_ = std::uncaught_exceptions();

  std::mutex labels_mutex_;
  std::map<std::pair<std::string, std::size_t>, std::uint64_t> numbers_;  // by label and size
  std::vector<std::string> labels_;                                       // by number; one per bucket
  std::atomic<std::uint64_t> issued_{0};
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(CommunicationThread& thread, World& world, Backend& backend,
                                                     const Topology& topology, const NcclOptions& options) {
  all_agree(world, [] { return nccl_version_text(nccl().version); });
  check_devices(world, backend);
  if (world.rank() == 0 && topology.uses_device_exchange() && !topology.is_tree &&
      !device_exchange_plan(topology).has_levels() && topology.n_nodes() < topology.n_ranks())
    log::warning(
        "the nodes have different numbers of ranks, so that each rank sends its gradients in {} to every rank of the "
        "other nodes; comm.gradients=fp32 may be faster",
        name(topology.wire));
  return std::make_unique<NcclCommunicator>(thread, world, backend, topology, options);
}

std::string nccl_library_text() {
  try {
    return fmt::format("NCCL {} ({})", nccl_version_text(nccl().version), nccl().path);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace lockstep::comm
