#include "test/support/queued_streams.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::test {
namespace {

thread_local int captures_of_this_thread = 0;  // CUDA: cudaStreamCaptureModeThreadLocal

}  // namespace

std::unique_ptr<QueuedStream> QueuedDevice::make_stream() {
  const std::lock_guard lock(mutex);
  auto stream = std::make_unique<QueuedStream>(*this, n_streams++);
  streams.insert(stream.get());
  return stream;
}

int QueuedDevice::next_event() {
  const std::lock_guard lock(mutex);
  return n_events++;
}

void QueuedDevice::synchronize_all() {
  std::set<QueuedStream*> all;
  {
    const std::lock_guard lock(mutex);
    all = streams;
  }
  for (QueuedStream* stream : all) stream->drain();
}

void QueuedDevice::refuse(const std::string& word) {
  recording.add({.what = "refused " + word});
  fail(ErrorCode::library, "{}", word);
}

void QueuedDevice::refuse_while_capturing() {
  if (captures_of_this_thread > 0) refuse("cudaErrorStreamCaptureUnsupported");
}

void QueuedDevice::note_while_capturing() {
  if (captures_of_this_thread > 0) recording.add({.what = "refused cudaErrorStreamCaptureUnsupported"});
}

// ---- Late streams

void Demand::raise(std::size_t n) {
  const std::lock_guard lock(mutex_);
  n_ = std::max(n_, n);
  changed_.notify_all();
}

void Demand::wait_for(std::size_t n) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return n_ >= n; });
}

void Point::wait() const {
  if (demand) demand->raise(position);
  reached.synchronize();
}

// ---- Capture

std::size_t Capture::enter(QueuedStream& stream, const std::vector<std::size_t>& covers) {
  branches_.push_back({.stream = &stream, .steps = {}, .covers = covers});
  return branches_.size() - 1;
}

void Capture::add_work(std::size_t branch, std::function<void()> work) {
  ++branches_[branch].n_work;
  branches_[branch].steps.emplace_back([work = std::move(work)](Run&) { work(); });
}

void Capture::add_wait(std::size_t branch, const Point& point) {
  std::vector<std::size_t>& known = branches_[branch].covers;
  known.resize(std::max(known.size(), point.covers.size()));
  for (std::size_t i = 0; i < point.covers.size(); ++i) known[i] = std::max(known[i], point.covers[i]);
  branches_[branch].steps.emplace_back([number = point.number](Run& run) { run[number].synchronize(); });
}

void Capture::add_record(std::size_t branch, Point& point) {
  point.number = n_points_++;
  point.covers = covers(branch);
  branches_[branch].steps.emplace_back([number = point.number](Run& run) { run[number].complete(); });
}

std::vector<std::size_t> Capture::covers(std::size_t branch) const {
  std::vector<std::size_t> out = branches_[branch].covers;
  out.resize(branches_.size());
  out[branch] = branches_[branch].n_work;
  return out;
}

bool Capture::end() {
  is_over_ = true;
  for (const Branch& branch : branches_) branch.stream->set_capture(nullptr, 0);
  const std::vector<std::size_t> joined = covers(0);
  return std::ranges::equal(joined, branches_, {}, {}, &Branch::n_work);
}

void Capture::launch(const std::vector<QueuedStream*>& streams) const {
  const auto run = std::make_shared<Run>(n_points_);
  for (HostEvent& point : *run) point.begin();
  for (std::size_t i = 0; i < branches_.size(); ++i)
    for (const auto& step : branches_[i].steps) streams[i]->put([run, step] { step(*run); });
}

bool QueuedGraph::begin(Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  if (recorded_) {
    launch(queued);
    return false;
  }
  if (eager_runs_++ < kEagerRuns) return true;
  device_.recording.add({.what = "begin_capture", .stream = queued.number()});
  capturing_ = std::make_shared<Capture>(queued);
  queued.set_capture(capturing_, 0);
  ++captures_of_this_thread;
  return true;
}

void QueuedGraph::end(Stream& stream) {
  if (!capturing_) return;
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  device_.recording.add({.what = "end_capture", .stream = queued.number()});
  recorded_ = capturing_;
  if (!end_capture()) device_.refuse("cudaErrorStreamCaptureUnjoined");
  while (branches_.size() + 1 < recorded_->n_branches()) branches_.push_back(device_.make_stream());
  launch(queued);
}

bool QueuedGraph::end_capture() {
  --captures_of_this_thread;
  return std::exchange(capturing_, nullptr)->end();
}

void QueuedGraph::abandon(Stream&) noexcept {
  if (capturing_) (void)end_capture();
}

QueuedGraph::~QueuedGraph() {
  if (capturing_) (void)end_capture();
}

void QueuedGraph::launch(QueuedStream& stream) {
  device_.recording.add({.what = "launch", .stream = stream.number()});
  std::vector<QueuedStream*> streams{&stream};
  for (const auto& branch : branches_) streams.push_back(branch.get());
  recorded_->launch(streams);
}

