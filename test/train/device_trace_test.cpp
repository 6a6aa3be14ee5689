// The row "device" of a trace: what was executed, and when, by a device whose streams are queues.
#include "graph/device_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "test/support/recording_backend.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

const trace::RowEvents& row(const std::vector<trace::RowEvents>& rows, const std::string& name) {
  const auto found = std::ranges::find(rows, name, &trace::RowEvents::name);
  EXPECT_NE(found, rows.end()) << name;
  return *found;
}

TEST(DeviceTrace, RecordsWhenTheDeviceRanEachPartOfAStep) {
  trace::start(4096);
  const auto inner = make_backend({.device = "cpu", .threads = 1});
  test::RecordingBackend device(*inner, "GPU-0");
  const auto world = comm::single_world();
  constexpr int kSteps = 3;
  const trace::Clock::time_point begin = trace::Clock::now();
  std::size_t n_entries = 0, n_norms = 0;  // the squares of each bucket's gradients are summed separately
  {
    Config config = test::small_config(8, 4);
    const auto communicator = comm::make_communicator(config.comm, *world, device);
    test::SmallRun run(config, device, *communicator);
    n_entries = run.plan().largest().graph->order().entries().size();
    for (std::size_t b = 0; b < run.plan().buckets().size(); ++b) n_norms += run.plan().range_of_norm(b).n_elements > 0;
    device.slow_down(0.2);  // the host is far ahead, so its own spans show nothing
    for (int step = 0; step < kSteps; ++step) run.step(step);
  }
  const trace::Clock::time_point end = trace::Clock::now();
  const std::vector<trace::RowEvents> rows = trace::events();
  const std::vector<trace::Event>& spans = row(rows, "device").events;
  ASSERT_EQ(spans.size(), kSteps * (n_entries + n_norms + 6));
  double seconds = 0;
  trace::Clock::time_point last = begin;
  for (const trace::Event& span : spans) {
    EXPECT_LE(last, span.begin) << span.name << " begins before the work in front of it has ended";
    EXPECT_LE(span.begin, span.end);
    last = span.end;
    seconds += std::chrono::duration<double>(span.end - span.begin).count();
  }
  EXPECT_LE(last, end);
  EXPECT_GT(seconds, 1e-4 * static_cast<double>(spans.size())) << "each operation takes 0.2 ms";
  const auto count = [&](trace::Kind kind, const std::string& name) {
    return std::ranges::count_if(spans, [&](const trace::Event& e) { return e.kind == kind && e.name == name; });
  };
  EXPECT_EQ(count(trace::Kind::forward, "conv1"), kSteps);
  EXPECT_EQ(count(trace::Kind::backward, "conv1"), kSteps);
  EXPECT_EQ(count(trace::Kind::update, "optimizer"), kSteps);
}

TEST(DeviceTrace, IsNotCreatedIfSpansOfTheHostShowEverything) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto stream = cpu->make_stream();
  EXPECT_EQ(graph::DeviceTrace::make(*cpu, *stream), nullptr);
}

}  // namespace
}  // namespace lockstep
