#include "comm/communicator_memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/outcome.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kAlignment = 4096;

std::size_t bytes_to_aligned(const void* address) {
  return (kAlignment - reinterpret_cast<std::uintptr_t>(address) % kAlignment) % kAlignment;
}

/// The aligned part of a larger allocation.
class AlignedMemory final : public Memory {
 public:
  AlignedMemory(std::unique_ptr<Memory> whole, std::size_t size_bytes)
      : whole_(std::move(whole)),
        data_(static_cast<std::byte*>(whole_->data()) + bytes_to_aligned(whole_->data())),
        size_bytes_(size_bytes) {}
  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::unique_ptr<Memory> whole_;
  void* data_;
  std::size_t size_bytes_;
};

}  // namespace

std::unique_ptr<Memory> allocate_aligned(Backend& backend, std::size_t size_bytes, const std::string& purpose) {
  std::unique_ptr<Memory> memory = backend.allocate(size_bytes, purpose);
  if (bytes_to_aligned(memory->data()) == 0) return memory;
  memory.reset();  // some backends align small allocations less strictly: allocate one more page
  return std::make_unique<AlignedMemory>(backend.allocate(size_bytes + kAlignment, purpose), size_bytes);
}

bool contains(const Memory& memory, const Slice& slice) {
  const auto* begin = static_cast<const std::byte*>(memory.data());
  const auto* data = static_cast<const std::byte*>(slice.data);
  return data >= begin && data + slice.n_elements * size_bytes(slice.dtype) <= begin + memory.size_bytes();
}

void check_exchange(const Exchange& exchange, int n_ranks, const std::string& label) {
  const Slice& slice = exchange.slice;
  require(exchange.collective == Collective::all_gather || slice.dtype == DType::fp32 || slice.dtype == DType::fp64 ||
              slice.dtype == DType::bf16,
          ErrorCode::internal, "'{}' is {}, but ranks can sum only fp32, fp64 and bf16", label, name(slice.dtype));
  require(exchange.collective == Collective::all_reduce || slice.n_elements % static_cast<std::size_t>(n_ranks) == 0,
          ErrorCode::internal, "'{}': {} elements are not equal shards of {} ranks", label, slice.n_elements, n_ranks);
  const SumRound& round = exchange.round;
  require(!round.exists() || (std::ssize(round.merges) == n_ranks && round.n_after() > 0 && slice.wire == DType::fp32 &&
                              exchange.collective != Collective::all_gather),
          ErrorCode::internal, "'{}' is not a round of a sum over {} ranks", label, n_ranks);
}

void check_wire(const Slice& slice, DType wire, const std::string& label) {
  require(slice.wire == DType::fp32 || slice.wire == wire, ErrorCode::internal,
          "'{}' is to be sent as {}, but the communicator was made for {}", label, name(slice.wire), name(wire));
}

HostEvent& host_event(Event& done, const std::string& label) {
  auto* event = dynamic_cast<HostEvent*>(&done);
  require(event != nullptr, ErrorCode::internal, "'{}': `done` is not an event of this communicator", label);
  return *event;
}

class CommunicatorMemory::Region final : public Memory {
 public:
  Region(std::shared_ptr<std::vector<const Memory*>> regions, std::unique_ptr<Memory> memory)
      : regions_(std::move(regions)), memory_(std::move(memory)) {
    regions_->push_back(this);
  }
  ~Region() override {
    attached_.reset();
    std::erase(*regions_, this);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void* data() const override { return memory_->data(); }
  std::size_t size_bytes() const override { return memory_->size_bytes(); }
  void attach(std::shared_ptr<void> attached) { attached_ = std::move(attached); }

 private:
  std::shared_ptr<std::vector<const Memory*>> regions_;
  std::unique_ptr<Memory> memory_;
  std::shared_ptr<void> attached_;
};

std::unique_ptr<Memory> CommunicatorMemory::allocate(World& world, Backend& backend, std::size_t size_bytes,
                                                     const std::string& purpose, const Attach& attach,
                                                     std::unique_ptr<Memory> memory) {
  std::unique_ptr<Region> region;
  const std::vector<std::string> sizes = all_agree(world, [&]() -> std::string {
    if (!memory) memory = allocate_aligned(backend, size_bytes, purpose);
    region = std::make_unique<Region>(regions_, std::move(memory));
    return std::to_string(size_bytes);
  });
  for (std::size_t r = 0; r < sizes.size(); ++r)
    require(sizes[r] == sizes[0], ErrorCode::internal, "rank 0 allocates {} bytes for {}, but rank {} allocates {}",
            sizes[0], purpose, r, sizes[r]);
  if (attach) all_agree(world, [&] { region->attach(attach(*region)); });
  return region;
}

void CommunicatorMemory::check_contains(const Slice& slice, const std::string& label) const {
  require(std::ranges::any_of(*regions_, [&](const Memory* region) { return contains(*region, slice); }),
          ErrorCode::internal, "'{}' is outside the memory of the communicator", label);
}

}  // namespace lockstep::comm
