// What the streams, timing events and counters of every backend guarantee.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "test/reference/backend.h"
#include "test/support/device.h"

namespace lockstep::test {
namespace {

/// Each kind of backend by the name with which LOCKSTEP_TEST_DEVICE selects it (tested_device_test.sh).
TEST(TestedBackends, AreThoseOfTheNamedDevice) {
  EXPECT_FALSE(tested_backends().empty());
  for (auto& [name, backend] : tested_backends()) {
    const std::string text = name;
    EXPECT_TRUE(is_tested_device(text.find("host") != std::string::npos ? "host" : backend->name().c_str())) << text;
  }
}

TEST(Stream, HasPriorities) {
  for (auto& [name, backend] : tested_backends())
    for (const StreamPriority priority : {StreamPriority::normal, StreamPriority::high}) {
      const auto stream = backend->make_stream(priority);
      const auto event = backend->make_event();
      event->record(*stream);
      stream->synchronize();
      EXPECT_TRUE(event->is_done()) << name;
    }
}

TEST(TimingEvent, MeasuresTheTimeBetweenTwoEvents) {
  for (auto& [name, backend] : tested_backends()) {
    const auto stream = backend->make_stream();
    const auto before = backend->make_timing_event(), after = backend->make_timing_event();
    before->record(*stream);
    before->synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    after->record(*stream);
    after->synchronize();
    EXPECT_GE(after->seconds_since(*before), 0.019) << name;
    EXPECT_LT(after->seconds_since(*before), 10) << name;
    EXPECT_EQ(before->seconds_since(*before), 0) << name;
  }
}

TEST(Counter, IsIncrementedInTheOrderOfTheStream) {
  for (auto& [name, backend] : tested_backends()) {
    const auto stream = backend->make_stream();
    const auto memory = backend->allocate_host(2 * sizeof(StreamProgress), "a test");
    auto* progress = static_cast<StreamProgress*>(memory->data());
    for (std::uint64_t i = 0; i < 5; ++i) backend->record_progress(progress, 10 + i, *stream);
    backend->record_progress(progress + 1, 7, *stream);
    stream->synchronize();
    EXPECT_EQ(progress[0].count, 5u) << name;
    EXPECT_EQ(progress[0].what, 14u) << name;
    EXPECT_EQ(progress[1].count, 1u) << name;
    EXPECT_EQ(progress[1].what, 7u) << name;
  }
}

TEST(HostMemory, ThatWasAllocatedElsewhereCanBePinned) {
  for (auto& [name, backend] : tested_backends()) {
    std::vector<char> pages(1 << 20);
    const auto pinned = backend->pin_host(pages.data(), pages.size());
    EXPECT_EQ(pinned != nullptr, backend->memory_space() == MemorySpace::device) << name;
  }
}

}  // namespace
}  // namespace lockstep::test
