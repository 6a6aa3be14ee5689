#include "comm/watch.h"

#include <algorithm>
#include <cstring>

#include "comm/communication_thread.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kTimeToAnswer{5};     // of the limit, for other nodes to answer
constexpr Seconds kAfterTheLeader{10};  // a rank that sees all of its node leaves the word to its leader, which asks
constexpr Seconds kStopped{3};          // without a heartbeat; the threads give one every 100 ms
constexpr int kQuestionTag = 1;
constexpr int kAnswerTag = 2;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Watch::Watch(Board& board, MpiCalls& mpi, const RankTable& ranks, double limit_seconds)
    : board_(board), mpi_(mpi), ranks_(ranks), limit_(limit_seconds) {
  board_.mine().heartbeat_ns.store(now_ns());
  if (ranks_.n_nodes() < 2) return;
  const auto n = static_cast<std::size_t>(ranks_.size());
  asked_requests_.resize(n);
  told_requests_.resize(n);
  told_.resize(n);
  mpi_.receive(question_request_, MpiGroup::watch, MpiCalls::kAnyRank, kQuestionTag, &question_, sizeof(question_));
}

Watch::~Watch() {
  mpi_.cancel(question_request_);
  for (MpiRequest& request : told_requests_) mpi_.cancel(request);
}

void Watch::look(std::span<Lane* const> lanes) {
  board_.mine().heartbeat_ns.store(now_ns());
  if (ranks_.n_nodes() > 1) {
    answer_questions();
    collect_answers();
  }
  for (const Lane* lane : lanes) {
    if (lane->waiting().is_on) check(*lane);
  }
}

void Watch::answer_questions() {
  if (!mpi_.test(answer_request_)) return;
  int from = 0;
  if (!mpi_.test(question_request_, &from)) return;
  const LaneCell& cell = board_.mine().lanes[std::clamp(question_.lane, 0, kMaxLanes - 1)];
  answer_.begun = cell.begun.load();
  std::memcpy(answer_.label, cell.label, kLabelBytes);
  mpi_.send(answer_request_, MpiGroup::watch, from, kAnswerTag, &answer_, sizeof(answer_));
  mpi_.receive(question_request_, MpiGroup::watch, MpiCalls::kAnyRank, kQuestionTag, &question_, sizeof(question_));
}

void Watch::ask(const Lane& lane) {
  asked_lane_ = lane.number();
  asked_sequence_ = lane.waiting().sequence;
  asked_ = {lane.number()};
  for (int r = 0; r < ranks_.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    // A rank that has not answered the last question yet is not asked again.
    if (ranks_.rows[i].node == ranks_.mine().node || asked_requests_[i].active || told_requests_[i].active) continue;
    mpi_.receive(told_requests_[i], MpiGroup::watch, r, kAnswerTag, &told_[i], sizeof(Answer));
    mpi_.send(asked_requests_[i], MpiGroup::watch, r, kQuestionTag, &asked_, sizeof(asked_));
  }
}

void Watch::collect_answers() {
  for (MpiRequest& request : asked_requests_) mpi_.test(request);
  for (MpiRequest& request : told_requests_) mpi_.test(request);
}

void Watch::check(const Lane& lane) {
  check_processes(lane);
  const Seconds waited = steady_clock::now() - lane.waiting().since;
  const bool asks = ranks_.n_nodes() > 1 && ranks_.is_leader();
  const bool is_asked = asked_lane_ == lane.number() && asked_sequence_ == lane.waiting().sequence;
  if (asks && !is_asked && waited > limit_ - std::min(limit_ / 2, kTimeToAnswer)) ask(lane);
  if (waited <= limit_) return;
  std::string who = missing(lane);
  if (who.empty()) {
    if (ranks_.n_nodes() > 1 && !asks && waited <= limit_ + kAfterTheLeader) return;
    who = ranks_.n_nodes() > 1 && !asks ? "a rank of another node"
                                        : "nobody: all ranks have come to it, so the network hangs";
  }
  fail(ErrorCode::comm_rank_lost, "{} has waited {:.0f} s in '{}' (collective {} of its kind) for {}",
       ranks_.name(ranks_.rank), waited.count(), lane.waiting().label, lane.waiting().sequence, who);
}

void Watch::check_processes(const Lane& lane) {
  for (int local = 0; local < board_.local_size(); ++local) {
    if (board_.is_alive(local)) continue;
    const std::string name = ranks_.name(ranks_.my_node()[static_cast<std::size_t>(local)]);
    const std::string where = fmt::format("while {} was in '{}' (collective {} of its kind)", ranks_.name(ranks_.rank),
                                          lane.waiting().label, lane.waiting().sequence);
    if (board_.cell(local).has_spoken.load() != 0)
      fail(ErrorCode::comm_rank_lost, "{} has failed, as it said itself, {}", name, where);
    fail(ErrorCode::comm_rank_died, "{} has died: its process is gone {}", name, where);
  }
}

std::string Watch::describe(int rank, const Answer& state, const Lane& lane) const {
  if (state.begun >= lane.waiting().sequence) return "";
  return fmt::format("{}, which has not come to it (its last was '{}', collective {})", ranks_.name(rank),
                     state.begun == 0 ? "none" : std::string_view(state.label, ::strnlen(state.label, kLabelBytes)),
                     state.begun);
}

std::string Watch::missing(const Lane& lane) const {
  std::string out;
  const auto add = [&out](const std::string& text) {
    if (!text.empty()) out += (out.empty() ? "" : "; ") + text;
  };
  for (int local = 0; local < board_.local_size(); ++local) {
    if (local == board_.local_rank()) continue;
    const RankCell& cell = board_.cell(local);
    const int rank = ranks_.my_node()[static_cast<std::size_t>(local)];
    const Seconds silent = std::chrono::nanoseconds(now_ns() - cell.heartbeat_ns.load());
    if (silent > kStopped) {
      add(fmt::format("{}, whose process has given no sign of life for {:.0f} s (is it stopped?)", ranks_.name(rank),
                      silent.count()));
      continue;
    }
    Answer state;
    state.begun = cell.lanes[lane.number()].begun.load();
    std::memcpy(state.label, cell.lanes[lane.number()].label, kLabelBytes);
    add(describe(rank, state, lane));
  }
  if (!(asked_lane_ == lane.number() && asked_sequence_ == lane.waiting().sequence)) return out;
  for (int r = 0; r < ranks_.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (ranks_.rows[i].node == ranks_.mine().node) continue;
    add(told_requests_[i].active ? ranks_.name(r) + ", which gives no answer" : describe(r, told_[i], lane));
  }
  return out;
}

}  // namespace lockstep::comm
