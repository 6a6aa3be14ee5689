// Every all-reduce is given to one stream of high priority: it waits for `ready`, sums in place, records `done`. The
// host waits for nothing. Work goes through the contracts of Backend, so that tests can put others in CUDA's place.
//
// In front of each collective and behind it the stream raises a counter in pinned memory, also where the step was
// recorded as a graph. The communication thread looks at both every 100 ms and notes on the board which collective this
// rank is in, and so the watchdog of host communicators (watch.h) names who is missing here too. It also asks NCCL for
// errors. What ends the job aborts the communicator first, so that kernels of this rank do not wait for ever.
#include "comm/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "comm/device_exchange.h"
#include "comm/nccl_library.h"
#include "comm/nccl_log.h"
#include "comm/regions.h"
#include "lockstep/error.h"
#include "lockstep/handle.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"

namespace lockstep::comm {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kSharesDevices = 23000;  // the first NCCL that lets ranks share a device, if it is told to
constexpr auto kTimeToAbort = 2s;      // that NCCL may take before the process ends in spite of it

/// A communicator that is not ended in good order is aborted.
struct CommTraits {
  using Type = ncclComm_t;
  static Type null() { return nullptr; }
  static void close(Type comm) { LOCKSTEP_NCCL_REPORT(nccl().ncclCommAbort(comm)); }
};

/// The handle, between this rank's threads: main gives it work, the communication thread asks it for errors and, when
/// the job is lost, aborts it.
class Comm {
 public:
  explicit Comm(CommunicationThread& thread) : thread_(thread) {}

  void take(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    comm_ = Handle<CommTraits>(comm);
  }

  /// call(comm). Throws what ended the job once it was aborted.
  template <typename Call>
  ncclResult_t with(const Call& call) {
    const std::lock_guard lock(mutex_);
    if (!comm_) thread_.throw_if_failed();
    require(static_cast<bool>(comm_), ErrorCode::internal, "the communicator of NCCL is over");
    return call(comm_.get());
  }

  /// NCCL works in threads of its own: until it is done with a call, neither it nor the stream may be used.
  void settle(ncclResult_t status) {
    LOCKSTEP_NCCL_CHECK(status);
    for (auto pause = 10us; status == ncclInProgress; pause = std::min(2 * pause, 1000us)) {
      thread_.throw_if_failed();
      std::this_thread::sleep_for(pause);
      LOCKSTEP_NCCL_CHECK(with([&](ncclComm_t comm) { return nccl().ncclCommGetAsyncError(comm, &status); }));
      LOCKSTEP_NCCL_CHECK(status);
    }
  }

  /// What NCCL found out by itself; nothing while another thread is in a call.
  std::optional<std::pair<ncclResult_t, std::string>> error() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !comm_) return std::nullopt;
    ncclResult_t state = ncclSuccess;
    const ncclResult_t status = nccl().ncclCommGetAsyncError(comm_.get(), &state);
    if (status == ncclSuccess) {
      if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
    } else {
      state = status;
    }
    return std::pair(state, std::string(nccl().ncclGetLastError(comm_.get())));
  }

  void deregister(void* registered) {
    const std::lock_guard lock(mutex_);
    if (comm_) LOCKSTEP_NCCL_REPORT(nccl().ncclCommDeregister(comm_.get(), registered));
  }

  /// In good order, on all ranks.
  void finish() {
    settle(with([](ncclComm_t comm) { return nccl().ncclCommFinalize(comm); }));
    const std::lock_guard lock(mutex_);
    LOCKSTEP_NCCL_CHECK(nccl().ncclCommDestroy(comm_.release()));
  }

  /// In a thread of its own: NCCL may hang where the network does, and the job must end.
  void abort() {
    const std::unique_lock lock(mutex_, kTimeToAbort);
    if (!lock || !comm_) return;
    auto over = std::make_shared<std::promise<void>>();
    std::future<void> result = over->get_future();
    std::thread([comm = comm_.release(), over] {
      CommTraits::close(comm);
      over->set_value();
    }).detach();
    (void)result.wait_for(kTimeToAbort);
  }

 private:
  CommunicationThread& thread_;
  std::timed_mutex mutex_;
  Handle<CommTraits> comm_;
};

