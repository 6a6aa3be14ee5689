#include "comm/host_communicator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/outcome.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kWorkBytes = std::size_t{1} << 20;  // summed before other lanes have their turn
constexpr std::size_t kLargestRegionBytes = std::size_t{1} << 46;

}  // namespace

/// One rank's view of an allocation: the regions of all local ranks, its own in the middle.
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
      // An exception has ended the step, and soon the process: until then nobody may write to memory that is gone.
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

  void take_private(const std::string& purpose) {
    void* memory = ::mmap(nullptr, stride_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, ErrorCode::out_of_memory, "{} bytes for {} cannot be had: {}", size_bytes_, purpose,
            std::strerror(errno));
    private_ = static_cast<std::byte*>(memory);
  }

 private:
  std::shared_ptr<Registry> registry_;
  int local_rank_;
  std::size_t size_bytes_;
  std::size_t stride_bytes_;
  SharedSegment segment_;
  std::byte* private_ = nullptr;  // a rank that shares with nobody
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
  routine_ = topology_.n_nodes() == 1 ? run_on_one_node() : run_between_nodes();
  thread_.add(*this);
  if (topology_.n_nodes() == 1 || topology_.local_rank != 0) return;
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
  // Receives of an unfinished exchange may still be filled: their buffers are left to the process.
  if (registry_->was_left_busy) new std::vector<Exchange>(std::move(exchanges_));
}

std::string HostCommunicator::describe() const {
  const int n_nodes = topology_.n_nodes();
  const std::string order = fmt::format(
      "{}{}", topology_.is_tree ? ", summed by a fixed tree" : "",
      n_nodes > 1 && topology_.wire != DType::fp32 ? fmt::format(", gradients in {}", name(topology_.wire)) : "");
  if (n_nodes == 1) return fmt::format("shared memory, {} ranks on 1 node{}", size(), order);
  if (n_nodes == size()) return fmt::format("MPI, {} ranks{}", size(), order);
  return fmt::format("shared memory inside {} nodes, MPI between them, {} ranks{}", n_nodes, size(), order);
}

int HostCommunicator::rank() const { return world_.rank(); }
int HostCommunicator::size() const { return world_.size(); }

std::unique_ptr<Memory> HostCommunicator::allocate(std::size_t size_bytes, const std::string& purpose) {
  return map_region(size_bytes, purpose);
}

std::unique_ptr<HostCommunicator::Region> HostCommunicator::map_region(std::size_t size_bytes,
                                                                       const std::string& purpose) {
  const int local_size = topology_.local_size();
  const bool is_leader = topology_.local_rank == 0;
  const auto agree = [this](const auto& step) {
    return all_agree([this](const std::string& text) { return world_.all_gather(text); },
                     thread_.ranks().name(world_.rank()) + ": ", step);
  };
  std::unique_ptr<Region> region;
  const std::vector<std::string> paths = agree([&]() -> std::string {
    require(size_bytes < kLargestRegionBytes, ErrorCode::comm_shared_memory,
            "{} bytes a rank are wanted for {}: no machine has them", size_bytes, purpose);
    region = std::make_unique<Region>(registry_, topology_.local_rank, size_bytes);
    if (local_size == 1) {
      region->take_private(purpose);
      return std::to_string(size_bytes);
    }
    return std::to_string(size_bytes) + (is_leader ? region->create(local_size, purpose) : "");
  });
  const std::string wanted = std::to_string(size_bytes);
  const std::string& of_leader = paths[static_cast<std::size_t>(leaders_[static_cast<std::size_t>(topology_.node)])];
  agree([&]() -> std::string {
    for (int r = 0; r < size(); ++r) {
      const std::string theirs =
          paths[static_cast<std::size_t>(r)].substr(0, paths[static_cast<std::size_t>(r)].find('/'));
      require(theirs == wanted, ErrorCode::internal, "{} bytes for {} here, but {} on rank {}", wanted, purpose, theirs,
              r);
    }
    if (local_size > 1) region->open(of_leader.substr(wanted.size()), local_size, purpose);
    return "";
  });
  region->unlink();
  return region;
}

