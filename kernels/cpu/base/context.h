// What every CPU op knows about the machine, and what a user of the CPU backend may choose.
#pragma once

#include "lockstep/op.h"

namespace lockstep {
class Algorithms;
}

namespace lockstep::cpu {

struct CpuOptions {
  /// What happens to the normalised input of a convolution if nobody else stores it. true: it is recomputed in backward
  /// (one more pass over memory); false: it is kept from forward to backward (which needs the size of the input).
  bool recompute_normalized = false;
};

struct CpuContext {
  int threads = 1;  // of this rank, for OpenMP
  CpuOptions options{};
  Algorithms* algorithms = nullptr;  // for ops that have several; null: a fixed one is used
};

template <typename Description>
using CpuOp = PlannedOp<Description, CpuContext>;

}  // namespace lockstep::cpu