// ---- Events

std::shared_ptr<Point> QueuedEvent::State::get() const {
  const std::lock_guard lock(mutex_);
  return point_;
}

void QueuedEvent::State::set(std::shared_ptr<Point> point) {
  const std::lock_guard lock(mutex_);
  point_ = std::move(point);
}

void QueuedEvent::record(Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  device_.recording.add({.what = "record", .stream = queued.number(), .event = number_});
  if (queued.capture() && use_ == EventUse::timing) {
    // An external node: each launch records the event, so that the host can use it.
    queued.put([state = state_] {
      auto point = std::make_shared<Point>();
      point->reached.complete();
      state->set(std::move(point));
    });
    return;
  }
  auto point = std::make_shared<Point>();
  state_->set(point);
  if (queued.capture()) {
    point->capture = queued.capture();
    queued.capture()->add_record(queued.branch(), *point);
    return;
  }
  point->reached.begin();
  point->stream = queued.number();
  point->demand = queued.demand();
  point->position = queued.n_put() + 1;
  queued.put([point] { point->reached.complete(); });
}

std::shared_ptr<Point> QueuedEvent::point_for_host() const {
  std::shared_ptr<Point> newest = point();
  if (newest->capture) device_.refuse("cudaErrorCapturedEvent");
  return newest;
}

void QueuedEvent::synchronize() const {
  device_.recording.add({.what = "synchronize", .event = number_});
  point_for_host()->wait();
}

double QueuedEvent::seconds_since(const Event& earlier) const {
  return point_for_host()->reached.seconds_since(dynamic_cast<const QueuedEvent&>(earlier).point_for_host()->reached);
}

// ---- Streams

QueuedStream::QueuedStream(QueuedDevice& device, int number)
    : device_(device), number_(number), thread_([this] { run(); }) {}

QueuedStream::~QueuedStream() {
  {
    const std::lock_guard lock(device_.mutex);
    device_.streams.erase(this);
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
    demand_->raise(n_put_);
  }
  thread_.join();
}

void QueuedStream::wait(const Event& event) {
  if (event.native() == nullptr) {
    if (capture_) device_.refuse("an event of the host's");
    return event.synchronize();
  }
  const auto& queued = dynamic_cast<const QueuedEvent&>(event);
  device_.recording.add({.what = "wait", .stream = number_, .event = queued.number()});
  const std::shared_ptr<Point> point = queued.point();
  if (!point->capture) {
    if (capture_) device_.refuse("cudaErrorStreamCaptureIsolation");
    if (point->stream != QueuedDevice::kNone && point->stream == device_.ignored_stream) return;
    put([point] { point->wait(); });
    return;
  }
  if (point->capture->is_over()) device_.refuse("cudaErrorCapturedEvent");
  if (!capture_) set_capture(point->capture, point->capture->enter(*this, point->covers));
  if (capture_ != point->capture) device_.refuse("cudaErrorStreamCaptureMerge");
  capture_->add_wait(branch_, *point);
}

void QueuedStream::wait_in_each_launch(const Event& event) {
  if (!capture_) return wait(event);
  const auto& queued = dynamic_cast<const QueuedEvent&>(event);
  device_.recording.add({.what = "wait", .stream = number_, .event = queued.number()});
  put([state = queued.state()] { state->get()->wait(); });
}

void QueuedStream::synchronize() {
  device_.recording.add({.what = "synchronize", .stream = number_});
  refuse_if_captured();
  drain();
}

void QueuedStream::refuse_if_captured() const {
  if (capture_) device_.refuse("cudaErrorStreamCaptureUnsupported");
}

void QueuedStream::set_capture(std::shared_ptr<Capture> capture, std::size_t branch) {
  const std::lock_guard lock(mutex_);
  capture_ = std::move(capture);
  branch_ = branch;
}

void QueuedStream::put(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (capture_) return capture_->add_work(branch_, std::move(work));
  work_.push_back(std::move(work));
  ++n_put_;
  changed_.notify_all();
}

std::size_t QueuedStream::n_put() {
  const std::lock_guard lock(mutex_);
  return n_put_;
}

void QueuedStream::enqueue(std::string_view what, std::function<void(Stream&)> work) {
  device_.recording.add({.what = std::string(what), .stream = number_});
  put([&device = device_, work = std::move(work)] {
    const std::lock_guard lock(device.op_mutex);
    work(*device.op_stream);
  });
}

void QueuedStream::drain() {
  std::unique_lock lock(mutex_);
  demand_->raise(n_put_);
  changed_.wait(lock, [this] { return work_.empty() && !is_busy_; });
}

void QueuedStream::run() {
  omp_set_num_threads(1);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    is_busy_ = true;
    const std::size_t position = ++n_begun_;
    lock.unlock();
    if (device_.late_stream == number_) demand_->wait_for(position);
    if (const double ms = device_.sleep_ms; ms > 0)
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
    work();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace lockstep::test