void HostCommunicator::all_reduce_async(const Slice& slice, const Event& ready, Event& done, const std::string& label) {
  thread_.throw_if_failed();
  const std::size_t slice_bytes = slice.n_elements * size_bytes(slice.dtype);
  const std::byte* data = static_cast<const std::byte*>(slice.data);
  const auto region = std::find_if(registry_->regions.begin(), registry_->regions.end(), [&](const Region* r) {
    const std::byte* begin = static_cast<const std::byte*>(r->data());
    return data >= begin && data + slice_bytes <= begin + r->size_bytes();
  });
  require(region != registry_->regions.end(), ErrorCode::internal, "'{}' is not in memory of the communicator", label);
  require(slice.dtype == DType::fp32 || slice.dtype == DType::fp64, ErrorCode::internal,
          "'{}' is {}: sums over ranks are of fp32 or fp64", label, name(slice.dtype));
  require(slice.wire == DType::fp32 || slice.wire == topology_.wire, ErrorCode::internal,
          "'{}' is to be sent as {}, the communicator was made for {}", label, name(slice.wire), name(topology_.wire));
  HostEvent* host_done = dynamic_cast<HostEvent*>(&done);
  require(host_done != nullptr, ErrorCode::internal, "'{}': `done` is not an event of this communicator", label);

  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  while (tail - head_.load(std::memory_order_acquire) == kQueueLength) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    thread_.throw_if_failed();
  }
  Request& request = queue_[tail % kQueueLength];
  const auto offset = static_cast<std::size_t>(data - static_cast<const std::byte*>((*region)->data()));
  request.slice_of_leader = (*region)->first() + offset;
  request.stride_bytes = (*region)->stride_bytes();
  request.n_elements = slice.n_elements;
  request.dtype = slice.dtype;
  request.wire = slice.wire;
  request.ready = &ready;
  request.done = host_done;
  const std::size_t length = std::min(label.size(), kLabelBytes - 1);
  std::memcpy(request.label, label.data(), length);
  request.label[length] = '\0';
  host_done->begin();
  tail_.store(tail + 1, std::memory_order_release);
  thread_.ring();
}

Lane::Told HostCommunicator::give_up(const std::exception_ptr&) { return has_request() ? Told::event : Told::nobody; }

LaneCell& HostCommunicator::cell(int local_rank) const {
  // With comm.backend=mpi a rank is alone in its topology, though not on its board.
  RankCell& of_rank = topology_.local_size() == 1 ? board_->mine() : board_->cell(local_rank);
  return of_rank.lanes[number()];
}

bool HostCommunicator::all_have(std::atomic<std::uint64_t> LaneCell::*counter, std::uint64_t wanted) const {
  for (int r = 0; r < topology_.local_size(); ++r) {
    if ((cell(r).*counter).load(std::memory_order_acquire) < wanted) return false;
  }
  return true;
}

void HostCommunicator::come_to(const Request& request) {
  enter(request.label);
  board_->ring_others();
}

/// The first part of an all-reduce: this rank has come to it, and waited for the others.
void HostCommunicator::note_all_came() const {
  if (trace_row_ != nullptr)
    trace::record(trace_row_, trace::Kind::wait, "other ranks", waiting().since, trace::Clock::now());
}

void HostCommunicator::finish(Request& request) {
  if (trace_row_ != nullptr)
    trace::record(trace_row_, trace::Kind::all_reduce, request.label, waiting().since, trace::Clock::now());
  leave();
  HostEvent* done = request.done;
  head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  done->complete();
}

void HostCommunicator::sum_local(const Request& request, std::size_t begin, std::size_t n_elements, int n_targets) {
  for (int r = 0; r < topology_.local_size(); ++r) {
    sources_[static_cast<std::size_t>(r)] = targets_[static_cast<std::size_t>(r)] = request.at(r, begin);
  }
  sum(sources_, std::span(targets_).first(static_cast<std::size_t>(n_targets)), n_elements, request.dtype,
      topology_.order_in_node);
}

