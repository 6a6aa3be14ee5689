#include "comm/pair_channel.h"

#include <algorithm>

#include "base/clock.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

constexpr int kTag = 30000;  // above those of the communicators; MPI allows at least 32767
constexpr std::size_t kSmallBytes = std::size_t{1} << 20, kLargeBytes = std::size_t{32} << 20;
// If the small message takes longer than this, the large one is skipped: the link is so slow that the pauses between
// polls of MPI (at most 0.2 ms) do not matter, and a large message would take seconds.
constexpr double kLongEnough = 0.05;

}  // namespace

PairChannel::PairChannel(CommunicationThread& thread)
    : CallChannel(thread), outgoing_(kLargeBytes), incoming_(kLargeBytes) {
  coroutine_ = run();
  thread_.add(*this);
}

PairChannel::~PairChannel() { thread_.remove(*this); }

PairTime PairChannel::exchange(int peer) {
  require(peer < thread_.ranks().size() && peer != thread_.ranks().rank, ErrorCode::internal,
          "rank {} is to exchange messages with rank {} of {}", thread_.ranks().rank, peer, thread_.ranks().size());
  post_and_wait([&] {
    peer_ = peer;
    time_ = {};
  });
  return time_;
}

void PairChannel::start(const void* mine, void* theirs, std::size_t size_bytes) {
  thread_.mpi().receive(receive_, MpiGroup::data, peer_, kTag, theirs, size_bytes);
  thread_.mpi().send(send_, MpiGroup::data, peer_, kTag, mine, size_bytes);
}

Coroutine PairChannel::run() {
  const auto is_done = [this] {
    const bool is_received = thread_.mpi().test(receive_), is_sent = thread_.mpi().test(send_);
    return is_received && is_sent;
  };
  double mine = 0, theirs = 0;  // seconds
  while (true) {
    co_await until([this] { return has_call(); }, WakeOn::doorbell);
    enter("pairs of ranks");
    if (peer_ >= 0) {
      start(&mine, &theirs, sizeof(mine));
      co_await until(is_done, WakeOn::poll);
      for (const std::size_t size_bytes : {kSmallBytes, kLargeBytes}) {
        const Clock::time_point begin = Clock::now();
        start(outgoing_.data(), incoming_.data(), size_bytes);
        co_await until(is_done, WakeOn::poll);
        mine = seconds_since(begin);
        start(&mine, &theirs, sizeof(mine));  // so that both continue with the same time
        co_await until(is_done, WakeOn::poll);
        time_ = {.size_bytes = size_bytes, .seconds = std::max(mine, theirs)};
        if (time_.seconds > kLongEnough) break;
      }
    }
    leave();
    finish();
  }
}

}  // namespace lockstep::comm
