#include "comm/host_communicator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "base/outcome.h"
#include "comm/communicator_memory.h"
#include "comm/links.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

const std::size_t kPageBytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));  // on ARM, 4096 to 65536
constexpr std::size_t kFaultBytes = std::size_t{64} << 10;   // Linux maps an aligned range of this size per page fault
constexpr std::size_t kWorkBytes = std::size_t{1} << 20;     // summed before other channels get a turn
constexpr std::size_t kMessageBytes = std::size_t{1} << 30;  // MPI's counts have 31 bits
constexpr std::size_t kLargestRegionBytes = std::size_t{1} << 46;

}  // namespace

/// One rank's view of an allocation: it maps the regions of all local ranks, one of which is its own.
class HostCommunicator::Region final : public Memory {
 public:
  Region(std::shared_ptr<Registry> registry, int local_rank, std::size_t size_bytes)
      : registry_(std::move(registry)),
        local_rank_(local_rank),
        size_bytes_(size_bytes),
        stride_bytes_((std::max<std::size_t>(size_bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes) {
    registry_->regions.push_back(this);
  }
  ~Region() override {
    std::erase(registry_->regions, this);
    if (registry_->is_busy()) {
      // An exception has ended the step and will soon end the process. Until then others may still write here.
      segment_.leave_mapped();
    } else if (private_ != nullptr) {
      ::munmap(private_, stride_bytes_);
    }
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void* data() const override { return first() + static_cast<std::size_t>(local_rank_) * stride_bytes_; }
  std::size_t size_bytes() const override { return size_bytes_; }
  std::size_t stride_bytes() const { return stride_bytes_; }
  std::byte* first() const { return private_ != nullptr ? private_ : segment_.data(); }

  std::string create(int local_size, const std::string& purpose) {
    segment_ = SharedSegment::create(stride_bytes_ * static_cast<std::size_t>(local_size), purpose);
    return segment_.path();
  }
  void open(const std::string& path, int local_size, const std::string& purpose) {
    if (local_rank_ != 0) {
      segment_ = SharedSegment::open(path, stride_bytes_ * static_cast<std::size_t>(local_size), purpose);
    }
    segment_.reserve(static_cast<std::size_t>(local_rank_) * stride_bytes_, stride_bytes_);
  }
  void unlink() { segment_.unlink(); }

  void map_private(const std::string& purpose) {
    void* memory = ::mmap(nullptr, stride_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, ErrorCode::out_of_memory, "cannot allocate {} bytes for {}: {}", size_bytes_, purpose,
            std::strerror(errno));
    private_ = static_cast<std::byte*>(memory);
  }

 private:
  std::shared_ptr<Registry> registry_;
  int local_rank_;
  std::size_t size_bytes_;
  std::size_t stride_bytes_;
  SharedSegment segment_;
  std::byte* private_ = nullptr;  // used if the rank is alone on its node
};

HostCommunicator::HostCommunicator(CommunicationThread& thread, World& world, Topology topology)
    : thread_(thread),
      world_(world),
      topology_(std::move(topology)),
      chunk_bytes_(topology_.chunk_bytes()),
      registry_(std::make_shared<Registry>()),
      sources_(static_cast<std::size_t>(topology_.local_size())),
      targets_(static_cast<std::size_t>(topology_.local_size())) {
  for (const std::vector<int>& node : topology_.nodes) leaders_.push_back(node[0]);
  registry_->communicator = this;
  coroutine_ = topology_.n_nodes() == 1 ? run_on_one_node() : run_between_nodes();
  thread_.add(*this);
  if (topology_.n_nodes() == 1 || topology_.local_rank != 0) return;
  shard_messages_.reserve(static_cast<std::size_t>(size() + topology_.local_size() * topology_.n_nodes()));
  for (int i = 0; i < Topology::kExchangesInFlight; ++i) {
    const int tag = 2 * (number() * Topology::kExchangesInFlight + i);
    exchanges_.emplace_back(thread_.mpi(), leaders_, topology_.order_of_nodes, topology_.node, tag, chunk_bytes_,
                            topology_.wire);
  }
}

HostCommunicator::~HostCommunicator() {
  thread_.remove(*this);
  registry_->was_left_busy = has_request();
  registry_->communicator = nullptr;
  // MPI may still write to the receive buffers of an unfinished exchange, so they are never freed.
  if (registry_->was_left_busy) new std::vector<NodeExchange>(std::move(exchanges_));
}

std::string HostCommunicator::describe() const {
  const int n_nodes = topology_.n_nodes();
  const std::string order = topology_.describe_order_and_wire();
  const std::string network = world_.n_nodes() > 1 ? fastest_network() : "";
  if (n_nodes == 1) return fmt::format("shared memory, {} ranks on 1 node{}", size(), order);
  if (n_nodes == size()) return fmt::format("MPI, {} ranks{}{}", size(), network, order);
  return fmt::format("shared memory within {} nodes, MPI between them, {} ranks{}{}", n_nodes, size(), network, order);
}

std::unique_ptr<Memory> HostCommunicator::allocate(std::size_t size_bytes, const std::string& purpose) {
  const int local_size = topology_.local_size();
  const bool is_leader = topology_.local_rank == 0;
  std::unique_ptr<Region> region;
  const std::vector<std::string> paths = all_agree(world_, [&]() -> std::string {
    require(size_bytes < kLargestRegionBytes, ErrorCode::comm_shared_memory,
            "{} bytes per rank are needed for {}, which is more than any machine has", size_bytes, purpose);
    region = std::make_unique<Region>(registry_, topology_.local_rank, size_bytes);
    if (local_size == 1) {
      region->map_private(purpose);
      return std::to_string(size_bytes);
    }
    return std::to_string(size_bytes) + (is_leader ? region->create(local_size, purpose) : "");
  });
  const std::string size_text = std::to_string(size_bytes);
  const std::string& of_leader = paths[static_cast<std::size_t>(leaders_[static_cast<std::size_t>(topology_.node)])];
  all_agree(world_, [&] {
    for (int r = 0; r < size(); ++r) {
      const std::string theirs =
          paths[static_cast<std::size_t>(r)].substr(0, paths[static_cast<std::size_t>(r)].find('/'));
      require(theirs == size_text, ErrorCode::internal, "this rank allocates {} bytes for {}, but rank {} allocates {}",
              size_text, purpose, r, theirs);
    }
    if (local_size > 1) region->open(of_leader.substr(size_text.size()), local_size, purpose);
  });
  region->unlink();
  return region;
}

void HostCommunicator::exchange_async(const Exchange& exchange, const Event& ready, Event& done,
                                      const std::string& label) {
  const Slice& slice = exchange.slice;
  thread_.throw_if_failed();
  const auto found = std::find_if(registry_->regions.begin(), registry_->regions.end(),
                                  [&](const Region* region) { return contains(*region, slice); });
  require(found != registry_->regions.end(), ErrorCode::internal, "'{}' is outside the memory of the communicator",
          label);
  check_exchange(exchange, size(), label);
  check_wire(slice, topology_.wire, label);
  HostEvent& host_done = host_event(done, label);
  const Region& region = **found;

  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  while (tail - head_.load(std::memory_order_acquire) == kQueueLength) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    thread_.throw_if_failed();
  }
  Request& request = queue_[tail % kQueueLength];
  const auto offset = static_cast<const std::byte*>(slice.data) - static_cast<const std::byte*>(region.data());
  request.exchange = exchange;
  request.first_region = region.first();
  request.offset_bytes = static_cast<std::size_t>(offset);
  request.stride_bytes = region.stride_bytes();
  request.ready = &ready;
  request.done = &host_done;
  copy_label(label, request.label);
  host_done.begin();
  tail_.store(tail + 1, std::memory_order_release);
  thread_.wake();
}

Channel::Listener HostCommunicator::cancel(const std::exception_ptr&) {
  return has_request() ? Listener::event : Listener::nobody;
}

ChannelProgress& HostCommunicator::progress(int local_rank) const {
  // With comm.backend=mpi a rank is alone on its node of the topology, but not in its progress table.
  RankEntry& entry = topology_.local_size() == 1 ? table_->mine() : table_->entry(local_rank);
  return entry.channels[number()];
}

bool HostCommunicator::all_reached(std::atomic<std::uint64_t> ChannelProgress::*counter, std::uint64_t minimum) const {
  for (int r = 0; r < topology_.local_size(); ++r) {
    if ((progress(r).*counter).load(std::memory_order_acquire) < minimum) return false;
  }
  return true;
}

/// Traces the first part of an all-reduce, in which this rank has waited for the others to arrive.
void HostCommunicator::trace_arrival() {
  arrived_ = trace::Clock::now();
  if (trace_row_ != nullptr) trace::record(trace_row_, trace::Kind::wait, "other ranks", waiting().since, arrived_);
}

void HostCommunicator::finish(Request& request) {
  const trace::Clock::time_point now = trace::Clock::now();
  if (trace_row_ != nullptr) trace::record(trace_row_, trace::Kind::all_reduce, request.label, waiting().since, now);
  exchange_seconds_.store(exchange_seconds_.load() + std::chrono::duration<double>(now - arrived_).count());
  leave();
  HostEvent* done = request.done;
  head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  done->complete();
}

void HostCommunicator::sum_local(const Request& request, ElementRange range, int first_target, int n_targets) {
  for (int r = 0; r < topology_.local_size(); ++r) {
    sources_[static_cast<std::size_t>(r)] = targets_[static_cast<std::size_t>(r)] = request.at(r, range.begin);
  }
  const auto targets =
      std::span(targets_).subspan(static_cast<std::size_t>(first_target), static_cast<std::size_t>(n_targets));
  const SumRound& round = request.exchange.round;
  const std::size_t first = request.is(Collective::reduce_scatter) ? shard(request, rank()).begin : 0;
  sum(sources_, targets, range.n_elements, request.dtype(),
      round.exists() ? round.merges : topology_.order_in_node.merges,
      open_sums(round, range.begin - first, request.dtype()));
}

void HostCommunicator::copy_local(const Request& request, ElementRange range, int from, int to) {
  std::memcpy(request.at(to, range.begin), request.at(from, range.begin),
              range.n_elements * size_bytes(request.dtype()));
}

// Unmaps the peers' pages, which would otherwise count as memory of this process too. MADV_DONTNEED removes pages from
// its page tables; their content stays in the shared file. It cannot fail for ordinary pages. It refuses locked ones
// (mlockall), which stay mapped: they count twice, which is harmless.
void HostCommunicator::release_peers(const Request& request, ElementRange range) const {
  if (range.n_elements == 0) return;
  for (int r = 0; r < topology_.local_size(); ++r) {
    if (r == topology_.local_rank) continue;
    const auto region = reinterpret_cast<std::uintptr_t>(request.region(r));
    const auto begin = reinterpret_cast<std::uintptr_t>(request.at(r, range.begin)),
               end = reinterpret_cast<std::uintptr_t>(request.at(r, range.begin + range.n_elements));
    const std::uintptr_t first = std::max(begin / kFaultBytes * kFaultBytes, region),
                         last = std::min((end + kFaultBytes - 1) / kFaultBytes * kFaultBytes,
                                         region + request.stride_bytes);
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

int HostCommunicator::rank_at(int local_rank) const {
  return topology_.nodes[static_cast<std::size_t>(topology_.node)][static_cast<std::size_t>(local_rank)];
}

Coroutine HostCommunicator::run_on_one_node() {
  while (true) {
    co_await until([this] { return has_request(); }, WakeOn::doorbell);
    Request& request = front();
    co_await until([&request] { return request.ready->is_done(); }, WakeOn::poll);
    enter(request.label);
    table_->wake_others();
    co_await until([this] { return all_reached(&ChannelProgress::begun, waiting().sequence); }, WakeOn::doorbell);
    trace_arrival();

    const std::size_t element_bytes = size_bytes(request.dtype());
    const std::size_t work = kWorkBytes / element_bytes;
    const int me = topology_.local_rank;
    if (request.is(Collective::all_gather)) {
      for (int r = 0; r < topology_.local_size(); ++r) {
        const ElementRange theirs = r == me ? ElementRange{} : shard(request, rank_at(r));
        for (std::size_t at = 0; at < theirs.n_elements; at += work) {
          const ElementRange range{theirs.begin + at, std::min(work, theirs.n_elements - at)};
          copy_local(request, range, r, me);
          release_peers(request, range);
          co_await yield();
        }
      }
    } else {
      const bool scatters = request.is(Collective::reduce_scatter);
      const ElementRange mine =
          scatters ? shard(request, rank()) : shard_of(request.n_elements(), element_bytes, topology_.local_size(), me);
      for (std::size_t at = 0; at < mine.n_elements; at += work) {
        const ElementRange range{mine.begin + at, std::min(work, mine.n_elements - at)};
        sum_local(request, range, scatters ? me : 0, scatters ? 1 : topology_.local_size());
        release_peers(request, range);
        co_await yield();
      }
    }
    const std::uint64_t reduced = my_progress().reduced.fetch_add(1) + 1;
    table_->wake_others();
    co_await until([this, reduced] { return all_reached(&ChannelProgress::reduced, reduced); }, WakeOn::doorbell);
    finish(request);
  }
}

std::size_t HostCommunicator::chunk_length(const Request& request) const {
  const std::size_t length = chunk_bytes_ / size_bytes(request.dtype());
  if (!request.is(Collective::reduce_scatter)) return length;
  // The leader of the largest node receives the parts of its ranks from all nodes, into memory for one chunk.
  const auto n_ranks = std::ranges::max(topology_.nodes, {}, &std::vector<int>::size).size();
  return length / topology_.nodes.size() / n_ranks;
}

std::size_t HostCommunicator::n_chunks(const Request& request) const {
  const std::size_t n_elements = request.n_elements(), length = chunk_length(request);
  const std::size_t n = request.is(Collective::reduce_scatter) ? shard(request, 0).n_elements : n_elements;
  return (n + length - 1) / length;
}

ElementRange HostCommunicator::chunk(const Request& request, std::size_t index, int rank) const {
  const ElementRange all =
      request.is(Collective::reduce_scatter) ? shard(request, rank) : ElementRange{0, request.n_elements()};
  const std::size_t length = chunk_length(request), begin = index * length;
  return {all.begin + begin, std::min(length, all.n_elements - begin)};
}

void HostCommunicator::sum_my_part(const Request& request, std::size_t index) {
  const int n_local = topology_.local_size(), me = topology_.local_rank;
  if (n_local > 1 && request.is(Collective::reduce_scatter)) {
    for (int r = me; r < size(); r += n_local) sum_local(request, chunk(request, index, r), 0, 1);
  } else if (n_local > 1) {
    const ElementRange c = chunk(request, index);
    const ElementRange mine = shard_of(c.n_elements, size_bytes(request.dtype()), n_local, me);
    sum_local(request, {c.begin + mine.begin, mine.n_elements}, 0, 1);
  }
  my_progress().reduced.fetch_add(1);
}

Coroutine HostCommunicator::run_between_nodes() {
  const bool is_leader = topology_.local_rank == 0;
  while (true) {
    co_await until([this] { return has_request(); }, WakeOn::doorbell);
    Request& request = front();
    co_await until([&request] { return request.ready->is_done(); }, WakeOn::poll);
    enter(request.label);
    table_->wake_others();
    co_await until([this] { return all_reached(&ChannelProgress::begun, waiting().sequence); }, WakeOn::doorbell);
    trace_arrival();

    const std::size_t n = n_chunks(request);
    if (request.is(Collective::all_gather) && is_leader) {
      const std::uint64_t collected = my_progress().reduced.fetch_add(1) + 1;
      co_await until([this, collected] { return all_reached(&ChannelProgress::reduced, collected); }, WakeOn::doorbell);
      start_gather(request);
      co_await until([this] { return thread_.mpi().test(shard_messages_); }, WakeOn::poll);
      my_progress().gathered.fetch_add(1);
      if (topology_.local_size() > 1) table_->wake_others();
    } else if (request.is(Collective::all_gather)) {
      copy_local(request, shard(request, rank()), topology_.local_rank, 0);
      my_progress().reduced.fetch_add(1);
      table_->wake(0);
      const std::uint64_t expected = my_progress().gathered.load() + 1;
      co_await until([this, expected] { return progress(0).gathered.load(std::memory_order_acquire) >= expected; },
                     WakeOn::doorbell);
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        copy_local(request, shard(request, r), 0, topology_.local_rank);
        co_await yield();
      }
      my_progress().gathered.store(expected);
    } else if (is_leader) {
      pipeline_ = {0, 0, 0, my_progress().reduced.load()};
      co_await until([this, &request] { return advance_chunks(request); }, WakeOn::poll);
    } else {
      for (std::size_t c = 0; c < n; ++c) {
        sum_my_part(request, c);
        table_->wake(0);
        co_await yield();
      }
      for (std::size_t c = 0; c < n; ++c) {
        const std::uint64_t expected = my_progress().gathered.load() + 1;
        co_await until([this, expected] { return progress(0).gathered.load(std::memory_order_acquire) >= expected; },
                       WakeOn::doorbell);
        copy_local(request, chunk(request, c, rank()), 0, topology_.local_rank);
        my_progress().gathered.store(expected);
        co_await yield();
      }
    }
    const std::uint64_t copied = my_progress().copied.fetch_add(1) + 1;
    if (!is_leader) table_->wake(0);
    release_peers(request, {0, request.n_elements()});
    if (is_leader) {
      // The others read the leader's region until they have copied it. Its owner may not write there before.
      co_await until([this, copied] { return all_reached(&ChannelProgress::copied, copied); }, WakeOn::doorbell);
    }
    finish(request);
  }
}

// Every node sends its shards to every other node. Both sides go through the shards in rank order, and MPI delivers the
// messages between two leaders in the order in which they were sent.
void HostCommunicator::start_gather(const Request& request) {
  const int tag = 2 * (number() * Topology::kExchangesInFlight);  // no chunk of a sum is in flight
  shard_messages_.clear();
  const auto for_messages = [&](const std::vector<int>& owners, const auto& call) {
    for (const int owner : owners) {
      const ElementRange theirs = shard(request, owner);
      const std::size_t size_of = theirs.n_elements * size_bytes(request.dtype());
      for (std::size_t at = 0; at < size_of; at += kMessageBytes)
        call(request.at(0, theirs.begin) + at, std::min(kMessageBytes, size_of - at));
    }
  };
  for (int node = 0; node < topology_.n_nodes(); ++node) {
    if (node == topology_.node) continue;
    const auto i = static_cast<std::size_t>(node);
    for_messages(topology_.nodes[i], [&](std::byte* data, std::size_t size) {
      thread_.mpi().receive(shard_messages_.emplace_back(), MpiGroup::data, leaders_[i], tag, data, size);
    });
    for_messages(topology_.nodes[static_cast<std::size_t>(topology_.node)], [&](std::byte* data, std::size_t size) {
      thread_.mpi().send(shard_messages_.emplace_back(), MpiGroup::data, leaders_[i], tag, data, size);
    });
  }
}

void HostCommunicator::start_sum(const Request& request, std::size_t index) {
  const bool scatters = request.is(Collective::reduce_scatter);
  parts_.clear();
  const auto add = [&](int node, ElementRange range) {
    const std::size_t first = scatters ? shard(request, node).begin : 0;  // in a round, nodes are ranks
    parts_.push_back({node, request.at(0, range.begin), range.n_elements, range.begin - first});
  };
  const ElementRange all = chunk(request, index);
  for (int node = 0; node < topology_.n_nodes(); ++node) {
    const ElementRange part = shard_of(all.n_elements, size_bytes(request.dtype()), topology_.n_nodes(), node);
    if (!scatters) add(node, {all.begin + part.begin, part.n_elements});
    for (const int owner : topology_.nodes[static_cast<std::size_t>(node)])
      if (scatters) add(node, chunk(request, index, owner));
  }
  exchanges_[index % Topology::kExchangesInFlight].start(
      parts_, request.dtype(), request.wire(),
      scatters ? NodeExchange::Totals::for_owners : NodeExchange::Totals::for_all, request.exchange.round);
}

bool HostCommunicator::advance_chunks(const Request& request) {
  const std::size_t n = n_chunks(request);
  auto& p = pipeline_;
  if (p.n_summed < n) {
    sum_my_part(request, p.n_summed++);
    note_progress();
  }
  if (p.n_started < n && p.n_started - p.n_finished < Topology::kExchangesInFlight &&
      all_reached(&ChannelProgress::reduced, p.reduced_before + p.n_started + 1)) {
    start_sum(request, p.n_started++);
    note_progress();
  }
  for (std::size_t i = p.n_finished; i < p.n_started; ++i) {
    if (exchanges_[i % Topology::kExchangesInFlight].advance()) note_progress();
  }
  while (p.n_finished < p.n_started && exchanges_[p.n_finished % Topology::kExchangesInFlight].is_idle()) {
    ++p.n_finished;
    my_progress().gathered.fetch_add(1);
    if (topology_.local_size() > 1) table_->wake_others();
  }
  return p.n_finished == n;
}

}  // namespace lockstep::comm
