// The time of an all-reduce over all ranks, by Lockstep's communicator for CPUs or by MPI_Allreduce. Used by
// bench/macro/links.py. Prints one JSON object: the seconds of each repetition on the slowest rank.
//
//   mpirun -n 4 all_reduce lockstep|mpi|tcp BYTES REPETITIONS
//
// `tcp` sums nothing: each rank sends 2/N of the bytes to every other rank through a plain socket, which is the least
// that an all-reduce over N ranks must send. It shows what the links and the processors can carry. One more exchange
// comes first and is not counted: it opens the connections and touches all memory.
#include <fmt/format.h>
#include <mpi.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "comm/world.h"
#include "lockstep/backend.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::vector<double> seconds_of(int repetitions, const std::function<void()>& all_reduce,
                               const std::function<void()>& barrier) {
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {
    barrier();
    const auto begin = std::chrono::steady_clock::now();
    all_reduce();
    if (i > 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return seconds;
}

void print(const std::vector<double>& seconds) { fmt::print("{}\n", nlohmann::json{{"seconds", seconds}}.dump()); }

void measure_lockstep(int* argc, char*** argv, std::size_t size_bytes, int repetitions) {
  const auto world = comm::start_world(argc, argv);
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator({}, *world, *backend);
  const auto memory = communicator->allocate(size_bytes, "benchmark");
  const auto ready = backend->make_event();
  const auto done = communicator->make_event();
  std::vector<double> seconds = seconds_of(
      repetitions,
      [&] {
        communicator->all_reduce_async({.data = memory->data(), .n_elements = size_bytes / sizeof(float)}, *ready,
                                       *done, "benchmark");
        done->synchronize();
      },
      [&] { world->barrier(); });
  for (double& time : seconds)
    for (const std::string& text : world->all_gather(fmt::format("{}", time))) time = std::max(time, std::stod(text));
  if (world->rank() == 0) print(seconds);
}

/// `make(rank, size)` returns the function that is timed.
template <typename Make>
void measure_under_mpi(int* argc, char*** argv, int repetitions, const Make& make) {
  MPI_Init(argc, argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<double> seconds = seconds_of(repetitions, make(rank, size), [] { MPI_Barrier(MPI_COMM_WORLD); });
  MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(seconds.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) print(seconds);
  MPI_Finalize();
}

void measure_mpi(int* argc, char*** argv, std::size_t size_bytes, int repetitions) {
  std::vector<float> values(size_bytes / sizeof(float));
  measure_under_mpi(argc, argv, repetitions, [&](int, int) {
    return [&] {
      MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    };
  });
}

/// A connected socket to each other rank; -1 to itself.
std::vector<int> connect_all(int rank, int size) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  require(::bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 && ::listen(listener, size) == 0 &&
              ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0,
          ErrorCode::system_call, "cannot listen");
  using Text = std::array<char, 300>;
  Text mine{}, host{};
  ::gethostname(host.data(), host.size() - 1);
  fmt::format_to_n(mine.data(), mine.size() - 1, "{} {}", host.data(), ntohs(address.sin_port));
  std::vector<Text> all(static_cast<std::size_t>(size));
  MPI_Allgather(mine.data(), sizeof(Text), MPI_BYTE, all.data(), sizeof(Text), MPI_BYTE, MPI_COMM_WORLD);
  std::vector<int> sockets(all.size(), -1);
  for (int peer = 0; peer < rank; ++peer) {
    const std::string_view text = all[static_cast<std::size_t>(peer)].data();
    const std::string name(text.substr(0, text.find(' '))), port(text.substr(text.find(' ') + 1));
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    require(::getaddrinfo(name.c_str(), port.c_str(), &hints, &found) == 0, ErrorCode::system_call, "unknown host {}",
            name);
    const int connected = ::socket(AF_INET, SOCK_STREAM, 0);
    require(::connect(connected, found->ai_addr, found->ai_addrlen) == 0, ErrorCode::system_call, "cannot connect");
    ::freeaddrinfo(found);
    require(::write(connected, &rank, sizeof(rank)) == sizeof(rank), ErrorCode::system_call, "cannot send");
    sockets[static_cast<std::size_t>(peer)] = connected;
  }
  for (int i = rank + 1; i < size; ++i) {
    const int accepted = ::accept(listener, nullptr, nullptr);
    int peer = -1;
    require(::recv(accepted, &peer, sizeof(peer), MSG_WAITALL) == sizeof(peer), ErrorCode::system_call, "no rank came");
    sockets[static_cast<std::size_t>(peer)] = accepted;
  }
  ::close(listener);
  return sockets;
}

/// Sends and receives `n_bytes` through each socket at the same time.
void exchange(const std::vector<int>& sockets, std::size_t n_bytes, std::vector<char>& outgoing,
              std::vector<char>& incoming) {
  std::vector<pollfd> waiting;
  for (const int socket : sockets) waiting.push_back({.fd = socket, .events = POLLIN | POLLOUT, .revents = 0});
  std::vector<std::size_t> sent(sockets.size()), received(sockets.size());
  const auto proceed = [&](std::size_t i, std::vector<std::size_t>& done, const auto& call, char* data, short event) {
    if ((waiting[i].revents & event) == 0) return;
    const ssize_t n = call(waiting[i].fd, data + i * n_bytes + done[i], n_bytes - done[i], MSG_DONTWAIT);
    require(n > 0 || errno == EAGAIN, ErrorCode::system_call, "a connection is lost");
    done[i] += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    if (done[i] == n_bytes) waiting[i].events = static_cast<short>(waiting[i].events & ~event);
  };
  while (std::ranges::any_of(waiting, [](const pollfd& each) { return each.fd >= 0 && each.events != 0; })) {
    ::poll(waiting.data(), waiting.size(), -1);
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].fd < 0) continue;
      proceed(i, received, ::recv, incoming.data(), POLLIN);
      proceed(i, sent, ::send, outgoing.data(), POLLOUT);
    }
  }
}

void measure_tcp(int* argc, char*** argv, std::size_t size_bytes, int repetitions) {
  std::vector<char> outgoing(2 * size_bytes), incoming(2 * size_bytes);
  measure_under_mpi(argc, argv, repetitions, [&](int rank, int size) {
    return [&, size, sockets = connect_all(rank, size)] {
      exchange(sockets, 2 * size_bytes / static_cast<std::size_t>(size), outgoing, incoming);
    };
  });
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  require(argc == 4, ErrorCode::usage, "all_reduce lockstep|mpi|tcp BYTES REPETITIONS");
  const std::string_view kind = argv[1];
  const std::size_t size_bytes = std::strtoull(argv[2], nullptr, 10);
  const int repetitions = std::atoi(argv[3]);
  const auto measure = kind == "mpi" ? measure_mpi : kind == "tcp" ? measure_tcp : measure_lockstep;
  measure(&argc, &argv, size_bytes, repetitions);
  return 0;
}
