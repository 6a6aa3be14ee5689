#include "mlflow/sender.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/signals.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::mlflow {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kInterval{3};  // between two checks of the files
constexpr Seconds kFirstPause{1}, kLongestPause{60};
constexpr Seconds kGrace{5};           // to send the rest at the end
constexpr Seconds kGraceOfFailure{2};  // the same after a failure, since the other ranks wait for the rank that failed
constexpr Seconds kGraceOfServer{1};   // the same if the last attempt has failed
constexpr Seconds kCancelling{1.5};    // for a cancelled request to end

}  // namespace

/// Shared with the thread, which may outlive the Sender: a resolver that hangs cannot be interrupted.
struct Sender::Work {
  explicit Work(UploadOptions o) : run(o.run), address(o.address), upload(std::move(o), limits) {}

  std::string run, address;
  Limits limits;
  Upload upload;
  std::mutex mutex;
  std::condition_variable changed;
  std::string status;       // the final status; empty while the run is in progress
  bool is_failing = false;  // the last attempt has failed
  bool is_over = false;     // the thread has ended
  bool is_complete = false, was_refused = false;
  std::string problem;

  void run_thread();
  bool attempt(const std::string& end);
  void note(const Problem& problem);
  void send(const std::string& end);
};

/// Sends everything that is new, once. `end`: the final status for MLflow, if the run has ended.
void Sender::Work::send(const std::string& end) {
  const bool was_open = upload.is_open();
  upload.open();
  if (!was_open) log::info("MLflow: {}", upload.page());
  if (!was_open && !upload.files_note().empty()) log::warning("log.mlflow: {}", upload.files_note());
  upload.send_parameters();
  if (end.empty()) upload.send_status("RUNNING");
  upload.send_files(kFilesAtStart);
  upload.send_metrics();
  if (end.empty()) return;
  upload.send_status(end);
  upload.send_files(kFilesAtEnd);
}

void Sender::Work::note(const Problem& found) {
  const std::lock_guard lock(mutex);
  const bool is_first = !std::exchange(is_failing, true);
  const bool is_late = limits.is_over();  // in this case, the error only says that the request was ended here
  if (!is_late || problem.empty()) problem = is_late ? address + " has not answered in time" : found.what();
  was_refused = !found.is_temporary();
  if (limits.is_over() || !status.empty()) return;  // finish() reports it
  if (was_refused)
    log::warning("log.mlflow: {}; the training continues, and nothing more is sent to MLflow", problem);
  else if (is_first)
    log::warning("log.mlflow: {}; the training continues, and sending is tried again", problem);
}

bool Sender::Work::attempt(const std::string& end) {
  try {
    send(end);
  } catch (const Problem& found) {
    note(found);
    return false;
  } catch (const std::exception& error) {  // most likely a full disk
    note(Problem(error.what(), /*is_temporary=*/true));
    return false;
  }
  const std::lock_guard lock(mutex);
  if (std::exchange(is_failing, false) && status.empty()) log::info("log.mlflow: {} answers again", address);
  return true;
}

void Sender::Work::run_thread() {
  Seconds pause = kFirstPause;
  for (;;) {
    std::string end;
    {
      const std::lock_guard lock(mutex);
      end = status;
    }
    const bool is_sent = attempt(end);
    pause = is_sent ? kFirstPause : std::min(2 * pause, kLongestPause);
    std::unique_lock lock(mutex);
    is_complete = is_sent && !end.empty();
    if (!end.empty() || was_refused || limits.is_over()) break;
    changed.wait_for(lock, is_sent ? kInterval : pause / 2, [&] { return !status.empty() || limits.is_over(); });
    if (limits.is_over()) break;
  }
  const std::lock_guard lock(mutex);
  is_over = true;
  changed.notify_all();
}

Sender::Sender(UploadOptions options) {
  try {
    work_ = std::make_shared<Work>(std::move(options));
  } catch (const Error& error) {
    log::warning("log.mlflow: {}; the training continues, and `lockstep report mlflow` can send the run later",
                 error.what());
    return;
  }
  const SignalsBlocked blocked;
  thread_ = std::thread([work = work_] { work->run_thread(); });
}

Sender::~Sender() { finish("failed"); }

void Sender::finish(const std::string& status) {
  if (!work_) return;
  const std::shared_ptr<Work> work = std::exchange(work_, nullptr);
  std::unique_lock lock(work->mutex);
  work->status = status_for(status);
  const auto now = Clock::now();
  const Seconds grace = work->is_failing ? kGraceOfServer : status == "failed" ? kGraceOfFailure : kGrace;
  const auto deadline = now + std::chrono::duration_cast<Clock::duration>(grace);
  work->limits.deadline = std::chrono::duration<double>(deadline.time_since_epoch()).count();
  work->changed.notify_all();
  work->changed.wait_for(lock, grace + kCancelling, [&] { return work->is_over; });
  work->limits.is_cancelled = true;
  const bool is_over = work->is_over, is_complete = work->is_complete;
  const std::string late = work->address + " has not answered in time";
  const std::string problem = work->problem.empty() ? late : work->problem;
  lock.unlock();
  if (is_over)
    thread_.join();
  else
    thread_.detach();
  if (is_complete) return;
  log::warning("log.mlflow: not everything was sent to MLflow: {}; `lockstep report mlflow {}` sends the rest", problem,
               work->run);
}

}  // namespace lockstep::mlflow
