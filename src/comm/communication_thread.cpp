#include "comm/communication_thread.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <optional>

#include "base/failure.h"
#include "base/outcome.h"
#include "base/signals.h"
#include "comm/single_rank.h"
#include "comm/watchdog.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::comm {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kShortestPause = 20us;
constexpr auto kLongestPause = 200us;
constexpr auto kCheckInterval = 100ms;  // for the liveness of peers and the queries of other nodes
constexpr auto kShutdownTimeout = 10s;  // for main, after it was notified that the job is lost
constexpr auto kAbortTimeout = 5s;      // for MPI_Abort, which may hang when peers are gone

/// Ends this process even if MPI hangs.
void end_process_soon(int exit_status) {
  std::thread([exit_status] {
    std::this_thread::sleep_for(kAbortTimeout);
    _exit(exit_status);
  }).detach();
}

/// LOCKSTEP_RANKS_PER_NODE splits a node into simulated nodes, so that tests need only one machine.
int simulated_ranks_per_node() {
  const char* text = std::getenv("LOCKSTEP_RANKS_PER_NODE");
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

}  // namespace

void Channel::enter(std::string_view label) {
  enter(label, table_->mine().channels[number_].begun.load() + 1 - n_before_);
}

void Channel::enter(std::string_view label, std::uint64_t number) {
  ChannelProgress& progress = table_->mine().channels[number_];
  const std::string_view kept = copy_label(label, label_);
  copy_label(kept, progress.label);
  waiting_ = {steady_clock::now(), true, n_before_ + number, kept};
  progress.begun.store(waiting_.sequence);
}

void Channel::set_n_collectives(std::uint64_t number) {
  table_->mine().channels[number_].begun.store(n_before_ + number);
}

CommunicationThread::CommunicationThread(int* argc, char*** argv, const Launch& launch, double watchdog_seconds) {
  std::promise<void> started;
  std::future<void> result = started.get_future();
  std::optional<SignalsBlocked> blocked(std::in_place);  // inherited by the threads that MPI starts
  thread_ = std::thread([this, argc, argv, &launch, watchdog_seconds, &started] {
    pthread_setname_np(pthread_self(), "communication");
    ::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us would more than double the shortest pause
    try {
      start(argc, argv, launch, watchdog_seconds);
    } catch (...) {
      started.set_exception(std::current_exception());
      return;  // without MPI_Finalize, which would wait for ranks that have not failed
    }
    started.set_value();
    run();
    watchdog_.reset();
    mpi_.reset();
  });
  blocked.reset();
  try {
    result.get();
  } catch (...) {
    thread_.join();
    mpi_.release();  // NOLINT: no MPI_Finalize, see above; the process is about to end
    throw;
  }
}

CommunicationThread::~CommunicationThread() {
  table_->mine().has_left.store(1);
  stop_.store(true);
  wake();
  thread_.join();
}

void CommunicationThread::start(int* argc, char*** argv, const Launch& launch, double watchdog_seconds) {
  if (launch.alone) {
    ranks_ = {.rank = 0, .rows = {{.host = host_name()}}, .nodes = {{0}}};
    table_ = std::make_unique<ProgressTable>(ProgressTable::create(1));
    table_->unlink();
    return;
  }
  mpi_ = std::make_unique<MpiCalls>(argc, argv);
  check_world_size(launch, mpi_->size());
  make_rank_table();
  log::configure(ranks_.rank, ranks_.size(), ranks_.mine().host, false);
  make_progress_table();
  watchdog_ = std::make_unique<Watchdog>(*table_, *mpi_, ranks_, watchdog_seconds);
}

void CommunicationThread::make_rank_table() {
  const int leader = mpi_->node_leader(simulated_ranks_per_node());
  const std::vector<std::string> rows = mpi_->all_gather(fmt::format("{} {}", leader, host_name()));
  ranks_.rank = mpi_->rank();
  std::vector<int> node_of_leader(rows.size(), -1);
  for (int r = 0; r < mpi_->size(); ++r) {
    const std::string& row = rows[static_cast<std::size_t>(r)];
    const std::size_t space = row.find(' ');
    int& node = node_of_leader[std::stoul(row.substr(0, space))];
    if (node < 0) {
      node = ranks_.n_nodes();
      ranks_.nodes.emplace_back();
    }
    std::vector<int>& of_node = ranks_.nodes[static_cast<std::size_t>(node)];
    ranks_.rows.push_back({row.substr(space + 1), node, static_cast<int>(of_node.size())});
    of_node.push_back(r);
  }
}

void CommunicationThread::make_progress_table() {
  const auto agree = [this](const auto& step) {
    return all_agree([this](const std::string& text) { return mpi_->all_gather(text); },
                     ranks_.name(ranks_.rank) + ": ", step);
  };
  const int local_size = static_cast<int>(ranks_.my_node().size());
  const std::vector<std::string> paths = agree([&]() -> std::string {
    if (!ranks_.is_leader()) return "";
    table_ = std::make_unique<ProgressTable>(ProgressTable::create(local_size));
    return table_->path();
  });
  agree([&]() -> std::string {
    if (ranks_.is_leader()) return "";
    const std::string& path = paths[static_cast<std::size_t>(ranks_.my_node()[0])];
    table_ = std::make_unique<ProgressTable>(ProgressTable::open(path, ranks_.mine().local_rank, local_size));
    return "";
  });
  table_->unlink();
}

