// What this program is: release, commit and compiler, given by the Makefile when version.cpp is compiled.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

std::string version();           // "0.1.0"
std::string commit();            // "1d7fb48", "1d7fb48-dirty" or "unknown"
std::string compiler();          // "g++ (Debian 12.2.0-14) 12.2.0"
std::string yaml_cpp_version();  // its headers do not tell

/// "oneDNN 3.2.0": the libraries of the backends, from src/backend_factory.cpp, which alone names them.
std::vector<std::string> backend_libraries();

}  // namespace lockstep
