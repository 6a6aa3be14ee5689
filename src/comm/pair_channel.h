// The channel of a PairProbe (diagnosis.h). In a round, each rank has one peer or none. Both ranks of a pair first tell
// each other that they are ready, so that the time of one does not include the delay of the other. They then exchange a
// small message and, unless that took long, a large one. Both directions are used at the same time.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/control_channel.h"
#include "comm/diagnosis.h"

namespace lockstep::comm {

class PairChannel final : public PairProbe, private CallChannel {
 public:
  explicit PairChannel(CommunicationThread& thread);
  ~PairChannel() override;

  PairTime exchange(int peer) override;

 private:
  Coroutine run();
  /// Starts to send `size_bytes` from `mine`, and to receive the same amount into `theirs`.
  void start(const void* mine, void* theirs, std::size_t size_bytes);

  int peer_ = -1;
  PairTime time_;
  std::vector<std::byte> outgoing_, incoming_;
  MpiRequest send_, receive_;
};

}  // namespace lockstep::comm
