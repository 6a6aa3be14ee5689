#include "checkpoint/background_saver.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/outcome.h"
#include "base/signals.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"

namespace lockstep::checkpoint {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{100};  // the longest wait in a collective, well below the watchdog's limit
constexpr std::chrono::seconds kReportInterval{60};
constexpr std::array<const char*, Saver::kPhases> kPhaseNames{"created", "written", "completed", "hashed", "renamed"};

/// The tensors that a rank copies, and the number of elements in them.
struct Shard {
  std::vector<std::size_t> tensors;
  std::size_t n_copied = 0;
  std::size_t n_largest = 0;  // of the largest tensor that is unpacked into its canonical form
};

Shard shard_of(const std::vector<TensorSource>& tensors, int rank, int size) {
  Shard shard{.tensors = Saver("/", tensors, rank, size).tensors_of_shard()};
  for (const std::size_t i : shard.tensors) {
    shard.n_copied += tensors[i].n_read();
    if (tensors[i].unpack) shard.n_largest = std::max(shard.n_largest, tensors[i].n_canonical());
  }
  return shard;
}

}  // namespace

BackgroundSaver::BackgroundSaver(std::vector<TensorSource> tensors, World& world, Copying copying)
    : tensors_(std::move(tensors)), world_(world), copying_(std::move(copying)), copies_(tensors_.size()) {
  const Shard shard = shard_of(tensors_, world.rank(), world.size());
  for (const std::size_t i : shard.tensors) copies_[i] = Buffer(tensors_[i].n_read(), copying_.backend);
  canonical_ = Buffer(shard.n_largest);
  const SignalsBlocked blocked;  // inherited by the thread
  thread_ = std::thread([this] { run(); });
}

BackgroundSaver::~BackgroundSaver() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::size_t BackgroundSaver::copy_bytes(const std::vector<TensorSource>& tensors, int rank, int size) {
  const Shard shard = shard_of(tensors, rank, size);
  return (shard.n_copied + shard.n_largest) * sizeof(float);
}

void BackgroundSaver::start(const std::string& path, StateJson state, Hooks hooks) {
  require(!is_running(), ErrorCode::internal, "a save was started while another one is running");
  int n_rounds = 0;
  for (const TensorSource& tensor : tensors_) n_rounds = std::max(n_rounds, tensor.rounds.end);
  for (int round = 0; round < n_rounds; ++round) {
    if (copying_.begin) copying_.begin(round);
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (tensors_[i].rounds.contains(round) && copies_[i].size > 0) tensors_[i].read(copies_[i].span());
  }
  if (copying_.end) copying_.end();
  saver_.emplace(path, tensors_, world_.rank(), world_.size());
  state_ = std::move(state);
  hooks_ = std::move(hooks);
  phase_ = 0;
  results_.clear();
  begin_phase();
}

void BackgroundSaver::begin_phase() {
  {
    const std::lock_guard lock(mutex_);
    outcome_.clear();
    has_work_ = true;
  }
  changed_.notify_all();
}

bool BackgroundSaver::phase_is_done() const { return is_running() && !finished_text().empty(); }

std::string BackgroundSaver::finished_text() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

std::optional<BackgroundSaver::Outcome> BackgroundSaver::advance() {
  std::vector<std::string> all = world_.all_gather(finished_text());
  if (std::ranges::any_of(all, [](const std::string& text) { return text.empty(); })) return std::nullopt;
  const std::optional<Error> error = error_in(all);
  if (!error && ++phase_ < Saver::kPhases) {
    results_ = results_in(std::move(all));
    begin_phase();
    return std::nullopt;
  }
  if (error && world_.rank() == 0) saver_->discard();
  const Outcome outcome{saver_->path(), error};
  saver_.reset();
  return outcome;
}

BackgroundSaver::Outcome BackgroundSaver::wait() {
  auto last_report = steady_clock::now();
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kPoll, [this] { return !outcome_.empty(); });
    }
    if (auto outcome = advance()) return *outcome;
    if (steady_clock::now() - last_report < kReportInterval) continue;
    last_report = steady_clock::now();
    log::info("Still waiting for {}, which is being {}", saver_->path(), kPhaseNames[static_cast<std::size_t>(phase_)]);
  }
}

void BackgroundSaver::run() {
  const trace::ThreadRow row("checkpoint");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return has_work_ || is_ending_; });
    if (is_ending_) return;
    has_work_ = false;
    lock.unlock();
    std::string outcome = outcome_of_phase();
    lock.lock();
    outcome_ = std::move(outcome);
    changed_.notify_all();
  }
}

std::string BackgroundSaver::outcome_of_phase() {
  const trace::Span span(trace::Kind::checkpoint, kPhaseNames[static_cast<std::size_t>(phase_)]);
  return outcome_of(name_in_messages(world_), [this] {
    const bool first = world_.rank() == 0;
    if (phase_ == 0 && copying_.wait) copying_.wait();
    if (first && phase_ == 0 && hooks_.before) hooks_.before();
    std::string result =
        saver_->run_phase(phase_, results_, state_, [this](std::size_t tensor) { return canonical_copy(tensor); });
    if (first && phase_ + 1 == Saver::kPhases && hooks_.after) hooks_.after();
    return result;
  });
}

std::span<const float> BackgroundSaver::canonical_copy(std::size_t tensor) {
  if (!tensors_[tensor].unpack) return copies_[tensor].span();
  const auto canonical = canonical_.span().first(tensors_[tensor].n_canonical());
  tensors_[tensor].unpack(copies_[tensor].span(), canonical);
  return canonical;
}

}  // namespace lockstep::checkpoint
