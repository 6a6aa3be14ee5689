#include "test/support/cuda_on_host/runtime.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace lockstep::cuda_fibers {

Coordinates current;

namespace {

constexpr int kWarp = 32;
constexpr std::size_t kStackBytes = std::size_t{128} << 10;

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "cuda kernels on the host: block %u,%u, thread %u: %s\n", current.block.x, current.block.y,
               current.thread.x, what);
  std::abort();
}

enum class State { ready, at_barrier, at_exchange, done };

/// A point at which execution can continue: frame, stack and instruction pointer, as saved by GCC's builtins. Unlike
/// swapcontext(), these make no system call, and the address sanitizer does not clear the shadow of a whole stack. The
/// functions below are not instrumented, since the sanitizer would treat the jump as a call that does not return, and
/// GCC must not inline one into another.
using Place = std::array<void*, 5>;
[[noreturn, gnu::noipa, gnu::no_sanitize_address, gnu::no_sanitize_undefined]] void jump_to(Place& to) {
  __builtin_longjmp(to.data(), 1);
}
[[gnu::noipa, gnu::no_sanitize_address, gnu::no_sanitize_undefined]] void switch_to(Place& from, Place& to) {
  if (__builtin_setjmp(from.data()) == 0) jump_to(to);
}
[[gnu::noipa, gnu::no_sanitize_address, gnu::no_sanitize_undefined]] void begin(Place& from, const ucontext_t& to) {
  if (__builtin_setjmp(from.data()) == 0) setcontext(&to);
}

struct Fiber {
  Place place{};
  bool has_begun = false;
  void* stack = nullptr;
  State state = State::done;
  std::uint64_t sent = 0, received = 0;
  int source = 0;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
#endif
};

class Block {
 public:
  ~Block() {
    for (Fiber& fiber : fibers_) munmap(fiber.stack, kStackBytes);
  }

  void run(unsigned threads, const std::function<void()>& thread) {
    thread_ = &thread;
    n_ = threads;
    while (fibers_.size() < threads) {
      fibers_.emplace_back();
      void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (stack == MAP_FAILED) give_up("there is no memory for the stack of a fiber");
      fibers_.back().stack = stack;
    }
    for (unsigned i = 0; i < n_; ++i) start(i);
    std::vector<unsigned> warps(n_ / kWarp);
    for (unsigned i = 0; i < warps.size(); ++i) warps[i] = i * kWarp;
    do {
      std::shuffle(warps.begin(), warps.end(), order_);
      for (unsigned first : warps) run_warp(first);
    } while (release_barrier());
  }

  void barrier() { leave(State::at_barrier); }
  std::uint64_t exchange(std::uint64_t mine, int source) {
    Fiber& fiber = fibers_[running_];
    fiber.sent = mine;
    fiber.source = source;
    leave(State::at_exchange);
    return fiber.received;
  }
  void body() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &main_stack_, &main_stack_bytes_);
#endif
    (*thread_)();
    leave(State::done);
  }

 private:
  static void entry();

  void start(unsigned i) {
    fibers_[i].has_begun = false;
    fibers_[i].state = State::ready;
  }

  void begin(Fiber& fiber) {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
    fiber.has_begun = true;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fiber.stack, kStackBytes);  // the previous thread never left its frames
#endif
    cuda_fibers::begin(main_, context);
  }

  void enter(unsigned i) {
    running_ = i;
    current.thread = dim3(i, 0, 0);
    Fiber& fiber = fibers_[i];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&main_fake_stack_, fiber.stack, kStackBytes);
#endif
    if (fiber.has_begun)
      switch_to(main_, fiber.place);
    else
      begin(fiber);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(main_fake_stack_, nullptr, nullptr);
