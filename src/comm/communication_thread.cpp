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
#include "base/signals_blocked.h"
#include "comm/single.h"
#include "comm/watch.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::comm {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kShortestPause = 20us;
constexpr auto kLongestPause = 200us;
constexpr auto kLookEvery = 100ms;  // liveness of peers, questions of other nodes
constexpr auto kTimeToEnd = 10s;    // for main, once it was told that the job is lost
constexpr auto kTimeToAbort = 5s;   // for MPI_Abort, which may hang when peers are gone

/// Whatever happens to MPI, this process ends.
void end_process_soon(int exit_status) {
  std::thread([exit_status] {
    std::this_thread::sleep_for(kTimeToAbort);
    _exit(exit_status);
  }).detach();
}

/// LOCKSTEP_RANKS_PER_NODE cuts a node into pretended ones, so that tests need one machine only.
int pretended_ranks_per_node() {
  const char* text = std::getenv("LOCKSTEP_RANKS_PER_NODE");
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

}  // namespace

void Lane::enter(std::string_view label) { enter(label, board_->mine().lanes[number_].begun.load() + 1 - n_before_); }

void Lane::enter(std::string_view label, std::uint64_t number) {
  LaneCell& cell = board_->mine().lanes[number_];
  const std::size_t length = std::min(label.size(), kLabelBytes - 1);
  std::memcpy(label_, label.data(), length);
  label_[length] = '\0';
  std::memcpy(cell.label, label_, length + 1);
  waiting_ = {steady_clock::now(), true, n_before_ + number, {label_, length}};
  cell.begun.store(waiting_.sequence);
}

void Lane::end_at(std::uint64_t number) { board_->mine().lanes[number_].begun.store(n_before_ + number); }

CommunicationThread::CommunicationThread(int* argc, char*** argv, const Launch& launch, double watchdog_seconds) {
  std::promise<void> started;
  std::future<void> result = started.get_future();
  std::optional<SignalsBlocked> blocked(std::in_place);  // MPI's own threads inherit this too
  thread_ = std::thread([this, argc, argv, &launch, watchdog_seconds, &started] {
    pthread_setname_np(pthread_self(), "communication");
    ::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us would more than double the shortest pause
    try {
      start(argc, argv, launch, watchdog_seconds);
    } catch (...) {
      started.set_exception(std::current_exception());
      return;  // without MPI_Finalize, which would wait for ranks that may be well
    }
    started.set_value();
    run();
    watch_.reset();
    mpi_.reset();
  });
  blocked.reset();
  try {
    result.get();
  } catch (...) {
    thread_.join();
    mpi_.release();  // NOLINT: see above; the process is about to end
    throw;
  }
}

CommunicationThread::~CommunicationThread() {
  board_->mine().has_left.store(1);
  stop_.store(true);
  ring();
  thread_.join();
}

void CommunicationThread::start(int* argc, char*** argv, const Launch& launch, double watchdog_seconds) {
  mpi_ = std::make_unique<MpiCalls>(argc, argv);
  check_world_size(launch, mpi_->size());
  make_tables();
  log::configure(ranks_.rank, ranks_.size(), ranks_.mine().host, false);
  make_board();
  watch_ = std::make_unique<Watch>(*board_, *mpi_, ranks_, watchdog_seconds);
}

void CommunicationThread::make_tables() {
  const int leader = mpi_->node_leader(pretended_ranks_per_node());
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

void CommunicationThread::make_board() {
  const auto agree = [this](const auto& step) {
    return all_agree([this](const std::string& text) { return mpi_->all_gather(text); },
                     ranks_.name(ranks_.rank) + ": ", step);
  };
  const int local_size = static_cast<int>(ranks_.my_node().size());
  const std::vector<std::string> paths = agree([&]() -> std::string {
    if (!ranks_.is_leader()) return "";
    board_ = std::make_unique<Board>(Board::create(local_size));
    return board_->path();
  });
  agree([&]() -> std::string {
    if (ranks_.is_leader()) return "";
    const std::string& path = paths[static_cast<std::size_t>(ranks_.my_node()[0])];
    board_ = std::make_unique<Board>(Board::open(path, ranks_.mine().local_rank, local_size));
    return "";
  });
  board_->unlink();
}

void CommunicationThread::add(Lane& lane) {
  const std::lock_guard lock(lanes_mutex_);
  int number = 0;
  while (std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane* l) { return l->number_ == number; })) ++number;
  require(number < kMaxLanes, ErrorCode::internal, "more than {} communicators at a time", kMaxLanes - 1);
  lane.number_ = number;
  lane.board_ = board_.get();
  lane.n_before_ = board_->mine().lanes[number].begun.load();
  lanes_.push_back(&lane);
}

