#include "comm/single_rank.h"

#include <cstdio>

#include "base/process.h"
#include "comm/communication_thread.h"
#include "comm/communicator_memory.h"
#include "lockstep/error.h"

namespace lockstep::comm {

std::string host_name() {
  const std::string name = lockstep::host_name();
  return name.empty() ? "unknown" : name.substr(0, name.find('.'));
}

SingleRankWorld::SingleRankWorld() : host_(host_name()) {}
SingleRankWorld::~SingleRankWorld() = default;

CommunicationThread& SingleRankWorld::thread() {
  if (!thread_) thread_ = std::make_unique<CommunicationThread>(nullptr, nullptr, Launch{}, 0);
  return *thread_;
}

std::optional<Error> SingleRankWorld::cause_of_loss() { return thread_ ? thread_->failure() : std::nullopt; }

void SingleRankWorld::broadcast(std::span<std::byte>, int root) {
  require(root == 0, ErrorCode::internal, "broadcast from rank {} of 1", root);
}

std::unique_ptr<Memory> SingleRankWorld::share_in_node(std::size_t size_bytes, const std::string&) {
  class Private final : public Memory {
   public:
    explicit Private(std::size_t size_bytes) : bytes_(size_bytes) {}
    void* data() const override { return bytes_.data(); }
    std::size_t size_bytes() const override { return bytes_.size(); }

   private:
    mutable std::vector<std::byte> bytes_;
  };
  return std::make_unique<Private>(size_bytes);
}

void SingleRankWorld::abort(int exit_status) {
  std::fflush(nullptr);
  _exit(exit_status);
}

std::unique_ptr<Memory> SingleRankCommunicator::allocate(std::size_t size_bytes, const std::string& purpose) {
  return allocate_aligned(backend_, size_bytes, purpose);
}

void SingleRankCommunicator::exchange_async(const Exchange&, const Event& ready, Event& done, const std::string&) {
  stream_->wait(ready);
  done.record(*stream_);
}

}  // namespace lockstep::comm
