// The communication thread of a rank: it makes all MPI calls, computes sums, and runs the watchdog.
//
// It serves several channels in turn. A channel is one ordered stream of collectives; channels do not wait for each
// other. When no channel can proceed, the thread sleeps on its doorbell in the progress table until it is woken. While
// something must be polled, it sleeps for at most 20 us at first, growing to 200 us. It thus takes no core away from
// the computation.
#pragma once

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/launch.h"
#include "comm/mpi_calls.h"
#include "comm/progress_table.h"
#include "comm/topology.h"
#include "lockstep/error.h"

namespace lockstep::comm {

// A coroutine of the communication thread. It is resumed when the condition that it awaits holds.
//
//   Coroutine run() {
//     co_await until([&] { return flag.load() >= expected; }, WakeOn::doorbell);
//     ...
//     co_await yield();  // after a chunk of work, to let the other coroutines run
//   }
// The thread evaluates the awaited conditions in turn. Several coroutines can thus share it without blocking it.

/// What can make an awaited condition true. `doorbell`: another rank or thread, which rings the doorbell of the
/// progress table afterwards. `poll`: anything else (MPI, an event of a backend), so the condition must be polled.
enum class WakeOn : std::uint8_t { doorbell, poll };

class Coroutine {
 public:
  struct promise_type {
    bool (*condition)(void*) = nullptr;
    void* context = nullptr;
    WakeOn wake_on = WakeOn::doorbell;
    std::exception_ptr exception;

    Coroutine get_return_object() { return Coroutine(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { exception = std::current_exception(); }
  };

  Coroutine() = default;
  Coroutine(Coroutine&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Coroutine& operator=(Coroutine&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Coroutine() {
    if (handle_) handle_.destroy();
  }

  bool is_done() const { return !handle_ || handle_.done(); }
  WakeOn wake_on() const { return handle_.promise().wake_on; }

  /// Resumes the coroutine if its condition holds; true if it did. Rethrows what the coroutine or its condition threw.
  bool step() {
    if (is_done()) return false;
    promise_type& p = handle_.promise();
    if (p.condition != nullptr && !p.condition(p.context)) return false;
    p.condition = nullptr;
    handle_.resume();
    if (p.exception) std::rethrow_exception(std::exchange(p.exception, nullptr));
    return true;
  }

 private:
  explicit Coroutine(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

template <typename Condition>
struct Until {
  Condition condition;
  WakeOn wake_on;

  bool await_ready() { return condition(); }
  void await_suspend(std::coroutine_handle<Coroutine::promise_type> handle) {
    handle.promise().condition = [](void* self) { return static_cast<Until*>(self)->condition(); };
    handle.promise().context = this;
    handle.promise().wake_on = wake_on;
  }
  void await_resume() {}
};

template <typename Condition>
Until<Condition> until(Condition condition, WakeOn wake_on) {
  return {condition, wake_on};
}

inline std::suspend_always yield() { return {}; }

class Watchdog;

class Channel {
 public:
  virtual ~Channel() = default;
  /// Who learns from a channel that the job is lost: a caller, which throws; nobody, because nothing waits; or only an
  /// event, which cannot report an error.
  enum class Listener : std::uint8_t { caller, nobody, event };
  /// Cancels what was posted to this channel, because a peer is lost or MPI failed. Called on the communication thread,
  /// possibly repeatedly.
  virtual Listener cancel(const std::exception_ptr& reason) = 0;

  /// Called about every 100 ms. A channel whose collectives run on a device checks their progress here. An exception
  /// ends the job.
  virtual void check_device() {}

  int number() const { return number_; }
  /// The collective that this rank is in, if is_active. It may be waiting for other ranks.
  struct Waiting {
    std::chrono::steady_clock::time_point since;
    bool is_active = false;
    std::uint64_t sequence = 0;  // from 1
    std::string_view label;
  };
  const Waiting& waiting() const { return waiting_; }

 protected:
  friend class CommunicationThread;
  /// This rank has reached its next collective: publishes it in the progress table. The watchdog watches it until
  /// leave().
  void enter(std::string_view label);
  /// The same for a channel that does not see each of its collectives: this is its `number`-th, from 1.
  void enter(std::string_view label, std::uint64_t number);
  void leave() { waiting_.is_active = false; }
  /// For such a channel, once it is removed: sets how many collectives it had, which is the same on all ranks. The next
  /// channel with its number continues to count from there. If ranks disagreed, it would wait for past collectives.
  void set_n_collectives(std::uint64_t number);
  /// Called by an awaited condition that did some work although it does not hold yet.
  void note_progress() { made_progress_ = true; }

  Coroutine coroutine_;
  ProgressTable* table_ = nullptr;

 private:
  int number_ = 0;
  std::uint64_t n_before_ = 0;  // collectives of earlier channels with this number
  Waiting waiting_;
  char label_[kLabelBytes] = {};
  bool made_progress_ = false;
};

class CommunicationThread {
 public:
  /// Starts the thread and, on it, MPI, the rank table and the progress table. Rethrows what they throw. Without MPI
  /// and a watchdog, which one rank does not need, if the process was launched alone.
  CommunicationThread(int* argc, char*** argv, const Launch& launch, double watchdog_seconds);
  /// Calls MPI_Finalize on the thread and stops it. All ranks must have agreed to end (a barrier).
  ~CommunicationThread();

  const RankTable& ranks() const { return ranks_; }
  ProgressTable& progress_table() { return *table_; }
  MpiCalls& mpi() { return *mpi_; }

  /// Adds a channel, which the caller keeps. It gets the same number on all ranks, because all add and remove their
  /// channels in the same order.
  void add(Channel& channel);
  void remove(Channel& channel);
  /// Call it after something was posted to a channel.
  void wake() { table_->wake(table_->local_rank()); }

  /// World::set_watchdog_seconds()
  void set_watchdog_seconds(double seconds);
  /// Throws the reason if the job is lost.
  void throw_if_failed();
  /// The same as a value.
  std::optional<Error> failure();
  bool has_failed() const { return has_failed_.load(); }

  /// Ends all ranks of the job; the process ends within 5 seconds even if MPI hangs.
  [[noreturn]] void abort(int exit_status);

 private:
  void start(int* argc, char*** argv, const Launch& launch, double watchdog_seconds);
  void make_rank_table();
  void make_progress_table();
  void run();
  /// Lets each channel proceed once; true if any of them did.
  bool step_channels(bool& must_poll);
  void check_health();
  void fail_job(const std::exception_ptr& reason);
  void print_failure() const;
  void cancel_channels();
  void sleep(std::uint32_t seen, bool must_poll);

  static constexpr int kNoAbort = -1;

  std::unique_ptr<MpiCalls> mpi_;  // null: launched alone, like the watchdog
  std::unique_ptr<ProgressTable> table_;
  std::unique_ptr<Watchdog> watchdog_;
  RankTable ranks_;

  std::mutex channels_mutex_;  // held while channels run
  std::vector<Channel*> channels_;

  std::chrono::nanoseconds pause_{0};
  std::chrono::steady_clock::time_point next_check_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_failed_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::chrono::steady_clock::time_point end_by_;  // after a failure, main must have ended the job by then
  std::atomic<int> abort_status_{kNoAbort};
  std::thread thread_;
};

}  // namespace lockstep::comm
