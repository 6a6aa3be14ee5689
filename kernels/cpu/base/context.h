// What every CPU op knows of the machine, and what a user of the CPU backend may choose.
#pragma once

namespace lockstep {
class Algorithms;
}

namespace lockstep::cpu {

struct CpuOptions {
  /// A convolution's normalised input that is not stored elsewhere. true: it is computed again in backward (one more
  /// pass over memory); false: it is kept from forward to backward (as many bytes as the input).
  bool recompute_normalized = false;
};

struct CpuContext {
  int threads = 1;  // of this rank, for OpenMP
  CpuOptions options{};
  Algorithms* algorithms = nullptr;  // for ops that have several; null: a fixed one is used
};

}  // namespace lockstep::cpu
