// A list that stands in for a backward pass: it writes tensors one after the other, sums each bucket over ranks as soon
// as its last tensor is written, and waits for all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/buckets.h"
#include "graph/step_list.h"

namespace lockstep::comm {

using WriteTensor = std::function<void(std::size_t tensor, Stream& stream)>;

inline graph::StepList list_of_buckets(const std::vector<Bucket>& buckets, std::size_t n_tensors, float* gradients,
                                       const WriteTensor& write, Communicator& communicator, Backend& backend) {
  graph::StepList list;
  std::size_t next = 0;
  for (std::size_t t = 0; t < n_tensors; ++t) {
    list.add_task({trace::Kind::backward, "backward", [write, t](Stream& stream) { write(t, stream); }});
    for (; next < buckets.size() && buckets[next].last_tensor == static_cast<int>(t); ++next)
      list.add_start({.exchange = {.slice = {gradients + buckets[next].begin, buckets[next].n_elements}},
                      .label = "bucket " + std::to_string(next + 1) + " of " + std::to_string(buckets.size()),
                      .is_timed = true});
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) list.add_wait(static_cast<int>(b));
  list.bind(backend, &communicator);
  return list;
}

}  // namespace lockstep::comm
