// What every CPU op knows of the machine, and what a user of the CPU backend may choose.
#pragma once

namespace lockstep {
class Algorithms;
}

namespace lockstep::cpu {

struct CpuOptions {
  /// A convolution's normalised input that nobody stores: true: computed again in backward (one more pass over memory),
  /// false: kept from forward to backward (as many bytes as the input).
  bool recompute_normalized = false;
};

struct CpuContext {
  int threads = 1;  // of this rank, for OpenMP
  CpuOptions options{};
  Algorithms* algorithms = nullptr;  // of ops that have several; null: a fixed one
};

}  // namespace lockstep::cpu
