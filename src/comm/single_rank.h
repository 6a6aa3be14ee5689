// The world of one rank and its communicator. There is no MPI, and a sum over one rank needs no work. A thread is
// started only for NCCL (comm.backend=nccl).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/communicator.h"

namespace lockstep::comm {

class CommunicationThread;

class SingleRankWorld final : public World {
 public:
  SingleRankWorld();
  ~SingleRankWorld() override;
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  int node() const override { return 0; }
  int n_nodes() const override { return 1; }
  const std::string& host() const override { return host_; }
  void barrier() override {}
  void broadcast(std::span<std::byte> data, int root) override;
  std::vector<std::string> all_gather(std::string_view mine) override { return {std::string(mine)}; }
  bool any(bool mine) override { return mine; }
  std::unique_ptr<Memory> share_in_node(std::size_t size_bytes, const std::string& purpose) override;
  bool is_first_to_report() override { return true; }
  std::optional<Error> cause_of_loss() override;
  [[noreturn]] void abort(int exit_status) override;
  CommunicationThread& thread();

 private:
  std::string host_;
  std::unique_ptr<CommunicationThread> thread_;  // null until it is used
};

class SingleRankCommunicator final : public Communicator {
 public:
  explicit SingleRankCommunicator(Backend& backend) : backend_(backend), stream_(backend.make_stream()) {}
  std::string describe() const override { return "none, 1 rank"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override;
  /// `done` completes when `ready` does. If the backend has no queues, the caller blocks until then.
  void exchange_async(const Exchange& exchange, const Event& ready, Event& done, const std::string& label) override;
  std::unique_ptr<Event> make_event() override { return backend_.make_event(); }
  bool is_capturable() const override { return true; }
  std::optional<double> exchange_seconds() const override { return 0; }

 private:
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
};

/// The name of this machine without its domain.
std::string host_name();

}  // namespace lockstep::comm
