// The world of one rank and its communicator: no MPI, no thread; a sum of one is no work.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/communicator.h"

namespace lockstep::comm {

class SingleWorld final : public World {
 public:
  SingleWorld();
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
  bool is_first_to_speak() override { return true; }
  [[noreturn]] void abort(int exit_status) override;

 private:
  std::string host_;
};

class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(Backend& backend) : backend_(backend), stream_(backend.make_stream()) {}
  std::string describe() const override { return "none, 1 rank"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override;
  /// Done when `ready` is; a backend without queues waits for that in the caller.
  void all_reduce_async(const Slice& slice, const Event& ready, Event& done, const std::string& label) override;
  std::unique_ptr<Event> make_event() override { return backend_.make_event(); }
  bool is_repeatable() const override { return true; }

 private:
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
};

/// This machine's name without its domain.
std::string host_name();

}  // namespace lockstep::comm