Routine HostCommunicator::run_on_one_node() {
  while (true) {
    co_await until([this] { return has_request(); }, Wake::bell);
    Request& request = front();
    co_await until([&request] { return request.ready->is_done(); }, Wake::poll);
    come_to(request);
    const std::uint64_t sequence = waiting().sequence;
    co_await until([this, sequence] { return all_have(&LaneCell::begun, sequence); }, Wake::bell);
    note_all_came();

    const std::size_t element_bytes = size_bytes(request.dtype);
    const Part part = part_of(request.n_elements, element_bytes, topology_.local_size(), topology_.local_rank);
    const std::size_t work = kWorkBytes / element_bytes;
    for (std::size_t at = 0; at < part.n_elements; at += work) {
      sum_local(request, part.begin + at, std::min(work, part.n_elements - at), topology_.local_size());
      co_await yield();
    }
    const std::uint64_t reduced = mine().reduced.fetch_add(1) + 1;
    board_->ring_others();
    co_await until([this, reduced] { return all_have(&LaneCell::reduced, reduced); }, Wake::bell);
    finish(request);
  }
}

std::size_t HostCommunicator::n_chunks(const Request& request) const {
  return (request.n_elements * size_bytes(request.dtype) + chunk_bytes_ - 1) / chunk_bytes_;
}

Part HostCommunicator::chunk(const Request& request, std::size_t index) const {
  const std::size_t length = chunk_bytes_ / size_bytes(request.dtype);
  return {index * length, std::min(length, request.n_elements - index * length)};
}

void HostCommunicator::sum_my_part_of_chunk(const Request& request, std::size_t index) {
  if (topology_.local_size() > 1) {
    const Part c = chunk(request, index);
    const Part part = part_of(c.n_elements, size_bytes(request.dtype), topology_.local_size(), topology_.local_rank);
    sum_local(request, c.begin + part.begin, part.n_elements, 1);
  }
  mine().reduced.fetch_add(1);
}

Routine HostCommunicator::run_between_nodes() {
  const bool is_leader = topology_.local_rank == 0;
  while (true) {
    co_await until([this] { return has_request(); }, Wake::bell);
    Request& request = front();
    co_await until([&request] { return request.ready->is_done(); }, Wake::poll);
    come_to(request);
    const std::uint64_t sequence = waiting().sequence;
    co_await until([this, sequence] { return all_have(&LaneCell::begun, sequence); }, Wake::bell);
    note_all_came();

    const std::size_t chunks = n_chunks(request);
    if (is_leader) {
      progress_ = {0, 0, 0, mine().reduced.load()};
      co_await until([this, &request] { return lead(request); }, Wake::poll);
    } else {
      for (std::size_t c = 0; c < chunks; ++c) {
        sum_my_part_of_chunk(request, c);
        board_->ring(0);
        co_await yield();
      }
      for (std::size_t c = 0; c < chunks; ++c) {
        const std::uint64_t wanted = mine().gathered.load() + 1;
        co_await until([this, wanted] { return cell(0).gathered.load(std::memory_order_acquire) >= wanted; },
                       Wake::bell);
        const Part part = chunk(request, c);
        std::memcpy(request.at(topology_.local_rank, part.begin), request.at(0, part.begin),
                    part.n_elements * size_bytes(request.dtype));
        mine().gathered.store(wanted);
        co_await yield();
      }
    }
    const std::uint64_t copied = mine().copied.fetch_add(1) + 1;
    if (is_leader) {
      // Others read the leader's region until they have copied: before that its owner may not write there again.
      co_await until([this, copied] { return all_have(&LaneCell::copied, copied); }, Wake::bell);
    } else {
      board_->ring(0);
    }
    finish(request);
  }
}

bool HostCommunicator::lead(const Request& request) {
  const std::size_t chunks = n_chunks(request);
  auto& p = progress_;
  if (p.summed < chunks) {
    sum_my_part_of_chunk(request, p.summed++);
    note_progress();
  }
  if (p.started < chunks && p.started - p.finished < Topology::kExchangesInFlight &&
      all_have(&LaneCell::reduced, p.reduced_before + p.started + 1)) {
    const Part part = chunk(request, p.started);
    exchanges_[p.started % Topology::kExchangesInFlight].start(request.at(0, part.begin), part.n_elements,
                                                               request.dtype, request.wire);
    ++p.started;
    note_progress();
  }
  for (std::size_t i = p.finished; i < p.started; ++i) {
    if (exchanges_[i % Topology::kExchangesInFlight].advance()) note_progress();
  }
  while (p.finished < p.started && exchanges_[p.finished % Topology::kExchangesInFlight].is_idle()) {
    ++p.finished;
    mine().gathered.fetch_add(1);
    if (topology_.local_size() > 1) board_->ring_others();
  }
  return p.finished == chunks;
}

}  // namespace lockstep::comm
