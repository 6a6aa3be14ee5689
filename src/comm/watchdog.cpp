#include "comm/watchdog.h"

#include <algorithm>
#include <cstring>

#include "comm/communication_thread.h"
#include "lockstep/error.h"
#include "lockstep/memory_limit.h"

namespace lockstep::comm {
namespace {

using std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kReplyTimeout{5};      // the part of the time limit in which other nodes must reply
constexpr Seconds kLeaderAdvantage{10};  // a rank that misses nobody on its node lets its querying leader report first
constexpr Seconds kStopped{3};  // without a heartbeat, a process counts as stopped; the threads send one every 100 ms
constexpr int kQueryTag = 1;
constexpr int kReplyTag = 2;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Watchdog::Watchdog(ProgressTable& table, MpiCalls& mpi, const RankTable& ranks, double limit_seconds)
    : table_(table), mpi_(mpi), ranks_(ranks), limit_seconds_(limit_seconds), n_killed_before_(n_killed_for_memory()) {
  table_.mine().heartbeat_ns.store(now_ns());
  if (ranks_.n_nodes() < 2) return;
  const auto n = static_cast<std::size_t>(ranks_.size());
  query_requests_.resize(n);
  reply_requests_.resize(n);
  replies_.resize(n);
  mpi_.receive(incoming_query_request_, MpiGroup::watchdog, MpiCalls::kAnyRank, kQueryTag, &incoming_query_,
               sizeof(incoming_query_));
}

Watchdog::~Watchdog() {
  mpi_.cancel(incoming_query_request_);
  for (MpiRequest& request : reply_requests_) mpi_.cancel(request);
}

void Watchdog::check(std::span<Channel* const> channels) {
  table_.mine().heartbeat_ns.store(now_ns());
  if (ranks_.n_nodes() > 1) {
    answer_queries();
    for (MpiRequest& request : query_requests_) mpi_.test(request);
    for (MpiRequest& request : reply_requests_) mpi_.test(request);
  }
  for (const Channel* channel : channels) {
    if (channel->waiting().is_active) check_channel(*channel);
  }
}

void Watchdog::answer_queries() {
  if (!mpi_.test(outgoing_reply_request_)) return;
  int from = 0;
  if (!mpi_.test(incoming_query_request_, &from)) return;
  const ChannelProgress& progress = table_.mine().channels[std::clamp(incoming_query_, 0, kMaxChannels - 1)];
  outgoing_reply_.begun = progress.begun.load();
  std::memcpy(outgoing_reply_.label, progress.label, kLabelBytes);
  mpi_.send(outgoing_reply_request_, MpiGroup::watchdog, from, kReplyTag, &outgoing_reply_, sizeof(outgoing_reply_));
  mpi_.receive(incoming_query_request_, MpiGroup::watchdog, MpiCalls::kAnyRank, kQueryTag, &incoming_query_,
               sizeof(incoming_query_));
}

void Watchdog::send_queries(const Channel& channel) {
  queried_channel_ = channel.number();
  queried_sequence_ = channel.waiting().sequence;
  query_ = channel.number();
  for (int r = 0; r < ranks_.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    // A rank that has not yet replied to the last query is not queried again.
    if (ranks_.rows[i].node == ranks_.mine().node || query_requests_[i].active || reply_requests_[i].active) continue;
    mpi_.receive(reply_requests_[i], MpiGroup::watchdog, r, kReplyTag, &replies_[i], sizeof(Reply));
    mpi_.send(query_requests_[i], MpiGroup::watchdog, r, kQueryTag, &query_, sizeof(query_));
  }
}

bool Watchdog::was_queried(const Channel& channel) const {
  return queried_channel_ == channel.number() && queried_sequence_ == channel.waiting().sequence;
}

std::string Watchdog::collective(const Channel& channel) {
  return fmt::format("'{}' (collective {})", channel.waiting().label, channel.waiting().sequence);
}

void Watchdog::check_channel(const Channel& channel) {
  check_processes(channel);
  const Seconds waited = steady_clock::now() - channel.waiting().since, limit(limit_seconds_.load());
  const bool has_other_nodes = ranks_.n_nodes() > 1;
  const bool sends_queries = has_other_nodes && ranks_.is_leader();
  if (sends_queries && !was_queried(channel) && waited > limit - std::min(limit / 2, kReplyTimeout))
    send_queries(channel);
  if (waited <= limit) return;
  std::string who = missing(channel);
  if (who.empty() && has_other_nodes && !sends_queries) {
    if (waited <= limit + kLeaderAdvantage) return;
    who = "a rank on another node";
  }
  if (who.empty())
    fail(ErrorCode::comm_rank_lost,
         "{} has waited {:.0f} s in {} although all ranks have reached it; the network or a "
         "device may hang",
         ranks_.name(ranks_.rank), waited.count(), collective(channel));
  fail(ErrorCode::comm_rank_lost, "{} has waited {:.0f} s in {} for {}", ranks_.name(ranks_.rank), waited.count(),
       collective(channel), who);
}

void Watchdog::check_processes(const Channel& channel) {
  for (int local = 0; local < table_.local_size(); ++local) {
    if (table_.is_alive(local)) continue;
    const std::string lost = ranks_.name(ranks_.my_node()[static_cast<std::size_t>(local)]);
    const std::string where = fmt::format("while {} was in {}", ranks_.name(ranks_.rank), collective(channel));
    if (table_.entry(local).has_reported.load() != 0)
      fail(ErrorCode::comm_rank_lost, "{} has failed {}; it has reported its own error", lost, where);
    require(n_killed_for_memory() == n_killed_before_, ErrorCode::out_of_memory,
            "{} has died: its process ended {}, and the system has killed a process of this node for lack of memory{}",
            lost, where, memory_limit_in_message());
    fail(ErrorCode::comm_rank_died, "{} has died: its process ended {}", lost, where);
  }
}

std::string Watchdog::describe(int rank, const Reply& state, const Channel& channel) const {
  if (state.begun >= channel.waiting().sequence) return "";
  if (state.begun == 0) return ranks_.name(rank) + ", which has not reached any collective of this communicator";
  return fmt::format("{}, which has not reached it (its last was '{}', collective {})", ranks_.name(rank),
                     std::string_view(state.label, ::strnlen(state.label, kLabelBytes)), state.begun);
}

std::string Watchdog::missing(const Channel& channel) const {
  std::string out;
  const auto add = [&out](const std::string& text) {
    if (!text.empty()) out += (out.empty() ? "" : "; ") + text;
  };
  for (int local = 0; local < table_.local_size(); ++local) {
    if (local == table_.local_rank()) continue;
    const RankEntry& entry = table_.entry(local);
    const int rank = ranks_.my_node()[static_cast<std::size_t>(local)];
    const Seconds silent = std::chrono::nanoseconds(now_ns() - entry.heartbeat_ns.load());
    if (silent > kStopped) {
      add(fmt::format("{}, whose process has not responded for {:.0f} s (is it stopped?)", ranks_.name(rank),
                      silent.count()));
      continue;
    }
    Reply state;
    state.begun = entry.channels[channel.number()].begun.load();
    std::memcpy(state.label, entry.channels[channel.number()].label, kLabelBytes);
    add(describe(rank, state, channel));
  }
  if (!was_queried(channel)) return out;
  for (int r = 0; r < ranks_.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (ranks_.rows[i].node == ranks_.mine().node) continue;
    add(reply_requests_[i].active ? ranks_.name(r) + ", which does not reply" : describe(r, replies_[i], channel));
  }
  return out;
}

}  // namespace lockstep::comm
