// All MPI calls that Lockstep makes, without MPI's header. They are made by the thread that constructed the object,
// which is the communication thread. Only the calls named "start-up" block. Failures throw Error (comm_mpi).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lockstep::comm {

/// A pending operation. Its buffers belong to the caller and must stay in place until test() returns true.
struct MpiRequest {
  alignas(8) std::byte storage[8];
  bool active = false;
};

/// Each is an MPI communicator of all ranks, so that messages of one kind cannot be matched with those of another.
enum class MpiGroup : unsigned char { control, data, watchdog };

class MpiCalls {
 public:
  /// Calls MPI_Init_thread with MPI_THREAD_SERIALIZED and checks the level that is provided.
  MpiCalls(int* argc, char*** argv);
  /// Calls MPI_Finalize.
  ~MpiCalls();
  MpiCalls(const MpiCalls&) = delete;
  MpiCalls& operator=(const MpiCalls&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Start-up: collective and blocking.

  /// The lowest rank of this rank's node (the ranks that share memory). `ranks_per_node` > 0 splits nodes into
  /// simulated ones.
  int node_leader(int ranks_per_node);
  std::vector<std::string> all_gather(const std::string& mine);

  // Point-to-point messages between ranks of the world.
  static constexpr int kAnyRank = -1;
  void send(MpiRequest& request, MpiGroup group, int to, int tag, const void* data, std::size_t size_bytes);
  void receive(MpiRequest& request, MpiGroup group, int from, int tag, void* data, std::size_t size_bytes);

  // Collectives over all ranks, on the control communicator.
  void broadcast(MpiRequest& request, void* data, std::size_t size_bytes, int root);
  void all_gather(MpiRequest& request, const void* mine, std::size_t size_bytes, void* all);
  void all_gather(MpiRequest& request, const void* mine, std::span<const int> sizes_bytes,
                  std::span<const int> begins_bytes, void* all);

  /// True once the operation is complete, and for a request that was never started. `from` is set to the sender of a
  /// message.
  bool test(MpiRequest& request, int* from = nullptr);
  /// True once all of them are complete.
  bool test(std::span<MpiRequest> requests);
  /// Cancels a receive that no message will match.
  void cancel(MpiRequest& request);

  /// Ends this process alone if MPI was not initialized.
  [[noreturn]] static void abort(int exit_status);

  /// "Open MPI v4.1.4 ..."
  static std::string version();

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace lockstep::comm
