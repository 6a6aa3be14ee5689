#include "comm/single.h"

#include <unistd.h>

#include <array>
#include <cstdio>

#include "comm/regions.h"
#include "lockstep/error.h"

namespace lockstep::comm {
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
  return allocate_aligned(backend_, size_bytes, purpose);
}

void SingleCommunicator::all_reduce_async(const Slice&, const Event& ready, Event& done, const std::string&) {
  stream_->wait(ready);
  done.record(*stream_);
}

}  // namespace lockstep::comm
