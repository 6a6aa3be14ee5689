// A coroutine of the communication thread. It is resumed when the condition that it awaits holds.
//
//   Coroutine run() {
//     co_await until([&] { return flag.load() >= expected; }, WakeOn::doorbell);
//     ...
//     co_await yield();  // after a chunk of work, to let the other coroutines run
//   }
// The thread evaluates the awaited conditions in turn. Several coroutines can thus share it without blocking it.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>

namespace lockstep::comm {

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

}  // namespace lockstep::comm