void CommunicationThread::remove(Lane& lane) {
  const std::lock_guard lock(lanes_mutex_);
  std::erase(lanes_, &lane);
}

void CommunicationThread::run() {
  while (!stop_.load()) {
    if (abort_status_.load() != kNoAbort) MpiCalls::abort(abort_status_.load());
    const std::uint32_t seen = board_->doorbell();
    bool must_poll = false;
    bool moved = false;
    try {
      moved = step_lanes(must_poll);
      if (steady_clock::now() >= next_look_) look_around();
    } catch (...) {
      give_up(std::current_exception());
    }
    if (moved) {
      pause_ = kShortestPause;
    } else {
      sleep(seen, must_poll);
    }
  }
}

bool CommunicationThread::step_lanes(bool& must_poll) {
  const std::lock_guard lock(lanes_mutex_);
  if (has_failed_.load()) {
    tell_lanes();  // of what was posted since
    return false;
  }
  bool moved = false;
  for (Lane* lane : lanes_) {
    lane->moved_ = false;
    const bool went_on = lane->routine_.step();
    moved = moved || went_on || lane->moved_;
    must_poll = must_poll || (!lane->routine_.is_over() && lane->routine_.wake() == Wake::poll);
  }
  return moved;
}

void CommunicationThread::look_around() {
  next_look_ = steady_clock::now() + kLookEvery;
  if (has_failed_.load()) {
    if (steady_clock::now() < end_by_) return;
    log::error("the job was lost and did not end by itself within {} s", kTimeToEnd.count());
    note_failure();
    end_process_soon(kExitFailed);
    MpiCalls::abort(kExitFailed);
  }
  const std::lock_guard lock(lanes_mutex_);
  for (Lane* lane : lanes_) lane->look();
  watch_->look(lanes_);
}

void CommunicationThread::sleep(std::uint32_t seen, bool must_poll) {
  const bool was_rung = board_->wait(seen, must_poll ? pause_ : std::chrono::nanoseconds(kLookEvery));
  pause_ = was_rung ? kShortestPause : std::min<std::chrono::nanoseconds>(pause_ * 3 / 2, kLongestPause);
}

void CommunicationThread::give_up(const std::exception_ptr& reason) {
  {
    const std::lock_guard lock(failure_mutex_);
    failure_ = reason;
  }
  end_by_ = steady_clock::now() + kTimeToEnd;
  has_failed_.store(true);
  const std::lock_guard lock(lanes_mutex_);
  tell_lanes();
}

void CommunicationThread::tell_lanes() {
  bool somebody_waits_for_a_sum = false;
  for (Lane* lane : lanes_) {
    switch (lane->give_up(failure_)) {
      case Lane::Told::caller:
        return;  // it throws, and main ends the job
      case Lane::Told::nobody:
        break;
      case Lane::Told::event:
        somebody_waits_for_a_sum = true;
    }
  }
  if (!somebody_waits_for_a_sum) return;
  if (board_->is_first_to_speak()) {
    try {
      std::rethrow_exception(failure_);
    } catch (const std::exception& e) {
      log::error("{}", e.what());
    }
    note_failure();
  }
  board_->mine().has_spoken.store(1);
  end_process_soon(kExitFailed);
  std::fflush(nullptr);
  MpiCalls::abort(kExitFailed);
}

void CommunicationThread::throw_if_failed() {
  if (!has_failed_.load()) return;
  const std::lock_guard lock(failure_mutex_);
  std::rethrow_exception(failure_);
}

void CommunicationThread::abort(int exit_status) {
  std::fflush(nullptr);
  board_->mine().has_spoken.store(1);
  end_process_soon(exit_status);
  abort_status_.store(exit_status);
  ring();
  while (true) ::pause();
}

}  // namespace lockstep::comm
