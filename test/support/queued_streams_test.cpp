// Captured graphs of the stand-in for a device: each launch runs their work in the order of the captured events, and
// operations that CUDA refuses during a capture are refused.
#include "test/support/queued_streams.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::test {
namespace {

class QueuedGraphs : public testing::Test {
 protected:
  QueuedGraphs() {
    EXPECT_TRUE(graph_.begin(*stream_));  // the eager run
    graph_.end(*stream_);
  }
  void begin() { EXPECT_TRUE(graph_.begin(*stream_)); }
  void end() { graph_.end(*stream_); }
  template <typename Call>
  void expect_refused(const std::string& word, const Call& call) {
    EXPECT_THROW(call(), Error) << word;
    EXPECT_EQ(device_.recording.calls().back().what, "refused " + word);
  }

  QueuedDevice device_;
  std::unique_ptr<QueuedStream> stream_ = device_.make_stream(), other_ = device_.make_stream();
  QueuedEvent event_{device_, EventUse::order}, joined_{device_, EventUse::order};
  QueuedGraph graph_{device_};
};

TEST_F(QueuedGraphs, RunInTheOrderOfTheirEvents) {
  device_.sleep_ms = 1;
  std::vector<int> order;
  begin();
  stream_->put([&] { order.push_back(1); });
  event_.record(*stream_);
  other_->wait(event_);
  other_->put([&] { order.push_back(2); });
  joined_.record(*other_);
  stream_->wait(joined_);
  stream_->put([&] { order.push_back(3); });
  EXPECT_TRUE(order.empty());
  end();
  EXPECT_FALSE(graph_.begin(*stream_));
  stream_->synchronize();
  EXPECT_EQ(order, (std::vector{1, 2, 3, 1, 2, 3}));
  other_->put([&] { order.push_back(4); });  // runs immediately again
  other_->synchronize();
  EXPECT_EQ(order.back(), 4);
}

TEST_F(QueuedGraphs, TheHostCannotWaitForCapturedEvents) {
  begin();
  event_.record(*stream_);
  expect_refused("cudaErrorCapturedEvent", [&] { (void)event_.is_done(); });
  expect_refused("cudaErrorCapturedEvent", [&] { event_.synchronize(); });
  expect_refused("cudaErrorStreamCaptureUnsupported", [&] { stream_->synchronize(); });
  expect_refused("cudaErrorStreamCaptureUnsupported", [&] { device_.refuse_while_capturing(); });
  end();
  stream_->synchronize();
  expect_refused("cudaErrorCapturedEvent", [&] { (void)event_.is_done(); });
  expect_refused("cudaErrorCapturedEvent", [&] { event_.synchronize(); });
  expect_refused("cudaErrorCapturedEvent", [&] { other_->wait(event_); });
  device_.refuse_while_capturing();
  event_.record(*stream_);
  event_.synchronize();
  EXPECT_TRUE(event_.is_done());
}

TEST_F(QueuedGraphs, TimingEventsAreRecordedByEachLaunch) {
  QueuedEvent begun(device_, EventUse::timing), ended(device_, EventUse::timing);
  begin();
  begun.record(*stream_);
  stream_->put([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  ended.record(*stream_);
  end();
  stream_->synchronize();
  EXPECT_GE(ended.seconds_since(begun), 0.002);
}

TEST_F(QueuedGraphs, CannotWaitForWorkOutside) {
  event_.record(*other_);
  HostEvent of_host;
  begin();
  expect_refused("cudaErrorStreamCaptureIsolation", [&] { stream_->wait(event_); });
  expect_refused("an event of the host's", [&] { stream_->wait(of_host); });
  end();
}

TEST_F(QueuedGraphs, CannotBeMixedWithAnotherCapture) {
  QueuedGraph another(device_);
  EXPECT_TRUE(another.begin(*other_));
  begin();
  EXPECT_TRUE(another.begin(*other_));
  event_.record(*other_);
  expect_refused("cudaErrorStreamCaptureMerge", [&] { stream_->wait(event_); });
  another.end(*other_);
  end();
}

TEST_F(QueuedGraphs, MustJoinTheirBranches) {
  begin();
  event_.record(*stream_);
  other_->wait(event_);
  joined_.record(*other_);
  other_->put([] {});
  stream_->wait(joined_);  // comes before that work
  expect_refused("cudaErrorStreamCaptureUnjoined", [&] { end(); });
}

TEST(LateStreams, RunOnlyWhatOthersWaitFor) {
  QueuedDevice device;
  const auto stream = device.make_stream(), late = device.make_stream();
  device.late_stream = late->number();
  QueuedEvent event(device, EventUse::order);
  std::vector<int> order;
  late->put([&] { order.push_back(1); });
  event.record(*late);
  late->put([&] { order.push_back(2); });
  stream->put([&] { order.push_back(3); });
  stream->synchronize();
  EXPECT_EQ(order, std::vector{3});
  stream->wait(event);
  stream->synchronize();
  EXPECT_EQ(order, (std::vector{3, 1}));
  late->synchronize();
  EXPECT_EQ(order, (std::vector{3, 1, 2}));
}

TEST(LateStreams, AreOvertakenIfTheirEventsAreIgnored) {
  QueuedDevice device;
  const auto stream = device.make_stream(), late = device.make_stream();
  device.late_stream = device.ignored_stream = late->number();
  QueuedEvent event(device, EventUse::order);
  std::vector<int> order;
  late->put([&] { order.push_back(1); });
  event.record(*late);
  stream->wait(event);
  stream->put([&] { order.push_back(2); });
  stream->synchronize();
  late->synchronize();
  EXPECT_EQ(order, (std::vector{2, 1}));
}

}  // namespace
}  // namespace lockstep::test
