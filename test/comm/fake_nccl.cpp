// A libnccl.so.2 for machines without GPUs. Tests create a link to it in a folder and set NCCL_HOME to that folder.
// Ranks are processes of one machine, which exchange data through a shared segment whose name is in the unique id.
// Streams are test::WorkQueue. As with a non-blocking NCCL communicator, some calls return ncclInProgress and queue
// their work later, from another thread.
//
//   FAKE_NCCL_VERSION       the version that ncclGetVersion returns; by default that of nccl.h
//   FAKE_NCCL_LOG           a file to which each rank appends its calls other than sums
//   FAKE_NCCL_WINDOWS       any: ncclMemAlloc works, and windows are opened. none: windows are null, as for GPUs that
//                           cannot access each other. one: only rank 0 can allocate. By default no rank can
//   FAKE_NCCL_WARNING       a warning that each sum writes to the file NCCL_DEBUG_FILE
//   FAKE_NCCL_ERROR_AFTER   after this many sums, a rank reports that another one is lost, and its sums never complete
//   FAKE_NCCL_ERROR_BETWEEN   the same, but between two sums; sums of captured steps count too
// What runs after the communicator is aborted leaves the values as they are. A collective that some ranks have
// captured, while others call it, ends the process, since NCCL does not allow this.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/support/work_queue.h"

namespace {

constexpr int kMaxRanks = 8;
constexpr std::size_t kAreaBytes = std::size_t{1} << 20;
constexpr std::size_t kBoxBytes = std::size_t{1} << 16;

/// A message in transit between two ranks.
struct Box {
  std::atomic<std::uint64_t> sent, taken;
  std::size_t size_bytes;
  bool is_captured;
  unsigned char data[kBoxBytes];
};

/// Filled with zeros at the start.
struct Shared {
  std::atomic<int> n_opened, n_arrived, generation;
  Box boxes[kMaxRanks][kMaxRanks];  // from, to
  bool is_captured[kMaxRanks];      // the current collective
  unsigned char areas[kMaxRanks][kAreaBytes];
};

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::atomic<int> n_allocated{0};  // by ncclMemAlloc

void short_pause() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

}  // namespace

struct ncclComm {
  Shared* shared = nullptr;
  int rank = 0, size = 1;
  std::atomic<int> state{ncclSuccess};
  std::atomic<bool> is_aborted{false};
  std::atomic<int> n_users{0};  // threads and queued work that refer to it
  int n_calls = 0, n_sums = 0, n_registered = 0;
  int n_run = 0;  // sums; counted by the stream

  void log(const std::string& text) const {
    const std::string path = variable("FAKE_NCCL_LOG");
    if (path.empty()) return;
    const std::string line = "rank " + std::to_string(rank) + " " + text + "\n";
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (::write(file, line.data(), line.size()) < 0) std::perror("FAKE_NCCL_LOG");
    ::close(file);
  }

  bool is_blocking = false;
  FILE* debug_file = nullptr;  // opened when a communicator starts; real NCCL opens it only for the first one

  void warn() const {
    const std::string text = variable("FAKE_NCCL_WARNING");
    if (text.empty() || debug_file == nullptr) return;
    std::fprintf(debug_file, "node1:%d:7 [0] transport/net.cc:12 NCCL WARN %s\n", ::getpid(), text.c_str());
    std::fflush(debug_file);
  }

  /// Returns false if the communicator was aborted.
  bool barrier() {
    const int generation = shared->generation.load();
    if (shared->n_arrived.fetch_add(1) + 1 == size) {
      shared->n_arrived.store(0);
      shared->generation.fetch_add(1);
      return true;
    }
    while (shared->generation.load() == generation) {
      if (is_aborted.load()) return false;
      short_pause();
    }
    return true;
  }

  void check_captured(bool mine, bool theirs, int peer) const {
    if (mine == theirs) return;
    std::fprintf(stderr, "fake NCCL: rank %d has captured a collective that rank %d calls\n", mine ? rank : peer,
                 mine ? peer : rank);
    std::abort();
  }

