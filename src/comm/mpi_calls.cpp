#include "comm/mpi_calls.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <source_location>

#include "base/failure.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::comm {
namespace {

static_assert(sizeof(MPI_Request) <= sizeof(MpiRequest::storage));

std::string text_of(int status) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check(int status, const char* call, std::source_location where = std::source_location::current()) {
  require(status == MPI_SUCCESS, ErrorCode::comm_mpi, "{} failed: {} ({}:{})", call, text_of(status), where.file_name(),
          where.line());
}

MPI_Request* handle_of(MpiRequest& request) { return reinterpret_cast<MPI_Request*>(request.storage); }

int count_of(std::size_t size_bytes) {
  require(size_bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max()), ErrorCode::internal,
          "a message of {} bytes exceeds the range of MPI's counts", size_bytes);
  return static_cast<int>(size_bytes);
}

// Global, because a process has only one MPI_COMM_WORLD.
std::array<MPI_Comm, 3> groups = {MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL};
MPI_Comm handle_of(MpiGroup group) { return groups[static_cast<std::size_t>(group)]; }

}  // namespace

MpiCalls::MpiCalls(int* argc, char*** argv) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  require(initialized == 0, ErrorCode::internal, "MPI_Init was called twice in one process");
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    fail(ErrorCode::comm_mpi,
         "Lockstep needs MPI_THREAD_SERIALIZED, but this MPI library provides only {}: use an MPI library that was "
         "built "
         "with thread support",
         provided == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED");
  }
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  for (MPI_Comm& group : groups) {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &group), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
}

MpiCalls::~MpiCalls() {
  for (MPI_Comm& group : groups) {
    if (group != MPI_COMM_NULL) MPI_Comm_free(&group);
  }
  const int status = MPI_Finalize();
  if (status != MPI_SUCCESS) log::error("MPI_Finalize failed: {}", text_of(status));
}

int MpiCalls::node_leader(int ranks_per_node) {
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  if (ranks_per_node > 0) {
    MPI_Comm whole = node;
    int local_rank = 0;
    check(MPI_Comm_rank(whole, &local_rank), "MPI_Comm_rank");
    check(MPI_Comm_split(whole, local_rank / ranks_per_node, rank_, &node), "MPI_Comm_split");
    MPI_Comm_free(&whole);
  }
  int leader = rank_;
  check(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast");
  MPI_Comm_free(&node);
  return leader;
}

std::vector<std::string> MpiCalls::all_gather(const std::string& mine) {
  const auto n = static_cast<std::size_t>(size_);
  const int length = count_of(mine.size());
  std::vector<int> lengths(n);
  std::vector<int> begins(n);
  check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, handle_of(MpiGroup::control)), "MPI_Allgather");
  std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), 0);
  std::string all(static_cast<std::size_t>(begins.back() + lengths.back()), '\0');
  check(MPI_Allgatherv(mine.data(), length, MPI_BYTE, all.data(), lengths.data(), begins.data(), MPI_BYTE,
                       handle_of(MpiGroup::control)),
        "MPI_Allgatherv");
  std::vector<std::string> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = all.substr(static_cast<std::size_t>(begins[i]), static_cast<std::size_t>(lengths[i]));
  }
  return out;
}

void MpiCalls::send(MpiRequest& request, MpiGroup group, int to, int tag, const void* data, std::size_t size_bytes) {
  check(MPI_Isend(data, count_of(size_bytes), MPI_BYTE, to, tag, handle_of(group), handle_of(request)), "MPI_Isend");
  request.active = true;
}

void MpiCalls::receive(MpiRequest& request, MpiGroup group, int from, int tag, void* data, std::size_t size_bytes) {
  const int source = from == kAnyRank ? MPI_ANY_SOURCE : from;
  check(MPI_Irecv(data, count_of(size_bytes), MPI_BYTE, source, tag, handle_of(group), handle_of(request)),
        "MPI_Irecv");
  request.active = true;
}

void MpiCalls::broadcast(MpiRequest& request, void* data, std::size_t size_bytes, int root) {
  check(MPI_Ibcast(data, count_of(size_bytes), MPI_BYTE, root, handle_of(MpiGroup::control), handle_of(request)),
        "MPI_Ibcast");
  request.active = true;
}

void MpiCalls::all_gather(MpiRequest& request, const void* mine, std::size_t size_bytes, void* all) {
  const int count = count_of(size_bytes);
  check(MPI_Iallgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, handle_of(MpiGroup::control), handle_of(request)),
        "MPI_Iallgather");
  request.active = true;
}

void MpiCalls::all_gather(MpiRequest& request, const void* mine, std::span<const int> sizes_bytes,
                          std::span<const int> begins_bytes, void* all) {
  check(MPI_Iallgatherv(mine, sizes_bytes[static_cast<std::size_t>(rank_)], MPI_BYTE, all, sizes_bytes.data(),
                        begins_bytes.data(), MPI_BYTE, handle_of(MpiGroup::control), handle_of(request)),
        "MPI_Iallgatherv");
  request.active = true;
}

bool MpiCalls::test(std::span<MpiRequest> requests) {
  return std::ranges::all_of(requests, [this](MpiRequest& request) { return test(request); });
}

bool MpiCalls::test(MpiRequest& request, int* from) {
  if (!request.active) return true;
  int is_complete = 0;
  MPI_Status status;
  check(MPI_Test(handle_of(request), &is_complete, &status), "MPI_Test");
  if (is_complete == 0) return false;
  request.active = false;
  if (from != nullptr) *from = status.MPI_SOURCE;
  return true;
}

void MpiCalls::cancel(MpiRequest& request) {
  if (!request.active) return;
  if (MPI_Cancel(handle_of(request)) == MPI_SUCCESS) MPI_Wait(handle_of(request), MPI_STATUS_IGNORE);
  request.active = false;
}

void MpiCalls::abort(int exit_status) {
  exit_is_expected();
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) MPI_Abort(MPI_COMM_WORLD, exit_status);
  _exit(exit_status);
}

std::string MpiCalls::version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string out(text.data(), static_cast<std::size_t>(length));
  return out.substr(0, out.find(','));
}

}  // namespace lockstep::comm
