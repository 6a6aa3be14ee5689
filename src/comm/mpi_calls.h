// All that Lockstep asks of MPI, without its header. Every call is made by the thread that constructed the object
// (the communication thread); nothing here but what is named "start-up" blocks. Failures are Errors (comm_mpi).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lockstep::comm {

/// A started operation. Its memory is the caller's and must stay where it is until test() is true.
struct MpiRequest {
  alignas(8) std::byte storage[8];
  bool active = false;
};

/// Separate communicators of all ranks, so that no traffic can meet another's.
enum class MpiGroup : unsigned char { control, data, watch };

class MpiCalls {
 public:
  /// MPI_Init_thread with MPI_THREAD_SERIALIZED; what was given is checked.
  MpiCalls(int* argc, char*** argv);
  /// MPI_Finalize.
  ~MpiCalls();
  MpiCalls(const MpiCalls&) = delete;
  MpiCalls& operator=(const MpiCalls&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Start-up: collective and blocking.

  /// The lowest rank among those that share this rank's memory; `ranks_per_node` > 0 cuts nodes into pretended ones.
  int node_leader(int ranks_per_node);
  std::vector<std::string> all_gather(const std::string& mine);

  // Point to point, between ranks of the world.
  static constexpr int kAnyRank = -1;
  void send(MpiRequest& request, MpiGroup group, int to, int tag, const void* data, std::size_t size_bytes);
  void receive(MpiRequest& request, MpiGroup group, int from, int tag, void* data, std::size_t size_bytes);

  // Collective over all ranks, in the control group.
  void broadcast(MpiRequest& request, void* data, std::size_t size_bytes, int root);
  void all_gather(MpiRequest& request, const void* mine, std::size_t size_bytes, void* all);
  void all_gather(MpiRequest& request, const void* mine, std::span<const int> sizes_bytes,
                  std::span<const int> begins_bytes, void* all);

  /// True once the operation is over, and for a request that was never started. `from`: the sender of a message.
  bool test(MpiRequest& request, int* from = nullptr);
  /// Takes back a receive that nothing will answer.
  void cancel(MpiRequest& request);

  [[noreturn]] static void abort(int exit_status);

  /// "Open MPI v4.1.4 ..."
  static std::string version();

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace lockstep::comm
