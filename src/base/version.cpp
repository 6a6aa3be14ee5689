#include "base/version.h"

#ifndef LOCKSTEP_VERSION
#define LOCKSTEP_VERSION "unknown"
#endif
#ifndef LOCKSTEP_COMMIT
#define LOCKSTEP_COMMIT "unknown"
#endif
#ifndef LOCKSTEP_COMPILER
#define LOCKSTEP_COMPILER __VERSION__
#endif

namespace lockstep {

std::string version() { return LOCKSTEP_VERSION; }
std::string commit() { return LOCKSTEP_COMMIT; }
std::string compiler() { return LOCKSTEP_COMPILER; }

}  // namespace lockstep
