#include "comm/regions.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/outcome.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kAlignment = 4096;

std::size_t bytes_to_aligned(const void* place) {
  return (kAlignment - reinterpret_cast<std::uintptr_t>(place) % kAlignment) % kAlignment;
}

/// The aligned part of a greater one.
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
  memory.reset();  // small ones of some backends: a page more
  return std::make_unique<AlignedMemory>(backend.allocate(size_bytes + kAlignment, purpose), size_bytes);
}

class Regions::Region final : public Memory {
 public:
  Region(std::shared_ptr<std::vector<const Memory*>> all, std::unique_ptr<Memory> memory)
      : all_(std::move(all)), memory_(std::move(memory)) {
    all_->push_back(this);
  }
  ~Region() override {
    kept_.reset();
    std::erase(*all_, this);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void* data() const override { return memory_->data(); }
  std::size_t size_bytes() const override { return memory_->size_bytes(); }
  void keep(std::shared_ptr<void> kept) { kept_ = std::move(kept); }

 private:
  std::shared_ptr<std::vector<const Memory*>> all_;
  std::unique_ptr<Memory> memory_;
  std::shared_ptr<void> kept_;
};

std::unique_ptr<Memory> Regions::allocate(World& world, Backend& backend, std::size_t size_bytes,
                                          const std::string& purpose,
                                          const std::function<std::shared_ptr<void>(const Memory&)>& keep) {
  std::unique_ptr<Region> region;
  const std::vector<std::string> sizes =
      all_agree([&](const std::string& text) { return world.all_gather(text); }, name_in_messages(world),
                [&]() -> std::string {
                  region = std::make_unique<Region>(all_, allocate_aligned(backend, size_bytes, purpose));
                  if (keep) region->keep(keep(*region));
                  return std::to_string(size_bytes);
                });
  for (std::size_t r = 0; r < sizes.size(); ++r)
    require(sizes[r] == sizes[0], ErrorCode::internal, "{} bytes for {} on rank 0, but {} on rank {}", sizes[0],
            purpose, sizes[r], r);
  return region;
}

void Regions::check(const Slice& slice, const std::string& label) const {
  const std::size_t slice_bytes = slice.n_elements * size_bytes(slice.dtype);
  const auto* data = static_cast<const std::byte*>(slice.data);
  const bool is_inside = std::ranges::any_of(*all_, [&](const Memory* region) {
    const auto* begin = static_cast<const std::byte*>(region->data());
    return data >= begin && data + slice_bytes <= begin + region->size_bytes();
  });
  require(is_inside, ErrorCode::internal, "'{}' is not in memory of the communicator", label);
  require(slice.dtype == DType::fp32 || slice.dtype == DType::fp64, ErrorCode::internal,
          "'{}' is {}: sums over ranks are of fp32 or fp64", label, name(slice.dtype));
}

}  // namespace lockstep::comm