#endif
  }

  void leave(State state) {
    Fiber& fiber = fibers_[running_];
    fiber.state = state;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(state == State::done ? nullptr : &fiber.fake_stack, main_stack_, main_stack_bytes_);
#endif
    switch_to(fiber.place, main_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);
#endif
  }

  /// Runs a warp until each of its threads waits at a barrier or has ended, while the other warps do not run. This is
  /// the furthest that a warp can get ahead of the others, so operations that only a missing barrier would delay run
  /// too early.
  void run_warp(unsigned first) {
    std::array<unsigned, kWarp> lanes;
    std::iota(lanes.begin(), lanes.end(), first);
    do {
      std::shuffle(lanes.begin(), lanes.end(), order_);
      for (unsigned i : lanes)
        if (fibers_[i].state == State::ready) enter(i);
    } while (release_exchange(first));
  }

  /// Lets a warp whose exchange is complete continue. Returns false if none of its threads waits in one. As on a
  /// device, an exchange must not read from a thread that has ended.
  bool release_exchange(unsigned first) {
    const std::span warp(&fibers_[first], kWarp);
    const auto are_any = [&](State state) { return std::ranges::count(warp, state, &Fiber::state) > 0; };
    if (!are_any(State::at_exchange)) return false;
    if (are_any(State::at_barrier)) give_up("some lanes of a warp wait in a shuffle and others at a barrier");
    for (Fiber& fiber : warp) {
      if (fiber.state != State::at_exchange) continue;
      const Fiber& source = warp[static_cast<std::size_t>(fiber.source)];
      if (source.state != State::at_exchange) give_up("a shuffle reads from an ended lane");
      fiber.received = source.sent;
    }
    for (Fiber& fiber : warp)
      if (fiber.state == State::at_exchange) fiber.state = State::ready;
    return true;
  }

  /// Returns false if all threads are done. A thread that has ended counts as having arrived at a barrier.
  bool release_barrier() {
    bool any = false;
    for (unsigned i = 0; i < n_; ++i) {
      if (fibers_[i].state != State::at_barrier) continue;
      fibers_[i].state = State::ready;
      any = true;
    }
    return any;
  }

  std::vector<Fiber> fibers_;
  Place main_{};
  const std::function<void()>* thread_ = nullptr;
  unsigned n_ = 0, running_ = 0;
  std::mt19937 order_{[] {
    const char* seed = std::getenv("LOCKSTEP_CUDA_ON_HOST_SEED");
    return static_cast<std::uint32_t>(seed ? std::strtoul(seed, nullptr, 10) : 1);
  }()};
#if defined(__SANITIZE_ADDRESS__)
  void* main_fake_stack_ = nullptr;
  const void* main_stack_ = nullptr;
  std::size_t main_stack_bytes_ = 0;
#endif
};

Block& block() {
  static Block instance;
  return instance;
}
std::vector<unsigned char>& dynamic_shared() {
  static std::vector<unsigned char> bytes;
  return bytes;
}

void Block::entry() { block().body(); }

}  // namespace

void run_grid(const HostGrid& grid, const std::function<void()>& thread) {
  if (grid.threads == 0 || grid.threads > 1024 || grid.threads % kWarp != 0)
    give_up("blocks have 32 to 1024 threads, in whole warps");
  if (grid.shared_bytes > 227 * 1024) give_up("a block has at most 227 KiB of shared memory");
  current.block_dim = dim3(grid.threads, 1, 1);
  current.grid_dim = dim3(grid.blocks, grid.blocks_y, 1);
  for (unsigned y = 0; y < grid.blocks_y; ++y)
    for (unsigned x = 0; x < grid.blocks; ++x) {
      current.block = dim3(x, y, 0);
      // Garbage, NaN in every type: shared memory is not zero on a device.
      dynamic_shared().assign(grid.shared_bytes + 16, 0xff);
      block().run(grid.threads, thread);
    }
}

void block_barrier() { block().barrier(); }
std::uint64_t exchange(std::uint64_t mine, int lane) { return block().exchange(mine, lane); }
int lane() { return static_cast<int>(current.thread.x % kWarp); }
void* dynamic_shared_memory() {
  const auto address = reinterpret_cast<std::uintptr_t>(dynamic_shared().data());
  return reinterpret_cast<void*>((address + 15) / 16 * 16);
}

}  // namespace lockstep::cuda_fibers