/// Ranks on one device wait for each other there for ever.
void check_devices(World& world, const Backend& backend) {
  const std::vector<std::string> uuids = world.all_gather(backend.device().uuid);
  const std::vector<std::string> hosts = world.all_gather(world.host());
  const char* asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (nccl().version >= kSharesDevices && asked != nullptr && std::string_view(asked) == "1") return;
  for (std::size_t a = 0; a < uuids.size(); ++a)
    for (std::size_t b = a + 1; b < uuids.size(); ++b)
      require(uuids[a].empty() || uuids[a] != uuids[b], ErrorCode::comm_backend,
              "ranks {} and {} are on one GPU ({} on {}), which NCCL {} does not allow: start one rank a GPU, or set "
              "comm.backend=staged; NCCL 2.30 or newer allows it with NCCL_MULTI_RANK_GPU_ENABLE=1",
              a, b, uuids[a], hosts[a], nccl_version_text(nccl().version));
}

class NcclCommunicator final : public Communicator, private Lane, private Peers {
 public:
  NcclCommunicator(CommunicationThread& thread, World& world, Backend& backend, const Topology& topology)
      : thread_(thread),
        world_(world),
        backend_(backend),
        topology_(topology),
        stream_(backend.make_stream(StreamPriority::high)),
        counters_(backend.allocate_host(sizeof(Counters), "counters of collectives")),
        comm_(std::make_shared<Comm>(thread)) {
    if (topology.is_exchanged())
      exchange_ = std::make_unique<DeviceExchange>(backend, world.rank(), topology.order_of_nodes, topology.wire);
    thread_.add(*this);
    try {
      start();
    } catch (...) {
      remove();
      throw;
    }
  }

  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() == exceptions_at_start_ && !thread_.has_failed()) {
      try {
        comm_->finish();
        stream_->synchronize();  // the counters too
      } catch (const std::exception& error) {
        log::error("the end of NCCL's communicator: {}", error.what());
      }
    }
    remove();
  }

  std::string describe() const override {
    return fmt::format("NCCL {}, {} ranks on {} node{}{}{}{}{}", nccl_version_text(nccl().version), size(),
                       topology_.n_nodes(), topology_.n_nodes() == 1 ? "" : "s",
                       topology_.is_tree ? ", summed by a fixed tree" : "",
                       topology_.n_nodes() > 1 && topology_.wire != DType::fp32
                           ? fmt::format(", gradients in {}", name(topology_.wire))
                           : "",
                       network_.empty() ? "" : ", ", network_);
  }
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }

  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override {
    return regions_.allocate(world_, backend_, size_bytes, purpose,
                             [this](const Memory& memory) { return register_memory(memory); });
  }

  std::unique_ptr<Event> make_event() override { return backend_.make_event(); }
  bool is_repeatable() const override { return true; }

  void all_reduce_async(const Slice& slice, const Event& ready, Event& done, const std::string& label) override {
    thread_.throw_if_failed();
    regions_.check(slice, label);
    require(slice.wire == DType::fp32 || slice.wire == topology_.wire, ErrorCode::internal,
            "'{}' is to be sent as {}, the communicator was made for {}", label, name(slice.wire),
            name(topology_.wire));
    const trace::Span span(trace::Kind::all_reduce, label);  // for a profiler: these kernels are this bucket's
    const std::uint64_t number = note(label, slice.n_elements * size_bytes(slice.dtype));
    stream_->wait(ready);
    backend_.count(&counters().begun, number, *stream_);
    if (slice.n_elements > 0) sum(slice);
    backend_.count(&counters().ended, number, *stream_);
    done.record(*stream_);
  }

 private:
  /// Raised by the stream, each in a line of its own; read by the communication thread.
  struct Counters {
    alignas(64) StreamProgress begun;
    alignas(64) StreamProgress ended;
  };
  Counters& counters() const { return *static_cast<Counters*>(counters_->data()); }
  static std::uint64_t read(std::uint64_t& counter) { return std::atomic_ref(counter).load(std::memory_order_acquire); }

  /// The communication thread looked every now and then, and saw other collectives as the last than other ranks did.
  void remove() {
    thread_.remove(*this);
    end_at(1 + read(counters().ended.count));
  }

  void start() {
    const NcclLog log;
    const auto agree = [this](const auto& step) {
      return all_agree([this](const std::string& text) { return world_.all_gather(text); }, name_in_messages(world_),
                       step);
    };
    ncclUniqueId id{};
    agree([&]() -> std::string {
      if (rank() == 0) LOCKSTEP_NCCL_CHECK(nccl().ncclGetUniqueId(&id));
      return "";
    });
    world_.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    agree([&]() -> std::string {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      is_starting_.store(true);
      const ncclResult_t status = nccl().ncclCommInitRankConfig(&comm, size(), id, rank(), &config);
      comm_->take(comm);
      comm_->settle(status);
      is_starting_.store(false);
      return "";
    });
    network_ = log.network();
  }

  /// Copies go the faster where NCCL knows the memory; where it cannot, it does without.
  std::shared_ptr<void> register_memory(const Memory& memory) {
    void* handle = nullptr;
    if (memory.size_bytes() == 0) return nullptr;
    comm_->settle(comm_->with(
        [&](ncclComm_t comm) { return nccl().ncclCommRegister(comm, memory.data(), memory.size_bytes(), &handle); }));
    if (handle == nullptr) return nullptr;
    return {handle, [weak = std::weak_ptr(comm_)](void* registered) {
              const std::shared_ptr<Comm> owner = weak.lock();
              if (owner) owner->deregister(registered);
            }};
  }

  void sum(const Slice& slice) {
    if (exchange_ && (topology_.is_tree || slice.wire != DType::fp32)) {
      exchange_->all_reduce(slice, *this, *stream_);
      return;
    }
    const ncclDataType_t type = slice.dtype == DType::fp64 ? ncclFloat64 : ncclFloat32;
    comm_->settle(comm_->with([&](ncclComm_t comm) {
      return nccl().ncclAllReduce(slice.data, slice.data, slice.n_elements, type, ncclSum, comm, native(*stream_));
    }));
  }

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

  // ---- What the watchdog knows

  /// Before the collective is given to the stream, or recorded: a number for its label, the same for the same.
  std::uint64_t note(const std::string& label, std::size_t size_bytes) {
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

  void look() override {
    const std::uint64_t ended = read(counters().ended.count), begun = read(counters().begun.count);
    // Starting is the first of this lane's kind, so the n-th collective is its (n+1)-th.
    if (is_starting_.load())
      come_to("the start of NCCL", 1);
    else if (begun > 0)
      come_to(label_of(read(counters().begun.what)), begun + 1);
    if (begun == ended && !is_starting_.load()) leave();
    if (const auto error = comm_->error()) fail_by(error->first, error->second);
  }

  void come_to(const std::string& label, std::uint64_t sequence) {
    if (seen_ == sequence) return;
    seen_ = sequence;
    enter(label, sequence);
  }

  [[noreturn]] void fail_by(ncclResult_t error, const std::string& detail) const {
    const double seconds = std::chrono::duration<double>(steady_clock::now() - waiting().since).count();
    const std::string where = waiting().is_on ? fmt::format(" in '{}', after {:.1f} s", waiting().label, seconds) : "";
    fail(error == ncclRemoteError ? ErrorCode::comm_rank_lost : ErrorCode::library, "NCCL on {} reports '{}'{}: {}",
         thread_.ranks().name(rank()), nccl().ncclGetErrorString(error), where, detail);
  }

  Told give_up(const std::exception_ptr&) override {
    const bool is_waited_for = read(counters().ended.count) < std::max(read(counters().begun.count), n_issued());
    comm_->abort();
    return is_waited_for ? Told::event : Told::nobody;
  }

  std::uint64_t n_issued() {
    const std::lock_guard lock(labels_mutex_);
    return issued_;
  }

  CommunicationThread& thread_;
  World& world_;
  Backend& backend_;
  const Topology topology_;
  Regions regions_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> counters_;
  std::unique_ptr<DeviceExchange> exchange_;
  std::string network_;  // that NCCL uses; empty: not known

  std::shared_ptr<Comm> comm_;
  std::atomic<bool> is_starting_{false};
  std::uint64_t seen_ = 0;  // the collective that the communication thread saw last
  const int exceptions_at_start_ = std::uncaught_exceptions();

  std::mutex labels_mutex_;
  std::map<std::pair<std::string, std::size_t>, std::uint64_t> numbers_;  // by label and bytes
  std::vector<std::string> labels_;                                       // by number; as many as there are buckets
  std::uint64_t issued_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(CommunicationThread& thread, World& world, Backend& backend,
                                                     const Topology& topology) {
  all_agree([&](const std::string& text) { return world.all_gather(text); }, name_in_messages(world),
            [] { return nccl_version_text(nccl().version); });
  check_devices(world, backend);
  return std::make_unique<NcclCommunicator>(thread, world, backend, topology);
}

std::string nccl_library_text() {
  try {
    return fmt::format("NCCL {} ({})", nccl_version_text(nccl().version), nccl().path);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace lockstep::comm
