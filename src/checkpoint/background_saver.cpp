#include "checkpoint/background_saver.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>

#include "checkpoint/outcome.h"
#include "lockstep/log.h"

namespace lockstep::checkpoint {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{100};  // well below the watchdog's limit: nobody waits longer in a collective
constexpr std::chrono::seconds kSayAgain{60};

/// Signals are for the main thread, whose handlers the run's end depends on.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

BackgroundSaver::BackgroundSaver(std::vector<TensorSource> tensors, World& world)
    : tensors_(std::move(tensors)), world_(world), copies_(tensors_.size()) {
  std::size_t largest = 0;
  for (const std::size_t i : Saver("/", tensors_, world.rank(), world.size()).tensors_of_part()) {
    copies_[i].resize(tensors_[i].n_read());
    if (tensors_[i].unpack) largest = std::max(largest, tensors_[i].n_canonical());
  }
  canonical_.resize(largest);
  const SignalsBlocked blocked;  // inherited by the thread
  thread_ = std::thread([this] { run(); });
}

BackgroundSaver::~BackgroundSaver() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::size_t BackgroundSaver::copy_bytes(const std::vector<TensorSource>& tensors, int rank, int size) {
  std::size_t n_elements = 0, largest = 0;
  for (const std::size_t i : Saver("/", tensors, rank, size).tensors_of_part()) {
    n_elements += tensors[i].n_read();
    if (tensors[i].unpack) largest = std::max(largest, tensors[i].n_canonical());
  }
  return (n_elements + largest) * sizeof(float);
}

void BackgroundSaver::start(const std::string& path, StateJson state, Hooks hooks) {
  require(!is_running(), ErrorCode::internal, "a save was begun while another is running");
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!copies_[i].empty()) tensors_[i].read(copies_[i]);
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
  auto last_said = steady_clock::now();
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kPoll, [this] { return !outcome_.empty(); });
    }
    if (auto outcome = advance()) return *outcome;
    if (steady_clock::now() - last_said < kSayAgain) continue;
    last_said = steady_clock::now();
    constexpr std::array<const char*, Saver::kPhases> kPhaseNames{"made", "written", "completed", "read for checksums",
                                                                  "named"};
    log::info("still waiting for {}, which is being {}", saver_->path(), kPhaseNames[static_cast<std::size_t>(phase_)]);
  }
}

void BackgroundSaver::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return has_work_ || ends_; });
    if (ends_) return;
    has_work_ = false;
    lock.unlock();
    std::string outcome = outcome_of_phase();
    lock.lock();
    outcome_ = std::move(outcome);
    changed_.notify_all();
  }
}

std::string BackgroundSaver::outcome_of_phase() {
  return outcome_of(name_in_messages(world_), [this] {
    const bool first = world_.rank() == 0;
    if (first && phase_ == 0 && hooks_.before) hooks_.before();
    std::string result =
        saver_->run_phase(phase_, results_, state_, [this](std::size_t tensor) { return canonical_copy(tensor); });
    if (first && phase_ + 1 == Saver::kPhases && hooks_.after) hooks_.after();
    return result;
  });
}

std::span<const float> BackgroundSaver::canonical_copy(std::size_t tensor) {
  if (!tensors_[tensor].unpack) return copies_[tensor];
  const auto canonical = std::span(canonical_).first(tensors_[tensor].n_canonical());
  tensors_[tensor].unpack(copies_[tensor], canonical);
  return canonical;
}

}  // namespace lockstep::checkpoint
