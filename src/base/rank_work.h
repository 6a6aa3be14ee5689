// Work that is divided among the ranks. They meet now and then, so that none waits too long for another, and a signal
// ends all of them.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/communicator.h"

namespace lockstep {

/// The part of a rank in n things, from `begin` to `end`.
struct Part {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};
Part part_of(const World& world, std::size_t n);

/// Ranks that work for different times wait for each other here, so that a signal ends all of them.
class Meetings {
 public:
  explicit Meetings(World& world) : world_(world) {}
  /// After each step of this rank's work; every few of them are a meeting. Throws StoppedBySignal on all ranks if a
  /// signal has asked any of them to stop.
  void after_step();
  /// When this rank has no work left: meets until that is so for all.
  void end();

 private:
  bool meet(bool works);

  World& world_;
  int n_steps_ = 0;
};

/// Collective: the lists of all ranks, in rank order.
template <typename T>
std::vector<T> gathered(const std::vector<T>& mine, World& world) {
  std::vector<T> all;
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T));
  for (const std::string& of_rank : world.all_gather(bytes)) {
    const std::size_t n = all.size();
    all.resize(n + of_rank.size() / sizeof(T));
    if (!of_rank.empty()) std::memcpy(all.data() + n, of_rank.data(), of_rank.size());
  }
  return all;
}

}  // namespace lockstep
