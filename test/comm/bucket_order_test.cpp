// The order of streams and events, as recorded on a stand-in for a device. The all-reduce of a bucket is issued after
// its last writer was queued and `ready` was recorded after it. What is queued after the list runs after all buckets.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "comm/buckets.h"
#include "comm/world.h"
#include "lockstep/error.h"
#include "test/comm/bucket_list.h"
#include "test/support/recording_backend.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kElements = 64;  // per tensor

/// Keeps a list of the all-reduces: their events, and their positions in the backend's recording.
class TracingCommunicator final : public Communicator {
 public:
  struct Issued {
    std::size_t position = 0;  // the number of calls recorded before it
    int ready = -1, done = -1;
    Slice slice;
    std::string label;
  };

  TracingCommunicator(std::unique_ptr<Communicator> inner, test::RecordingBackend& backend)
      : inner_(std::move(inner)), backend_(backend) {}
  std::string describe() const override { return inner_->describe(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override {
    return inner_->allocate(size_bytes, purpose);
  }
  void exchange_async(const Exchange& exchange, const Event& ready, Event& done, const std::string& label) override {
    issued.push_back({backend_.recording().calls().size(), test::RecordingBackend::number_of(ready),
                      test::RecordingBackend::number_of(done), exchange.slice, label});
    inner_->exchange_async(exchange, ready, done, label);
  }
  std::unique_ptr<Event> make_event() override { return inner_->make_event(); }

  std::vector<Issued> issued;

 private:
  std::unique_ptr<Communicator> inner_;
  test::RecordingBackend& backend_;
};

class BucketOrder : public ::testing::Test {
 protected:
  BucketOrder() {
    for (std::size_t i = 0; i < 7; ++i) tensors_.push_back({"tensor" + std::to_string(i), i * kElements, kElements});
    memory_ = communicator_.allocate(7 * kElements * sizeof(float), "gradients");
  }
  float* gradients() const { return static_cast<float*>(memory_->data()); }
  /// Three tensors per bucket; the last tensor has its own.
  std::vector<Bucket> buckets() const { return make_buckets(tensors_, 2 * kElements * sizeof(float) + 1); }

  /// Stands in for the kernel of the backward pass that writes the gradient of a tensor.
  void write(std::size_t tensor, Stream& stream) {
    backend_.fill_zero(gradients() + tensor * kElements, kElements * sizeof(float), stream);
  }

  graph::StepList list() {
    return list_of_buckets(
        buckets(), tensors_.size(), gradients(), [this](std::size_t tensor, Stream& stream) { write(tensor, stream); },
        communicator_, backend_);
  }

  /// The position of the last matching call among the first `end`; `end` if there is none.
  template <typename Predicate>
  std::size_t last_before(const std::vector<test::Call>& calls, std::size_t end, Predicate matches) const {
    for (std::size_t i = end; i-- > 0;)
      if (matches(calls[i])) return i;
    return end;
  }

  const std::unique_ptr<Backend> cpu_ = make_backend({.device = "cpu", .threads = 1});
  test::RecordingBackend backend_{*cpu_};
  const std::unique_ptr<World> world_ = single_world();
  TracingCommunicator communicator_{make_communicator({}, *world_, backend_), backend_};
  std::vector<GradientTensor> tensors_;
  std::unique_ptr<Memory> memory_;
};

TEST_F(BucketOrder, IssuesBucketAfterItsLastWriter) {
  graph::StepList list = this->list();
  ASSERT_EQ(buckets().size(), 3u);
  const auto stream = backend_.make_stream();
  const int compute = test::RecordingBackend::number_of(*stream);
  for (int step = 0; step < 2; ++step) {
    backend_.recording().clear();
    communicator_.issued.clear();
    list.queue(*stream);
    const std::vector<test::Call> calls = backend_.recording().calls();
    ASSERT_EQ(communicator_.issued.size(), 3u);
    for (std::size_t b = 0; b < 3; ++b) {
      const TracingCommunicator::Issued& issued = communicator_.issued[b];
      const Bucket bucket = buckets()[b];
      EXPECT_EQ(issued.label, "bucket " + std::to_string(b + 1) + " of 3");
      EXPECT_EQ(issued.slice.data, gradients() + bucket.begin);
      EXPECT_EQ(issued.slice.n_elements, bucket.n_elements);
      const std::size_t recorded = last_before(calls, issued.position, [&](const test::Call& call) {
        return call.what == "record" && call.event == issued.ready && call.stream == compute;
      });
      ASSERT_LT(recorded, issued.position) << "issued before `ready` was recorded\n" << backend_.recording().text();
      const float* last = gradients() + static_cast<std::size_t>(bucket.last_tensor) * kElements;
      const auto is_last_writer = [&](const test::Call& call) {
        return call.what == "fill_zero" && call.target == last && call.stream == compute;
      };
      const std::size_t written = last_before(calls, calls.size(), is_last_writer);
      EXPECT_LT(written, recorded) << "`ready` was recorded before the last writer\n" << backend_.recording().text();
      // Nothing that belongs to the next tensor is in between.
      EXPECT_EQ(recorded, written + 1);
      EXPECT_EQ(issued.position, recorded + 1);
    }
  }
}

TEST_F(BucketOrder, TheStreamWaitsForEveryBucket) {
  graph::StepList list = this->list();
  const auto stream = backend_.make_stream();
  const int compute = test::RecordingBackend::number_of(*stream);
  backend_.recording().clear();
  list.queue(*stream);
  backend_.fill_zero(gradients(), sizeof(float), *stream);  // stands in for the optimizer
  const std::vector<test::Call> calls = backend_.recording().calls();
  std::vector<int> waited, done;
  for (const test::Call& call : calls) {
    if (call.what == "wait" && call.stream == compute) waited.push_back(call.event);
  }
  for (const TracingCommunicator::Issued& issued : communicator_.issued) done.push_back(issued.done);
  EXPECT_EQ(waited, done);
  EXPECT_EQ(std::ranges::count(done, -1), 0);
  // timing events before and after the waits
  EXPECT_EQ(calls[calls.size() - 2].what, "record");
  EXPECT_TRUE(std::ranges::none_of(calls, [](const test::Call& call) { return call.what == "synchronize"; }))
      << "the host waited";
}

// Exposed communication is measured on the stream. A compute stream that is busy has not waited, no matter how far
// ahead the host is.
TEST_F(BucketOrder, MeasuresExposedTimeOnStream) {
  graph::StepList first = list(), second = list();
  const auto stream = backend_.make_stream();
  backend_.slow_down(20);
  first.queue(*stream);
  const double exposed = first.exposed_seconds();
  backend_.slow_down(0);
  // begin | three waits, including the work of the other stream for the last bucket | end
  EXPECT_GE(exposed, 0.06);
  EXPECT_LT(exposed, 7 * 0.02 + 1.0);
  second.queue(*stream);
  EXPECT_LT(second.exposed_seconds(), exposed) << "there was nothing to wait for";
  EXPECT_EQ(first.exposed_seconds(), exposed) << "the time of the previous step is still available";
}

TEST_F(BucketOrder, AllocatesNothingInStep) {
  graph::StepList list = this->list();
  const auto stream = backend_.make_stream();
  backend_.freeze();
  backend_.recording().clear();
  for (int step = 0; step < 3; ++step) list.queue(*stream);
  for (const test::Call& call : backend_.recording().calls()) EXPECT_NE(call.what, "allocate");
  EXPECT_THROW(backend_.allocate(64, "test"), Error);
  backend_.unfreeze();
}

}  // namespace
}  // namespace lockstep::comm
