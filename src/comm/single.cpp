#include "comm/single.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

/// Pages of the system: zero-filled, 4096-byte aligned, and given back at once.
class Pages final : public Memory {
 public:
  Pages(std::size_t size_bytes, const std::string& purpose)
      : size_bytes_(size_bytes), mapped_bytes_(std::max<std::size_t>(size_bytes, 1)) {
    memory_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory_ != MAP_FAILED, ErrorCode::out_of_memory, "{} bytes for {} cannot be had: {}", size_bytes, purpose,
            std::strerror(errno));
  }
  ~Pages() override { ::munmap(memory_, mapped_bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void* data() const override { return memory_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::size_t size_bytes_;
  std::size_t mapped_bytes_;
  void* memory_;
};

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  const std::string text = name.data();
  return text.substr(0, text.find('.'));
}

SingleWorld::SingleWorld() : host_(host_name()) {}

void SingleWorld::broadcast(std::span<std::byte>, int root) {
  require(root == 0, ErrorCode::internal, "broadcast from rank {} of 1", root);
}

void SingleWorld::abort(int exit_status) {
  std::fflush(nullptr);
  _exit(exit_status);
}

std::unique_ptr<Memory> SingleCommunicator::allocate(std::size_t size_bytes, const std::string& purpose) {
  return std::make_unique<Pages>(size_bytes, purpose);
}

void SingleCommunicator::all_reduce_async(const Slice&, const Event& ready, Event& done, const std::string& label) {
  HostEvent* host_done = dynamic_cast<HostEvent*>(&done);
  require(host_done != nullptr, ErrorCode::internal, "'{}': `done` is not an event of this communicator", label);
  host_done->begin();
  ready.synchronize();
  host_done->complete();
}

}  // namespace lockstep::comm