void CommunicationThread::add(Channel& channel) {
  const std::lock_guard lock(channels_mutex_);
  int number = 0;
  while (std::any_of(channels_.begin(), channels_.end(), [&](const Channel* c) { return c->number_ == number; }))
    ++number;
  require(number < kMaxChannels, ErrorCode::internal, "more than {} communicators at the same time", kMaxChannels - 1);
  channel.number_ = number;
  channel.table_ = table_.get();
  channel.n_before_ = table_->mine().channels[number].begun.load();
  channels_.push_back(&channel);
}

void CommunicationThread::remove(Channel& channel) {
  const std::lock_guard lock(channels_mutex_);
  std::erase(channels_, &channel);
}

void CommunicationThread::run() {
  while (!stop_.load()) {
    if (abort_status_.load() != kNoAbort) MpiCalls::abort(abort_status_.load());
    const std::uint32_t seen = table_->doorbell();
    bool must_poll = false;
    bool progressed = false;
    try {
      progressed = step_channels(must_poll);
      if (steady_clock::now() >= next_check_) check_health();
    } catch (...) {
      fail_job(std::current_exception());
    }
    if (progressed) {
      pause_ = kShortestPause;
    } else {
      sleep(seen, must_poll);
    }
  }
}

bool CommunicationThread::step_channels(bool& must_poll) {
  const std::lock_guard lock(channels_mutex_);
  if (has_failed_.load()) {
    cancel_channels();  // including requests that were posted after the failure
    return false;
  }
  bool progressed = false;
  for (Channel* channel : channels_) {
    channel->made_progress_ = false;
    const bool was_resumed = channel->coroutine_.step();
    progressed = progressed || was_resumed || channel->made_progress_;
    must_poll = must_poll || (!channel->coroutine_.is_done() && channel->coroutine_.wake_on() == WakeOn::poll);
  }
  return progressed;
}

void CommunicationThread::check_health() {
  next_check_ = steady_clock::now() + kCheckInterval;
  if (has_failed_.load()) {
    if (steady_clock::now() < end_by_) return;
    print_failure();
    note_failure();
    end_process_soon(kExitFailed);
    MpiCalls::abort(kExitFailed);
  }
  const std::lock_guard lock(channels_mutex_);
  for (Channel* channel : channels_) channel->check_device();
  if (watchdog_) watchdog_->check(channels_);
}

void CommunicationThread::sleep(std::uint32_t seen, bool must_poll) {
  const bool was_woken = table_->wait(seen, must_poll ? pause_ : std::chrono::nanoseconds(kCheckInterval));
  pause_ = was_woken ? kShortestPause : std::min<std::chrono::nanoseconds>(pause_ * 3 / 2, kLongestPause);
}

void CommunicationThread::fail_job(const std::exception_ptr& reason) {
  {
    const std::lock_guard lock(failure_mutex_);
    failure_ = reason;
  }
  end_by_ = steady_clock::now() + kShutdownTimeout;
  has_failed_.store(true);
  const std::lock_guard lock(channels_mutex_);
  cancel_channels();
}

void CommunicationThread::cancel_channels() {
  bool a_caller_waits = false, an_event_waits = false;
  // All of them, because a caller that throws cannot free memory until NCCL is aborted.
  for (Channel* channel : channels_) {
    const Channel::Listener listener = channel->cancel(failure_);
    a_caller_waits = a_caller_waits || listener == Channel::Listener::caller;
    an_event_waits = an_event_waits || listener == Channel::Listener::event;
  }
  if (a_caller_waits || !an_event_waits) return;  // a caller throws, now or with its next call, and main ends the job
  if (table_->is_first_to_report()) {
    print_failure();
    note_failure();
  }
  table_->mine().has_reported.store(1);
  end_process_soon(kExitFailed);
  std::fflush(nullptr);
  MpiCalls::abort(kExitFailed);
}

void CommunicationThread::print_failure() const {
  try {
    std::rethrow_exception(failure_);
  } catch (const std::exception& e) {
    print_error(ranks_.name(ranks_.rank), e);
  }
}

void CommunicationThread::set_watchdog_seconds(double seconds) { watchdog_->set_limit(seconds); }

void CommunicationThread::throw_if_failed() {
  if (!has_failed_.load()) return;
  const std::lock_guard lock(failure_mutex_);
  std::rethrow_exception(failure_);
}

std::optional<Error> CommunicationThread::failure() {
  try {
    throw_if_failed();
    return std::nullopt;
  } catch (const std::exception& error) {
    return as_error(error);
  }
}

void CommunicationThread::abort(int exit_status) {
  std::fflush(nullptr);
  table_->mine().has_reported.store(1);
  end_process_soon(exit_status);
  abort_status_.store(exit_status);
  wake();
  while (true) ::pause();
}

}  // namespace lockstep::comm
