// The release, commit and compiler of this program. The Makefile defines them when version.cpp is compiled.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

std::string version();           // "0.1.0"
std::string commit();            // "1d7fb48", "1d7fb48-dirty" or "unknown"
std::string compiler();          // "g++ (Debian 12.2.0-14) 12.2.0"
std::string yaml_cpp_version();  // its headers do not define it

/// "oneDNN 3.2.0": the libraries of the backends. Defined in src/backend_factory.cpp, the only file that names a
/// backend.
std::vector<std::string> backend_libraries();

}  // namespace lockstep
