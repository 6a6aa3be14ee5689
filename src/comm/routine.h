// A routine of the communication thread: a coroutine that is resumed when what it waits for holds.
//
//   Routine run() {
//     co_await until([&] { return flag.load() >= wanted; }, Wake::bell);
//     ...
//     co_await yield();  // after a piece of work: others first
//   }
// Awaited predicates are polled by the thread; several routines so share it, and none blocks it.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>

namespace lockstep::comm {

/// What can make an awaited predicate true: somebody who rings the board's bell afterwards, or anything else (MPI, an
/// event of a backend), which has to be polled.
enum class Wake : std::uint8_t { bell, poll };

class Routine {
 public:
  struct promise_type {
    bool (*condition)(void*) = nullptr;
    void* context = nullptr;
    Wake wake = Wake::bell;
    std::exception_ptr exception;

    Routine get_return_object() { return Routine(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { exception = std::current_exception(); }
  };

  Routine() = default;
  Routine(Routine&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Routine& operator=(Routine&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Routine() {
    if (handle_) handle_.destroy();
  }

  bool is_over() const { return !handle_ || handle_.done(); }
  Wake wake() const { return handle_.promise().wake; }

  /// Goes on if it can; true when it did. Rethrows what the routine or its predicate threw.
  bool step() {
    if (is_over()) return false;
    promise_type& p = handle_.promise();
    if (p.condition != nullptr && !p.condition(p.context)) return false;
    p.condition = nullptr;
    handle_.resume();
    if (p.exception) std::rethrow_exception(std::exchange(p.exception, nullptr));
    return true;
  }

 private:
  explicit Routine(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

template <typename Predicate>
struct Until {
  Predicate predicate;
  Wake wake;

  bool await_ready() { return predicate(); }
  void await_suspend(std::coroutine_handle<Routine::promise_type> handle) {
    handle.promise().condition = [](void* self) { return static_cast<Until*>(self)->predicate(); };
    handle.promise().context = this;
    handle.promise().wake = wake;
  }
  void await_resume() {}
};

template <typename Predicate>
Until<Predicate> until(Predicate predicate, Wake wake) {
  return {predicate, wake};
}

inline std::suspend_always yield() { return {}; }

}  // namespace lockstep::comm
