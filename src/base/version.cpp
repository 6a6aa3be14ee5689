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
#ifndef LOCKSTEP_YAML_CPP
#define LOCKSTEP_YAML_CPP "unknown"
#endif

namespace lockstep {

std::string version() { return LOCKSTEP_VERSION; }
std::string commit() { return LOCKSTEP_COMMIT; }
std::string compiler() { return LOCKSTEP_COMPILER; }
std::string yaml_cpp_version() { return LOCKSTEP_YAML_CPP; }

}  // namespace lockstep
