// Shared by the op benchmarks: a backend, memory for arguments, and the loop that reports each figure relative to the
// machine's own limits (limits.h).
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "bench/micro/limits.h"
#include "lockstep/algorithms.h"
#include "lockstep/backend.h"
#include "lockstep/error.h"

namespace lockstep::bench {

inline constexpr std::int64_t kBatch = 32;  // samples per rank, as in `make bench-peers`

/// Uses the algorithms that training would use, found by timing.
inline Backend& backend() {
  static const auto algorithms = [] {
    auto timed = std::make_shared<Algorithms>();
    timed->enable_timing();
    return timed;
  }();
  static const std::unique_ptr<Backend> instance =
      make_backend({.device = "cpu", .threads = n_threads(), .algorithms = algorithms});
  return *instance;
}

// ---- Measuring ------------------------------------------------------------------------------------------------------

inline constexpr double kFloatBytes = 4;
inline double element_bytes() { return static_cast<double>(size_bytes(dtype())); }

inline Layout activation_layout(const Shape& shape) { return backend().activation_layout(shape, dtype()); }

/// The loop of a benchmark. Reports the time, GFLOP/s and its percentage of the multiply rate, and GB/s and its
/// percentage of the copy bandwidth. `bytes` is the least that must be moved: every argument once. If it is 0, GB/s is
/// not reported. Data that stays in the caches from one repetition to the next may exceed 100 % of the copy bandwidth.
template <typename Work>
void measure(benchmark::State& state, double flops, double bytes, const Work& work) {
  work();  // touches all memory
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) work();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
                         static_cast<double>(state.iterations());
  const auto report = [&](const char* name, const char* percentage, double amount, double limit) {
    if (amount <= 0) return;
    state.counters[name] = amount / seconds / 1e9;
    if (limit > 0) state.counters[percentage] = 100 * amount / seconds / limit;
  };
  report("GFLOP/s", "% of multiply rate", flops, limits().flops_per_second);
  report("GB/s", "% of copy", bytes, limits().copy_bytes_per_second);
}

// ---- Arguments ------------------------------------------------------------------------------------------------------

/// Memory of the backend, filled with random numbers in (-1, 1), because zeros and denormals could be faster or slower.
class Arguments {
 public:
  template <typename T = float>
  T* make(std::int64_t n_elements) {
    T* data = static_cast<T*>(bytes(static_cast<std::size_t>(n_elements) * sizeof(T)));
    if constexpr (std::is_floating_point_v<T>)
      draw(n_elements, [data](std::int64_t i, float value) { data[i] = value; });
    return data;
  }
  /// The elements are of dtype().
  void* tensor(std::int64_t n_elements) {
    if (dtype() == DType::fp32) return make(n_elements);
    auto* data = static_cast<std::uint16_t*>(bytes(static_cast<std::size_t>(n_elements) * sizeof(std::uint16_t)));
    draw(n_elements, [data](std::int64_t i, float value) {
      data[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    });
    return data;
  }
  template <typename T>
  T* value(const T& value) {
    return new (bytes(sizeof(T))) T(value);
  }
  void* bytes(std::size_t size_bytes) {
    owned_.push_back(backend().allocate(std::max<std::size_t>(size_bytes, 64), "benchmark"));
    return owned_.back()->data();
  }
  OpMemory memory_of(const Op& op) {
    const OpMemoryRequirements requirements = op.memory_requirements();
    return {bytes(std::max(requirements.forward_workspace_bytes, requirements.backward_workspace_bytes)),
            bytes(requirements.saved_bytes)};
  }

 private:
  template <typename Store>
  static void draw(std::int64_t n_elements, const Store& store) {
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < n_elements; ++i) {
      state = state * 1664525u + 1013904223u;
      store(i, static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f);
    }
  }

  std::vector<std::unique_ptr<Memory>> owned_;
};

/// Registers one benchmark; `body` makes the op and its arguments and runs the loop. Benchmarks that a backend cannot
/// run in dtype() are left out, with a message.
template <typename Body>
benchmark::internal::Benchmark* add_untimed(const std::string& name, const Body& body) {
  const auto run = [body](benchmark::State& state) {
    try {
      body(state);
    } catch (const Error& error) {
      state.SkipWithError(error.what());
    }
  };
  return benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMillisecond);
}

template <typename Body>
benchmark::internal::Benchmark* add(const std::string& name, const Body& body) {
  return add_untimed(name, body)->UseRealTime();
}

/// Calls work(i) for one image after another. Items per second are images.
template <typename Work>
void each_image(benchmark::State& state, const Work& work) {
  std::size_t i = 0;
  work(i);
  for (auto _ : state) work(++i);
  state.SetItemsProcessed(state.iterations());
}

/// An op with its memory, a stream, and memory for its arguments.
template <typename Description>
struct Planned {
  explicit Planned(const Description& d) : op(backend().make(d)), memory(arguments.memory_of(*op)) {}

  Arguments arguments;
  decltype(backend().make(std::declval<Description>())) op;
  OpMemory memory;
  std::unique_ptr<Stream> stream = backend().make_stream();
};

/// The same with the arguments of both directions, and what the forward pass computes and moves.
template <typename Description>
struct PlannedBoth : Planned<Description> {
  using Op = typename decltype(Planned<Description>::op)::element_type;
  explicit PlannedBoth(const Description& d) : Planned<Description>(d) {}

  typename Op::Forward forward{};
  typename Op::Backward backward{};
  double flops = 0, bytes = 0;
};

/// `plan` makes a PlannedBoth.
template <typename Plan>
void add_forward(const std::string& name, const Plan& plan) {
  add(name + "/forward", [plan](benchmark::State& state) {
    auto p = plan();
    measure(state, p.flops, p.bytes, [&] { p.op->forward(p.forward, p.memory, *p.stream); });
  });
}

/// The backward pass after a forward pass. It computes and moves `flops` and `bytes` times as much. `change` sets what
/// else the direction needs.
template <typename Plan, typename Change>
void add_backward(const std::string& name, const Plan& plan, double flops, double bytes, const Change& change) {
  add(name, [=](benchmark::State& state) {
    auto p = plan();
    p.op->forward(p.forward, p.memory, *p.stream);
    change(p.backward);
    measure(state, flops * p.flops, bytes * p.bytes, [&] { p.op->backward(p.backward, p.memory, *p.stream); });
  });
}

template <typename Plan>
void add_both(const std::string& name, const Plan& plan, double backward_flops, double backward_bytes) {
  add_forward(name, plan);
  add_backward(name + "/backward", plan, backward_flops, backward_bytes, [](const auto&) {});
}

inline int run_all(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto number = [](double value) { return std::to_string(static_cast<long>(value)); };
  benchmark::AddCustomContext("device", backend().device().name);
  benchmark::AddCustomContext("copy bandwidth", number(limits().copy_bytes_per_second / 1e9) + " GB/s");
  benchmark::AddCustomContext("activations", std::string(name(dtype())));
  benchmark::AddCustomContext("multiply rate", number(limits().flops_per_second / 1e9) + " GFLOP/s");
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace lockstep::bench
