#include "comm/control_channel.h"

#include <algorithm>
#include <limits>

#include "lockstep/error.h"
#include "lockstep/trace.h"

namespace lockstep::comm {
namespace {
constexpr std::size_t kBroadcastChunkBytes = std::size_t{64} << 20;  // MPI's counts are ints
}

void CallChannel::post_and_wait(const std::function<void()>& post) {
  thread_.throw_if_failed();
  std::unique_lock lock(mutex_);
  require(!has_call(), ErrorCode::internal, "two threads of a rank are in calls of World at the same time");
  exception_ = nullptr;
  post();
  has_call_.store(true);
  thread_.wake();
  done_.wait(lock, [this] { return !has_call(); });
  if (exception_) std::rethrow_exception(exception_);
}

void CallChannel::finish(const std::exception_ptr& exception) {
  const std::lock_guard lock(mutex_);
  exception_ = exception;
  has_call_.store(false);
  done_.notify_all();
}

Channel::Listener CallChannel::cancel(const std::exception_ptr& reason) {
  if (!has_call()) return has_notified_caller_ ? Listener::caller : Listener::nobody;
  finish(reason);
  has_notified_caller_ = true;
  return Listener::caller;
}

ControlChannel::ControlChannel(CommunicationThread& thread) : CallChannel(thread) {
  const auto n = static_cast<std::size_t>(thread.ranks().size());
  headers_.resize(n);
  sizes_bytes_.resize(n);
  begins_bytes_.resize(n);
  coroutine_ = run();
  thread_.add(*this);
}

ControlChannel::~ControlChannel() { thread_.remove(*this); }

void ControlChannel::broadcast(std::span<std::byte> data, int root, std::string_view label) {
  require(root >= 0 && root < thread_.ranks().size(), ErrorCode::internal, "broadcast from rank {} of {}", root,
          thread_.ranks().size());
  make({.is_broadcast = true, .label = label, .data = data, .root = root});
}

std::vector<std::string> ControlChannel::all_gather(std::string_view mine, std::string_view label) {
  std::vector<std::string> all(headers_.size());
  make({.label = label, .mine = mine, .all = &all});
  return all;
}

void ControlChannel::make(const Call& call) {
  const trace::Span span(trace::Kind::wait, call.label);
  post_and_wait([&] { call_ = call; });
}

/// All ranks see the same headers, so either all ranks throw or none.
void ControlChannel::check_headers(const Call& call) const {
  for (std::size_t i = 0; i < headers_.size(); ++i) {
    const Header& theirs = headers_[i];
    const int rank = static_cast<int>(i);
    require(std::string_view(theirs.label) == std::string_view(headers_[0].label), ErrorCode::comm_rank_lost,
            "{} is in '{}' while {} is in '{}': the ranks no longer make the same calls (one may have failed without "
            "reporting it)",
            thread_.ranks().name(0), headers_[0].label, thread_.ranks().name(rank), theirs.label);
    require(!call.is_broadcast || (theirs.root == headers_[0].root && theirs.size_bytes == headers_[0].size_bytes),
            ErrorCode::internal, "broadcast of {} bytes from rank {} on {}, but of {} bytes from rank {} on {}",
            headers_[0].size_bytes, headers_[0].root, thread_.ranks().name(0), theirs.size_bytes, theirs.root,
            thread_.ranks().name(rank));
  }
}

std::size_t ControlChannel::place_results() {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < headers_.size(); ++i) {
    begins_bytes_[i] = static_cast<int>(total);
    sizes_bytes_[i] = static_cast<int>(headers_[i].size_bytes);
    total += headers_[i].size_bytes;
    require(total <= std::numeric_limits<int>::max(), ErrorCode::internal, "all_gather of more than 2 GiB");
  }
  return static_cast<std::size_t>(total);
}

Coroutine ControlChannel::run() {
  MpiCalls& mpi = thread_.mpi();
  const auto is_done = [this, &mpi] { return mpi.test(request_); };
  while (true) {
    co_await until([this] { return has_call(); }, WakeOn::doorbell);
    const Call& call = call_;  // whose poster waits until it is finished
    enter(call.label);
    header_ = {static_cast<std::int64_t>(call.is_broadcast ? call.data.size() : call.mine.size()), call.root, {}};
    call.label.copy(header_.label, sizeof(header_.label) - 1);
    mpi.all_gather(request_, &header_, sizeof(Header), headers_.data());
    co_await until(is_done, WakeOn::poll);
    check_headers(call);
    if (call.is_broadcast) {
      for (std::size_t begin = 0; begin < call.data.size(); begin += kBroadcastChunkBytes) {
        const std::size_t length = std::min(kBroadcastChunkBytes, call.data.size() - begin);
        mpi.broadcast(request_, call.data.data() + begin, length, call.root);
        co_await until(is_done, WakeOn::poll);
      }
    } else if (const std::size_t total = place_results(); total > 0) {
      received_.resize(total);
      mpi.all_gather(request_, call.mine.data(), sizes_bytes_, begins_bytes_, received_.data());
      co_await until(is_done, WakeOn::poll);
      for (std::size_t i = 0; i < headers_.size(); ++i) {
        (*call.all)[i].assign(received_, static_cast<std::size_t>(begins_bytes_[i]),
                              static_cast<std::size_t>(sizes_bytes_[i]));
      }
    }
    leave();
    finish();
  }
}

}  // namespace lockstep::comm
