// cores: all
// Candidates are timed in alternation, and programs that run at the same time do not change which one is the fastest.
#include "lockstep/timing.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A processor with a clock of its own, on which another program runs for `busy` seconds of every 8 ms.
class FakeProcessor {
 public:
  explicit FakeProcessor(double busy = 0) : busy_(nanoseconds(busy)) {}

  /// A call that needs `seconds` of processor time.
  CallTime run(double seconds) {
    const std::int64_t begin = now_;
    for (std::int64_t left = nanoseconds(seconds); left > 0;) {
      const std::int64_t phase = now_ % kPeriod;
      const std::int64_t slice = phase < busy_ ? busy_ - phase : std::min(left, kPeriod - phase);
      if (phase >= busy_) left -= slice;
      now_ += slice;
    }
    const double elapsed = 1e-9 * static_cast<double>(now_ - begin);
    return {.seconds = elapsed, .waiting_seconds = elapsed - seconds};
  }

 private:
  static constexpr std::int64_t kPeriod = 8'000'000;
  static std::int64_t nanoseconds(double seconds) { return static_cast<std::int64_t>(std::llround(1e9 * seconds)); }
  std::int64_t busy_, now_ = 1'300'000;
};

TEST(Timing, AlternatesAndStopsWhenTheShortestCallsAgree) {
  FakeProcessor idle;
  std::vector<std::size_t> order;
  const std::vector<double> seconds{0.003, 0.002, 0.0025};
  const Timing timing = time_in_alternation(3, [&](std::size_t i) {
    order.push_back(i);
    return idle.run(seconds[i]);
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(timing.seconds[i], seconds[i], 1e-9);
  EXPECT_EQ(fastest(timing.seconds), 1u);
  EXPECT_FALSE(timing.is_under_load);
}

/// Calls that are shorter and longer than the scheduler's time slices, next to neighbours that take a quarter to three
/// quarters of the processor.
TEST(Timing, ANeighbourDoesNotChangeTheRanking) {
  const std::vector<std::vector<double>> cases{
      {0.00011, 0.0001, 0.00013}, {0.0022, 0.002, 0.0026}, {0.0033, 0.0037, 0.003}, {0.034, 0.030, 0.039}};
  for (const std::vector<double>& seconds : cases) {
    FakeProcessor idle;
    const auto on = [&](FakeProcessor& processor) {
      return time_in_alternation(seconds.size(), [&](std::size_t i) { return processor.run(seconds[i]); });
    };
    const std::size_t expected = fastest(on(idle).seconds);
    for (const double busy : {0.002, 0.004, 0.006}) {
      FakeProcessor shared(busy);
      const Timing timing = on(shared);
      EXPECT_EQ(fastest(timing.seconds), expected) << seconds[0] << " s, busy for " << busy << " s of 0.008 s";
      // Short calls can be ranked between two slices of the neighbour.
      if (seconds[0] > 0.001) {
        EXPECT_TRUE(timing.is_under_load) << seconds[0] << " s, busy for " << busy << " s of 0.008 s";
      }
    }
  }
}

/// Two calls that differ by far more than the noise need no confirmation.
TEST(Timing, ASingleCandidateNearTheLeadEndsTheRounds) {
  int n_calls = 0;
  const Timing timing = time_in_alternation(
      2, [&](std::size_t i) { return CallTime{.seconds = (i == 0 ? 0.006 : 0.003) * (1 + 0.1 * (n_calls++ % 5))}; });
  EXPECT_EQ(n_calls, 6);
  EXPECT_FALSE(timing.is_under_load);
  EXPECT_EQ(fastest(timing.seconds), 1u);
}

/// The fastest candidate is interrupted in each of its first calls, which makes it look slow or even hopeless.
TEST(Timing, AnInterruptedCandidateIsCalledUntilItIsNot) {
  for (const double seconds : {0.002, 0.0002}) {
    int n_calls = 0;
    const Timing timing = time_in_alternation(2, [&](std::size_t i) {
      if (i == 0) return CallTime{.seconds = 1.3 * seconds};
      const double waiting = ++n_calls <= 4 ? 0.004 : 0;
      return CallTime{.seconds = seconds + waiting, .waiting_seconds = waiting};
    });
    EXPECT_EQ(fastest(timing.seconds), 1u) << seconds;
    EXPECT_EQ(n_calls, 7) << "three calls without an interruption";
  }
}

/// The neighbour stops while the candidates are being timed.
TEST(Timing, RoundsContinueUntilTheRankingIsStable) {
  int n_calls = 0;
  const Timing timing = time_in_alternation(2, [&](std::size_t i) {
    const bool is_disturbed = n_calls++ < 10;
    const double seconds = i == 0 ? 0.004 : 0.003;
    return CallTime{.seconds = is_disturbed ? seconds * (2 + 0.1 * n_calls) + (i == 1 ? 0.002 : 0) : seconds};
  });
  EXPECT_EQ(timing.seconds, (std::vector<double>{0.004, 0.003}));
  EXPECT_FALSE(timing.is_under_load);
  EXPECT_EQ(n_calls, 16) << "three more rounds after the last disturbed one";
}

TEST(Timing, ARankingThatStaysUnstableIsMarked) {
  double elapsed = 0, seconds = 0.02;
  const Timing timing = time_in_alternation(2, [&](std::size_t) {
    elapsed += seconds *= 0.95;  // three calls are never within 5 %
    return CallTime{.seconds = seconds};
  });
  EXPECT_TRUE(timing.is_under_load);
  EXPECT_LT(elapsed, 0.6);
  int n_calls = 0;
  EXPECT_TRUE(
      time_in_alternation(2, [&](std::size_t) { return CallTime{.seconds = 1.0 + ++n_calls % 7}; }).is_under_load);
  EXPECT_EQ(n_calls, 6) << "no more than three rounds of long calls";
}

TEST(Timing, CandidatesThatAreFarBehindAreNotCalledAgain) {
  std::array<int, 4> n_calls{};
  const std::vector<double> seconds{0.001, 0.004, 0.5, kInfinity};
  const Timing timing = time_in_alternation(4, [&](std::size_t i) {
    ++n_calls[i];
    // A single call of the fastest candidate is interrupted. This must not make the others look good, or the fastest
    // bad.
    return CallTime{.seconds = i == 0 && n_calls[0] == 1 ? 0.05 : seconds[i]};
  });
  EXPECT_EQ(n_calls, (std::array{3, 3, 1, 1}));
  EXPECT_EQ(timing.seconds, seconds);
  EXPECT_FALSE(timing.is_under_load);
}

TEST(Timing, NoiseDoesNotReplaceTheFirstOfEquals) {
  EXPECT_EQ(fastest({1.01, 1.0, 3.0}), 0u);
  EXPECT_EQ(fastest({1.03, 1.01, 1.0}), 1u);
  EXPECT_EQ(fastest({kInfinity, 2.0, kInfinity}), 1u);
}

/// Pins this thread to the processor on which it runs.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(sched_getcpu()), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_{};
};

/// A process that uses as much of the processor as it can get.
class Burner {
 public:
  Burner() : process_(fork()) {
    if (process_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) asm volatile("");
  }
  ~Burner() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Burner(const Burner&) = delete;
  Burner& operator=(const Burner&) = delete;

 private:
  pid_t process_;
};

/// Takes time proportional to n.
void compute(unsigned n) {
  float sum = 1;
  for (unsigned i = 0; i < n; ++i) {
    sum = sum * 0.999f + 0.001f;
    asm volatile("" : "+x"(sum));
  }
}

TEST(Timing, ReadsTheTimeThatOtherVirtualMachinesTook) {
  const auto stolen = [](const char* text) {
    std::istringstream stat(text);
    return stolen_seconds(stat);
  };
  EXPECT_DOUBLE_EQ(stolen("cpu  364143 379291 97325 92528 810 0 536 1597 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"), 15.97);
  EXPECT_DOUBLE_EQ(stolen("cpu  1 2 3 4\n"), 0);
  EXPECT_DOUBLE_EQ(stolen("intr 1 2 3 4 5 6 7 8\n"), 0);
  EXPECT_DOUBLE_EQ(stolen(""), 0);
}

TEST(Timing, ARealNeighbourDoesNotChangeTheRanking) {
  const OneProcessor here;
  const auto time = [](std::vector<unsigned> loops) {
    return time_in_alternation(loops.size(), [&](std::size_t i) { return time_call([&] { compute(loops[i]); }); });
  };
  std::ifstream reported("/proc/self/schedstat");
  for (const unsigned n : {50'000u, 500'000u, 2'000'000u}) {  // about 0.2, 2 and 8 ms
    const std::vector<unsigned> loops{n / 10 * 16, n, n / 10 * 13};
    EXPECT_EQ(fastest(time(loops).seconds), 1u);
    const Burner burner;
    const Timing timing = time(loops);
    EXPECT_EQ(fastest(timing.seconds), 1u);
    if (reported && n > 1'000'000) {
      EXPECT_TRUE(timing.is_under_load);
    }
  }
}

}  // namespace
}  // namespace lockstep
