// Whether the tests run in an emulator of another processor (`make test-arm64`), where one step of a network takes
// minutes.
#pragma once

#include <cstdlib>

namespace lockstep::test {

/// scripts/arm64-run.sh sets this variable, by which qemu finds libraries.
inline bool in_emulator() { return std::getenv("QEMU_LD_PREFIX") != nullptr; }

}  // namespace lockstep::test