  template <typename T>
  void all_reduce(T* data, std::size_t n, bool is_captured) {
    const std::size_t length = kAreaBytes / sizeof(T);
    for (std::size_t begin = 0; begin < n; begin += length) {
      const std::size_t now = std::min(length, n - begin);
      std::memcpy(shared->areas[rank], data + begin, now * sizeof(T));
      shared->is_captured[rank] = is_captured;
      if (!barrier()) return;
      for (int r = 0; r < size; ++r) check_captured(is_captured, shared->is_captured[r], r);
      for (std::size_t i = 0; i < now; ++i) {
        T sum = 0;
        for (int r = 0; r < size; ++r) sum = static_cast<T>(sum + reinterpret_cast<const T*>(shared->areas[r])[i]);
        data[begin + i] = sum;
      }
      if (!barrier()) return;
    }
  }
};

namespace {

struct Transfer {
  bool is_send = false;
  int peer = 0;
  unsigned char* data = nullptr;
  std::size_t size_bytes = 0;
};

void run_transfers(ncclComm& comm, std::vector<Transfer> transfers, bool is_captured) {
  while (!transfers.empty()) {
    bool moved = false;
    std::set<std::pair<bool, int>> seen;  // per direction and peer, only the first transfer proceeds
    for (Transfer& t : transfers) {
      if (!seen.emplace(t.is_send, t.peer).second) continue;
      Box& box = t.is_send ? comm.shared->boxes[comm.rank][t.peer] : comm.shared->boxes[t.peer][comm.rank];
      const bool is_full = box.sent.load() != box.taken.load();
      if (is_full == t.is_send) continue;
      const std::size_t now = t.is_send ? std::min(kBoxBytes, t.size_bytes) : box.size_bytes;
      if (t.is_send) {
        std::memcpy(box.data, t.data, now);
        box.size_bytes = now;
        box.is_captured = is_captured;
        box.sent.fetch_add(1);
      } else {
        comm.check_captured(is_captured, box.is_captured, t.peer);
        std::memcpy(t.data, box.data, now);
        box.taken.fetch_add(1);
      }
      t.data += now;
      t.size_bytes -= now;
      moved = true;
    }
    std::erase_if(transfers, [](const Transfer& t) { return t.size_bytes == 0; });
    if (comm.is_aborted.load()) return;
    if (!moved) short_pause();
  }
}

using Work = std::function<void(bool is_captured)>;

struct Group {
  int depth = 0;
  ncclComm* comm = nullptr;
  lockstep::test::WorkQueue* queue = nullptr;
  std::vector<Transfer> transfers;
};
thread_local Group group;

lockstep::test::WorkQueue* queue_of(cudaStream_t stream) {
  return reinterpret_cast<lockstep::test::WorkQueue*>(stream);
}

/// Does the work at once if the communicator is blocking, otherwise later, in a thread.
void in_background(ncclComm& comm, std::function<void()> work) {
  if (comm.is_blocking) return work();
  comm.state.store(ncclInProgress);
  comm.n_users.fetch_add(1);
  std::thread([&comm, work = std::move(work)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    work();
    int expected = ncclInProgress;
    comm.state.compare_exchange_strong(expected, ncclSuccess);
    comm.n_users.fetch_sub(1);
  }).detach();
}

/// Queues the work now or, on every eighth call, a little later.
ncclResult_t issue(ncclComm& comm, lockstep::test::WorkQueue& queue, Work work) {
  comm.n_users.fetch_add(1);
  // Held as long as the work may run; on a captured stream it runs more than once.
  const std::shared_ptr<ncclComm> user(&comm, [](ncclComm* of) { of->n_users.fetch_sub(1); });
  const auto put = [user, &queue, work = std::move(work), is_captured = queue.is_captured()] {
    queue.put([user, work, is_captured] { work(is_captured); });
  };
  if (comm.is_blocking || comm.n_calls++ % 8 != 0) {
    put();
    return ncclSuccess;
  }
  in_background(comm, put);
  return ncclInProgress;
}

ncclResult_t add_transfer(const Transfer& transfer, ncclComm_t comm, cudaStream_t stream) {
  if (group.depth == 0) return ncclInvalidUsage;
  group.comm = comm;
  group.queue = queue_of(stream);
  group.transfers.push_back(transfer);
  return ncclSuccess;
}

void end(ncclComm* comm) {
  while (comm->n_users.load() > 0) short_pause();
  if (comm->debug_file != nullptr) std::fclose(comm->debug_file);
  ::munmap(comm->shared, sizeof(Shared));
  delete comm;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const std::string text = variable("FAKE_NCCL_VERSION");
  *version = text.empty() ? NCCL_VERSION_CODE : std::atoi(text.c_str());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "an error of the fake NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return "reported by the fake NCCL"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> n_made{0};
  std::snprintf(id->internal, sizeof(id->internal), "/fake-nccl.%d.%d", ::getpid(), n_made.fetch_add(1));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (size > kMaxRanks || (config->blocking != 0 && config->blocking != 1)) return ncclInvalidArgument;
  auto* comm = new ncclComm;
  comm->is_blocking = config->blocking == 1;
  if (const std::string path = variable("NCCL_DEBUG_FILE"); !path.empty())
    comm->debug_file = std::fopen(path.c_str(), "w");
  comm->rank = rank;
  comm->size = size;
  comm->state.store(ncclInProgress);
  comm->n_users.store(1);
  const auto start = [comm, name = std::string(id.internal)] {
    const int file = ::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ::ftruncate(file, sizeof(Shared)) != 0) std::abort();
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) std::abort();
    ::close(file);
    comm->shared = static_cast<Shared*>(memory);
    if (comm->shared->n_opened.fetch_add(1) + 1 == comm->size) ::shm_unlink(name.c_str());
    comm->barrier();
    comm->log(comm->is_blocking ? "init, blocking" : "init");
    comm->state.store(ncclSuccess);
    comm->n_users.fetch_sub(1);
  };
  if (comm->is_blocking) start();
  *out = comm;
  if (comm->is_blocking) return ncclSuccess;
  std::thread(start).detach();
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  comm->log("finalize, " + std::to_string(comm->n_registered) + " registered");
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->log("destroy");
  end(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->log("abort");
  comm->is_aborted.store(true);
  end(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = static_cast<ncclResult_t>(comm->state.load());
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, size_t size_bytes, void** handle) {
  if (comm->state.load() == ncclInProgress) return ncclInvalidUsage;
  comm->log("register " + std::to_string(size_bytes));
  ++comm->n_registered;
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void*) {
  comm->log("deregister");
  --comm->n_registered;
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** memory, size_t size_bytes) {
  const std::string windows = variable("FAKE_NCCL_WINDOWS");
  const std::string rank = variable("OMPI_COMM_WORLD_RANK");
  if (windows.empty() || (windows == "one" && rank != "0")) return ncclUnhandledCudaError;
  constexpr std::size_t kGranularity = std::size_t{2} << 20;
  const std::size_t rounded = (size_bytes + kGranularity - 1) / kGranularity * kGranularity;
  *memory = std::aligned_alloc(kGranularity, rounded);
  std::memset(*memory, 0xff, rounded);
  n_allocated.fetch_add(1);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  std::free(memory);
  n_allocated.fetch_sub(1);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void*, size_t size_bytes, ncclWindow_t* window, int flags) {
  if (flags != NCCL_WIN_COLL_SYMMETRIC) return ncclInvalidArgument;
  if (comm->state.load() == ncclInProgress) return ncclInvalidUsage;
  comm->barrier();  // collective
  if (variable("FAKE_NCCL_WINDOWS") == "none") {
    *window = nullptr;
    return ncclSuccess;
  }
  comm->log("window " + std::to_string(size_bytes));
  ++comm->n_registered;
  *window = nullptr;
  in_background(*comm, [comm, window] { *window = reinterpret_cast<ncclWindow_t>(comm); });
  return ncclSuccess;  // even while that is in progress, as in NCCL 2.28 and newer
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  comm->log("close window of " + std::to_string(n_allocated.load()) + " allocations");
  --comm->n_registered;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* source, void* target, size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (source != target || op != ncclSum || (type != ncclFloat32 && type != ncclFloat64)) return ncclInvalidArgument;
  const std::string limit = variable("FAKE_NCCL_ERROR_AFTER");
  if (!limit.empty() && ++comm->n_sums > std::atoi(limit.c_str())) {
    comm->state.store(ncclRemoteError);
    comm->n_users.fetch_add(1);
    queue_of(stream)->put([comm] {
      while (!comm->is_aborted.load()) short_pause();
      comm->n_users.fetch_sub(1);
    });
    return ncclSuccess;
  }
  return issue(*comm, *queue_of(stream), [comm, target, n, type](bool is_captured) {
    if (comm->is_aborted.load()) return;
    comm->warn();
    if (type == ncclFloat32)
      comm->all_reduce(static_cast<float*>(target), n, is_captured);
    else
      comm->all_reduce(static_cast<double*>(target), n, is_captured);
    const std::string n_good = variable("FAKE_NCCL_ERROR_BETWEEN");
    if (!n_good.empty() && ++comm->n_run == std::atoi(n_good.c_str())) comm->state.store(ncclRemoteError);
  });
}

/// In place only, as Lockstep calls it: `own` is the shard of this rank in the whole.
ncclResult_t ncclReduceScatter(const void* whole, void* own, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum || (type != ncclFloat32 && type != ncclFloat64)) return ncclInvalidArgument;
  const auto reduce = [comm, n, own](auto* data, bool is_captured) {
    if (own != data + static_cast<std::size_t>(comm->rank) * n) std::abort();
    const std::size_t n_all = n * static_cast<std::size_t>(comm->size);
    std::vector copy(data, data + n_all);  // the shards of other ranks keep their values
    comm->all_reduce(copy.data(), n_all, is_captured);
    const auto first = copy.begin() + static_cast<std::ptrdiff_t>(comm->rank * n);
    if (!comm->is_aborted.load()) std::copy_n(first, n, data + static_cast<std::size_t>(comm->rank) * n);
  };
  return issue(*comm, *queue_of(stream), [=](bool is_captured) {
    if (comm->is_aborted.load()) return;
    comm->log("reduce-scatter " + std::to_string(n));
    type == ncclFloat32 ? reduce(static_cast<float*>(const_cast<void*>(whole)), is_captured)
                        : reduce(static_cast<double*>(const_cast<void*>(whole)), is_captured);
  });
}
ncclResult_t ncclAllGather(const void* own, void* whole, size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  return issue(*comm, *queue_of(stream), [=](bool is_captured) {
    if (comm->is_aborted.load()) return;
    auto* const bytes = static_cast<unsigned char*>(whole);
    const std::size_t begin = static_cast<std::size_t>(comm->rank) * n;
    if (own != bytes + begin) std::abort();
    comm->log("all-gather " + std::to_string(n));
    std::vector<unsigned char> copy(n * static_cast<std::size_t>(comm->size));
    std::copy_n(bytes + begin, n, copy.begin() + static_cast<std::ptrdiff_t>(begin));
    comm->all_reduce(copy.data(), copy.size(), is_captured);
    if (!comm->is_aborted.load()) std::ranges::copy(copy, bytes);
  });
}

ncclResult_t ncclSend(const void* data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  auto* bytes = static_cast<unsigned char*>(const_cast<void*>(data));
  return add_transfer({true, peer, bytes, n}, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  return add_transfer({false, peer, static_cast<unsigned char*>(data), n}, comm, stream);
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0) return ncclSuccess;
  Group whole = std::exchange(group, Group{});
  if (whole.transfers.empty()) return ncclSuccess;
  return issue(*whole.comm, *whole.queue,
               [comm = whole.comm, transfers = std::move(whole.transfers)](bool is_captured) {
                 run_transfers(*comm, transfers, is_captured);
               });
}

}  // extern "C"
