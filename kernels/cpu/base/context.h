// What every CPU op knows of the machine, and what a user of the CPU backend may choose.
#pragma once

namespace lockstep::cpu {

struct CpuContext {
  int threads = 1;  // of this rank, for OpenMP
};

struct CpuOptions {
  /// A convolution's normalised input that nobody stores: true: computed again in backward (one more pass over memory),
  /// false: kept from forward to backward (as many bytes as the input).
  bool recompute_normalized = false;
};

}  // namespace lockstep::cpu
